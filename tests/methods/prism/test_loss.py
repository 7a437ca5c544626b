"""PRISM's losses compared with slow plain versions."""

import numpy as np
import pytest
import torch

from tests.federation import digits, federate, quick, shares
from vitrail.nets.feature_moments import FeatureMoments, class_moments, exponential_average, moment_loss, to_float
from vitrail.nets.features import load_features
from vitrail.utils.state import load as load_state
from vitrail.wire.message import decode


def plain_moments(features, labels, c):
    """Return mean and variance of each feature over the images of class c, computed with plain Python."""
    rows = [f for f, y in zip(features.double().tolist(), labels.tolist(), strict=True) if y == c]
    mean = [sum(col) / len(rows) for col in zip(*rows, strict=True)]
    var = [sum((v - m) ** 2 for v in col) / len(rows) for col, m in zip(zip(*rows, strict=True), mean, strict=True)]
    return torch.tensor(mean), torch.tensor(var)


def test_real_and_fake_moments_equal_a_plain_computation():
    psi = load_features("vitrail-fashion")
    some = digits().train.take(np.arange(70))
    flat = psi.flat(to_float(some.pixels))
    y = torch.from_numpy(some.labels)
    real = FeatureMoments.of_images(psi, some.pixels, some.labels, 10, "cpu")
    fake = class_moments(psi(to_float(some.pixels)), y, 10)
    for c in range(10):
        mean, var = plain_moments(flat, y, c)
        for moments in (real, fake):
            assert torch.allclose(moments.first[c], mean, atol=1e-5)
            assert torch.allclose(moments.variance[c], var, atol=1e-4, rtol=1e-3)
    assert torch.allclose(real.share, torch.bincount(y, minlength=10) / 70)


def test_the_loss_is_equation_one():
    """|μ - μ'|² + |σ² - σ'²|², classes weighted by their share."""
    g = torch.Generator().manual_seed(0)
    a, b = torch.rand(40, 5, generator=g), torch.rand(40, 5, generator=g)
    y = torch.arange(40) % 2
    real, fake = (class_moments([x], y, 2) for x in (a, b))
    expected = 0.0
    for c in range(2):
        (m1, v1), (m2, v2) = plain_moments(a, y, c), plain_moments(b, y, c)
        expected += 0.5 * (((m1 - m2) ** 2).sum() + ((v1 - v2) ** 2).sum()).item()
    assert moment_loss(real, fake).item() == pytest.approx(expected, rel=1e-4)


def test_classes_without_real_images_add_nothing_to_the_loss():
    psi = load_features("vitrail-fashion")
    threes = digits().train.take(np.flatnonzero(digits().train.labels == 3)[:5])
    real = FeatureMoments.of_images(psi, threes.pixels, threes.labels, 10, "cpu")
    layers = [x.clone().requires_grad_() for x in psi(torch.rand(20, 1, 8, 8) * 2 - 1)]
    y = torch.arange(20) % 10
    moment_loss(real, class_moments(layers, y, 10)).backward()
    touched = torch.stack([x.grad.flatten(1).abs().sum(1) for x in layers]).sum(0) > 0
    assert touched.tolist() == (y == 3).tolist()


def test_smoothing_averages_values_but_not_the_gradient_of_the_new_batch():
    old, new = (FeatureMoments(torch.full((1, 2), v), torch.full((1, 2), v), torch.ones(1)) for v in (1.0, 3.0))
    new.first.requires_grad_()
    mixed = exponential_average(old, new, 0.25)
    assert mixed.first.tolist() == [[1.5, 1.5]]
    mixed.first.sum().backward()
    assert new.first.grad.tolist() == [[1.0, 1.0]]


def test_averages_of_classes_absent_from_a_batch_do_not_change():
    feature = torch.arange(6.0)[:, None]
    first, second = (class_moments([feature[i : i + 3]], torch.arange(i, i + 3), 6) for i in (0, 3))
    both = exponential_average(first, second, 0.1)
    assert both.first.flatten().tolist() == list(range(6))
    assert (both.share > 0).all()
    real = class_moments([feature + 1], torch.arange(6), 6)
    assert moment_loss(real, first).item() == pytest.approx(3 / 6)  # the three classes of the first batch
    assert moment_loss(real, both).item() == pytest.approx(1)


def test_batches_smaller_than_the_number_of_classes_train_all_classes(tmp_path, monkeypatch):
    from vitrail.methods.prism import loss as prism_loss

    seen = set()
    real = prism_loss.class_moments
    monkeypatch.setattr(prism_loss, "class_moments", lambda f, y, c: seen.update(y.tolist()) or real(f, y, c))
    federate(quick("prism", rounds=1, batch_size=4, local_steps=3), tmp_path, indices=shares(each=60))
    assert seen == set(range(10))


@pytest.mark.parametrize("average", ["adam", "none"])
def test_other_moment_averages_train(average, tmp_path):
    method = quick("prism", rounds=6, local_steps=8, batch_size=30, moment_averaging=average, ama_lr=0.05)
    _, results, _ = federate(method, tmp_path, indices=shares(each=60))
    assert all(len(o.replied) == 3 for o in results), results[0].excluded
    assert np.isfinite([o.metrics["loss"] for o in results]).all()


def test_gan_loss_trains_a_discriminator_that_stays_on_the_client(tmp_path):
    method = quick("prism", rounds=2, loss="gan")
    _, results, traffic = federate(method, tmp_path)
    assert all(len(o.replied) == 3 for o in results), results[0].excluded
    stored = load_state(tmp_path / "client-0.safetensors")["state"]["loss"]
    assert "net" in stored
    assert {p.name for _, raw in traffic.replies for p in decode(raw).parts} == {"mask", "metric.loss"}
