"""PS-FedGAN with secrets from files: no key is exchanged, both sides derive one secret, and nothing of it is written."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.federation import federate, shares
from tests.methods.psfedgan.test_algorithm import agree, beginning, one_round, private, small, told, windows
from vitrail.experiment import train as runs
from vitrail.methods.psfedgan import twin as twins
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng

TWO = shares(2)


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


def test_g_s_is_g_u_bit_for_bit_and_no_key_travels(keys, tmp_path):
    method = small(4, key_source="file")
    assert "key" not in method.reply_spec()
    assert "key" in small(4).reply_spec()
    fed, outcomes, traffic = federate(method, tmp_path / "run", holds=TWO)
    assert [len(o.replied) for o in outcomes] == [2] * 4
    assert agree(fed, tmp_path / "run")
    secrets = [twins.secret_given(c) for c in TWO]
    hidden = [raw for s in secrets for raw in (s.root, s.seed(0))]
    hidden += [bytes.fromhex(f.read_text()) for f in keys.iterdir()]
    seen = set().union(*(windows(data) for _, data in traffic.requests + traffic.replies))
    assert not seen & set().union(*map(windows, hidden))
    assert set(told(method, fed.server, "client-0")) == {"generation", "agreed"}


def test_the_secret_is_derived_from_the_file_and_the_name_alone(keys):
    """HKDF with the library alone; the private keys of the two sides play no part."""
    root = HKDF(SHA256(), 32, None, b"vitrail psfedgan 1 file a").derive(bytes.fromhex((keys / "a.key").read_text()))
    method = small(key_source="file")
    assert method.shared("a", bytes(32), b"", b"") == twins.Secret(root, "a")
    put(keys, "b", bytes.fromhex((keys / "a.key").read_text()))
    assert twins.secret_given("b").seed(0) != twins.secret_given("a").seed(0)
    server, _ = beginning(method)
    starts = [one_round(method, server, method.client_init("a", Rng((k,))))[0]["before"]["generator"] for k in (1, 2)]
    assert np.array_equal(*starts)


def test_a_client_that_lost_its_state_begins_anew_from_the_next_seed(keys, tmp_path):
    method = small(4, key_source="file")
    fed, *_ = federate(method, tmp_path / "run", holds=TWO, rounds=2)
    (tmp_path / "run" / "client-1.safetensors").unlink()
    fed, *_ = federate(method, tmp_path / "run", holds=TWO, rounds=2, fed=fed)
    assert agree(fed, tmp_path / "run")
    assert [fed.server["twins"][c]["generation"] for c in sorted(TWO)] == [0, 1]


def test_different_files_never_agree_and_the_reason_says_so(keys, tmp_path):
    method = small(key_source="file")
    server, state = beginning(method)
    _, parts = one_round(method, server, state)
    put(keys, "a", bytes(32))
    with pytest.raises(Malformed, match="different key files"):
        method.receive(server, "a", parts)


def test_a_server_that_lacks_a_file_says_so_before_anybody_is_asked(keys):
    method = small(4, key_source="file")
    server, _ = beginning(method)
    (keys / "client-1.key").unlink()
    with pytest.raises(VitrailError, match=r"client-1\.key"):
        method.start_round(server, sorted(TWO), Rng((1,)))
    assert method.start_round({**server, "rounds": 4}, sorted(TWO), Rng((1,)))[1] == ()


def test_a_client_that_lacks_its_file_says_so_and_not_where_it_looked(keys, tmp_path):
    method = small(4, key_source="file")
    server, state = beginning(method)
    (keys / "a.key").chmod(0o644)
    with pytest.raises(VitrailError, match="chmod 600") as e:
        one_round(method, server, state)
    assert str(keys) not in str(e.value)


def test_nothing_of_a_secret_is_in_a_runs_folder(keys, tmp_path):
    """Checkpoints and clients' own files have G; settings, ledger and report have neither that nor a secret."""
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
        secret, raw = twins.secret_given(c), bytes.fromhex((keys / f"{c}.key").read_text())
        for one in (raw, secret.root, secret.seed(0)):
            hidden |= windows(one) | windows(one.hex().encode())
    for path in (p for p in (tmp_path / "out").rglob("*") if p.is_file()):
        assert not windows(path.read_bytes()) & hidden, path
        assert path.suffix == ".safetensors" or str(keys).encode() not in path.read_bytes()
    assert 'key_from = "file"' in (tmp_path / "out" / "settings.toml").read_text()
    assert private(tmp_path / "out" / "clients", "client-0")["now"]["steps"] == 4
