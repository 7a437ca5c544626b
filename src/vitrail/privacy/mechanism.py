"""What a client's answers promise about its data: one mechanism, described so that anybody can compute ε again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Unit = Literal["example", "client"]
Adjacency = Literal["replace one", "add or remove one"]


@dataclass(frozen=True)
class Noise:
    """Gaussian noise as an accountant sees it; one answer of a client holds `steps` such releases."""

    multiplier: float  # σ over the sensitivity
    steps: int = 1
    rate: float = 1.0  # each unit takes part in a release with this chance, independently (Poisson); 1: always
    discrete: bool = False  # integers of many dimensions: only its Rényi divergence is known, not its exact profile


@dataclass(frozen=True)
class Mechanism:
    """How a unit of data is protected in what leaves a client; every field is said in the ledger."""

    name: str
    unit: Unit
    adjacency: Adjacency
    sensitivity: float
    why: str  # why the sensitivity holds
    noise: Noise
    once: bool  # only a client's first answer is a release; all later ones follow from it
    leaves: str  # what leaves the client
    trust: str  # who must be trusted, and with what
    assumed: str = ""  # what it rests on that nothing enforces
    public: str = ""  # what leaves without noise, because anybody may know it
    bound: str = ""  # a further bound that is reported, never one that the claim rests on
    noised_by: Literal["client", "all clients", "server"] = "client"  # who adds it; all: each a share of one noise
    own_share: float = 0.0  # where others add noise: σ of what the client adds itself, over σ of the whole

    @property
    def sigma(self) -> float:
        """The noise's standard deviation, in the unit of the sensitivity."""
        return self.noise.multiplier * self.sensitivity

    def own_noise(self) -> Mechanism:
        """The same with only the noise that the client adds itself."""
        return self if self.noised_by == "client" else self.with_multiplier(self.noise.multiplier * self.own_share)

    def with_multiplier(self, multiplier: float) -> Mechanism:
        """The same with another amount of noise."""
        return replace(self, noise=replace(self.noise, multiplier=multiplier))

    def answers(self, given: int) -> int:
        """How many of a client's answers count as releases."""
        return min(given, 1) if self.once else given

    @property
    def whom(self) -> str:
        """The unit in words."""
        one = {"example": "one picture", "client": "one client's whole data"}[self.unit]
        return f"{one} {'replaced by another' if self.adjacency == 'replace one' else 'added or removed'}"
