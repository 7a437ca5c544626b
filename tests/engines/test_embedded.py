"""Worker processes that die, and clients whose files are touched."""

import os
import signal

import pytest

from tests.engines.toy import Toy
from tests.federation import RUN, digits, federate, quick, same, shares
from vitrail.engines.embedded import Crew, Embedded
from vitrail.engines.rounds import Failure, Federation, play
from vitrail.errors import VitrailError
from vitrail.rng import Rng
from vitrail.state import load
from vitrail.wire.message import Kind, decode


def test_a_worker_that_is_killed_is_replaced_and_no_bit_changes(tmp_path):
    method = quick("fedgan", rounds=2)
    crew = Crew(method, RUN, Rng((5,)), shares(), tmp_path / "a")
    fed = Federation(0, method.server_init(Rng((5,)).child("server", "init")))
    with Embedded(crew, digits().train, workers=2) as engine:
        for _ in range(2):
            os.kill(engine.pool[0].process.pid, signal.SIGKILL)
            fed, outcome = play(method, fed, RUN, sorted(shares()), engine.ask, Rng((5,)))
            assert not outcome.left_out
    unbroken = federate(method, tmp_path / "b")[0]
    assert same(fed.tree(), unbroken.tree())


def test_a_client_whose_worker_always_dies_is_left_out(tmp_path, monkeypatch):
    crew = Crew(Toy(), RUN, Rng((5,)), shares(), tmp_path)
    with Embedded(crew, digits().train, workers=2) as engine:
        monkeypatch.setattr(
            "vitrail.engines.embedded._Worker.give",
            lambda self, client, request: (
                setattr(self, "job", (client, request)),
                os.kill(self.process.pid, signal.SIGKILL),
            ),
        )
        answers = dict(engine.ask([("client-0", b"")]))
    assert isinstance(answers["client-0"], Failure)
    assert "ended with code -9" in answers["client-0"].reason


def test_private_state_is_readable_by_its_owner_alone(tmp_path):
    federate(Toy(), tmp_path / "clients", rounds=1)
    for path in (tmp_path / "clients").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "clients").stat().st_mode & 0o077 == 0


def test_another_runs_private_state_is_refused(tmp_path):
    _, _, traffic = federate(Toy(), tmp_path, rounds=1)
    crew = Crew(Toy(), b"another run 1234", Rng((5,)), shares(), tmp_path)
    client = crew.client("client-0", digits().train)
    with pytest.raises(VitrailError, match="belongs to another run"):
        client.private()
    assert decode(client.answer(traffic.requests[0][1])).header.kind is Kind.FAILED


def test_damaged_private_state_leaves_the_client_out_by_name(tmp_path):
    fed, *_ = federate(Toy(), tmp_path, rounds=1)
    (tmp_path / "client-1.safetensors").write_bytes(b"garbage")
    _, outcomes, _ = federate(Toy(), tmp_path, rounds=1, fed=fed)
    assert "client-1.safetensors is damaged" in outcomes[0].left_out["client-1"]
    assert len(outcomes[0].answered) == 2


def test_a_client_keeps_one_file_however_many_rounds(tmp_path):
    federate(quick("fedgan"), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"client-{k}.safetensors" for k in range(3)]
    assert load(tmp_path / "client-0.safetensors")["round"] == 2
