"""Reading run folders, complete or damaged, and tables from them."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.report.folders import evaluation, make_run, row, write_image
from vitrail.report.comparison import comparison_tables, differing
from vitrail.report.evaluation import evaluation_tables
from vitrail.report.facts import read_about, read_run, read_runs, shared_metrics
from vitrail.report.images import read_image
from vitrail.report.rounds import best, metric_names, traffic
from vitrail.report.table import Table
from vitrail.report.tables import clients_table, excluded_table, void_rounds
from vitrail.report.tiles import headline
from vitrail.utils import state
from vitrail.utils.errors import VitrailError


def read(path, grids=40):
    return read_run(path, path.name, grids)


def test_the_header_gives_the_same_description_as_the_whole_file(tmp_path):
    path = make_run(tmp_path / "x", about={"notes": ["a", "b"], "seed": 3}) / "model.safetensors"
    assert read_about(path) == state.load(path)["about"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x05\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0{}"])
def test_a_damaged_model_file_has_no_description(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    assert read_about(tmp_path / "m") == {}


def test_a_folder_without_a_run_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(VitrailError, match=r"is not the folder of a run: .* give folders written by `vitrail run`"):
        read(tmp_path)
    with pytest.raises(VitrailError, match="no run was given"):
        read_runs([], 9)


def test_damaged_lines_are_counted_and_the_others_read(tmp_path):
    run = make_run(tmp_path / "x")
    with (run / "metrics.jsonl").open("ab") as f:
        f.write(b'5\n{"round": "x"}\n{"round": 1, "up": 7}\n\xff\xfe\n{"round": 3, "sec')
    facts = read(run)
    assert [r.number for r in facts.rounds] == [1, 2, 3]
    assert any(note.startswith("5 lines of metrics.jsonl could not be read") for note in facts.notes)


def test_a_diverged_metric_is_named_and_omitted_from_its_curve(tmp_path):
    facts = read(make_run(tmp_path / "x", [row(0), row(1, loss=float("nan"))]))
    assert [r.metrics for r in facts.rounds] == [{"loss": 100.0}, {}]
    assert any(note.startswith("loss was infinite or not a number in 1 round") for note in facts.notes)


def test_old_runs_without_float_counts_have_no_float32_figure(tmp_path):
    new = row(0)
    old = {k: v for k, v in row(1).items() if not k.startswith("floats")}
    facts = read(make_run(tmp_path / "x", [new, old]))
    assert traffic(facts.rounds).saving() is None
    assert "Compared with float32" not in [tile.name for tile in headline(facts)]


def test_the_saving_is_bytes_in_float32_divided_by_bytes_sent(tmp_path):
    facts = read(make_run(tmp_path / "x"))
    sent = traffic(facts.rounds)
    assert (sent.up, sent.down, sent.per_up, sent.per_down) == (6000, 24000, 1000, 4000)
    assert sent.saving() == (192_000 + 192_000) / 30_000


def test_the_best_round_has_the_lowest_distance_and_fd_comes_first(tmp_path):
    run = make_run(tmp_path / "x", [row(0, fd=30.0), row(1), row(2, fd=8.0), row(3, fd=9.5)])
    assert ("9.5", "round 4") in [(t.value, t.detail) for t in headline(read(run))], "no best model is stored"
    state.save(run / "best.safetensors", {"about": {}})
    facts = read(run)
    found = best(facts.rounds)
    assert found is not None
    assert (found[0].number, found[1]) == (3, 8.0)
    assert metric_names(facts.rounds) == ["fd", "loss"]
    assert ("8", "best, round 3; last 9.5, round 4") in [(t.value, t.detail) for t in headline(facts)]


@pytest.mark.parametrize(
    ("settings", "reason"), [({"eval_every": 0}, "eval_every=0"), ({"data": "nodes"}, "the server has no images")]
)
def test_a_distance_that_was_not_measured_has_a_reason(tmp_path, settings, reason):
    facts = read(make_run(tmp_path / "x", [row(0)]))
    facts = replace(facts, settings={**facts.settings, **settings})
    assert ("Distance (fd)", f"during training: {reason}") in [(t.name, t.detail) for t in headline(facts)]


def test_an_unfinished_run_is_reported_as_unfinished(tmp_path):
    facts = read(make_run(tmp_path / "x", [row(0)], finished=False))
    assert any("1 of 3 rounds are finished" in note and "vitrail resume" in note for note in facts.notes)
    assert ("None yet", "the run is not finished") in [(t.value, t.detail) for t in headline(facts)]


def test_the_grid_of_the_stored_model_is_not_shown_twice(tmp_path):
    same = make_run(tmp_path / "same")
    assert [g.when for g in read(same).grids] == ["Round 1", "Round 2", "Round 3, stored model"]
    write_image(same / "samples.png", 200)
    assert [g.when for g in read(same).grids] == ["Round 1", "Round 2", "Round 3", "Stored model"]


def test_of_many_grids_some_are_omitted_with_a_note(tmp_path):
    facts = read(make_run(tmp_path / "x", grids=tuple(range(1, 13))), grids=4)
    assert [g.when for g in facts.grids] == ["Round 1", "Round 5", "Round 8", "Round 12, stored model"]
    assert [g.key for g in facts.grids] == [True, False, True, True]
    assert any(note.startswith("8 sample grids") for note in facts.notes)


def test_of_many_clients_those_with_most_and_fewest_bytes_are_shown(tmp_path):
    crowd = row(0, clients=1000)
    crowd["up"]["client-500"] = 9000
    table = clients_table(read(make_run(tmp_path / "x", [crowd])).rounds)
    assert len(table.rows) == 10
    assert table.rows[0] == ["client-500", "1", "9.0 kB", "4.0 kB"]
    assert "of 1,000 clients" in table.note


def test_excluded_clients_are_counted_by_reason(tmp_path):
    rows = [row(0, excluded={"a": "late"}), row(1, excluded={"a": "late", "b": "torn"}, void="quorum"), row(2)]
    rounds = read(make_run(tmp_path / "x", rows)).rounds
    table = excluded_table(rounds)
    assert table is not None
    assert table.rows == [["a", "2", "1, 2", "late"], ["b", "1", "2", "torn"]]
    assert void_rounds(rounds) == ["Round 2: quorum"]
    assert excluded_table(rounds[2:]) is None


def test_only_differing_settings_are_listed(tmp_path):
    runs = read_runs(
        [
            make_run(tmp_path / "a", settings={"sampling": "stratified", "seed": 0}),
            make_run(tmp_path / "b", settings={"sampling": "stratified", "seed": 1, "clients_per_round": 2}),
            make_run(tmp_path / "c", settings={"method": "fedgan", "sync": "g", "workers": 2}),
        ],
        96,
    )
    assert differing(runs) == ["seed", "clients_per_round"]  # neither sync, which one method has, nor workers
    assert [r[2] for r in comparison_tables(runs)[0].rows] == ["seed=0", "seed=1, clients_per_round=2", "seed=0"]


def test_distances_by_different_networks_have_a_warning(tmp_path):
    runs = [
        make_run(tmp_path / name, [row(0, fd=3.0)], settings={"ruler": name}) for name in ("vitrail-a", "vitrail-b")
    ]
    assert "compare it only between runs with the same network" in comparison_tables(read_runs(runs, 96))[0].note
    assert "compare it only" not in comparison_tables(read_runs(runs[:1], 96))[0].note


def test_measures_of_runs_are_in_one_table_with_their_intervals(tmp_path):
    runs = [make_run(tmp_path / "a", evaluated=evaluation()), make_run(tmp_path / "b", evaluated=evaluation(20.0))]
    table = comparison_tables(read_runs([*runs, make_run(tmp_path / "c")], 96))[1]
    assert table.columns == ["run", "fd (vitrail-cifar, lower is better)"]
    assert table.rows == [["a", "12.3 (11 to 13.6)"], ["b", "20 (11 to 13.6)"]]


def test_a_measure_without_bounds_has_no_interval_and_notes_are_not_repeated(tmp_path):
    made = evaluation()
    measures = made["columns"][0]["measures"]
    measures += [measures[0] | {"name": "kd", "low": float("nan")}, {"name": "bare", "value": 1}]
    found = read(make_run(tmp_path / "x", evaluated=made)).evaluation
    assert found is not None
    (table,) = evaluation_tables(found)
    assert [r[2] for r in table.rows] == ["11 to 13.6", "", ""]
    assert table.note == "fd, kd: a remark."


def test_the_feature_network_is_read_from_the_best_model_if_not_named_elsewhere(tmp_path):
    run = make_run(tmp_path / "x", [row(0, fd=3.0)])
    assert read(run).feature_network == ""
    state.save(run / "best.safetensors", {"about": {"chosen_by": "fd by vitrail-cifar", "round": 1}})
    assert read(run).feature_network == "vitrail-cifar"
    assert "; by vitrail-cifar" in next(t.detail for t in headline(read(run)) if t.name == "Distance (fd)")


def test_a_damaged_evaluation_gives_a_note(tmp_path):
    run = make_run(tmp_path / "x")
    (run / "evaluation.json").write_text('{"columns": [{"name": "m"}]}')
    facts = read(run)
    assert facts.evaluation is None
    assert any("evaluation.json could not be read" in note for note in facts.notes)


def test_runs_with_equal_names_get_unique_labels_and_repeated_runs_are_merged(tmp_path):
    a, b = make_run(tmp_path / "1" / "x"), make_run(tmp_path / "2" / "x")
    assert [run.label for run in read_runs([a, b, a], 96)] == ["1/x", "2/x"]


def test_metrics_are_compared_if_two_runs_have_them(tmp_path):
    rows = [[row(0)], [row(0, fd=1.0)], [row(0, loss_g=2.0)]]
    runs = read_runs([make_run(tmp_path / str(i), r) for i, r in enumerate(rows)], 96)
    assert shared_metrics(runs) == ["loss"]


def test_a_column_is_right_aligned_only_if_all_its_cells_are_figures():
    table = Table("", ["run", "a", "b", "c"], [["1", "2.4 MB", "0.93 ± 0.01", "x"], ["2", "", "12 (round 3)", "4"]])
    assert table.kinds == ["", "figure", "figure", ""]


def test_an_enlarged_image_is_embedded_small_and_shown_at_its_size(tmp_path):
    small = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    large = small.repeat(4, 0).repeat(4, 1)
    Image.fromarray(large).save(tmp_path / "a.png")
    image = read_image(tmp_path / "a.png")
    embedded = Image.open(io.BytesIO(base64.b64decode(image.uri.partition(",")[2])))
    assert np.array_equal(np.asarray(embedded), small)
    assert (image.width, image.height) == (120, 80)
    Image.fromarray(large[:, :-1]).save(tmp_path / "b.png")  # not an integer enlargement: unchanged
    other = read_image(tmp_path / "b.png")
    assert base64.b64decode(other.uri.partition(",")[2]) == (tmp_path / "b.png").read_bytes()
