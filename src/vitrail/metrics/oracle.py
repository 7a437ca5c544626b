"""Metrics by an oracle, a classifier trained on real images.

Fan & Liu (2020) call the share of generated images that it assigns to the requested class the Score, and the difference
of its mean confidence in the right label, real minus generated, "EMD". The latter is not a distance (it can be
negative); here it is called the oracle gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.metrics.extractors import KEEP, Extractor
from vitrail.metrics.measure import Measure, bootstrap, share
from vitrail.nets.classifier import build_classifier, random_shift
from vitrail.nets.feature_moments import to_float
from vitrail.nets.pretrained import weights_digest
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import cached

MOST = 20_000  # images that a classifier is trained on
EPOCHS, LEAST_STEPS, MOST_STEPS, BATCH = 10, 600, 2400, 64


def train_classifier(images: Images, classes: int, rng: Rng, steps: int = 0) -> nn.Sequential:
    """Train a classifier; the same images and seed give the same network.

    Args:
        images: Labelled images, of which at most MOST are used.
        classes: Number of classes.
        rng: Source of the random numbers.
        steps: Number of optimizer steps; 0: by the number of images.

    Raises:
        VitrailError: If the images have no labels.
    """
    if images.labels is None:
        raise VitrailError("a classifier needs labelled images; use data that has labels")
    order = rng.child("pictures").numpy().permutation(len(images))[:MOST]
    pixels, labels = images.pixels[order], torch.from_numpy(images.labels[order])
    steps = steps or min(max(EPOCHS * len(order) // BATCH, LEAST_STEPS), MOST_STEPS)
    draw = rng.child("training").torch()
    with one_thread(), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("network").seed())  # torch's layers and dropout use the global state
        net = build_classifier(pixels.shape[1], classes)
        optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
        for _ in range(steps):
            pick = torch.randint(len(labels), (BATCH,), generator=draw)
            loss = F.cross_entropy(
                net(random_shift(to_float(pixels[pick.numpy()]), draw)), labels[pick], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return net.eval()


@torch.no_grad()
def confidence(net: nn.Module, images: Images) -> tuple[np.ndarray, np.ndarray]:
    """Return for each labelled image whether a classifier predicts its label, and the softmax of that label."""
    parts = []
    for at in range(0, len(images), 256):
        y = torch.from_numpy(images.labels[at : at + 256]) if images.labels is not None else torch.empty(0)
        parts.append(judge(net, to_float(images.pixels[at : at + 256]), y))
    return _columns(parts)


def judge(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return for images in [-1, 1] with labels whether a classifier predicts the label, and the label's softmax."""
    logits = net(x).double()
    return (logits.argmax(1) == y).double(), logits.softmax(1).gather(1, y[:, None])[:, 0]


def _columns(parts: list[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    right, sure = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
    return right, sure


def accuracy(net: nn.Module, test: Images) -> Measure:
    """Return the share of test images that a run's classifier predicts correctly."""
    right, _ = confidence(net, test)
    return Measure("accuracy", *share(right), len(right), 0, "higher", "classifier", "the run's own classifier")


@dataclass(frozen=True)
class Oracle:
    """A classifier trained on real images, with its predictions on test images.

    Args:
        net: The network.
        right: 1 for each test image that it classifies correctly, otherwise 0.
        sure: Its softmax of the right label of each test image.
        trained_on: Number of training images.
    """

    net: nn.Sequential
    right: np.ndarray
    sure: np.ndarray
    trained_on: int

    @property
    def accuracy(self) -> float:
        """Accuracy on the test images."""
        return float(self.right.mean())

    @property
    def extractor(self) -> Extractor:
        """The features before its last layer."""
        return Extractor("oracle", 384, self.net[:-2], weights_digest(self.net))


def oracle_for(train: Images, test: Images, classes: int, seed: int = 0) -> Oracle:
    """Return an oracle trained on `train` (once per content, then from the cache) and tested on `test`."""
    rng = Rng((seed,)).child("oracle")
    key = f"{classes} {seed} {MOST} {EPOCHS} {LEAST_STEPS} {MOST_STEPS} {BATCH} {train.digest()}"
    weights = cached("oracle", key, lambda: dict(train_classifier(train, classes, rng).state_dict()))
    net = build_classifier(train.pixels.shape[1], classes)
    net.load_state_dict(weights)
    return Oracle(net.eval(), *confidence(net, test), min(len(train), MOST))


class Scores:
    """Score and oracle gap of generated images."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.judged: list[tuple[Tensor, Tensor]] = []

    def update(self, images: Tensor, labels: Tensor | None) -> None:
        """Add generated images in [-1, 1] and the requested labels."""
        if labels is not None:
            self.judged.append(judge(self.oracle.net, images, labels))

    def compute(self) -> list[Measure]:
        """Return the Score, and the mean softmax of the right label on real images minus that on generated ones."""
        (right, sure), o = _columns(self.judged), self.oracle
        own = f"trained on {o.trained_on:,} real images; accuracy {o.accuracy:.1%} on test images"
        rng = Rng((0,)).child("bootstrap", "oracle").numpy()
        gap = bootstrap([o.sure, sure], rng, lambda real, fake: real - fake)
        counts = len(o.right), len(right)
        return [
            Measure("score", *share(right), *counts, "higher", "oracle", f"real to synthetic; {own}"),
            Measure(
                "oracle-gap", *gap, *counts, "lower", "oracle", 'Fan & Liu\'s "EMD"; not a distance, may be negative'
            ),
        ]


class DownstreamClassifier:
    """Accuracy on real images of a classifier that was trained on generated ones only."""

    def __init__(self, train: Images, test: Images, classes: int) -> None:
        self.train, self.test, self.classes = train, test, classes
        self.pixels: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []

    def update(self, images: Tensor, labels: Tensor | None) -> None:
        """Add generated images in [-1, 1]; at most KEEP are stored, as bytes."""
        room = KEEP - sum(map(len, self.pixels))
        if room > 0 and labels is not None:
            self.pixels.append(((images[:room] + 1) * 127.5).round().byte().numpy())
            self.labels.append(labels[:room].numpy())

    def compute(self) -> list[Measure]:
        """Train on generated images and test on real ones; the note has the accuracy with as many real images."""
        rng = Rng((0,)).child("learner")
        fake = Images(np.concatenate(self.pixels), np.concatenate(self.labels))
        right, _ = confidence(train_classifier(fake, self.classes, rng), self.test)
        some = rng.child("real").numpy().permutation(len(self.train))[: len(fake)]
        ceiling = oracle_for(self.train.take(np.sort(some)), self.test, self.classes)
        note = f"the same classifier trained on {len(some):,} real images: {ceiling.accuracy:.1%}"
        return [Measure("synthetic-to-real", *share(right), len(right), len(fake), "higher", "classifier", note)]
