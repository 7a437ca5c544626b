"""The page as text: self-contained, escaped, reproducible, and complete for incomplete runs."""

import re

import pytest

from tests.report.folders import evaluation, make_run, row
from vitrail.report import Table, write_report
from vitrail.report.charts import Axis, Line, draw
from vitrail.utils.errors import VitrailError


@pytest.fixture
def page(tmp_path):
    """Write a report and return its text."""

    def write(*runs, **more):
        write_report(runs, tmp_path / "page.html", **more)
        return (tmp_path / "page.html").read_text()

    return write


def test_a_report_contains_all_facts_of_a_run(tmp_path, page):
    rows = [row(0), row(1, excluded={"client-1": "did not reply"}), row(2, fd=7.25)]
    html = page(make_run(tmp_path / "first", rows, about={"notes": ["a note"]}, evaluated=evaluation()))
    for text in (
        *("first", "prism", "mnist5k", "0.1.0", "6.0 kB", "24.0 kB", "4.5 s", "12.8 ×", "7.25", "Not private"),
        *("did not reply", "a note", "11 to 13.6", "vitrail-cifar", "5,000", "a remark", "1000 held-out images"),
        *("vitrail run settings.toml out=first-again", "vitrail evaluate", "-n 64 -o grid.png", "partition = "),
    ):
        assert text in html
    assert html.count("<img ") == 3 + 1  # grids and partition


def test_the_same_runs_give_the_same_bytes(tmp_path, page):
    runs = [make_run(tmp_path / "a", [row(0, fd=2.0), row(1, fd=1.0)]), make_run(tmp_path / "b")]
    assert page(*runs) == page(*runs)


def test_a_page_loads_nothing_from_the_network(tmp_path, page):
    html = page(make_run(tmp_path / "a"), make_run(tmp_path / "b"))
    assert set(re.findall(r'(?:src|href)="(?!data:|#)([^"]*)', html)) == set()
    assert not re.search(r"url\((?!#)|@import", html)
    assert "default-src 'none'; img-src data:" in html


def test_ids_are_unique_and_every_reference_has_its_target(tmp_path, page):
    for html in (page(make_run(tmp_path / "a")), page(make_run(tmp_path / "b"), make_run(tmp_path / "c"))):
        ids = re.findall(r'\bid="([^"]*)"', html)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'(?:href="|url\()#([^")]*)', html)) <= set(ids)


@pytest.mark.parametrize(
    "missing",
    [
        {"rows": []},
        {"rows": [row(0)], "grids": (1,)},
        {"finished": False},
        {"finished": False, "grids": (), "partition": False, "rows": []},
        {"rows": [{"round": 0}]},
        {"rows": [{k: v for k, v in row(n).items() if k != "loss"} for n in range(3)]},
        {"rows": [row(0, loss=-1.0), row(1, loss=0.0)]},
        {"rows": [row(0, loss=1e-9), row(1, loss=1e12)]},
        {"settings": {"data": "given"}},
    ],
)
def test_an_incomplete_run_has_a_report_and_can_be_compared(tmp_path, page, missing):
    poor, rich = make_run(tmp_path / "poor", **missing), make_run(tmp_path / "rich", [row(0, fd=1.0)])
    assert "poor" in page(poor)
    assert "poor" in page(poor, rich)


def test_a_thousand_clients_hardly_enlarge_the_page(tmp_path, page):
    small = page(make_run(tmp_path / "small"))
    excluded = {f"client-{i}": f"reason {i}" for i in range(500)}
    large = page(make_run(tmp_path / "large", [row(n, clients=1000, excluded=excluded) for n in range(3)]))
    assert len(large) < len(small) + 10_000


def test_hostile_names_are_escaped(tmp_path, page):
    bad = "<script>window.hacked=1</script>"
    run = make_run(
        tmp_path / "<img src=x onerror=hacked=1>",
        [row(0, excluded={bad: bad}, void=bad, up={bad: 5}, **{bad: 1.0})],
        settings={"partition": f"</pre>{bad}"},
        about={"notes": [bad], "data": bad, "privacy": bad},
        evaluated={"columns": [{"name": bad, "measures": [{"name": bad, "value": 1, "note": bad}]}], "real": bad},
    )
    for html in (page(run), page(run, make_run(tmp_path / "b"), title=bad, tables=[Table(bad, [bad], [[bad]], bad)])):
        assert html.count("<script>") == 1  # the page's own
        assert "<img src=x" not in html
        assert "&lt;script&gt;window.hacked=1&lt;/script&gt;" in html


def test_given_tables_come_first(tmp_path, page):
    table = Table("Means over seeds", ["method", "fd"], [["prism", "12.3 ± 0.4"]], "three seeds")
    html = page(make_run(tmp_path / "a"), make_run(tmp_path / "b"), title="Digits", tables=[table])
    assert html.index("Means over seeds") < html.index("12.3 ± 0.4") < html.index("three seeds") < html.index("Cost")
    assert "<h1>Digits</h1>" in html


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(VitrailError, match="cannot write"):
        write_report([make_run(tmp_path / "a")], tmp_path / "nowhere" / "page.html")


def test_settings_with_absolute_paths_have_a_warning(tmp_path, page, monkeypatch):
    make_run(tmp_path / "a", settings={"data": "folder:/home/me/scans"})
    make_run(tmp_path / "b")
    monkeypatch.chdir(tmp_path)
    assert "check them before you share this page" in page("a")
    assert "check them before" not in page("b")


def chart(x, y, **axis):
    return draw("t", [Line("l", x, y)], Axis("round", "round"), Axis("loss", **axis), "c").svg


def test_a_chart_uses_colors_and_fonts_of_the_page():
    svg = chart([1, 2, 3], [3.0, 2.0, 1.0])
    assert "var(--c1)" in svg
    assert "var(--ink-soft)" in svg
    assert not re.search(r"#[0-9a-f]{6}\b(?!\))", svg.replace("#c-", ""))
    assert "font-family" not in svg
    assert 'width="' not in svg[: svg.index(">")]


def test_values_that_span_decades_have_a_log_axis():
    assert "10k" in chart([1, 2, 3], [10.0, 100.0, 10_000.0])
    assert ">100<" in chart([1, 2, 3], [10.0, 100.0, 10_000.0])
    assert ">100<" not in chart([1, 2, 3], [5000.0, 7000.0, 10_000.0])


def test_a_single_point_is_a_dot():
    assert "<use " in chart([1], [2.0])[chart([1], [2.0]).index("clip-path") :]
