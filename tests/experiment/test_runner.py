"""A run: killed, repeated, started from another, given bad folders and bad data."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.federation import digits, same
from vitrail.auditing.audit_run import audit_run
from vitrail.data import from_arrays
from vitrail.data import load as load_data
from vitrail.experiment import settings as config
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.evaluate import evaluate_stored
from vitrail.experiment.plan import prepare
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.validation import GIVEN
from vitrail.metrics.evaluation import split_validation
from vitrail.metrics.round_metrics import RoundMetrics
from vitrail.privacy.ledger import read as read_ledger
from vitrail.report import curves
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load, save

TINY = {"data": "digits", "size": 8, "clients": 3, "rounds": 3, "workers": 1, "grids": 3}
BRIEF = {"rounds": 2, "clients": 2, "grids": 1}  # still two rounds, two clients, a grid and a best round
SMALL = {
    "prism": {"local_steps": 1, "batch_size": 10},
    "fedgan": {"width": 4, "latent_dim": 8, "batch_size": 256, "sync": "g"},
}


def tiny(method, out, **more):
    return vitrail.train(method, out=str(out), **{**TINY, **SMALL[method], **more})


def result(folder):
    """All that must be equal between two runs that should be the same."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in RunDir(folder).rows()]
    models = [(folder / f"{name}.safetensors").read_bytes() for name in ("model", "best")]
    return models, load(folder / "checkpoint.safetensors"), rows


def equal(a, b):
    return a[0] == b[0] and same(a[1], b[1]) and a[2] == b[2]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folders = {m: tmp_path_factory.mktemp("unbroken") / m for m in SMALL}
    for method, folder in folders.items():
        tiny(method, folder)
    return folders


def killed_at(call, when, method, out):
    """Run in a child process that SIGKILLs itself at its n-th replacing of a file; True if it got that far."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    try:
        real, count = os.replace, [0]

        def deadly(*paths):
            count[0] += 1
            if when == "after":
                real(*paths)
            if count[0] == call:
                os.kill(os.getpid(), signal.SIGKILL)
            if when == "before":
                real(*paths)

        os.replace = deadly
        tiny(method, out, **BRIEF)
    finally:
        os._exit(0)


@pytest.fixture
def charts_once(monkeypatch):
    """Charts of the same numbers are the same: they are drawn once, or they would take half of the test's time."""
    drawn, draw = {}, curves.draw

    def once(*args, **named):
        key = repr((args, named))
        if key not in drawn:
            drawn[key] = draw(*args, **named)
        return drawn[key]

    monkeypatch.setattr(curves, "draw", once)


@pytest.mark.usefixtures("charts_once")
@pytest.mark.slow
@pytest.mark.parametrize(("method", "when"), [("prism", "before"), ("fedgan", "after")])
def test_killed_at_any_write_and_resumed_gives_the_bits_of_an_unbroken_run(method, when, tmp_path):
    expected = result(tiny(method, tmp_path / "unbroken", **BRIEF).folder)
    call = -1  # every second write: before one is after the last, so the two methods share them out
    while killed_at(call := call + 2, when, method, out := tmp_path / str(call)):
        if not (out / "settings.toml").exists():
            assert call == 1  # killed before the run had claimed its folder: there is nothing to resume
            continue
        vitrail.resume(out)
        assert equal(result(out), expected), f"killed {when} write {call}"
        assert not list(out.rglob("*.part"))
    assert call > 2 * 2 + 2 + 5  # every client's and checkpoint's write was hit, and those of the results


