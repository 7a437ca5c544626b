"""What attacks share: the attacked run, what an attack finds, and bounds on ε from its scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitrail.auditing import bounds
from vitrail.data.dataset import Images
from vitrail.experiment.plan import Plan
from vitrail.models.model_file import Generator
from vitrail.privacy.accounting import epsilon
from vitrail.utils.rng import Rng

CONFIDENCE = 0.95
KEYS = {"random_guess": "chance", "image_file": "picture"}  # names in audit.json that differ from those here
GAUSSIAN = "noise is Gaussian, as claimed"
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)  # fractions of canaries, the most certain ones, that are guessed in one run


@dataclass(frozen=True)
class Target:
    """The attacked run, and how much work an attack may do.

    Args:
        plan: The run.
        rng: Randomness of the attack.
        generator: The run's model; None before there is one.
        canaries: Number of canaries, and of attacked releases.
        shadows: Number of shadow runs.
        samples: Number of samples of the model.
        seconds: About how long a slow attack may take.
        r: Factors of eavesdroppers' first layer.
        users: Number of users that eavesdroppers attack.
        rounds: Number of rounds that eavesdroppers receive; 0: all.
        report_progress: Receives a line of progress.
    """

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
    report_progress: Callable[[str], None] = lambda _: None

    @property
    def delta(self) -> float:
        """δ of all bounds: that of the run."""
        return self.plan.method.delta

    def claimed(self, answers: int) -> float:
        """Return the ε that is claimed for a number of answers of one client; infinite without a claim."""
        mechanism = self.plan.method.mechanism
        return math.inf if mechanism is None else epsilon([(mechanism.noise, mechanism.answers(answers))], self.delta)

    @property
    def answers(self) -> int:
        """Largest number of answers of one client that the run plans."""
        return self.plan.method.max_replies

    @property
    def members(self) -> Images:
        """The images that clients train on."""
        return self.plan.data.train.take(np.concatenate([h for h in self.plan.partition.indices if len(h)]))


@dataclass(frozen=True)
class Trial:
    """Results of canaries: one score each, positive where its coin appears to be 1, and the coins."""

    scores: NDArray[np.float64]
    coins: NDArray[np.bool_]


@dataclass(frozen=True)
class Lower:
    """A lower bound on ε at δ.

    Args:
        epsilon: The bound.
        delta: δ.
        claimed: The ε that is claimed for exactly the attacked answers.
        how: How the bound was found.
        assumes: What the bound assumes; empty: nothing.
        confidence: Probability with which the bound is below the true ε.
    """

    epsilon: float
    delta: float
    claimed: float
    how: str
    assumes: str = ""
    confidence: float = CONFIDENCE

    @property
    def refutes(self) -> bool:
        """Whether the bound exceeds the claim."""
        return self.epsilon > self.claimed


@dataclass(frozen=True)
class Figure:
    """A metric of an attack, with its 95% interval, and the value of a random guess."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    random_guess: float = math.nan
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
    """A quantity over the messages of one victim, one line per attacker."""

    title: str
    lines: dict[str, list[float]]


@dataclass(frozen=True)
class Finding:
    """What one attack found.

    Args:
        attack: Name of the attack.
        about: What the attack does, in one line.
        lowers: Lower bounds on ε.
        figures: Other metrics.
        note: Remark for the reader.
        cases: Results of several attackers.
        curves: Quantities over messages.
        image_file: Name of an image file in the run's folder.
        caption: What the image shows.
    """

    attack: str
    about: str
    lowers: list[Lower] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    note: str = ""
    cases: list[Case] = field(default_factory=list)
    curves: list[Curves] = field(default_factory=list)
    image_file: str = ""
    caption: str = ""


Attack = Callable[[Target], Finding | None]  # None where the attack does not apply to the run


def from_trials(trial: Trial, target: Target, claimed: float, gaussian: bool = True) -> list[Lower]:
    """Return lower bounds on ε from independent trials.

    A quarter of the trials selects the threshold, the others are judged by it: for Clopper-Pearson the threshold with
    the best bound, for a Gaussian trade-off the middle between both kinds.

    Args:
        trial: Scores and coins of the trials.
        target: The attacked run.
        claimed: The ε that is claimed for one trial.
        gaussian: Whether to add a bound that assumes Gaussian noise.
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
    guessed, coins = trial.scores >= threshold, trial.coins
    return int((guessed & coins).sum()), int(coins.sum()), int((guessed & ~coins).sum()), int((~coins).sum())


def from_one_run(trials: list[Trial], target: Target, claimed: float) -> list[Lower]:
    """Return lower bounds on ε from one run with many canaries.

    The bounds are the best over all numbers of guesses and ways of scoring, corrected for the number of choices.

    Args:
        trials: The same coins with scores of different kinds.
        target: The attacked run.
        claimed: The ε that is claimed for the run.
    """
    m = len(trials[0].coins)
    alpha = (1 - CONFIDENCE) / (len(SHARES) * len(trials))
    plain, mu, delta = 0.0, 0.0, target.delta
    for trial in trials:
        order = np.argsort(-np.abs(trial.scores), kind="stable")
        for guesses in {max(1, round(share * m)) for share in SHARES}:
            pick = order[:guesses]
            right = int(((trial.scores[pick] > 0) == trial.coins[pick]).sum())
            plain = max(plain, bounds.one_run(m, guesses, right, delta, 1 - alpha))
            mu = max(mu, bounds.one_run_gaussian(m, guesses, right, 1 - alpha))
    how, eps = f"one run, {m:,} canaries", bounds.gaussian_epsilon(mu, delta)
    gaussian = Lower(eps, delta, claimed, f"{how}, Gaussian trade-off", GAUSSIAN)
    return [Lower(plain, delta, claimed, how), gaussian]
