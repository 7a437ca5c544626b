"""Images reconstructed from what one client sends, by gradient descent on the image.

From weights: find an image whose gradient points where a discriminator moved (Geiping et al. 2020, with total
variation). From sums of features: find an image whose features are the released ones (Mahendran and Vedaldi 2015). The
victim has one image, which is the worst case. An image counts as reconstructed where no other real one is nearer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.auditing.attack import Figure, Finding, Target
from vitrail.auditing.single_reply import request_reply
from vitrail.data.dataset import Images
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector

ABOUT = "a client's only image, reconstructed from what it sends"
VICTIMS = 3
STEPS = 600
FAKES = 16  # fakes that the attacker draws in place of those that the client trained with


@dataclass(frozen=True)
class Compared:
    """A reconstructed image compared with the victim's.

    Args:
        psnr: PSNR of the reconstructed image.
        other: Largest PSNR of another real image.
        nearer: Share of other real images with at least the PSNR of the reconstructed one.
        ssim: SSIM of the reconstructed image.
    """

    psnr: float
    other: float
    nearer: float
    ssim: float


def attack(target: Target) -> Finding | None:
    """Attack one client's reply; None where neither weights nor sums of features leave a client."""
    method = target.plan.method
    declared = method.reply_spec()
    rebuild: Callable[[Target, Images, int, float], dict[str, Tensor]]
    if "sums" in declared and not method.task.secagg_threshold and method.feature_summary() is not None:
        rebuild, what = _from_sums, "sums of features"
    elif method.sent_discriminator() is not None:
        rebuild, what = _from_weights, "weights"
    else:
        return None
    members = target.members
    pick = target.rng.child("victims").numpy().choice(len(members), min(VICTIMS, len(members)), replace=False)
    deadline = time.monotonic() + target.seconds
    found: dict[str, list[Compared]] = {}
    for n, i in enumerate(pick):
        target.report_progress(f"inversion: victim {n + 1} of {len(pick)}")
        if time.monotonic() > deadline and n:
            break
        victim = members.take(np.array([i]))
        others = to_float(members.take(np.delete(np.arange(len(members)), i)).pixels[:5000])
        until = time.monotonic() + max(1.0, (deadline - time.monotonic()) / (len(pick) - n))
        for name, image in rebuild(target, victim, n, until).items():
            found.setdefault(name, []).append(compare(image, to_float(victim.pixels), others))
    figures = [f for name, rows in found.items() for f in _figures(name, rows)]
    cases = max(map(len, found.values()))
    note = f"{what[0].upper()}{what[1:]} are sent. The worst of {cases} cases is shown, within the given time"
    return Finding("inversion", ABOUT, figures=figures, note=note)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB of images in [-1, 1], pair by pair.

    Examples:
        >>> round(psnr(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).item(), 2)
        6.02
    """
    return 10 * torch.log10(4 / (a - b).square().flatten(1).mean(1).clamp(min=1e-10))


def compare(image: Tensor, victim: Tensor, others: Tensor) -> Compared:
    """Compare a reconstructed image, and the other real images, with the victim's."""
    from vitrail.metrics.pixels import ssim

    own, near = float(psnr(image, victim)), psnr(others, victim)
    return Compared(own, float(near.max()), float((near >= own).float().mean()), float(ssim(image, victim)))


def _figures(name: str, rows: list[Compared]) -> list[Figure]:
    best = max(rows, key=lambda row: row.psnr - row.other)
    nearer = "reconstructed: no other is" if best.psnr > best.other else f"{best.nearer:.1%} of others are"
    note = f"compared with the nearest other real image; {nearer} nearer"
    return [
        Figure(f"PSNR in dB, {name}", best.psnr, random_guess=best.other, note=note),
        Figure(f"SSIM, {name}", best.ssim),
    ]


def descend(shape: tuple[int, ...], loss: Callable[[Tensor], Tensor], draw: torch.Generator, until: float) -> Tensor:
    """Find an image in [-1, 1] of small loss, by Adam on the signs of its gradient."""
    raw = (0.1 * torch.randn(1, *shape, generator=draw)).requires_grad_()
    adam = torch.optim.Adam([raw], lr=0.1)
    best, least, started = raw.detach().tanh(), math.inf, time.monotonic()
    for step in range(STEPS):
        done = max(step / STEPS, (time.monotonic() - started) / max(until - started, 1e-3))  # steps or time
        if done >= 1:
            break
        adam.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * done))
        value = loss(raw.tanh())
        if value.item() < least:
            best, least = raw.detach().tanh(), value.item()
        (grad,) = torch.autograd.grad(value, raw)
        raw.grad = grad.sign()
        adam.step()
    return best


