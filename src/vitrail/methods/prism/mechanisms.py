"""PRISM's privacy mechanisms.

`moments`: the client's images are used only through sums of features that get noise once (privacy/feature_sums.py).
`mask-update`: the change of θ in a round is scaled to norm C, plus noise before the mask is sampled; protects a client.
`paper`: the noise of Algorithm 1 by the paper's formula, with the sensitivity that it assumes; nothing enforces it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vitrail.privacy.accounting import amplified
from vitrail.privacy.feature_sums import sensitivity, sensitivity_reason
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.privacy.noise import Source, gaussian
from vitrail.utils.errors import VitrailError
from vitrail.wire import scores
from vitrail.wire.scores import Scores

if TYPE_CHECKING:
    from vitrail.methods.prism.algorithm import Prism

LOCAL = "no one: noise is added before anything leaves the client"
MASKS = "a mask each round, sampled from noised probabilities"


def build_mechanism(p: Prism) -> Mechanism:
    """Return the mechanism that `privacy` names, at a noise multiplier of 1."""
    one = Noise(1.0)
    if p.privacy == "moments":
        kinds = max(p.task.classes, 1)
        leaves = "masks (and scores, with alpha), all computed from noised sums of features"
        return Mechanism(
            "moments", "example", "replace one", sensitivity(kinds), sensitivity_reason(kinds), one, True, leaves, LOCAL
        )
    if p.privacy == "mask-update":
        C = p.max_update_norm
        bounded = f"the change of θ is scaled to norm {C:g}, so two such changes differ by at most {2 * C:g}"
        return Mechanism("mask-update", "client", "replace one", 2 * C, bounded, one, False, MASKS, LOCAL)
    assumed = "no image changes θ by more than 1 in norm, which nothing enforces"
    return Mechanism("paper", "example", "replace one", 1.0, "assumed", one, False, MASKS, LOCAL, assumed)


def paper_multiplier(p: Prism) -> float:
    """Return the paper's σ = √(2 ln(1.25/δ)) / ε for one release; the formula is proven for ε ≤ 1 only."""
    if p.epsilon is None:
        raise VitrailError(
            "privacy=paper needs the paper's ε for one release; set it with epsilon=, such as epsilon=50"
        )
    return math.sqrt(2 * math.log(1.25 / p.delta)) / p.epsilon


def bernoulli_bound(p: Prism, found: Mechanism) -> str:
    """Return the bound that sampling masks adds at each Rényi order, valid only if the draws are secret; or ""."""
    if found.once or p.sampling != "independent" or p.alpha:
        return ""
    drawn, plain = amplified(found.noise.multiplier, p.size, p.theta_clip, p.task.rounds, p.delta)
    return (
        f"sampling {p.size:,} bits with probabilities in [{p.theta_clip:g}, {1 - p.theta_clip:g}]: "
        f"ε ≤ {drawn:.4g} by Rényi orders, compared with {plain:.4g} for the noise alone by the same"
    )


def noised_theta(p: Prism, theta: Tensor, s_t: Scores, source: Source) -> Tensor:
    """Return θ̃ = θ + N(0, σ²), clipped to [c, 1-c]; mask-update first scales the change of θ to norm C.

    A θ that is not finite is replaced by θ_t: no change, and every element still gets its noise.
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


def check_settings(p: Prism) -> None:
    """Refuse settings that exclude each other, and an ε that no noise achieves."""
    if p.privacy == "moments" and (p.loss != "moments" or p.moment_averaging == "adam"):
        raise VitrailError(
            f"privacy=moments with loss={p.loss} and moment_averaging={p.moment_averaging}: noised moments "
            "can only be matched by loss=moments with moment_averaging=exponential or none"
        )
    if p.task.secagg_threshold and p.coding == "klms" and p.elements[0]:
        raise VitrailError(
            "coding=klms is decoded mask by mask, but secure aggregation shows only their sum; set coding=packed"
        )
    p.mechanism  # noqa: B018  calibrates the noise
