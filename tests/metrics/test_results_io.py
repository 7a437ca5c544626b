"""Files of evaluations."""

import json

from tests.federation import digits
from vitrail.metrics.measure import Measure
from vitrail.metrics.results_io import Column, file_digest, read_measures, write_evaluation


def test_writing_an_evaluation_keeps_earlier_measures_of_the_same_model(tmp_path):
    path, data = tmp_path / "e.json", digits()
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"a model")
    m = [Measure(name, 1.0, 0.5, 1.5, 10, 10, "lower", "x") for name in ("fid", "score")]

    def column(name, measures, options):
        return Column(name, model.name, file_digest(model), options, measures)

    write_evaluation(path, data, [column("stored model", m[:1], {"n": 8})])
    write_evaluation(path, data, [column("stored model", m[1:], {"n": 9})])
    assert {x.name for x in read_measures(path, model, {"n": 9})} == {"fid", "score"}
    assert read_measures(path, model, {"n": 8}) is None  # the last one had other options
    write_evaluation(path, data, [column("best round", m[:1], {"n": 9})])
    assert [c["name"] for c in json.loads(path.read_text())["columns"]] == ["best round", "stored model"]
    model.write_bytes(b"another model")
    assert read_measures(path, model, {"n": 9}) is None
    write_evaluation(path, data, [column("best round", m[1:], {"n": 9})])
    assert [c["name"] for c in json.loads(path.read_text())["columns"]] == ["best round"]
    assert {x.name for x in read_measures(path, model, {"n": 9})} == {"score"}
    path.write_text("{torn")
    assert read_measures(path, model, {"n": 9}) is None


def test_results_with_the_former_name_of_the_feature_network_can_be_read(tmp_path):
    path, model = tmp_path / "e.json", tmp_path / "model.safetensors"
    model.write_bytes(b"a model")
    measures = [Measure("fid", 1.0, 0.5, 1.5, 10, 10, "lower", "x")]
    write_evaluation(path, digits(), [Column("stored model", model.name, file_digest(model), {"ruler": "x"}, measures)])
    assert read_measures(path, model, {"feature_network": "x"}) == measures
