"""Twin clients: two data sets that differ by one unit of the claim, distinguished by whole replies.

For mechanisms whose noise is added during training (DP-SGD, GS-WGAN's gradients): one twin has one more image, or
black images where the other has white ones. Weaker than canary gradients, but it runs the code of a deployment: noise
that is drawn and not used is detected.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.auditing.attack import Finding, Target, Trial, from_trials
from vitrail.auditing.canary_images import noise_images
from vitrail.auditing.single_reply import request_reply
from vitrail.data.dataset import Images
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

ABOUT = "twin clients whose data differ by one unit, distinguished by whole replies"
NOISE_FACTOR = 100  # times less noise in the replies from which the auditor learns what to look for
LEARNED = 6  # replies of each twin that it learns from
AROUND, NAME = 16, "twin"
Floats = NDArray[np.float64]


def attack(target: Target) -> Finding | None:
    """Attack whole replies; None where noise is not part of a client's training.

    The auditor knows all randomness of training, including keys, except the noise, which here comes from the operating
    system, as in deployment. It learns the difference of replies from the same method with little noise, then scores
    real replies along it.
    """
    mechanism = target.plan.method.mechanism
    if mechanism is None or mechanism.noised not in ("training", "gradients"):
        return None
    given: Any = target.plan.method.for_audit()
    method: Any = replace(given, task=replace(given.task, noise_source="os"))
    quiet: Any = replace(method, noise_multiplier=mechanism.noise.multiplier / NOISE_FACTOR, epsilon=None)
    known: Any = replace(method, task=replace(given.task, noise_source="seed"))
    server = known.server_init(target.rng.child("server"))
    start = known.client_init(NAME, target.rng.child("client"))
    both = twins(target, mechanism.unit)
    means = [np.mean([reply(quiet, server, start, data, target.rng) for _ in range(LEARNED)], 0) for data in both]
    along, middle = means[1] - means[0], (means[0] + means[1]) / 2
    coins = target.rng.child("coins").numpy().random(target.canaries) < 0.5
    scores, until = [], time.monotonic() + target.seconds
    for i, coin in enumerate(coins):
        if i >= 20 and time.monotonic() > until:
            break
        target.report_progress(f"twin clients: {i} of {len(coins)}")
        sent = reply(method, server, start, both[int(coin)], target.rng)
        scores.append(float((sent - middle) @ along))
    trial = Trial(np.array(scores), coins[: len(scores)])
    lowers = from_trials(trial, target, target.claimed(1), gaussian=mechanism.noise.rate == 1)
    return Finding("twins", ABOUT, lowers, note="One reply of a client was attacked, and the claim is for one")


def twins(target: Target, unit: str) -> tuple[Images, Images]:
    """Return two data sets that differ by one unit."""
    members, shape = target.members, target.plan.data.shape
    around = members.take(np.sort(target.rng.child("around").numpy().permutation(len(members))[:AROUND]))
    if unit == "client":
        dark, light = (np.full_like(around.pixels, shade) for shade in (0, 255))
        return Images(dark, around.labels), Images(light, around.labels)
    canary = noise_images(1, shape, target.rng.child("canary").numpy())
    labels = None if around.labels is None else np.append(around.labels, 0)
    return around, Images(np.concatenate([around.pixels, canary]), labels)


def reply(method: Any, server: State, start: State, data: Images, rng: Rng) -> Floats:
    """Return all floats of a client's first reply, except metrics; keys and digests are not floats."""
    parts, _ = request_reply(method, server, NAME, data, rng, start)
    floats = [a for name, a in parts.items() if a.dtype.kind == "f" and not name.startswith("metric.")]
    return np.concatenate([np.ravel(a).astype(np.float64) for a in floats])
