"""Canary clients against masks drawn from noised probabilities: PRISM's `mask-update` (and `paper`).

The unit is a client, and a client's change of θ is bounded only by its norm C. So the worst client is simulated: a coin
decides whether its θ moves by +C or -C, over the elements whose bits show it best. Its answers pass through the
method's own upload; the auditor scores them by the likelihood of either coin, over all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.auditing.attack import Finding, Target, Trial, from_trials
from vitrail.methods.audit_hooks import NoisedMasks
from vitrail.methods.base import Method, ServerMessage
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores as on_wire

ABOUT = "canary clients that move θ as far as allowed, in one of two directions, recognised by the masks they send"
BLOCK = 256  # elements that a canary client moves
AMONG = 4096  # elements it selects from: those furthest from the bounds of θ
LONGEST = 3  # answers of one client that are attacked together
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MaskDraw:
    """How a mask is drawn from θ.

    Args:
        sigma: σ of the noise.
        c: Noised θ is clamped to [c, 1-c].
        u: Public uniform numbers that θ is compared with; None: the client's own.
    """

    sigma: float
    c: float
    u: Floats | None

    def of_ones(self, theta: Floats) -> Floats:
        """Return the probability of a one for a given θ before noise."""
        from scipy.special import ndtr
        from scipy.stats import norm

        if self.u is not None:  # the bit is 1 where the noised θ exceeds u
            inside = ndtr((theta - self.u) / self.sigma)
            found = np.where(self.u < self.c, 1.0, np.where(self.u >= 1 - self.c, 0.0, inside))
        else:  # the mean of a clamped Gaussian; ∫Φ = zΦ(z) + φ(z)
            a, b = (theta - self.c) / self.sigma, (theta - 1 + self.c) / self.sigma
            found = self.c + self.sigma * (a * ndtr(a) + norm.pdf(a) - b * ndtr(b) - norm.pdf(b))
        return np.clip(found, 1e-12, 1 - 1e-12)

    def take(self, here: NDArray[np.int64]) -> MaskDraw:
        """Return the draw of some elements."""
        return MaskDraw(self.sigma, self.c, None if self.u is None else self.u[here])

    def information(self, theta: Floats) -> Floats:
        """Return the Fisher information of each element's bit about θ."""
        h = 1e-3
        slope = (self.of_ones(theta + h) - self.of_ones(theta - h)) / (2 * h)
        p = self.of_ones(theta)
        return slope**2 / (p * (1 - p))


def attack(target: Target) -> Finding | None:
    """Attack masks; None where no masks are drawn from noised probabilities."""
    method, masks = target.plan.method, target.plan.method.noised_masks()
    if masks is None:
        return None
    answers = min(target.answers, LONGEST)
    rng = target.rng.child("canary clients")
    server = method.server_init(rng.child("server"))
    coins = rng.child("coins").numpy().random(target.canaries) < 0.5
    found = np.zeros(len(coins))
    for i, coin in enumerate(coins):
        for t in range(answers):
            found[i] += score_of(method, masks, server, bool(coin), rng.child(i, t))
        if i % 20 == 0:
            target.report_progress(f"canary clients: {i} of {len(coins)}, {answers} replies each")
    note = f"{answers} of {target.answers} replies of a client were attacked; the claim next to it is for as many."
    if method.mechanism and method.mechanism.assumed:
        note += f" The claim assumes: {method.mechanism.assumed}."
    return Finding("canaries", ABOUT, from_trials(Trial(found, coins), target, target.claimed(answers)), note=note)


def score_of(method: Method, masks: NoisedMasks, server: State, coin: bool, rng: Rng) -> float:
    """Return the log-likelihood ratio of one answer of a canary client, for a coin of 1 against 0."""
    mechanism, unpack = method.mechanism, method.reply_spec()["mask"].unpack
    assert mechanism is not None  # noqa: S101
    assert unpack is not None  # noqa: S101
    started, _ = method.start_round(server, ["canary"], rng.child("open"))
    sent = method.broadcast(started, "canary", True)
    message = ServerMessage(0, {name: array for name, (_, array) in sent.parts.items()})
    masked, _ = masks.split
    theta = on_wire.theta(server["s"]).astype(np.float64)
    public = masks.sampling == "stratified"
    u = masks.uniform(message, rng).numpy().astype(np.float64)[masked] if public else None
    drawn = MaskDraw(mechanism.sigma, masks.theta_clip, u)
    norm = mechanism.sensitivity / 2
    here = moved_elements(theta[masked], drawn, norm)
    step = min(norm / np.sqrt(len(here)), 0.4)
    moved = theta.copy()
    moved[masked][here] += step if coin else -step
    reply = masks.upload(torch.logit(torch.from_numpy(moved)).float(), server["s"], message, rng)
    mask = unpack(started, reply["mask"])[here]
    p, q = (drawn.take(here).of_ones(theta[masked][here] + sign * step) for sign in (1, -1))
    return float(np.where(mask > 0, np.log(p / q), np.log((1 - p) / (1 - q))).sum())


def moved_elements(theta: Floats, drawn: MaskDraw, norm: float) -> NDArray[np.int64]:
    """Return the elements that a canary moves: of those nearest to 1/2, the most informative about θ."""
    few = np.argsort(np.abs(theta - 0.5), kind="stable")[:AMONG]
    order = np.argsort(-drawn.take(few).information(theta[few]), kind="stable")
    return few[order[: max(BLOCK, round((norm / 0.2) ** 2))]]
