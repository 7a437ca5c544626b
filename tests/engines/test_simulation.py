"""Worker processes that die, and damaged client files."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.engines.toy import ReportsHome, Toy
from tests.federation import RUN, digits, federate, quick, same, shares
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.engines.workers import process_context
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import load
from vitrail.wire.message import Kind, decode, encode


def test_a_worker_that_is_killed_is_replaced_and_no_bit_changes(tmp_path):
    method = quick("fedgan", rounds=2)
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(), tmp_path / "a")
    fed = Federation(0, method.server_init(Rng((5,)).child("server", "init")))
    with SimulationEngine(simulated, digits().train, workers=2) as engine:
        for _ in range(2):
            os.kill(engine.pool[0].process.pid, signal.SIGKILL)
            fed, outcome = run_round(method, fed, RUN, sorted(shares()), engine.ask, Rng((5,)))
            assert not outcome.excluded
    unbroken = federate(method, tmp_path / "b")[0]
    assert same(fed.tree(), unbroken.tree())


def test_a_client_whose_worker_always_dies_is_excluded(tmp_path, monkeypatch):
    simulated = SimulatedClients(Toy(), RUN, Rng((5,)), shares(), tmp_path)
    with SimulationEngine(simulated, digits().train, workers=2) as engine:
        monkeypatch.setattr(
            "vitrail.engines.workers.Worker.send",
            lambda self, client, request: (
                setattr(self, "job", (client, request)),
                os.kill(self.process.pid, signal.SIGKILL),
            ),
        )
        answers = dict(engine.ask([("client-0", b"")]))
    assert isinstance(answers["client-0"], Failure)
    assert "ended with code -9" in answers["client-0"].reason


def test_workers_have_the_environment_of_the_run_and_not_of_an_earlier_one(tmp_path, monkeypatch):
    method = ReportsHome()
    for home in ("a", "b"):
        monkeypatch.setenv("VITRAIL_HOME", home)
        simulated = SimulatedClients(method, RUN, Rng((5,)), shares(), tmp_path / home)
        fed = Federation(0, method.server_init(Rng((5,))))
        with SimulationEngine(simulated, digits().train, workers=2) as engine:
            _, outcome = run_round(method, fed, RUN, sorted(shares()), engine.ask, Rng((5,)))
        assert set(outcome.excluded.values()) == {f"home is {home}"}


def test_private_state_is_readable_by_its_owner_alone(tmp_path):
    federate(Toy(), tmp_path / "clients", rounds=1)
    for path in (tmp_path / "clients").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "clients").stat().st_mode & 0o077 == 0


def test_private_state_of_another_run_is_refused(tmp_path):
    _, _, traffic = federate(Toy(), tmp_path, rounds=1)
    simulated = SimulatedClients(Toy(), b"another run 1234", Rng((5,)), shares(), tmp_path)
    client = simulated.client("client-0", digits().train)
    with pytest.raises(VitrailError, match="belongs to another run"):
        client.store.load()
    assert decode(client.answer(traffic.requests[0][1])).header.kind is Kind.FAILED


def test_a_client_with_damaged_private_state_is_excluded_by_name(tmp_path):
    fed, *_ = federate(Toy(), tmp_path, rounds=1)
    (tmp_path / "client-1.safetensors").write_bytes(b"garbage")
    _, outcomes, _ = federate(Toy(), tmp_path, rounds=1, fed=fed)
    assert "client-1.safetensors is damaged" in outcomes[0].excluded["client-1"]
    assert len(outcomes[0].replied) == 2


def test_a_client_has_one_file_for_any_number_of_rounds(tmp_path):
    federate(quick("fedgan"), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"client-{k}.safetensors" for k in range(3)]
    assert load(tmp_path / "client-0.safetensors")["round"] == 2


@pytest.mark.parametrize("name", ["../../evil", "a/b", "x" * 250, "…", ".."])
def test_the_private_file_is_inside_the_folder_for_any_client_name(name, tmp_path):
    simulated = SimulatedClients(Toy(), RUN, Rng((5,)), {name: shares()["client-0"]}, tmp_path / "clients")
    path = simulated.client(name, digits().train).store.path
    assert path.parent == tmp_path / "clients"
    assert len(path.name.encode()) < 200


def test_a_repeated_request_of_any_exchange_returns_the_stored_reply(tmp_path):
    _, _, traffic = federate(Toy(), tmp_path / "a", rounds=1)
    client = SimulatedClients(Toy(), RUN, Rng((5,)), shares(), tmp_path / "b").client("client-0", digits().train)
    first = traffic.requests[0][1]
    message = decode(first)
    second = encode(replace(message, header=replace(message.header, exchange=1)))
    answers = [client.answer(first), client.answer(second)]
    assert [client.answer(first), client.answer(second)] == answers
    assert [decode(a).header.exchange for a in answers] == [0, 1]


def test_an_update_that_is_not_finite_is_not_sent_and_the_client_recovers(tmp_path, monkeypatch):
    method = quick("fedgan")
    honest = type(method).client_round

    def diverges(self, state, message, data, rng):
        state, reply = honest(self, state, message, data, rng)
        if message.round != 1:
            return state, reply
        return {**state, "generator": state["generator"] * np.nan}, replace(
            reply, parts={**reply.parts, "generator": reply.parts["generator"] * np.nan}
        )

    monkeypatch.setattr(type(method), "client_round", diverges)
    _, outcomes, _ = federate(method, tmp_path)
    assert [len(o.replied) for o in outcomes] == [3, 0, 3]
    assert "NaN" in outcomes[1].excluded["client-0"]


def test_details_of_an_error_inside_a_client_stay_with_its_owner(tmp_path, monkeypatch):
    monkeypatch.setattr(Toy, "client_round", lambda *a: {}["the patient's name"])
    _, outcomes, _ = federate(Toy(), tmp_path, rounds=1)
    assert outcomes[0].excluded["client-0"] == "KeyError; details are in the client's own folder"
    note = tmp_path / "client-0.error.txt"
    assert "the patient's name" in note.read_text()
    assert note.stat().st_mode & 0o077 == 0


def test_a_script_without_a_main_guard_trains_once(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import vitrail\nprint('started')\n"
        "run = vitrail.train('fedgan', data='digits', size=8, width=4, rounds=1, clients=2, workers=2, out='run')\n"
        "print(run.rows[0]['replied'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["started", "2"], done.stderr


def test_a_method_of_a_script_is_refused_before_workers_start(tmp_path, monkeypatch):
    class Mine(Toy):
        pass

    clients = SimulatedClients(Mine(), RUN, Rng((5,)), shares(), tmp_path)
    with pytest.raises(VitrailError, match="use workers=1"):  # a local class cannot be pickled
        SimulationEngine(clients, digits().train, workers=2)
    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    with pytest.raises(VitrailError, match="move them to a module, or use workers=1"):
        SimulationEngine(clients, digits().train, workers=2)


@pytest.mark.parametrize(
    ("available", "expected"), [(["spawn"], "spawn"), (["fork", "spawn", "forkserver"], "forkserver")]
)
def test_workers_never_fork_the_callers_process(monkeypatch, available, expected):
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: available)
    assert process_context().get_start_method() == expected
