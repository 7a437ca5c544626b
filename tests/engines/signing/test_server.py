"""Signed messages: the bits of a run do not change, and no client can act for another."""

from dataclasses import replace

import pytest

from tests.engines.secagg.adds import FIVE, Adds, adds_up
from tests.engines.toy import Free, Toy
from tests.federation import RUN, digits, federate, quick, same, shares
from vitrail.engines.async_rounds import run_rounds
from vitrail.engines.journal import Journal
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.signing.client import SignedSession
from vitrail.engines.signing.server import ClientKeys, SigningServer
from vitrail.engines.simulation import SimulatedClients
from vitrail.methods.base import Task
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import SIGNATURE, Key
from vitrail.utils.rng import Rng
from vitrail.wire.message import decode, encode

PLAIN = Adds(Task((1, 8, 8), 0, 3, 5))  # no secure aggregation
SERVER, STRANGER = Key(b"server's secret".ljust(32)), Key(b"another party's k".ljust(32))


def key_of(client):
    return Key(client.encode().ljust(32))


class Sites:
    """Clients behind signatures, and hooks with which a test changes messages."""

    def __init__(self, method, folder, clients, down=lambda c, t, b: b, up=lambda c, t, b: b, server=SERVER.public):
        folder.mkdir(parents=True, exist_ok=True)
        self.simulated = SimulatedClients(method, RUN, Rng((5,)), shares(len(clients), each=2), folder / "clients")
        self.down, self.up, self.pinned = down, up, server
        self.names = ClientKeys()
        for client in clients:
            self.names.meet(client, key_of(client).public)
        self.spec = "the specification of this run"
        self.signing = SigningServer(SERVER, self.names, lambda: "the specification of this run")

    def carry(self, requests):
        for client, request in filter(None, requests):
            t = decode(request[:-SIGNATURE]).header.round
            yield client, self.up(client, t, self.answer(client, self.down(client, t, request)))

    def answer(self, client, carried):
        node, request = SignedSession(client, key_of(client), self.pinned), carried[:-SIGNATURE]
        one = self.simulated.client(client, digits().train)
        try:
            reply = one.answer(node.verify(carried, self.spec))
        except VitrailError as e:
            reply = one.refuse(str(e))
        return node.sign(request, reply)


def run(method, folder, clients, rounds, ahead=1, **hooks):
    sites = Sites(method, folder, clients, **hooks)
    fed, outcomes = Federation(0, method.server_init(Rng((5,)))), []
    while fed.round < rounds:
        if ahead == 1:
            fed, outcome = run_round(method, fed, RUN, clients, sites.signing.ask(sites.carry), Rng((5,)))
            sites.signing.count(outcome)
            outcomes.append(outcome)
            continue
        journal = Journal(folder / "answers")
        for outcome, after in run_rounds(
            method, fed, RUN, lambda _: clients, min(rounds, fed.round + ahead),
            sites.signing.ask(sites.carry), Rng((5,)), journal,
        ):  # fmt: skip
            sites.signing.count(outcome)
            outcomes.append(outcome)
            fed = after or fed
        journal.clear()
    return fed, outcomes


@pytest.mark.parametrize(
    ("method", "clients", "ahead"),
    [(Adds(), 5, 1), (PLAIN, 5, 1), (Toy(), 3, 1), (Free(), 3, 3)],
    ids=["secure sums", "sums", "relays and full states", "no barrier"],
)
def test_signatures_change_no_bit_and_add_64_bytes_per_message(tmp_path, method, clients, ahead):
    names = [f"client-{k}" for k in range(clients)]
    signed, outcomes = run(method, tmp_path / "a", names, method.task.rounds, ahead)
    plain, others, traffic = federate(
        method,
        tmp_path / "b",
        indices=shares(clients, each=2),
        ahead=ahead,
        fed=Federation(0, method.server_init(Rng((5,)))),
        rounds=method.task.rounds,
    )
    assert same(signed.tree(), plain.tree())
    for mine, theirs in zip(outcomes, others, strict=True):
        assert (mine.replied, mine.excluded, mine.metrics) == (theirs.replied, theirs.excluded, theirs.metrics)
        for client in theirs.up:
            sent = sum(c == client and decode(b).header.round == mine.round for c, b in traffic.replies)
            assert mine.up[client] == theirs.up[client] + SIGNATURE * sent
            sent = sum(c == client and decode(b).header.round == mine.round for c, b in traffic.requests)
            assert mine.down[client] == theirs.down[client] + SIGNATURE * sent


