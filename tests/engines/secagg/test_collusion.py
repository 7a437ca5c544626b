"""What colluding clients and a server that lies can learn in a round of secure aggregation."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from tests.engines.secagg.adds import FIVE, Adds
from tests.federation import RUN, digits, shares
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.shares import ADVERTISED, LETTER, SHARE, commitment, join
from vitrail.engines.signing.server import ClientKeys
from vitrail.engines.simulation import SimulatedClients
from vitrail.methods.base import Task
from vitrail.utils import crypto
from vitrail.utils.errors import Malformed
from vitrail.utils.keys import Key
from vitrail.utils.rng import Rng
from vitrail.utils.state import load
from vitrail.wire.message import Header, Kind, Message, decode, encode, make_part


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Skip fsync, which only matters for a power failure."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


class Stop(Exception):
    """Ends a round."""


def played_until(exchange, method, folder, clients, vanish=lambda client, exchange: False):
    """Return replies by exchange and client; the round ends at the first request of the given exchange."""
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(len(clients), each=2), folder)
    replies = {}

    def ask(requests):
        for client, request in requests:
            at = decode(request).header.exchange
            if at == exchange:
                raise Stop
            if vanish(client, at):
                yield client, Failure("gone")
                continue
            replies.setdefault(at, {})[client] = answer = simulated.client(client, digits().train).answer(request)
            yield client, answer

    with pytest.raises(Stop):
        run_round(method, Federation(0, method.server_init(None)), RUN, clients, ask, Rng((5,)))
    return replies


def test_half_of_100_clients_and_the_server_unmask_no_other_client(tmp_path):
    """The colluders combine their shares; with a sparse graph and a majority of neighbours they unmask 45%."""
    names = [f"client-{k}" for k in range(100)]
    colluding, one_more, honest = names[:50], names[50], names[51:65]  # the rest only advertise keys
    task = Task((1, 8, 8), 0, 3, 100, secagg_threshold=51)
    there = [names, names[:65], names[:51]]
    replies = played_until(3, Adds(task), tmp_path, names, lambda c, at: c not in there[at])
    committed = {c: decode(a).parts[0].payload[64:80] for c, a in replies[0].items()}
    stored_shares = {c: load(tmp_path / f"{c}.safetensors")["secrets"]["held"] for c in [*colluding, one_more]}

    def share_of(victim, holder):
        at = stored_shares[holder]["of"].index(victim)
        return stored_shares[holder]["bytes"][2 * SHARE * at :][:SHARE]

    def opens(victim, those):
        found = {names.index(c) + 1: share_of(victim, c) for c in those if victim in stored_shares[c]["of"]}
        try:
            return bool(found) and commitment(join(found)) == committed[victim]
        except Malformed:
            return False

    assert [victim for victim in honest if opens(victim, colluding)] == []
    assert all(opens(victim, [*colluding, one_more]) for victim in honest)  # a threshold of clients can rebuild secrets
    # Exactly: of a client's clients with its shares, how many are colluders is hypergeometric; the union bound is over clients.
    need = next(k for k in range(1, 52) if opens("client-64", [*colluding, one_more][:k]))
    holders = sum(len(p.payload) for p in decode(replies[1]["client-64"]).parts) // LETTER
    ways = sum(comb(50, x) * comb(49, holders - x) for x in range(need, min(50, holders) + 1))
    assert 50 * ways / comb(99, holders) < 1e-9


# -- a server that sends clients different lists of whose replies arrived -----------------------------------------------


def bits(name, values):
    return make_part(name, "u1", np.array(values, np.uint8))


def text(name, raw):
    return make_part(name, "bytes", np.frombuffer(raw, np.uint8))


def make_request(exchange, *parts):
    return encode(Message(Header(Kind.REQUEST, RUN, 0, "server", exchange), parts))


def content_of(answer):
    """Return the first part of a reply as bytes, or the reason of a failure."""
    message = decode(answer)
    raw = bytes(message.parts[0].array())
    return raw if message.header.kind is Kind.REPLY else raw.decode()


def keyed(folder, names=FIVE, threshold=3, peers=None):
    """Clients with permanent keys, and with each other's keys if a folder is given."""
    method = Adds(Task((1, 8, 8), 0, 3, len(names), secagg_threshold=threshold))
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(len(names), each=2), folder)
    known = None if peers is None else ClientKeys(expected=peers)
    made = {c: replace(simulated.client(c, digits().train), key=Key(bytes([k + 1] * 32))) for k, c in enumerate(names)}
    if peers is not None:
        peers.mkdir(parents=True)
        for c, client in made.items():
            (peers / f"{c}.pub").write_text(client.key.public.hex())
    return method, {c: replace(client, peers=known) for c, client in made.items()}


def run_to(exchange, method, clients, change=lambda client, exchange, request: request):
    """Return the requests of an exchange after all earlier ones; `change` modifies the server's requests."""
    pending, outcome = {}, None

    def ask(requests):
        for client, request in requests:
            at = decode(request).header.exchange
            if at == exchange:
                pending[client] = request
                yield client, Failure("gone")
            else:
                yield client, clients[client].answer(change(client, at, request))

    _, outcome = run_round(method, Federation(0, method.server_init(None)), RUN, list(clients), ask, Rng((5,)))
    return pending, outcome


