"""Model kinds: a kind that a user registers is checked, loaded, shown and exported as the built-in ones."""

import numpy as np
import pytest
import torch
from torch import nn

import vitrail
from vitrail.experiment.personal import load_joined
from vitrail.models.inspection import inspect_model
from vitrail.models.kinds import MODEL_KINDS, ModelKind
from vitrail.models.limits import check_integer
from vitrail.models.model import Model
from vitrail.models.model_file import check_file, load_any, save_model
from vitrail.models.onnx_export import export_onnx
from vitrail.utils.errors import Malformed
from vitrail.utils.state import save as save_state


class Decoder(nn.Module):
    """A small generator with labels."""

    def __init__(self, shape, classes, z):
        super().__init__()
        self.z, self.shape = z, shape
        self.labels = nn.Embedding(max(classes, 1), z)
        self.layer = nn.Linear(z, shape[0] * shape[1] * shape[2])

    def forward(self, z, labels=None):
        z = z if labels is None else z * self.labels(labels)
        return torch.tanh(self.layer(z)).view(-1, *self.shape)


class DecoderKind(ModelKind):
    """Ordinary weights of the decoder."""

    meaning = "weights of a decoder"

    @classmethod
    def network(cls, tree):
        return Decoder(tuple(tree["shape"]), tree["classes"], check_integer(tree, "z"))


@pytest.fixture
def registered():
    MODEL_KINDS.add("decoder", DecoderKind)
    yield
    MODEL_KINDS._added.pop("decoder", None)


@pytest.fixture
def path(registered, tmp_path):
    torch.manual_seed(1)
    weights = Decoder((1, 8, 8), 2, 4).state_dict()
    tree = {"shape": [1, 8, 8], "classes": 2, "z": 4, "weights": weights}
    save_model(tmp_path / "m.safetensors", Model("decoder", tree), ["cat", "dog"], {"data": "pets"})
    return tmp_path / "m.safetensors"


def test_a_registered_kind_is_loaded_with_its_weights(path):
    generator = vitrail.load(path)
    torch.manual_seed(1)
    net = Decoder((1, 8, 8), 2, 4)
    z, labels = torch.randn(3, 4), torch.tensor([0, 1, 1])
    assert torch.equal(generator.net(z, labels), net(z, labels))
    assert generator.sample(5, label="dog").shape == (5, 1, 8, 8)
    assert load_any(path).kind == "decoder"


def test_a_registered_kind_is_shown_and_exported(path, tmp_path):
    found = inspect_model(path)
    assert (found["kind"], found["meaning"], found["z"]) == ("decoder", "weights of a decoder", 4)
    assert [p["name"] for p in found["parts"]] == ["weights/labels.weight", "weights/layer.weight",
                                                   "weights/layer.bias", "header"]  # fmt: skip
    assert export_onnx(vitrail.load(path), tmp_path / "m.onnx").difference < 1e-4


def test_a_registered_kind_is_joined_with_a_clients_private_file(path, tmp_path, monkeypatch):
    private = tmp_path / "north.safetensors"
    bias = torch.linspace(-1, 1, 64)
    save_state(private, {"run": b"1", "state": {"personal": {"bias": bias.numpy()}, "optimizer": {}}})
    with pytest.raises(Malformed, match=r"north\.safetensors: models of this kind have no private part; give the two"):
        load_joined(path, private)

    def with_private_part(tree, state):
        return {**tree, "weights": {**tree["weights"], "layer.bias": torch.from_numpy(state["bias"])}}

    monkeypatch.setattr(DecoderKind, "with_private_part", with_private_part)
    joined = load_joined(path, private)
    assert joined.net.layer.bias.equal(bias)
    assert joined.about["client"] == "north"


def test_an_unregistered_kind_is_refused_with_the_remedy(path):
    MODEL_KINDS._added.pop("decoder")
    for read in (vitrail.load, vitrail.load_classifier, inspect_model, lambda p: check_file(p.read_bytes())):
        with pytest.raises(Malformed, match=r"kind 'decoder', which is not registered.*import the.*VITRAIL_PLUGINS"):
            read(path)


def test_weights_of_a_registered_kind_must_fit_its_network(registered):
    tree = {"shape": [1, 8, 8], "classes": 0, "z": 2**16, "weights": {"layer.weight": torch.zeros(1)}}
    with pytest.raises(Malformed, match="not those of the network"):
        vitrail.models.model_file.open_model(Model("decoder", tree), [])


def test_feature_maps_of_a_registered_kind_are_limited_by_its_file(registered, monkeypatch):
    monkeypatch.setattr("vitrail.models.limits.FREE", 1000)
    monkeypatch.setattr("vitrail.models.limits.ACTIVATION_PER_BYTE", 1)
    net = Decoder((1, 8, 8), 0, 1)
    tree = {"shape": [1, 8, 8], "classes": 0, "z": 1, "weights": net.state_dict()}
    with pytest.raises(Malformed, match="too large for its file"):
        vitrail.models.model_file.open_model(Model("decoder", tree), [])


@pytest.mark.parametrize("kind", ["masked", "ensemble", "dense", "dcgan", "mixture", "padpaf", "classifier"])
def test_every_built_in_kind_refuses_an_empty_tree(kind):
    with pytest.raises(Malformed, match="does not fit together"):
        vitrail.models.model_file.check_model(Model(kind, {"shape": [1, 8, 8], "classes": 0}), [])


@pytest.mark.parametrize("kind", [None, 3, ["masked"], "", "masked\x1b[2J"])
def test_a_kind_that_is_not_a_registered_name_is_refused(kind):
    with pytest.raises(Malformed, match="not registered") as refusal:
        vitrail.models.model_file.check_model(Model(kind, {"mask": np.zeros(1)}), [])
    assert "\x1b" not in str(refusal.value)
