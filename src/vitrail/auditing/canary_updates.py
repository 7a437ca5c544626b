"""Canary clients against DP-FedAvg (privacy/dpfedavg.py): updates as large as clipping allows, in either direction.

Each canary client's update has its own coordinate, so one noised sum has many independent trials. The server adds the
noise, so the attack is on what the server publishes, not on what it sees.
"""

from __future__ import annotations

import numpy as np

from vitrail.auditing.attack import Finding, Target, Trial, from_trials
from vitrail.methods.base import Sums
from vitrail.privacy.dpfedavg import clip_update, mean_update
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import seeded
from vitrail.utils.rng import Rng

ABOUT = "canary clients whose updates are as large as allowed, recognised by the noised sum of updates"


def attack(target: Target) -> Finding | None:
    """Attack sums of updates; None where a run does not use DP-FedAvg."""
    mechanism = target.plan.method.mechanism
    if mechanism is None or mechanism.name != "dp-fedavg":
        return None
    answers = target.answers
    trial = attack_sums(mechanism, answers, target.canaries, target.rng)
    lowers = from_trials(trial, target, target.claimed(answers), gaussian=mechanism.noise.rate == 1)
    return Finding("canaries", ABOUT, lowers, note=f"{answers} rounds of sums were attacked")


def attack_sums(mechanism: Mechanism, answers: int, canaries: int, rng: Rng) -> Trial:
    """Sum the updates of canary clients in each round, and score each client by the total in its coordinate."""
    clip = mechanism.sensitivity / 2
    coins = rng.child("coins").numpy().random(canaries) < 0.5
    total = np.zeros(canaries)
    for i, coin in enumerate(coins):
        update = np.zeros(canaries)
        update[i] = 10 * clip if coin else -10 * clip
        total += clip_update({"canary": update}, clip, "float32")["canary"]
    source = seeded(rng.child("noise"))
    found = np.zeros(canaries)
    for _ in range(answers):
        sums = Sums({"canary": total}, canaries)
        found += mean_update(sums, ["canary"], (mechanism.sigma, source))["canary"] * canaries
    return Trial(found, coins)
