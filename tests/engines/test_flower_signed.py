"""Nodes of a deployment over a Grid in memory: signed, with secure sums, the bits are those of the embedded engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

from tests.engines.test_flower_ask import InMemory
from tests.federation import QUICK, same
from vitrail import config
from vitrail.engines.embedded import Crew, Embedded
from vitrail.engines.flower.engine import Flower
from vitrail.engines.flower.node import Node
from vitrail.engines.flower.roster import Roster
from vitrail.engines.flower.server import deployed
from vitrail.engines.flower.terms import Terms
from vitrail.engines.rounds import Federation, Outcome, play
from vitrail.engines.signed import Names, Server
from vitrail.errors import VitrailError
from vitrail.plan import Plan, prepare
from vitrail.privacy.signing import SIGNATURE, Key, kept_key
from vitrail.rng import Rng
from vitrail.run import Engine

NAMES = [f"client-{k}" for k in range(3)]
SERVER = Key(bytes(range(32)))
TINY = {"size": 8, "held_out": 0.9, "clients": 3, "rounds": 2, "out": "-", "seed": 3}


@pytest.fixture(autouse=True)
def _within_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_id", "node_id", "task_id"):  # Flower makes messages within a task only
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def plan_for(method: str, **settings) -> Plan:
    """A run over three nodes that hold digits."""
    given = {**QUICK[method], **TINY, **settings, "engine": "flower", "data": "nodes", "timeout": 5}
    facts = {"names": NAMES, "shape": (1, 8, 8), "classes": tuple("0123456789"), "nonce": "00" * 16}
    return deployed(config.resolve(method, given), facts)


def node(folder: Path, k: int, **own) -> Node:
    common = {"name": NAMES[k], "data": "digits", "folder": str(folder / NAMES[k]), "device": "cpu", "partition": "iid"}
    return Node.of({**common, "partition-id": k, "num-partitions": 3, "server-key": SERVER.public.hex(), **own})


def engine_for(plan: Plan, nodes: list[Node]) -> tuple[Flower, InMemory]:
    grid = InMemory(dict(enumerate(nodes, start=7)))  # type: ignore[arg-type]
    proof = Server(SERVER, Names())
    roster = Roster(grid, Terms.of(plan), 5.0, proof=proof)
    proof.about = roster.told
    roster.wait(NAMES, 1.0)
    return Flower(grid, roster, plan.method), grid


def played(plan: Plan, engine: Engine) -> tuple[Federation, list[Outcome]]:
    rng = Rng((plan.settings.seed,))
    fed, outcomes = Federation(0, plan.method.server_init(rng.child("server", "init"))), []
    while fed.round < plan.settings.rounds:
        fed, outcome = play(plan.method, fed, plan.id, plan.clients, engine.ask, rng)
        engine.count(outcome)
        outcomes.append(outcome)
    return fed, outcomes


def embedded(plan: Plan, folder: Path) -> tuple[Federation, list[Outcome]]:
    """The same run with all clients on this machine."""
    whole = prepare(config.resolve("fedavg", {**TINY, "data": "digits"}))
    holds = dict(zip(whole.partition.names, whole.partition.indices, strict=True))
    with Embedded(Crew(plan.method, plan.id, Rng((plan.settings.seed,)), holds, folder), whole.data.train) as engine:
        return played(plan, engine)


@pytest.mark.parametrize(
    ("method", "settings", "exchanges"),
    [
        ("prism", {}, 1),
        ("prism", {"secure": 2, "coding": "packed"}, 5),
        ("moments", {"secure": 2, "epsilon": 9.8}, 5),
    ],
    ids=["prism", "prism, secure", "moments, secure"],
)
def test_signed_nodes_give_the_bits_of_embedded_and_64_bytes_more_a_message(method, settings, exchanges, tmp_path):
    plan = plan_for(method, **settings)
    engine, _ = engine_for(plan, [node(tmp_path, k) for k in range(3)])
    fed, outcomes = played(plan, engine)
    plain, others = embedded(plan, tmp_path / "embedded")
    assert same(fed.tree(), plain.tree())
    for a, b in zip(outcomes, others, strict=True):
        assert (a.answered, a.left_out, a.metrics) == (b.answered, b.left_out, b.metrics)
        assert a.up == {c: n + exchanges * SIGNATURE for c, n in b.up.items()}
        assert a.down == {c: n + exchanges * SIGNATURE for c, n in b.down.items()}
    assert outcomes[0].answered == NAMES


def test_nodes_that_know_each_other_by_peer_keys_leave_out_a_stranger(tmp_path):
    plan = plan_for("prism", secure=2, coding="packed")
    peers = tmp_path / "peers"
    peers.mkdir()
    for name in NAMES[:2]:
        (peers / f"{name}.pub").write_text(kept_key(tmp_path / name / "node.key").public.hex())
    (peers / "client-2.pub").write_text(SERVER.public.hex())
    nodes = [node(tmp_path, k, **{"peer-keys": str(peers)}) for k in range(3)]
    _, outcomes = played(plan, engine_for(plan, nodes)[0])
    assert all("'client-2' shows the key" in outcomes[0].left_out[c] for c in NAMES[:2])
    assert "shared their secrets" in outcomes[0].void

    (peers / "client-2.pub").write_text(kept_key(tmp_path / "client-2" / "node.key").public.hex())
    plan = plan_for("prism", secure=2, coding="packed", seed=4)
    _, outcomes = played(plan, engine_for(plan, nodes)[0])
    assert outcomes[0].answered == NAMES
    assert not outcomes[0].void


def test_owners_who_do_not_agree_are_left_out_by_name_and_reason(tmp_path):
    plan = plan_for("prism")
    nodes = [
        node(tmp_path, 0),
        node(tmp_path, 1, **{"max-epsilon": 9.8}),
        node(tmp_path, 2, **{"require-secure": True}),
    ]
    fed, outcomes = played(plan, engine_for(plan, nodes)[0])
    assert fed.round == 2
    assert outcomes[0].answered == ["client-0"]
    assert "it adds no noise; it takes part with privacy=moments" in outcomes[0].left_out["client-1"]
    assert "would see this client's numbers singly" in outcomes[0].left_out["client-2"]


def test_a_node_that_takes_anothers_place_in_a_run_is_not_heard(tmp_path):
    """Somebody registers a node of the same name: its key is not the one that the run began with."""
    plan = plan_for("prism")
    engine, grid = engine_for(plan, [node(tmp_path, k) for k in range(3)])
    assert engine.roster.proof is not None
    (tmp_path / NAMES[2] / "node.key").unlink()
    kept_key(tmp_path / NAMES[2] / "node.key")
    _, outcomes = played(plan, engine)
    assert "not signed, for this request, by its key" in outcomes[0].left_out["client-2"]
    grid.nodes[12] = grid.nodes.pop(9)  # and under another number it is not taken in
    engine.roster.looked = 0.0
    engine.roster.look()
    assert any("was its key before" in why for why in engine.roster.problems())


def test_terms_that_ask_for_less_privacy_on_the_way_are_refused(tmp_path):
    """Whoever carries messages rewrites what the run is: nodes that know their server see it."""
    plan = plan_for("prism", privacy="moments", epsilon=9.8)
    engine, _ = engine_for(plan, [node(tmp_path, k) for k in range(3)])
    terms = engine.roster.terms
    assert engine.roster.proof is not None
    engine.roster.proof.about = terms.text  # what the server signs
    less = {k: v for k, v in terms.settings.items() if k not in ("privacy", "epsilon")}
    engine.roster.terms = replace(terms, settings=less)  # what arrives
    _, outcomes = played(plan, engine)
    assert not outcomes[0].answered
    assert all("not signed by the server" in why for why in outcomes[0].left_out.values())
    assert not any((tmp_path / name / "runs").exists() for name in NAMES)


def test_an_owner_who_mistypes_is_told_before_anything_runs(tmp_path):
    for wrong, says in (
        ({"max-epsilonn": 1.0}, "did you mean max-epsilon"),
        ({"server_kee": "x"}, "server-key"),
        ({"accept": "nothing"}, "no such mechanism"),
    ):
        with pytest.raises(VitrailError, match=says):
            node(tmp_path, 0, **wrong)
