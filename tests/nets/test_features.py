"""Feature networks: outputs, shipped weights, registration and refusals."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from vitrail.data import SOURCES, load
from vitrail.nets import features
from vitrail.nets.feature_network import Features
from vitrail.nets.features import FEATURES, choose_features, load_features, parse_layers
from vitrail.nets.precision import Precision
from vitrail.utils.errors import Malformed, VitrailError

OWN = ["vitrail-fashion", "vitrail-cifar"]
needs_assets = pytest.mark.skipif("VITRAIL_ASSETS" not in os.environ, reason="VITRAIL_ASSETS is not set")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "train_features.py"
    spec = importlib.util.spec_from_file_location("train_features", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def images(n: int, channels: int = 3, size: int = 32) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1


def plain_network(name: str) -> nn.Sequential:
    """The same network as torch layers, with the weights of the file under torchvision's names."""
    layers: list[nn.Module] = []
    tensors = load_file(features.WEIGHTS / f"{name}.safetensors")
    for block in ((16,), (32, 32), (64, 64), (96, 96)):
        for _ in block:
            weight, bias = (tensors[f"features.{len(layers)}.{part}"].float() for part in ("weight", "bias"))
            conv = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1)
            conv.load_state_dict({"weight": weight, "bias": bias})
            layers += [conv, nn.ReLU()]
        layers.append(nn.AvgPool2d(2))
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("name", OWN)
def test_outputs_are_every_relu_of_the_plain_network(name: str) -> None:
    psi, x, expected = load_features(name), images(3), []
    y = x
    for layer in plain_network(name):
        y = layer(y)
        if isinstance(layer, nn.ReLU):
            expected.append(y)
    got = psi(x)
    assert len(got) == 7
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(psi.flat(x), torch.cat([y.flatten(1) for y in expected], dim=1))


@pytest.mark.parametrize("size", [1, 8, 16, 28, 32, 64])
def test_dim_is_the_number_of_features_at_any_image_size(size: int) -> None:
    psi, x = load_features("vitrail-fashion"), images(2, 1, size)
    assert psi.flat(x).shape == (2, psi.dim((1, size, size)))
    psi.layers = (1, 5)
    assert psi.flat(x).shape == (2, psi.dim((1, size, size)))


def test_a_grey_image_has_the_features_of_equal_colour_channels() -> None:
    psi, x = load_features("vitrail-cifar"), images(2, channels=1)
    torch.testing.assert_close(psi.flat(x), psi.flat(x.repeat(1, 3, 1, 1)))


def test_layers_beyond_the_last_chosen_are_not_computed() -> None:
    psi = load_features("vitrail-fashion")
    everything = psi(images(2))
    psi.layers = (1, 3)
    for conv in psi.convs[4:]:
        conv.register_forward_hook(lambda *_: pytest.fail("computed"))
    got = psi(images(2))
    assert [torch.equal(a, b) for a, b in zip(got, (everything[1], everything[3]), strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("layers", ["", "-1", "0,7"])
def test_layers_out_of_range_are_refused(layers: str) -> None:
    with pytest.raises(VitrailError, match="0 to 6"):
        parse_layers("vitrail-fashion", layers)


def test_the_network_is_frozen_and_passes_gradients_to_images() -> None:
    psi, x = load_features("vitrail-fashion"), images(2).requires_grad_()
    assert not psi.train().training
    assert not any(p.requires_grad for p in psi.parameters())
    psi.flat(x).mean(dim=0).square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert (x.grad != 0).double().mean() > 0.99  # almost every pixel has one


@pytest.mark.parametrize(("size", "channels"), [(1, 3), (28, 1), (32, 3)])
def test_bfloat16_features_and_gradients_are_those_of_float32_within_its_rounding(size: int, channels: int) -> None:
    psi, x = load_features("vitrail-fashion"), images(3, channels, size).requires_grad_()
    psi.layers = (0, 2, 6)

    def run(precision: Precision) -> tuple[list[torch.Tensor], torch.Tensor]:
        psi.precision = precision
        outputs = psi(x)
        total = torch.stack([y.square().mean() for y in outputs]).sum()
        return outputs, torch.autograd.grad(total, x)[0]

    exact, exact_grad = run("float32")
    rounded, rounded_grad = run("bfloat16")
    for a, b in zip([*exact, exact_grad], [*rounded, rounded_grad], strict=True):
        assert a.dtype == b.dtype == torch.float32
        assert not torch.equal(a, b)
        least = 0.98 if a is exact_grad else 0.9998  # a gradient changes more: rounding turns some ReLUs on or off
        assert functional.cosine_similarity(a.flatten(), b.flatten(), dim=0) > least


def test_weights_loaded_after_a_first_pass_are_used() -> None:
    psi, other, x = load_features("vitrail-fashion"), load_features("vitrail-cifar"), images(2).requires_grad_()
    before = psi.flat(x)
    psi.load_state_dict(other.state_dict())
    torch.testing.assert_close(psi.flat(x), other.flat(x))
    assert (psi.flat(x) - before).abs().max() > 0.1
    torch.testing.assert_close(psi.double().flat(x.double()), other.double().flat(x.double()))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 2, 32, 32)])
