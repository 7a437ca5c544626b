"""Conformance checks for methods: `check_method(MyMethod, lr=0.1)` in a test of your own method.

The package runs the same checks on its own methods.
"""

from vitrail.testing.conformance import CHECKS, Subject, check_method
from vitrail.testing.federation import federate, same

__all__ = ["CHECKS", "Subject", "check_method", "federate", "same"]