def killed_before_the_first_checkpoint_of_a_round(out):
    """Train with server noise from the operating system; SIGKILL where the first finished round would be saved."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    try:
        real = os.replace

        def deadly(source, target):
            if Path(target).name == "checkpoint.safetensors":
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target)

        os.replace = deadly
        tiny("fedgan", out, privacy="dp-fedavg", epsilon=5.0, noise_source="os", sync="d&g")
    finally:
        os._exit(0)


def test_nothing_of_a_noised_round_is_shown_before_its_checkpoint_is_saved(tmp_path):
    """Otherwise a kill in between would let the same sum be noised, and shown, twice."""
    out = tmp_path / "run"
    assert killed_before_the_first_checkpoint_of_a_round(out)
    assert not list(out.rglob("round-*.png"))
    assert not RunDir(out).rows()
    run = vitrail.resume(out)
    assert [row["round"] for row in run.rows] == [0, 1, 2]
    assert len(list((out / "samples").iterdir())) == 3


class Deadly(Callback):
    """Kills the whole process when the first client of a round has answered and others are training."""

    def __init__(self, at=1):
        self.at = at

    def on_reply(self, outcome):
        if outcome.round == self.at and len(outcome.replied) == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_alone(code):
    """Run in a process of its own, which has workers of its own too; True if it was killed."""
    ran = subprocess.run(
        [sys.executable, "-c", f"from tests.experiment.test_runner import *; {code}"], cwd=Path(__file__).parents[2]
    )
    return ran.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_while_workers_train_and_resumed_with_another_number(unbroken, tmp_path):
    out = tmp_path / "run"
    assert killed_alone(f"tiny('prism', {str(out)!r}, workers=2, callbacks=[Deadly()])")
    vitrail.resume(out, workers=1)
    assert equal(result(out), result(unbroken["prism"]))


FREE = {
    "rounds": 6,
    "classifier_rounds": 1,
    "classifier_steps": 2,
    "grids": 1,
    "eval_every": 6,
    "width": 4,
    "latent_dim": 8,
    "d_width": 4,
    "batch_size": 8,
    "steps_per_message": 1,
}


@pytest.mark.slow
def test_killed_where_no_client_waits_for_another_and_resumed(tmp_path):
    """The only checkpoint so far has no round; ledger and metrics are those of an unbroken run too."""
    how = {**TINY, **FREE}
    whole, out = tmp_path / "whole", tmp_path / "run"
    vitrail.train("psfedgan", out=str(whole), **how)
    assert killed_alone(
        f"vitrail.train('psfedgan', out={str(out)!r}, **TINY | FREE | {{'workers': 2}}, callbacks=[Deadly(3)])"
    )
    assert load(out / "checkpoint.safetensors")["federation"]["round"] == 0
    assert len(list((out / "answers").iterdir())) >= 4
    vitrail.resume(out, workers=1)
    assert equal(result(out), result(whole))
    assert not (out / "answers").exists()
    rounds = [[e["round"] for e in read_ledger(f / "ledger.json") if e["kind"] == "round"] for f in (out, whole)]
    assert rounds == [[0, 1, 2, 3, 4]] * 2


def test_os_keys_survive_a_kill_before_the_first_finished_round(tmp_path):
    class Stops(Callback):
        def on_reply(self, outcome):
            if outcome.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vitrail.train("psfedgan", out=str(tmp_path / "x"), **{**TINY, **FREE}, noise_source="os", callbacks=[Stops()])
    rows = vitrail.resume(tmp_path / "x").rows
    assert not any(row["excluded"] or row.get("sent_back") for row in rows)


def test_the_settings_file_of_a_run_repeats_it_to_the_bit(unbroken, tmp_path):
    run = vitrail.train(str(unbroken["prism"] / "settings.toml"), out=str(tmp_path / "again"))
    assert equal(result(run.folder), result(unbroken["prism"]))


def test_another_seed_gives_another_model(unbroken, tmp_path):
    assert result(tiny("fedgan", tmp_path / "x", seed=1).folder)[0] != result(unbroken["fedgan"])[0]


def test_a_finished_run_can_be_resumed_and_stays_what_it_is(unbroken):
    before = result(unbroken["fedgan"])
    vitrail.resume(unbroken["fedgan"])
    assert equal(result(unbroken["fedgan"]), before)


def test_a_run_writes_all_expected_files(unbroken):
    folder = unbroken["prism"]
    names = {p.name for p in folder.iterdir()}
    assert names >= {
        "settings.toml",
        "metrics.jsonl",
        "partition.png",
        "samples",
        "samples.png",
        "model.safetensors",
        "best.safetensors",
        "ensemble.safetensors",
        "report.html",
        "checkpoint.safetensors",
        "clients",
    }
    assert len(list((folder / "samples").iterdir())) == 3
    rows = RunDir(folder).rows()
    assert [r["round"] for r in rows] == [0, 1, 2]
    assert all(r["bytes_up"] == sum(r["up"].values()) > 0 and r["loss"] > 0 for r in rows)
    assert vitrail.load(folder).about["bytes_up"] == sum(r["bytes_up"] for r in rows)
    assert not list(folder.rglob("*.part"))


def test_a_second_run_into_the_same_folder_is_refused_with_the_remedy(unbroken):
    with pytest.raises(VitrailError, match=r"already has a run.*vitrail resume"):
        tiny("prism", unbroken["prism"])


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(VitrailError, match="has other files"):
        tiny("prism", tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.name != ".lock"] == ["thesis.txt"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VitrailError, match="choose another folder with out="):
        tiny("prism", tmp_path / "file" / "run")


def test_a_folder_in_use_is_refused(unbroken):
    with RunDir(unbroken["prism"]).locked(), pytest.raises(VitrailError, match="in use by another process"):
        vitrail.resume(unbroken["prism"])


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(VitrailError, match=r"not the folder of a run.*settings.toml"):
        vitrail.resume(tmp_path)


def test_a_checkpoint_of_other_settings_is_refused(unbroken, tmp_path):
    run = tiny("fedgan", tmp_path / "run")
    text = (run.folder / "settings.toml").read_text()
    (run.folder / "settings.toml").write_text(text.replace("seed = 0", "seed = 1"))
    with pytest.raises(VitrailError, match="other settings or other data"):
        vitrail.resume(run.folder)
    assert (run.folder / "model.safetensors").read_bytes() == result(unbroken["fedgan"])[0][0]


def as_of_version_0_1_0(folder, run=None):
    """Take out of a run's folder what version 0.1.0 did not record: by which split images were held out."""
    for name in ("checkpoint", "model"):
        tree = load(folder / f"{name}.safetensors")
        del (tree if name == "checkpoint" else tree["about"])["split"]
        if name == "checkpoint":
            tree["run"] = run or tree["run"]
        save(folder / f"{name}.safetensors", tree)