def test_arrays_that_are_not_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(VitrailError, match="1 or 3"):
        load_features("vitrail-fashion")(torch.zeros(shape))


def test_every_network_states_what_it_was_trained_on() -> None:
    assert all(FEATURES[name].trained_on for name in FEATURES)


@pytest.mark.parametrize("source", SOURCES)
def test_the_chosen_network_was_never_trained_on_the_source(source: str) -> None:
    assert FEATURES[choose_features(source)].trained_on != source.partition(":")[0]


@pytest.mark.parametrize(
    ("trained_on", "data"),
    [
        *(("cifar10", data) for data in ("cifar10", "cifar10:1", "cifar10:1-5", "CIFAR10:2", "hf:uoft-cs/cifar10")),
        *(("cifar10", data) for data in ("npz:cifar-10.npz", "folder:CINIC-10", "folder:celeba/cifar10")),
        *(("fashion-mnist", data) for data in ("fashion-mnist", "fashion-mnist:1", "npz:FashionMNIST.npz")),
        *(("fashion-mnist", data) for data in ("hf:zalando-datasets/fashion_mnist", "folder:f-mnist")),
        *((trained_on, "folder:fashion/cifar10") for trained_on in ("cifar10", "fashion-mnist")),
    ],
)
def test_the_chosen_network_was_never_trained_on_the_data_under_any_name(trained_on: str, data: str) -> None:
    assert FEATURES[choose_features(data)].trained_on != trained_on


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("mnist", "vitrail-fashion"),
        ("mnist5k", "vitrail-fashion"),
        ("digits", "vitrail-fashion"),
        ("cifar10:1-3", "vitrail-fashion"),
        ("folder:scans", "vitrail-fashion"),
        ("hf:mnist", "vitrail-fashion"),
        ("fashion-mnist", "vitrail-cifar"),
        ("svhn", "vitrail-cifar"),
        ("celeba", "vitrail-cifar"),
    ],
)
def test_the_network_chosen_for_a_source(data: str, name: str) -> None:
    assert choose_features(data) == name


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(VitrailError, match="vitrail-fashion, vitrail-cifar, vgg19"):
        load_features("vgg11")


def test_folding_keeps_the_logits_and_gives_channels_mean_square_one(script: ModuleType) -> None:
    torch.manual_seed(3)
    net, x = script.Classifier(features.SMALL, 10), images(64)
    with torch.no_grad():
        for bn in net.norms:
            bn.weight.uniform_(0.5, 2)
            bn.bias.uniform_(-0.5, 1)
            bn.momentum = 1.0  # so that one pass sets the statistics
        net.train()(x)
        expected = net.eval()(x)
    tensors = script.fold(net, x)
    psi = Features(features.SMALL)
    for position, conv in zip(features.SMALL.positions, psi.convs, strict=True):
        conv.load_state_dict({part: tensors[f"features.{position}.{part}"] for part in ("weight", "bias")})
    outputs = psi(x)
    logits = outputs[-1].mean(dim=(2, 3)) @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-4)
    for y in outputs:
        square = y.square().mean(dim=(0, 2, 3))
        assert square.max() < 1.001
        assert ((square - 1).abs() < 1e-3).double().mean() > 0.7  # the others are almost always 0


@pytest.mark.parametrize("name", OWN)
def test_shipped_weights_are_small_and_documented(name: str) -> None:
    assert (features.WEIGHTS / f"{name}.safetensors").stat().st_size < 500_000
    assert f"## {name}" in (features.WEIGHTS / "README.md").read_text()


@needs_assets
@pytest.mark.parametrize(
    ("name", "data", "least"),
    [("vitrail-fashion", "fashion-mnist", 0.88), ("vitrail-cifar", "cifar10:1", 0.6)],
)
def test_the_shipped_network_classifies_test_images(name: str, data: str, least: float) -> None:
    test = load(data).test
    assert test.labels is not None
    x = torch.from_numpy(test.pixels[:1000]).float() / 127.5 - 1
    tensors = load_file(features.WEIGHTS / f"{name}.safetensors")
    last = load_features(name)(x)[-1].mean(dim=(2, 3))
    predicted = (last @ tensors["classifier.weight"].float().T + tensors["classifier.bias"].float()).argmax(dim=1)
    assert np.mean(predicted.numpy() == test.labels[:1000]) > least


def test_vgg19_has_the_number_of_features_of_the_paper() -> None:
    psi = Features(features.VGG19)
    assert psi.dim((3, 32, 32)) == 303_104
    assert psi.plan.positions == (
        0,
        2,
        5,
        7,
        10,
        12,
        14,
        16,
        19,
        21,
        23,
        25,
        28,
        30,
        32,
        34,
    )  # torchvision's vgg19


