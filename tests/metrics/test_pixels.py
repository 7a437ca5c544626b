"""SSIM and NMSE equal those of plain loops."""

import numpy as np
import pytest
import torch

from tests.federation import digits
from vitrail.metrics.pixels import Pairs, PairValues, nmse, ssim
from vitrail.nets.feature_moments import to_float
from vitrail.utils.errors import VitrailError


def plain_ssim(a, b):
    """Wang et al.'s index, data range 1, over a Gaussian window at every pixel, edges mirrored."""
    at = np.arange(-5, 6)
    g = np.exp(-(at**2) / (2 * 1.5**2))
    w = np.outer(g, g) / np.outer(g, g).sum()
    found = []
    wide = [np.pad(s, 5, mode="reflect") for s in (a, b)]
    for y in range(a.shape[0]):
        for x in range(a.shape[1]):
            p, q = (s[y : y + 11, x : x + 11] for s in wide)
            mp, mq = (w * p).sum(), (w * q).sum()
            vp, vq, c = (w * p * p).sum() - mp**2, (w * q * q).sum() - mq**2, (w * p * q).sum() - mp * mq
            top = (2 * mp * mq + 1e-4) * (2 * c + 9e-4)
            found.append(top / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return np.mean(found)


@pytest.mark.parametrize("side", [32, 8])
def test_ssim_is_the_plain_formula_over_windows(side):
    a, b = torch.rand(2, 3, 1, side, side, generator=torch.Generator().manual_seed(0))
    b = 0.5 * a + 0.5 * b
    ours = ssim(a * 2 - 1, b * 2 - 1)
    for i in range(3):
        expected = plain_ssim(a[i, 0].double().numpy(), b[i, 0].double().numpy())
        assert float(ours[i]) == pytest.approx(expected, abs=2e-4)


def test_equal_images_have_ssim_one_and_no_error():
    x = to_float(digits().test.pixels[:5])
    assert ssim(x, x).tolist() == pytest.approx([1.0] * 5)
    assert nmse(x, x)[0].tolist() == [0.0] * 5


def test_nmse_is_the_squared_error_over_the_squares_of_the_reference():
    a, b = (to_float(digits().test.pixels[s]) for s in (slice(0, 4), slice(4, 8)))
    for i in range(4):
        p, q = ((x[i].double().numpy() + 1) / 2 for x in (a, b))
        error, energy = nmse(a, b)
        assert (float(error[i]), float(energy[i])) == pytest.approx((((p - q) ** 2).sum(), (q**2).sum()))


def test_a_black_reference_does_not_dominate_the_error_of_a_set():
    a = to_float(digits().test.pixels[:20])
    compared = PairValues()
    compared.add(a, torch.cat([a[:19], torch.full((1, 1, 8, 8), -1.0)]))
    last = float(((a[19].double() + 1) / 2).square().sum())
    rest = float(((a[:19].double() + 1) / 2).square().sum())
    assert compared.bounded(np.random.default_rng(0))[1][0] == pytest.approx(last / rest)


def test_images_of_different_sizes_are_refused():
    with pytest.raises(VitrailError, match="cannot be paired"):
        ssim(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 16, 16))


def test_pairs_are_of_one_class_and_real_images_score_like_real_pairs():
    test = digits().test
    pairs = Pairs(test, 10)
    seen = []
    pairs.found.add = lambda a, b: seen.append((a, b))
    pairs.update(to_float(test.pixels[:40]), torch.from_numpy(test.labels[:40]))
    (_, partners), rows = seen[0], to_float(test.pixels)
    for label, partner in zip(test.labels[:40], partners, strict=True):
        same_class = rows[torch.from_numpy(test.labels == label)]
        assert (same_class == partner).flatten(1).all(1).any()

    train = digits().train
    real = Pairs(test, 10)
    real.update(to_float(train.pixels[:400]), torch.from_numpy(train.labels[:400]))
    for m in real.compute():
        two = float(m.note.rpartition(": ")[2])
        assert m.value == pytest.approx(two, rel=0.1)
