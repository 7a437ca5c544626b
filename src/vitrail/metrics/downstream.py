"""The protocol of published benchmarks: train classifiers on generated images only, test them on all real test images.

A tenth of the generated images is set aside. The reported classifier is the one that classifies these best, so no real
image has a part in the choice; published protocols use real ones with noise, or the test set itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.metrics.measure import Measure, share
from vitrail.nets.classifier import random_shift
from vitrail.nets.feature_moments import to_float
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng

BATCH = 128
CHECKS = 5  # times in the second half of training that a network is scored on the images set aside


class Residual(nn.Module):
    """Pre-activation residual block of two 3x3 convolutions."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bypass = nn.Conv2d(inside, outside, 1, stride, bias=False) if (inside, stride) != (outside, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.bn1(x))
        h: Tensor = self.conv2(F.relu(self.bn2(self.conv1(a))))
        return h + (x if self.bypass is None else self.bypass(a))


def residual_network(channels: int, classes: int, width: int, depth: int) -> nn.Sequential:
    """Build a residual classifier of three stages: `depth` blocks each, of 1, 2 and 4 times `width` channels."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
    inside = width
    for stage in range(3):
        for block in range(depth):
            layers.append(Residual(inside, width << stage, 2 if stage and not block else 1))
            inside = width << stage
    return nn.Sequential(
        *layers, nn.BatchNorm2d(inside), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)
    )


def plain_network(channels: int, classes: int) -> nn.Sequential:
    """Build a classifier of six 3x3 convolutions, each with BatchNorm, in three stages."""
    layers: list[nn.Module] = []
    inside = channels
    for width in (32, 64, 128):
        for a in (inside, width):
            layers += [nn.Conv2d(a, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inside, classes))


CLASSIFIERS: Mapping[str, Callable[[int, int], nn.Sequential]] = {
    "cnn": plain_network,
    "resnet": lambda channels, classes: residual_network(channels, classes, 32, 1),
    "wideresnet": lambda channels, classes: residual_network(channels, classes, 64, 2),
}
"""Classifiers by name: a function of channels and classes."""


@dataclass(frozen=True)
class Trained:
    """A classifier trained on generated images.

    Args:
        name: One of CLASSIFIERS.
        score: Its accuracy on the generated images that were set aside.
        right: 1 for each real test image that it classifies correctly, otherwise 0.
    """

    name: str
    score: float
    right: NDArray[np.float64]


def train_on_generated(
    generated: Images,
    test: Images,
    classes: int,
    steps: Mapping[str, int],
    *,
    seed: int = 0,
    report_progress: Callable[[str], None] = lambda _: None,
) -> list[Trained]:
    """Train classifiers on generated images and test them on real ones.

    Classifiers train side by side, each on one thread, so that the result does not depend on the number of cores.
    Colour images are mirrored at random; all are shifted by up to two pixels.

    Args:
        generated: Labelled generated images.
        test: Labelled real test images.
        classes: Number of classes.
        steps: Optimizer steps by name of the classifier.
        seed: Seed of the networks and batches.
        report_progress: Called with a line of text on progress.

    Returns:
        The trained classifiers, best first by their score on generated images that were set aside.

    Raises:
        VitrailError: If the images have no labels, or there are too few.
    """
    if generated.labels is None or test.labels is None:
        raise VitrailError("a classifier needs labelled images; use data and a generator with labels")
    if len(generated) < 10 * classes:
        raise VitrailError(f"{len(generated)} generated images are too few; at least {10 * classes} are needed")
    rng = Rng((seed,)).child("downstream")
    order = rng.child("set aside").numpy().permutation(len(generated))
    cut = num_set_aside(len(order))
    aside, used = (generated.take(np.sort(part)) for part in (order[:cut], order[cut:]))
    nets = {}
    with torch.random.fork_rng(devices=[]):
        for name in steps:
            torch.manual_seed(rng.child("network", name).seed())  # torch's layers use the global state
            nets[name] = CLASSIFIERS[name](generated.pixels.shape[1], classes)
            nets[name].to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run(name: str) -> Trained:
        draw = rng.child("training", name).torch()
        score, net = _train(nets[name], used, aside, steps[name], draw, lambda text: report_progress(f"{name}: {text}"))
        return Trained(name, score, _right(net, test))

    with one_thread(), ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return sorted(pool.map(run, steps), key=lambda t: -t.score)


def num_set_aside(generated: int) -> int:
    """Return how many of the generated images choose the classifier; the others train it."""
    return generated // 10


def _train(
    net: nn.Sequential,
    used: Images,
    aside: Images,
    steps: int,
    draw: torch.Generator,
    report_progress: Callable[[str], None],
) -> tuple[float, nn.Sequential]:
    """Train a network; return it as it was at its best score on the images set aside, and this score."""
    assert used.labels is not None  # noqa: S101
    labels, mirror = torch.from_numpy(used.labels), used.pixels.shape[1] == 3
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    best, weights = -1.0, net.state_dict()
    checks = {round(steps * (0.5 + 0.5 * (i + 1) / CHECKS)) for i in range(CHECKS)}
    for step in range(1, steps + 1):
        pick = torch.randint(len(labels), (BATCH,), generator=draw)
        x = random_shift(to_float(used.pixels[pick.numpy()]), draw)
        if mirror:
            x = torch.where(torch.rand(len(x), 1, 1, 1, generator=draw) < 0.5, x.flip(3), x)
        net.train()
        with torch.autocast("cpu", torch.bfloat16):
            logits = net(x.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits.float(), labels[pick], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step in checks:
            score = float(_right(net, aside).mean())
            report_progress(
                f"step {step:,} of {steps:,}, {score:.1%} correct on the generated images that were set aside"
            )
            if score >= best:
                best, weights = score, {k: v.clone() for k, v in net.state_dict().items()}
    net.load_state_dict(weights)
    return best, net


@torch.no_grad()
def _right(net: nn.Sequential, images: Images) -> NDArray[np.float64]:
    """Return 1 for each labelled image that a classifier predicts correctly, otherwise 0."""
    net.eval()
    found = []
    for at in range(0, len(images), 256):
        with torch.autocast("cpu", torch.bfloat16):
            x = to_float(images.pixels[at : at + 256]).contiguous(memory_format=torch.channels_last)
            found.append(net(x).argmax(1).numpy())
    return np.asarray(np.concatenate(found) == images.labels, np.float64)


def measures(trained: Sequence[Trained], generated: int) -> list[Measure]:
    """Return the accuracy of the chosen classifier and of each, with 95% intervals over the test images.

    Args:
        trained: The classifiers, best first by generated images.
        generated: Number of generated images.
    """
    chosen = trained[0]
    note = f"{chosen.name}, chosen by generated images set aside"
    n = len(chosen.right)
    found = [Measure("accuracy", *share(chosen.right), n, generated, "higher", "classifiers", note)]
    return found + [Measure(f"accuracy {t.name}", *share(t.right), n, generated, "higher", t.name) for t in trained]