@needs_assets
def test_vgg19_normalises_images_as_imagenet() -> None:
    psi, x = load_features("vgg19"), images(1, size=8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    first = torch.relu(psi.convs[0](((x + 1) / 2 - mean) / std))
    torch.testing.assert_close(psi(x)[0], first, rtol=1e-4, atol=1e-4)
    assert psi.flat(x).shape == (1, psi.dim((3, 8, 8)))


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No VGG19 weights and no internet."""
    monkeypatch.setenv("VITRAIL_ASSETS", str(tmp_path / "assets"))
    monkeypatch.setattr(features, "VGG19_URL", "http://127.0.0.1:9/vgg19-dcbb9e9d.pth")
    return tmp_path


def test_missing_vgg19_is_reported_with_the_places_and_both_remedies(nowhere: Path) -> None:
    with pytest.raises(VitrailError) as refusal:
        load_features("vgg19", home=nowhere / "home")
    for part in (
        "vgg19-dcbb9e9d.pth",
        str(nowhere / "assets" / "weights"),
        str(nowhere / "home" / "downloads"),
        "connect to the internet",
        "or put",
    ):
        assert part in str(refusal.value)


def test_a_download_with_a_wrong_checksum_is_refused_and_removed(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "vgg19-dcbb9e9d.pth").write_bytes(b"not the weights")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(nowhere))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(features, "VGG19_URL", f"http://127.0.0.1:{server.server_port}/vgg19-dcbb9e9d.pth")
        with pytest.raises(VitrailError, match="hash"):
            load_features("vgg19", home=nowhere / "home")
        server.shutdown()
    assert not [p for p in (nowhere / "home").rglob("*") if p.is_file()]


class Trap:
    """An object whose unpickling would run code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("trap-was-sprung"),)  # type: ignore[return-value]


def test_the_vgg19_file_never_runs_code(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nowhere)
    target = nowhere / "home" / "downloads" / "weights" / "vgg19-dcbb9e9d.pth"
    target.parent.mkdir(parents=True)
    torch.save({"features.0.weight": Trap()}, target)
    with pytest.raises(Malformed, match=r"vgg19-dcbb9e9d.pth"):
        load_features("vgg19", home=nowhere / "home")
    assert not (nowhere / "trap-was-sprung").exists()


def test_truncated_or_wrong_weights_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (features.WEIGHTS / "vitrail-fashion.safetensors").read_bytes()
    tensors = load_file(features.WEIGHTS / "vitrail-fashion.safetensors")
    monkeypatch.setattr(features, "WEIGHTS", tmp_path)
    path = tmp_path / "vitrail-fashion.safetensors"
    for content in (b"", whole[:1000], whole[:-1], b"\xff" * 1000):
        path.write_bytes(content)
        with pytest.raises(Malformed, match=path.name):
            load_features("vitrail-fashion")
    key = "features.0.weight"
    for changed in (tensors[key][:, :2].contiguous(), torch.full_like(tensors[key], torch.nan)):
        save_file(tensors | {key: changed}, path)
        with pytest.raises(Malformed, match=key):
            load_features("vitrail-fashion")
    save_file({k: t for k, t in tensors.items() if k != key}, path)
    with pytest.raises(Malformed, match="missing"):
        load_features("vitrail-fashion")
    path.unlink()
    with pytest.raises(Malformed, match=path.name):
        load_features("vitrail-fashion")


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[str]:
    """A network of a user, registered for one test."""
    torch.manual_seed(5)
    psi = Features(features.SMALL)
    file = tmp_path / "user.safetensors"
    state = {
        f"features.{i}.{k}": p
        for i, c in zip(psi.plan.positions, psi.convs, strict=True)
        for k, p in c.named_parameters()
    }
    save_file(state, file)

    class User(features.FeatureNetwork):
        """A network of a user."""

        plan, trained_on = features.SMALL, "Cell-Images"

        @classmethod
        def weights(cls, home: Path) -> Path:
            return file

    FEATURES.add("user", User)
    yield "user"
    FEATURES._added.pop("user")


def test_a_registered_network_loads_with_its_weights(registered: str) -> None:
    psi = load_features(registered)
    assert torch.equal(psi.convs[3].weight, load_file(FEATURES["user"].weights(Path()))["features.8.weight"])


def test_a_registered_network_is_known_to_have_seen_its_data(registered: str) -> None:
    assert features.was_trained_on(registered, "folder:cell_images/train")
    assert not features.was_trained_on(registered, "mnist")


def test_a_registered_network_trains_a_private_run_that_states_its_data(registered: str, tmp_path: Path) -> None:
    import vitrail

    run = vitrail.train(
        "moments", data="digits", size=8, clients=2, rounds=2, local_steps=1, batch_size=10, workers=1,
        features=registered, epsilon=5, eval_every=0, out=str(tmp_path / "run"),
    )  # fmt: skip
    about = vitrail.load(run.folder).about
    assert about["trained_against"] == ["user"]
    assert about["features"] == "user, trained on Cell-Images"
