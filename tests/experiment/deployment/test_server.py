"""Real processes over loopback: a SuperLink, four SuperNodes, with kills and lies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.experiment.deployment.processes import Deployment, deployment, until
from tests.experiment.deployment.sockets import listening, only_loopback
from tests.federation import QUICK, same
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment import settings as config
from vitrail.experiment.deployment.plan import deployment_plan
from vitrail.experiment.plan import prepare
from vitrail.experiment.run_dir import RunDir
from vitrail.utils import state
from vitrail.utils.rng import Rng

NODES, LIAR, KILLED = 4, 3, 1
SMALL = "size=8 test_fraction=0.9 grids=0 eval_every=0 noise_source=seed"

pytestmark = pytest.mark.sites


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """All four nodes; the last of them lies."""
    with deployment(tmp_path_factory.mktemp("deployment")) as made:
        for k in range(NODES):
            made.node(k, NODES, lies=k == LIAR)
        yield made


@pytest.fixture(scope="module")
def patience() -> float:
    """Timeout of a node: many times the start time of a process."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(20.0, 10 * (time.monotonic() - began))


def words(method: str) -> str:
    return " ".join(f"{k}={v}" for k, v in QUICK[method].items())


def reference(out: Path, tmp: Path) -> Federation:
    """The same run on the embedded engine, with the same participants in each round."""
    place = RunDir(out)
    settings, facts = config.resolve(str(place.settings), {}), json.loads(place.nodes.read_text())
    plan = deployment_plan(settings, facts)
    whole = prepare(
        config.resolve(
            settings.method, {"data": "digits", "size": 8, "test_fraction": 0.9, "clients": NODES, "out": "-"}
        )
    )
    indices = dict(zip(whole.partition.names, whole.partition.indices, strict=True))
    rng = Rng((settings.seed,))
    fed = Federation(0, plan.method.server_init(rng.child("server", "init")))
    with SimulationEngine(SimulatedClients(plan.method, plan.id, rng, indices, tmp), whole.data.train) as engine:
        for row in place.rows():

            def ask(requests: Iterable[tuple[str, bytes]], excluded=frozenset(row["excluded"])):
                received = list(requests)
                yield from ((client, Failure("absent")) for client, _ in received if client in excluded)
                yield from engine.ask(request for request in received if request[0] not in excluded)

            fed, outcome = run_round(plan.method, fed, plan.id, plan.clients, ask, rng)
            assert len(outcome.replied) == row["replied"]
    return fed


def server_of(out: Path) -> state.State:
    found: state.State = state.load(RunDir(out).checkpoint)["federation"]["server"]
    return found


def models(there: Deployment, out: Path) -> list[bytes | None]:
    """Return the model that each node has."""
    run = json.loads((out / "nodes.json").read_text())["id"]
    files = [there.root / f"node-{k}" / "models" / f"{run}.safetensors" for k in range(NODES)]
    return [p.read_bytes() if p.exists() else None for p in files]


def test_a_killed_and_a_lying_node_do_not_change_the_bits_of_the_others(there: Deployment, patience, tmp_path: Path):
    out = tmp_path / "run"
    there.run(f"prism {words('prism')} {SMALL} clients=4 rounds=8 timeout={patience}", out)
    until(lambda: there.rounds(out) == 1, 20 * patience, "no first round")
    assert listening(there.pids())
    assert only_loopback(there.pids())
    there.kill(f"node-{KILLED}")
    until(lambda: there.rounds(out) == 3, 20 * patience, "no third round")
    there.node(KILLED, NODES)
    there.done(out, 20 * patience)

    rows, liar, killed = RunDir(out).rows(), f"client-{LIAR}", f"client-{KILLED}"
    kinds = ["checksum does not match", "declared is 1 x float32", "NaN", "bytes; at most", *["answers round 0.0"] * 4]
    for row, kind in zip(rows, kinds, strict=True):
        assert kind in row["excluded"][liar] or "did not answer" in row["excluded"][liar]
    assert killed in rows[2]["excluded"]
    assert killed not in rows[-1]["excluded"]  # it is back with its process
    assert same(server_of(out), reference(out, tmp_path / "clients").server)
    model = RunDir(out).model.read_bytes()
    assert models(there, out) == [model] * NODES
    private = there.root / "node-0" / "runs"
    assert all(p.stat().st_mode & 0o077 == 0 for p in private.rglob("*.safetensors"))


def test_a_client_app_killed_within_a_round_gets_its_request_again(there: Deployment, patience, tmp_path: Path):
    out, runs = tmp_path / "run", there.root / "node-0" / "runs"
    before = set(runs.glob("*/*"))
    there.run(f"fedgan {words('fedgan')} {SMALL} clients=2 rounds=1 local_epochs=300 timeout={4 * patience}", out)
    until(lambda: bool(set(runs.glob("*/*")) - before), 20 * patience, "node-0 received no request to train")
    there.kill_all(there.apps("node-0"))
    there.done(out, 20 * patience)
    (row,) = RunDir(out).rows()
    assert not row["excluded"]
    assert row["down"]["client-0"] == 2 * row["down"]["client-1"], "what was sent again counts"
    assert same(server_of(out), reference(out, tmp_path / "clients").server)


def test_server_app_and_superlink_killed_within_a_round_resume_to_same_bits(
    there: Deployment, patience, tmp_path: Path
):
    out = tmp_path / "run"
    settings = f"fedgan {words('fedgan')} {SMALL} clients=2 rounds=3 timeout={3 * patience}"
    there.run(settings, out)
    until(lambda: there.rounds(out) == 1, 30 * patience, "no first round")
    there.kill_all(there.apps("link"))
    there.run(settings, out)
    until(lambda: there.rounds(out) == 2, 30 * patience, "no second round")
    there.kill("link")
    there.superlink()
    there.run(settings, out)
    there.done(out, 30 * patience)

    assert not any(row["excluded"] for row in RunDir(out).rows())
    assert same(server_of(out), reference(out, tmp_path / "clients").server)
    assert models(there, out)[:2] == [RunDir(out).model.read_bytes()] * 2
