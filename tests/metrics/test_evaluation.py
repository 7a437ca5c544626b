"""One evaluation: what it measures, against which pictures, with which network, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

import vitrail
from tests.federation import digits, quick
from vitrail.data import from_arrays
from vitrail.data import load as load_data
from vitrail.data.dataset import Dataset, Images
from vitrail.experiment.evaluate import evaluate_stored
from vitrail.experiment.plan import prepare
from vitrail.experiment.settings import resolve
from vitrail.metrics import extractors, oracle
from vitrail.metrics.evaluation import LABELLED, evaluate, requested_labels, split_validation
from vitrail.metrics.extractors import Extractor, FeatureSet, choose_ruler, features_of, own
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import Column, file_digest, read, write
from vitrail.metrics.round_metrics import RoundMetrics, round_metrics_for
from vitrail.metrics.samples import Samples
from vitrail.models.model_file import Generator, load, save_model
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng

CLASSES = tuple("0123456789")
CHEAP = ("fd-vitrail", "pixels")


class Replay(nn.Module):
    """A "generator" that shows real train pictures of the asked class, as they are or with noise."""

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


def named(measures, by=None):
    return {m.name: m for m in measures if by is None or m.extractor == by}


@pytest.fixture(scope="module")
def measured():
    clean, noisy = (evaluate(replay(noise), digits(), 600, CHEAP) for noise in (0.0, 0.8))
    return named(clean), named(noisy)


def test_real_pictures_are_near_and_noisy_ones_far(measured):
    clean, noisy = measured
    for name in ("fd-vitrail", "kid", "nmse"):
        assert clean[name].value < noisy[name].value
    for name in ("precision", "coverage", "ssim", "linear-probe"):
        assert clean[name].value > noisy[name].value
    assert clean["linear-probe"].value > 0.7  # of ten classes
    assert clean["precision"].value > 0.8


def test_every_number_bears_its_interval_counts_and_network(measured):
    for m in measured[0].values():
        assert m.low <= m.value <= m.high
        assert m.low < m.high
        assert m.n_real > 0 < m.n_fake
        assert m.extractor
    assert measured[0]["fd-vitrail"].extractor == "vitrail-cifar"
    assert measured[0]["fd-vitrail"].n_fake == 600
    n = len(split_validation(digits().test)[1])
    assert f"biased upwards: {n} samples for 384 dimensions" in measured[0]["fd-vitrail"].note


def test_an_evaluation_gives_the_same_numbers_each_time(measured):
    assert named(evaluate(replay(), digits(), 600, CHEAP)) == measured[0]


def test_every_usual_family_is_computed_and_only_what_was_asked(monkeypatch):
    monkeypatch.setattr(oracle, "LEAST_STEPS", 40)  # what they learn is tested elsewhere
    monkeypatch.setattr(oracle, "MOST_STEPS", 40)
    found = evaluate(replay(), digits(), 200)
    assert {m.name for m in found} >= {"fd-vitrail", "fd-oracle", "score", "oracle-gap", "ssim", "synthetic-to-real"}
    assert not any(m.extractor == "inception" for m in found)
    by_oracle = {m.name for m in found if m.extractor == "oracle"}
    assert "linear-probe" not in by_oracle  # it has learned the labels
    assert {m.name for m in evaluate(replay(), digits(), 50, ["oracle"])} == {"score", "oracle-gap"}


# -- what judges -------------------------------------------------------------------------------------------------------


def test_pictures_that_choose_the_best_round_judge_nothing():
    watch, judge = split_validation(digits().test)
    rows = {p.tobytes() for p in watch.pixels}
    assert len(watch) + len(judge) == len(digits().test)
    assert len(watch) == len(digits().test) // 5
    both = np.concatenate([watch.pixels, judge.pixels])
    assert sorted(p.tobytes() for p in both) == sorted(p.tobytes() for p in digits().test.pixels)
    assert len(rows & {p.tobytes() for p in judge.pixels}) <= 1  # the digits hold a double


def test_a_network_that_a_model_was_trained_against_does_not_rank_it_and_the_note_says_so():
    m = named(evaluate(replay(about={"trained_against": ["vitrail-cifar"]}), digits(), 60, ["fd-vitrail"]))
    assert m["fd-vitrail"].extractor == "vitrail-fashion"
    assert "not vitrail-cifar, which a model here was trained against" in m["fd-vitrail"].note
    with pytest.raises(VitrailError, match="may not rank it"):
        evaluate(replay(about={"trained_against": ["vitrail-cifar"]}), digits(), 60, CHEAP, ruler="vitrail-cifar")
    with pytest.raises(VitrailError, match="trained against all networks of ours"):
        choose_ruler("mnist", ["vitrail-cifar", "vitrail-fashion"])


def test_labels_are_asked_for_in_the_proportions_of_the_real_pictures():
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    asked = requested_labels(labels, 4, 1000, 0)
    assert np.bincount(asked, minlength=4).tolist() == [500, 300, 200, 0]
    assert not asked.equal(asked.sort().values)
    assert len(requested_labels(labels, 4, 7, 0)) == 7


def test_real_features_are_computed_once_for_the_same_content(monkeypatch):
    calls = []
    psi = own("vitrail-cifar")
    counted = Extractor(psi.name, psi.dim, lambda x: calls.append(len(x)) or psi.rows(x), psi.digest + "counted")
    pictures = digits().test.take(np.arange(40))
    first = features_of(counted, pictures)
    again = features_of(counted, Images(pictures.pixels.copy(), pictures.labels.copy()))
    assert calls == [40]
    assert again.gaussian.outer.equal(first.gaussian.outer)
    assert again.kept.equal(first.kept)
    features_of(counted, digits().test.take(np.arange(1, 41)))
    assert calls == [40, 40]


def test_features_of_many_pictures_take_no_more_memory_than_of_some(monkeypatch):
    monkeypatch.setattr(extractors, "KEEP", 25)
    found = FeatureSet.empty(3)
    for _ in range(7):
        found.update(torch.rand(10, 3), torch.zeros(10))
    assert found.gaussian.n == 70
    assert len(found.kept) == len(torch.cat(found.labels)) == 25


def test_pictures_stream_and_are_those_of_sample():
    generator = replay(0.3)
    batches = list(generator.batches(600, seed=3))
    assert [len(x) for x, _ in batches] == [256, 256, 88]
    assert torch.cat([x for x, _ in batches]).equal(generator.sample(600, seed=3))


def test_pictures_made_elsewhere_are_measured_as_a_generators_would_be(tmp_path):
    train = digits().train
    np.savez(tmp_path / "mine.npz", images=train.pixels[:700, 0], labels=train.labels[:700])
    samples = Samples.of(load_data(f"npz:{tmp_path}/mine.npz", size=8))
    found = named(evaluate(samples, digits(), 600, ["fd-vitrail", "oracle"]))
    assert found["fd-vitrail"].value < 0.1
    assert found["score"].value > 0.95
    assert found["score"].n_fake == 600


# -- on the way ---------------------------------------------------------------------------------------------------------


def test_a_gauge_ranks_models_on_the_same_noise_each_time():
    gauge = RoundMetrics(digits(), [])
    assert (
        gauge.distance(replay()) == gauge.distance(replay()) < gauge.distance(replay(0.2)) < gauge.distance(replay(0.6))
    )


def test_a_gauge_gives_the_distance_that_torchmetrics_gives_of_the_same_pictures():
    gauge, generator = RoundMetrics(digits(), []), replay(0.3)
    psi = own("vitrail-cifar")

    class Features(nn.Module):
        num_features = 384

        def forward(self, x):
            return psi.rows(x)

    theirs = FrechetInceptionDistance(feature=Features())
    watch, _ = split_validation(digits().test)
    made = generator.sample(500, requested_labels(watch.labels, 10, 500, 0))
    with torch.no_grad():
        theirs.update(torch.from_numpy(watch.pixels).float() / 127.5 - 1, real=True)
        theirs.update((made * 255).round() / 127.5 - 1, real=False)
    assert gauge.distance(generator) == pytest.approx(float(theirs.compute()), rel=1e-3)


def test_a_generator_that_makes_no_numbers_is_not_measured_along_the_way():
    assert RoundMetrics(digits(), []).distance(replay(float("nan"))) is None


def test_too_few_held_out_pictures_make_no_gauge():
    few = from_arrays(np.zeros((60, 8, 8), np.uint8), size=8)
    assert round_metrics_for(few, []) is None


# -- what is stored -----------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    method = quick("prism")
    server = method.server_init(Rng((1,)))
    save_model(tmp_path / "model.safetensors", method.export_models(server)["generator"], CLASSES, {"data": "digits"})
    return tmp_path / "model.safetensors"


def test_a_model_file_is_measured_at_its_own_size_against_the_data_it_names(model, tmp_path):
    data, columns = evaluate_stored(model, families=["fd-vitrail"], n=50)
    assert data.shape == (1, 8, 8)
    assert (columns[0].name, columns[0].file) == ("stored model", "model.safetensors")
    write(tmp_path / "e.json", data, columns)
    kept = json.loads((tmp_path / "e.json").read_text())
    assert kept["columns"][0]["measures"][0]["name"] == "fd-vitrail"
    assert kept["columns"][0]["asked"] == {"families": ["fd-vitrail"], "n": 50}


def test_a_model_is_judged_by_the_pictures_that_its_own_run_held_out(tmp_path):
    run = vitrail.train("fedgan", data="digits", size=8, clients=2, rounds=1, width=4, latent_dim=8, test_fraction=0.05,
                        workers=1, out=str(tmp_path / "run"))  # fmt: skip
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((run.folder / "model.safetensors").read_bytes())
    data, _ = evaluate_stored(alone, families=["pixels"], n=20)
    trained = {p.tobytes() for p in load_data("digits", size=8, test_fraction=0.05).train.pixels}
    assert not any(p.tobytes() in trained for p in data.test.pixels)


def test_a_model_in_another_runs_folder_is_not_taken_for_that_runs(model, tmp_path):
    other = tmp_path / "other"
    vitrail.train("fedgan", data=f"npz:{_npz(tmp_path)}", size=8, clients=2, rounds=1, width=4, latent_dim=8, workers=1,
                  out=str(other))  # fmt: skip
    (other / "mine.safetensors").write_bytes(model.read_bytes())
    data, _ = evaluate_stored(other / "mine.safetensors", families=["pixels"], n=20)
    assert data.name == "digits"
    with pytest.raises(VitrailError, match="for a run's folder"):
        evaluate_stored(other / "mine.safetensors", best=True)
    own, _ = evaluate_stored(other / "model.safetensors", families=["pixels"], n=20)  # of its own folder
    assert own.name.startswith("npz:")


def _npz(tmp_path):
    train, test = digits().train, digits().test  # of the former alone, none would be held out again
    pixels = np.concatenate([train.pixels[:160, 0], test.pixels[:40, 0]])
    np.savez(tmp_path / "mine.npz", images=pixels, labels=np.concatenate([train.labels[:160], test.labels[:40]]))
    return tmp_path / "mine.npz"


def test_a_model_started_from_another_is_ranked_by_what_neither_was_trained_against(tmp_path):
    small = {"data": "digits", "size": 8, "clients": 2, "rounds": 1, "local_steps": 1, "batch_size": 10, "workers": 1}
    vitrail.train("prism", features="vitrail-cifar", out=str(tmp_path / "a"), eval_every=0, **small)
    plan = prepare(resolve("prism", {**small, "init_from": str(tmp_path / "a"), "out": str(tmp_path / "b")}))
    assert set(plan.against) == {"vitrail-cifar", "vitrail-fashion"}


def test_an_evaluation_keeps_what_an_earlier_one_of_the_same_model_found(tmp_path):
    path, data = tmp_path / "e.json", digits()
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"a model")
    m = [Measure(name, 1.0, 0.5, 1.5, 10, 10, "lower", "x") for name in ("fid", "score")]

    def column(name, measures, asked):
        return Column(name, model.name, file_digest(model), asked, measures)

    write(path, data, [column("stored model", m[:1], {"n": 8})])
    write(path, data, [column("stored model", m[1:], {"n": 9})])
    assert {x.name for x in read(path, model, {"n": 9})} == {"fid", "score"}
    assert read(path, model, {"n": 8}) is None  # it was asked otherwise last
    write(path, data, [column("best round", m[:1], {"n": 9})])
    assert [c["name"] for c in json.loads(path.read_text())["columns"]] == ["best round", "stored model"]
    model.write_bytes(b"another model")
    assert read(path, model, {"n": 9}) is None
    write(path, data, [column("best round", m[1:], {"n": 9})])
    assert [c["name"] for c in json.loads(path.read_text())["columns"]] == ["best round"]
    assert {x.name for x in read(path, model, {"n": 9})} == {"score"}
    path.write_text("{torn")
    assert read(path, model, {"n": 9}) is None


def test_an_ensemble_has_a_new_mask_for_every_batch_and_the_same_pictures_for_a_seed(tmp_path):
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
    kept = (seen[0] != 0).float()
    assert abs(float(kept.mean() - ensemble.net.theta.mean())) < 0.05  # a draw from θ, not its mode


# -- what is refused -----------------------------------------------------------------------------------------------------


def test_other_shapes_and_other_classes_are_refused_in_words():
    wide = from_arrays(np.zeros((60, 16, 16), np.uint8), ["0", "1"] * 30, size=16)
    with pytest.raises(VitrailError, match=r"1 x 8 x 8 .*=given has 1 x 16 x 16"):
        evaluate(replay(), wide, 20)
    colour = from_arrays(np.zeros((60, 8, 8, 3), np.uint8), size=8)
    with pytest.raises(VitrailError, match="3 x 8 x 8"):
        evaluate(replay(), colour, 20)
    letters = from_arrays(np.zeros((60, 8, 8), np.uint8), ["a", "b"] * 30, size=8)
    with pytest.raises(VitrailError, match=r"knows the classes 0, 1, .* has a, b"):
        evaluate(replay(), letters, 20)


def test_without_labels_only_families_that_need_none_are_measured():
    draw = np.random.default_rng(0)
    plain = from_arrays(draw.integers(0, 255, (100, 8, 8), np.uint8), size=8)

    class Noise(nn.Module):
        def forward(self, z, y):
            return z.view(-1, 1, 8, 8).clamp(-1, 1)

    generator = Generator(Noise(), 64, (1, 8, 8), (), {})
    found = {m.name for m in evaluate(generator, plain, 40)}
    assert "fd-vitrail" in found
    assert not found & {"score", "fd-oracle", "synthetic-to-real", "linear-probe"}
    for family in LABELLED:
        with pytest.raises(VitrailError, match=f"{family}: needs two classes"):
            evaluate(generator, plain, 40, [family, "pixels"])


def test_a_labelled_model_is_measured_on_unlabelled_pictures_as_a_whole():
    plain = Dataset("plain", digits().train.without_labels(), digits().test.without_labels())
    found = named(evaluate(replay(), plain, 100, CHEAP))
    assert found["ssim"].n_fake == 100
    assert "linear-probe" not in found


def test_a_generator_that_makes_no_numbers_is_refused():
    with pytest.raises(VitrailError, match="no numbers"):
        evaluate(replay(float("nan")), digits(), 20, ["fd-vitrail"])


def test_unknown_metrics_and_too_few_pictures_are_refused():
    with pytest.raises(VitrailError, match="did you mean fid"):
        evaluate(replay(), digits(), 50, ["fidd"])
    with pytest.raises(VitrailError, match="too few"):
        evaluate(replay(), digits(), 5)


def test_what_is_no_model_is_refused(tmp_path, model):
    with pytest.raises(VitrailError, match="no model at"):
        evaluate_stored(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(VitrailError, match="no model at"):
        evaluate_stored(empty)
    with pytest.raises(VitrailError, match=r"no picture|empty|holds no"):
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
    with pytest.raises(VitrailError, match="kept no best round"):
        evaluate_stored(unfinished, best=True)
