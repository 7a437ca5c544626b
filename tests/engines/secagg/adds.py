"""A method of sums only, with values that follow from a client's name and the round."""

from dataclasses import dataclass, replace

import numpy as np

from tests.federation import RUN, digits, shares
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.methods.base import BaseMethod, Broadcast, PartSpec, Reply, Task
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode, digest

FIVE = [f"client-{k}" for k in range(5)]


def numbers(client, t, salt=0):
    """Values that a client sends in a round; floats are multiples of 1/1024, so that float64 adds them exactly."""
    draw = np.random.default_rng([int(client.rpartition("-")[2]), t, salt])
    return {
        "x": (draw.integers(-4096, 4097, 5) / 1024).astype(np.float32),
        "bits": draw.integers(0, 2, 100).astype(np.uint8),
        "count": draw.integers(-10, 11, 3).astype(np.int32),
        "metric.n": np.float32([draw.integers(0, 100)]),
    }


def total(clients, t, salt=0):
    """The exact sums of these clients."""
    sent = [numbers(c, t, salt) for c in clients]
    return {name: sum(s[name].astype(np.float64) for s in sent) for name in numbers("a-0", 0)}


@dataclass(frozen=True)
class Adds(BaseMethod):
    task: Task = Task((1, 8, 8), 0, 3, 5, secagg_threshold=3)
    salt: int = 0

    def reply_spec(self):
        return {
            "x": PartSpec("sum", "float32", 5, limit=4.0),
            "bits": PartSpec("sum", "u1", 100, limit=1, least=0),
            "count": PartSpec("sum", "int32", 3, limit=10),
            "metric.n": PartSpec("sum", "float32", 1, limit=100.0, least=0.0),
        }

    def server_init(self, rng, data=None, start=None):
        return {"closed": 0, "sums": [], "clients": []}

    def client_init(self, client, rng):
        return {"name": client}

    def broadcast(self, server, client, full):
        parts = {"closed": ("int32", np.int32([server["closed"]]))}
        return Broadcast(parts, **({} if full else {"base": _version(server["closed"])}))

    def client_round(self, state, message, data, rng):
        state_id = _version(int(message.parts["closed"][0]) + 1)
        return {**state, "drew": rng.seed()}, Reply(numbers(state["name"], message.round, self.salt), state_id=state_id)

    def finish_round(self, server, sums, rng):
        return {
            "closed": server["closed"] + 1,
            "sums": [*server["sums"], dict(sorted(sums.values.items()))],
            "clients": [*server["clients"], sums.clients],
        }

    def export_models(self, server, client=None):
        return {}


def _version(n):
    return digest(f"version {n}")


def secure(method, threshold):
    return replace(method, task=replace(method.task, secagg_threshold=threshold))


def run_one_round(method, folder, leaves=None, spoil=None, fed=None, clients=FIVE, seed=5):
    """Run one round; `leaves` is the exchange from which a client's replies are lost."""
    simulated = SimulatedClients(method, RUN, Rng((seed,)), shares(len(clients), each=2), folder)
    received = []

    def ask(requests):
        with SimulationEngine(simulated, digits().train) as engine:
            for client, answer in engine.ask(requests):
                exchange = decode(answer).header.exchange
                received.append((client, exchange, answer))
                if leaves and exchange >= leaves.get(client, 9):
                    yield client, Failure("gone")
                else:
                    yield client, spoil(client, exchange, answer) if spoil else answer

    fed = fed or Federation(0, method.server_init(Rng((seed,))))
    after, outcome = run_round(method, fed, RUN, clients, ask, Rng((seed,)))
    return after, outcome, received


def adds_up(fed, clients, t=0):
    """Whether the last sums are exactly those of these clients."""
    sums, expected = fed.server["sums"][-1], total(clients, t)
    assert sums.keys() == expected.keys()
    return fed.server["clients"][-1] == len(clients) and all(np.array_equal(sums[k], expected[k]) for k in expected)
