"""Trees of arrays and values as files, and cached values."""

import stat
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.federation import same
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.state import cached, load, pack, save, unpack

leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
    | st.binary(max_size=8) | hnp.arrays(st.sampled_from(["<f4", "<i8", "u1"]), hnp.array_shapes(min_dims=0, max_dims=2, max_side=3), elements={"min_value": 0, "max_value": 9})
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda t: st.lists(t, max_size=3) | st.dictionaries(st.text(max_size=5), t, max_size=3),
    max_leaves=8,
)


@given(trees)
@settings(max_examples=150, deadline=None)
def test_unpack_reverses_pack(tree):
    assert same(unpack(*pack(tree)), tree)


def test_the_state_of_an_optimizer_is_saved_and_loaded(tmp_path):
    net = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    adam.step()
    save(tmp_path / "s", {"adam": adam.state_dict()})
    again = torch.optim.Adam(net.parameters())
    again.load_state_dict(load(tmp_path / "s")["adam"])
    assert same(again.state_dict(), adam.state_dict())


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, lambda: 0])
def test_the_error_for_an_unsupported_value_has_its_path(value):
    with pytest.raises(VitrailError, match="'a/b'"):
        pack({"a": {"b": value}})


def test_equal_states_give_equal_files(tmp_path):
    tree = {"b": np.arange(3), "a": torch.ones(2), "c": {"d": b"x"}}
    save(tmp_path / "1", tree)
    save(tmp_path / "2", tree)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_random_bytes_are_refused_as_damaged(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("x") / "f"
    path.write_bytes(data)
    with pytest.raises(Malformed, match="damaged"):
        load(path)


def test_names_with_slashes_and_shared_arrays_are_distinguished(tmp_path):
    x, y = np.arange(3), np.arange(4)
    save(tmp_path / "f", {"a/b": x, "a": {"b": y, "c": y}, "zero": np.array(7)})
    back = load(tmp_path / "f")
    assert np.array_equal(back["a/b"], x)
    assert np.array_equal(back["a"]["b"], y)
    assert back["zero"].shape == ()


def test_private_files_are_readable_by_the_owner_only(tmp_path):
    save(tmp_path / "f", {}, private=True)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


INTERRUPTED = """
import gc, signal, sys, time
from pathlib import Path
from vitrail.utils.state import load
path = Path(sys.argv[1])
gc.disable()
signal.signal(signal.SIGALRM, signal.default_int_handler)
began = time.perf_counter()
load(path)
takes, interrupted = time.perf_counter() - began, 0
for i in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, takes * (i + 1) / 100)
        load(path)  # any exception except KeyboardInterrupt ends the script
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
print(interrupted)
"""


def test_ctrl_c_while_reading_is_not_reported_as_a_damaged_file(tmp_path):
    path = tmp_path / "many.safetensors"
    save(path, {str(i): torch.ones(4) for i in range(500)})
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


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
