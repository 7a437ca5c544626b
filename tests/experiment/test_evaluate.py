"""Every client's own generator, on held-out images as this client would see them."""

import json

import pytest
from typer.testing import CliRunner

import vitrail
from vitrail.cli.main import app
from vitrail.data import load as load_data
from vitrail.data.transforms import transformed_test_images
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.compare import EvalConfig, compare, entries
from vitrail.experiment.evaluate import by_client, evaluate_clients
from vitrail.experiment.personal import load_personal
from vitrail.metrics.distances import Distances
from vitrail.metrics.evaluation import round_to_8_bits, split_validation
from vitrail.metrics.extractors import choose_feature_network, features_of, load_extractor
from vitrail.models.model_file import load, save_model
from vitrail.report.comparison_tables import by_clients, standings
from vitrail.utils.errors import VitrailError
from vitrail.utils.state import load as load_state

pytestmark = pytest.mark.slow

TINY = {
    "data": "digits", "size": 8, "partition": "domains:invert,blur", "rounds": 1, "width": 4, "latent_dim": 8,
    "workers": 1, "eval_every": 0, "grids": 0, "labels": "ignore", "clients": 2, "seed": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return vitrail.train("padpaf", **TINY, out=str(tmp_path_factory.mktemp("run") / "padpaf")).folder


@pytest.fixture(scope="module")
def columns(run):
    return evaluate_clients(run, n=200)[1]


def test_each_client_is_measured_on_its_own_domain(run, columns):
    """The same distance, from its parts: the client's generator, its transform, the half that judges."""
    data = load_data("digits", size=8)
    extractor = load_extractor(choose_feature_network("digits", []))
    for c, name in zip(columns, ("invert", "blur"), strict=True):
        _, test = split_validation(data.test)
        assert c.name == name
        _, real = split_validation(transformed_test_images(data, name, 3))
        plain = Distances(extractor, features_of(extractor, real), "fd-vitrail")
        for x, _ in load_personal(run, name).batches(200):
            plain.update(round_to_8_bits(x), None)
        (fd,) = (m for m in c.measures if m.name == "fd-vitrail")
        assert (fd.value, fd.low, fd.high) == pytest.approx(plain._frechet(), rel=1e-4)
        assert (fd.n_real, fd.n_fake, fd.extractor) == (len(test), 200, extractor.name)
    mean = by_client(columns)[0]
    values = [m.value for c in columns for m in c.measures if m.name == "fd-vitrail"]
    assert mean.value == pytest.approx(sum(values) / 2)
    assert mean.low <= mean.value <= mean.high


def test_a_network_that_the_run_trained_against_is_refused(run, tmp_path):
    for path in run.iterdir():
        (tmp_path / path.name).symlink_to(path)
    model, tree = tmp_path / "model.safetensors", load_state(run / "model.safetensors")
    model.unlink()
    from vitrail.methods.base import Model

    about = {**load(run).about, "trained_against": ["vitrail-cifar"]}
    save_model(model, Model(tree["kind"], tree["model"]), tree["names"], about)
    with pytest.raises(VitrailError, match="trained against vitrail-cifar"):
        evaluate_clients(tmp_path, n=20, feature_network="vitrail-cifar")


def test_the_command_line_prints_a_line_a_client_and_keeps_them(run, columns):
    done = CliRunner().invoke(app, ["evaluate", str(run), "--clients", "-n", "200"])
    assert done.exit_code == 0, done.output
    assert all(word in done.output for word in ("invert", "blur", "mean of clients"))
    stored = json.loads((run / "clients.json").read_text())
    assert [c["name"] for c in stored["columns"]] == ["invert", "blur"]
    assert stored["columns"][0]["measures"][0]["value"] == pytest.approx(columns[0].measures[0].value)
    for words, message in (
        (["--best"], "remove --data, --best and --ensemble"),
        (["--metrics", "oracle"], "not oracle"),
    ):
        refused = CliRunner().invoke(app, ["evaluate", str(run), "--clients", *words])
        assert isinstance(refused.exception, VitrailError)
        assert message in str(refused.exception)


def test_a_comparison_shows_the_mean_and_every_client(tmp_path, monkeypatch):
    file = tmp_path / "two.toml"
    lines = [f"{k} = {json.dumps(v)}" for k, v in {"method": "padpaf", **TINY}.items() if k != "seed"]
    runs = ['[[runs]]\nname = "ours"', '[[runs]]\nname = "FedAvg"\nshared = "everything"']
    file.write_text("\n".join([*lines, *runs]))
    how, found = EvalConfig(n=100, families=["fd-vitrail"], clients=True), entries([str(file)], {})
    compare(found, [0], tmp_path / "out", how, lambda *_: Callback())
    assert not [text for e in found for text in e.failed]
    table, clients = standings(found, how), by_clients(found)
    assert "fd-vitrail, mean of clients ↓" in table.columns
    assert not [c for c in table.columns if "of client " in c]
    assert "biased upwards" in table.note
    assert " of client " not in table.note, "what applies to every client is stated once"
    assert clients.columns == ["", "ours", "FedAvg"]
    assert [row[0] for row in clients.rows] == ["fd-vitrail of client invert ↓", "fd-vitrail of client blur ↓"]
    assert all(" to " in cell for row in clients.rows for cell in row[1:])
    monkeypatch.setattr("vitrail.experiment.evaluate.evaluate", None)  # a second time, nothing is measured
    again = entries([str(file)], {})
    compare(again, [0], tmp_path / "out", how, lambda *_: Callback())
    assert [e.found for e in again] == [e.found for e in found]
    with pytest.raises(VitrailError, match="remove --best"):
        compare(
            entries([str(file)], {}),
            [0],
            tmp_path / "out",
            EvalConfig(best=True, clients=True),
            lambda *_: Callback(),
        )
