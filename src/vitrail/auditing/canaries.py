"""Canaries in a client's pictures, against sums of features that are released once (privacy/feature_sums.py).

A canary has two versions, and a coin that the auditor keeps decides which of them a client holds. After the release
each is scored, and guessed about. Two ways: many canaries in one release (Steinke, Nasr, Jagielski 2023), and many
releases with one canary each, which is the sharper the cheaper a release is. The auditor knows all but coins and noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.auditing.attack import Finding, Target, Trial, from_one_run, from_trials
from vitrail.auditing.exchange import ask
from vitrail.data.dataset import Images
from vitrail.methods.prism.loss import labels_of, summary_of
from vitrail.privacy.feature_sums import Summary, class_sums
from vitrail.utils.rng import Rng

ABOUT = "canary pictures in a client's data, found again in the noised sums that it releases"
AROUND = 1000  # pictures of the run that a canary client holds besides; with few, rounding alone would hide a canary
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Canaries:
    """Two versions of each canary: pictures, labels, and the rows that they add to the sums."""

    pixels: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    labels: tuple[NDArray[np.int64], NDArray[np.int64]]
    rows: tuple[Floats, Floats]

    def take(self, pick: Any) -> Canaries:
        """Some of them."""
        (p, q), (a, b), (r, s) = self.pixels, self.labels, self.rows
        return Canaries((p[pick], q[pick]), (a[pick], b[pick]), (r[pick], s[pick]))

    def chosen(self, coins: NDArray[np.bool_]) -> Images:
        """The versions that coins choose."""
        here = coins[:, None, None, None]
        return Images(np.where(here, *self.pixels), np.where(coins, *self.labels))

    def gram(self) -> Floats:
        """Inner products of the differences of versions, over all classes."""
        rows, total = [torch.from_numpy(r) for r in self.rows], np.zeros((len(self.labels[0]),) * 2)
        for i in (0, 1):
            for j in (0, 1):
                same = self.labels[i][:, None] == self.labels[j]
                total += (1 if i == j else -1) * same * (rows[i] @ rows[j].T).numpy()
        return total

    def along(self, sums: Floats) -> Floats:
        """Inner products of the differences of versions with sums (classes, row)."""
        found: Floats = sum(
            sign * np.einsum("nd,nd->n", rows, sums[labels])
            for sign, rows, labels in zip((1, -1), self.rows, self.labels, strict=True)
        )
        return found


def draw(summary: Summary, n: int, kinds: int, rng: Rng) -> Canaries:
    """Pictures of noise of many kinds; with labels a version each in two classes, without two pictures each."""
    random = rng.numpy()
    labels = random.integers(kinds, size=n)
    pixels = noise_pictures(n, summary.shape, random)
    if kinds > 1:
        pair, others = (pixels, pixels), (labels + random.integers(1, kinds, size=n)) % kinds
    else:
        pair, others = (pixels, random.permutation(pixels)), labels
    one = _rows(summary, pair[0])
    return Canaries(pair, (labels, others), (one, one if kinds > 1 else _rows(summary, pair[1])))


def noise_pictures(n: int, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.uint8]:
    """Dots and blocks on black or white, few or many: their features have as little in common as pictures' can."""
    c, h, w = shape
    found = np.zeros((n, c, h, w), np.uint8)
    for i in range(n):
        s, ground = random.choice([1, 2, 4]), 255 * random.integers(2)
        lit = random.random((c, -(-h // s), -(-w // s))) < random.choice([0.05, 0.15, 0.4])
        lit.flat[random.integers(lit.size)] = True
        values = np.where(lit, random.integers(0, 256, size=lit.shape), ground)
        found[i] = np.kron(values, np.ones((1, s, s)))[:, :h, :w]
    return found


def _rows(summary: Summary, pixels: NDArray[np.uint8]) -> Floats:
    """Rows in units of the grid, a batch at a time."""
    batches = [summary.rows(pixels[at : at + 64]) for at in range(0, len(pixels), 64)]
    return np.concatenate(batches).astype(np.float64) / summary.grid


class MomentsTarget:
    """The sums that a method's clients release, with and without canaries."""

    def __init__(self, target: Target) -> None:
        method: Any = target.plan.method
        # All that follows the release is computed from it, so it is cut short.
        short = {"local_steps": 1, "batch_size": 2} if target.plan.settings.method == "prism" else {}
        self.method: Any = replace(method, **short) if short else method
        self.summary, self.kinds = summary_of(self.method), max(method.task.classes, 1)
        self.sigma = method.mechanism.sigma if method.mechanism else 0.0
        self.server = self.method.server_init(target.rng.child("server"))
        order = target.rng.child("around").numpy().permutation(len(target.members))
        self.around = target.members.take(np.resize(order, AROUND))
        labels = labels_of(self.around, method.task.classes)
        self.besides = class_sums(self.summary, self.around.pixels, labels, self.kinds)

    def release(self, canaries: Images, name: str, rng: Rng) -> Floats:
        """What one client releases, in units of the grid (classes, row)."""
        labels = labels_of(self.around, self.method.task.classes), labels_of(canaries, self.kinds)
        held = Images(np.concatenate([self.around.pixels, canaries.pixels]), np.concatenate(labels))
        if not self.method.task.classes:
            held = held.without_labels()
        if self.method.task.secure:
            return self._secure(held, name, rng)
        answer = ask(self.method, self.server, name, held, rng)
        sums = answer.parts["sums"] if "sums" in answer.parts else answer.kept["loss"]["released"]
        found: Floats = np.asarray(sums, np.float64).reshape(self.kinds, -1) / self.summary.grid
        return found

    def _secure(self, held: Images, name: str, rng: Rng) -> Floats:
        """What secure aggregation opens: one client's sums, and the noise of as many as are relied on."""
        from vitrail.methods.base import ServerMessage

        honest = self.method.task.secure - self.method.colluding
        total: Floats = np.zeros((self.kinds, 1 + 2 * self.summary.d))
        for k in range(honest):
            own = held if k == 0 else self.around
            _, reply = self.method.client_round({}, ServerMessage(0, {}), own, rng.child("client", name, k))
            total += np.asarray(reply.parts["sums"], np.float64).reshape(total.shape)
        total -= (honest - 1) * self.besides
        total /= self.summary.grid
        return total

    def middle(self, canaries: Canaries) -> Floats:
        """What a release would be on average over all coins."""
        total: Floats = self.besides.astype(np.float64) / self.summary.grid
        for rows, labels in zip(canaries.rows, canaries.labels, strict=True):
            np.add.at(total, labels, rows / 2)
        return total


def attack(target: Target) -> Finding | None:
    """Both ways; None where no sums of features are released."""
    if getattr(target.plan.method, "privacy", "") != "moments" and target.plan.settings.method != "moments":
        return None
    moments, claimed = MomentsTarget(target), target.claimed(1)
    lowers = from_trials(one_each(target, moments), target, claimed)
    lowers += from_one_run(all_at_once(target, moments), target, claimed)
    note = "" if target.plan.method.mechanism else "These sums were not noised at all."
    return Finding("canaries", ABOUT, lowers, note=note)


def one_each(target: Target, moments: MomentsTarget) -> Trial:
    """Independent clients with one canary each: of those drawn, the one whose versions lie furthest apart."""
    rng = target.rng.child("one each")
    drawn = draw(moments.summary, 64, moments.kinds, rng.child("canaries"))
    widest = drawn.take([int(np.argmax(np.diag(drawn.gram())))])
    coins = rng.child("coins").numpy().random(target.canaries) < 0.5
    middle, length = moments.middle(widest), float(np.sqrt(widest.gram()[0, 0]))
    scores = np.empty(len(coins))
    for i in range(len(coins)):
        released = moments.release(widest.chosen(coins[i : i + 1]), f"canary-{i}", rng)
        scores[i] = widest.along(released - middle)[0] / length
        if i % 50 == 0:
            target.tell(f"canaries: {i} of {len(coins)} clients")
    return Trial(scores, coins)


def all_at_once(target: Target, moments: MomentsTarget) -> list[Trial]:
    """One client with all canaries, scored as if the claimed noise were there, and as if there were hardly any.

    With differences of versions U, coins s = ±1 and noise σ, what is seen along U is b = Ks/2 + noise of covariance
    σ²K, K = UUᵀ. The best linear guess of s is (K/4 + σ²)⁻¹ b/2.
    """
    rng = target.rng.child("one run")
    canaries = draw(moments.summary, target.canaries, moments.kinds, rng.child("canaries"))
    coins = rng.child("coins").numpy().random(target.canaries) < 0.5
    target.tell(f"canaries: one client with {len(coins):,} of them")
    b = canaries.along(moments.release(canaries.chosen(coins), "canaries", rng) - moments.middle(canaries))
    K = canaries.gram()
    noises = (max(moments.sigma, 1e-3), 1e-3)
    return [Trial(np.linalg.solve(K / 4 + s**2 * np.eye(len(K)), b) / 2, coins) for s in dict.fromkeys(noises)]
