"""The settings of methods that can be private, and the mechanism that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

from pydantic import Field

from vitrail.methods.base import BaseMethod, Task
from vitrail.privacy.accounting import epsilon, multiplier_for
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import Source, operating_system, seeded
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


@dataclass(frozen=True)
class PrivateMethod(BaseMethod):
    """What a method that knows mechanisms lets a run choose; the method names them in `mechanisms`."""

    task: Task
    privacy: Annotated[str, Field(description="mechanism that protects what leaves a client")] = "none"
    epsilon: Annotated[
        float | None,
        Field(gt=0, le=1e6, description="privacy: the ε to be had at delta over the whole run, by enough noise"),
    ] = None
    delta: Annotated[float, Field(gt=0, lt=0.5, description="privacy: δ, well below one over the number of units")] = (
        1e-5
    )
    noise_multiplier: Annotated[
        float, Field(ge=0, le=1e6, description="privacy: noise over sensitivity, in place of epsilon; 0: by epsilon")
    ] = 0.0

    default_epsilon: ClassVar[float | None] = None
    mechanisms: ClassVar[tuple[str, ...]] = ()

    def base_mechanism(self) -> Mechanism | None:
        """The mechanism that `privacy` names, at a multiplier of 1; None: nothing is noised."""
        return None

    @cached_property
    def mechanism(self) -> Mechanism | None:
        """What protects this run's data, with the noise that was asked for."""
        found = self.base_mechanism()
        if found is None:
            if self.epsilon is not None or self.noise_multiplier:
                known = " or ".join(f"privacy={name}" for name in self.mechanisms)
                raise VitrailError(f"privacy={self.privacy} adds no noise, so no ε can be had by it; choose {known}")
            return None
        found = found.with_multiplier(self.noise_multiplier or self.multiplier(found))
        return replace(found, bound=self.bound(found))

    @property
    def max_replies(self) -> int:
        """How many times one client is asked over a run that goes as planned."""
        return self.task.rounds

    def multiplier(self, found: Mechanism) -> float:
        """The noise multiplier that gives the ε asked for, if a client answers as often as it is asked."""
        asked = self.epsilon or self.default_epsilon
        if asked is None:
            raise VitrailError(f"privacy={self.privacy}: say how much with epsilon=, such as epsilon=9.8")
        answers = found.answers(self.max_replies)
        least = 1e-3
        if asked < least:
            m = multiplier_for(lambda m: [(found.with_multiplier(m).noise, answers)], least, self.delta)
            raise VitrailError(
                f"epsilon={asked:g} cannot be had: {least:g}, at {m:,.0f} times the sensitivity in noise, is the least "
                "that is offered; nothing could be learned below it"
            )
        return multiplier_for(lambda m: [(found.with_multiplier(m).noise, answers)], asked, self.delta)

    def bound(self, found: Mechanism) -> str:  # noqa: ARG002
        """A further bound to be reported beside the claim; it is never what the claim rests on."""
        return ""

    def source(self, rng: Rng) -> Source:
        """Where noise comes from: the operating system in deployment, the run's seed in a simulation."""
        return operating_system if self.task.noise_source == "os" else seeded(rng)

    def spent(self, answers: int) -> float:
        """ε of so many answers of one client."""
        if self.mechanism is None:
            return float("inf")
        return epsilon([(self.mechanism.noise, self.mechanism.answers(answers))], self.delta)
