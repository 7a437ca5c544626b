"""Methods and networks from outside the package: what works, and what is refused before training."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from pydantic import AfterValidator
from torch import nn
from typer.testing import CliRunner

import vitrail
from vitrail.cli.listing import list_
from vitrail.cli.main import app
from vitrail.experiment import settings as config
from vitrail.experiment.plugins import check_processes, name_classes
from vitrail.experiment.settings import settings_model
from vitrail.methods.registry import METHODS
from vitrail.nets.discriminators import DISCRIMINATORS
from vitrail.nets.generators import GENERATORS
from vitrail.utils.errors import VitrailError
from vitrail.utils.registry import Registry

SMALL = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "eval_every": 0}


@dataclass(frozen=True)
class Nothing(vitrail.BaseMethod):
    """Sends one number, and exports a model of a kind that has no reader."""

    factor: float = 1.0

    def reply_spec(self):
        return {"one": vitrail.PartSpec("sum", "float32", 1)}

    def server_init(self, rng, data=None, start=None):
        return {"total": np.zeros(1, np.float32)}

    def broadcast(self, server, client, full):
        return vitrail.Broadcast({"total": ("float32", server["total"])})

    def client_round(self, state, message, data, rng):
        return {}, vitrail.Reply({"one": np.ones(1, np.float32)})

    def finish_round(self, server, sums, rng):
        return {"total": sums.values["one"].astype(np.float32)}

    def export_models(self, server, client=None):
        return {"generator": vitrail.Model("a kind without a reader", {"shape": [1, 8, 8], "classes": 0})}


class Plain(nn.Module):
    """A generator of one linear layer."""

    def __init__(self, shape, classes, width):
        super().__init__()
        self.z, self.shape, self.classes = 16, shape, classes
        self.layer = nn.Linear(16 + classes, int(np.prod(shape)), bias=False)

    def forward(self, z, labels=None):
        if labels is not None and self.classes:
            z = torch.cat([z, nn.functional.one_hot(labels, self.classes).to(z.dtype)], 1)
        return torch.tanh(self.layer(z)).view(-1, *self.shape)


def test_a_model_kind_without_a_reader_is_refused_before_training(tmp_path):
    with pytest.raises(VitrailError, match=r"a kind without a reader.*VITRAIL_PLUGINS"):
        vitrail.train(Nothing, **SMALL, out=str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_fields_without_annotations_of_pydantic_are_settings():
    METHODS.name_of(Nothing)
    assert settings_model("nothing").model_fields["factor"].default == 1.0
    with pytest.raises(VitrailError, match=r"factr = 2: not a setting; did you mean factor\?"):
        vitrail.train(Nothing, factr=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_is_accepted_as_the_generator(workers, tmp_path):
    run = vitrail.train(
        "prism", generator=Plain, **SMALL, local_steps=2, batch_size=10, workers=workers, out=str(tmp_path / "x")
    )
    assert run.settings.generator == "plain"
    assert run.generator.sample(3).shape == (3, 1, 8, 8)


def test_a_class_inside_a_function_runs_in_one_process_only(tmp_path, monkeypatch):
    class Local(Plain):
        pass

    small = {**SMALL, "local_steps": 1, "batch_size": 10}
    with pytest.raises(VitrailError, match=r"workers=2: worker processes cannot import generator local.*move it"):
        vitrail.train("prism", generator=Local, **small, workers=2, out=str(tmp_path / "x"))
    with pytest.raises(VitrailError, match="Flower's processes do not know generator local"):
        vitrail.train("prism", generator=Local, **small, engine="flower", out=str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.warns(UserWarning, match="only this script can read its model"):
        vitrail.train("prism", generator=Local, **small, out=str(tmp_path / "x"))


def test_classes_are_refused_where_no_network_is_expected():
    with pytest.raises(VitrailError, match="rounds: a class was given"):
        vitrail.train("prism", rounds=int)


DECODERS = Registry[Any]("decoder", "vitrail.test_decoders")


@dataclass(frozen=True)
class Decoding(Nothing):
    """A method with a registry of its own, and with a setting whose name another method uses, too."""

    decoder: Annotated[str, AfterValidator(DECODERS.check)] = ""
    features: str = "edges of the image"


def test_a_class_is_accepted_by_any_setting_that_a_registry_checks():
    name = METHODS.name_of(Decoding)
    given = name_classes([name], {"decoder": Plain})
    assert config.resolve(name, given).decoder == "plain"
    assert DECODERS["plain"] is Plain
    with pytest.raises(VitrailError, match="only decoder accept one"):
        name_classes([name], {"features": Plain})


def test_a_method_may_have_a_setting_named_features():
    DECODERS.name_of(Plain)
    found = config.resolve(METHODS.name_of(Decoding), {"features": "corners", "decoder": "plain"})
    assert found.features == "corners"


def test_what_is_no_method_is_refused():
    with pytest.raises(VitrailError, match=r"3 is not a method.*vitrail\.BaseMethod"):
        vitrail.train(3)


def test_an_incomplete_method_is_refused_with_what_is_missing():
    @dataclass(frozen=True)
    class Incomplete(vitrail.BaseMethod):
        lr: float = 0.1

    with pytest.raises(VitrailError, match="Incomplete does not define broadcast, client_round, export_models"):
        vitrail.train(Incomplete)


def test_a_method_that_is_not_a_dataclass_is_refused():
    class NoDataclass(Nothing):
        rate: float = 0.1

    with pytest.raises(VitrailError, match=r"decorate it with @dataclass\(frozen=True\)"):
        vitrail.train(NoDataclass)


def test_a_field_that_every_run_has_is_refused():
    @dataclass(frozen=True)
    class Shadowing(Nothing):
        rounds: int = 3

    with pytest.raises(VitrailError, match="every run has a setting of this name"):
        vitrail.train(Shadowing)


def test_a_field_that_is_no_value_is_refused():
    @dataclass(frozen=True)
    class Odd(Nothing):
        net: nn.Module | None = None

    with pytest.raises(VitrailError, match="its fields cannot be settings"):
        vitrail.train(Odd)


def test_callbacks_are_called_in_order_and_by_name(tmp_path):
    calls: list[Any] = []

    @vitrail.register_callback("recorder")
    class Recorder(vitrail.Callback):
        def on_run_start(self, plan, done):
            calls.append(("start", done))

        def on_reply(self, result):
            calls.append(("reply", len(result.replied)))

        def on_round_end(self, result, row):
            calls.append(("round", row["round"]))

        def on_run_end(self, run):
            calls.append(("end", (run.folder / "report.html").exists()))

    small = {**SMALL, "local_steps": 1, "batch_size": 10, "workers": 1}
    vitrail.train("prism", **small, callbacks=["recorder"], out=str(tmp_path / "x"))
    assert [c[0] for c in calls] == ["start", "reply", "reply", "round", "end"]
    assert calls[-1] == ("end", True)
    with pytest.raises(VitrailError, match="recoder is not a callback; did you mean recorder"):
        vitrail.train("prism", **small, callbacks=["recoder"], out=str(tmp_path / "y"))


def test_flower_knows_classes_below_a_package_of_vitrail_plugins(monkeypatch):
    how = config.resolve("prism", {"generator": GENERATORS.name_of(Plain), "engine": "flower"})
    with pytest.raises(VitrailError, match="Flower's processes do not know generator plain"):
        check_processes(how)
    package = Plain.__module__.rpartition(".")[0]
    monkeypatch.setenv("VITRAIL_PLUGINS", f"json, {package}")
    check_processes(how)
    monkeypatch.setenv("VITRAIL_PLUGINS", package[:-1])  # a prefix of the name is another package
    with pytest.raises(VitrailError):
        check_processes(how)


def test_the_list_of_settings_has_the_names_of_registries():
    GENERATORS.name_of(Plain)
    shown = CliRunner().invoke(app, ["list", "prism"], env={"COLUMNS": "300"}).output
    assert "generator network; one of small, resnet, sngan, dcgan, smooth" in shown
    assert ", plain" in shown
    assert "; one of vitrail-fashion, vitrail-cifar, vgg19" in shown


def test_an_unknown_name_of_a_registry_is_refused_with_the_way_to_register_it():
    with pytest.raises(VitrailError, match=r"generator = 'my-net': must be one of small, .* in VITRAIL_PLUGINS"):
        config.resolve("prism", {"generator": "my-net"})


def test_a_plugin_that_registers_nothing_is_named(tmp_path, monkeypatch, caplog):
    (tmp_path / "idle_plugin.py").write_text("")
    (tmp_path / "busy_plugin.py").write_text(
        "import vitrail\nvitrail.register_transform('busy', '')(lambda x, rng: x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VITRAIL_PLUGINS", "idle_plugin,busy_plugin")
    assert "prism" in list(METHODS)
    assert [r.getMessage().partition(";")[0] for r in caplog.records] == [
        "VITRAIL_PLUGINS: idle_plugin registered nothing"
    ]


def test_sources_of_values_are_explained_only_where_a_setting_has_one(capsys):
    list_(METHODS.name_of(Nothing))
    assert "paper: value of the paper" not in capsys.readouterr().out
    list_("prism")
    assert "paper: value of the paper" in capsys.readouterr().out


def test_a_class_is_accepted_as_the_discriminator():
    assert name_classes(["psfedgan"], {"d_architecture": Plain}) == {"d_architecture": "plain"}
    assert "plain" in DISCRIMINATORS


def test_compare_accepts_classes_of_methods_and_networks(tmp_path):
    how = {**SMALL, "local_steps": 1, "workers": 1, "generator": Plain}
    (entry,) = vitrail.compare(["prism"], out=tmp_path / "a", metrics=["pixels"], n=20, **how)
    assert entry.settings.generator == "plain"
    assert len(entry.found) == 1
    with pytest.raises(VitrailError, match=r"Nothing\(\.\.\.\) is an object; give its class"):
        vitrail.compare([Nothing()], out=tmp_path / "b")
    (entry,) = vitrail.compare([Nothing], out=tmp_path / "b", metrics=["pixels"], **SMALL)
    assert "a kind without a reader" in entry.failed[0]
