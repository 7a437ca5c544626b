"""What a node's owner decides holds on real processes: whose requests, which mechanism, whose code."""

import json
import sys

import pytest

from tests.engines.sites import BIN, Sites
from vitrail.artifact import load
from vitrail.certificates import make
from vitrail.privacy.ledger import read
from vitrail.privacy.signing import SIGNATURE, Key, public_key

pytest.importorskip("flwr")
OWN_CODE = (sys.executable, "-m", "vitrail.cli", "supernode")
QUICK = "moments size=8 rounds=2 clients=2 epsilon=9.8 entropy=os local_steps=2 batch=10 features=vitrail-fashion grids=0 measure_every=0 timeout=240"
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
publisher = "somebody"
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
    print("asked", len(nodes), "and heard", len(replies))
""",
}


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """north meets the terms, south's owner asks for more, west's named another server."""
    folder = tmp_path_factory.mktemp("owners")
    keys = folder / "keys"
    make(keys, ["north", "south", "west"])
    with Sites(folder / "run", keys, VITRAIL_SERVER_KEY=str(keys / "superlink" / "signing.key")) as sites:
        sites.nodes = folder
        sites.superlink(VITRAIL_NODE_KEYS=str(keys / "superlink" / "keys"))
        owners = {
            "north": (f'server-key="{keys}/north/server.pub" max-epsilon=9.81 accept="moments"', OWN_CODE),
            "south": (f'server-key="{keys}/south/server.pub" max-epsilon=1.0', (BIN / "flower-supernode",)),
            "west": (f'server-key="{Key(bytes(32)).public.hex()}"', (BIN / "flower-supernode",)),
        }
        for i, (name, (config, command)) in enumerate(owners.items()):
            sites.flwr("supernode", "register", keys / "superlink" / "nodes" / f"{name}.pub", "here")
            config += f' name="{name}" data="digits" folder="{keys}/{name}" device="cpu" partition="iid"'
            config += f" partition-id={i} num-partitions=3"
            key, ca = keys / name / "supernode.key", keys / name / "ca.crt"
            sites.supernode(name, config, key, ca, command)
        for name in owners:
            sites.until(name, "SuperNode ID")
        yield sites


def test_a_run_goes_on_with_those_whose_owners_agree(sites):
    out = sites.nodes / "out"
    done = sites.run(QUICK, out)
    assert (out / "report.html").exists(), done.stdout[-3000:] + done.stderr[-2000:]
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert (first["asked"], first["answered"]) == (2, 1)
    assert first["left_out"].keys() == {"south"}
    assert "owner's policy refuses this run: moments over one answer costs ε = 9.8" in first["left_out"]["south"]
    assert "it takes part with" in first["left_out"]["south"]
    assert "ε of at most 1 at δ = 1e-05" in first["left_out"]["south"]
    assert "west: the request is not signed by the server that this node's owner named" in done.stdout
    assert load(out).sample(2).shape == (2, 1, 8, 8)
    assert read(out / "ledger.json")[-1]["says"].startswith("ε = 9.8 at δ = 1e-05")

    keys = sites.nodes / "keys"
    known = json.loads((out / "nodes.json").read_text())["keys"]
    assert known == {n: public_key(str(keys / n / "node.pub")).hex() for n in ("north", "south")}
    kept = list((keys / "north" / "models").iterdir())
    assert [p.read_bytes() for p in kept] == [(out / "model.safetensors").read_bytes()]
    assert not (keys / "west" / "models").exists()
    assert not (keys / "west" / "runs").exists(), "of a server it does not know it keeps nothing"
    reply = sites.nodes / "keys" / "north" / "runs"
    assert first["up"]["north"] > SIGNATURE
    assert len(list(reply.iterdir())) == 1


def test_no_secret_is_in_a_log_or_in_what_the_superlink_keeps(sites):
    keys = sites.nodes / "keys"
    secrets = [
        (keys / who).read_text().strip() for who in ("north/node.key", "south/node.key", "superlink/signing.key")
    ]
    written = [p for p in (sites.nodes / "run").rglob("*") if p.is_file()] + list((sites.nodes / "out").glob("*.*"))
    assert any(p.name == "state.db" for p in written)
    for path in written:
        raw = path.read_bytes()
        for secret in secrets:
            assert secret.encode() not in raw, path.name
            assert bytes.fromhex(secret) not in raw, path.name


def test_shipped_code_runs_on_a_plain_supernode_and_never_on_one_of_ours(sites):
    app = sites.nodes / "foreign"
    for name, text in FOREIGN.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    done = sites.flwr("run", app, "here", "--stream")
    assert "asked 3 and heard 3" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]
    was = {name: (sites.nodes / "keys" / name / "was-here").exists() for name in ("north", "south", "west")}
    assert was == {"north": False, "south": True, "west": True}
