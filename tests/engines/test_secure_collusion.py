"""What colluding clients and a server that lies can learn in a round of secure aggregation."""

from math import comb

import pytest

from tests.engines.adds import Adds
from tests.federation import RUN, digits, shares
from vitrail.engines.embedded import Crew
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, play
from vitrail.errors import Malformed
from vitrail.methods.base import Task
from vitrail.privacy.secagg import LETTER, SHARE, commitment, join
from vitrail.rng import Rng
from vitrail.state import load
from vitrail.wire.message import decode


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Files are written as ever, but no test here cuts the power."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


class Stop(Exception):
    """Ends a round."""


def played_until(exchange, method, folder, clients, vanish=lambda client, exchange: False):
    """Replies by exchange and client; when the given exchange is asked for, the round ends."""
    crew = Crew(method, RUN, Rng((5,)), shares(len(clients), each=2), folder)
    replies = {}

    def ask(requests):
        for client, request in requests:
            at = decode(request).header.exchange
            if at == exchange:
                raise Stop
            if vanish(client, at):
                yield client, Failure("gone")
                continue
            replies.setdefault(at, {})[client] = answer = crew.client(client, digits().train).answer(request)
            yield client, answer

    with pytest.raises(Stop):
        play(method, Federation(0, method.server_init(None)), RUN, clients, ask, Rng((5,)))
    return replies


def test_half_of_a_hundred_clients_and_the_server_open_no_other_client(tmp_path):
    """The colluders pool their shares of each seed; a sparse graph with a majority of neighbours opened 45%."""
    names = [f"client-{k}" for k in range(100)]
    colluding, one_more, honest = names[:50], names[50], names[51:]
    task = Task((1, 8, 8), 0, 3, 100, secure=51)
    replies = played_until(3, Adds(task), tmp_path, names, lambda c, at: at == 2 and c in honest)
    committed = {c: decode(a).parts[0].payload[64:80] for c, a in replies[0].items()}
    held = {c: load(tmp_path / f"{c}.safetensors")["secrets"]["held"] for c in [*colluding, one_more]}

    def share_of(victim, holder):
        at = held[holder]["of"].index(victim)
        return held[holder]["bytes"][2 * SHARE * at :][:SHARE]

    def opens(victim, those):
        found = {names.index(c) + 1: share_of(victim, c) for c in those if victim in held[c]["of"]}
        try:
            return bool(found) and commitment(join(found)) == committed[victim]
        except Malformed:
            return False

    assert [victim for victim in honest if opens(victim, colluding)] == []
    assert all(opens(victim, [*colluding, one_more]) for victim in honest)  # as many as the threshold do open
    # Exactly: of a client's share holders, how many are colluders is hypergeometric; the union bound is over clients.
    need = next(k for k in range(1, 52) if opens("client-99", [*colluding, one_more][:k]))
    holders = sum(len(p.payload) for p in decode(replies[1]["client-99"]).parts) // LETTER
    ways = sum(comb(50, x) * comb(49, holders - x) for x in range(need, min(50, holders) + 1))
    assert 50 * ways / comb(99, holders) < 1e-9
