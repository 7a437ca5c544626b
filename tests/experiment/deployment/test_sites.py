"""Connections to a SuperLink with TLS and SuperNode authentication: real processes on loopback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.experiment.deployment.sites import PATIENCE, Sites
from tests.experiment.deployment.sockets import listening, only_loopback
from vitrail.engines.flower.certificates import make_certificates

pytestmark = pytest.mark.sites


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("tls")
    keys, others = folder / "keys", folder / "others"
    make_certificates(keys, ["north", "south"])
    make_certificates(others, ["north"])
    with Sites(folder / "run", keys) as sites:
        sites.superlink()
        sites.register("north")
        ca, north = keys / "north" / "ca.crt", keys / "north" / "supernode.key"
        sites.supernode("registered", key=north, ca=ca)
        sites.supernode("unregistered", key=keys / "south" / "supernode.key", ca=ca)
        sites.supernode("without a key", ca=ca)
        sites.supernode("plain text")
        sites.supernode("of another authority", key=north, ca=others / "north" / "ca.crt")
        yield sites


def test_a_registered_supernode_is_accepted(sites: Sites):
    sites.wait_for("registered", "SuperNode ID")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("unregistered", "Failed to activate SuperNode"),
        ("without a key", "All SuperNodes must be registered"),
        ("plain text", "Server disconnected"),
        ("of another authority", "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_any_other_supernode_is_refused(sites: Sites, name: str, message: str):
    assert sites.running[name].wait(PATIENCE) != 0
    assert "SuperNode ID" not in sites.log(name)
    assert message in sites.log(name)


def test_one_node_was_accepted_and_all_sockets_are_on_loopback(sites: Sites):
    sites.wait_for("registered", "SuperNode ID")
    assert sites.log("link").count("Activated node_id") == 1
    assert listening(sites.pids())
    assert only_loopback(sites.pids())