def variation(x: Tensor) -> Tensor:
    """Return the total variation of an image."""
    return (x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()) / 2


def _from_sums(target: Target, victim: Images, n: int, until: float) -> dict[str, Tensor]:
    """Reconstruct from the victim's row of the sums: as released, and without noise."""
    method = target.plan.method
    summary, rng = method.feature_summary(), target.rng.child("sums", n)
    assert summary is not None  # noqa: S101
    parts, _ = request_reply(method, method.server_init(rng.child("server")), "victim", victim, rng)
    row = 0 if victim.labels is None or not method.task.classes else int(victim.labels[0])
    sums = np.asarray(parts["sums"], np.float64).reshape(max(method.task.classes, 1), -1)

    def matching(sums: Tensor) -> Callable[[Tensor], Tensor]:
        first, second = ((part / summary.scale).float() for part in sums[1:].split(summary.d))

        def loss(x: Tensor) -> Tensor:
            f, square = summary.pair(x)
            far = (f[0] - first).square().sum() + (square[0] - second).square().sum()
            total: Tensor = far + 0.01 * variation(x)
            return total

        return loss

    rows = {"from sums as released": torch.from_numpy(sums[row])}
    if method.mechanism is not None:
        exact = torch.from_numpy(summary.rows(victim.pixels)[0].astype(np.float64))
        rows["from the same sums without noise, for comparison"] = exact
    now = time.monotonic()
    found = {}
    for k, (name, given) in enumerate(rows.items()):
        draw, end = rng.child("start").torch(), now + (until - now) * (k + 1) / len(rows)
        found[name] = descend(victim.pixels.shape[1:], matching(given), draw, end)
    return found


def _from_weights(target: Target, victim: Images, n: int, until: float) -> dict[str, Tensor]:
    """Reconstruct from D's change after one step on one image; the attacker knows the label, not the fakes.

    Adam's first step shows only the sign of each gradient, and part of the gradient is that of fakes. So signs are
    matched by their probability, over fakes that the attacker draws.
    """
    method, rng = target.plan.method, target.rng.child("weights", n)
    sent = method.sent_discriminator()
    assert sent is not None  # noqa: S101
    server = method.server_init(rng.child("server"))
    parts, _ = request_reply(method, server, "victim", victim, rng)
    nets = method.nets()
    D, G = (from_vector(nets[name], server[name]).train() for name in ("discriminator", "generator"))
    weights = list(D.parameters())
    before = _flat(weights)
    moved = _flat(from_vector(method.nets()["discriminator"], sent.read_discriminator(parts)).parameters())
    sign = torch.sign(before - moved)  # Adam's first step is against the sign of the gradient
    classes = method.task.classes
    y = torch.from_numpy(victim.labels) if classes and victim.labels is not None else None

    def gradient(x: Tensor, y: Tensor | None, real: bool, graph: bool = False) -> Tensor:
        return _flat(torch.autograd.grad(sent.image_loss(D, x, y, real), weights, create_graph=graph))

    latent_dim: Any = G.z
    draw, fakes = rng.child("fakes").torch(), []
    for _ in range(FAKES):
        label = torch.randint(classes, (1,), generator=draw) if classes else None
        with torch.no_grad():
            fake = G(torch.randn(1, latent_dim, generator=draw), label)
        fakes.append(gradient(fake, label, False))
    mean, spread = torch.stack(fakes).mean(0), torch.stack(fakes).std(0) + 1e-8

    def loss(x: Tensor) -> Tensor:
        z = sign * (gradient(x, y, True, graph=True) + mean) / spread
        return -F.logsigmoid(1.7 * z).mean() + 0.01 * variation(x)  # about log Φ(z)

    return {"from the change of D's weights": descend(victim.pixels.shape[1:], loss, rng.child("start").torch(), until)}


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])
