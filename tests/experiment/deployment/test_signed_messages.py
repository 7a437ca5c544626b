"""Nodes of a deployment over a Grid in memory: with signatures and secure aggregation, the bits are those of the embedded engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tests.engines.flower.test_engine import InMemory
from tests.federation import QUICK, same
from vitrail.engines.flower.descriptions import RunSpec
from vitrail.engines.flower.engine import FlowerEngine
from vitrail.engines.flower.messages import pack, unpack
from vitrail.engines.flower.roster import Roster
from vitrail.engines.rounds import Federation, RoundResult, run_round
from vitrail.engines.signing.client import DESCRIBE, KEEP, NONCE, TRAIN
from vitrail.engines.signing.server import ClientKeys, SigningServer
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.client_app import app
from vitrail.experiment.deployment.node import Node
from vitrail.experiment.deployment.plan import deployment_plan
from vitrail.experiment.deployment.specs import spec_of
from vitrail.experiment.plan import Plan, prepare
from vitrail.experiment.runner import Engine
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import SIGNATURE, Key, load_or_create_key
from vitrail.utils.rng import Rng

NAMES = [f"client-{k}" for k in range(3)]
SERVER = Key(bytes(range(32)))
TINY = {"size": 8, "test_fraction": 0.9, "clients": 3, "rounds": 2, "out": "-", "seed": 3}


@pytest.fixture(autouse=True)
def _within_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_id", "node_id", "task_id"):  # Flower creates messages only within a task
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def plan_for(method: str, **settings) -> Plan:
    """A run over three nodes with digits."""
    given = {**QUICK[method], **TINY, **settings, "engine": "flower", "data": "nodes", "timeout": 5}
    facts = {"names": NAMES, "shape": (1, 8, 8), "classes": tuple("0123456789"), "nonce": "00" * 16}
    return deployment_plan(config.resolve(method, given), facts)


def node(folder: Path, k: int, **own) -> Node:
    common = {"name": NAMES[k], "data": "digits", "folder": str(folder / NAMES[k]), "device": "cpu", "partition": "iid"}
    return Node.of({**common, "partition-id": k, "num-partitions": 3, "server-key": SERVER.public.hex(), **own})


def engine_for(plan: Plan, nodes: list[Node]) -> tuple[FlowerEngine, InMemory]:
    grid = InMemory(dict(enumerate(nodes, start=7)))  # type: ignore[arg-type]
    signing = SigningServer(SERVER, ClientKeys())
    roster = Roster(grid, spec_of(plan), 5.0, signing=signing)
    signing.spec = roster.spec_text
    roster.wait(NAMES, 1.0)
    return FlowerEngine(grid, roster, plan.method), grid


def run_all(plan: Plan, engine: Engine) -> tuple[Federation, list[RoundResult]]:
    rng = Rng((plan.settings.seed,))
    fed, outcomes = Federation(0, plan.method.server_init(rng.child("server", "init"))), []
    while fed.round < plan.settings.rounds:
        fed, outcome = run_round(plan.method, fed, plan.id, plan.clients, engine.ask, rng)
        engine.count(outcome)
        outcomes.append(outcome)
    return fed, outcomes


def embedded(plan: Plan, folder: Path) -> tuple[Federation, list[RoundResult]]:
    """The same run with all clients on this machine."""
    whole = prepare(config.resolve("fedavg", {**TINY, "data": "digits"}))
    indices = dict(zip(whole.partition.names, whole.partition.indices, strict=True))
    with SimulationEngine(
        SimulatedClients(plan.method, plan.id, Rng((plan.settings.seed,)), indices, folder), whole.data.train
    ) as engine:
        return run_all(plan, engine)


@pytest.mark.parametrize(
    ("method", "settings", "exchanges"),
    [
        ("prism", {}, 1),
        ("prism", {"secagg_threshold": 2, "coding": "packed"}, 5),
        ("moments", {"secagg_threshold": 2, "epsilon": 9.8}, 5),
    ],
    ids=["prism", "prism, secure", "moments, secure"],
)
def test_signed_nodes_give_the_bits_of_the_embedded_engine(method, settings, exchanges, tmp_path):
    plan = plan_for(method, **settings)
    engine, _ = engine_for(plan, [node(tmp_path, k) for k in range(3)])
    fed, outcomes = run_all(plan, engine)
    plain, others = embedded(plan, tmp_path / "embedded")
    assert same(fed.tree(), plain.tree())
    for a, b in zip(outcomes, others, strict=True):
        assert (a.replied, a.excluded, a.metrics) == (b.replied, b.excluded, b.metrics)
        assert a.up == {c: n + exchanges * SIGNATURE for c, n in b.up.items()}
        assert a.down == {c: n + exchanges * SIGNATURE for c, n in b.down.items()}
    assert outcomes[0].replied == NAMES


def test_nodes_with_peer_keys_refuse_a_client_with_another_key(tmp_path):
    plan = plan_for("prism", secagg_threshold=2, coding="packed")
    peers = tmp_path / "peers"
    peers.mkdir()
    for name in NAMES[:2]:
        (peers / f"{name}.pub").write_text(load_or_create_key(tmp_path / name / "node.key").public.hex())
    (peers / "client-2.pub").write_text(SERVER.public.hex())
    nodes = [node(tmp_path, k, **{"peer-keys": str(peers)}) for k in range(3)]
    _, outcomes = run_all(plan, engine_for(plan, nodes)[0])
    assert all("'client-2' presents the key" in outcomes[0].excluded[c] for c in NAMES[:2])
    assert "shared their secrets" in outcomes[0].void

    (peers / "client-2.pub").write_text(load_or_create_key(tmp_path / "client-2" / "node.key").public.hex())
    plan = plan_for("prism", secagg_threshold=2, coding="packed", seed=4)
    _, outcomes = run_all(plan, engine_for(plan, nodes)[0])
    assert outcomes[0].replied == NAMES
    assert not outcomes[0].void


def test_refusing_nodes_are_excluded_and_their_reasons_stay_private(tmp_path):
    plan = plan_for("prism")
    nodes = [
        node(tmp_path, 0),
        node(tmp_path, 1, **{"max-epsilon": 9.8}),
        node(tmp_path, 2, **{"require-secagg": True}),
    ]
    fed, outcomes = run_all(plan, engine_for(plan, nodes)[0])
    assert fed.round == 2
    assert outcomes[0].replied == ["client-0"]
    assert outcomes[0].excluded == dict.fromkeys(NAMES[1:], "refused by the node's policy")
    own = [(tmp_path / name / "refusals.log").read_text() for name in NAMES[1:]]
    assert (
        "it adds no noise. The policy accepts: a mechanism whose noise this node adds itself, ε of at most 9.8"
        in own[0]
    )
    assert "would see this client's numbers individually" in own[1]
    assert not any((tmp_path / name / "runs").exists() for name in NAMES[1:]), "a refused run leaves no folder"


def test_a_node_that_takes_the_name_of_another_is_excluded(tmp_path):
    """A second node of the same name has another key than the run started with."""
    plan = plan_for("prism")
    engine, grid = engine_for(plan, [node(tmp_path, k) for k in range(3)])
    assert engine.roster.signing is not None
    (tmp_path / NAMES[2] / "node.key").unlink()
    load_or_create_key(tmp_path / NAMES[2] / "node.key")
    _, outcomes = run_all(plan, engine)
    assert "not signed for this request by its key" in outcomes[0].excluded["client-2"]
    grid.nodes[12] = grid.nodes.pop(9)  # and it is refused under another id
    engine.roster.updated = 0.0
    engine.roster.update()
    assert any("was its key before" in why for why in engine.roster.problems())


def test_terms_changed_in_transit_to_less_privacy_are_refused(tmp_path):
    """A specification changed in transit is detected by nodes that know their server's key."""
    plan = plan_for("prism", privacy="moments", epsilon=9.8)
    engine, _ = engine_for(plan, [node(tmp_path, k) for k in range(3)])
    spec = engine.roster.spec
    assert engine.roster.signing is not None
    engine.roster.signing.spec = spec.text  # what the server signs
    less = {k: v for k, v in spec.settings.items() if k not in ("privacy", "epsilon")}
    engine.roster.spec = replace(spec, settings=less)  # what arrives
    _, outcomes = run_all(plan, engine)
    assert not outcomes[0].replied
    assert all("not signed by the server" in why for why in outcomes[0].excluded.values())
    assert not any((tmp_path / name / "runs").exists() for name in NAMES)


