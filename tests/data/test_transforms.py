"""Image transforms, and clients as domains."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from vitrail.data import Images, load, parse_partition, partition
from vitrail.data.transforms import DOMAINS, TRANSFORMS, apply_transform, transformed_test_images
from vitrail.experiment import settings as config
from vitrail.experiment.plan import prepare
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng


def transformed(domain, pixels, seed=0):
    """Apply a transform to images."""
    return apply_transform(Images(np.asarray(pixels, np.uint8)), domain, Rng((seed,))).pixels


def square(size=32, low=12, high=20):
    """A white square on black."""
    x = np.zeros((1, 1, size, size), np.uint8)
    x[:, :, low:high, low:high] = 255
    return x


def photo(n=3, c=3, size=16):
    return np.random.default_rng(1).integers(0, 256, (n, c, size, size), np.uint8)


def draws(domain):
    """The random generator of a transform."""
    return Rng((0,)).child(domain).numpy()


def test_the_named_lists_consist_of_all_transforms():
    assert {name for names in DOMAINS.values() for name in names} == set(TRANSFORMS)
    assert [len(DOMAINS[name]) for name in ("mnist8", "cifar", "new3")] == [8, 10, 3]


@pytest.mark.parametrize("domain", TRANSFORMS)
@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (5, 1, 8, 8), (4, 3, 32, 32)])
def test_transforms_preserve_the_shape_and_depend_on_the_seed_only(domain, shape):
    x = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    y = transformed(domain, x)
    assert (y.shape, y.dtype) == (x.shape, np.uint8)
    assert np.array_equal(y, transformed(domain, x))
    assert len(x) == 0 or domain == "grayscale" or not np.array_equal(x, y)


def test_exact_transforms_equal_numpy():
    x = photo()
    assert np.array_equal(transformed("invert", x), 255 - x)
    assert np.array_equal(transformed("flip-horizontal", x), x[:, :, :, ::-1])
    assert np.array_equal(transformed("flip-vertical", x), x[:, :, ::-1])
    assert np.array_equal(transformed("solarize", x), np.where(x >= 192, 255 - x, x))
    luma = (x * np.array([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdims=True)
    assert np.abs(transformed("grayscale", x) - luma).max() <= 0.51


def test_zooming_changes_the_size_but_not_the_centre():
    area = square().sum() / 255
    for domain, factor in (("zoom-in", (32 / 22) ** 2), ("zoom-out", (18 / 32) ** 2)):
        y = transformed(domain, square())
        assert y.sum() / 255 == pytest.approx(area * factor, rel=0.05)
        assert np.array_equal(y, y[:, :, ::-1, ::-1])
    assert np.array_equal(transformed("zoom-in", np.pad(np.full((1, 1, 22, 22), 255), ((0, 0), (0, 0), (5, 5), (5, 5)))),
                          np.full((1, 1, 32, 32), 255))  # fmt: skip


def test_blur_is_a_gaussian_of_five_pixels():
    x = photo(1, 1)
    sigma = draws("blur").uniform(0.1, 2)
    plain = gaussian_filter(x[0, 0].astype(float), sigma, mode="mirror", radius=2)
    assert np.abs(transformed("blur", x)[0, 0] - plain).max() <= 0.51


def test_rotation_is_by_the_drawn_angle_of_at_most_40_degrees():
    x = np.zeros((200, 1, 33, 33), np.uint8)
    x[:, :, 16, 17:30] = 255  # a line from the centre to the right
    y = transformed("rotate", x)[:, 0] / 255.0
    at = np.arange(33) - 16.0
    angles = np.degrees(np.arctan2((y * at[:, None]).sum((1, 2)), (y * at).sum((1, 2))))
    drawn = draws("rotate").uniform(-40, 40, 200)
    assert np.abs(np.abs(angles) - np.abs(drawn)).max() < 1
    assert 35 < np.abs(angles).max() <= 41
    assert np.all(np.sign(angles) == np.sign(angles[0] * drawn[0]) * np.sign(drawn))


def test_brightness_is_a_factor_between_a_fifth_and_nine_fifths():
    y = transformed("brightness", np.full((500, 1, 8, 8), 100, np.uint8))
    factors = y[:, 0, 0, 0] / 100
    assert 0.2 <= factors.min() < 0.25
    assert 1.75 < factors.max() <= 1.8
    assert (y == y[:, :, :1, :1]).all()


def test_the_affine_transform_rotates_shrinks_and_translates():
    y = transformed("affine", np.repeat(square(), 100, 0))[:, 0] / 255.0
    shrunk = y.sum((1, 2)) / 64
    assert 0.45**2 < shrunk.min() < shrunk.max() < 0.8**2
    at = np.arange(32) - 15.5
    down, across = ((y * at[:, None]).sum((1, 2)) / y.sum((1, 2)), (y * at).sum((1, 2)) / y.sum((1, 2)))
    assert 2.5 < np.abs(across).max() <= 3.3
    assert 8 < np.abs(down).max() <= 9.7


def test_erasing_fills_a_small_rectangle_with_grey():
    y = transformed("erase", np.zeros((100, 1, 32, 32), np.uint8))
    share = (y == 128).mean((1, 2, 3))
    assert set(np.unique(y)) == {0, 128}
    assert 0.01 < share.min() < share.max() < 0.13
    for one in y[:, 0] > 0:
        rows, columns = np.flatnonzero(one.any(1)), np.flatnonzero(one.any(0))
        assert one.sum() == len(rows) * len(columns)


def test_perspective_moves_the_corners_to_the_drawn_positions():
    x = np.full((20, 1, 64, 64), 255, np.uint8)
    y = transformed("perspective", x)[:, 0] / 255.0
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (1 - draws("perspective").uniform(0, 0.4, (20, 4, 2)))
    a, b = corners, np.roll(corners, -1, 1)
    area = (a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]).sum(1) / 2 / 4  # of the quadrangle, by the shoelace formula
    assert np.allclose(y.mean((1, 2)), area, atol=0.01)


def test_colour_transforms_equal_the_formulas_of_the_paper():
    x = photo(2)
    for domain, again in (("colour-1", False), ("colour-2", True)):
        draw = draws(domain)
        plus, times = draw.uniform(0, 0.5, (2, 3, 1, 1)), draw.uniform(0, 1, (2, 3, 1, 1))
        plain = ((x / 255 - 0.5) / 0.5 + plus) * times
        plain = np.clip((plain - 0.5) / 0.5 if again else plain, -1, 1)
        assert np.abs(transformed(domain, x) - (plain + 1) / 2 * 255).max() <= 0.51


def test_clients_have_the_names_of_their_transforms_and_equal_sizes():
    data = load("digits", size=8)
    shares = partition("domains:mnist8", data, 8, np.random.default_rng(0))
    assert shares.names == DOMAINS["mnist8"]
    positions = np.concatenate(shares.indices)
    assert len(np.unique(positions)) == len(positions) == len(data.train)
    assert max(map(len, shares.indices)) - min(map(len, shares.indices)) <= 1


def test_each_client_can_have_a_share_of_the_labels():
    data = load("digits", size=8)
    shares = partition("domains:mnist8:0.5", data, 8, np.random.default_rng(0))
    labels = [frozenset(data.train.labels[own].tolist()) for own in shares.indices]
    assert {len(some) for some in labels} == {5}
    assert len(set(labels)) > 4


def test_a_run_has_one_client_per_transform_and_transforms_only_its_images():
    plain = load("digits", size=8)
    plan = prepare(config.resolve("padpaf", {"data": "digits", "size": 8, "partition": "domains:invert,flip-vertical"}))
    assert plan.clients == ["invert", "flip-vertical"]
    inverted, flipped = plan.partition.indices
    assert np.array_equal(plan.data.train.pixels[inverted], 255 - plain.train.pixels[inverted])
    assert np.array_equal(plan.data.train.pixels[flipped], plain.train.pixels[flipped][:, :, ::-1])
    assert np.array_equal(plan.data.test.pixels, plain.test.pixels)
    test = transformed_test_images(plan.data, "invert", seed=0)
    assert np.array_equal(test.pixels, 255 - plain.test.pixels)
    assert np.array_equal(test.labels, plain.test.labels)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("domains:", "needs an argument"),
        ("domains:mnist9", "did you mean mnist8"),
        ("domains:invert,blurr", "did you mean blur"),
        ("domains:invert,invert", "twice"),
        ("domains:mnist8:2", "at most 1"),
    ],
)
def test_unknown_domains_are_refused(spec, reason):
    with pytest.raises(VitrailError, match=reason):
        parse_partition(spec)


def test_another_number_of_clients_is_refused():
    with pytest.raises(VitrailError, match="use clients=8"):
        partition("domains:mnist8", load("digits", size=8), 3, np.random.default_rng(0))


def test_random_draws_do_not_depend_on_the_global_state():
    torch.manual_seed(1)
    a = transformed("rotate", photo())
    torch.manual_seed(2)
    assert np.array_equal(a, transformed("rotate", photo()))


def test_a_transform_may_return_an_array(monkeypatch):
    monkeypatch.setattr(TRANSFORMS, "_added", {"mirror": (lambda x, rng: x.numpy()[..., ::-1], "")})
    assert np.array_equal(transformed("mirror", photo()), photo()[..., ::-1])


@pytest.mark.parametrize(("returned", "given"), [(torch.zeros(3, 1, 16), r"shape \(3, 1, 16\)"), (None, "NoneType")])
def test_a_transform_that_returns_no_images_is_refused(returned, given, monkeypatch):
    monkeypatch.setattr(TRANSFORMS, "_added", {"wrong": (lambda x, rng: returned, "")})
    with pytest.raises(VitrailError, match=rf"transform wrong: it returned {given}; it must .* shape \(3, 3, 16, 16\)"):
        transformed("wrong", photo())
