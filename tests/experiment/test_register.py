"""Discriminators, feature networks and mechanisms from outside the package: trained with workers, loaded, evaluated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitrail
from tests.experiment.deployment.nodes import SHARE, node
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.specs import offer_spec
from vitrail.experiment.run_dir import RunDir
from vitrail.methods.private import PrivateMethod
from vitrail.models.kinds import ModelKind
from vitrail.nets.discriminators import build_discriminator
from vitrail.nets.feature_network import LayerPlan
from vitrail.nets.features import FeatureNetwork, load_features
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.mechanism import MECHANISMS, Mechanism, Noise
from vitrail.privacy.noise import gaussian
from vitrail.utils.errors import VitrailError
from vitrail.utils.paths import data_home
from vitrail.utils.registry import REGISTRIES
from vitrail.utils.state import load as load_state

SMALL = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "workers": 2, "grids": 0, "eval_every": 0}


@pytest.fixture(autouse=True)
def _registries(monkeypatch):
    """Remove what a test registered."""
    for registry in REGISTRIES.values():
        monkeypatch.setattr(registry, "_added", dict(registry._added))


def replied(run):
    return [row["replied"] for row in RunDir(run.folder).rows()]


class LinearLogit(nn.Module):
    """A discriminator of one linear layer."""

    def __init__(self, shape, classes, width):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), 1)

    def forward(self, images, labels=None):
        return self.layer(images.flatten(1)).flatten()


def test_a_registered_discriminator_is_trained_in_workers_and_its_model_is_evaluated(tmp_path):
    quick = {"steps_per_message": 2, "batch_size": 8, "width": 4, "latent_dim": 8, "classifier_rounds": 0}
    how = {**SMALL, **quick, "rounds": 2, "d_width": 1, "server_fraction": 0.0}
    with pytest.raises(VitrailError, match="d_architecture"):
        vitrail.train("psfedgan", d_architecture="linear-logit", **how, out=str(tmp_path / "x"))
    vitrail.register_discriminator("linear-logit", "one linear layer")(LinearLogit)
    assert isinstance(build_discriminator("linear-logit:1", (1, 8, 8), 10), LinearLogit)
    run = vitrail.train("psfedgan", d_architecture="linear-logit", **how, out=str(tmp_path / "x"))
    assert replied(run) == [2, 2]
    copies = load_state(RunDir(run.folder).checkpoint)["federation"]["server"]["twins"].values()
    assert {copy["architecture"] for copy in copies} == {"linear-logit:1"}, "clients named their D to the server"
    assert vitrail.load(run.folder).sample(3, label=1).shape == (3, 1, 8, 8)
    assert all(math.isfinite(m.value) for m in vitrail.evaluate(run, metrics=["pixels"], n=60))


class Edges(FeatureNetwork):
    """One layer, with weights in the folder for downloads."""

    plan = LayerPlan(((8,),), "average")
    trained_on = "drawings"
    data_words = ("drawing",)

    @classmethod
    def weights(cls, home):
        return home / "edges.safetensors"


def test_a_registered_feature_network_trains_in_workers_but_does_not_evaluate(tmp_path):
    draw = torch.Generator().manual_seed(0)
    weights = {"features.0.weight": torch.randn(8, 3, 3, 3, generator=draw), "features.0.bias": torch.zeros(8)}
    save_file(weights, data_home() / "edges.safetensors")
    how = {**SMALL, "features": "edges", "local_steps": 2, "batch_size": 10}
    with pytest.raises(VitrailError, match="features = 'edges': must be one of auto, "):
        vitrail.train("prism", **how, out=str(tmp_path / "x"))
    vitrail.register_features("edges", "one layer")(Edges)
    assert load_features("edges").dim((1, 8, 8)) == 8 * 8 * 8
    run = vitrail.train("prism", **how, out=str(tmp_path / "x"))
    assert replied(run) == [2]
    model = vitrail.load(run.folder)
    assert model.about["features"] == "edges, trained on drawings"
    assert model.about["trained_against"] == ["edges"]
    ranked = vitrail.evaluate(run, metrics=["fd-vitrail"], n=60)
    assert {m.extractor for m in ranked} == {"vitrail-cifar"}
    alone = vitrail.train("prism", **{**how, "workers": 1}, out=str(tmp_path / "alone"))
    assert alone.generator.sample(3).equal(run.generator.sample(3))
    private = vitrail.train("moments", **{**how, "workers": 1}, out=str(tmp_path / "private"))
    assert read_run_ledger(private.folder).entries[0]["features"] == "edges, public, trained on drawings"


class PixelMean(nn.Module):
    """Always generates one image."""

    def __init__(self, shape):
        super().__init__()
        self.z, self.mean = 1, nn.Parameter(torch.zeros(shape))

    def forward(self, z, labels=None):
        return self.mean.expand(len(z), *self.mean.shape).clamp(-1, 1)


class PixelMeanKind(ModelKind):
    """Model files of PixelSums."""

    @classmethod
    def network(cls, tree):
        return PixelMean(tuple(tree["shape"]))


@dataclass(frozen=True)
class PixelSums(PrivateMethod):
    """The mean image, from noised sums of pixels."""

    privacy: str = "pixel-sums"

    mechanisms = ("pixel-sums",)
    default_epsilon = 1.0

    @property
    def pixels(self):
        return math.prod(self.task.shape)

    def base_mechanism(self):
        return Mechanism(
            name="pixel-sums",
            unit="example",
            adjacency="replace one",
            sensitivity=2 * math.sqrt(self.pixels),
            why="each of the pixels is in [-1, 1]",
            noise=Noise(1.0),
            once=False,
            leaves="noised sums of pixels",
            trust="no one",
        )

    def reply_spec(self):
        return {"sums": vitrail.PartSpec("sum", "float32", self.pixels)}

    def server_init(self, rng, data=None, start=None):
        return {"mean": np.zeros(self.pixels, np.float32)}

    def broadcast(self, server, client, full):
        return vitrail.Broadcast({"mean": ("float32", server["mean"])})

    def client_round(self, state, message, data, rng):
        sums = (data.pixels.reshape(len(data), -1) / 127.5 - 1).sum(0)
        noised = MECHANISMS["pixel-sums"](sums, self.mechanism.sigma, self.source(rng))
        return {}, vitrail.Reply({"sums": (noised / len(data)).astype(np.float32)})

    def finish_round(self, server, sums, rng):
        return {"mean": (sums.values["sums"] / sums.clients).astype(np.float32)}

    def export_models(self, server, client=None):
        weights = {"mean": torch.from_numpy(server["mean"]).view(self.task.shape)}
        return {
            "generator": vitrail.Model("pixel-mean", {"shape": list(self.task.shape), "classes": 0, "weights": weights})
        }


def add_noise(sums, sigma, source):
    """Gaussian noise on sums of pixels."""
    return sums + gaussian(source, len(sums), sigma)


def test_a_registered_mechanism_protects_a_run_and_is_accepted_by_its_name(tmp_path):
    vitrail.register_method("pixel-sums")(PixelSums)
    vitrail.register_model_kind("pixel-mean")(PixelMeanKind)
    with pytest.raises(VitrailError, match="accept=pixel-sums: no such mechanism"):
        node(tmp_path, accept="pixel-sums")
    vitrail.register_mechanism("pixel-sums", "noised sums of pixels")(add_noise)
    run = vitrail.train("pixel-sums", **SMALL, out=str(tmp_path / "x"))
    assert replied(run) == [2]
    checked = read_run_ledger(run.folder)  # recomputes ε
    assert (checked.entries[0]["private"], checked.entries[0]["mechanism"]) == (True, "pixel-sums")
    assert "ε = 1 at δ = 1e-05 for one image replaced by another (pixel-sums, example-level)" in run.privacy
    assert vitrail.load(run.folder).about["privacy"] == run.privacy
    nearly = vitrail.train("pixel-sums", **{**SMALL, "workers": 1}, epsilon=1e6, out=str(tmp_path / "y"))
    mean = vitrail.data.load("digits", size=8).train.pixels.mean(0) / 255
    assert np.allclose(nearly.generator.sample(1)[0].numpy(), mean, atol=0.02)

    offer = offer_spec(config.resolve("pixel-sums", {**SMALL, "out": "-", "noise_source": "os", "data": "nodes"}))
    ours = {**SHARE, "home": str(tmp_path / "home"), "max-epsilon": 2.0}
    assert node(tmp_path, **ours, accept="pixel-sums").describe(offer).shape == (1, 8, 8)
    with pytest.raises(VitrailError, match="its mechanism is pixel-sums, which accept does not name"):
        node(tmp_path, **ours, accept="moments").describe(offer)
