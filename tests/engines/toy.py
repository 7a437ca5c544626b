"""Methods in numbers one can check by hand: one that uses everything the interface offers, one of free clients.

Toy's clients add their share to a running total they must have (or ask for in full); they send their own number by `each`, pass a
note to the next client by `relay`, and every third round is the server's alone.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.methods.base import BaseMethod, Broadcast, Model, PartSpec, Reply, ServerMessage, Sums, Task
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.paths import data_home
from vitrail.wire.message import digest


@dataclass(frozen=True)
class Toy(BaseMethod):
    task: Task = Task((1, 8, 8), 0, 6, 3)

    def reply_spec(self):
        return {
            "half": PartSpec("sum", "float32", 2, limit=1000.0),
            "own": PartSpec("each", "int32", 1),
            "note": PartSpec("relay", "bytes", None),
            "metric.images": PartSpec("sum", "float32", 1),
        }

    def server_init(self, rng, data=None, start=None):
        return {"total": 0.0, "version": 0, "seen": [], "alone": 0}

    def client_init(self, client, rng):
        return {"name": client, "total": None, "notes": []}

    def start_round(self, server, clients: Sequence[str], rng):
        return server, () if server["version"] % 3 == 2 else clients

    def broadcast(self, server, client, full):
        if full:
            return Broadcast({"total": ("float32", np.float32([server["total"]])), "next": ("bytes", _next(client))})
        return Broadcast({"next": ("bytes", _next(client))}, base=digest(str(server["total"])))

    def client_round(self, state, message: ServerMessage, data, rng):
        total = float(message.parts["total"][0]) if "total" in message.parts else state["total"]
        notes = [*state["notes"], *(bytes(a).decode() for a in message.relayed.values())]
        to = bytes(message.parts["next"]).decode()
        note = np.frombuffer(f"round {message.round} from {state['name']}".encode(), np.uint8)
        number = int(state["name"][-1])
        # the whole total of this round is public by construction: 0.5 from each of three clients
        after = {**state, "total": total + 1.5, "notes": notes}
        parts = {
            "half": np.float32([0.5, number]),
            "own": np.int32([number]),
            "metric.images": np.float32([len(data)]),
        }
        return after, Reply(parts, {(to, "note"): note}, state_id=digest(str(total + 1.5)))

    def receive(self, server, client, parts):
        return {**server, "seen": [*server["seen"], int(parts["own"][0])]}

    def finish_round(self, server, sums: Sums, rng):
        if not sums.clients:
            return {**server, "version": server["version"] + 1, "alone": server["alone"] + 1}
        return {
            **server,
            "total": server["total"] + float(sums.values["half"][0]),
            "version": server["version"] + 1,
        }

    def export_models(self, server, client=None):
        return {"generator": Model("toy", {})}


def _next(client):
    return np.frombuffer(f"client-{(int(client[-1]) + 1) % 3}".encode(), np.uint8)


@dataclass(frozen=True)
class Free(BaseMethod):
    """Clients that do not depend on each other: each has a chain of numbers with the server; the last round is the server's.

    `gate` is a file that client-0 waits for in its first round; `fails` names a client and the rounds in which it fails.
    """

    task: Task = Task((1, 8, 8), 0, 6, 3)
    num_async_rounds: int = 5  # type: ignore[assignment]
    gate: str = ""
    fails: tuple[str, tuple[int, ...]] = ("", ())

    def reply_spec(self):
        return {
            "link": PartSpec("each", "int32", 1),
            "metric.link": PartSpec("sum", "float32", 1),
        }

    def server_init(self, rng, data=None, start=None):
        return {"opened": 0, "chains": {}, "closed": [], "alone": 0}

    def client_init(self, client, rng):
        return {"name": client, "last": None}

    def start_round(self, server, clients, rng):
        t = server["opened"]
        return {**server, "opened": t + 1}, clients if t < self.num_async_rounds else ()

    def broadcast(self, server, client, full):
        last = server["chains"].get(client, [0])[-1]
        return Broadcast({"last": ("int32", np.int32([last]))}) if full else Broadcast({}, digest(str(last)))

    def client_round(self, state, message, data, rng):
        name, t = state["name"], message.round
        if name == "client-0" and t == 0 and self.gate:
            wait_for(Path(self.gate))
        if name == self.fails[0] and t in self.fails[1]:
            raise VitrailError("no luck today")
        last = int(message.parts["last"][0]) if "last" in message.parts else state["last"]
        link = (31 * last + t + int(rng.numpy().integers(1000))) % 1000
        parts = {"link": np.int32([link]), "metric.link": np.float32([link])}
        return {**state, "last": link}, Reply(parts, state_id=digest(str(link)))

    def receive(self, server, client, parts):
        if self.fails == (client, ()):
            raise Malformed("it is refused")
        chain = [*server["chains"].get(client, []), int(parts["link"][0])]
        return {**server, "chains": dict(sorted({**server["chains"], client: chain}.items()))}

    def finish_round(self, server, sums: Sums, rng):
        if not sums.clients:
            return {**server, "alone": server["alone"] + 1}
        total = float(sums.values["metric.link"][0]) + int(rng.numpy().integers(10))
        return {**server, "closed": [*server["closed"], total]}

    def export_models(self, server, client=None):
        return {"generator": Model("toy", {})}


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > deadline:
            raise VitrailError("no other client made progress")
        time.sleep(0.01)


@dataclass(frozen=True)
class ReportsHome(Toy):
    """Fails with the folder for user data that its process has."""

    def client_round(self, state, message, data, rng):
        raise VitrailError(f"home is {data_home()}")
