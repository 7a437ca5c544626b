"""Membership inference on a model: are images that clients trained on closer to its samples than others?

By the distance of an image to the nearest of many samples, in features that the model was not trained against
(Hilprecht et al. 2019; Chen et al. 2020); and, where a discriminator is sent, by its output for the image: an
overfitted discriminator rates its training images as more real than others (Hayes et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.auditing.attack import Figure, Finding, Target
from vitrail.data.dataset import Images
from vitrail.methods.base import Method
from vitrail.metrics.evaluation import requested_labels, round_to_8_bits, trained_against
from vitrail.metrics.extractors import Extractor, choose_feature_network, load_extractor
from vitrail.metrics.measure import Z, share
from vitrail.models.model_file import Generator
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector
from vitrail.utils.state import State, load

ABOUT = "images that clients trained on against held-out ones: which of them the model fits better"
MOST = 2000  # images of each kind
BATCH = 250
FPRS = (0.01, 0.001)  # false positive rates at which attacks are judged (Carlini et al. 2022)
Floats = NDArray[np.floating]


def attack(target: Target) -> Finding | None:
    """Attack a model; None before there is one."""
    if target.generator is None:
        return None
    members, others = random_subset(target, target.members), random_subset(target, target.plan.data.test)
    if min(len(members), len(others)) < 10:
        return None
    extractor = load_extractor(choose_feature_network(target.plan.data.name, trained_against(target.generator)))
    target.report_progress(f"membership: {target.samples:,} samples")
    sampled = features(extractor, samples(target.generator, target, "samples", target.plan.data.train))
    real = [features(extractor, to_float(images.pixels).split(BATCH)) for images in (members, others)]
    near = [-nearest(rows, sampled).numpy() for rows in real]
    found = figures(near[0], near[1], f"distance to the nearest of {len(sampled):,} samples")
    found += _by_discriminator(target, members, others)
    note = f"{len(members):,} training images, {len(others):,} held-out images; an attack that fails proves nothing"
    return Finding("membership", ABOUT, figures=found, note=note)


def random_subset(target: Target, images: Images) -> Images:
    """Return a random sample of at most MOST images."""
    order = target.rng.child("some", len(images)).numpy().permutation(len(images))[:MOST]
    return images.take(np.sort(order))


@torch.no_grad()
def features(extractor: Extractor, batches: Iterable[Tensor]) -> Tensor:
    """Return features of images in [-1, 1]."""
    return torch.cat([extractor.rows(x) for x in batches])


@torch.no_grad()
def samples(generator: Generator, target: Target, stream: str, data: Images) -> list[Tensor]:
    """Return batches of a model's samples, in the proportions of the labels of data."""
    seed, y = target.rng.child(stream).seed() % 2**31, None
    if generator.classes and data.labels is not None:
        y = requested_labels(data.labels, len(generator.classes), target.samples, seed)
    return [round_to_8_bits(x) for x, _ in generator.batches(target.samples, y, seed)]


def nearest(rows: Tensor, among: Tensor) -> Tensor:
    """Return each row's distance to the nearest of other rows, computed a batch at a time."""
    return torch.cat([torch.cdist(part, among).amin(1) for part in rows.split(BATCH)])


def _by_discriminator(target: Target, members: Images, others: Images) -> list[Figure]:
    """Return the figures of the server's copy of D, where clients send it."""
    method = target.plan.method
    if not method.nets() or "discriminator" not in method.reply_spec() or not target.plan.folder.checkpoint.exists():
        return []
    server: State = load(target.plan.folder.checkpoint)["federation"]["server"]
    if "discriminator" not in server:
        return []
    of_members, of_others = (discriminate(method, server, images) for images in (members, others))
    return figures(of_members, of_others, "output of the uploaded discriminator")


@torch.no_grad()
def discriminate(method: Method, server: State, images: Images) -> Floats:
    """Return the logit of the server's D for each image under its own label."""
    net, found = from_vector(method.nets()["discriminator"], server["discriminator"]).eval(), []
    labels = images.labels if method.task.classes else None
    for at in range(0, len(images), BATCH):
        y = None if labels is None else torch.from_numpy(labels[at : at + BATCH])
        found.append(net(to_float(images.pixels[at : at + BATCH]), y).double().numpy())
    return np.concatenate(found)


def auc(members: Floats, others: Floats) -> tuple[float, float, float]:
    """Return the probability that a member scores above a non-member, and its 95% interval (Hanley, McNeil 1982).

    Examples:
        >>> auc(np.array([2.0, 3.0]), np.array([1.0, 0.0]))[0]
        1.0
    """
    n, m = len(members), len(others)
    below = np.searchsorted(np.sort(others), members)
    upto = np.searchsorted(np.sort(others), members, side="right")
    a = float((below + upto).mean() / (2 * m))
    q1, q2 = a / (2 - a), 2 * a**2 / (1 + a)
    half = Z * math.sqrt(max(0.0, a * (1 - a) + (n - 1) * (q1 - a**2) + (m - 1) * (q2 - a**2)) / (n * m))
    return a, max(0.0, a - half), min(1.0, a + half)


def figures(members: Floats, others: Floats, of: str) -> list[Figure]:
    """Return AUC and TPR at low FPR; higher scores indicate membership."""
    found = [Figure(f"AUC, {of}", *auc(members, others), 0.5)]
    for fpr in FPRS:
        if len(others) * fpr < 1:
            continue  # too few others to show this rate
        threshold = np.quantile(others, 1 - fpr, method="higher")
        found.append(Figure(f"TPR at FPR {fpr:.1%}, {of}", *share((members > threshold).astype(float)), fpr))
    return found