def test_a_run_with_another_split_is_not_continued_and_the_reason_is_given(tmp_path):
    run = tiny("fedgan", tmp_path / "run", **BRIEF)
    as_of_version_0_1_0(run.folder, b"an id of other training data")
    with pytest.raises(VitrailError, match=r"version 0\.1\.0, which split data .* by position"):
        vitrail.resume(run.folder)
    with pytest.raises(VitrailError, match=r"version 0\.1\.0, which split data .* by position"):
        audit_run(run.folder, ["membership"])


def test_results_of_a_model_with_an_earlier_split_are_marked_not_held_out(tmp_path):
    run = tiny("fedgan", tmp_path / "run", **BRIEF)
    assert load(run.folder / "model.safetensors")["about"]["split"] == "content"
    _, columns = evaluate_stored(run.folder, families=["pixels"], n=20)
    assert not any("not held out" in m.note for m in columns[0].measures)
    as_of_version_0_1_0(run.folder)
    _, columns = evaluate_stored(run.folder, families=["pixels"], n=20)
    assert all("not held out" in m.note for m in columns[0].measures)
    own = replace(digits(), split="own")  # data with a test set of its own
    _, columns = evaluate_stored(run.folder, own, families=["pixels"], n=20)
    assert not any("not held out" in m.note for m in columns[0].measures)


def test_a_run_started_from_an_earlier_split_marks_its_results_not_held_out(tmp_path):
    first = tiny("fedgan", tmp_path / "first", **BRIEF)
    second = tiny("fedgan", tmp_path / "second", **BRIEF, init_from=str(first.folder))
    assert load(second.folder / "model.safetensors")["about"]["split"] == "content"
    as_of_version_0_1_0(first.folder)
    third = tiny("fedgan", tmp_path / "third", **BRIEF, init_from=str(first.folder))
    about = load(third.folder / "model.safetensors")["about"]
    assert about["split"] == ""
    assert "not held out" in " ".join(about["notes"])
    fourth = tiny("fedgan", tmp_path / "fourth", **BRIEF, init_from=str(third.folder))
    assert load(fourth.folder / "model.safetensors")["about"]["split"] == ""


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\xff" * len(b)])
def test_a_damaged_checkpoint_is_refused_by_name(damage, unbroken, tmp_path):
    run = tiny("fedgan", tmp_path / "run")
    path = run.folder / "checkpoint.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Malformed, match=r"checkpoint\.safetensors is damaged"):
        vitrail.resume(run.folder)


def test_a_torn_last_line_of_metrics_is_forgotten(tmp_path):
    folder = RunDir(tmp_path)
    for t in range(3):
        folder.log({"round": t})
    folder.metrics.write_text(folder.metrics.read_text() + '{"round": 3, "byt')
    folder.rewind(2)
    assert [json.loads(line)["round"] for line in folder.metrics.read_text().splitlines()] == [0, 1]


