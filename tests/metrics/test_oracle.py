"""Metrics by an oracle, and the classifiers that they train."""

import numpy as np
import pytest
import torch

from tests.federation import digits
from vitrail.data.dataset import Images
from vitrail.metrics import oracle as module
from vitrail.metrics.evaluation import split_validation
from vitrail.metrics.oracle import DownstreamClassifier, Scores, confidence, judge, oracle_for, train_classifier
from vitrail.nets.classifier import random_shift
from vitrail.nets.feature_moments import to_float
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


@pytest.fixture(scope="module")
def oracle():
    return oracle_for(digits().train, split_validation(digits().test)[1], 10)


def result(metric, labels, off=0):
    """Give a metric real training images as if they had been generated for these labels."""
    train = digits().train
    rows = [np.flatnonzero(train.labels == (c + off) % 10)[i % 100] for i, c in enumerate(labels.tolist())]
    with torch.no_grad():
        metric.update(to_float(train.pixels[rows]), labels)
    return {m.name: m for m in metric.compute()}


def test_an_oracle_classifies_digits_it_was_not_trained_on(oracle):
    assert oracle.accuracy > 0.95
    assert oracle.trained_on == len(digits().train)


def test_real_images_score_high_and_images_of_another_class_low(oracle):
    y = torch.arange(300) % 10
    right, wrong = (result(Scores(oracle), y, off) for off in (0, 1))
    assert right["score"].value > 0.95
    assert abs(right["oracle-gap"].value) < 0.1
    assert wrong["score"].value < 0.05
    assert wrong["oracle-gap"].value > 0.7


def test_score_and_gap_are_those_of_a_plain_loop(oracle):
    test = split_validation(digits().test)[1]
    x, y = to_float(test.pixels[:50]), torch.from_numpy(test.labels[:50]).roll(1)
    scores = Scores(oracle)
    with torch.no_grad():
        scores.update(x[:20], y[:20])
        scores.update(x[20:], y[20:])
        logits = [oracle.net(image[None])[0].double() for image in x]
        real = [oracle.net(to_float(test.pixels[i : i + 1]))[0].double() for i in range(len(test))]
    score, gap = scores.compute()
    assert score.value == pytest.approx(np.mean([int(out.argmax()) == c for out, c in zip(logits, y, strict=True)]))

    def soft(out, c):
        e = np.exp(out.numpy() - out.numpy().max())
        return e[c] / e.sum()

    expected = np.mean([soft(o, c) for o, c in zip(real, test.labels, strict=True)])
    expected -= np.mean([soft(o, int(c)) for o, c in zip(logits, y, strict=True)])
    assert gap.value == pytest.approx(expected, abs=1e-6)
    assert score.low <= score.value <= score.high
    assert (score.n_fake, score.n_real) == (50, len(test))


def test_an_oracle_is_trained_once_per_content(oracle, monkeypatch):
    monkeypatch.setattr(module, "train_classifier", lambda *_: pytest.fail("trained again"))
    again = oracle_for(digits().train.take(np.arange(len(digits().train))), split_validation(digits().test)[1], 10)
    assert all(a.equal(b) for a, b in zip(oracle.net.parameters(), again.net.parameters(), strict=True))


def test_training_follows_the_seed_and_keeps_torchs_random_state():
    few = digits().train.take(np.arange(100))
    before = torch.get_rng_state()
    a, b = (train_classifier(few, 10, Rng((0,)), steps=5) for _ in range(2))
    assert all(p.equal(q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert torch.get_rng_state().equal(before)


def test_a_downstream_classifier_needs_images_of_the_right_class(monkeypatch):
    monkeypatch.setattr(module, "LEAST_STEPS", 160)  # ten epochs; 600 steps take half a minute
    test = split_validation(digits().test)[1]
    y = torch.arange(1000) % 10
    right = result(DownstreamClassifier(digits().train, test, 10), y)["synthetic-to-real"]
    wrong = result(DownstreamClassifier(digits().train, test, 10), y, off=1)["synthetic-to-real"]
    assert right.value > 0.9
    assert wrong.value < 0.1
    assert (right.n_real, right.n_fake) == (len(test), 1000)
    assert "trained on 1,000 real images: 9" in right.note  # the same count, and its accuracy is above 90%


def test_a_downstream_classifier_stores_a_bounded_number_of_images(monkeypatch):
    monkeypatch.setattr(module, "KEEP", 30)
    metric = DownstreamClassifier(digits().train, digits().test, 10)
    for _ in range(4):
        metric.update(torch.zeros(20, 1, 8, 8), torch.zeros(20, dtype=torch.int64))
    assert sum(map(len, metric.pixels)) == 30


def test_a_classifier_refuses_images_without_labels():
    with pytest.raises(VitrailError, match="labelled"):
        train_classifier(Images(digits().test.pixels), 10, Rng((0,)))


def test_confidence_does_not_depend_on_the_batches(oracle):
    test = digits().test
    right, sure = confidence(oracle.net, test)
    with torch.no_grad():
        r, s = judge(oracle.net, to_float(test.pixels), torch.from_numpy(test.labels))
    assert right.tolist() == r.tolist()
    np.testing.assert_allclose(sure, s.numpy(), atol=1e-6)


def test_shifts_move_images_by_integer_pixels():
    x = torch.rand(20, 1, 8, 8)
    moved = random_shift(x, torch.Generator().manual_seed(0))
    for before, after in zip(x, moved, strict=True):
        inner = before[0, 2:6, 2:6]
        found = [(dy, dx) for dy in range(5) for dx in range(5) if after[0, dy : dy + 4, dx : dx + 4].equal(inner)]
        assert found
