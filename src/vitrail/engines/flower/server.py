"""The ServerApp: a run over the nodes of a deployment. It holds no pictures unless its own settings name some."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from vitrail import __version__
from vitrail.cli.progress import ProgressDisplay
from vitrail.data import load
from vitrail.data.dataset import Dataset, Images
from vitrail.data.partitions import Partition
from vitrail.engines.flower.description import Description
from vitrail.engines.flower.engine import FlowerEngine
from vitrail.engines.flower.messages import KEEP
from vitrail.engines.flower.roster import Roster
from vitrail.engines.flower.run_spec import RunSpec
from vitrail.engines.replies import Failure
from vitrail.engines.signing.server import ClientKeys, SigningServer
from vitrail.experiment import settings as config
from vitrail.experiment.partitioning import partition_from_settings
from vitrail.experiment.plan import Plan, assemble, complete
from vitrail.experiment.run import Run
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.runner import run_rounds
from vitrail.experiment.settings import Settings
from vitrail.experiment.validation import NODES
from vitrail.privacy.ledger import Ledger
from vitrail.privacy.run_ledger import asked_by_client
from vitrail.privacy.statement import read_statement
from vitrail.utils.atomic import write_atomically
from vitrail.utils.errors import Malformed, VitrailError, printable
from vitrail.utils.keys import Key, load_or_create_key
from vitrail.utils.paths import data_home

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """What `flwr run` starts."""
    serve(grid, context.run_config)


def serve(grid: Grid, given: Mapping[str, Any]) -> Run:
    """Begin a run in the folder `out`, or go on with the one that is there."""
    settings = _settings(given)
    place = RunDir(Path(settings.out))
    with place.locked():
        found, proof = _facts(place), _proof()
        proof.names.keys |= {name: bytes.fromhex(key) for name, key in (found or {}).get("keys", {}).items()}
        roster = Roster(grid, RunSpec.offer(settings), settings.timeout, proof=proof)
        proof.about = roster.told
        facts = found or _new(place, roster, settings)
        plan = deployed(settings, facts, proof.key)
        if facts["id"] not in ("", plan.id.hex()):
            raise VitrailError(
                f"out={place.path} holds a run with other settings; use those of {place.settings}, or another out="
            )
        roster.terms, roster.wanted = RunSpec.of(plan), plan.clients
        for node, text in facts.get("there", {}).items():
            with suppress(VitrailError):  # written by an earlier version that read anything: it is asked again
                roster.found[int(node)] = Description.read(text)
        roster.wait(plan.clients, settings.timeout)
        there = {str(node): d.text() for node, d in roster.found.items()}  # what is known need not be asked again
        _keep(place, facts | {"id": plan.id.hex(), "there": there}, plan)
        for problem in roster.problems():
            print(f"refused: {problem}")
        run = run_rounds(plan, lambda p: nullcontext(FlowerEngine(grid, roster, p.method)), ProgressDisplay())
        facts = _facts(place) or {}
        delivered = deliver(grid, roster, plan)
        _keep(place, facts | {"delivered": facts.get("delivered", {}) | delivered}, plan)
    return run


def _settings(given: Mapping[str, Any]) -> Settings:
    """`settings`, as after `vitrail run`, and `out`."""
    words = shlex.split(str(given.get("settings", "")))
    if not words:
        raise VitrailError('the run config names no settings; give -c \'settings="prism clients=3" out="FOLDER"\'')
    values = config.read_one(words[0]) | dict(map(config.parse_override, words[1:]))
    if out := given.get("out"):
        values["out"] = str(out)
    if not values.get("out"):
        raise VitrailError("the run config names no folder; give -c 'out=\"FOLDER\"', on the machine of the SuperLink")
    values.setdefault("data", NODES)
    begun = RunDir(Path(values["out"])).settings
    values.setdefault("noise_source", config.resolve(str(begun), {}).noise_source if begun.exists() else "os")
    return config.resolve(values, {"engine": "flower"})


def _facts(place: RunDir) -> dict[str, Any] | None:
    """What was agreed when the run in this folder began."""
    if not place.nodes.exists():
        return None
    facts: dict[str, Any] = json.loads(place.nodes.read_text())
    return facts


def _new(place: RunDir, roster: Roster, settings: Settings) -> dict[str, Any]:
    """Wait for the nodes of a new run; `nonce` makes its id its own, though settings may be those of an earlier one."""
    place.check_free()
    names = roster.gather(settings.clients)
    t = roster.terms
    keys = {name: d.key for name in names for d in roster.found.values() if d.name == name}
    images = {name: d.images for name in names for d in roster.found.values() if d.name == name}
    if all(images.values()):
        print("images declared:", ", ".join(f"{printable(name)} {n:,}" for name, n in images.items()))
    agreed = {"names": names, "keys": keys, "shape": t.shape, "classes": t.classes, "images": images}
    return {"id": "", "nonce": secrets.token_hex(16), **agreed, "there": {}}


def _proof() -> SigningServer:
    """The server's key, which it makes once, and the keys of nodes: those in $VITRAIL_NODE_KEYS, or what they show."""
    key = load_or_create_key(Path(os.environ.get("VITRAIL_SERVER_KEY") or data_home() / "server.key").expanduser())
    expected = os.environ.get("VITRAIL_NODE_KEYS")
    print(f"requests are signed; nodes know them by server-key={key.public.hex()}")
    return SigningServer(key, ClientKeys(expected=Path(expected).expanduser() if expected else None))