def test_a_reply_in_the_name_of_another_client_is_excluded(tmp_path):
    """client-1's bytes are replaced by a reply with another party's signature."""
    method = PLAIN

    def forged(client, t, carried):
        if client == "client-1":
            reply = carried[:-SIGNATURE]
            return reply + STRANGER.sign(b"reply", client.encode(), b"", reply)
        return carried

    fed, outcomes = run(method, tmp_path, FIVE, 1, up=forged)
    assert outcomes[0].excluded.keys() == {"client-1"}
    assert "not signed for this request by its key" in outcomes[0].excluded["client-1"]
    assert adds_up(fed, [c for c in FIVE if c != "client-1"])


def test_a_reply_changed_in_transit_is_excluded(tmp_path):
    """The signature covers run, round, sender, kind and values, also if the checksum is valid."""
    method = PLAIN

    def rewritten(change):
        def up(client, t, carried):
            if client != "client-2":
                return carried
            message = decode(carried[:-SIGNATURE])
            return encode(change(message)) + carried[-SIGNATURE:]

        return up

    changes = [
        lambda m: replace(m, header=replace(m.header, run=b"another run, 16b")),
        lambda m: replace(m, header=replace(m.header, round=1)),
        lambda m: replace(m, header=replace(m.header, sender="client-3")),
        lambda m: replace(m, header=replace(m.header, exchange=1)),
        lambda m: replace(m, parts=m.parts[1:]),
        lambda m: replace(m, parts=(replace(m.parts[0], payload=bytes(len(m.parts[0].payload))), *m.parts[1:])),
    ]
    for i, change in enumerate(changes):
        fed, outcomes = run(method, tmp_path / str(i), FIVE, 1, up=rewritten(change))
        assert "not signed" in outcomes[0].excluded["client-2"], i
        assert adds_up(fed, [c for c in FIVE if c != "client-2"])
    for short in (b"", b"x" * (SIGNATURE - 1)):
        _, outcomes = run(
            method, tmp_path / str(len(short)) / "s", FIVE, 1,
            up=lambda c, t, b, short=short: short if c == "client-2" else b,
        )  # fmt: skip
        assert "expected a message and a signature" in outcomes[0].excluded["client-2"]


def test_a_reply_to_another_request_is_excluded(tmp_path):
    """The signed reply of client-2 to round 0 is replayed in round 1."""
    method, first = PLAIN, {}

    def replayed(client, t, carried):
        return first.setdefault(client, carried) if client == "client-2" else carried

    fed, outcomes = run(method, tmp_path, FIVE, 2, up=replayed)
    assert not outcomes[0].excluded
    assert "not signed for this request" in outcomes[1].excluded["client-2"]
    assert adds_up(fed, [c for c in FIVE if c != "client-2"], t=1)


def test_a_node_refuses_a_server_that_its_owner_did_not_name(tmp_path):
    method = PLAIN
    fed, outcomes = run(method, tmp_path / "a", FIVE, 1, server=STRANGER.public)
    assert fed.round == 1
    assert "quorum" in outcomes[0].void
    assert all("not signed by the server that this node's owner named" in r for r in outcomes[0].excluded.values())
    assert not (tmp_path / "a" / "clients").exists(), "a refused request leaves no trace"
    assert adds_up(run(method, tmp_path / "b", FIVE, 1, server=None)[0], FIVE), "without a name nothing is checked"


def test_a_request_that_is_changed_or_for_another_client_is_refused(tmp_path):
    method, to = PLAIN, {}

    def crossed(client, t, carried):
        to[client] = carried
        return to["client-0"] if client == "client-1" else carried

    _, outcomes = run(method, tmp_path / "a", FIVE, 1, down=crossed)
    assert outcomes[0].excluded.keys() == {"client-1"}

    def changed(client, t, carried):
        message = decode(carried[:-SIGNATURE])
        return encode(replace(message, header=replace(message.header, round=2))) + carried[-SIGNATURE:]

    _, outcomes = run(method, tmp_path / "b", FIVE, 1, down=changed)
    assert not outcomes[0].replied
    _, outcomes = run(method, tmp_path / "c", FIVE, 1, down=lambda c, t, b: b[:40])
    assert not outcomes[0].replied


