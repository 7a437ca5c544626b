"""Keys in files, of which a missing, malformed or accessible one is refused; signatures of the signed bytes only."""

import os
import stat
import subprocess

import pytest
from Crypto.PublicKey import ECC
from Crypto.Signature import eddsa

from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import Key, load_or_create_key, new_key, public_key, read_client_key, read_key, signed_by

KEY = Key(bytes(range(32)))


def test_another_library_verifies_the_public_key_and_signature():
    theirs = eddsa.import_private_key(KEY.secret)
    assert theirs.public_key().export_key(format="raw") == KEY.public
    from vitrail.utils.keys import _message

    signature = KEY.sign(b"one", b"two")
    eddsa.new(ECC.import_key(theirs.public_key().export_key(format="PEM")), "rfc8032").verify(
        _message((b"one", b"two")), signature
    )


def test_any_changed_bit_of_text_or_signature_is_detected():
    text = b"round 3"
    signature = KEY.sign(text)
    assert signed_by(KEY.public, signature, text)
    for i in range(8 * len(text)):
        assert not signed_by(KEY.public, signature, _flipped(text, i))
    for i in range(8 * len(signature)):
        assert not signed_by(KEY.public, _flipped(signature, i), text)
    assert not signed_by(Key(bytes(32)).public, signature, text)
    assert not signed_by(b"no key", signature, text)


def test_the_boundaries_of_pieces_are_signed():
    signature = KEY.sign(b"ab", b"c")
    assert not any(signed_by(KEY.public, signature, *p) for p in ([b"a", b"bc"], [b"abc"], [b"ab", b"c", b""]))


def test_a_key_is_created_once_and_readable_by_its_owner_only(tmp_path):
    path = tmp_path / "new" / "node.key"
    key = load_or_create_key(path)
    assert load_or_create_key(path) == key == read_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["node.key"]
    with pytest.raises(FileExistsError):
        new_key(path)
    assert read_key(path) == key


def test_the_representation_of_a_key_shows_the_public_key_only():
    assert KEY.secret.hex() not in repr(KEY)
    assert KEY.public.hex() in repr(KEY)


@pytest.mark.skipif(os.name != "posix", reason="file permissions are specific to POSIX")
def test_a_key_that_others_can_read_is_refused_without_its_path(tmp_path):
    path = tmp_path / "node.key"
    load_or_create_key(path)
    path.chmod(0o640)
    with pytest.raises(VitrailError, match=r"node\.key.*mode 640.*chmod 600") as e:
        load_or_create_key(path)
    assert str(tmp_path) not in str(e.value)


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "xy" * 32])
def test_a_malformed_key_is_refused_without_showing_it(tmp_path, text):
    path = tmp_path / "node.key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(VitrailError, match="64 hex digits") as e:
        read_key(path)
    assert not text or text[:8] not in str(e.value)


def test_a_public_key_is_hex_digits_or_a_file_of_them(tmp_path):
    (tmp_path / "server.pub").write_text(KEY.public.hex() + "\n")
    assert public_key(KEY.public.hex()) == public_key(str(tmp_path / "server.pub")) == KEY.public
    (tmp_path / "other.pub").write_text("ssh-rsa AAAA")
    for bad in ("", "ab", str(tmp_path / "missing"), str(tmp_path / "other.pub"), "a\0b"):
        with pytest.raises(VitrailError, match="64 hex digits"):
            public_key(bad)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("-----BEGIN PRIVATE KEY-----\n", "signing keys are signing.key and node.key"),
        ("ecdsa-sha2-nistp384 AAAA", "signing keys are in the folder keys"),
    ],
)
def test_a_key_for_another_purpose_is_refused_with_the_right_file(tmp_path, text, remedy):
    path = tmp_path / "server.key"
    path.write_text(text)
    path.chmod(0o600)
    for read in (read_key, lambda p: public_key(str(p))):
        with pytest.raises(VitrailError, match=f"64 hex digits; this is .*: {remedy}"):
            read(path)


def _flipped(raw, bit):
    out = bytearray(raw)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


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