def equivocate(folder, names, threshold, lists):
    """Return the last replies of clients to a server that sends each its own list and all signatures."""
    method = Adds(Task((1, 8, 8), 0, 3, len(names), secagg_threshold=threshold))
    played_until(3, method, folder, names)
    simulated = SimulatedClients(method, RUN, Rng((5,)), shares(len(names), each=2), folder)
    clients = {c: simulated.client(c, digits().train) for c in names}
    signed = {c: content_of(clients[c].answer(make_request(3, bits("secagg.alive", lists[c])))) for c in names}
    assert {len(s) for s in signed.values()} == {64}  # no shares yet; without the check it would get them here
    answers = {}
    for c in names:  # of clients in its list; others are refused anyway
        raw = b"".join(signed[other] for other, listed in zip(names, lists[c], strict=True) if listed)
        answers[c] = content_of(
            clients[c].answer(make_request(4, bits("secagg.from", lists[c]), text("secagg.signatures", raw)))
        )
    return answers


def test_an_equivocating_server_does_not_get_the_sum_of_two_of_five(tmp_path):
    """With one list per client, three would release the masks of clients 2 to 4, and so the sum of the other two."""
    lists = [(1, 1, 0, 0, 1), (1, 1, 1, 1, 0), (1, 1, 1, 0, 0), (1, 1, 0, 1, 0), (1, 1, 0, 0, 1)]
    answers = equivocate(tmp_path, FIVE, 3, dict(zip(FIVE, lists, strict=True)))
    assert all("did not sign the list that this client was sent" in str(answer) for answer in answers.values())


def test_two_halves_with_different_lists_send_no_shares(tmp_path):
    six = [f"client-{k}" for k in range(6)]
    lists = {c: (1, 1, 1, 1, 1, 0) if k < 3 else (0, 1, 1, 1, 1, 1) for k, c in enumerate(six)}
    answers = equivocate(tmp_path, six, 4, lists)
    assert all("did not sign the list that this client was sent" in str(answer) for answer in answers.values())


def test_a_server_that_equivocates_in_a_round_gets_no_sum(tmp_path):
    """The real server with another list for one client: four agree; two and three do not."""
    for odd, opens in (({"client-4"}, True), ({"client-2", "client-3", "client-4"}, False)):
        method, clients = keyed(tmp_path / str(len(odd)), threshold=4)

        def change(client, at, request, odd=odd):
            return make_request(3, bits("secagg.alive", (0, 1, 1, 1, 1))) if at == 3 and client in odd else request

        _, outcome = run_to(9, method, clients, change)
        assert bool(outcome.void) != opens
        if not opens:
            assert outcome.void.startswith("2 of 5 clients confirmed whose replies arrived")


@pytest.mark.parametrize(("threshold", "opens"), [(3, True), (4, False)])
def test_signing_two_lists_reveals_sums_only_at_a_low_threshold(tmp_path, threshold, opens):
    """An equivocating server needs 2 threshold - n colluding clients: one of five at 3, three at 4."""
    clients, (group, keys, _) = confirmed(tmp_path, threshold, until=3)
    lists = {c: (1, 1, 1, 0, 1) if k < 2 else (0, 1, 1, 1, 1) for k, c in enumerate(FIVE)}
    signed = {c: content_of(clients[c].answer(make_request(3, bits("secagg.alive", lists[c])))) for c in FIVE[:4]}
    for c in FIVE[:4]:
        agree = [other for other in FIVE[:4] if lists[other] == lists[c]]
        signed["client-4"] = clients["client-4"].key.sign(*secagg.view(group, keys, lists[c]))
        signers = [*agree, "client-4"] if opens else [c for c, listed in zip(FIVE, lists[c], strict=True) if listed]
        sent = bits("secagg.from", [c in signers for c in FIVE]), b"".join(signed[c] for c in signers)
        answer = content_of(clients[c].answer(make_request(4, sent[0], text("secagg.signatures", sent[1]))))
        assert isinstance(answer, bytes) == opens, answer


VIEWS = {  # what other clients signed in place of the list that client-0 was sent
    "another run": lambda g, keys, alive: (replace(g, run=bytes(16)), keys, alive),
    "another round": lambda g, keys, alive: (replace(g, round=1), keys, alive),
    "another threshold": lambda g, keys, alive: (replace(g, threshold=2), keys, alive),
    "other names": lambda g, keys, alive: (replace(g, names=(*g.names[:4], "client-9")), keys, alive),
    "other keys": lambda g, keys, alive: (g, keys[:-1] + b"x", alive),
    "another list": lambda g, keys, alive: (g, keys, (1, 1, 1, 1, 0)),
}


def confirmed(folder, threshold=3, until=4):
    """Clients that have signed that all replies arrived, and what they signed."""
    method, clients = keyed(folder, threshold=threshold)
    replies = {}

    def change(client, at, request):
        if at == 1:
            replies["keys"] = decode(request).parts[1].payload
        return request

    run_to(until, method, clients, change)
    return clients, (secagg.Group(RUN, 0, tuple(FIVE), threshold), replies["keys"], (1, 1, 1, 1, 1))


