"""Twin clients, through all that a client does: data sets that differ by the unit of the claim, told apart by replies.

For mechanisms whose noise a client adds within its training: DP-SGD, and GS-WGAN's gradients. Where the unit is an
example, one twin holds a canary picture more; where it is a client, one holds black pictures, the other white ones.
The auditor knows all that is random in training, keys too, but the noise, which here comes from the operating system,
as it does in deployment. It learns where replies differ from the same method with little noise, then scores real
replies along that. Weaker than canary gradients, which are the worst case, but against the very code that runs: noise
that is drawn and then not used does not pass.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.auditing.attack import Finding, Target, Trial, from_trials
from vitrail.auditing.canaries import noise_pictures
from vitrail.auditing.exchange import ask
from vitrail.data.dataset import Images
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

ABOUT = "twin clients whose data differ by one unit, told apart by whole replies"
LITTLE = 100  # times less noise, where the auditor learns what to look for
LEARNED = 6  # replies of each twin that it learns from
AROUND, NAME = 16, "twin"
PLAIN = {
    "d_coding": "plain",
    "key_source": "agree",
}  # what is coded or rounded tells no more than what it was made from
Floats = NDArray[np.float64]


def attack(target: Target) -> Finding | None:
    """None where noise is not a part of a client's training."""
    mechanism = target.plan.method.mechanism
    if mechanism is None or mechanism.name not in ("dp-sgd", "gradient"):
        return None
    given: Any = target.plan.method
    plain = {name: value for name, value in PLAIN.items() if hasattr(given, name)}
    method: Any = replace(given, **plain, task=replace(given.task, entropy="os"))
    quiet: Any = replace(method, noise_multiplier=mechanism.noise.multiplier / LITTLE, epsilon=None)
    known: Any = replace(method, task=replace(given.task, entropy="seed"))
    server = known.server_init(target.rng.child("server"))
    begun = known.client_init(NAME, target.rng.child("client"))
    both = twins(target, mechanism.unit)
    means = [np.mean([reply(quiet, server, begun, held, target.rng) for _ in range(LEARNED)], 0) for held in both]
    along, middle = means[1] - means[0], (means[0] + means[1]) / 2
    coins = target.rng.child("coins").numpy().random(target.canaries) < 0.5
    scores, until = [], time.monotonic() + target.seconds
    for i, coin in enumerate(coins):
        if i >= 20 and time.monotonic() > until:
            break
        target.tell(f"twin clients: {i} of {len(coins)}")
        sent = reply(method, server, begun, both[int(coin)], target.rng)
        scores.append(float((sent - middle) @ along))
    trial = Trial(np.array(scores), coins[: len(scores)])
    lowers = from_trials(trial, target, target.claimed(1), gaussian=mechanism.noise.rate == 1)
    return Finding("twins", ABOUT, lowers, note="One answer of a client was attacked, and the claim is for one")


def twins(target: Target, unit: str) -> tuple[Images, Images]:
    """Two data sets that differ by one unit."""
    members, shape = target.members, target.plan.data.shape
    around = members.take(np.sort(target.rng.child("around").numpy().permutation(len(members))[:AROUND]))
    if unit == "client":
        dark, light = (np.full_like(around.pixels, shade) for shade in (0, 255))
        return Images(dark, around.labels), Images(light, around.labels)
    canary = noise_pictures(1, shape, target.rng.child("canary").numpy())
    labels = None if around.labels is None else np.append(around.labels, 0)
    return around, Images(np.concatenate([around.pixels, canary]), labels)


def reply(method: Any, server: State, begun: State, held: Images, rng: Rng) -> Floats:
    """All numbers of a client's first reply, but for what a person watches; keys and digests are none."""
    parts = ask(method, server, NAME, held, rng, begun).parts
    return np.concatenate([np.ravel(a).astype(np.float64) for n, a in parts.items() if _counts(n, a)])


def _counts(name: str, array: Array) -> bool:
    return array.dtype.kind == "f" and not name.startswith("metric.")
