"""The public interface: every name is importable, documented, and imported on first use only."""

import inspect
import subprocess
import sys

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