def opening(clients, view, signers=(1, 1, 1, 1, 1)):
    those = [c for c, signs in zip(FIVE, signers, strict=True) if signs]
    raw = b"".join(clients[c].key.sign(*secagg.view(*view)) for c in those)
    return make_request(4, bits("secagg.from", signers), text("secagg.signatures", raw))


@pytest.mark.parametrize("lie", VIEWS)
def test_signatures_over_another_text_release_no_shares(tmp_path, lie):
    clients, view = confirmed(tmp_path)
    assert "did not sign the list" in content_of(clients["client-0"].answer(opening(clients, VIEWS[lie](*view))))
    assert len(content_of(clients["client-0"].answer(opening(clients, view)))) == 5 * SHARE  # the right ones do


def test_fewer_signatures_than_the_threshold_release_no_shares(tmp_path):
    clients, view = confirmed(tmp_path)
    client = clients["client-0"]
    assert "2 clients signed" in content_of(client.answer(opening(clients, view, (0, 1, 1, 0, 0))))
    forged = replace(clients["client-1"], key=clients["client-2"].key)
    stolen = opening({**clients, "client-1": forged}, view, (1, 1, 1, 0, 0))
    assert "'client-1' did not sign" in content_of(client.answer(stolen))
    short = make_request(4, bits("secagg.from", (1, 1, 1, 0, 0)), text("secagg.signatures", bytes(128)))
    assert "has 128 bytes; 192 are expected" in content_of(client.answer(short))
    assert len(content_of(client.answer(opening(clients, view, (0, 1, 1, 1, 0))))) == 5 * SHARE


def test_signatures_of_clients_without_a_reply_do_not_count(tmp_path):
    method, clients = keyed(tmp_path)
    run_to(3, method, clients)
    client = clients["client-0"]
    assert len(content_of(client.answer(make_request(3, bits("secagg.alive", (1, 1, 1, 0, 0)))))) == 64
    sent = bits("secagg.from", (1, 1, 0, 1, 0)), text("secagg.signatures", bytes(192))
    assert "3 are required, of which all replies arrived" in content_of(client.answer(make_request(4, *sent)))


# -- a server that replaces clients' keys by its own -----------------------------------------------------------------


def swapped(request, at, name, key=None):
    """A request in which the server replaced a client's keys, signed by a key if one is given."""
    m = decode(request)
    raw, start = m.parts[1].payload, ADVERTISED * at
    old = raw[start : start + ADVERTISED]
    own = crypto.public(bytes(32)) * 2 + old[64:80]
    if key is None:
        own += old[80:]
    else:
        own += key.public + key.sign(*secagg.signed_keys(RUN, 0, name, own))
    return encode(replace(m, parts=(m.parts[0], text("secagg.keys", raw[:start] + own + raw[start + ADVERTISED :]))))


def test_clients_with_peer_keys_refuse_keys_made_by_the_server(tmp_path):
    _, clients = keyed(tmp_path, peers=tmp_path / "peers")
    pending, _ = run_to(1, Adds(), clients)
    lie = swapped(pending["client-0"], 2, "client-2", Key(bytes(32)))
    assert "'client-2' presents the key" in content_of(clients["client-0"].answer(lie))
    assert isinstance(content_of(clients["client-0"].answer(pending["client-0"])), bytes)


def test_without_peer_keys_only_keys_signed_by_their_owner_are_accepted(tmp_path):
    """So the server is trusted to pass on keys: keys signed by its own key are accepted."""
    _, clients = keyed(tmp_path)
    pending, _ = run_to(1, Adds(), clients)
    client, request = clients["client-0"], pending["client-0"]
    assert "'client-2' are not signed for this round" in content_of(client.answer(swapped(request, 2, "client-2")))
    assert isinstance(content_of(client.answer(swapped(request, 2, "client-2", Key(bytes(32))))), bytes)


def test_clients_with_peer_keys_refuse_a_client_invented_by_the_server(tmp_path):
    _, clients = keyed(tmp_path, peers=tmp_path / "peers")
    (tmp_path / "peers" / "client-4.pub").unlink()
    pending, _ = run_to(1, Adds(), clients)
    assert "no key is expected for 'client-4'" in content_of(clients["client-0"].answer(pending["client-0"]))


def test_clients_with_peer_keys_give_the_same_sum(tmp_path):
    method, clients = keyed(tmp_path / "a", peers=tmp_path / "peers")
    _, outcome = run_to(9, method, clients)
    assert not outcome.void
    assert not outcome.excluded
    _, others = run_to(9, *keyed(tmp_path / "b"))
    assert (outcome.metrics, outcome.up, outcome.down) == (others.metrics, others.up, others.down)


def test_two_clients_with_the_same_key_count_once(tmp_path):
    method, clients = keyed(tmp_path)
    _, outcome = run_to(9, method, {**clients, "client-3": replace(clients["client-3"], key=clients["client-1"].key)})
    assert outcome.excluded == {"client-3": "reply refused: it sent the key of another client"}
    assert not outcome.void
