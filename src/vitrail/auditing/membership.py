"""Membership inference on a model: are images that clients trained on closer to its samples than others?

By the distance of an image to the nearest of many samples, in features that the model was not trained against
(Hilprecht et al. 2019; Chen et al. 2020); and, where a discriminator is sent, by its output for the image: an
overfitted discriminator rates its training images as more real than others (Hayes et al. 2019).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.auditing.attack import Figure, Finding, Target
from vitrail.auditing.protocols import HasNetworks
from vitrail.auditing.rates import figures
from vitrail.data.dataset import Images
from vitrail.metrics.evaluation import requested_labels, round_to_8_bits, trained_against
from vitrail.metrics.extractors import Extractor, choose_ruler, load_extractor
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector
from vitrail.utils.state import State, load

ABOUT = "images that clients trained on against held-out ones: which of them the model fits better"
MOST = 2000  # images of each kind
BATCH = 250
Floats = NDArray[np.float64]


def attack(target: Target) -> Finding | None:
    """Attack a model; None before there is one."""
    if target.generator is None:
        return None
    members, others = random_subset(target, target.members), random_subset(target, target.plan.data.test)
    if min(len(members), len(others)) < 10:
        return None
    extractor = load_extractor(choose_ruler(target.plan.data.name, trained_against(target.generator)))
    target.tell(f"membership: {target.samples:,} samples")
    sampled = samples(target, extractor)
    near = [-nearest(features(extractor, p), sampled).numpy() for p in (members, others)]
    found = figures(near[0], near[1], f"distance to the nearest of {len(sampled):,} samples")
    found += _by_discriminator(target, members, others)
    note = f"{len(members):,} training images, {len(others):,} held-out images; an attack that fails proves nothing"
    return Finding("membership", ABOUT, figures=found, note=note)


def random_subset(target: Target, images: Images) -> Images:
    """Return a random sample of at most MOST images."""
    order = target.rng.child("some", len(images)).numpy().permutation(len(images))[:MOST]
    return images.take(np.sort(order))


@torch.no_grad()
def features(extractor: Extractor, images: Images) -> Tensor:
    """Return features of real images."""
    cuts = range(0, len(images), BATCH)
    return torch.cat([extractor.rows(to_float(images.pixels[at : at + BATCH])) for at in cuts])


@torch.no_grad()
def samples(target: Target, extractor: Extractor) -> Tensor:
    """Return features of the model's samples, in the proportions of the data's labels."""
    generator, labels = target.generator, target.plan.data.train.labels
    assert generator is not None  # noqa: S101
    seed = target.rng.child("samples").seed() % 2**31
    y = None
    if generator.classes and labels is not None:
        y = requested_labels(labels, len(generator.classes), target.samples, seed)
    return torch.cat([extractor.rows(round_to_8_bits(x)) for x, _ in generator.batches(target.samples, y, seed)])


def nearest(rows: Tensor, among: Tensor) -> Tensor:
    """Return each row's distance to the nearest of other rows, computed a batch at a time."""
    return torch.cat([torch.cdist(part, among).amin(1) for part in rows.split(BATCH)])


def _by_discriminator(target: Target, members: Images, others: Images) -> list[Figure]:
    """Return the figures of the server's copy of D, where clients send it."""
    method = target.plan.method
    if not isinstance(method, HasNetworks) or "discriminator" not in method.reply_spec():
        return []
    if not target.plan.folder.checkpoint.exists():
        return []
    server: State = load(target.plan.folder.checkpoint)["federation"]["server"]
    if "discriminator" not in server:
        return []
    net = from_vector(method.nets()["discriminator"], server["discriminator"]).eval()
    logits = [discriminate(net, p, target.plan.method.task.classes) for p in (members, others)]
    return figures(logits[0], logits[1], "output of the uploaded discriminator")


@torch.no_grad()
def discriminate(net: torch.nn.Module, images: Images, classes: int) -> Floats:
    """Return D's logit of each image under its own label."""
    found = []
    for at in range(0, len(images), BATCH):
        y = None if images.labels is None or not classes else torch.from_numpy(images.labels[at : at + BATCH])
        found.append(net(to_float(images.pixels[at : at + BATCH]), y).double().numpy())
    return np.concatenate(found)
