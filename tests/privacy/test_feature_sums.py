"""Sums of features: what one image can change, and that the division among clients changes nothing."""

import math

import numpy as np
import pytest
import torch

from tests.federation import digits
from vitrail.methods.released_sums import load_public_features
from vitrail.nets.feature_moments import to_float
from vitrail.privacy.feature_sum_messages import pack, unpack
from vitrail.privacy.feature_sums import (
    COUNT_WEIGHT,
    Summary,
    class_sums,
    estimate,
    noise_share,
    noised,
    sensitivity,
)
from vitrail.privacy.noise import seeded
from vitrail.utils.rng import Rng


def summary(pool=4, layers="all", shape=(1, 8, 8)):
    psi, _ = load_public_features("vitrail-fashion", layers, "cpu")
    return Summary(psi, pool, shape)


def extreme_images():
    """Images that might exceed a bound: black, white, single pixels, noise, stripes, real digits."""
    rng = np.random.default_rng(0)
    single = np.zeros((8, 1, 8, 8), np.uint8)
    single[np.arange(8), 0, np.arange(8), 3] = 255
    noise = rng.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8)
    coarse = np.where(rng.random((30, 1, 8, 8)) < 0.5, 0, 255).astype(np.uint8)
    stripes = np.tile(np.array([0, 255], np.uint8), (2, 1, 8, 4))
    plain = np.stack([np.full((1, 8, 8), v, np.uint8) for v in (0, 255, 128)])
    return np.concatenate([plain, single, noise, coarse, stripes, digits().train.pixels[:40]])


@pytest.mark.parametrize("pool", [1, 2, 4, 8])
@pytest.mark.parametrize("kinds", [1, 10])
def test_no_replacement_of_an_image_exceeds_the_sensitivity(pool, kinds):
    s = summary(pool)
    rows = s.rows(extreme_images()).astype(np.float64)
    farthest = 0.0
    for a in range(len(rows)):
        distance = ((rows - rows[a]) ** 2).sum(1)  # replaced by another of its class
        farthest = max(farthest, distance.max())
        if kinds > 1:  # replaced by one of another class: one row loses all, another gains all
            farthest = max(farthest, ((rows**2).sum(1) + (rows[a] ** 2).sum()).max())
    assert math.sqrt(farthest) <= sensitivity(kinds) * s.grid * (1 + 1e-12)
    if kinds > 1:  # and the bound is not loose: two classes come within a few per cent of it
        assert math.sqrt(farthest) > 0.9 * sensitivity(kinds) * s.grid


@pytest.mark.parametrize("pool", [1, 4])
def test_a_vector_that_is_rounded_up_everywhere_stays_within_the_norm(pool):
    """The worst case of rounding: every coordinate is just above a half."""
    s = summary(pool)
    for k in (1, 2, s.d // 3, s.d):
        unit = np.zeros(s.d)
        unit[:k] = 1 / math.sqrt(k)
        up = np.floor(unit * s.scale) + (unit > 0)  # always rounded up
        assert np.linalg.norm(np.rint(unit * s.scale)) <= s.grid
        assert np.linalg.norm(np.minimum(up, unit * s.scale + 0.5)) <= s.grid + 1e-9


def test_rows_equal_a_direct_computation():
    s, pixels = summary(2), digits().train.pixels[:5]
    psi, _ = load_public_features("vitrail-fashion", "all", "cpu")
    for row, x in zip(s.rows(pixels), to_float(pixels), strict=True):
        layers = [torch.nn.functional.adaptive_avg_pool2d(y, min(2, y.shape[-1])) for y in psi(x[None])]
        f = torch.cat([y.flatten() for y in layers]).double()
        first, second = f / f.norm(), f**2 / (f**2).norm()
        assert row[0] == round(COUNT_WEIGHT * s.grid)
        assert np.abs(row[1 : 1 + s.d] - (first * s.scale).numpy()).max() <= 0.501
        assert np.abs(row[1 + s.d :] - (second * s.scale).numpy()).max() <= 0.501


def test_the_row_of_an_image_does_not_depend_on_its_batch():
    s, pixels = summary(8), digits().train.pixels[:150]
    alone = np.concatenate([s.rows(one) for one in np.split(pixels, len(pixels))])
    assert (alone == s.rows(pixels)).all()


@pytest.mark.parametrize("division", ["iid", "by class", "one client has all"])
def test_any_division_of_images_gives_bitwise_equal_sums(division):
    s, train = summary(4), digits().train
    pixels, labels = train.pixels[:192], train.labels[:192]
    order = np.arange(192) if division == "iid" else np.argsort(labels, kind="stable")
    cuts = [192] if division == "one client has all" else [20, 90, 91, 150]
    rows = s.rows(pixels)
    whole = np.stack([rows[labels == c].sum(0) for c in range(10)])
    parts = [np.stack([rows[i][labels[i] == c].sum(0) for c in range(10)]) for i in np.split(order, cuts)]
    assert (sum(parts) == whole).all()
    direct = sum(class_sums(s, pixels[i], labels[i], 10) for i in np.split(order, cuts))
    assert (direct == whole).all()  # features in other batches, one of them of a single image


def test_noise_has_the_requested_standard_deviation():
    sums = np.arange(40_000).reshape(10, -1)
    for noisy in (noised(sums, 70.0, seeded(Rng((1,)))), noise_share(sums, 70.0, seeded(Rng((1,))), 2**27)):
        error = (noisy - sums).ravel()
        assert np.std(error) == pytest.approx(70.0, rel=0.02)
        assert abs(error.mean()) < 1.5


def test_without_noise_moments_are_the_means_of_each_class():
    s, train = summary(2), digits().train
    pixels, labels = train.pixels[:200], train.labels[:200]
    found = estimate(s, class_sums(s, pixels, labels, 10).astype(np.float64), 0.0)
    with torch.no_grad():
        want = s.moments(to_float(pixels), torch.from_numpy(labels), 10)
    assert torch.allclose(found.first, want.first, atol=1e-4)
    assert torch.allclose(found.second, want.second, atol=1e-4)
    assert torch.allclose(found.share, want.share)


def test_a_class_below_the_noise_counts_as_absent():
    s = summary(1)
    sums = np.zeros((3, 1 + 2 * s.d))
    sums[:, 0] = np.array([500, 3, -20]) * s.count
    share = estimate(s, sums, 10.0 * s.count).share
    assert share.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("sigma", [0.0, 3.0, 5000.0])
def test_decoded_sums_differ_by_a_fraction_of_the_noise(sigma):
    sums = np.random.default_rng(0).normal(0, 30_000, (10, 301)).astype(np.int64)
    back = unpack(pack(sums, sigma), sums.size)
    assert np.abs(back - sums.ravel()).max() <= max(sigma / 8, np.abs(sums).max() / 32767) / 2 + 1
    if not sigma:
        assert (back == sums.ravel()).all()


def test_noised_sums_are_encoded_in_few_bits():
    s = summary(4)
    sums = np.zeros((10, 1 + 2 * s.d), np.int64)
    sent = pack(noised(sums, 1.03 * s.grid, seeded(Rng((2,)))), 1.03 * s.grid)
    assert 8 * len(sent) / sums.size < 5.3  # log2(8·√(2πe)) = 5.05 is the entropy of the noise in these steps
