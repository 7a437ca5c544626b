"""Text from other parties is never printed unchanged."""

import io

import pytest
from rich.console import Console

from vitrail.cli.progress import ProgressDisplay
from vitrail.engines.rounds import RoundResult
from vitrail.utils.errors import Malformed, printable, reason_of

NASTY = [
    "\x1b[2J",
    "\x9b2J",
    "a\rb",
    "a\nb",
    "a\u2028b",
    "\u202eexe",
    "\u2066x\u2069",
    "\ud800",
    "\x07",
    "\0",
    "\u200b",
    "\ue000",
]


@pytest.mark.parametrize("text", NASTY)
def test_control_characters_are_replaced(text):
    assert printable(text).isprintable()
    assert printable(text) != text
    printable(text).encode()
    assert printable(printable(text)) == printable(text)


@pytest.mark.parametrize("text", ["", "north", "Krankenhaus Süd", "正常　例", "[red]x[/red]", "\\", "a b"])
def test_ordinary_text_is_unchanged(text):
    assert printable(text) == text


def test_long_text_is_truncated():
    assert printable("x" * 1000) == "x" * 500
    assert printable("x" * 1000, 60) == "x" * 60
    assert printable("x" * 1000, None) == "x" * 1000


def test_an_unexpected_error_is_reported_by_its_type_and_logged_printably(caplog):
    try:
        raise ValueError("\x1b[2J of a client")
    except ValueError as e:
        reason = reason_of(e)
    assert reason == "ValueError"
    assert "ValueError: �[2J of a client" in caplog.text
    assert "\x1b" not in caplog.text
    assert reason_of(Malformed("\x1b[2J")) == "�[2J"


def test_the_rounds_of_the_metrics_file_count_from_0(capsys):
    terminal = ProgressDisplay()
    terminal.task = terminal.progress.add_task("", total=1, clients="", news="")
    excluded = {f"client-{i}": "late" for i in range(7)}
    terminal.on_round_end(RoundResult(0, 7, excluded=excluded), {"bytes_up": 0, "bytes_down": 0, "seconds": 0.0})
    assert "... and 2 more; see metrics.jsonl, where rounds count from 0" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*NASTY, "[red]x[/red]", "[/]", "[bold", "x\\", "[link=http://x]y[/link]"])
def test_names_and_reasons_are_printed_without_escape_sequences_and_markup(name, monkeypatch):
    terminal, out = ProgressDisplay(), io.StringIO()
    terminal.console = Console(file=out, width=300, force_terminal=True, highlight=False, color_system="truecolor")
    terminal.task = terminal.progress.add_task("", total=1, clients="", news="")
    outcome = RoundResult(0, 2, excluded={name: name}, void=name)
    terminal.on_round_end(outcome, {"bytes_up": 0, "bytes_down": 0, "seconds": 0.0})
    shown = out.getvalue()
    for ours in ("\x1b[33m", "\x1b[0m", "\n"):
        shown = shown.replace(ours, "")
    assert shown == (
        f"round 1: {printable(name)} excluded: {printable(name)}round 1: {printable(name)}; the model is unchanged"
    )
    assert shown.isprintable()
