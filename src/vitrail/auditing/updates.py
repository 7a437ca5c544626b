"""Canary clients against masks drawn from noised chances: PRISM's `mask-update` (and `paper`).

The unit is a client, and what a client may do to θ is bounded by its norm C alone. So the worst of clients is played: a
coin decides whether its θ moves by C one way or the other, over the elements that show it best. Its answers pass
through the method's own upload; the auditor scores them by the likelihood of either coin, round after round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.auditing.attack import Finding, Target, Trial, from_trials
from vitrail.methods.base import ServerMessage
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores as on_wire

ABOUT = "canary clients that move θ as far as allowed, one way or the other, told apart by the masks they send"
BLOCK = 256  # elements that a canary client moves
AMONG = 4096  # elements it chooses from, those with most room
LONGEST = 3  # answers of one client that are attacked together
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chances:
    """How a mask is drawn from θ: noise σ, kept within [c, 1-c]; `u` where the draw is public."""

    sigma: float
    c: float
    u: Floats | None

    def of_ones(self, theta: Floats) -> Floats:
        """The chance of a one, where θ is this before noise."""
        from scipy.special import ndtr
        from scipy.stats import norm

        if self.u is not None:  # the bit says whether the noised θ exceeds u
            inside = ndtr((theta - self.u) / self.sigma)
            found = np.where(self.u < self.c, 1.0, np.where(self.u >= 1 - self.c, 0.0, inside))
        else:  # the mean of a clamped Gaussian; ∫Φ = zΦ(z) + φ(z)
            a, b = (theta - self.c) / self.sigma, (theta - 1 + self.c) / self.sigma
            found = self.c + self.sigma * (a * ndtr(a) + norm.pdf(a) - b * ndtr(b) - norm.pdf(b))
        return np.clip(found, 1e-12, 1 - 1e-12)

    def take(self, here: NDArray[np.int64]) -> Chances:
        """Of some elements."""
        return Chances(self.sigma, self.c, None if self.u is None else self.u[here])

    def tells(self, theta: Floats) -> Floats:
        """Fisher information of each element's bit about θ."""
        h = 1e-3
        slope = (self.of_ones(theta + h) - self.of_ones(theta - h)) / (2 * h)
        p = self.of_ones(theta)
        return slope**2 / (p * (1 - p))


def attack(target: Target) -> Finding | None:
    """None where no masks are drawn from noised chances."""
    method: Any = target.plan.method
    if getattr(method, "privacy", "") not in ("mask-update", "paper") or method.mechanism is None:
        return None
    if method.coding == "klms" or not method.elements[0]:
        return None
    answers = min(target.answers, LONGEST)
    rng = target.rng.child("canary clients")
    server = method.server_init(rng.child("server"))
    coins = rng.child("coins").numpy().random(target.canaries) < 0.5
    found = np.zeros(len(coins))
    for i, coin in enumerate(coins):
        for t in range(answers):
            found[i] += score_of(method, server, bool(coin), rng.child(i, t))
        if i % 20 == 0:
            target.tell(f"canary clients: {i} of {len(coins)}, {answers} answers each")
    note = f"{answers} of {target.answers} answers of a client were attacked; the claim beside it is for as many."
    if method.mechanism.assumed:
        note += f" The claim assumes: {method.mechanism.assumed}."
    return Finding("canaries", ABOUT, from_trials(Trial(found, coins), target, target.claimed(answers)), note=note)


def score_of(method: Any, server: State, coin: bool, rng: Rng) -> float:
    """One answer of a canary client, as the log of how much likelier it is if its coin fell 1."""
    opened, _ = method.start_round(server, ["canary"], rng.child("open"))
    told = ServerMessage(
        0, {name: array for name, (_, array) in method.broadcast(opened, "canary", True).parts.items()}
    )
    masked, _ = method.split
    theta = on_wire.theta(server["s"]).astype(np.float64)
    public = method.sampling == "stratified"
    u = method.uniform(told, rng).numpy().astype(np.float64)[masked] if public else None
    drawn = Chances(method.mechanism.sigma, method.clip, u)
    norm = method.mechanism.sensitivity / 2
    here = where(theta[masked], drawn, norm)
    step = min(norm / np.sqrt(len(here)), 0.4)
    moved = theta.copy()
    moved[masked][here] += step if coin else -step
    sent = method.upload(torch.logit(torch.from_numpy(moved)).float(), server["s"], told, rng)
    mask = method.reply_spec()["mask"].unpack(opened, sent["mask"])[here]
    p, q = (drawn.take(here).of_ones(theta[masked][here] + sign * step) for sign in (1, -1))
    return float(np.where(mask > 0, np.log(p / q), np.log((1 - p) / (1 - q))).sum())


def where(theta: Floats, drawn: Chances, norm: float) -> NDArray[np.int64]:
    """The elements that a canary moves: of those nearest to 1/2, the ones whose bits tell most of θ."""
    few = np.argsort(np.abs(theta - 0.5), kind="stable")[:AMONG]
    order = np.argsort(-drawn.take(few).tells(theta[few]), kind="stable")
    return few[order[: max(BLOCK, round((norm / 0.2) ** 2))]]
