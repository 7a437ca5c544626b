"""Simpson's paradox: a federated weight and a private bias (Almansoori, Horváth, Takáč; 2024; Section 5, Appendix C.1).

    python examples/simpson.py -o simpson.png

Client i has points y = w x + b_i on its own interval of x, with the same w for all clients. Biases rise from client to
client as x falls, so all points together fall while each client's rise. One model for all learns the wrong sign. With a
federated w and private b_i every client learns the right line, and a router, which learned whose interval an x is in,
chooses the client that predicts a point. The image is the paper's Figure 3. The mean squared error is printed for the
training points, as in the paper, and for new points; a few new points are between two clients' intervals.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

M, L, N = 8, 4.0, 50  # clients, spread of the biases, points per client
NOISE = 0.1  # standard deviation of y
Params = dict[str, Tensor]  # all clients' parameters, stacked


def points(seed: int, n: int = N) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x and y of all clients (M, n), and as many new points, normalized like the first."""
    rng = np.random.default_rng(seed)
    i = np.arange(1, M + 1)[:, None]
    b = rng.uniform(L * (i - 1), L * i)
    x = rng.uniform(M - i, M - i + 1, (2, M, n))
    y = 1.0 * x + b + rng.normal(0, NOISE, x.shape)
    both = [torch.from_numpy((v - v[0].mean()) / v[0].std()) for v in (x, y)]
    return both[0][0], both[1][0], both[0][1], both[1][1]


def federate(
    params: Params,
    federated: Sequence[str],
    losses: Sequence[tuple[Sequence[str], Callable[[Params], Tensor]]],
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    rounds: int,
    local: int = 1,
) -> Params:
    """Run FedAvg for all clients at once: local steps on each client's losses, then the mean of federated parameters.

    Args:
        params: Initial parameters.
        federated: Names of the parameters that are averaged.
        losses: Names of the parameters that a loss trains, and the loss: one value per client.
        optimizer: Makes the optimizer of a list of parameters.
        rounds: Number of rounds.
        local: Local steps per round.

    Returns:
        The trained parameters.
    """
    params = {name: p.clone().requires_grad_() for name, p in params.items()}
    steps = [([params[n] for n in names], optimizer([params[n] for n in names]), loss) for names, loss in losses]
    for _ in range(rounds):
        for _ in range(local):
            for own, opt, loss in steps:
                for p, g in zip(own, torch.autograd.grad(loss(params).sum(), own), strict=True):
                    p.grad = g
                opt.step()
        with torch.no_grad():
            for name in federated:
                params[name].copy_(params[name].mean(0, keepdim=True).expand_as(params[name]))
    return {name: p.detach() for name, p in params.items()}


def line(p: Params, x: Tensor) -> Tensor:
    """Return w x + b, one row per client."""
    return p["w"] * x + p["b"]


def regression(x: Tensor, y: Tensor, federated: Sequence[str]) -> Params:
    """Fit lines by gradient descent, one step per round: one model if w and b are federated, else private biases."""

    def loss(p: Params) -> Tensor:
        return (line(p, x) - y).square().mean(1)

    start = {name: torch.zeros(M, 1, dtype=x.dtype) for name in ("w", "b")}
    return federate(start, federated, [(["w", "b"], loss)], lambda p: torch.optim.SGD(p, 0.2), 3000)


def router(x: Tensor) -> Params:
    """Train a linear classifier of the client of an x: clients send gradients, the server takes Adam steps."""
    client = torch.arange(M)[:, None].expand_as(x)
    p = {name: torch.zeros(M, dtype=x.dtype, requires_grad=True) for name in ("a", "c")}
    optimizer = torch.optim.Adam(list(p.values()), 3.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 2000)
    for _ in range(2000):
        optimizer.zero_grad()
        logits = p["a"] * x[:, :, None] + p["c"]
        F.cross_entropy(logits.flatten(0, 1), client.flatten()).backward()
        optimizer.step()
        schedule.step()
    return {name: v.detach() for name, v in p.items()}


def routed(p: Params, route: Params, x: Tensor) -> Tensor:
    """Return the prediction of the client that the router chooses for each x."""
    best = (route["a"] * x[..., None] + route["c"]).argmax(-1)
    return p["w"][0] * x + p["b"][best, 0]


