"""A run over the nodes of a deployment, at the server; it has no images unless its own settings name some."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from vitrail.engines.flower.descriptions import Description
from vitrail.engines.flower.engine import FlowerEngine
from vitrail.engines.flower.roster import Roster
from vitrail.engines.replies import Failure
from vitrail.engines.signing.client import KEEP
from vitrail.engines.signing.server import ClientKeys, SigningServer
from vitrail.experiment import settings as config
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.deployment.plan import deployment_plan
from vitrail.experiment.deployment.specs import offer_spec, spec_of
from vitrail.experiment.plan import Plan
from vitrail.experiment.run_dir import Run, RunDir
from vitrail.experiment.runner import run_rounds
from vitrail.experiment.settings import Settings
from vitrail.experiment.validation import NODES
from vitrail.privacy.ledger import Ledger, requests_by_client
from vitrail.privacy.statement import read_statement
from vitrail.utils.atomic import write_atomically
from vitrail.utils.errors import Malformed, VitrailError, printable
from vitrail.utils.keys import load_or_create_key
from vitrail.utils.paths import data_home
from vitrail.utils.version import __version__


def serve(grid: Grid, given: Mapping[str, Any], callback: Callback | None = None) -> Run:
    """Start a run over nodes, or continue the one in its folder.

    Args:
        grid: Flower's connection to the nodes.
        given: Flower's run config: `settings`, as after `vitrail run`, and `out`, the folder of the run.
        callback: Receives the progress of the run.

    Returns:
        The finished run; the nodes have its model.

    Raises:
        VitrailError: The run config is invalid, the folder has a run with other settings, or nodes are missing.
    """
    settings = run_settings(given)
    folder = RunDir(Path(settings.out))
    with folder.locked():
        stored, signing = _read_facts(folder), _signing_server()
        signing.client_keys.keys |= {name: bytes.fromhex(key) for name, key in (stored or {}).get("keys", {}).items()}
        roster = Roster(grid, offer_spec(settings), settings.timeout, signing=signing)
        signing.spec = roster.spec_text
        facts = stored or _gather_nodes(folder, roster, settings)
        plan = deployment_plan(settings, facts, signing.key)
        if facts["id"] not in ("", plan.id.hex()):
            raise VitrailError(
                f"out={folder.path} has a run with other settings; use those of {folder.settings}, or another out="
            )
        roster.spec, roster.expected = spec_of(plan), plan.clients
        for node, text in facts.get("there", {}).items():
            with suppress(VitrailError):  # written by an earlier version with fewer checks: the node is queried again
                roster.found[int(node)] = Description.read(text)
        roster.wait(plan.clients, settings.timeout)
        there = {str(node): d.text() for node, d in roster.found.items()}  # need not be queried again
        _write_facts(folder, facts | {"id": plan.id.hex(), "there": there}, plan)
        for problem in roster.problems():
            print(f"refused: {problem}")
        engine = FlowerEngine(grid, roster, plan.method)
        run = run_rounds(plan, lambda _: nullcontext(engine), callback or Callback())
        facts = _read_facts(folder) or {}
        delivered = deliver_model(grid, roster, plan)
        _write_facts(folder, facts | {"delivered": facts.get("delivered", {}) | delivered}, plan)
    return run


def run_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a run config; noise comes from the operating system unless they say otherwise.

    Raises:
        VitrailError: The run config lacks `settings` or `out`, or a setting is invalid.
    """
    words = shlex.split(str(given.get("settings", "")))
    if not words:
        raise VitrailError('the run config has no settings; give -c \'settings="METHOD clients=3" out="FOLDER"\'')
    values = config.read_one(words[0]) | dict(map(config.parse_override, words[1:]))
    if out := given.get("out"):
        values["out"] = str(out)
    if not values.get("out"):
        raise VitrailError("the run config has no folder; give -c 'out=\"FOLDER\"', on the machine of the SuperLink")
    values.setdefault("data", NODES)
    folder = RunDir(Path(values["out"]))
    values.setdefault("noise_source", folder.stored_settings().noise_source if folder.settings.exists() else "os")
    return config.resolve(values, {"engine": "flower"})


def _signing_server() -> SigningServer:
    """The server's key, created once, and the keys of nodes: those in $VITRAIL_NODE_KEYS, or what they present."""
    key = load_or_create_key(Path(os.environ.get("VITRAIL_SERVER_KEY") or data_home() / "server.key").expanduser())
    expected = os.environ.get("VITRAIL_NODE_KEYS")
    keys = ClientKeys(expected=Path(expected).expanduser() if expected else None)
    keys.check_files()
    print(f"requests are signed; nodes verify them with server-key={key.public.hex()}")
    return SigningServer(key, keys)


def _gather_nodes(folder: RunDir, roster: Roster, settings: Settings) -> dict[str, Any]:
    """Wait for the nodes of a new run; `nonce` makes its id unique, even if an earlier run has the same settings."""
    folder.check_free()
    names = roster.gather(settings.clients)
    spec = roster.spec
    keys = {name: d.key for name in names for d in roster.found.values() if d.name == name}
    images = {name: d.images for name in names for d in roster.found.values() if d.name == name}
    if all(images.values()):
        print("images declared:", ", ".join(f"{printable(name)} {n:,}" for name, n in images.items()))
    agreed = {"names": names, "keys": keys, "shape": spec.shape, "classes": spec.classes, "images": images}
    return {"id": "", "nonce": secrets.token_hex(16), **agreed, "there": {}}


def _read_facts(folder: RunDir) -> dict[str, Any] | None:
    """What the nodes described when the run in this folder started."""
    facts: dict[str, Any] | None = json.loads(folder.nodes.read_text()) if folder.nodes.exists() else None
    return facts


def _write_facts(folder: RunDir, facts: dict[str, Any], plan: Plan) -> None:
    write_atomically(folder.nodes, (json.dumps(facts, indent=1) + "\n").encode())
    if not folder.settings.exists():
        write_atomically(folder.settings, config.to_toml(plan.settings, __version__).encode())


def deliver_model(grid: Grid, roster: Roster, plan: Plan) -> dict[str, int]:
    """Send every node the final model, and add the nodes' statements to the ledger.

    Returns:
        Bytes sent to each node that has the model now.
    """
    model = plan.folder.model.read_bytes()
    engine = FlowerEngine(grid, roster, plan.method, purpose=KEEP)
    ledger = Ledger(plan.folder.ledger, key=lambda: plan.key or load_or_create_key(plan.folder.key))
    delivered = {}
    for client, answer in engine.ask((client, model) for client in plan.clients):
        if isinstance(answer, Failure):
            print(f"{printable(client)} has no model: {answer.reason}")
            continue
        delivered[client] = len(model)
        try:
            key = roster.signing.client_keys.key_of(client) if roster.signing else None
            requests = requests_by_client(ledger.entries, plan.clients)[client]
            statement = read_statement(answer, client, plan.id.hex(), key, requests)
            ledger.once(kind="statement", client=client, **statement)
        except Malformed as e:
            print(f"{printable(client)}: {e}; the ledger has no statement of it")
    return delivered
