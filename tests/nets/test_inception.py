"""The FID network: that it is the one of the reference, what it takes, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitrail.data import load
from vitrail.nets import inception
from vitrail.nets.feature_moments import to_float
from vitrail.nets.inception import Block, Inception, Unit, fold, load_inception
from vitrail.utils.errors import Malformed, VitrailError

OFFICIAL = "pt_inception-2015-12-05-6726825d.pth"
FIRST = "Conv2d_1a_3x3"
AVERAGE = ["5b", "5c", "5d", "6b", "6c", "6d", "6e", "7b"]
needs_assets = pytest.mark.skipif("VITRAIL_ASSETS" not in os.environ, reason="VITRAIL_ASSETS is not set")


@pytest.fixture(scope="module")
def net() -> Inception:
    return load_inception()


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(Path(os.environ["VITRAIL_ASSETS"]) / "weights" / inception.SMALLER)
    return found


@pytest.fixture(scope="module")
def untrained() -> Inception:
    torch.manual_seed(1)
    return Inception()


@pytest.fixture(scope="module")
def cifar() -> Tensor:
    """The first pictures of CIFAR-10's test set."""
    return to_float(load("cifar10:1").test.pixels[:9])


def pictures(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


@needs_assets
def test_features_of_real_pictures_are_those_that_gave_the_reference_fid(net: Inception, cifar: Tensor) -> None:
    """Recorded when benchmarks/fid.py gave the reference's figure."""
    got = net(cifar[:4])
    torch.testing.assert_close(
        got.mean(dim=1), torch.tensor([0.386723, 0.325873, 0.272169, 0.425585]), rtol=1e-3, atol=0
    )
    torch.testing.assert_close(
        got[:, [0, 500, 1000, 2047]],
        torch.tensor(
            [
                [0.054935, 0.249886, 0.746176, 0.953669],
                [0.000000, 0.147801, 0.550432, 1.040334],
                [0.006189, 0.061082, 0.285566, 0.287541],
                [0.075913, 0.522031, 0.061551, 0.736051],
            ]
        ),
        rtol=1e-3,
        atol=1e-5,
    )


@needs_assets
def test_features_are_2048_and_never_negative_and_any_batches_give_the_same(net: Inception, cifar: Tensor) -> None:
    got = net(cifar)
    assert got.shape == (9, net.num_features) == (9, 2048)
    assert got.min() >= 0
    for n in (4, 9):  # 9 is more than are taken at once
        parts = torch.cat([net(part) for part in cifar[:n].split(3)])
        torch.testing.assert_close(parts, got[:n], rtol=1e-4, atol=1e-5)
    assert net(cifar[:0]).shape == (0, 2048)


@needs_assets
def test_grey_is_colour_with_equal_channels(net: Inception, cifar: Tensor) -> None:
    grey = cifar[:2].mean(dim=1, keepdim=True)
    torch.testing.assert_close(net(grey), net(grey.repeat(1, 3, 1, 1)))


class Watched(dict[str, Tensor]):
    """Tensors that note which of them were asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.asked: list[str] = []

    def get(self, key: str, default: object = None) -> Tensor:
        self.asked.append(key)
        return self[key]


@needs_assets
def test_every_tensor_of_the_file_is_used_once_and_none_is_missing(
    tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tensors)
    monkeypatch.setattr(inception, "read_tensors", lambda path: watched)
    load_inception()
    assert sorted(watched.asked) == sorted(tensors)


@needs_assets
def test_official_file_with_its_class_head_gives_the_same(
    net: Inception, tensors: dict[str, Tensor], cifar: Tensor, nowhere: Path
) -> None:
    path = nowhere / "home" / "downloads" / "weights" / OFFICIAL
    path.parent.mkdir(parents=True)
    torch.save(tensors | {"fc.weight": torch.ones(1008, 2048), "fc.bias": torch.ones(1008)}, path)
    torch.testing.assert_close(load_inception(home=nowhere / "home")(cifar[:1]), net(cifar[:1]))


def bilinear(x: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """Each axis in turn: output i lies at (i + 1/2) n / side - 1/2, between two inputs, of which it takes its shares."""
    for axis in (-2, -1):
        n = x.shape[axis]
        at = np.clip((np.arange(side) + 0.5) * n / side - 0.5, 0, n - 1)
        below = np.floor(at).astype(int)
        above, share = np.minimum(below + 1, n - 1), at - below
        share = share[:, None] if axis == -2 else share
        x = x.take(below, axis) * (1 - share) + x.take(above, axis) * share
    return x


@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (1, 1, 32, 32), (1, 3, 400, 310), (1, 3, 299, 299), (1, 1, 1, 1)])
def test_pictures_are_resized_bilinearly_between_half_pixels_without_antialias(
    untrained: Inception, shape: tuple[int, ...]
) -> None:
    x, seen = pictures(*shape), []
    hook = untrained.layers.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    untrained(x)
    hook.remove()
    expected = np.repeat(bilinear(x.double().numpy(), 299), 3 // shape[1], axis=1)
    np.testing.assert_allclose(seen[0].numpy(), expected, atol=5e-5)  # torch finds the places in single precision


def neighbours(x: NDArray[np.float32], i: int, j: int) -> NDArray[np.float32]:
    return x[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]


@pytest.mark.parametrize("block", [*AVERAGE, "7c"])
def test_pools_of_branches_leave_padding_out_and_the_last_takes_the_maximum(untrained: Inception, block: str) -> None:
    x = pictures(1, 1, 4, 5) - 3  # all below zero: zeros of padding would show in a maximum, too
    of = np.max if block == "7c" else np.mean
    expected = [[of(neighbours(x[0, 0].numpy(), i, j)) for j in range(5)] for i in range(4)]
    mixed = untrained.layers.get_submodule(f"Mixed_{block}")
    assert isinstance(mixed, Block)
    np.testing.assert_allclose(mixed.pool(x)[0, 0].numpy(), expected, rtol=1e-6)


def test_folding_does_what_a_convolution_and_its_batchnorm_do() -> None:
    torch.manual_seed(2)
    conv, bn, unit = (
        nn.Conv2d(5, 4, (1, 7), padding=(0, 3), bias=False),
        nn.BatchNorm2d(4, eps=1e-3),
        Unit(5, 4, (1, 7)),
    )
    for parameter in (*bn.parameters(), bn.running_mean, bn.running_var):
        assert parameter is not None
        parameter.data.uniform_(0, 0.01)  # variances so small that ε counts
    tensors = {f"x.bn.{part}": t for part, t in bn.state_dict().items()} | {"x.conv.weight": conv.weight.data}
    weight, bias = fold(tensors, "x", (4, 5, 1, 7), Path("file"))
    unit.load_state_dict({"weight": weight, "bias": bias})
    x = pictures(2, 5, 9, 8)
    torch.testing.assert_close(unit(x), torch.relu(bn.eval()(conv(x))))


def test_network_is_frozen_and_lets_gradients_through(untrained: Inception) -> None:
    x = pictures(1, 1, 8, 8).requires_grad_()
    assert not untrained.train().training
    assert not any(p.requires_grad for p in untrained.parameters())
    untrained(x).sum().backward()
    assert x.grad is not None
    assert (x.grad != 0).all()


@pytest.mark.parametrize("x", [torch.zeros(3, 32, 32), torch.zeros(1, 2, 32, 32), torch.zeros(1, 3, 8, 8).byte()])
def test_what_is_not_pictures_is_refused(untrained: Inception, x: Tensor) -> None:
    with pytest.raises(VitrailError, match="1 or 3"):
        untrained(x)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the weights and without internet."""
    monkeypatch.setenv("VITRAIL_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setattr(inception, "URL", f"http://127.0.0.1:9/{OFFICIAL}")
    return tmp_path


def test_missing_weights_say_which_file_where_and_both_remedies(nowhere: Path) -> None:
    with pytest.raises(VitrailError) as refusal:
        load_inception(home=nowhere / "home")
    places = (nowhere / "assets" / "weights" / inception.SMALLER, nowhere / "home" / "downloads" / "weights" / OFFICIAL)
    for part in ("fid", *map(str, places), "connect to the internet", f"or put {OFFICIAL}"):
        assert part in str(refusal.value)


@pytest.fixture
def given(nowhere: Path) -> Path:
    """Where a test puts its own file of weights."""
    path = nowhere / "assets" / "weights" / inception.SMALLER
    path.parent.mkdir(parents=True)
    return path


def first_layer() -> dict[str, Tensor]:
    """What is read first, and is in order."""
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{FIRST}.conv.weight": torch.ones(32, 3, 3, 3), **{f"{FIRST}.bn.{part}": torch.ones(32) for part in parts}}


def test_truncated_or_foreign_file_is_refused_with_a_remedy(given: Path) -> None:
    save_file(first_layer(), given)
    whole = given.read_bytes()
    for content in (b"", whole[:100], whole[:-1], b"\xff" * 1000):
        given.write_bytes(content)
        with pytest.raises(Malformed, match=rf"{given.name}: no weights.*Delete the file and fetch it"):
            load_inception()


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        (f"{FIRST}.conv.weight", torch.ones(32, 3, 5, 5)),
        (f"{FIRST}.conv.weight", torch.full((32, 3, 3, 3), torch.nan)),
        (f"{FIRST}.bn.bias", torch.full((32,), torch.inf)),
        (f"{FIRST}.bn.running_var", -torch.ones(32)),
        (f"{FIRST}.bn.running_mean", None),
        ("Conv2d_2a_3x3.conv.weight", None),  # the first layer alone is not enough
    ],
)
def test_wrong_or_missing_tensor_is_refused_by_name(given: Path, key: str, changed: Tensor | None) -> None:
    tensors = {k: t for k, t in first_layer().items() if k != key}
    save_file(tensors if changed is None else tensors | {key: changed}, given)
    with pytest.raises(Malformed, match=rf"{given.name}: {key} .*expected.*Delete the file and fetch it"):
        load_inception()
