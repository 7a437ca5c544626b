"""Conformance checks for methods: run them on a method of your own, as the package does on the built-in ones.

from vitrail.testing import check_method

def test_my_method():
    check_method(MyMethod, lr=0.1)
"""

from vitrail.testing.conformance import CHECKS, Subject, check_method
from vitrail.testing.federation import federate, same

__all__ = ["CHECKS", "Subject", "check_method", "federate", "same"]
