"""Train one of the feature networks that come with the package and write its weights.

    python scripts/train_features.py fashion-mnist -o vitrail-fashion.safetensors
    python scripts/train_features.py cifar10:1 --recoloured 0.25 -o vitrail-cifar.safetensors

A classifier with batch normalisation is trained; convolutions and biases are written, in half precision.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from rich.progress import Progress
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from vitrail.data import load
from vitrail.nets.feature_network import Features, LayerPlan, halve
from vitrail.nets.features import SMALL

EPSILON = 1e-5  # of batch normalisation


class Classifier(nn.Module):
    """The network during training: each convolution has a batch normalisation, and the output is logits."""

    def __init__(self, plan: LayerPlan, classes: int) -> None:
        super().__init__()
        self.plan = plan
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise((3, *plan.widths)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, eps=EPSILON) for width in plan.widths)
        self.head = nn.Linear(plan.widths[-1], classes)

    def forward(self, y: Tensor) -> Tensor:
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = halve(y, self.plan.pool) if layer in self.plan.opens else y
            y = functional.relu(norm(conv(y)))
        logits: Tensor = self.head(y.mean(dim=(2, 3)))
        return logits


def plain(pixels: Tensor) -> Tensor:
    """Convert bytes (n, 1 or 3, h, w) to colour images in [0, 1]."""
    return pixels.expand(-1, 3, -1, -1).float() / 255


def augment(x: Tensor, recoloured: float, rng: torch.Generator) -> Tensor:
    """Move, mirror, recolour and add noise, so that the features suit other kinds of images."""
    n = len(x)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape, generator=rng)

    angle, size, mirror = uniform(-0.2, 0.2), uniform(0.85, 1.2), uniform(-1, 1).sign()
    shift = uniform(-0.15, 0.15, 2)
    rows = (
        angle.cos() / size * mirror,
        -angle.sin() / size,
        shift[:, 0],
        angle.sin() / size * mirror,
        angle.cos() / size,
        shift[:, 1],
    )
    grid = functional.affine_grid(torch.stack(rows, dim=1).view(n, 2, 3), list(x.shape), align_corners=False)
    x = functional.grid_sample(x, grid, align_corners=False)

    grey = uniform(0, 1, 1, 1, 1) < 0.25
    x = torch.where(grey, x.mean(dim=1, keepdim=True), x)
    # Black and white become two random colours: tinted, inverted, on any background.
    chosen = uniform(0, 1, 1, 1, 1) < recoloured
    black, white = uniform(0, 1, 3, 1, 1), uniform(0, 1, 3, 1, 1)
    x = torch.where(chosen, black + (white - black) * x, x)
    noise = torch.randn(x.shape, generator=rng) * uniform(0, 0.08, 1, 1, 1)
    return (x + noise).clamp(0, 1) * 2 - 1


@torch.no_grad()
def fold(net: Classifier, x: Tensor) -> dict[str, Tensor]:
    """Return the same function without batch normalisation, with channels of mean square 1 over the images x.

    ReLU and pooling commute with a positive factor per channel, so the next layer can undo a division. The mean square
    of a channel counts as at least 1% of its layer's, so that channels that are almost always 0 are not amplified.
    """
    state, depth = net.state_dict(), len(net.plan.widths)
    weights, biases = [], []
    for i in range(depth):
        scale = state[f"norms.{i}.weight"] / (state[f"norms.{i}.running_var"] + EPSILON).sqrt()
        weights.append(state[f"convs.{i}.weight"] * scale.view(-1, 1, 1, 1))
        biases.append(state[f"norms.{i}.bias"] - state[f"norms.{i}.running_mean"] * scale)
    weights.append(state["head.weight"].clone())

    psi = Features(net.plan)
    for i, conv in enumerate(psi.convs):
        conv.load_state_dict({"weight": weights[i], "bias": biases[i]})
    squares = [torch.zeros(width) for width in net.plan.widths]
    for start in range(0, len(x), 500):
        for i, y in enumerate(psi(x[start : start + 500])):
            squares[i] += y.square().mean(dim=(2, 3)).sum(dim=0) / len(x)
    for i, square in enumerate(squares):
        scale = square.clamp(min=0.01 * square.mean().item()).sqrt()
        weights[i] /= scale.view(-1, 1, 1, 1)
        biases[i] /= scale
        weights[i + 1] *= scale.view(1, -1, 1, 1) if i + 1 < depth else scale

    tensors = {"classifier.weight": weights[depth], "classifier.bias": state["head.bias"]}
    for position, weight, bias in zip(net.plan.positions, weights[:depth], biases, strict=True):
        tensors |= {f"features.{position}.weight": weight, f"features.{position}.bias": bias}
    return tensors


@torch.no_grad()
def accuracy(net: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    """Return the share of images that the network classifies correctly."""
    net.eval()
    batches = (pixels[start : start + 500] for start in range(0, len(pixels), 500))
    predicted = torch.cat([net(plain(batch) * 2 - 1).argmax(dim=1) for batch in batches])
    return (predicted == labels).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="fashion-mnist, cifar10 or cifar10:1 (its first batch only)")
    parser.add_argument("-o", "--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--images", type=int, default=500_000, help="images to train on, counting repeats")
    parser.add_argument("--recoloured", type=float, default=0.5, help="share of them given random colours")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=4e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = torch.Generator().manual_seed(args.seed)
    data = load(args.data)
    pixels, labels = torch.from_numpy(data.train.pixels), torch.from_numpy(data.train.labels)
    test = torch.from_numpy(data.test.pixels), torch.from_numpy(data.test.labels)

    net = Classifier(SMALL, len(data.classes)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    steps = args.images // args.batch
    report = max(1, steps // 8)
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, args.rate, total_steps=steps, pct_start=0.2)
    order, losses = torch.empty(0, dtype=torch.long), 0.0
    with Progress() as progress:
        task = progress.add_task(args.data, total=steps)
        for step in range(steps):
            if len(order) < args.batch:
                order = torch.cat([order, torch.randperm(len(pixels), generator=rng)])
            batch, order = order[: args.batch], order[args.batch :]
            x = augment(plain(pixels[batch]), args.recoloured, rng)
            logits = net.train()(x.contiguous(memory_format=torch.channels_last))
            loss = functional.cross_entropy(logits, labels[batch], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses += loss.item()
            progress.advance(task)
            if (step + 1) % report == 0:
                done = f"loss {losses / report:.3f}, test accuracy {accuracy(net, *test):.2%}"
                progress.console.print(f"step {step + 1}: {done}")
                losses = 0.0

    sample = pixels[torch.randperm(len(pixels), generator=rng)[:10_000]]
    tensors = fold(net.eval(), augment(plain(sample), args.recoloured, rng))
    halves = {key: t.half().contiguous() for key, t in tensors.items()}
    save_file(halves, args.out, metadata={"trained on": args.data})
    args.out.chmod(0o644)
    print(f"{args.out}: {args.out.stat().st_size:,} bytes, test accuracy {accuracy(net, *test):.2%}")


if __name__ == "__main__":
    main()
