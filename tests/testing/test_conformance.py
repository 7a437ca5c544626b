"""The conformance checks: what a method must not do, and what is reported if it does."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.methods.private import PrivateMethod
from vitrail.privacy.clipping import clipped, noised
from vitrail.privacy.mechanism import Mechanism, Noise
from vitrail.testing import check_method, conformance
from vitrail.testing.conformance import TASK, Subject


@dataclass(frozen=True)
class MeanImage(PrivateMethod):
    """Clients send their mean image, clipped and noised."""

    privacy: str = "mean-image"
    noise_multiplier: float = 1.0

    def base_mechanism(self):
        return Mechanism("mean-image", "client", "replace one", 2.0, "norm 1", Noise(1.0), False, "means", "no one")

    def reply_spec(self):
        return {"mean": vitrail.PartSpec("sum", "float32", 64)}

    def server_init(self, rng, data=None, start=None):
        return {"mean": np.zeros(64, np.float32)}

    def broadcast(self, server, client, full):
        return vitrail.Broadcast({"mean": ("float32", server["mean"])})

    def client_round(self, state, message, data, rng):
        mean = clipped((data.pixels / 127.5 - 1).mean(0).ravel(), 1.0)
        return {}, vitrail.Reply({"mean": noised(mean, self.mechanism.sigma, self.source(rng))})

    def finish_round(self, server, sums, rng):
        return {"mean": (sums.values["mean"] / sums.clients).astype(np.float32)}

    def export_models(self, server, client=None):
        return {"generator": vitrail.Model("mean-image", {"mean": server["mean"]})}


class NoNoise(MeanImage):
    def client_round(self, state, message, data, rng):
        return {}, vitrail.Reply({"mean": clipped((data.pixels / 127.5 - 1).mean(0).ravel(), 1.0)})


class LittleNoise(MeanImage):
    def client_round(self, state, message, data, rng):
        return {}, vitrail.Reply({"mean": noised(np.zeros(64), self.mechanism.sigma / 2, self.source(rng))})


class NoiseInPart(MeanImage):
    def client_round(self, state, message, data, rng):
        reply = super().client_round(state, message, data, rng)[1].parts["mean"]
        return {}, vitrail.Reply({"mean": np.where(np.arange(64) == 5, 0.25, reply)})


class NoNoiseByServer(NoNoise):
    def base_mechanism(self):
        return replace(super().base_mechanism(), noised_by="server")


class InPlace(MeanImage):
    def finish_round(self, server, sums, rng):
        server["mean"] += sums.values["mean"].astype(np.float32)
        return server


class NewEntry(MeanImage):
    def start_round(self, server, clients, rng):
        server["rounds"] = server.get("rounds", 0) + 1
        return server, clients


class InPlaceOnClient(MeanImage):
    def client_init(self, client, rng):
        return {"seen": np.zeros(1)}

    def client_round(self, state, message, data, rng):
        state["seen"] += 1
        return state, super().client_round(state, message, data, rng)[1]


class GlobalNumpy(MeanImage):
    def client_round(self, state, message, data, rng):
        return {}, vitrail.Reply({"mean": np.random.rand(64)})


class GlobalTorch(MeanImage):
    def client_round(self, state, message, data, rng):
        return {}, vitrail.Reply({"mean": torch.rand(64).numpy()})


class NoModels(MeanImage):
    def export_models(self, server, client=None):
        return {}


class DictFromBroadcast(MeanImage):
    def broadcast(self, server, client, full):
        return {"mean": server["mean"]}


class Failing(MeanImage):
    def export_models(self, server, client=None):
        raise KeyError("mean")


def check(method, name, folder):
    getattr(conformance, f"check_{name}")(Subject(method(task=TASK), folder))


@pytest.mark.parametrize("name", ["types", "reproducible", "unchanged_arguments", "noise"])
def test_a_method_that_keeps_the_rules_passes(name, tmp_path: Path) -> None:
    check(MeanImage, name, tmp_path)


@pytest.mark.parametrize(
    ("method", "name", "message"),
    [
        (NoNoise, "noise", "no noise is added"),
        (NoNoiseByServer, "noise", "the server's state does not change"),
        (LittleNoise, "noise", r"mean has noise of 0.9.*declares σ = 2 "),
        (NoiseInPart, "noise", r"at least 0 per element"),
        (InPlace, "unchanged_arguments", "finish_round changed an argument in place"),
        (NewEntry, "unchanged_arguments", "start_round changed"),
        (InPlaceOnClient, "unchanged_arguments", "client_round changed"),
        (GlobalNumpy, "reproducible", "all randomness must come from `rng`"),
        (GlobalTorch, "reproducible", "all randomness must come from `rng`"),
        (NoModels, "types", "export_models must return a dict with a 'generator' or a 'classifier'"),
        (DictFromBroadcast, "types", r"broadcast must return a vitrail\.Broadcast, not dict"),
    ],
)
def test_a_method_that_breaks_a_rule_is_refused(method, name, message, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check(method, name, tmp_path)


def test_any_error_of_a_method_is_an_assertion_error_with_the_check() -> None:
    with pytest.raises(AssertionError, match="check_types: KeyError: 'mean'"):
        check_method(Failing)
