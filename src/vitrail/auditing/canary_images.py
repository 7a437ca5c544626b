"""Canary images in a client's data, detected in the sums of features that it releases (privacy/feature_sums.py).

A canary has two versions; a coin of the auditor decides which of them the client has, and the auditor guesses it from
the release. Two ways: many canaries in one release (Steinke, Nasr, Jagielski 2023), and many releases with one canary
each, which gives sharper bounds because a release is cheap. The auditor knows everything except coins and noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.auditing.attack import Finding, Target, Trial, from_one_run, from_trials
from vitrail.auditing.single_reply import request_reply
from vitrail.data.dataset import Images
from vitrail.methods.base import ServerMessage
from vitrail.privacy.feature_sums import Summary, class_sums
from vitrail.utils.rng import Rng

ABOUT = "canary images in a client's data, detected in the noised sums that it releases"
AROUND = 1000  # other images of a client with canaries; with few images, rounding alone would hide a canary
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Canaries:
    """Two versions of each canary: images, labels, and the rows that they add to the sums."""

    pixels: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    labels: tuple[NDArray[np.int64], NDArray[np.int64]]
    rows: tuple[Floats, Floats]

    def take(self, pick: Any) -> Canaries:
        """Return a subset."""
        (p, q), (a, b), (r, s) = self.pixels, self.labels, self.rows
        return Canaries((p[pick], q[pick]), (a[pick], b[pick]), (r[pick], s[pick]))

    def chosen(self, coins: NDArray[np.bool_]) -> Images:
        """Return the versions that coins select."""
        here = coins[:, None, None, None]
        return Images(np.where(here, *self.pixels), np.where(coins, *self.labels))

    def gram(self) -> Floats:
        """Return inner products of the differences of versions, over all classes."""
        rows, total = [torch.from_numpy(r) for r in self.rows], np.zeros((len(self.labels[0]),) * 2)
        for i in (0, 1):
            for j in (0, 1):
                same = self.labels[i][:, None] == self.labels[j]
                total += (1 if i == j else -1) * same * (rows[i] @ rows[j].T).numpy()
        return total

    def along(self, sums: Floats) -> Floats:
        """Return inner products of the differences of versions with sums (classes, row)."""
        one, other = (np.einsum("nd,nd->n", r, sums[y]) for r, y in zip(self.rows, self.labels, strict=True))
        return np.asarray(one - other)


def draw_canaries(summary: Summary, n: int, kinds: int, rng: Rng) -> Canaries:
    """Draw n canaries: with labels the same image in two classes, without labels two images."""
    random = rng.numpy()
    labels = random.integers(kinds, size=n)
    pixels = noise_images(n, summary.shape, random)
    if kinds > 1:
        pair, others = (pixels, pixels), (labels + random.integers(1, kinds, size=n)) % kinds
    else:
        pair, others = (pixels, random.permutation(pixels)), labels
    one = _rows(summary, pair[0])
    return Canaries(pair, (labels, others), (one, one if kinds > 1 else _rows(summary, pair[1])))


def noise_images(n: int, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.uint8]:
    """Draw dots and blocks on black or white, few or many, so that images' features have little in common."""
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
    """Return rows in units of the grid, computed a batch at a time."""
    batches = [summary.rows(pixels[at : at + 64]) for at in range(0, len(pixels), 64)]
    return np.concatenate(batches).astype(np.float64) / summary.grid


