"""Classifiers that are trained on generated images and tested on real ones."""

import numpy as np
import pytest
import torch

from tests.federation import digits
from vitrail.data.dataset import Images
from vitrail.metrics.downstream import CLASSIFIERS, measures, train_on_generated
from vitrail.utils.errors import VitrailError

STEPS = {"cnn": 60, "resnet": 60}


def halves():
    train = digits().train
    return train.take(np.arange(0, len(train), 2)), train.take(np.arange(1, len(train), 2))


def test_real_images_as_generated_ones_give_a_good_classifier():
    some, others = halves()
    found = measures(train_on_generated(some, others, 10, STEPS), len(some))
    assert next(m.name for m in found) == "accuracy"
    assert {m.name for m in found[1:]} == {
        "accuracy cnn",
        "accuracy resnet",
    }
    assert found[0].value > 0.9
    assert found[0].n_real == len(others)


def test_wrong_labels_give_a_classifier_that_is_wrong():
    some, others = halves()
    false = Images(some.pixels, (some.labels + 1) % 10)
    (trained,) = train_on_generated(false, others, 10, {"cnn": 60})
    assert trained.score > 0.8
    assert trained.right.mean() < 0.1


def test_the_classifier_is_chosen_without_real_images():
    some, others = halves()
    relabelled = Images(others.pixels, (others.labels + 1) % 10)
    a, b = (train_on_generated(some, test, 10, STEPS) for test in (others, relabelled))
    assert [(t.name, t.score) for t in a] == [(t.name, t.score) for t in b]
    assert a[0].score == max(t.score for t in a)


def test_the_same_seed_gives_the_same_predictions_on_any_number_of_threads():
    some, others = halves()
    found, threads = [], torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            found.append([t.right.tolist() for t in train_on_generated(some, others, 10, {"cnn": 10, "resnet": 10})])
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_too_few_images_and_images_without_labels_are_refused():
    some, others = halves()
    with pytest.raises(VitrailError, match="at least 100 are needed"):
        train_on_generated(some.take(np.arange(99)), others, 10, STEPS)
    with pytest.raises(VitrailError, match="needs labelled images"):
        train_on_generated(Images(some.pixels), others, 10, STEPS)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)])
def test_every_classifier_takes_grey_and_colour_images(name, shape):
    net = CLASSIFIERS[name](shape[0], 10)
    assert net(torch.zeros(2, *shape)).shape == (2, 10)