def test_a_run_can_start_from_an_earlier_one(unbroken, tmp_path):
    for method in SMALL:
        run = tiny(method, tmp_path / method, init_from=str(unbroken[method]), rounds=1)
        earlier = load(unbroken[method] / "checkpoint.safetensors")["federation"]["server"]
        initial = prepare(run.settings).method.server_init(Rng((0,)), None, earlier)
        assert initial
        assert all(same(value, earlier[name]) for name, value in initial.items() if name not in ("initial", "told"))
        assert run.settings.init_from == str(unbroken[method])


def test_starting_from_an_earlier_run_changes_where_it_ends(unbroken, tmp_path):
    a = tiny("fedgan", tmp_path / "a", rounds=1)
    b = tiny("fedgan", tmp_path / "b", rounds=1, init_from=str(unbroken["fedgan"]))
    assert result(a.folder)[0] != result(b.folder)[0]


@pytest.mark.parametrize(
    ("start", "message"), [("nowhere", "no checkpoint"), ("fedgan", "of method fedgan, this one of prism")]
)
def test_starting_from_what_is_no_like_run_is_refused(start, message, unbroken, tmp_path):
    with pytest.raises(VitrailError, match=message):
        tiny("prism", tmp_path / "x", init_from=str(unbroken.get(start, tmp_path / start)))


def test_empty_clients_are_skipped_and_the_run_continues(tmp_path):
    plan = prepare(config.resolve("prism", {**TINY, "out": "x", "clients": 10, "partition": "dirichlet:0.005"}))
    assert plan.empty
    assert set(plan.clients) | set(plan.empty) == set(plan.partition.names)
    run = tiny("fedgan", tmp_path / "x", clients=10, partition="dirichlet:0.005", rounds=1)
    assert run.rows[0]["replied"] == len(plan.clients)


def test_more_clients_than_examples_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(VitrailError, match="clients"):
        tiny("prism", tmp_path / "x", clients=5000)
    assert not (tmp_path / "x" / "settings.toml").exists()


def test_a_sample_of_clients_takes_part_in_each_round(tmp_path):
    run = tiny("fedgan", tmp_path / "x", clients=6, clients_per_round=2, rounds=4)
    assert all(r["replied"] == 2 for r in run.rows)
    assert len({tuple(r["up"]) for r in run.rows}) > 1


def test_dropouts_are_reported_and_the_run_continues(tmp_path):
    run = tiny("fedgan", tmp_path / "x", clients=6, client_dropout=0.4, rounds=3)
    assert any(r["excluded"] for r in run.rows)
    assert all(r["replied"] + len(r["excluded"]) == 6 for r in run.rows)


def test_a_run_below_its_quorum_stops_cleanly_with_the_reason(tmp_path):
    with pytest.raises(VitrailError, match=r"3 rounds in a row.*quorum is 3.*dropped out.*vitrail resume"):
        tiny("fedgan", tmp_path / "x", client_dropout=0.99, quorum=3, rounds=9)
    assert (tmp_path / "x" / "checkpoint.safetensors").exists()


def test_a_run_without_any_reply_has_no_model(tmp_path):
    with pytest.raises(VitrailError, match="no round changed the model"):
        tiny("fedgan", tmp_path / "x", client_dropout=0.999999, rounds=2)
    assert not (tmp_path / "x" / "model.safetensors").exists()
    with pytest.raises(VitrailError, match=r"metrics\.jsonl"):
        vitrail.resume(tmp_path / "x")


def test_a_refused_run_leaves_its_folder_free(tmp_path):
    with pytest.raises(VitrailError, match="init_from="):
        tiny("fedgan", tmp_path / "x", init_from=str(tmp_path / "nowhere"))
    assert not (tmp_path / "x").exists()


def test_sub_folders_are_clients_without_saying_how_many(tmp_path):
    for client in ("north", "south", "west"):
        (tmp_path / "d" / client).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(digits().train.pixels[i, 0]).save(tmp_path / "d" / client / f"{i}.png")
    plan = prepare(config.resolve("prism", {"data": f"folder:{tmp_path / 'd'}", "partition": "folders", "out": "x"}))
    assert plan.clients == ["north", "south", "west"]
    assert plan.settings.clients == 3
    assert plan.method.task.classes == 0  # the owner of an image must not become its label
    assert any("without labels" in note for note in plan.notes)


