"""DP-SGD (Abadi et al.; CCS 2016): per-example gradients, clipped, summed and noised.

Each step samples a client's examples independently with a public probability q (Poisson sampling), clips each gradient
to norm C, sums, adds N(0, σ²) and divides by a public constant. Adding or removing one example changes a sum by at most
C. The number of examples, sampled or in total, is private too, so nothing is divided by it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.privacy.clipping import noised
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.privacy.noise import Source
from vitrail.utils.errors import VitrailError

Loss = Callable[..., Tensor]  # loss(net, *inputs): one number per example, which depends on that example alone
Inputs = tuple[Tensor | None, ...]
How = Literal["auto", "hooks", "func"]
CHUNK = 32  # examples whose gradients are in memory at the same time
_MARGIN = 1 - 2.0**-16  # room for rounding in single precision
_HUGE = 2.0**100  # the scale of larger norms has few bits in float32, or none


def mechanism(clip: float, rate: float, steps: int, leaves: str) -> Mechanism:
    """Return DP-SGD at a noise multiplier of 1.

    Args:
        clip: Largest norm C of an example's gradient.
        rate: Probability with which an example is sampled in a step.
        steps: Steps per answer of a client.
        leaves: What leaves the client, in words.
    """
    return Mechanism(
        name="dp-sgd",
        unit="example",
        adjacency="add or remove one",
        sensitivity=clip,
        why=f"each image's gradient is clipped to norm {clip:g} before they are summed",
        noise=Noise(1.0, steps, rate),
        once=False,
        leaves=leaves,
        trust="no one: the noise is added on the client",
        noised="training",
    )


def check(net: nn.Module) -> nn.Module:
    """Return the network if each example's output depends on that example alone.

    Raises:
        VitrailError: The network has BatchNorm, which mixes examples.
    """
    mixing = [name for name, m in net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if mixing:
        raise VitrailError(
            f"dp-sgd: {type(net).__name__} has BatchNorm ({', '.join(mixing)}), which mixes the examples of a batch, "
            "so there are no per-example gradients; use GroupNorm instead (d_norm=group)"
        )
    return net


def poisson_sample(source: Source, n: int, rate: float) -> NDArray[np.intp]:
    """Return which of n examples take part in a step, each with probability `rate`.

    Args:
        source: Source of random bytes: that of the noise, because the sample is as secret as the noise.
        n: Number of examples.
        rate: Probability of each.
    """
    drawn = np.frombuffer(source(8 * n), "<u8") >> np.uint64(11)  # 53 bits: exact as doubles
    return np.flatnonzero(drawn < rate * 2.0**53)


def per_example_gradients(net: nn.Module, loss: Loss, inputs: Inputs, how: How = "auto") -> list[Tensor]:
    """Return per-example gradients, one tensor (examples, *shape) per parameter.

    Args:
        net: The network.
        loss: Returns one number per example.
        inputs: What the loss is called with; the first dimension is the examples.
        how: "hooks": Opacus's hooks, layer by layer, for ordinary losses. "func": vmap of grad by torch.func, for
            losses that contain a gradient, such as a gradient penalty, or layers that Opacus does not support.

    Raises:
        VitrailError: The network mixes examples.
    """
    check(net)
    if how == "auto":
        how = "hooks" if _sampled(net) else "func"
    return _by_hooks(net, loss, inputs) if how == "hooks" else _by_func(net, loss, inputs)


def clipped_sum(net: nn.Module, loss: Loss, inputs: Inputs, clip: float, how: How = "auto") -> Tensor:
    """Return the sum of per-example gradients, each clipped to norm C, as one vector.

    A gradient that is not finite, or too large to be scaled in single precision, counts as zero.
    """
    weights = [p for p in net.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in weights), dtype=torch.float64, device=weights[0].device)
    for at in range(0, next(len(t) for t in inputs if t is not None), CHUNK):
        chunk = tuple(None if t is None else t[at : at + CHUNK] for t in inputs)
        found = [g.flatten(1) for g in per_example_gradients(net, loss, chunk, how)]
        norms = torch.stack([torch.linalg.vector_norm(g, dim=1, dtype=torch.float64) for g in found]).norm(dim=0)
        usable = norms < _HUGE  # false for NaN
        scale = torch.where(usable, clip * _MARGIN / norms.clamp(min=clip * _MARGIN), 0).to(found[0].dtype)
        if not usable.all():
            found = [torch.where(usable[:, None], g, 0) for g in found]
        total += torch.cat([scale @ g for g in found])
    return total


def private_sum(net: nn.Module, loss: Loss, inputs: Inputs, clip: float, sigma: float, source: Source) -> Tensor:
    """Return the clipped sum with N(0, σ²) added to each element."""
    exact = clipped_sum(net, loss, inputs, clip)
    return torch.from_numpy(noised(exact.cpu().numpy(), sigma, source)).to(exact.device)


def set_gradient(net: nn.Module, vector: Tensor) -> None:
    """Set the gradients of a network's parameters from one vector."""
    weights = [p for p in net.parameters() if p.requires_grad]
    for p, piece in zip(weights, vector.split([p.numel() for p in weights]), strict=True):
        p.grad = piece.view_as(p).to(p.dtype)


def _sampled(net: nn.Module) -> bool:
    """Return whether Opacus supports every trainable layer; its hooks only work in training mode."""
    from opacus.grad_sample import GradSampleModule

    trainable = [m for m in net.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
    return net.training and all(type(m) in GradSampleModule.GRAD_SAMPLERS for m in trainable)


def _by_hooks(net: nn.Module, loss: Loss, inputs: Inputs) -> list[Tensor]:
    from opacus.grad_sample import GradSampleModule

    weights = [p for p in net.parameters() if p.requires_grad]
    wrapped = GradSampleModule(net, loss_reduction="sum")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")  # images need no gradient
            torch.autograd.grad(loss(wrapped, *inputs).sum(), weights)  # hooks store gradients; .grad is unchanged
        return [p.grad_sample for p in weights]  # type: ignore[attr-defined]
    finally:
        wrapped.to_standard_module()
        for m in net.modules():
            m._is_full_backward_hook = None
            for left in ("activations", "max_batch_len"):
                m.__dict__.pop(left, None)


def _by_func(net: nn.Module, loss: Loss, inputs: Inputs) -> list[Tensor]:
    from torch.func import functional_call, grad, vmap

    weights = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}

    def one(weights: dict[str, Tensor], *example: Tensor | None) -> Tensor:
        def forward(*args: Any) -> Any:
            return functional_call(net, weights, args)

        return loss(forward, *(None if t is None else t[None] for t in example))[0]

    dims = (None, *(None if t is None else 0 for t in inputs))
    found: dict[str, Tensor] = vmap(grad(one), in_dims=dims)(weights, *inputs)
    return list(found.values())
