"""Networks of frozen random signs under a mask: the strong lottery tickets of PRISM, section 4.1."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.nets.precision import Precision, autocast
from vitrail.utils.rng import Rng
from vitrail.wire.codecs import Array
from vitrail.wire.range_coder import decode, encode


def random_signs(seed: int, n: int) -> Tensor:
    """Return n random signs, +1 or -1.

    They are the raw bits of a Philox counter, drawn on the CPU, so that every device has the same network.

    Examples:
        >>> random_signs(7, 4).abs().tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    raw = np.random.Philox(key=seed).random_raw(-(-n // 64)).astype("<u8")
    bits = np.unpackbits(raw.view(np.uint8))[:n]
    return torch.from_numpy(bits.astype(np.float32)).mul_(2).sub_(1)


class Masked(nn.Module):
    """A network whose weights W are ±sqrt(2/fan_in), with the signs of a seed; it is called with a mask over them.

    Args:
        net: Any network; its layers should have no bias.
        seed: Seed of the signs.
        precision: Arithmetic of the network; its outputs have the type of the mask.

    Examples:
        >>> net = Masked(nn.Conv2d(1, 2, 3, bias=False), seed=1)
        >>> net.size, net(torch.ones(18), torch.ones(1, 1, 3, 3)).shape
        (18, torch.Size([1, 2, 1, 1]))
    """

    W: Tensor

    def __init__(self, net: nn.Module, seed: int, precision: Precision = "float32") -> None:
        super().__init__()
        self.precision = precision
        self.net = net.requires_grad_(False)
        self.shapes = {name: p.shape for name, p in net.named_parameters()}
        self.sizes = [s.numel() for s in self.shapes.values()]
        self.size = sum(self.sizes)
        scales = [torch.full((shape.numel(),), _scale(net, name)) for name, shape in self.shapes.items()]
        self.register_buffer("W", random_signs(seed, self.size) * torch.cat(scales), persistent=False)

    @property
    def z(self) -> int:
        """Noise dimensions of a generator, which every registered generator has as its attribute `z`."""
        return self.net.z  # type: ignore[return-value]

    def forward(self, mask: Tensor, *inputs: Tensor | None) -> Tensor:
        pieces = (self.W * mask).split(self.sizes)
        weights = {n: w.view(s) for (n, s), w in zip(self.shapes.items(), pieces, strict=True)}
        with autocast(mask, self.precision):
            return torch.func.functional_call(self.net, weights, inputs).to(mask.dtype)

    def fix(self, mask: Tensor) -> nn.Module:
        """Set the weights to W⊙M and return the network as an ordinary module."""
        with torch.no_grad():
            for p, w in zip(self.net.parameters(), (self.W * mask).split(self.sizes), strict=True):
                p.copy_(w.view_as(p))
        return self.net


def _scale(net: nn.Module, parameter: str) -> float:
    """Return sqrt(2/fan_in), where fan_in is the number of inputs of one output."""
    module = net.get_submodule(parameter.rpartition(".")[0])
    weight = net.get_parameter(parameter)
    if isinstance(module, nn.ConvTranspose2d):
        stride = math.prod(module.stride)
        taps = 1 if stride == 1 else math.prod(module.kernel_size) / stride  # stride 1 is used on a single pixel only
        return math.sqrt(2 / (weight.shape[0] * taps))
    return math.sqrt(2 / weight[0].numel())


def encode_mask(net: Masked, mask: Array, packed: bool = False) -> NDArray[np.uint8]:
    """Return a mask as bytes for a model file, coded by layer and by the sign of the weight, known from the seed.

    Args:
        net: The network under the mask.
        mask: One bit per weight.
        packed: Use one bit per weight instead of entropy coding.
    """
    return encode(mask, _contexts(net), 2, packed)


def decode_mask(net: Masked, payload: Array) -> Array:
    """Return the mask of coded bytes; bytes that do not fit the network raise Malformed."""
    return decode(payload, _contexts(net), 2)


def _contexts(net: Masked) -> NDArray[np.uint8]:
    layer = np.repeat(np.arange(len(net.sizes)).astype(np.uint8), net.sizes)
    return 2 * layer + (net.W.cpu().numpy() > 0)


class _Bernoulli(torch.autograd.Function):
    """Draw a mask M ~ Bern(θ); the gradient is passed unchanged, or multiplied by θ as in published code."""

    @staticmethod
    def forward(ctx, theta: Tensor, uniform: Tensor, times_theta: bool) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.times_theta = times_theta
        ctx.save_for_backward(theta)
        return (uniform < theta).to(theta.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        (theta,) = ctx.saved_tensors
        return (grad * theta if ctx.times_theta else grad), None, None


def sample_mask(theta: Tensor, generator: torch.Generator, times_theta: bool = False) -> Tensor:
    """Draw M ~ Bern(θ), differentiable in θ by the straight-through estimator.

    Args:
        theta: The probabilities θ.
        generator: Source of the random numbers, on the CPU.
        times_theta: Multiply the gradient by θ.
    """
    uniform = torch.rand(theta.shape, generator=generator).to(theta.device)
    return _Bernoulli.apply(theta, uniform, times_theta)  # type: ignore[no-untyped-call]


class Ensemble(nn.Module):
    """A network that draws a new mask M ~ Bern(θ) for every batch, as papers sample.

    The mask is determined by the noise z, so that the same noise gives the same images.

    Args:
        net: The network under the mask.
        seed: Seed of its signs.
        theta: Probability per weight.
        batches: Inputs from which BatchNorm's statistics are computed.
    """

    def __init__(self, net: nn.Module, seed: int, theta: Tensor, batches: list[tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.masked, self.theta, self.batches = Masked(net, seed), theta, batches
        self.z = self.masked.z

    def forward(self, z: Tensor, *labels: Tensor | None) -> Tensor:
        return self.for_batch(z)(z, *labels)

    def for_batch(self, z: Tensor) -> nn.Module:
        """Return the network with the mask of one batch of noise."""
        draw = Rng((z.numpy().tobytes(),)).child("mask").torch()
        net = self.masked.fix((torch.rand(self.theta.shape, generator=draw) < self.theta).float())
        return recalibrate(net, self.batches)


def recalibrate(net: nn.Module, batches: list[tuple[Tensor, ...]]) -> nn.Module:
    """Compute BatchNorm's statistics from these inputs only, then switch to evaluation mode."""
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.reset_running_stats()
            m.momentum = None  # a plain average over the batches
    net.train()
    with torch.no_grad():
        for inputs in batches:
            net(*inputs)
    return net.eval()
