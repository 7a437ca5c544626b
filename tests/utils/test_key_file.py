"""Key files: a missing, malformed or accessible file is refused."""

import os
import subprocess

import pytest

from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import read_client_key


@pytest.fixture
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_KEYS", str(tmp_path))

    def put(text, mode=0o600, name="a.key"):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)

    return put


def test_64_hex_digits_are_read_as_32_bytes(keys):
    keys(bytes(range(32)).hex() + "\n")
    assert read_client_key("a") == bytes(range(32))
    keys(bytes(range(32)).hex().upper(), name="b%2Fc.key")
    assert read_client_key("b/c") == bytes(range(32))


def test_the_documented_command_creates_a_key_file(keys, tmp_path):
    done = subprocess.run("(umask 077; openssl rand -hex 32 > a.key)", shell=True, cwd=tmp_path)
    if done.returncode:
        pytest.skip("openssl is not installed")
    assert len(read_client_key("a")) == 32


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "xy" * 32, "ab" * 32 + "\nab", "ab" * 32 + "\n" * 50])
def test_a_malformed_file_is_refused_without_showing_it(keys, text):
    keys(text)
    with pytest.raises(VitrailError, match=r"64 hex digits.*openssl rand -hex 32") as e:
        read_client_key("a")
    assert not text.strip() or text[:8] not in str(e.value)


@pytest.mark.skipif(os.name != "posix", reason="file permissions are specific to POSIX")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_others_can_access_is_refused(keys, mode):
    keys("ab" * 32, mode)
    with pytest.raises(VitrailError, match=f"mode {mode:o}.*chmod 600"):
        read_client_key("a")


def test_a_missing_file_is_named_without_its_path(keys, tmp_path):
    with pytest.raises(VitrailError, match=r"a\.key.*VITRAIL_KEYS.*openssl rand -hex 32") as e:
        read_client_key("a")
    assert str(tmp_path) not in str(e.value)


def test_by_default_key_files_are_in_vitrails_own_folder(keys, tmp_path, monkeypatch):
    monkeypatch.delenv("VITRAIL_KEYS")
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path))
    (tmp_path / "keys").mkdir()
    keys("cd" * 32, name="keys/a.key")
    assert read_client_key("a") == b"\xcd" * 32
