"""Every method on Flower's simulation: the bits and the bytes of the embedded engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiment.deployment.sockets import family, listening, only_loopback
from tests.federation import PRIVATE, QUICK, same
from vitrail.engines.async_rounds import run_rounds
from vitrail.engines.journal import Journal
from vitrail.engines.rounds import Federation, RoundResult
from vitrail.experiment import settings as config
from vitrail.experiment.callbacks import Callback
from vitrail.experiment.deployment.virtual_nodes import VirtualNodes, virtual_nodes
from vitrail.experiment.plan import Plan, prepare
from vitrail.experiment.run_dir import RunDir
from vitrail.experiment.runner import Engine
from vitrail.experiment.train import engine_for, train
from vitrail.methods import METHODS
from vitrail.utils.rng import Rng

pytestmark = pytest.mark.sites  # starts Flower and Ray

CLIENTS, ROUNDS = 3, 2
TINY = {
    "data": "digits",
    "size": 8,
    "test_fraction": 0.9,
    "clients": CLIENTS,
    "rounds": ROUNDS,
    "server_fraction": 0.05,
}
SECURE = ("prism, secure", {**QUICK["prism"], "secagg_threshold": 2, "coding": "packed"})
FREE = ("psfedgan, without a barrier", {**QUICK["psfedgan"], "rounds": 5})
CASES = [
    *((name, name, QUICK[name]) for name in METHODS),
    *((case, name, {**QUICK[name], **extra}) for case, (name, extra) in PRIVATE.items() if "moments" in case),
    (SECURE[0], "prism", SECURE[1]),
    ("moments, secure", "moments", {**QUICK["moments"], "secagg_threshold": 2, "epsilon": 9.8}),
    (FREE[0], "psfedgan", FREE[1]),
    ("fedgan, with dropout", "fedgan", {**QUICK["fedgan"], "client_dropout": 0.4, "rounds": 3}),
]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory):
    """Start Ray once for all methods; PYTHONPATH is restored."""
    before = dict(os.environ)
    with virtual_nodes(str(tmp_path_factory.mktemp("laid")), CLIENTS, 2) as nodes:
        yield nodes
        assert os.environ.get("PYTHONPATH") != before.get("PYTHONPATH"), "Flower no longer sets it: nothing to restore"
    assert os.environ.get("PYTHONPATH") == before.get("PYTHONPATH")


def run_all(plan: Plan, engine: Engine) -> tuple[Federation, list[RoundResult]]:
    """Run all rounds, without evaluation and files."""
    s, method, rng = plan.settings, plan.method, Rng((plan.settings.seed,))
    own_images = plan.data.train.take(plan.partition.server)
    fed = Federation(0, method.server_init(rng.child("server", "init"), own_images))
    outcomes = []
    while fed.round < s.rounds:
        journal = Journal(plan.folder.answers)
        for outcome, after in run_rounds(
            method, fed, plan.id, lambda _: plan.clients, s.rounds, engine.ask, rng, journal, quorum=1
        ):
            outcomes.append(outcome)
            fed = after or fed
        journal.clear()
    return fed, outcomes


@pytest.mark.parametrize(("name", "settings"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_method_gives_the_same_bits_and_bytes_as_embedded(name, settings, nodes: VirtualNodes, tmp_path: Path):
    plans = [prepare(config.resolve(name, {**TINY, **settings, "out": str(tmp_path / e), "workers": 1})) for e in "ab"]
    with engine_for(plans[0]) as embedded:
        fed, outcomes = run_all(plans[0], embedded)
    other, others = run_all(plans[1], nodes.engine(plans[1]))
    assert same(fed.tree(), other.tree())
    for a, b in zip(outcomes, others, strict=True):
        assert (a.up, a.down, a.excluded, a.metrics) == (b.up, b.down, b.excluded, b.metrics)
        assert a.replied == b.replied
    assert any(o.replied for o in outcomes)


def test_all_sockets_are_on_loopback(nodes: VirtualNodes):
    mine = family(os.getpid())
    assert len(mine) > 3  # Ray's servers and workers
    assert listening(mine)
    assert only_loopback(mine)
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


class StopsAfter(Callback):
    """A callback that interrupts the run."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def on_run_start(self, plan: Plan, done: int) -> None: ...
    def on_reply(self, outcome: RoundResult) -> None: ...
    def on_run_end(self, run: object) -> None: ...
    def on_round_end(self, outcome: RoundResult, row: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def test_an_interrupted_run_resumes_with_flower_to_the_same_model(tmp_path: Path):
    settings = {**TINY, **QUICK["prism"], "grids": 0, "eval_every": 0}
    whole = train("prism", **settings, out=str(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        train("prism", **settings, out=str(tmp_path / "cut"), callbacks=[StopsAfter(1)])
    file = tmp_path / "cut" / "settings.toml"
    file.write_text(file.read_text().replace('engine = "embedded"', 'engine = "flower"'))
    command = [sys.executable, "-m", "vitrail.cli.main", "resume", str(tmp_path / "cut"), "--workers", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    assert "continues after round 1" in " ".join(done.stdout.split())
    model = (whole.folder / "model.safetensors").read_bytes()
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == model
    assert [r["bytes_up"] for r in RunDir(tmp_path / "cut").rows()] == [r["bytes_up"] for r in whole.rows]