def generator(x: Tensor, y: Tensor, seed: int) -> tuple[Params, Callable[[Params, int], Tensor]]:
    """Train a linear GAN of points, (x, y) = w z^c + b_i, with a federated and a private discriminator."""
    draw = torch.Generator().manual_seed(seed)
    real = torch.stack([x, y], -1).float()

    def net(name: str, width: int, spread: bool) -> Params:
        sizes = {"1": (2, width), "2": (1, width), "3": (width, 1)}
        one = {k: torch.randn(M if spread else 1, *s, generator=draw) / s[0] ** 0.5 for k, s in sizes.items()}
        return {f"{name}{k}": p.expand(M, *p.shape[1:]).clone() for k, p in one.items()}

    def logits(p: Params, name: str, at: Tensor) -> Tensor:
        return (F.leaky_relu(at @ p[f"{name}1"] + p[f"{name}2"], 0.2) @ p[f"{name}3"])[..., 0]

    def make(p: Params, n: int) -> Tensor:
        return p["Gw"] * torch.randn(M, n, 1, generator=draw) + p["Gb"]

    def loss_d(p: Params) -> Tensor:
        fake = make(p, N).detach()
        return torch.stack(
            [(F.softplus(-logits(p, D, real)) + F.softplus(logits(p, D, fake))).mean(1) for D in ("Dc", "Ds")]
        ).sum(0)

    def loss_g(p: Params) -> Tensor:
        fake = make(p, N)
        return torch.stack([F.softplus(-logits(p, D, fake)).mean(1) for D in ("Dc", "Ds")]).sum(0)

    G = {"Gw": torch.full((M, 1, 2), 0.1), "Gb": torch.zeros(M, 1, 2)}
    Dc, Ds = net("Dc", 16, False), net("Ds", 8, True)
    losses = [([*Dc, *Ds], loss_d), (list(G), loss_g)]

    def adam(p: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(p, 0.01, (0.5, 0.9))

    return federate({**G, **Dc, **Ds}, [*Dc, "Gw"], losses, adam, 300, local=5), make


def draw_figure(path: Path, x: Tensor, y: Tensor, panels: dict[str, Any]) -> None:
    """Draw the paper's Figure 3: the points, generated points, the line of one model, lines with private biases."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), layout="constrained")
    FigureCanvasAgg(figure)
    for ax, (title, what) in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, panels.items(), strict=True):
        for i in range(M):
            at = what[i] if isinstance(what, Tensor) else torch.stack([x[i], y[i]], -1)
            ax.scatter(*at.T, s=8, color=f"C{i}", alpha=0.7)
            if isinstance(what, dict):
                ends = torch.stack([x[i].min() - 0.15, x[i].max() + 0.15])
                ax.plot(ends, (what["w"][i] * ends + what["b"][i]), color=f"C{i}", linewidth=2)
        ax.set_title(title, fontsize=10)
    figure.savefig(path, dpi=110, format="png")


def errors(seed: int, n: int = N) -> tuple[dict[str, tuple[float, float]], Params, Params]:
    """Return the mean squared errors on training points and on new ones, and both models."""
    x, y, new_x, new_y = points(seed, n)
    single, ours, route = regression(x, y, ["w", "b"]), regression(x, y, ["w"]), router(x)

    def error(predict: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        old, new = ((predict(at) - y_).square().mean().item() for at, y_ in ((x, y), (new_x, new_y)))
        return old, new

    found = {"single": error(lambda at: line(single, at)), "private": error(lambda at: routed(ours, route, at))}
    return found, single, ours


def main() -> None:
    """Print both errors and draw the figure."""
    parser = argparse.ArgumentParser(description="Simpson's paradox with a federated weight and a private bias")
    parser.add_argument("-o", "--out", default="simpson.png", help="image file to write")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # every step is tiny: more threads would only wait
    found, single, ours = errors(args.seed)
    x, y, *_ = points(args.seed)
    gan, make = generator(x, y, args.seed)
    panels = {"all points (colour = client)": None, "partially federated linear generator": make(gan, N)}
    panels |= {"one linear model (FedAvg)": single, "federated weight, private bias": ours}
    draw_figure(Path(args.out), x, y, panels)
    for name, title, p in (("single", "one model", single), ("private", "federated weight, private bias", ours)):
        old, new = found[name]
        print(f"{title}: slope {p['w'][0, 0]:.3f}, mean squared error {old:.5f}, new points {new:.5f}")
    print(f"image: {args.out}")


if __name__ == "__main__":
    main()
