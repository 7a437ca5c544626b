"""The owner's decisions on real processes: server, mechanism, and code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.experiment.deployment.sites import PATIENCE, Sites
from tests.experiment.deployment.sockets import only_loopback
from vitrail.engines.flower.certificates import make_certificates
from vitrail.models.model_file import load
from vitrail.privacy.checked_ledger import read_run_ledger
from vitrail.privacy.statement import check_statement
from vitrail.utils.keys import Key, public_key

PLAIN = ("flower-supernode",)
OWN_CODE = (sys.executable, "-m", "vitrail.cli.main", "supernode")
ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
QUICK = "moments size=8 rounds=2 clients=1 epsilon=9.8 noise_source=os local_steps=2 batch_size=10 features=vitrail-fashion grids=0 eval_every=0 timeout=240 quorum=1"
FOREIGN = {
    "pyproject.toml": """
[project]
name = "foreign"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "another"
[tool.flwr.app.components]
serverapp = "foreign.app:server"
clientapp = "foreign.app:client"
[tool.flwr.app.config]
""",
    "foreign/__init__.py": "",
    "foreign/app.py": """
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    Path(context.node_config["folder"], "was-here").write_text("foreign code read this folder")
    return Message(RecordDict({"c": ConfigRecord({"ok": True})}), reply_to=message)

@server.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    sent = [Message(RecordDict(), n, "train") for n in nodes]
    replies = list(grid.send_and_receive(sent, timeout=240))
    print("sent", len(nodes), "and received", len(replies))
""",
}

pytestmark = pytest.mark.sites


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """north accepts, south requires more, west names another server, east trusts only signed apps."""
    folder = tmp_path_factory.mktemp("owners")
    keys = folder / "keys"
    owners = {
        "north": (f'server-key="{keys}/north/server.pub" max-epsilon=9.81 accept="moments"', OWN_CODE),
        "south": (f'server-key="{keys}/south/server.pub" max-epsilon=1.0', PLAIN),
        "west": (f'server-key="{Key(bytes(32)).public.hex()}"', PLAIN),
        "east": ("", (*PLAIN, "--trusted-entities", str(folder / "trusted.yaml"))),
    }
    make_certificates(keys, list(owners))
    (folder / "trusted.yaml").write_text(f"{{fpk_1: '{ED25519}'}}\n")
    with Sites(
        folder / "run",
        keys,
        VITRAIL_SERVER_KEY=str(keys / "superlink" / "signing.key"),
        VITRAIL_NODE_KEYS=str(keys / "superlink" / "keys"),
    ) as sites:
        sites.superlink()
        sites.register(*owners)
        for i, (name, (config, command)) in enumerate(owners.items()):
            shared = f'name="{name}" data="digits" folder="{keys}/{name}" device="cpu" partition="iid" '
            shared += f"partition-id={i} num-partitions=4 {config}"
            key, ca = keys / name / "supernode.key", keys / name / "ca.crt"
            sites.supernode(name, "--node-config", shared, key=key, ca=ca, command=command)
        for name in owners:
            sites.wait_for(name, "SuperNode ID")
        yield sites


def test_a_run_continues_with_the_nodes_that_accept_it(sites: Sites):
    out, keys = sites.root.parent / "out", sites.keys
    sites.run(QUICK, out)
    sites.done(out, 3 * PATIENCE)
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert (first["requested"], first["replied"], first["excluded"]) == (1, 1, {})
    assert "south: refused by the node's policy" in sites.log("flwr")
    own = (keys / "south" / "refusals.log").read_text()
    assert "owner's policy refuses this run: moments over one reply costs ε = 9.8" in own
    assert "ε of at most 1 at δ = 1e-05" in own
    for words in ("costs", "of at most"):
        assert words not in sites.log("flwr"), "why is its owner's affair"
    assert "west: the request is not signed by the server that this node's owner named" in sites.log("flwr")
    assert load(out).sample(2).shape == (2, 1, 8, 8)
    *_, closing, statement = read_run_ledger(out).entries
    assert closing["says"].startswith("ε = 9.8 at δ = 1e-05")
    assert statement["client"] == "north", "south gave no answer, so it states none"
    assert statement["node_key"] == public_key(str(keys / "north" / "node.pub")).hex()
    assert check_statement(statement)["epsilon"] == pytest.approx(9.8, rel=1e-3)
    assert only_loopback(sites.pids())

    known = json.loads((out / "nodes.json").read_text())["keys"]
    assert known == {"north": public_key(str(keys / "north" / "node.pub")).hex()}
    (model,) = (keys / "north" / "models").iterdir()
    assert model.read_bytes() == (out / "model.safetensors").read_bytes()
    for stranger in ("south", "west", "east"):
        assert not (keys / stranger / "runs").exists(), "a node stores nothing of a run that it refuses"
        assert not (keys / stranger / "models").exists()


def test_no_secret_is_in_a_log_or_in_the_superlink_database(sites: Sites):
    out, keys = sites.root.parent / "out", sites.keys
    files = ("north/node.key", "south/node.key", "superlink/signing.key")
    secrets = [(keys / file).read_text().strip() for file in files]
    written = [p for p in (*sites.root.rglob("*"), *out.rglob("*")) if p.is_file()]
    assert {"state.db", "link.log", "north.log", "flwr.log", "nodes.json"} <= {p.name for p in written}
    for path in written:
        raw = path.read_bytes()
        for secret in secrets:
            assert secret.encode() not in raw, path.name
            assert bytes.fromhex(secret) not in raw, path.name


def test_shipped_code_never_runs_on_a_vitrail_supernode(sites: Sites):
    """A node that trusts only signed apps runs no shipped code, and not ours."""
    app = sites.root.parent / "foreign"
    for name, text in FOREIGN.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    returned = sites.flwr("run", str(app), "loop", "--stream")
    assert "sent 4 and received 4" in returned, returned[-3000:]
    was = {name: (sites.keys / name / "was-here").exists() for name in ("north", "south", "west", "east")}
    assert was == {"north": False, "south": True, "west": True, "east": False}
    assert "The FAB could not be verified" in sites.log("east")
