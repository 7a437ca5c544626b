"""Features of real images: cached by content, in bounded memory."""

import numpy as np
import torch

from tests.federation import digits
from vitrail.data.dataset import Images
from vitrail.metrics import extractors
from vitrail.metrics.extractors import Extractor, FeatureSet, features_of, load_extractor


def test_features_of_real_images_are_computed_once_per_content(monkeypatch):
    calls = []
    psi = load_extractor("vitrail-cifar")
    counted = Extractor(psi.name, psi.dim, lambda x: calls.append(len(x)) or psi.rows(x), psi.digest + "counted")
    images = digits().test.take(np.arange(40))
    first = features_of(counted, images)
    again = features_of(counted, Images(images.pixels.copy(), images.labels.copy()))
    assert calls == [40]
    assert again.gaussian.outer.equal(first.gaussian.outer)
    assert again.stored.equal(first.stored)
    features_of(counted, digits().test.take(np.arange(1, 41)))
    assert calls == [40, 40]


def test_memory_of_features_does_not_grow_with_the_number_of_images(monkeypatch):
    monkeypatch.setattr(extractors, "KEEP", 25)
    found = FeatureSet.empty(3)
    for _ in range(7):
        found.update(torch.rand(10, 3), torch.zeros(10))
    assert found.gaussian.n == 70
    assert len(found.stored) == len(torch.cat(found.labels)) == 25
