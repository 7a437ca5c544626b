"""Federated methods. `base` has the interface, `registry` lists them by name; each paper has a module or package."""

from vitrail.methods.registry import METHODS

__all__ = ["METHODS"]
