"""Canary gradients against DP-SGD (privacy/dpsgd.py), canary updates against DP-FedAvg (privacy/dpfedavg.py).

Each canary is a vector of the largest norm in its own coordinate (Dirac canaries; Nasr et al. 2023), so one noised sum
has many independent trials. They pass through the run's own sampling, clipping and noise; the auditor sees what the
accountant assumes: every noised sum.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.auditing.attack import Finding, Target, Trial, from_trials
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.dpfedavg import clip_update, mean_update
from vitrail.privacy.dpsgd import poisson_sample, private_sum
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import seeded
from vitrail.utils.rng import Rng

GRADIENTS = "canary gradients, as large as clipping allows, detected in DP-SGD's noised sums"
UPDATES = "canary clients whose updates are as large as allowed, recognised by the noised sum of updates"
LONGEST = 50  # steps of DP-SGD that are attacked together


def attack(target: Target) -> Finding | None:
    """Attack noised sums of gradients or updates; None where a run uses neither DP-SGD nor DP-FedAvg."""
    mechanism, answers = target.plan.method.mechanism, target.answers
    if mechanism is None or mechanism.noised not in ("training", "updates"):
        return None
    if mechanism.noised == "training":
        steps = min(mechanism.noise.steps * answers, LONGEST)
        target.report_progress(f"canary gradients: {target.canaries:,}, {steps} steps")
        trial = attack_steps(mechanism, steps, target.canaries, target.rng)
        claimed = epsilon([(replace(mechanism.noise, steps=1), steps)], target.delta)
        about, note = GRADIENTS, f"{steps} steps were attacked; the claim next to it is for as many."
    else:
        trial, claimed = attack_sums(mechanism, answers, target.canaries, target.rng), target.claimed(answers)
        about, note = UPDATES, f"{answers} rounds of sums were attacked"
    return Finding("canaries", about, from_trials(trial, target, claimed, mechanism.noise.rate == 1), note=note)


def attack_steps(mechanism: Mechanism, steps: int, canaries: int, rng: Rng) -> Trial:
    """Run steps of DP-SGD on canaries that coins include, and score each by the likelihood ratio of being included."""
    clip, sigma, rate = mechanism.sensitivity, mechanism.sigma, mechanism.noise.rate
    coins = rng.child("coins").numpy().random(canaries) < 0.5
    here = np.flatnonzero(coins)
    net = nn.Linear(canaries, 1, bias=False)
    source = seeded(rng.child("noise"))
    found = np.zeros(canaries)
    for _ in range(steps):
        pick = here[poisson_sample(source, len(here), rate)]
        inputs = nn.functional.one_hot(torch.from_numpy(pick), canaries).float() * (10 * clip)
        seen = private_sum(net, _loss, (inputs,), clip, sigma, source).numpy() if sigma else np.zeros(canaries)
        ratio = np.minimum((2 * clip * seen - clip**2) / (2 * sigma**2), 500)
        found += np.log1p(rate * np.expm1(ratio))  # log of (1-q) + q·likelihood ratio
    return Trial(found, coins)


def _loss(net: nn.Module, x: Tensor) -> Tensor:
    """A loss whose gradient is the input."""
    out: Tensor = net(x)
    return out.flatten()


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
        noise = mechanism.sigma, source
        found += mean_update({"canary": total}, canaries, ["canary"], noise)["canary"] * canaries
    return Trial(found, coins)