class AttackedRelease:
    """The sums that a client releases, with and without canaries.

    Args:
        target: The attacked run.
        summary: What its clients sum of an image.
    """

    def __init__(self, target: Target, summary: Summary) -> None:
        self.method = target.plan.method.for_audit()
        self.summary, self.kinds = summary, max(self.method.task.classes, 1)
        self.sigma = self.method.mechanism.sigma if self.method.mechanism else 0.0
        self.server = self.method.server_init(target.rng.child("server"))
        order = target.rng.child("around").numpy().permutation(len(target.members))
        self.around = target.members.take(np.resize(order, AROUND))
        labels = self.around.class_labels(self.method.task.classes)
        self.around_sums = class_sums(summary, self.around.pixels, labels, self.kinds)

    def release(self, canaries: Images, name: str, rng: Rng) -> Floats:
        """Return what one client releases, in units of the grid (classes, row)."""
        labels = self.around.class_labels(self.method.task.classes), canaries.class_labels(self.kinds)
        data = Images(np.concatenate([self.around.pixels, canaries.pixels]), np.concatenate(labels))
        if not self.method.task.classes:
            data = data.without_labels()
        if self.method.task.secagg_threshold:
            return self._secure(data, name, rng)
        parts, state = request_reply(self.method, self.server, name, data, rng)
        sums = self.method.released_sums(parts, state)
        return np.asarray(sums, np.float64).reshape(self.kinds, -1) / self.summary.grid

    def _secure(self, data: Images, name: str, rng: Rng) -> Floats:
        """Return what secure aggregation reveals: one client's sums, and the noise of all clients that must add it."""
        mechanism = self.method.mechanism
        honest = round(mechanism.own_share**-2) if mechanism else 1
        total: Floats = np.zeros((self.kinds, 1 + 2 * self.summary.d))
        for k in range(honest):
            own = data if k == 0 else self.around
            _, reply = self.method.client_round({}, ServerMessage(0, {}), own, rng.child("client", name, k))
            total += np.asarray(reply.parts["sums"], np.float64).reshape(total.shape)
        total -= (honest - 1) * self.around_sums
        total /= self.summary.grid
        return total

    def middle(self, canaries: Canaries) -> Floats:
        """Return the mean of a release over all coins."""
        total: Floats = self.around_sums.astype(np.float64) / self.summary.grid
        for rows, labels in zip(canaries.rows, canaries.labels, strict=True):
            np.add.at(total, labels, rows / 2)
        return total


def attack(target: Target) -> Finding | None:
    """Attack in both ways; None where no sums of features are released."""
    summary = target.plan.method.feature_summary()
    if summary is None:
        return None
    release, claimed = AttackedRelease(target, summary), target.claimed(1)
    lowers = from_trials(one_canary_per_client(target, release), target, claimed)
    lowers += from_one_run(all_canaries_at_once(target, release), target, claimed)
    note = "" if target.plan.method.mechanism else "These sums had no noise."
    return Finding("canaries", ABOUT, lowers, note=note)


def one_canary_per_client(target: Target, release: AttackedRelease) -> Trial:
    """Attack independent clients with one canary each: of those drawn, the one whose versions differ most."""
    rng = target.rng.child("one each")
    drawn = draw_canaries(release.summary, 64, release.kinds, rng.child("canaries"))
    widest = drawn.take([int(np.argmax(np.diag(drawn.gram())))])
    coins = rng.child("coins").numpy().random(target.canaries) < 0.5
    middle, length = release.middle(widest), float(np.sqrt(widest.gram()[0, 0]))
    scores = np.empty(len(coins))
    for i in range(len(coins)):
        released = release.release(widest.chosen(coins[i : i + 1]), f"canary-{i}", rng)
        scores[i] = widest.along(released - middle)[0] / length
        if i % 50 == 0:
            target.report_progress(f"canaries: {i} of {len(coins)} clients")
    return Trial(scores, coins)


def all_canaries_at_once(target: Target, release: AttackedRelease) -> list[Trial]:
    """Attack one client with all canaries, scored for the claimed noise and for almost none.

    With differences of versions U, coins s = ±1 and noise σ, the release along U is b = Ks/2 + noise of covariance
    σ²K, K = UUᵀ. The best linear estimate of s is (K/4 + σ²)⁻¹ b/2.
    """
    rng = target.rng.child("one run")
    canaries = draw_canaries(release.summary, target.canaries, release.kinds, rng.child("canaries"))
    coins = rng.child("coins").numpy().random(target.canaries) < 0.5
    target.report_progress(f"canaries: one client with {len(coins):,} of them")
    b = canaries.along(release.release(canaries.chosen(coins), "canaries", rng) - release.middle(canaries))
    K = canaries.gram()
    noises = (max(release.sigma, 1e-3), 1e-3)
    return [Trial(np.linalg.solve(K / 4 + s**2 * np.eye(len(K)), b) / 2, coins) for s in dict.fromkeys(noises)]
