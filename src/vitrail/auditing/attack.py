"""What attacks have in common: what they are given, what they find, and how scores become bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vitrail.auditing import bounds
from vitrail.data.dataset import Images
from vitrail.experiment.plan import Plan
from vitrail.models.model_file import Generator
from vitrail.privacy.accounting import epsilon
from vitrail.utils.rng import Rng

CONFIDENCE = 0.95
GAUSSIAN = "noise is Gaussian, as claimed"
DELTA = 1e-5  # where a run names none
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)  # of canaries, the surest, that are guessed about in one run


@dataclass(frozen=True)
class Target:
    """A run under attack, and how much work an attack may take."""

    plan: Plan
    rng: Rng
    generator: Generator | None = None
    canaries: int = 1000
    shadows: int = 0
    samples: int = 2000
    seconds: float = 120.0
    r: Sequence[float] = ()
    users: int = 3
    rounds: int = 0
    tell: Callable[[str], None] = lambda _: None

    @property
    def delta(self) -> float:
        """δ that bounds are stated at: the run's own, or a usual one."""
        return self.plan.method.delta

    def claimed(self, answers: int) -> float:
        """ε that is claimed for so many answers of one client; infinite where nothing is."""
        mechanism = self.plan.method.mechanism
        return math.inf if mechanism is None else epsilon([(mechanism.noise, mechanism.answers(answers))], self.delta)

    @property
    def answers(self) -> int:
        """The most answers of one client that the run plans for."""
        return self.plan.method.max_replies

    @property
    def members(self) -> Images:
        """The pictures that clients train on."""
        return self.plan.data.train.take(np.concatenate([h for h in self.plan.partition.indices if len(h)]))


@dataclass(frozen=True)
class Trial:
    """What canaries came to: a score for each, above 0 where its coin looks as if it fell 1, and the coin."""

    scores: NDArray[np.float64]
    coins: NDArray[np.bool_]


@dataclass(frozen=True)
class Lower:
    """A lower bound on ε at δ, beside what is claimed of the very answers that were attacked."""

    epsilon: float
    delta: float
    claimed: float
    how: str
    assumes: str = ""
    confidence: float = CONFIDENCE

    @property
    def refutes(self) -> bool:
        """Whether the claim cannot be true."""
        return self.epsilon > self.claimed


@dataclass(frozen=True)
class Figure:
    """A number an attack came to, with its 95% interval, and what it would be if the attack knew nothing."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    chance: float = math.nan
    note: str = ""


@dataclass(frozen=True)
class Case:
    """One of several attackers against one victim; all cases of an attack have figures of the same names."""

    attacker: str
    victim: str
    figures: list[Figure]
    note: str = ""


@dataclass(frozen=True)
class Curves:
    """A quantity over the messages of one victim, a line for each attacker."""

    title: str
    lines: dict[str, list[float]]


@dataclass(frozen=True)
class Finding:
    """What one attack found."""

    attack: str
    about: str  # what it does, in one line
    lowers: list[Lower] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    note: str = ""
    cases: list[Case] = field(default_factory=list)
    curves: list[Curves] = field(default_factory=list)
    picture: str = ""  # a file in the run's folder
    caption: str = ""  # and what it shows


class Attack(Protocol):
    """An attack: whether it applies to a run, and what it finds there."""

    def __call__(self, target: Target) -> Finding | None:
        """Attack; None where there is nothing of the kind to attack."""
        ...


def from_trials(trial: Trial, target: Target, claimed: float, gaussian: bool = True) -> list[Lower]:
    """Bounds from independent trials.

    A quarter of the trials chooses the threshold and the others are judged by it: by Clopper-Pearson a bound is best
    far out, by a Gaussian trade-off in the middle between both kinds.
    """
    cut, delta = len(trial.coins) // 4, target.delta
    chosen, judged = (Trial(trial.scores[part], trial.coins[part]) for part in (slice(cut), slice(cut, None)))
    worth = {float(t): _plain(chosen, t, delta) for t in np.unique(chosen.scores)[1:]}
    threshold = max(worth, key=lambda t: worth[t], default=0.0)
    n = f"{len(judged.coins):,} independent trials"
    found = [Lower(_plain(judged, threshold, delta), delta, claimed, f"{n}, Clopper-Pearson")]
    if gaussian and chosen.coins.any() and not chosen.coins.all():
        middle = np.mean([np.median(chosen.scores[chosen.coins == coin]) for coin in (True, False)])
        mu = bounds.gaussian_from_rates(*_counts(judged, float(middle)), CONFIDENCE)
        found.append(Lower(bounds.gaussian_epsilon(mu, delta), delta, claimed, f"{n}, Gaussian trade-off", GAUSSIAN))
    return found


def _plain(trial: Trial, threshold: float, delta: float) -> float:
    counts = _counts(trial, threshold)
    return bounds.from_rates(*counts, delta, CONFIDENCE) if counts[1] and counts[3] else 0.0


def _counts(trial: Trial, threshold: float) -> tuple[int, int, int, int]:
    said, coins = trial.scores >= threshold, trial.coins
    return int((said & coins).sum()), int(coins.sum()), int((said & ~coins).sum()), int((~coins).sum())


def from_one_run(trials: list[Trial], target: Target, claimed: float) -> list[Lower]:
    """Bounds from one run with many canaries: the best over shares guessed about and ways to score, corrected."""
    m = len(trials[0].coins)
    alpha = (1 - CONFIDENCE) / (len(SHARES) * len(trials))
    plain = mu = 0.0
    for trial in trials:
        sure = np.argsort(-np.abs(trial.scores), kind="stable")
        for guesses in {max(1, round(share * m)) for share in SHARES}:
            pick = sure[:guesses]
            right = int(((trial.scores[pick] > 0) == trial.coins[pick]).sum())
            plain = max(plain, bounds.one_run(m, guesses, right, target.delta, 1 - alpha))
            mu = max(mu, bounds.one_run_gaussian(m, guesses, right, 1 - alpha))
    how, of_gaussian = f"one run, {m:,} canaries", bounds.gaussian_epsilon(mu, target.delta)
    return [
        Lower(plain, target.delta, claimed, how),
        Lower(of_gaussian, target.delta, claimed, f"{how}, Gaussian trade-off", GAUSSIAN),
    ]
