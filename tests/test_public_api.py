"""The public interface: every name is importable, documented, and imported on first use only."""

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail


@pytest.mark.parametrize("name", [n for n in vitrail.__all__ if n != "__version__"])
def test_every_public_name_is_documented(name):
    text = inspect.getdoc(getattr(vitrail, name))
    assert text
    assert len(text.split("\n")[0]) <= 120


def test_importing_the_package_imports_no_torch():
    code = "import sys, vitrail; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        vitrail.trian  # noqa: B018


def test_dir_lists_the_public_names():
    assert dir(vitrail) == sorted(vitrail.__all__)


def documented():
    """The functions and methods that the API reference renders."""
    page = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
    for name in re.findall("^::: (.+)$", page.read_text(), re.MULTILINE):
        thing = pkgutil.resolve_name(name)
        members = [inspect.unwrap(getattr(m, "__func__", m)) for m in getattr(thing, "__dict__", {}).values()]
        module = thing.__name__ if inspect.ismodule(thing) else thing.__module__
        yield from (
            f for f in [thing, *members]
            if inspect.isfunction(f) and f.__module__ == module and not f.__name__.startswith("_")
        )  # fmt: skip


@pytest.mark.parametrize("function", list(documented()), ids=lambda f: f"{f.__module__}.{f.__qualname__}")
def test_the_api_reference_describes_arguments_results_and_errors(function):
    text, signature = inspect.getdoc(function), inspect.signature(function)
    assert "Args:" in text or not set(signature.parameters) - {"self", "cls"}
    assert "Returns:" in text or "Yields:" in text or signature.return_annotation in ("None", None)
    assert "Raises:" in text or "raise " not in inspect.getsource(function)
