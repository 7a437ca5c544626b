"""Pictures rebuilt from what one client sends, by gradient descent on the picture.

From weights: a picture is sought whose gradient points where a discriminator moved (Geiping et al. 2020, with total
variation). Adam's first step tells only each gradient's sign, and part of the gradient is that of fakes, so signs are
matched by how probable they are, over fakes that the attacker draws. From sums of features: a picture is sought whose
features are the released ones (Mahendran and Vedaldi 2015). The victim holds one picture, which is the worst case. A
picture counts as rebuilt where it is nearer to the victim's than any other real one.
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
from vitrail.auditing.exchange import ask
from vitrail.data.dataset import Images
from vitrail.methods.prism.loss import summary_of
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector

ABOUT = "a client's only picture, rebuilt from what it sends"
VICTIMS = 3
STEPS = 600
FAKES = 16  # the attacker's own guesses of the fakes that a client trained with


@dataclass(frozen=True)
class Compared:
    """PSNR of a rebuilt picture, the best that another real one has, the share of others above it; SSIM."""

    psnr: float
    other: float
    nearer: float
    ssim: float


def attack(target: Target) -> Finding | None:
    """None where neither weights nor sums of features leave a client."""
    method: Any = target.plan.method
    declared = method.reply_spec()
    if "sums" in declared and not method.task.secure:
        rebuild, what = _from_sums, "sums of features"
    elif "discriminator" in declared and "weight" in declared and method.mechanism is None:
        rebuild, what = _from_weights, "weights"
    else:
        return None
    members = target.members
    pick = target.rng.child("victims").numpy().choice(len(members), min(VICTIMS, len(members)), replace=False)
    deadline = time.monotonic() + target.seconds
    found: dict[str, list[Compared]] = {}
    for n, i in enumerate(pick):
        target.tell(f"inversion: victim {n + 1} of {len(pick)}")
        if time.monotonic() > deadline and n:
            break
        victim = members.take(np.array([i]))
        others = to_float(members.take(np.delete(np.arange(len(members)), i)).pixels[:5000])
        until = time.monotonic() + max(1.0, (deadline - time.monotonic()) / (len(pick) - n))
        for name, picture in rebuild(target, victim, n, until).items():
            found.setdefault(name, []).append(compare(picture, to_float(victim.pixels), others))
    figures = [f for name, rows in found.items() for f in _figures(name, rows)]
    cases = max(map(len, found.values()))
    note = f"{what[0].upper()}{what[1:]} travel. The worst of {cases} cases is shown, in the time that was given"
    return Finding("inversion", ABOUT, figures=figures, note=note)


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of pictures in [-1, 1], pair by pair.

    >>> round(psnr(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)).item(), 2)
    6.02
    """
    return 10 * torch.log10(4 / (a - b).square().flatten(1).mean(1).clamp(min=1e-10))


def compare(picture: Tensor, victim: Tensor, others: Tensor) -> Compared:
    """How near a rebuilt picture comes to the victim's, and the other real pictures do."""
    from vitrail.metrics.pixels import ssim

    own, near = float(psnr(picture, victim)), psnr(others, victim)
    return Compared(own, float(near.max()), float((near >= own).float().mean()), float(ssim(picture, victim)))


def _figures(name: str, rows: list[Compared]) -> list[Figure]:
    best = max(rows, key=lambda row: row.psnr - row.other)
    says = "rebuilt: no other is nearer" if best.psnr > best.other else f"{best.nearer:.1%} of others are nearer"
    note = f"beside it, that of the nearest other real picture; {says}"
    return [Figure(f"PSNR in dB, {name}", best.psnr, chance=best.other, note=note), Figure(f"SSIM, {name}", best.ssim)]


