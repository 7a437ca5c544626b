"""Membership inference on what comes out: are pictures that clients trained on nearer to what a model makes?

The distance of a picture to the nearest of many samples, in features that the model was not trained against (Hilprecht
et al. 2019; Chen et al. 2020), and, where a discriminator travels, what it says of the picture: a discriminator that
has learned its pictures by heart takes them for more real than others (Hayes et al. 2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.auditing.attack import Figure, Finding, Target
from vitrail.auditing.rates import figures
from vitrail.data.dataset import Images
from vitrail.metrics.evaluation import as_stored, requested_labels, trained_against
from vitrail.metrics.extractors import Extractor, choose_ruler, own
from vitrail.nets.feature_moments import to_float
from vitrail.utils.state import State, load

ABOUT = "pictures that clients trained on against held-out ones: which look more familiar to the model"
MOST = 2000  # pictures of a kind
BATCH = 250
Floats = NDArray[np.float64]


def attack(target: Target) -> Finding | None:
    """None before there is a model."""
    if target.generator is None:
        return None
    members, others = some(target, target.members), some(target, target.plan.data.test)
    if min(len(members), len(others)) < 10:
        return None
    extractor = own(choose_ruler(target.plan.data.name, trained_against(target.generator)))
    target.tell(f"membership: {target.samples:,} samples")
    made = samples(target, extractor)
    near = [-nearest(features(extractor, p), made).numpy() for p in (members, others)]
    found = figures(near[0], near[1], f"distance to the nearest of {len(made):,} samples")
    found += _by_discriminator(target, members, others)
    note = f"{len(members):,} pictures that clients hold, {len(others):,} held out; an attack that fails proves nothing"
    return Finding("membership", ABOUT, figures=found, note=note)


def some(target: Target, pictures: Images) -> Images:
    """A fair sample of pictures."""
    order = target.rng.child("some", len(pictures)).numpy().permutation(len(pictures))[:MOST]
    return pictures.take(np.sort(order))


@torch.no_grad()
def features(extractor: Extractor, pictures: Images) -> Tensor:
    """Features of real pictures."""
    cuts = range(0, len(pictures), BATCH)
    return torch.cat([extractor.rows(to_float(pictures.pixels[at : at + BATCH])) for at in cuts])


@torch.no_grad()
def samples(target: Target, extractor: Extractor) -> Tensor:
    """Features of what the model makes, in the proportions of the data's labels."""
    generator, labels = target.generator, target.plan.data.train.labels
    assert generator is not None  # noqa: S101
    seed = target.rng.child("samples").seed() % 2**31
    y = None
    if generator.classes and labels is not None:
        y = requested_labels(labels, len(generator.classes), target.samples, seed)
    return torch.cat([extractor.rows(as_stored(x)) for x, _ in generator.batches(target.samples, y, seed)])


def nearest(rows: Tensor, among: Tensor) -> Tensor:
    """Each row's distance to the nearest of others, a batch at a time."""
    return torch.cat([torch.cdist(part, among).amin(1) for part in rows.split(BATCH)])


def _by_discriminator(target: Target, members: Images, others: Images) -> list[Figure]:
    """What the server's own copy of D says, where the method sends it there."""
    method: Any = target.plan.method
    if "discriminator" not in method.reply_spec() or not target.plan.folder.checkpoint.exists():
        return []
    from vitrail.nets.flat import from_vector

    server: State = load(target.plan.folder.checkpoint)["federation"]["server"]
    if "discriminator" not in server:
        return []
    net = from_vector(method.nets()["discriminator"], server["discriminator"]).eval()
    says = [discriminate(net, p, method.task.classes) for p in (members, others)]
    return figures(says[0], says[1], "what the uploaded discriminator says")


@torch.no_grad()
def discriminate(net: torch.nn.Module, pictures: Images, classes: int) -> Floats:
    """D's logit of each picture under its own label."""
    found = []
    for at in range(0, len(pictures), BATCH):
        y = None if pictures.labels is None or not classes else torch.from_numpy(pictures.labels[at : at + BATCH])
        found.append(net(to_float(pictures.pixels[at : at + BATCH]), y).double().numpy())
    return np.concatenate(found)
