"""Base class of methods with private variants: their common settings, and the noise that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from vitrail.methods.base import BaseMethod, setting
from vitrail.privacy.accounting import epsilon, multiplier_for
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import Source, operating_system, seeded
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

MIN_EPSILON = 1e-3


@dataclass(frozen=True)
class PrivateMethod(BaseMethod):
    """A method whose setting `privacy` names one of its `mechanisms`.

    A subclass defines `base_mechanism`; the noise is calibrated here, to `epsilon` or `noise_multiplier`.

    Args:
        privacy: Mechanism that protects what leaves a client, one of `mechanisms`; "none": no noise.
        epsilon: Target ε at δ for the whole run.
        delta: δ at which ε is stated.
        noise_multiplier: Noise over sensitivity, instead of `epsilon`; 0: from `epsilon`.
        task: Image shape, number of classes, rounds and clients; the run sets it.

    Examples:
        >>> from vitrail.methods.base import Task
        >>> from vitrail.methods.gswgan import GsWgan
        >>> method = GsWgan(task=Task((1, 8, 8), 10, rounds=100, clients=10), privacy="gradient", epsilon=8.0)
        >>> method.mechanism.unit, round(method.spent(method.max_replies), 2)
        ('client', 8.0)
    """

    privacy: str = setting("none", "mechanism that protects what leaves a client")
    epsilon: float | None = setting(
        None, "privacy: target ε at δ for the whole run; noise is calibrated to it", gt=0, le=1e6
    )
    delta: float = setting(1e-5, "privacy: δ, well below one over the number of units", gt=0, lt=0.5)
    noise_multiplier: float = setting(
        0.0, "privacy: noise over sensitivity, instead of epsilon; 0: from epsilon", ge=0, le=1e6
    )

    default_epsilon: ClassVar[float | None] = None
    """Target ε where neither `epsilon` nor `noise_multiplier` is set; None: one of them is required."""

    def base_mechanism(self) -> Mechanism | None:
        """Return the mechanism that `privacy` names, at a noise multiplier of 1.

        Returns:
            The mechanism, or None: no noise is added, and the run is not private.
        """
        return None

    @cached_property
    def mechanism(self) -> Mechanism | None:
        """The run's mechanism, with the requested noise.

        Raises:
            VitrailError: If ε or noise is requested of a variant that adds none, or ε is too small.
        """
        found = self.base_mechanism()
        if found is None:
            if self.epsilon is not None or self.noise_multiplier:
                known = " or ".join(f"privacy={name}" for name in self.mechanisms)
                raise VitrailError(f"privacy={self.privacy} adds no noise, so it has no ε; choose {known}")
            return None
        found = found.with_multiplier(self.noise_multiplier or self.multiplier(found))
        return replace(found, bound=self.bound(found))

    def multiplier(self, found: Mechanism) -> float:
        """Return the noise multiplier that gives the target ε if a client replies `max_replies` times.

        Args:
            found: The mechanism, at a noise multiplier of 1.

        Returns:
            Standard deviation of the noise over the sensitivity.

        Raises:
            VitrailError: If there is no target, or it is too small.
        """
        target = self.epsilon or self.default_epsilon
        if target is None:
            raise VitrailError(f"privacy={self.privacy} needs a target; set epsilon=, such as epsilon=9.8")
        releases = found.answers(self.max_replies)

        def calibrate(eps: float) -> float:
            return multiplier_for(lambda m: [(found.with_multiplier(m).noise, releases)], eps, self.delta)

        if target < MIN_EPSILON:
            raise VitrailError(
                f"epsilon={target:g} is too small: the minimum is {MIN_EPSILON:g}, which already needs noise of "
                f"{calibrate(MIN_EPSILON):,.0f} times the sensitivity; nothing could be learned below it"
            )
        return calibrate(target)

    def bound(self, found: Mechanism) -> str:  # noqa: ARG002
        """Return a further bound to report with the claim; the claim itself never rests on it.

        Args:
            found: The mechanism, with the run's noise.

        Returns:
            The bound in words; empty: none.
        """
        return ""

    def source(self, rng: Rng) -> Source:
        """Return the source of noise: the operating system in deployments, the run's seed in simulations.

        Args:
            rng: Random stream from which simulated noise is drawn.

        Returns:
            A function of n that returns n random bytes.
        """
        return operating_system if self.task.noise_source == "os" else seeded(rng)

    def spent(self, answers: int) -> float:
        """Return ε of one client after a number of replies.

        Args:
            answers: Number of replies.

        Returns:
            ε at `delta`; infinite without a mechanism.
        """
        if self.mechanism is None:
            return float("inf")
        return epsilon([(self.mechanism.noise, self.mechanism.answers(answers))], self.delta)
