"""Distances between sets of features equal those of other libraries and of plain loops."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torchmetrics.image.fid import FrechetInceptionDistance

from vitrail.metrics.frechet import Gaussian, few_samples, frechet, frechet_without, kernel_distance
from vitrail.metrics.measure import GROUPS


def features(n, d, seed, shift=0.0, scale=1.0):
    draw = np.random.default_rng(seed)
    mix = np.random.default_rng(99).normal(size=(d, d)) / np.sqrt(d)
    return torch.from_numpy(draw.normal(size=(n, d)) @ mix * scale + shift).float()


def test_mean_and_covariance_are_numpys_for_any_batches():
    x = features(101, 6, 0, shift=3.0)
    whole, parts = Gaussian.of(x), Gaussian.empty(6)
    for batch in x.split(17):
        parts.update(batch)
    assert parts.n == 101
    np.testing.assert_allclose(parts.mean, x.double().mean(0), rtol=1e-12)
    np.testing.assert_allclose(parts.covariance, np.cov(x.double().numpy().T), rtol=1e-9)
    np.testing.assert_allclose(parts.covariance, whole.covariance, rtol=1e-9)


@pytest.mark.parametrize(("n", "d"), [(500, 8), (60, 40), (20, 40)])  # the last has singular covariances
def test_the_frechet_distance_is_that_of_scipys_matrix_root(n, d):
    a, b = features(n, d, 1), features(n, d, 2, shift=0.3, scale=1.5)
    sigma = [np.cov(x.double().numpy().T) for x in (a, b)]
    root = scipy.linalg.sqrtm(sigma[0] @ sigma[1]).real
    mean = a.double().mean(0) - b.double().mean(0)
    expected = float(mean @ mean) + np.trace(sigma[0] + sigma[1] - 2 * root)
    assert frechet(Gaussian.of(a), Gaussian.of(b)) == pytest.approx(expected, rel=1e-4, abs=1e-5)


class Identity(torch.nn.Module):
    num_features = 16

    def forward(self, x):
        return x


def test_the_frechet_distance_is_torchmetrics():
    a, b = features(300, 16, 3), features(200, 16, 4, shift=0.5)
    theirs = FrechetInceptionDistance(feature=Identity())
    theirs.update(a, real=True)
    theirs.update(b, real=False)
    assert frechet(Gaussian.of(a), Gaussian.of(b)) == pytest.approx(float(theirs.compute()), rel=1e-5)


def test_the_frechet_distance_of_known_gaussians_has_its_closed_form():
    a = Gaussian(2, torch.zeros(2).double(), torch.zeros(2, 2).double())
    b = Gaussian(2, torch.zeros(2).double(), torch.zeros(2, 2).double())
    a.total, b.total = torch.tensor([0.0, 0.0]).double(), torch.tensor([6.0, 8.0]).double()  # means (0, 0), (3, 4)
    a.outer = torch.diag(torch.tensor([4.0, 9.0])).double()  # covariances diag(4, 9) and the same times 4
    b.outer = torch.diag(torch.tensor([16.0, 36.0])).double() + 2 * torch.outer(b.mean, b.mean)
    assert frechet(a, b) == pytest.approx(25 + (4 - 2) ** 2 + (6 - 3) ** 2)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)


def test_the_kernel_distance_is_the_plain_double_sum():
    x, y = features(12, 5, 5).double().numpy(), features(12, 5, 6, shift=0.4).double().numpy()

    def k(u, v):
        return (u @ v / 5 + 1) ** 3

    def within(s):
        return np.mean([k(s[i], s[j]) for i in range(12) for j in range(12) if i != j])

    cross = np.mean([k(u, v) for u in x for v in y])
    value, without = kernel_distance(torch.from_numpy(x), torch.from_numpy(y))
    assert value == pytest.approx(within(x) + within(y) - 2 * cross, rel=1e-9)

    fewer = np.delete(x, [0, 10], axis=0)  # the first group of the real set
    half = np.mean([k(fewer[i], fewer[j]) for i in range(10) for j in range(10) if i != j])
    expected = half + within(y) - 2 * np.mean([k(u, v) for u in fewer for v in y])
    assert without[0][0] == pytest.approx(expected, rel=1e-9)
    assert [len(w) for w in without] == [GROUPS, GROUPS]


def test_the_kernel_distance_of_equal_distributions_is_near_zero():
    values = [kernel_distance(features(60, 4, s), features(60, 4, s + 100))[0] for s in range(20)]
    assert min(values) < 0 < max(values)
    assert abs(np.mean(values)) < 0.1


def test_the_distance_without_a_group_is_that_of_the_other_rows():
    a, b = features(45, 4, 1), features(50, 4, 2)
    without = frechet_without(a, Gaussian.of(b))
    rest = torch.stack([row for i, row in enumerate(a) if i % GROUPS != 3])
    assert without[3] == pytest.approx(frechet(Gaussian.of(rest), Gaussian.of(b)), rel=1e-8)


def test_too_few_samples_for_the_dimension_are_marked():
    assert "3,839 samples for 384" in few_samples(384, 5000, 3839)
    assert few_samples(384, 3840, 3840) == ""
