"""Who may connect to a SuperLink with TLS and SuperNode authentication on: real processes on loopback."""

import pytest

from tests.engines.sites import Sites, descendants, listening
from vitrail.certificates import make

pytest.importorskip("flwr")


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make(folder / "keys", ["north", "south"])
    make(folder / "others", ["north"])
    keys = folder / "keys"
    with Sites(folder / "run", keys) as sites:
        sites.superlink()
        done = sites.flwr("supernode", "register", keys / "superlink" / "nodes" / "north.pub", "here")
        assert "registered successfully" in done.stdout, done.stdout + done.stderr
        ca = keys / "north" / "ca.crt"
        sites.supernode("registered", key=keys / "north" / "supernode.key", ca=ca)
        sites.supernode("unregistered", key=keys / "south" / "supernode.key", ca=ca)
        sites.supernode("without a key", ca=ca)
        sites.supernode("plain text")
        sites.supernode("of another authority", key=keys / "north" / "supernode.key", ca=folder / "others/north/ca.crt")
        yield sites


def test_a_registered_supernode_is_taken(sites):
    sites.until("registered", "SuperNode ID")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("unregistered", "Failed to activate SuperNode"),
        ("without a key", "All SuperNodes must be registered"),
        ("plain text", "Server disconnected"),
        ("of another authority", "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_any_other_is_refused(sites, name, says):
    assert sites.ended(name) != 0
    assert "SuperNode ID" not in sites.log(name)
    assert says in sites.log(name)


def test_one_node_is_known_and_nothing_listens_beyond_loopback(sites):
    sites.until("registered", "SuperNode ID")
    assert sites.log("superlink").count("Activated node_id") == 1
    pids = {pid for p in sites.started.values() for pid in (p.pid, *descendants(p.pid))}
    assert listening(pids) == {"0100007F"}
