"""Canary gradients against DP-SGD (privacy/dpsgd.py): the worst case of an example's gradient.

Each canary's gradient is C in its own coordinate and 0 elsewhere (Dirac canaries; Nasr et al. 2023), so canaries do not
affect each other and one run has many independent trials. They pass through the run's own sampling, clipping and noise,
with its settings; the auditor sees every noised sum, as the accountant assumes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.auditing.attack import Finding, Target, Trial, from_trials
from vitrail.privacy.accounting import epsilon
from vitrail.privacy.dpsgd import poisson_sample, private_sum
from vitrail.privacy.mechanism import Mechanism
from vitrail.privacy.noise import seeded
from vitrail.utils.rng import Rng

ABOUT = "canary gradients, as large as clipping allows, detected in DP-SGD's noised sums"
LONGEST = 50  # steps that are attacked together


def attack(target: Target) -> Finding | None:
    """Attack noised sums of gradients; None where a run does not use DP-SGD."""
    mechanism = target.plan.method.mechanism
    if mechanism is None or mechanism.name != "dp-sgd":
        return None
    steps = min(mechanism.noise.steps * target.answers, LONGEST)
    target.tell(f"canary gradients: {target.canaries:,}, {steps} steps")
    trial = attack_steps(mechanism, steps, target.canaries, target.rng)
    claimed = epsilon([(replace(mechanism.noise, steps=1), steps)], target.delta)
    note = f"{steps} steps were attacked; the claim next to it is for as many."
    lowers = from_trials(trial, target, claimed, gaussian=mechanism.noise.rate == 1)
    return Finding("canaries", ABOUT, lowers, note=note)


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