def test_terms_changed_in_transit_are_refused(tmp_path):
    """The signature covers the request and the specification it is sent with."""
    sites = Sites(PLAIN, tmp_path, FIVE)
    sites.spec = "the specification of this run, without noise"
    start = Federation(0, PLAIN.server_init(Rng((5,))))
    _, outcome = run_round(PLAIN, start, RUN, FIVE, sites.signing.ask(sites.carry), Rng((5,)))
    assert not outcome.replied
    assert all("not signed by the server" in why for why in outcome.excluded.values())


def test_a_request_for_one_purpose_is_refused_for_another():
    node, server = SignedSession("a", key_of("a"), SERVER.public), SigningServer(SERVER, ClientKeys())
    assert node.verify(server.sign("a", b"a model", "keep"), purpose="keep") == b"a model"
    with pytest.raises(VitrailError, match="server-key"):
        node.verify(server.sign("a", b"a model", "keep"))


def test_a_client_is_known_by_its_first_key_and_another_is_refused():
    names = ClientKeys()
    names.meet("a", key_of("a").public)
    again = ClientKeys(dict(names.keys))
    again.meet("a", key_of("a").public)
    with pytest.raises(VitrailError, match="was its key before"):
        again.meet("a", STRANGER.public)
    assert again.key_of("a") == key_of("a").public
    assert again.key_of("b") is None


def test_with_a_folder_of_expected_keys_only_these_count(tmp_path):
    (tmp_path / "north%2F1.pub").write_text(key_of("north/1").public.hex())
    names = ClientKeys({"south": STRANGER.public}, tmp_path)
    names.meet("north/1", key_of("north/1").public)
    with pytest.raises(VitrailError, match=r"is expected: copy the node\.key that belongs to north%2F1\.pub"):
        names.meet("north/1", STRANGER.public)
    with pytest.raises(VitrailError, match=r"south\.pub"):
        names.meet("south", STRANGER.public)
    assert names.key_of("south") is None, "not even one that was known before"


def test_a_folder_of_expected_keys_is_checked_and_the_error_names_the_file(tmp_path):
    ClientKeys().check_files()
    names = ClientKeys(expected=tmp_path)
    with pytest.raises(VitrailError, match=r"has no file NAME\.pub"):
        names.check_files()
    (tmp_path / "north.pub").write_text(key_of("north").public.hex())
    names.check_files()
    (tmp_path / "south.pub").write_text("ecdsa-sha2-nistp384 AAAA")
    with pytest.raises(VitrailError, match=rf"{tmp_path}/south\.pub: .*the folder keys"):
        names.check_files()


def test_a_reply_of_a_client_without_a_known_key_is_excluded(tmp_path):
    method = PLAIN
    sites = Sites(method, tmp_path, FIVE)
    sites.signing.client_keys.keys.pop("client-4")
    fed, outcome = run_round(
        method, Federation(0, method.server_init(Rng((5,)))), RUN, FIVE, sites.signing.ask(sites.carry), Rng((5,))
    )
    assert outcome.excluded == {"client-4": "reply refused: its key is not known"}
    assert adds_up(fed, FIVE[:4])


def test_a_failure_of_the_engine_is_passed_on(tmp_path):
    method = PLAIN
    _, outcomes = run(method, tmp_path, FIVE, 1, up=lambda c, t, b: Failure("lost its way") if c == "client-0" else b)
    assert outcomes[0].excluded == {"client-0": "lost its way"}


def test_a_real_method_gives_the_same_bits_with_signatures(tmp_path):
    method = quick("prism", rounds=2)
    names = [f"client-{k}" for k in range(3)]
    signed, _ = run(method, tmp_path / "a", names, 2)
    plain, _, _ = federate(
        method, tmp_path / "b", indices=shares(3, each=2), fed=Federation(0, method.server_init(Rng((5,))))
    )
    assert same(signed.tree(), plain.tree())
