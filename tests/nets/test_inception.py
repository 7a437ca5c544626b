"""The FID network: equality with the reference, inputs, and refusals."""

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
    """The first images of CIFAR-10's test set."""
    return to_float(load("cifar10:1").test.pixels[:9])


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


@needs_assets
def test_features_are_those_that_gave_the_reference_fid(net: Inception, cifar: Tensor) -> None:
    """Recorded when benchmarks/fid.py gave the reference's value."""
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
def test_2048_features_are_never_negative_and_do_not_depend_on_batches(net: Inception, cifar: Tensor) -> None:
    got = net(cifar)
    assert got.shape == (9, net.num_features) == (9, 2048)
    assert got.min() >= 0
    for n in (4, 9):  # 9 is more than one pass computes
        parts = torch.cat([net(part) for part in cifar[:n].split(3)])
        torch.testing.assert_close(parts, got[:n], rtol=1e-4, atol=1e-5)
    assert net(cifar[:0]).shape == (0, 2048)


@needs_assets
def test_a_grey_image_has_the_features_of_equal_colour_channels(net: Inception, cifar: Tensor) -> None:
    grey = cifar[:2].mean(dim=1, keepdim=True)
    torch.testing.assert_close(net(grey), net(grey.repeat(1, 3, 1, 1)))


