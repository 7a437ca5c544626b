"""Cached values."""

import stat

import numpy as np
import pytest

from vitrail.utils.state import cached


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_value_is_computed_once_per_kind_and_key(home):
    computed = []

    def compute():
        computed.append(1)
        return {"mean": np.arange(3.0)}

    for kind, key in (("fid", "a"), ("fid", "a"), ("fid", "b"), ("kid", "a")):
        assert cached(kind, key, compute)["mean"].tolist() == [0, 1, 2]
    assert len(computed) == 3


def test_cache_files_are_readable_by_the_owner_only(home):
    cached("fid", "a", lambda: {"x": 1})
    (file,) = (home / "cache" / "fid").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_damaged_file_is_computed_again(home):
    cached("fid", "a", lambda: {"x": 1})
    (file,) = (home / "cache" / "fid").iterdir()
    file.write_bytes(b"damaged")
    assert cached("fid", "a", lambda: {"x": 2}) == {"x": 2}
    assert cached("fid", "a", lambda: {"x": 3}) == {"x": 2}


def test_a_home_folder_that_cannot_be_written_is_no_error(home):
    home.write_text("a file")
    with pytest.raises(NotADirectoryError):
        (home / "x").stat()
    assert cached("fid", "a", lambda: {"x": 1}) == {"x": 1}
