"""PRISM's three mechanisms.

`moments`: a client's pictures enter through noised sums of features that are made once (privacy/feature_sums.py).
`mask-update`: the change of θ in a round is scaled to norm C and noised before a mask is drawn; a client is protected.
`paper`: Algorithm 1's noise by the paper's formula, under the sensitivity it assumes; nothing enforces that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitrail.methods.prism.settings import PrismSettings
from vitrail.privacy.accounting import amplified
from vitrail.privacy.feature_sums import sensitivity, why
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.privacy.noise import Source, gaussian
from vitrail.utils.errors import VitrailError
from vitrail.wire import scores
from vitrail.wire.scores import Scores

LOCAL = "nobody: noise is added before anything leaves the client"
MASKS = "a mask each round, drawn from noised chances"


def mechanism(p: PrismSettings) -> Mechanism:
    """What protects a client's data, at a noise multiplier of 1."""
    one = Noise(1.0)
    if p.privacy == "moments":
        kinds = max(p.task.classes, 1)
        made = "masks (and scores, with alpha), all made from noised sums of features"
        return Mechanism("moments", "example", "replace one", sensitivity(kinds), why(kinds), one, True, made, LOCAL)
    if p.privacy == "mask-update":
        bounded = f"the change of θ is scaled to norm {p.max_update_norm:g}, and two such are at most twice that apart"
        return Mechanism(
            "mask-update", "client", "replace one", 2 * p.max_update_norm, bounded, one, False, MASKS, LOCAL
        )  # fmt: skip
    assumed = "no picture changes θ by more than 1 in norm, which nothing enforces"
    return Mechanism("paper", "example", "replace one", 1.0, "assumed", one, False, MASKS, LOCAL, assumed)


def paper_multiplier(p: PrismSettings) -> float:
    """σ = √(2 ln(1.25/δ)) / ε for one release, as the paper has it; the formula is proven for ε ≤ 1 alone."""
    if p.epsilon is None:
        raise VitrailError("privacy=paper: give the paper's ε for one release with epsilon=, such as epsilon=50")
    return math.sqrt(2 * math.log(1.25 / p.delta)) / p.epsilon


def bernoulli_bound(p: PrismSettings, found: Mechanism) -> str:
    """What drawing masks adds: a bound at each Rényi order, which holds where nobody else knows the draws."""
    if found.once or p.sampling != "independent" or p.alpha:
        return ""
    drawn, plain = amplified(found.noise.multiplier, p.size, p.theta_clip, p.task.rounds, p.delta)
    return (
        f"drawing {p.size:,} bits from chances within [{p.theta_clip:g}, {1 - p.theta_clip:g}]: "
        f"ε ≤ {drawn:.4g} by Rényi orders, against {plain:.4g} of the noise alone by the same"
    )


def noised_theta(p: PrismSettings, theta: Tensor, s_t: Scores, source: Source) -> Tensor:
    """Algorithm 1: θ̃ = θ + N(0, σ²), kept within [c, 1-c]; mask-update first scales the change of θ to norm C.

    A θ that is not finite counts as θ_t: nothing changed, and every element still gets its noise.
    """
    assert p.mechanism is not None  # noqa: S101
    fresh, theta_t = theta.double(), torch.from_numpy(scores.theta(s_t))
    if not fresh.isfinite().all():
        fresh = theta_t
    if p.privacy == "mask-update":
        change = fresh - theta_t
        fresh = theta_t + change * min(1.0, p.max_update_norm / max(float(change.norm()), 1e-12))
    noise = torch.from_numpy(gaussian(source, fresh.numel(), p.mechanism.sigma))
    return (fresh + noise).clamp(p.theta_clip, 1 - p.theta_clip).float()


def check(p: PrismSettings) -> None:
    """Refuse what cannot be private together."""
    if p.privacy == "moments" and (p.loss != "moments" or p.moment_averaging == "adam"):
        raise VitrailError(
            f"privacy=moments with loss={p.loss} and moment_averaging={p.moment_averaging}: noised moments "
            "can only be matched by loss=moments with moment_averaging=exponential or none"
        )
    p.mechanism  # noqa: B018  an ε that cannot be had shows here
