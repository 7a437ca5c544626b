"""Evaluation: its metrics, images and networks, registered metrics, and refusals."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import vitrail
from tests.federation import digits, quick
from vitrail.cli.main import app
from vitrail.data import from_arrays
from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset
from vitrail.experiment.evaluate import evaluate_stored
from vitrail.experiment.plan import prepare
from vitrail.experiment.settings import resolve
from vitrail.metrics import oracle
from vitrail.metrics.evaluation import LABELLED, _measures, evaluate, requested_labels, split_validation
from vitrail.metrics.extractors import choose_feature_network
from vitrail.metrics.measure import Measure
from vitrail.metrics.registry import METRICS
from vitrail.metrics.results_io import read_measures, write_evaluation
from vitrail.metrics.samples import Samples
from vitrail.models.model_file import Generator, load, save_model
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng

CLASSES = tuple("0123456789")
CHEAP = ("fd-vitrail", "pixels")


class Replay(nn.Module):
    """A "generator" that returns real training images of the requested class, with or without noise."""

    def __init__(self, noise=0.0):
        super().__init__()
        self.noise = noise

    def forward(self, z, y):
        train = digits().train
        at = (z[:, 0].mul(1e6).long() % 100).tolist()
        rows = [np.flatnonzero(train.labels == c)[i] for c, i in zip(y.tolist(), at, strict=True)]
        x = torch.from_numpy(train.pixels[rows]).float() / 127.5 - 1
        return (x + self.noise * z[:, :64].view(-1, 1, 8, 8)).clamp(-1, 1)


def replay(noise=0.0, about=None, shape=(1, 8, 8), classes=CLASSES):
    return Generator(Replay(noise), 64, shape, classes, about or {})


def by_name(measures, by=None):
    return {m.name: m for m in measures if by is None or m.extractor == by}


@pytest.fixture(scope="module")
def measured():
    clean, noisy = (evaluate(replay(noise), digits(), 600, CHEAP) for noise in (0.0, 0.8))
    return by_name(clean), by_name(noisy)


def test_real_images_score_better_than_noisy_ones(measured):
    clean, noisy = measured
    for name in ("fd-vitrail", "kid", "nmse"):
        assert clean[name].value < noisy[name].value
    for name in ("precision", "coverage", "ssim", "linear-probe"):
        assert clean[name].value > noisy[name].value
    assert clean["linear-probe"].value > 0.7  # ten classes
    assert clean["precision"].value > 0.8


def test_every_measure_has_its_interval_counts_and_network(measured):
    for m in measured[0].values():
        assert m.low <= m.value <= m.high
        assert m.low < m.high
        assert m.n_real > 0 < m.n_fake
        assert m.extractor
    assert measured[0]["fd-vitrail"].extractor == "vitrail-cifar"
    assert measured[0]["fd-vitrail"].n_fake == 600
    n = len(split_validation(digits().test)[1])
    assert f"biased upwards: {n} samples for 384 dimensions" in measured[0]["fd-vitrail"].note


def test_a_repeated_evaluation_gives_the_same_numbers(measured):
    assert by_name(evaluate(replay(), digits(), 600, CHEAP)) == measured[0]


def test_default_metrics_are_computed_or_only_the_requested_ones(monkeypatch):
    monkeypatch.setattr(oracle, "LEAST_STEPS", 40)  # their training is tested elsewhere
    monkeypatch.setattr(oracle, "MOST_STEPS", 40)
    found = evaluate(replay(), digits(), 200)
    assert {m.name for m in found} >= {"fd-vitrail", "fd-oracle", "score", "oracle-gap", "ssim", "synthetic-to-real"}
    assert not any(m.extractor == "inception" for m in found)
    by_oracle = {m.name for m in found if m.extractor == "oracle"}
    assert "linear-probe" not in by_oracle  # it was trained with the labels
    assert {m.name for m in evaluate(replay(), digits(), 50, ["oracle"])} == {"score", "oracle-gap"}


def test_images_that_choose_the_best_round_are_not_used_in_evaluation():
    validation, test = split_validation(digits().test)
    rows = {p.tobytes() for p in validation.pixels}
    assert len(validation) + len(test) == len(digits().test)
    assert len(validation) == len(digits().test) // 5
    both = np.concatenate([validation.pixels, test.pixels])
    assert sorted(p.tobytes() for p in both) == sorted(p.tobytes() for p in digits().test.pixels)
    assert len(rows & {p.tobytes() for p in test.pixels}) <= 1  # the digits contain a duplicate


def test_a_network_that_a_model_was_trained_against_does_not_rank_it():
    m = by_name(evaluate(replay(about={"trained_against": ["vitrail-cifar"]}), digits(), 60, ["fd-vitrail"]))
    assert m["fd-vitrail"].extractor == "vitrail-fashion"
    assert "not vitrail-cifar, which a model here was trained against" in m["fd-vitrail"].note
    with pytest.raises(VitrailError, match="may not rank it"):
        evaluate(
            replay(about={"trained_against": ["vitrail-cifar"]}), digits(), 60, CHEAP, feature_network="vitrail-cifar"
        )
    with pytest.raises(VitrailError, match="trained against all networks of this package"):
        choose_feature_network("mnist", ["vitrail-cifar", "vitrail-fashion"])


def test_requested_labels_have_the_proportions_of_the_real_images():
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    requested = requested_labels(labels, 4, 1000, 0)
    assert np.bincount(requested, minlength=4).tolist() == [500, 300, 200, 0]
    assert not requested.equal(requested.sort().values)
    assert len(requested_labels(labels, 4, 7, 0)) == 7


def test_batches_are_the_images_of_sample():
    generator = replay(0.3)
    batches = list(generator.batches(600, seed=3))
    assert [len(x) for x, _ in batches] == [256, 256, 88]
    assert torch.cat([x for x, _ in batches]).equal(generator.sample(600, seed=3))


def test_given_images_are_measured_like_those_of_a_generator(tmp_path):
    train = digits().train
    np.savez(tmp_path / "mine.npz", images=train.pixels[:700, 0], labels=train.labels[:700])
    samples = Samples.of(load_data(f"npz:{tmp_path}/mine.npz", size=8))
    found = by_name(evaluate(samples, digits(), 600, ["fd-vitrail", "oracle"]))
    assert found["fd-vitrail"].value < 0.1
    assert found["score"].value > 0.95
    assert found["score"].n_fake == 600


@pytest.fixture
def model(tmp_path):
    return _model(tmp_path, "digits")


def _model(tmp_path, data):
    method = quick("prism")
    server = method.server_init(Rng((1,)))
    save_model(tmp_path / "model.safetensors", method.export_models(server)["generator"], CLASSES, {"data": data})
    return tmp_path / "model.safetensors"


def test_a_model_file_is_measured_at_its_size_against_its_data(model, tmp_path):
    data, columns = evaluate_stored(model, families=["fd-vitrail"], n=50)
    assert data.shape == (1, 8, 8)
    assert (columns[0].name, columns[0].file) == ("stored model", "model.safetensors")
    write_evaluation(tmp_path / "e.json", data, columns)
    written = json.loads((tmp_path / "e.json").read_text())
    assert written["columns"][0]["measures"][0]["name"] == "fd-vitrail"
    assert written["columns"][0]["asked"] == {"families": ["fd-vitrail"], "n": 50}


def test_a_model_is_measured_on_the_test_images_of_its_run(tmp_path):
    run = vitrail.train("fedgan", data="digits", size=8, clients=2, rounds=1, width=4, latent_dim=8, test_fraction=0.05,
                        workers=1, out=str(tmp_path / "run"))  # fmt: skip
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((run.folder / "model.safetensors").read_bytes())
    data, _ = evaluate_stored(alone, families=["pixels"], n=20)
    trained = {p.tobytes() for p in load_data("digits", size=8, test_fraction=0.05).train.pixels}
    assert not any(p.tobytes() in trained for p in data.test.pixels)


def test_a_model_in_another_runs_folder_is_measured_on_its_own_data(model, tmp_path):
    other = tmp_path / "other"
    vitrail.train("fedgan", data=f"npz:{_npz(tmp_path)}", size=8, clients=2, rounds=1, width=4, latent_dim=8, workers=1,
                  out=str(other))  # fmt: skip
    (other / "mine.safetensors").write_bytes(model.read_bytes())
    data, _ = evaluate_stored(other / "mine.safetensors", families=["pixels"], n=20)
    assert data.name == "digits"
    with pytest.raises(VitrailError, match="for a run's folder"):
        evaluate_stored(other / "mine.safetensors", best=True)
    own, _ = evaluate_stored(other / "model.safetensors", families=["pixels"], n=20)  # the folder's own model
    assert own.name.startswith("npz:")


def _npz(tmp_path):
    train, test = digits().train, digits().test  # training images alone would give no test images
    pixels = np.concatenate([train.pixels[:160, 0], test.pixels[:40, 0]])
    np.savez(tmp_path / "mine.npz", images=pixels, labels=np.concatenate([train.labels[:160], test.labels[:40]]))
    return tmp_path / "mine.npz"


def test_a_warm_started_run_counts_both_feature_networks(tmp_path):
    small = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "local_steps": 1, "batch_size": 10, "workers": 1}
    vitrail.train("prism", features="vitrail-cifar", out=str(tmp_path / "a"), eval_every=0, **small)
    plan = prepare(resolve("prism", {**small, "init_from": str(tmp_path / "a"), "out": str(tmp_path / "b")}))
    assert set(plan.against) == {"vitrail-cifar", "vitrail-fashion"}


def test_an_ensemble_has_a_new_mask_per_batch_and_the_same_images_per_seed(tmp_path):
    from tests.federation import federate

    method = quick("prism", rounds=2)
    fed, _, _ = federate(method, tmp_path)
    model = method.export_models(fed.server)["ensemble"]
    save_model(tmp_path / "ensemble.safetensors", model, CLASSES, {})
    ensemble = load(tmp_path / "ensemble.safetensors")
    assert ensemble.sample(20, seed=1).equal(ensemble.sample(20, seed=1))
    z, y = torch.randn(4, ensemble.z), torch.arange(4)
    seen = []
    with torch.no_grad():
        for other in (z, torch.cat([z[:3], z[3:] + 1])):
            ensemble.net(other, y)
            seen.append(torch.cat([p.flatten() for p in ensemble.net.masked.net.parameters()]).clone())
    assert not seen[0].equal(seen[1])
    ones = (seen[0] != 0).float()
    assert abs(float(ones.mean() - ensemble.net.theta.mean())) < 0.05  # a draw from θ, not its mode


def test_other_shapes_and_classes_are_refused():
    wide = from_arrays(np.zeros((60, 16, 16), np.uint8), ["0", "1"] * 30, size=16)
    with pytest.raises(VitrailError, match=r"1 x 8 x 8 .*=given has 1 x 16 x 16"):
        evaluate(replay(), wide, 20)
    colour = from_arrays(np.zeros((60, 8, 8, 3), np.uint8), size=8)
    with pytest.raises(VitrailError, match="3 x 8 x 8"):
        evaluate(replay(), colour, 20)
    letters = from_arrays(np.zeros((60, 8, 8), np.uint8), ["a", "b"] * 30, size=8)
    with pytest.raises(VitrailError, match=r"the model has the classes 0, 1, .* has a, b"):
        evaluate(replay(), letters, 20)
    with pytest.raises(VitrailError, match=r"the given images have the classes 0, 1, .* has a, b"):
        evaluate(Samples.of(digits()), letters, 20)


def test_without_labels_only_metrics_that_need_none_are_computed():
    draw = np.random.default_rng(0)
    plain = from_arrays(draw.integers(0, 255, (100, 8, 8), np.uint8), size=8)

    class Noise(nn.Module):
        def forward(self, z, y):
            return z.view(-1, 1, 8, 8).clamp(-1, 1)

    generator = Generator(Noise(), 64, (1, 8, 8), (), {})
    found = {m.name for m in evaluate(generator, plain, 40)}
    assert "fd-vitrail" in found
    assert not found & {"score", "fd-oracle", "synthetic-to-real", "linear-probe"}
    for metric in LABELLED:
        with pytest.raises(VitrailError, match=f"{metric}: needs two classes"):
            evaluate(generator, plain, 40, [metric, "pixels"])


def test_a_labelled_model_is_measured_on_unlabelled_images():
    plain = Dataset("plain", digits().train.without_labels(), digits().test.without_labels())
    found = by_name(evaluate(replay(), plain, 100, CHEAP))
    assert found["ssim"].n_fake == 100
    assert "linear-probe" not in found


def test_a_generator_with_pixels_that_are_not_finite_is_refused():
    with pytest.raises(VitrailError, match="not finite"):
        evaluate(replay(float("nan")), digits(), 20, ["fd-vitrail"])


def test_unknown_metrics_and_too_few_images_are_refused():
    with pytest.raises(VitrailError, match="did you mean fid"):
        evaluate(replay(), digits(), 50, ["fidd"])
    with pytest.raises(VitrailError, match="too few"):
        evaluate(replay(), digits(), 5)


def test_counts_that_a_metric_omits_are_those_of_the_evaluation():
    found = _measures("x", [Measure("a", 0.5, better="lower"), Measure("b", 0.5, n_real=7, n_fake=0)], 20, 30)
    assert [(m.n_real, m.n_fake) for m in found] == [(20, 30), (7, 0)]
    assert [m.better for m in found] == ["lower", ""]


def test_missing_training_images_are_reported_with_the_folder_that_was_searched(tmp_path, monkeypatch):
    model = _model(tmp_path, "npz:mine.npz")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        VitrailError, match=rf"no file mine.npz \(looked in {tmp_path}\).*where the run was started.*--data"
    ):
        evaluate_stored(model, families=["pixels"], n=20)
    with pytest.raises(VitrailError) as failed:
        evaluate_stored(model, "folder:/nowhere", n=20)
    assert str(failed.value) == "data=folder:/nowhere: there is no folder /nowhere; give the path of a folder of images"


def test_a_model_of_nodes_needs_named_images_and_says_that_they_may_be_training_images(tmp_path):
    model = _model(tmp_path, "nodes")
    with pytest.raises(VitrailError, match="trained on the nodes' images; name other images with --data"):
        evaluate_stored(model, n=20)
    _, columns = evaluate_stored(model, "digits", families=["pixels"], n=20)
    assert all("whether they had these images is not known" in m.note for m in columns[0].measures)


def test_files_and_folders_that_are_not_models_are_refused(tmp_path, model):
    with pytest.raises(VitrailError, match="no model at"):
        evaluate_stored(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(VitrailError, match="no model at"):
        evaluate_stored(empty)
    with pytest.raises(VitrailError, match=r"no image|empty"):
        evaluate_stored(model, f"folder:{empty}")
    (tmp_path / "text.safetensors").write_text("not a model")
    with pytest.raises(Malformed, match="not a vitrail file"):
        evaluate_stored(tmp_path / "text.safetensors")
    torn = model.read_bytes()
    for cut in (0, 7, len(torn) // 2, len(torn) - 1):
        (tmp_path / "torn.safetensors").write_bytes(torn[:cut])
        with pytest.raises(Malformed):
            evaluate_stored(tmp_path / "torn.safetensors")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "settings.toml").write_text('method = "prism"')
    with pytest.raises(VitrailError, match="vitrail resume"):
        evaluate_stored(unfinished)
    (unfinished / "model.safetensors").write_bytes(torn)
    with pytest.raises(VitrailError, match="stored no best round"):
        evaluate_stored(unfinished, best=True)


class Brightness:
    """A metric as a user would write it."""

    def __init__(self, context):
        self.real = context.test.pixels.mean() / 127.5 - 1
        self.batches = []

    def update(self, images, labels):
        assert len(images) == len(labels)
        self.batches.append(images)

    def compute(self):
        mean = float(torch.cat(self.batches).mean())
        return {"brightness": mean, "brightness-gap": mean - self.real}


@pytest.fixture
def brightness():
    METRICS.add("brightness", Brightness, "mean pixel")
    yield
    METRICS._added.pop("brightness")


def test_a_registered_metric_is_computed_when_it_is_named(brightness):
    found = by_name(evaluate(replay(), digits(), 300, ["brightness", "pixels"]))
    x = torch.cat(
        [x for x, _ in replay().batches(300, requested_labels(split_validation(digits().test)[1].labels, 10, 300, 0))]
    )
    assert found["brightness"].value == pytest.approx(float((x * 2 - 1).mean()), abs=1e-5)
    assert (found["brightness"].n_fake, found["brightness"].extractor) == (300, "")
    assert np.isnan(found["brightness"].low)
    assert "ssim" in found


def test_the_class_of_a_metric_is_accepted_in_place_of_its_name(brightness, model):
    by_name, by_class = (vitrail.evaluate(model, metrics=[m], n=20) for m in ("brightness", METRICS["brightness"]))
    assert [m.name for m in by_class] == ["brightness", "brightness-gap"]
    assert by_class[1] == by_name[1]


def test_the_command_line_computes_lists_and_writes_a_registered_metric(brightness, model, tmp_path):
    out = tmp_path / "e.json"
    result = CliRunner().invoke(app, ["evaluate", str(model), "--metrics", "brightness", "-n", "20", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "brightness-gap" in result.output
    assert "by brightness" not in result.output
    written = json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    first = written["columns"][0]["measures"][0]
    assert (first["name"], first["low"], first["high"]) == ("brightness", None, None)
    (m, _) = read_measures(out, model, written["columns"][0]["asked"])
    assert np.isnan(m.low)
    assert "brightness" in CliRunner().invoke(app, ["list"]).output


@pytest.mark.parametrize("result", ["good", [1.0], {"a": "good"}, None])
def test_a_metric_that_returns_no_numbers_is_refused(result, monkeypatch):
    class Wrong:
        def __init__(self, context):
            pass

        def update(self, images, labels):
            pass

        def compute(self):
            return result

    monkeypatch.setattr(METRICS, "_added", {})
    with pytest.raises(VitrailError, match=r"metric wrong: compute\(\) returned .*, expected a number"):
        evaluate(replay(), digits(), 20, [Wrong])