def test_what_looks_like_a_misunderstanding_is_pointed_out(tmp_path):
    for client in ("north", "south"):
        for label in ("ct", "xray"):
            (tmp_path / "d" / client / label).mkdir(parents=True)
            for i in range(5):
                dark = digits().train.pixels[i, 0] // 16  # 12 of 16 bits, without rescaling
                Image.fromarray(dark).save(tmp_path / "d" / client / label / f"{i}.png")
    notes = prepare(config.resolve("prism", {"data": f"folder:{tmp_path / 'd'}", "clients": 2, "out": "x"})).notes
    assert any("partition=folders" in n for n in notes)
    assert any("nearly black" in n for n in notes)
    assert not prepare(config.resolve("prism", {**TINY, "out": "x"})).notes


def test_the_chosen_feature_network_is_written_to_the_settings_file(unbroken):
    assert 'features = "vitrail-fashion"' in (unbroken["prism"] / "settings.toml").read_text()
    assert vitrail.load(unbroken["prism"]).about["features"] == "vitrail-fashion, trained on fashion-mnist"


def test_features_trained_on_the_data_itself_are_pointed_out():
    given = from_arrays(digits().train.pixels[:40], digits().train.labels[:40], name="my fashion_mnist", size=8)
    settings = {"data": GIVEN, "clients": 2, "out": "x"}
    assert any(
        "this very data" in n
        for n in prepare(config.resolve("prism", {**settings, "features": "vitrail-fashion"}), given).notes
    )
    assert prepare(config.resolve("prism", settings), given).settings.features == "vitrail-cifar"


def test_the_server_gets_its_own_share_and_clients_do_not_have_it():
    plan = prepare(config.resolve("prism", {**TINY, "out": "x", "server_fraction": 0.1}))
    of_clients = np.concatenate(plan.partition.indices)
    assert len(plan.partition.server) == pytest.approx(0.1 * len(plan.data.train), abs=1)
    assert not set(of_clients) & set(plan.partition.server)


def test_data_from_python_trains_and_must_be_handed_over_to_resume(tmp_path):
    x, y = digits().train.pixels[:60], digits().train.labels[:60]
    data = from_arrays(x, y, size=8)
    run = vitrail.train(
        "fedgan",
        data=data,
        out=str(tmp_path / "x"),
        clients=2,
        rounds=1,
        workers=1,
        size=8,
        **SMALL["fedgan"],
    )
    assert run.generator.sample(4).shape == (4, 1, 8, 8)
    with pytest.raises(VitrailError, match="pass the same data again"):
        vitrail.resume(run.folder)
    vitrail.resume(run.folder, data=data)
    torch_data = torch.utils.data.TensorDataset(torch.from_numpy(x[:40]), torch.from_numpy(y[:40]))
    again = vitrail.train(
        "fedgan", data=torch_data, out=str(tmp_path / "y"), clients=2, rounds=1, workers=1, size=8, **SMALL["fedgan"]
    )
    assert again.generator.classes == tuple("0123456789")
    other = from_arrays(255 - x, y, size=8)
    with pytest.raises(VitrailError, match="other data"):
        vitrail.resume(run.folder, data=other)


def test_images_without_labels_train_without_labels(tmp_path):
    run = tiny("prism", tmp_path / "x", labels="ignore", rounds=1)
    assert run.generator.classes == ()
    with pytest.raises(VitrailError, match="without labels"):
        run.generator.sample(3, label=1)


def test_fd_is_measured_during_a_run_and_the_best_round_is_stored(unbroken):
    for method, folder in unbroken.items():
        fds = [row["fd"] for row in RunDir(folder).rows()]
        best = vitrail.load(folder / "best.safetensors")
        assert (best.about["fd"], best.about["round"]) == (min(fds), 1 + fds.index(min(fds)))
        assert best.about["ruler"] == "vitrail-cifar"
        data = load_data("digits", size=8)
        gauge = RoundMetrics(data, best.about.get("trained_against", []))
        assert gauge.distance(best) == pytest.approx(min(fds), rel=1e-6)
        assert gauge.distance(vitrail.load(folder)) == pytest.approx(fds[-1], rel=1e-6), method


