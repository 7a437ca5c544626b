"""Settings: validated at once, refused with remedies, written so that they can be read again."""

import tomllib

import pytest

from vitrail.experiment.settings import identity, parse_override, resolve, settings_model, to_toml
from vitrail.experiment.validation import BadSettings
from vitrail.methods import METHODS
from vitrail.utils.errors import VitrailError


def problems(what, **values):
    with pytest.raises(BadSettings) as caught:
        resolve(what, values)
    return {p.setting: p.remedy for p in caught.value.problems}


def test_every_problem_is_reported_at_once_with_its_remedy():
    found = problems(
        "prism", clients=0, rounds="many", data="minst", partition="dirichlet", lr=-1, lerning_rate=1,
        features="vgg", size=20, client_dropout=1.5, generator="huge", workers=0,
    )  # fmt: skip
    assert set(found) == {
        "clients", "rounds", "data", "partition", "lr", "lerning_rate", "features", "size", "client_dropout", "generator", "workers",
    }  # fmt: skip
    assert "at least 1" in found["clients"]
    assert "integer" in found["rounds"]
    assert "did you mean mnist?" in found["data"]
    assert "dirichlet:ALPHA" in found["partition"]
    assert "more than 0" in found["lr"]
    assert "less than 1" in found["client_dropout"]
    assert "vitrail-fashion" in found["features"]
    assert "one of small, resnet, sngan, dcgan" in found["generator"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("clints", "clients"), ("partion", "partition"), ("local_step", "local_steps"), ("init_form", "init_from")],
)
def test_an_unknown_key_is_refused_with_the_nearest_known(wrong, right):
    assert problems("prism", **{wrong: 1})[wrong] == f"not a setting; did you mean {right}?"


def test_a_key_unlike_any_other_is_refused_with_the_command_that_lists_all():
    assert problems("fedgan", zebra=1)["zebra"] == "not a setting; `vitrail list fedgan` shows all"
    assert problems("mdgan", epsilon=1)["epsilon"] == "not a setting; `vitrail list mdgan` shows all"


def test_numbers_must_be_finite_numbers():
    assert set(problems("prism", lr=float("inf"), clients=True, score_std=float("nan"))) == {
        "lr",
        "clients",
        "score_std",
    }


def test_one_methods_settings_are_not_anothers():
    assert "not a setting" in problems("prism", sync="g")["sync"]
    assert resolve("fedgan", {"sync": "g"}).sync == "g"


def test_an_unknown_method_is_refused_with_the_nearest_known():
    assert "did you mean prism?" in problems("prsm")["method"]
    assert set(problems("prsm", clients=0)) == {"method", "clients"}


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"clients_per_round": 20}, "clients_per_round"),
        ({"quorum": 11}, "quorum"),
        ({"clients_per_round": 3, "quorum": 4}, "quorum"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values, setting):
    assert set(problems("prism", **values)) == {setting}


@pytest.mark.parametrize("method", METHODS)
def test_resolved_settings_survive_a_trip_through_their_file(method, tmp_path):
    settings = resolve(
        method, {"seed": 7, "partition": "skew:0.7", "clients_per_round": 2, "init_from": "runs/x", "out": "o"}
    )
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(settings, "0"))
    assert resolve(str(path), {}) == settings
    assert tomllib.loads(path.read_text())["init_from"] == "runs/x"


def test_overrides_win_over_the_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('method = "prism"\nclients = 4\nseed = 2\n')
    found = resolve(str(path), {"clients": 5})
    assert (found.clients, found.seed) == (5, 2)


@pytest.mark.parametrize(("text", "message"), [("method = ", "not valid TOML"), (None, "cannot read")])
def test_a_file_that_is_none_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "a.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(VitrailError, match=message) as caught:
        resolve(str(path), {})
    assert "a.toml" in str(caught.value)


def test_a_file_without_a_method_is_refused(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("clients = 4\n")
    assert "known are prism" in problems(str(path))["method"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=0.5", 0.5), ("a=true", True), ("a=x", "x"), ("a=x=y", "x=y"), ('a="7"', "7"), ("a=2026-01-01", "2026-01-01"), ("a=", "")],
)  # fmt: skip
def test_overrides_are_parsed_as_numbers_booleans_or_text(text, value):
    assert parse_override(text) == ("a", value)


@pytest.mark.parametrize("text", ["clients", "=3"])
def test_what_is_no_override_is_refused(text):
    with pytest.raises(VitrailError, match="key=value"):
        parse_override(text)


def test_a_runs_identity_changes_with_what_decides_its_bits_and_nothing_else():
    base = resolve("prism", {"out": "a"})
    assert identity(base, "d") == identity(resolve("prism", {"out": "b", "workers": 3, "grids": 0}), "d")
    assert identity(base, "d") != identity(base, "e")
    assert identity(base, "d") != identity(resolve("prism", {"out": "a", "lr": 0.05}), "d")


def test_a_setting_added_later_changes_the_identity_only_at_other_values(monkeypatch):
    base, other = resolve("fedavg", {}), resolve("fedavg", {"lr": 0.5})
    before, before_other = identity(base, "d"), identity(other, "d")
    monkeypatch.setattr(METHODS["fedavg"], "added_later", {"lr": base.lr}, raising=False)
    assert identity(base, "d") != before
    assert identity(other, "d") == before_other
    for name, value in METHODS["moments"].added_later.items():
        assert settings_model("moments").model_fields[name].default in (value, "auto")


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_has_a_description(method):
    assert all(f.description for f in settings_model(method).model_fields.values())
