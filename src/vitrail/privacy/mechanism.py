"""Description of a privacy mechanism: what it protects, its sensitivity and noise, and who must be trusted.

A `Mechanism` has everything that is needed to recompute ε. `MECHANISMS` lists the names that owners may accept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.utils.registry import Registry

Unit = Literal["example", "client"]
Adjacency = Literal["replace one", "add or remove one"]

MECHANISMS: Registry[Callable[..., Any]] = Registry(
    "mechanism",
    "vitrail.mechanisms",
    {
        "moments": ("vitrail.privacy.feature_sums:noised", "sums of features, released once; noise by each client"),
        "mask-update": ("vitrail.privacy.noise:gaussian", "masks drawn from clipped and noised updates of θ"),
        "dp-sgd": ("vitrail.privacy.dpsgd:private_sum", "sums of per-example gradients, clipped and noised"),
        "dp-fedavg": ("vitrail.privacy.dpfedavg:mean_update", "sums of clipped updates; noise by the server"),
        "gradient": ("vitrail.privacy.clipping:noised", "gradients with respect to fakes, clipped and noised"),
    },
)
"""Mechanisms by the name that an owner's policy uses in `accept` (see policy.py).

An entry is the function that adds the mechanism's noise. Register a plugin's mechanism under the `name` of its
`Mechanism`, so that owners can accept it. Where other parties add the noise, `accept` names it with the prefix
"distributed-" (all clients) or "server-" (see `policy.policy_name`). `policy.from_config` has an example.
"""


@dataclass(frozen=True)
class Noise:
    """Gaussian noise as an accountant sees it. One answer of a client consists of `steps` such releases.

    Args:
        multiplier: Standard deviation σ divided by the sensitivity.
        steps: Releases per answer.
        rate: Probability with which each unit takes part in a release, independently (Poisson sampling); 1: always.
        discrete: Discrete Gaussian noise on vectors of integers. Only its Rényi divergence is known, not its exact
            profile.

    Examples:
        >>> from vitrail.privacy.accounting import epsilon
        >>> round(epsilon([(Noise(3.73), 1)], delta=1e-5), 2)
        1.0
    """

    multiplier: float
    steps: int = 1
    rate: float = 1.0
    discrete: bool = False


@dataclass(frozen=True)
class Mechanism:
    """How a unit of data is protected in what leaves a client. The ledger records all but `noised`.

    Args:
        name: Name of the mechanism, as in `MECHANISMS`.
        unit: What is protected: one example, or all data of one client.
        adjacency: Neighbouring relation: one unit is replaced by another, or one is added or removed.
        sensitivity: Largest L2 distance between what two neighbouring data sets release, before noise.
        why: Why the sensitivity holds.
        noise: Noise of one answer.
        once: Only a client's first answer is a release; all later answers are computed from it.
        leaves: What leaves the client.
        trust: Which parties must be trusted, and to do what.
        assumed: An assumption that the claim needs and that nothing enforces; empty: none.
        public: What leaves without noise, because it is declared public; empty: nothing.
        bound: An additional bound that is reported. The claim never rests on it.
        noised_by: Which party adds the noise; "all clients": each adds a share.
        own_share: Where other parties add noise: σ of what the client itself adds, divided by σ of all noise.
        noised: What gets the noise; audits attack accordingly. "training": sums of per-example gradients, in DP-SGD's
            steps. "gradients": those that a client sends. "updates": their sum, on the server, as DP-FedAvg defines it.

    Examples:
        >>> sums = Mechanism("moments", "example", "replace one", 2.0, "norm 1", Noise(3.0), True, "sums", "no one")
        >>> sums.sigma, sums.answers(12), sums.whom
        (6.0, 1, 'one image replaced by another')
    """

    name: str
    unit: Unit
    adjacency: Adjacency
    sensitivity: float
    why: str
    noise: Noise
    once: bool
    leaves: str
    trust: str
    assumed: str = ""
    public: str = ""
    bound: str = ""
    noised_by: Literal["client", "all clients", "server"] = "client"
    own_share: float = 0.0
    noised: Literal["training", "gradients", "updates", "other"] = "other"

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in the unit of the sensitivity."""
        return self.noise.multiplier * self.sensitivity

    def own_noise(self) -> Mechanism:
        """Return the mechanism with only the noise that the client itself adds.

        Returns:
            The mechanism itself if the client adds all noise.

        Examples:
            >>> trusted = Mechanism("server-x", "client", "replace one", 1.0, "norm 1", Noise(3.0), False, "updates",
            ...                     "the server", noised_by="server")
            >>> trusted.own_noise().noise.multiplier
            0.0
        """
        return self if self.noised_by == "client" else self.with_multiplier(self.noise.multiplier * self.own_share)

    def with_multiplier(self, multiplier: float) -> Mechanism:
        """Return the mechanism with another noise multiplier.

        Args:
            multiplier: Standard deviation of the noise over the sensitivity.

        Returns:
            A new mechanism.

        Examples:
            >>> sums = Mechanism("moments", "example", "replace one", 2.0, "norm 1", Noise(3.0), True, "sums", "no one")
            >>> sums.with_multiplier(1.5).sigma
            3.0
        """
        return replace(self, noise=replace(self.noise, multiplier=multiplier))

    def answers(self, given: int) -> int:
        """Return how many of a client's answers count as releases.

        Args:
            given: Number of answers.

        Returns:
            The number of releases: at most one if `once` is set.

        Examples:
            >>> once = Mechanism("moments", "example", "replace one", 2.0, "norm 1", Noise(3.0), True, "sums", "no one")
            >>> once.answers(0), once.answers(12)
            (0, 1)
        """
        return min(given, 1) if self.once else given

    @property
    def whom(self) -> str:
        """The unit and the neighbouring relation in words."""
        one = {"example": "one image", "client": "one client's whole data"}[self.unit]
        return f"{one} {'replaced by another' if self.adjacency == 'replace one' else 'added or removed'}"