def test_measuring_changes_no_bit_of_the_model_and_is_optional(unbroken, tmp_path):
    run = tiny("prism", tmp_path / "x", eval_every=0)
    assert not (run.folder / "best.safetensors").exists()
    assert not any("fd" in row for row in run.rows)
    assert vitrail.load(run.folder).sample(8).equal(vitrail.load(unbroken["prism"]).sample(8))
    rarely = tiny("fedgan", tmp_path / "y", eval_every=2)
    assert ["fd" in row for row in rarely.rows] == [False, True, True]  # every second, and the last


def test_what_float32_would_cost_is_counted_from_the_same_arrays(unbroken):
    size = vitrail.load(unbroken["prism"]).net
    elements = sum(p.numel() for p in size.parameters())
    for t, row in enumerate(RunDir(unbroken["prism"]).rows()):
        assert row["floats_up"] == 3 * 4 * (elements + 1)  # the mask and the loss
        sent = (elements + 2 if t else 0) + 2 + 2  # counts, their number and λ, from the second round; seeds; stratum
        assert row["floats_down"] == 3 * 4 * sent


def test_tensorboard_gets_every_number_and_the_grids(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tiny("fedgan", tmp_path / "x", tensorboard=True)
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    for tag, key in (("run/loss_g", "loss_g"), ("run/fd", "fd"), ("bytes/bytes_up", "bytes_up")):
        found = [(e.step, e.value) for e in events.Scalars(tag)]
        assert found == [(row["round"] + 1, pytest.approx(row[key])) for row in run.rows]
    assert [e.step for e in events.Images("samples")] == [1, 2, 3]


def test_without_tensorboard_the_setting_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(VitrailError, match=r"pip install 'vitrail\[tensorboard\]'"):
        tiny("fedgan", tmp_path / "x", tensorboard=True)
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Runs that make a classifier: one alone, one with its generator."""
    folder = tmp_path_factory.mktemp("named")
    common = {"data": "digits", "size": 8, "clients": 2, "server_fraction": 0.1, "workers": 1, "grids": 1}
    gan = {
        "width": 4,
        "latent_dim": 8,
        "d_width": 4,
        "steps_per_message": 2,
        "classifier_rounds": 2,
        "classifier_steps": 15,
    }
    vitrail.train("fedavg", **common, rounds=3, local_steps=4, eval_every=1, out=str(folder / "fedavg"))
    vitrail.train("psfedgan", **common, rounds=4, eval_every=2, out=str(folder / "psfedgan"), **gan)
    return folder


def test_a_classifier_is_monitored_stored_and_measured_by_accuracy(named):
    folder = RunDir(named / "fedavg")
    accuracies = [row["accuracy"] for row in folder.rows()]
    assert len(accuracies) == 3
    assert all("fd" not in row for row in folder.rows())
    validation, test = split_validation(digits().test)

    def right(path, images):
        predicted = vitrail.load_classifier(path).classify(torch.from_numpy(images.pixels).float() / 255).numpy()
        return float((predicted == images.labels).mean())

    assert right(folder.path, validation) == pytest.approx(accuracies[-1], abs=1e-6)
    assert right(folder.best, validation) == pytest.approx(max(accuracies), abs=1e-6)
    _, columns = evaluate_stored(folder.path)
    (measure,) = columns[0].measures
    assert (measure.name, measure.n_real) == ("accuracy", len(test))
    assert measure.value == pytest.approx(right(folder.path, test), abs=1e-6)
    assert not (folder.path / "samples.png").exists()
    assert ">Accuracy<" in folder.report.read_text()


def test_a_run_with_both_is_measured_by_both(named):
    folder = RunDir(named / "psfedgan")
    assert [sorted({"fd", "accuracy"} & set(row)) for row in folder.rows()] == [[], ["fd"], [], ["accuracy", "fd"]]
    _, columns = evaluate_stored(folder.path, families=["oracle", "classifier"], n=60)
    assert [m.name for m in columns[0].measures] == ["score", "oracle-gap", "accuracy"]
    assert vitrail.load_classifier(folder.path).classes == vitrail.load(folder.path).classes


def test_metrics_that_do_not_apply_are_reported(named):
    with pytest.raises(VitrailError, match="generates no images"):
        evaluate_stored(named / "fedavg", families=["oracle"])
    with pytest.raises(VitrailError, match="made no classifier"):
        evaluate_stored(named / "psfedgan" / "model.safetensors", "digits", families=["classifier"])
    with pytest.raises(VitrailError, match="load_classifier"):
        vitrail.load(named / "fedavg")