class Rewriting(InMemory):
    """Changes requests for descriptions (`requested`) and descriptions (`returned`) in transit."""

    def __init__(self, nodes, requested=lambda node, text: text, returned=lambda node, record: record):
        super().__init__(nodes)
        self.requested, self.returned, self.requests = requested, returned, []

    def say(self, node, message):
        if message.metadata.message_type != DESCRIBE:
            super().say(node, message)
            return
        text, carried = unpack(message, 2**10)
        self.requests.append(carried)
        message.content = pack(self.requested(node, text), carried)
        super().say(node, message)
        reply = self.ready[message.metadata.message_id]
        reply.content = self.returned(node, reply.content)


def looked(grid: InMemory, spec: RunSpec) -> Roster:
    """A roster with the descriptions of all nodes."""
    signing = SigningServer(SERVER, ClientKeys())
    roster = Roster(grid, spec, 5.0, signing=signing)
    signing.spec = roster.spec_text
    roster.update()
    return roster


def test_a_description_of_an_earlier_request_is_refused(tmp_path):
    """The same server, specification and nodes: the reply to one request is refused for the next."""
    spec, nodes, received = spec_of(plan_for("prism")), {7 + k: node(tmp_path, k) for k in range(2)}, {}

    def recorded(number, record):
        return received.setdefault(number, record)

    assert {d.name for d in looked(Rewriting(nodes, returned=recorded), spec).found.values()} == set(NAMES[:2])
    again = looked(Rewriting(nodes, returned=recorded), spec)
    assert again.found == {}
    assert all("not signed for this request" in why for why in again.problems())
    assert len(again.problems()) == 2