def _keep(place: RunDir, facts: dict[str, Any], plan: Plan) -> None:
    write_atomically(place.nodes, (json.dumps(facts, indent=1) + "\n").encode())
    if not place.settings.exists():
        write_atomically(place.settings, config.to_toml(plan.settings, __version__).encode())


def deployed(settings: Settings, facts: Mapping[str, Any], key: Key | None = None) -> Plan:
    """A run over nodes that are what they said; only what the server's own settings name is loaded.

    Args:
        settings: The run's settings.
        facts: What the nodes described, as nodes.json stores it.
        key: The server's key, which signs the ledger.
    """
    shape, names = tuple(facts["shape"]), tuple(facts["names"])
    classes = tuple(facts["classes"]) if settings.labels == "auto" else ()
    none = np.empty(0, np.int64)
    nothing = Images(np.empty((0, *shape), np.uint8), none if classes else None)
    data, held = Dataset(NODES, nothing, nothing, classes), none
    notes = []
    if settings.data == NODES:
        notes.append("the server holds no pictures, so nothing is measured; evaluate the model where there are some")
    else:
        own = load(settings.data, size=shape[1], test_fraction=settings.test_fraction)
        if settings.server_fraction:
            own, shares, _ = partition_from_settings(complete(settings, own), own)
            held = shares.server
        own = own if classes else own.without_labels()
        if (own.shape, own.classes) != (shape, classes):
            raise VitrailError(
                f"data={settings.data} at the server has pictures {own.shape} and labels {own.classes}, the nodes "
                f"{shape} and {classes}; name data of the same kind, or none"
            )
        data = own
    declared = facts.get("images", {}).values()
    images = max(declared) if declared and all(declared) else 0
    images = min(
        images, int(getattr(settings, "max_per_class", images)) * max(1, len(classes))
    )  # declaring lifts no bound
    shares = Partition(NODES, names, (none,) * len(names), held)
    settings = complete(settings, data)
    if settings.noise_source == "seed":
        notes.append(
            "noise_source=seed: noise and secrets follow from the seed, which the server knows; for trials only"
        )
    return assemble(settings, data, shares, list(names), facts["nonce"], notes, deployed=True, key=key, images=images)


def deliver(grid: Grid, roster: Roster, plan: Plan) -> dict[str, int]:
    """Send every node the model, and add the nodes' statements to the ledger; bytes sent to each that has it now."""
    model = plan.folder.model.read_bytes()
    post = FlowerEngine(grid, roster, plan.method, kind=KEEP)
    ledger = Ledger(plan.folder.ledger, key=lambda: plan.key or load_or_create_key(plan.folder.key))
    delivered = {}
    for client, answer in post.ask((client, model) for client in plan.clients):
        if isinstance(answer, Failure):
            print(f"{printable(client)} has no model: {answer.reason}")
            continue
        delivered[client] = len(model)
        try:
            key = roster.proof.names.key_of(client) if roster.proof else None
            asked = asked_by_client(ledger.entries, plan.clients)[client]
            ledger.once(kind="statement", client=client, **read_statement(answer, client, plan.id.hex(), key, asked))
        except Malformed as e:
            print(f"{printable(client)}: {e}; the ledger has no statement of it")
    return delivered