def descend(shape: tuple[int, ...], loss: Callable[[Tensor], Tensor], draw: torch.Generator, until: float) -> Tensor:
    """A picture in [-1, 1] of least loss, found by Adam on its signed gradient."""
    raw = (0.1 * torch.randn(1, *shape, generator=draw)).requires_grad_()
    adam = torch.optim.Adam([raw], lr=0.1)
    best, least, began = raw.detach().tanh(), math.inf, time.monotonic()
    for step in range(STEPS):
        done = max(step / STEPS, (time.monotonic() - began) / max(until - began, 1e-3))  # whichever ends first
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
    """Total variation: neighbours of a picture are alike."""
    return (x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()) / 2


def _from_sums(target: Target, victim: Images, n: int, until: float) -> dict[str, Tensor]:
    """From a class's row of the sums, as they are released, and as they would be without noise."""
    method: Any = target.plan.method
    summary, rng = summary_of(method), target.rng.child("sums", n)
    answer = ask(method, method.server_init(rng.child("server")), "victim", victim, rng)
    row = 0 if victim.labels is None or not method.task.classes else int(victim.labels[0])
    released = torch.from_numpy(
        np.asarray(answer.parts["sums"], np.float64).reshape(max(method.task.classes, 1), -1)[row]
    )
    exact = torch.from_numpy(summary.rows(victim.pixels)[0].astype(np.float64))

    def matching(sums: Tensor) -> Callable[[Tensor], Tensor]:
        first, second = ((part / summary.scale).float() for part in sums[1:].split(summary.d))

        def loss(x: Tensor) -> Tensor:
            f, square = summary.pair(x)
            far = (f[0] - first).square().sum() + (square[0] - second).square().sum()
            total: Tensor = far + 0.01 * variation(x)
            return total

        return loss

    asked = {"from sums as released": released}
    if method.mechanism is not None:
        asked["from the same sums without noise, for comparison"] = exact
    now = time.monotonic()
    found = {}
    for k, (name, sums) in enumerate(asked.items()):
        draw, end = rng.child("start").torch(), now + (until - now) * (k + 1) / len(asked)
        found[name] = descend(victim.pixels.shape[1:], matching(sums), draw, end)
    return found


def _from_weights(target: Target, victim: Images, n: int, until: float) -> dict[str, Tensor]:
    """From D's change after one step on one picture; the attacker knows the label, not the noise of the fakes."""
    method: Any = target.plan.method
    rng = target.rng.child("weights", n)
    server = method.server_init(rng.child("server"))
    parts = ask(method, server, "victim", victim, rng).parts
    after = np.asarray(parts["discriminator"]) / parts["weight"][0]
    nets = method.nets()
    D, G = (from_vector(nets[name], server[name]).train() for name in ("discriminator", "generator"))
    weights = list(D.parameters())
    before = _flat(weights)
    moved = _flat(from_vector(method.nets()["discriminator"], after).parameters())
    sign = torch.sign(before - moved)  # Adam's first step goes against the gradient's sign
    classes = method.task.classes
    y = torch.from_numpy(victim.labels) if classes and victim.labels is not None else None

    def gradient(x: Tensor, y: Tensor | None, real: float, graph: bool = False) -> Tensor:
        says = D(x, y)
        loss = F.binary_cross_entropy_with_logits(says, torch.full_like(says, real))
        return _flat(torch.autograd.grad(loss, weights, create_graph=graph))

    draw, fakes = rng.child("fakes").torch(), []
    for _ in range(FAKES):
        label = torch.randint(classes, (1,), generator=draw) if classes else None
        with torch.no_grad():
            fake = G(torch.randn(1, method.z, generator=draw), label)
        fakes.append(gradient(fake, label, 0.0))
    mean, spread = torch.stack(fakes).mean(0), torch.stack(fakes).std(0) + 1e-8

    def loss(x: Tensor) -> Tensor:
        sure = sign * (gradient(x, y, 1.0, graph=True) + mean) / spread
        return -F.logsigmoid(1.7 * sure).mean() + 0.01 * variation(x)  # Φ(z), nearly

    return {"from the change of D's weights": descend(victim.pixels.shape[1:], loss, rng.child("start").torch(), until)}


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])