def test_each_request_for_a_description_has_its_own_nonce(tmp_path):
    spec, nodes = spec_of(plan_for("prism")), {7 + k: node(tmp_path, k) for k in range(3)}
    received = []

    def crossed(number, record):  # each description arrives as that of the next node
        received.append(record)
        return received[-2] if len(received) > 1 else record

    grid = Rewriting(nodes, returned=crossed)
    roster = looked(grid, spec)
    assert [d.name for d in roster.found.values()] == ["client-0"]
    assert len(set(grid.requests)) == 3
    assert all(len(request) == NONCE + SIGNATURE for request in grid.requests)


def test_a_description_for_other_terms_is_refused(tmp_path):
    """A node without server-key answers a changed specification; the server detects the change."""
    spec, nodes = spec_of(plan_for("prism")), {7 + k: node(tmp_path, k, **{"server-key": ""}) for k in range(2)}

    def changed(number, text):
        return text if number == 7 else text.replace('"rounds": 2', '"rounds": 3')

    roster = looked(Rewriting(nodes, requested=changed), spec)
    assert [d.name for d in roster.found.values()] == ["client-0"]
    assert "not signed for this request" in roster.problems()[0]


def test_a_request_for_a_description_without_a_nonce_is_refused(tmp_path):
    ours, server = node(tmp_path, 0), SigningServer(SERVER, ClientKeys(), lambda: "spec")
    assert len(ours.verify("spec", server.sign("", bytes(NONCE), DESCRIBE), DESCRIBE)) == NONCE
    for nonce in (b"", bytes(NONCE - 1)):
        with pytest.raises(VitrailError, match="a nonce of 32 bytes"):
            ours.verify("spec", server.sign("", nonce, DESCRIBE), DESCRIBE)


def test_errors_in_a_node_config_are_not_sent_to_the_server(tmp_path, capfd):
    """A misspelled policy also reveals the owner's policy."""
    wrong = {"name": "a", "data": "digits", "folder": str(tmp_path), "accept": "momnets", "max-epsilon": 3.14}
    for kind in (DESCRIBE, TRAIN, KEEP):
        request = Message(pack("{}", bytes(NONCE + SIGNATURE)), 1, kind)
        request.metadata.__dict__["_message_id"] = "m1"
        returned, _ = unpack(app(request, Context(1, 1, wrong, RecordDict(), {})), 2**10)
        assert "its node config is wrong; see the node's own log" in returned
        assert "mom" not in returned
    printed = capfd.readouterr().err
    assert "accept=momnets: no such mechanism" in printed
    assert "did you mean moments" in printed


def test_a_misspelled_node_config_is_refused_with_a_suggestion(tmp_path):
    for wrong, expected in (
        ({"max-epsilonn": 1.0}, "did you mean max-epsilon"),
        ({"server_kee": "x"}, "server-key"),
        ({"accept": "nothing"}, "no such mechanism"),
    ):
        with pytest.raises(VitrailError, match=expected):
            node(tmp_path, 0, **wrong)
