"""Small runs for the tests of attacks."""

from __future__ import annotations

from typing import Any

from vitrail.auditing.attack import Target
from vitrail.experiment import settings as config
from vitrail.experiment.plan import prepare
from vitrail.utils.rng import Rng

TINY: dict[str, Any] = {"data": "digits", "size": 8, "clients": 3, "out": "-"}


def target(
    method: str, canaries: int = 80, seed: int = 1, more: dict[str, Any] | None = None, **settings: Any
) -> Target:
    """A run that has not started: attacks on what clients release need no more."""
    plan = prepare(config.resolve(method, {**TINY, **settings}))
    return Target(plan, Rng((seed,)), canaries=canaries, **(more or {}))
