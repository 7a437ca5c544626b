"""What `flwr run` shows of an error: one message with the remedy if a user can fix it, a traceback otherwise."""

import logging

import pytest

from vitrail.utils.errors import VitrailError

pytest.importorskip("flwr")

from vitrail.cli.server_app import ShortErrors


def shown(error):
    """The lines that Flower's logger prints of a ServerApp that failed."""
    records = logging.getLogger("tests.server_app")
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(logging.Formatter("%(message)s").format(record))  # type: ignore[method-assign]
    short = ShortErrors()
    records.addHandler(handler)
    records.addFilter(short)
    try:
        raise error
    except Exception as e:  # as in Flower's run_serverapp
        records.error("%s raised an exception", "ServerApp", exc_info=e)
    records.error("Exit Code: 201\nAn unhandled exception occurred")
    records.removeFilter(short)
    records.removeHandler(handler)
    return "\n".join(lines)


def test_an_error_that_a_user_can_fix_has_no_traceback():
    assert shown(VitrailError("sise=8: did you mean size?\x1b[2J")) == "error: sise=8: did you mean size?�[2J"
    assert shown(PermissionError(13, "Permission denied", "/runs")) == "error: [Errno 13] Permission denied: '/runs'"


def test_any_other_error_has_a_traceback_and_the_exit_code():
    text = shown(ZeroDivisionError("division by zero"))
    assert "Traceback" in text
    assert "Exit Code: 201" in text
