"""The secret of a client and the server: both derive the same one; from a key file, it is neither sent nor stored."""

import hmac

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.federation import federate, shares
from tests.methods.psfedgan.test_algorithm import (
    agree,
    broadcast_parts,
    initial_states,
    one_round,
    private_state,
    small,
    windows,
)
from vitrail.experiment import train as runs
from vitrail.methods.psfedgan import twin
from vitrail.utils.crypto import public
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng

TWO = shares(2)


def test_both_sides_derive_the_same_secret_by_x25519_and_hkdf():
    """Compare with the library's own functions; another client, generation or purpose has another key."""
    a, b = bytes(range(32)), bytes(range(32, 64))
    here, there = (twin.agree_on_secret(k, public(a), public(b), "someone") for k in (a, b))
    assert here == there
    raw = X25519PrivateKey.from_private_bytes(b).exchange(X25519PublicKey.from_public_bytes(public(a)))
    hkdf = lambda key, info: HKDF(SHA256(), 32, None, info).derive(key)  # noqa: E731
    root = hkdf(raw, b"vitrail psfedgan 1 " + public(a) + public(b))
    assert here.seed(2) == hkdf(root, b"generator 2 someone")
    assert here.digest(b"x", b"y") == hmac.new(hkdf(root, b"digest someone"), b"xy", "sha256").digest()
    keys = {here.seed(0), here.seed(1), twin.Secret(here.root, "other").seed(0), here.root}
    assert len(keys) == 4


def test_all_bits_of_the_seed_matter():
    """Seeds with the same first 8 bytes, all that torch's generator would use, give unrelated networks."""
    method = small()
    a, b = (twin.initialize(method.generator(), bytes(31) + bytes([k])) for k in (0, 1))
    w, v = (next(iter(G.layers)).weight.detach().flatten() for G in (a, b))
    assert abs(float(torch.corrcoef(torch.stack([w, v]))[0, 1])) < 0.05
    assert float(w.std()) == pytest.approx(0.02, rel=0.05)


# -- key files --------------------------------------------------------------------------------------------------------


def put(folder, client, secret):
    folder.mkdir(exist_ok=True)
    path = folder / f"{client}.key"
    path.write_text(secret.hex() + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def keys(tmp_path, monkeypatch):
    folder = tmp_path / "keys"
    for k, client in enumerate([*TWO, "a"]):
        put(folder, client, bytes(range(100 * k // 2, 100 * k // 2 + 32)))
    monkeypatch.setenv("VITRAIL_KEYS", str(folder))
    return folder


def test_with_key_files_g_s_equals_g_u_and_no_key_is_sent(keys, tmp_path):
    method = small(4, key_source="file")
    assert "key" not in method.reply_spec()
    assert "key" in small(4).reply_spec()
    fed, outcomes, traffic = federate(method, tmp_path / "run", indices=TWO)
    assert [len(o.replied) for o in outcomes] == [2] * 4
    assert agree(fed, tmp_path / "run")
    secrets = [twin.secret_from_file(c) for c in TWO]
    hidden = [raw for s in secrets for raw in (s.root, s.seed(0))]
    hidden += [bytes.fromhex(f.read_text()) for f in keys.iterdir()]
    seen = set().union(*(windows(data) for _, data in traffic.requests + traffic.replies))
    assert not seen & set().union(*map(windows, hidden))
    assert set(broadcast_parts(method, fed.server, "client-0")) == {"generation", "agreed"}


def test_the_secret_depends_on_the_file_and_the_name_only(keys):
    """Compare with the library's HKDF; the private keys of the two sides are not used."""
    root = HKDF(SHA256(), 32, None, b"vitrail psfedgan 1 file a").derive(bytes.fromhex((keys / "a.key").read_text()))
    method = small(key_source="file")
    assert method.shared_secret("a", bytes(32), b"", b"") == twin.Secret(root, "a")
    put(keys, "b", bytes.fromhex((keys / "a.key").read_text()))
    assert twin.secret_from_file("b").seed(0) != twin.secret_from_file("a").seed(0)
    server, _ = initial_states(method)
    starts = [one_round(method, server, method.client_init("a", Rng((k,))))[0]["before"]["generator"] for k in (1, 2)]
    assert np.array_equal(*starts)


def test_with_key_files_a_client_that_lost_its_state_restarts(keys, tmp_path):
    method = small(4, key_source="file")
    fed, *_ = federate(method, tmp_path / "run", indices=TWO, rounds=2)
    (tmp_path / "run" / "client-1.safetensors").unlink()
    fed, *_ = federate(method, tmp_path / "run", indices=TWO, rounds=2, fed=fed)
    assert agree(fed, tmp_path / "run")
    assert [fed.server["twins"][c]["generation"] for c in sorted(TWO)] == [0, 1]


def test_different_key_files_are_reported(keys, tmp_path):
    method = small(key_source="file")
    server, state = initial_states(method)
    _, parts = one_round(method, server, state)
    put(keys, "a", bytes(32))
    with pytest.raises(Malformed, match="the key files differ"):
        method.receive(server, "a", parts)


def test_a_key_file_missing_on_the_server_is_reported_before_any_request(keys):
    method = small(4, key_source="file")
    server, _ = initial_states(method)
    (keys / "client-1.key").unlink()
    with pytest.raises(VitrailError, match=r"client-1\.key"):
        method.start_round(server, sorted(TWO), Rng((1,)))
    assert method.start_round({**server, "rounds": 4}, sorted(TWO), Rng((1,)))[1] == ()


def test_an_unsafe_key_file_is_refused_without_its_path(keys, tmp_path):
    method = small(4, key_source="file")
    server, state = initial_states(method)
    (keys / "a.key").chmod(0o644)
    with pytest.raises(VitrailError, match="chmod 600") as e:
        one_round(method, server, state)
    assert str(keys) not in str(e.value)


def test_no_file_of_a_run_contains_a_secret(keys, tmp_path):
    quick = {
        "width": 4,
        "latent_dim": 8,
        "d_width": 4,
        "batch_size": 8,
        "steps_per_message": 2,
        "classifier_rounds": 0,
        "rounds": 2,
    }
    run = {"data": "digits", "size": 8, "clients": 2, "workers": 1, "grids": 0, "eval_every": 0}
    runs.train("psfedgan", **quick, **run, key_source="file", out=str(tmp_path / "out"))
    hidden = set()
    for c in TWO:
        secret, raw = twin.secret_from_file(c), bytes.fromhex((keys / f"{c}.key").read_text())
        for one in (raw, secret.root, secret.seed(0)):
            hidden |= windows(one) | windows(one.hex().encode())
    for path in (p for p in (tmp_path / "out").rglob("*") if p.is_file()):
        assert not windows(path.read_bytes()) & hidden, path
        assert path.suffix == ".safetensors" or str(keys).encode() not in path.read_bytes()
    assert 'key_source = "file"' in (tmp_path / "out" / "settings.toml").read_text()
    assert private_state(tmp_path / "out" / "clients", "client-0")["now"]["steps"] == 4