class Recording(dict[str, Tensor]):
    """Tensors that record which of them were read."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.read: list[str] = []

    def get(self, key: str, default: object = None) -> Tensor:
        self.read.append(key)
        return self[key]


@needs_assets
def test_every_tensor_of_the_file_is_used_once(tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording(tensors)
    monkeypatch.setattr(inception, "read_tensors", lambda path: recording)
    load_inception()
    assert sorted(recording.read) == sorted(tensors)


@needs_assets
def test_the_official_file_with_its_class_head_gives_the_same_features(
    net: Inception, tensors: dict[str, Tensor], cifar: Tensor, nowhere: Path
) -> None:
    path = nowhere / "home" / "downloads" / "weights" / OFFICIAL
    path.parent.mkdir(parents=True)
    torch.save(tensors | {"fc.weight": torch.ones(1008, 2048), "fc.bias": torch.ones(1008)}, path)
    torch.testing.assert_close(load_inception(home=nowhere / "home")(cifar[:1]), net(cifar[:1]))


def bilinear(x: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """Interpolate each axis: output i is at (i + 1/2) n / side - 1/2, between two inputs."""
    for axis in (-2, -1):
        n = x.shape[axis]
        at = np.clip((np.arange(side) + 0.5) * n / side - 0.5, 0, n - 1)
        below = np.floor(at).astype(int)
        above, share = np.minimum(below + 1, n - 1), at - below
        share = share[:, None] if axis == -2 else share
        x = x.take(below, axis) * (1 - share) + x.take(above, axis) * share
    return x


@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (1, 1, 32, 32), (1, 3, 400, 310), (1, 3, 299, 299), (1, 1, 1, 1)])
def test_images_are_resized_bilinearly_without_antialiasing(untrained: Inception, shape: tuple[int, ...]) -> None:
    x, seen = images(*shape), []
    hook = untrained.layers.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    untrained(x)
    hook.remove()
    expected = np.repeat(bilinear(x.double().numpy(), 299), 3 // shape[1], axis=1)
    np.testing.assert_allclose(seen[0].numpy(), expected, atol=5e-5)  # torch computes positions in single precision


def neighbours(x: NDArray[np.float32], i: int, j: int) -> NDArray[np.float32]:
    return x[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2]


@pytest.mark.parametrize("block", [*AVERAGE, "7c"])
def test_average_pools_ignore_padding_and_the_last_pool_is_a_maximum(untrained: Inception, block: str) -> None:
    x = images(1, 1, 4, 5) - 3  # all negative: padded zeros would change a maximum, too
    of = np.max if block == "7c" else np.mean
    expected = [[of(neighbours(x[0, 0].numpy(), i, j)) for j in range(5)] for i in range(4)]
    mixed = untrained.layers.get_submodule(f"Mixed_{block}")
    assert isinstance(mixed, Block)
    np.testing.assert_allclose(mixed.pool(x)[0, 0].numpy(), expected, rtol=1e-6)


def test_a_folded_convolution_equals_convolution_and_batchnorm() -> None:
    torch.manual_seed(2)
    conv, bn, unit = (
        nn.Conv2d(5, 4, (1, 7), padding=(0, 3), bias=False),
        nn.BatchNorm2d(4, eps=1e-3),
        Unit(5, 4, (1, 7)),
    )
    for parameter in (*bn.parameters(), bn.running_mean, bn.running_var):
        assert parameter is not None
        parameter.data.uniform_(0, 0.01)  # variances small enough that ε matters
    tensors = {f"x.bn.{part}": t for part, t in bn.state_dict().items()} | {"x.conv.weight": conv.weight.data}
    weight, bias = fold(tensors, "x", (4, 5, 1, 7), Path("file"))
    unit.load_state_dict({"weight": weight, "bias": bias})
    x = images(2, 5, 9, 8)
    torch.testing.assert_close(unit(x), torch.relu(bn.eval()(conv(x))))


def test_the_network_is_frozen_and_passes_gradients_to_images(untrained: Inception) -> None:
    x = images(1, 1, 8, 8).requires_grad_()
    assert not untrained.train().training
    assert not any(p.requires_grad for p in untrained.parameters())
    untrained(x).sum().backward()
    assert x.grad is not None
    assert (x.grad != 0).all()


@pytest.mark.parametrize("x", [torch.zeros(3, 32, 32), torch.zeros(1, 2, 32, 32), torch.zeros(1, 3, 8, 8).byte()])
def test_arrays_that_are_not_images_are_refused(untrained: Inception, x: Tensor) -> None:
    with pytest.raises(VitrailError, match="1 or 3"):
        untrained(x)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No weights and no internet."""
    monkeypatch.setenv("VITRAIL_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setattr(inception, "URL", f"http://127.0.0.1:9/{OFFICIAL}")
    return tmp_path


def test_missing_weights_are_reported_with_the_places_and_both_remedies(nowhere: Path) -> None:
    with pytest.raises(VitrailError) as refusal:
        load_inception(home=nowhere / "home")
    paths = (nowhere / "assets" / "weights" / inception.SMALLER, nowhere / "home" / "downloads" / "weights" / OFFICIAL)
    for part in ("fid", *map(str, paths), "connect to the internet", f"or put {OFFICIAL}"):
        assert part in str(refusal.value)


@pytest.fixture
def given(nowhere: Path) -> Path:
    """Path for a test's own file of weights."""
    path = nowhere / "assets" / "weights" / inception.SMALLER
    path.parent.mkdir(parents=True)
    return path


def first_layer() -> dict[str, Tensor]:
    """Valid tensors of the layer that is read first."""
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{FIRST}.conv.weight": torch.ones(32, 3, 3, 3), **{f"{FIRST}.bn.{part}": torch.ones(32) for part in parts}}


def test_a_truncated_or_foreign_file_is_refused_with_a_remedy(given: Path) -> None:
    save_file(first_layer(), given)
    whole = given.read_bytes()
    for content in (b"", whole[:100], whole[:-1], b"\xff" * 1000):
        given.write_bytes(content)
        with pytest.raises(
            Malformed, match=rf"{given.name}: its weights cannot be read.*Delete the file and download it again"
        ):
            load_inception()


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        (f"{FIRST}.conv.weight", torch.ones(32, 3, 5, 5)),
        (f"{FIRST}.conv.weight", torch.full((32, 3, 3, 3), torch.nan)),
        (f"{FIRST}.bn.bias", torch.full((32,), torch.inf)),
        (f"{FIRST}.bn.running_var", -torch.ones(32)),
        (f"{FIRST}.bn.running_mean", None),
        ("Conv2d_2a_3x3.conv.weight", None),  # the first layer only
    ],
)
def test_a_wrong_or_missing_tensor_is_refused_with_its_name(given: Path, key: str, changed: Tensor | None) -> None:
    tensors = {k: t for k, t in first_layer().items() if k != key}
    save_file(tensors if changed is None else tensors | {key: changed}, given)
    with pytest.raises(Malformed, match=rf"{given.name}: {key} .*expected.*Delete the file and download it again"):
        load_inception()
