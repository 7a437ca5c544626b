"""Time of one local iteration of a PRISM client: Vitrail's, and the plain one of examples/plain_prism.py.

    VITRAIL_ASSETS=FOLDER python benchmarks/step.py [--generator small --features vitrail-fashion] [--precision float32]

Both sample a mask, generate a batch, compare moments of all layers of ψ, and take an Adam step on the scores. They
alternate in one process, and medians are compared, which cancels load by other processes. tests/examples/ checks that
they have the same loss and gradient. Only Vitrail's runs with deterministic kernels, as it does in the engine.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from statistics import median
from typing import get_args

import torch
from torch import Tensor

from vitrail.methods.prism.loss import eq1
from vitrail.nets.feature_moments import class_moments
from vitrail.nets.feature_network import Features
from vitrail.nets.features import load_features
from vitrail.nets.generators import build_generator
from vitrail.nets.masked import Masked, sample_mask
from vitrail.nets.precision import Precision, fastest_precision

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import plain_prism  # type: ignore[import-not-found]

SIZE, ADAM = 32, {"lr": 0.1, "betas": (0.5, 0.999)}
PARTS = ("mask", "generator", "ψ and loss", "backward", "Adam")


class Clock:
    """Seconds spent in each part of the steps."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.parts[part].append(time.perf_counter() - began)


def plain(generator: str, psi: Features, real: Tensor, draw: torch.Generator) -> tuple[Clock, Callable[[], None]]:
    """Return a step of examples/plain_prism.py; masks are sampled in the generator."""
    net = build_generator(generator, (1, SIZE, SIZE), 0)
    widths = (net.first.out_channels, *(block.conv1.out_channels for block in net.blocks))
    G, clock = plain_prism.Generator(1, net.z, widths), Clock()
    optimizer = torch.optim.Adam(G.parameters(), **ADAM)  # type: ignore[arg-type]

    def step() -> None:
        torch.use_deterministic_algorithms(False)
        with clock("generator"):
            fakes = G(torch.randn(len(real), G.z, generator=draw), draw)
        with clock("ψ and loss"):
            loss = plain_prism.mmd(psi, real, fakes)
        with clock("backward"):
            optimizer.zero_grad()
            loss.backward()
        with clock("Adam"):
            optimizer.step()

    return clock, step


def ours(
    generator: str, psi: Features, real: Tensor, draw: torch.Generator, precision: Precision
) -> tuple[Clock, Callable[[], None]]:
    """Return a step as in methods/prism/algorithm.py; real moments are computed before."""
    net = Masked(build_generator(generator, (1, SIZE, SIZE), 0), 0, precision)
    clock, y, psi = Clock(), torch.zeros(len(real)).long(), copy(psi)
    psi.precision = precision
    with torch.no_grad():
        moments = class_moments(psi(real), y, 1)
    s = torch.randn(net.size, generator=draw).requires_grad_()
    optimizer, loss_of = torch.optim.Adam([s], fused=True, **ADAM), eq1(psi, moments, 1.0)  # type: ignore[arg-type]

    def step() -> None:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        with clock("mask"):
            mask = sample_mask(torch.sigmoid(s), draw)
        with clock("generator"):
            fakes = net(mask, torch.randn(len(real), net.z, generator=draw), None)
        with clock("ψ and loss"):
            loss = loss_of(fakes, y)
        with clock("backward"):
            optimizer.zero_grad()
            loss.backward()
        with clock("Adam"):
            optimizer.step()

    return clock, step


def main() -> None:
    """Print a table of times."""
    parser = argparse.ArgumentParser(description="Time of a PRISM client's step.")
    parser.add_argument("--generator", choices=["small", "resnet"], default="resnet")
    parser.add_argument("--features", default="vgg19")
    parser.add_argument("--precision", choices=get_args(Precision), default="auto")
    for name, value in {"batch": 64, "steps": 7, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    draw, psi = torch.Generator().manual_seed(0), load_features(a.features)
    real = torch.rand(a.batch, 1, SIZE, SIZE, generator=draw) * 2 - 1
    precision = fastest_precision() if a.precision == "auto" else a.precision
    both = [plain(a.generator, psi, real, draw), ours(a.generator, psi, real, draw, precision)]
    for _ in range(a.steps + 1):
        for _, step in both:
            step()
    warm = [{part: seconds[1:] for part, seconds in clock.parts.items()} for clock, _ in both]
    print(f"{a.generator}, {a.features} (all {len(psi.layers)} layers), {SIZE}x{SIZE}, batch {a.batch}, "
          f"{precision}, {a.threads} thread(s), median of {a.steps} steps")  # fmt: skip
    print(f"{'':12} {'plain':>9} {'ours':>9}")
    for part in PARTS:
        print(f"{part:12}", *(f"{median(t[part]):8.4f}s" if part in t else f"{'':>9}" for t in warm))
    whole = [median(map(sum, zip(*t.values(), strict=True))) for t in warm]
    print(f"{'step':12}", *(f"{seconds:8.4f}s" for seconds in whole))
    print(f"plain / ours {whole[0] / whole[1]:9.2f}")


if __name__ == "__main__":
    main()
