"""A client whose answer fails or is interrupted: what counts, what is stored and what the server learns."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.engines.secagg.adds import Adds
from tests.federation import PRIVATE, QUICK, RUN, digits, shares
from vitrail.engines.client import UNCOMPUTED, Client
from vitrail.engines.secagg.messages import (
    FROM,
    KEYS,
    LETTERS,
    WHO,
    bits_part,
    bytes_part,
    integer_formats,
    write_names,
)
from vitrail.engines.secagg.shares import LETTER
from vitrail.engines.simulation import SimulatedClients
from vitrail.experiment import settings as config
from vitrail.methods.base import Task
from vitrail.privacy.budget import Budget
from vitrail.privacy.policy import PUBLIC_REASON, Policy
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Skip fsync, which only matters for a power failure."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


def built(name="fedgan, dp-sgd", noise_source="os", **settings):
    method, private = PRIVATE.get(name, (name, {}))
    resolved = config.resolve(method, {**QUICK[method], **private, "noise_source": noise_source, **settings})
    return config.build_method(resolved, Task((1, 8, 8), 10, 2, 3, "cpu", 0, noise_source))


def client_of(method, folder, images=60, **owned) -> Client:
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(), folder)
    return replace(
        simulated.client("client-0", digits().train.take(np.arange(200))), images=partial(first, images), **owned
    )


def first(n):
    return digits().train.take(np.arange(n))


def request(method, t=0, shift=0.0):
    """A request; with a shift, another one for the same round."""
    server, _ = method.start_round(method.server_init(Rng((5,))), ["client-0"], Rng((5,)))
    parts = []
    for name, (codec, array) in method.broadcast(server, "client-0", True).parts.items():
        sent = np.array(array)
        if name == "generator":
            sent[0] += shift
        parts.append(make_part(name, codec, sent))
    return encode(Message(Header(Kind.REQUEST, RUN, t, "server"), tuple(parts)))


def reason(reply):
    message = decode(reply)
    assert message.header.kind is Kind.FAILED
    return bytes(message.parts[0].array()).decode()


def counted(monkeypatch, method, error=None):
    """Count calls of client_round; then raise an error, or return values that cannot be sent."""
    calls, honest = [], type(method).client_round

    def count(self, state, message, data, rng):
        calls.append(message.round)
        done = honest(self, state, message, data, rng)
        if isinstance(error, Exception):
            raise error
        if error == UNSENDABLE:
            far = {name: np.full_like(array, np.inf) for name, array in done[1].parts.items() if name in NETWORKS}
            done = done[0], replace(done[1], parts={**done[1].parts, **far})
        return done

    monkeypatch.setattr(type(method), "client_round", count)
    return calls


UNSENDABLE, NETWORKS = "numbers that cannot be sent", ("generator", "discriminator")


def test_a_failed_answer_counts_and_is_not_computed_again(tmp_path, monkeypatch):
    """Two answers are planned. A server that provokes failures gets two different ones at most."""
    method = built()
    calls, log = counted(monkeypatch, method, UNSENDABLE), []
    client = client_of(method, tmp_path, policy=Policy(("dp-sgd",), max_epsilon=1000.0), log=log.append)
    failed = client.answer(request(method))
    assert reason(failed) == UNCOMPUTED
    assert client.answer(request(method)) == failed
    assert "replay" in reason(client.answer(request(method, shift=0.5)))
    assert calls == [0]
    assert client.store.load()["given"] == 1
    assert reason(client.answer(request(method, 1))) == UNCOMPUTED
    assert reason(client.answer(request(method, 2))) == PUBLIC_REASON
    assert calls == [0, 1]
    assert "planned for one client" in log[-1]


def test_after_a_failed_answer_a_client_continues_from_its_last_state(tmp_path, monkeypatch):
    method = built(noise_source="seed")
    failing, other = (client_of(method, tmp_path / k, log=lambda text: None) for k in "ab")
    with monkeypatch.context() as fails:
        counted(fails, method, VitrailError("failed"))
        reason(failing.answer(request(method)))
    replied = failing.answer(request(method, 1))
    assert decode(replied).header.kind is Kind.REPLY
    assert replied == other.answer(request(method, 1))
    assert (failing.store.load()["given"], other.store.load()["given"]) == (2, 1)


@pytest.mark.parametrize("error", [UNSENDABLE, VitrailError("37 images"), KeyError("37 images")], ids=str)
@pytest.mark.parametrize("owned", ["log", "shared_folder"])
def test_a_failure_after_reading_images_reveals_nothing_about_them(tmp_path, monkeypatch, error, owned):
    method, log = built(), []
    counted(monkeypatch, method, error)
    client = client_of(method, tmp_path, **({"log": log.append} if owned == "log" else {"shared_folder": True}))
    assert reason(client.answer(request(method))) == UNCOMPUTED
    own = client.store.path.with_suffix(".error.txt")
    assert ("cannot be sent" if error == UNSENDABLE else "37 images") in own.read_text()
    assert own.stat().st_mode & 0o077 == 0
    assert bool(log) == (owned == "log")


@pytest.mark.parametrize("images", [37, 123])
def test_a_deployed_client_does_not_report_a_sum_beyond_its_bound(tmp_path, monkeypatch, images):
    """Without noise, the reason of a refusal would reveal the number of images."""
    honest, log, names = Adds.client_round, [], [f"client-{k}" for k in range(3)]

    def far(self, state, message, data, rng):
        state, reply = honest(self, state, message, data, rng)
        return state, replace(reply, parts={**reply.parts, "x": np.full(5, -len(data), np.float32)})

    monkeypatch.setattr(Adds, "client_round", far)
    method = Adds(Task((1, 8, 8), 0, 1, 3, secagg_threshold=3))
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(), tmp_path)
    clients = [
        replace(simulated.client(n, first(images)), images=partial(first, images), log=log.append) for n in names
    ]

    def ask(client, exchange, *parts):
        return client.answer(encode(Message(Header(Kind.REQUEST, RUN, 0, "server", exchange), parts)))

    keys = b"".join(bytes(decode(ask(c, 0)).parts[0].array()) for c in clients)
    who = (bytes_part(WHO, write_names(names)), bytes_part(KEYS, keys))
    letters = [bytes(decode(ask(c, 1, *who)).parts[0].array())[:LETTER] for c in clients]
    parts = [bits_part(FROM, [True] * 3), bytes_part(LETTERS, b"".join(letters[1:]))]
    parts.append(make_part("closed", "int32", np.int32([0])))
    masked = ask(clients[0], 2, *parts)
    assert reason(masked) == UNCOMPUTED
    assert ask(clients[0], 2, *parts) == masked
    assert f"its value -{images} is outside -4 to 4" in log[-1]
    other = make_part("closed", "int32", np.int32([1]))
    assert "replay" in reason(ask(clients[0], 2, *parts[:2], other))
    assert "does not follow" in reason(ask(clients[0], 3, bits_part("secagg.alive", [True] * 3)))
    assert clients[0].store.load()["given"] == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [1e30, -1e30, np.nan, 4.5])
def test_a_number_too_large_for_an_integer_is_refused_before_it_is_cast(value):
    whole = integer_formats(Adds().reply_spec(), 5, 5)["x"]
    with pytest.raises(VitrailError, match="outside -4 to 4"):
        whole.words(np.float32([0, 0, value, 0, 0]))


def test_a_client_killed_in_training_answers_only_the_same_request(tmp_path):
    method = built(noise_source="seed")
    lax = Policy(("dp-sgd",), max_epsilon=1000.0, require_noise_source="any")
    client = client_of(method, tmp_path / "a", policy=lax)
    pid = os.fork()
    if not pid:
        try:
            type(method).client_round = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
            client.answer(request(method))
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert client.store.load()["given"] == 1
    assert "replay" in reason(client.answer(request(method, shift=0.5)))
    replied = client.answer(request(method))
    assert replied == client_of(method, tmp_path / "b").answer(request(method))
    assert decode(replied).header.kind is Kind.REPLY
    assert client.store.load()["given"] == 1
    assert decode(client.answer(request(method, 1))).header.kind is Kind.REPLY
    assert "planned for one client" in reason(client.answer(request(method, 2)))


def test_a_failed_single_release_is_charged_once_and_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_HOME", str(tmp_path))
    method = built("moments", epsilon=2.0)
    assert method.mechanism.once
    calls = counted(monkeypatch, method, VitrailError("failed"))
    budget = Budget("scans", 50.0, 1e-5)
    client = client_of(method, tmp_path, policy=replace(Policy(), budget=True), budget=budget, log=lambda text: None)
    for _ in range(2):
        assert reason(client.answer(request(method))) == UNCOMPUTED
    assert reason(client.answer(request(method, 1))) == PUBLIC_REASON
    assert calls == [0]
    assert len(budget.spent()) == 1


def test_state_of_version_0_1_0_is_read(tmp_path):
    method = built(noise_source="seed")
    client = client_of(method, tmp_path, shared_folder=True)
    replied = client.answer(request(method))
    old = {name: value for name, value in client.store.load().items() if name not in ("begun", "failed", "given")}
    client.store.save(old)
    assert client.answer(request(method)) == replied
    assert decode(client.answer(request(method, 1))).header.kind is Kind.REPLY
