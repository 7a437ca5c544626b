"""What the server can see in secure aggregation, and what is refused."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.engines.secagg.adds import FIVE, Adds, adds_up, numbers, run_one_round, secure
from tests.engines.toy import Toy
from tests.federation import RUN, digits, federate, quick, shares
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.secagg import shares as secagg
from vitrail.engines.secagg.messages import integer_formats
from vitrail.engines.secagg.server import check_secagg
from vitrail.engines.secagg.shares import ADVERTISED
from vitrail.engines.simulation import SimulatedClients
from vitrail.methods.base import PartSpec, Task
from vitrail.utils import crypto
from vitrail.utils.errors import VitrailError
from vitrail.utils.keys import Key
from vitrail.utils.rng import Rng
from vitrail.wire.message import Kind, Message, decode, encode, make_part


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch):
    """Skip fsync, which only matters for a power failure."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


# -- what the server sees -----------------------------------------------------------------------------------------------


def seen(received, exchange):
    return {c: decode(a).parts for c, e, a in received if e == exchange}


def test_the_server_receives_no_unmasked_value_of_a_client(tmp_path):
    wide = Wide(Task((1, 8, 8), 0, 3, 5, secagg_threshold=3))
    _, outcome, received = run_one_round(wide, tmp_path)
    assert not outcome.void
    everything = b"".join(a for *_, a in received)
    kind = integer_formats(wide.reply_spec(), 5, 5)["bits"]
    for k in range(5):
        bits = wide.bits(f"client-{k}")
        for form in (np.packbits(bits).tobytes(), bits.tobytes(), kind.pack(kind.words(bits))):
            assert form[:8] not in everything
            assert form[-8:] not in everything


def test_masked_values_are_uniform_and_independent_of_the_data(tmp_path):
    """All ones or all zeros under equal masks: each vector and each difference of two is uniform."""
    masked = {}
    for ones in (False, True):
        wide = Wide(Task((1, 8, 8), 0, 3, 5, secagg_threshold=3), ones)
        _, _, received = run_one_round(wide, tmp_path / str(ones))
        kind = integer_formats(wide.reply_spec(), 5, 5)["bits"]
        masked[ones] = [kind.unpack(seen(received, 2)[c][0].array()) for c in FIVE]
    for words in (*masked[False], *masked[True], (masked[True][0] - masked[True][1]) % 8):
        assert chisquare(np.bincount(words, minlength=8)).pvalue > 1e-4
    for one, other in itertools.combinations(masked[True], 2):
        table = np.bincount(one.astype(int) * 8 + other, minlength=64)
        assert chisquare(table).pvalue > 1e-4


def test_other_exchanges_do_not_depend_on_the_data(tmp_path):
    received = [run_one_round(Adds(salt=s), tmp_path / str(s))[2] for s in (0, 1)]
    for exchange in (0, 1, 3, 4):
        assert seen(received[0], exchange) == seen(received[1], exchange)
    lengths = [[len(a) for *_, a in h] for h in received]
    assert lengths[0] == lengths[1]
    assert seen(received[0], 2) != seen(received[1], 2)


def test_masks_are_fresh_each_round_and_for_each_run_seed(tmp_path):
    fed, _, first = run_one_round(Adds(), tmp_path / "a")
    _, _, second = run_one_round(Adds(), tmp_path / "a", fed=fed)
    _, _, other = run_one_round(Adds(), tmp_path / "b", seed=6)
    keys = [p[0].payload for h in (first, second, other) for p in seen(h, 0).values()]
    assert len(set(keys)) == 15


def test_keys_come_from_the_operating_system_in_deployment(tmp_path):
    method = Adds(Task((1, 8, 8), 0, 3, 5, secagg_threshold=3, noise_source="os"))
    fed, _, one = run_one_round(method, tmp_path / "a", {"client-1": 2})
    _, _, other = run_one_round(method, tmp_path / "b")
    assert adds_up(fed, [c for c in FIVE if c != "client-1"])
    assert seen(one, 0)["client-0"] != seen(other, 0)["client-0"]


class Wide(Adds):
    """Many bits: all ones, all zeros, or drawn."""

    def __init__(self, task, ones=None):
        super().__init__(task)
        object.__setattr__(self, "ones", ones)

    def reply_spec(self):
        return {"bits": PartSpec("sum", "u1", 8000, limit=1, least=0)}

    def bits(self, client):
        if self.ones is not None:
            return np.full(8000, self.ones, np.uint8)
        return np.random.default_rng([1, int(client[-1])]).integers(0, 2, 8000).astype(np.uint8)

    def client_round(self, state, message, data, rng):
        state, reply = super().client_round(state, message, data, rng)
        return state, replace(reply, parts={"bits": self.bits(state["name"])})


# -- refusals -----------------------------------------------------------------------------------------------------------


def questions(folder, exchange, leaves=None):
    """A client before an exchange, and the honest request of that exchange."""
    pending = {}
    simulated = SimulatedClients(Adds(), RUN, Rng((5,)), shares(5, each=2), folder)

    class Stop(Exception):
        pass

    def ask(requests):
        for client, request in requests:
            if decode(request).header.exchange == exchange:
                pending[client] = request
                if len(pending) == 5 - len(leaves or {}):
                    raise Stop
                continue
            gone = (leaves or {}).get(client, 9) <= decode(request).header.exchange
            yield client, Failure("gone") if gone else simulated.client(client, digits().train).answer(request)

    with pytest.raises(Stop):
        run_round(Adds(), Federation(0, Adds().server_init(None)), RUN, FIVE, ask, Rng((5,)))
    return simulated.client("client-0", digits().train), pending["client-0"]


def refusal(client, request):
    message = decode(client.answer(request))
    assert message.header.kind is Kind.FAILED
    return bytes(message.parts[0].array()).decode()


def alive(request, *bits):
    message = decode(request)
    return encode(Message(message.header, (make_part("secagg.alive", "u1", np.array(bits, np.uint8)),)))


def test_a_server_that_requests_both_shares_of_a_client_is_refused(tmp_path):
    client, request = questions(tmp_path, 3)
    assert decode(client.answer(request)).header.kind is Kind.REPLY
    assert "replay is refused" in refusal(client, alive(request, 1, 1, 1, 1, 0))
    later = decode(alive(request, 1, 1, 1, 1, 0))
    later = encode(replace(later, header=replace(later.header, exchange=5)))
    assert "does not follow" in refusal(client, later)
    twice = replace(decode(request), parts=(*decode(request).parts, *decode(request).parts))
    assert "two parts have the same name" in refusal(client, encode(twice))


@pytest.mark.parametrize(
    ("bits", "why"),
    [((0, 1, 1, 1, 1), "stays secret"), ((1, 1, 0, 0, 0), "no share is sent"), ((1, 1, 1, 1), "not 5 bits")],
)
def test_a_request_that_would_unmask_too_much_is_refused(tmp_path, bits, why):
    client, request = questions(tmp_path, 3)
    assert why in refusal(client, alive(request, *bits))
    assert decode(client.answer(request)).header.kind is Kind.REPLY  # an honest request is still answered


def test_clients_that_shared_no_secrets_do_not_count_for_the_threshold(tmp_path):
    client, request = questions(tmp_path, 3, {"client-3": 1, "client-4": 1})
    assert "no share is sent" in refusal(client, alive(request, 1, 1, 0, 1, 1))


@pytest.mark.parametrize("exchange", [1, 2, 3, 4])
def test_an_exchange_out_of_order_is_refused(tmp_path, exchange):
    _, request = questions(tmp_path / "a", exchange)
    stranger = SimulatedClients(Adds(), RUN, Rng((5,)), shares(5), tmp_path / "b").client("client-0", digits().train)
    assert refusal(stranger, request)
    assert not stranger.store.path.exists()


_PUBLIC = crypto.public(bytes(32))
SHARES = {
    "too few clients": (lambda m: _named(m, FIVE[:2]), "2 clients take part"),
    "too many": (lambda m: _named(m, [*FIVE, "client-5"]), "6 clients take part"),
    "one twice": (lambda m: _named(m, [*FIVE[:4], "client-1"]), "has a duplicate"),
    "without this client": (lambda m: _named(m, FIVE[1:]), "does not include 'client-0'"),
    "no list": (lambda m: replace(m, parts=m.parts[1:]), "does not list the clients"),
    "no keys": (lambda m: replace(m, parts=m.parts[:-1]), "has 0 bytes"),
    "one key for two": (lambda m: _keyed(m, 1, _keys(m)[2]), "not one per client"),
    "a short key": (lambda m: _keyed(m, 1, bytes(79)), "has 783 bytes; 880 are expected"),
    "a key of zeros": (lambda m: _keyed(m, 1, _signed(bytes(32))), "not a public key"),
    "keys of another round": (lambda m: _keyed(m, 1, _signed(_PUBLIC, round_=1)), "not signed for this round"),
    "keys of another run": (lambda m: _keyed(m, 1, _signed(_PUBLIC, run=bytes(16))), "not signed for this round"),
    "keys of another client": (lambda m: _keyed(m, 1, _signed(_PUBLIC, name="client-2")), "not signed for this round"),
    "another key for this client": (lambda m: _keyed(m, 0, _signed(bytes(32))), "this client's own among them"),
}


def _named(m, names):
    import json

    text = np.frombuffer(json.dumps(names, separators=(",", ":")).encode(), np.uint8)
    return replace(m, parts=(make_part("secagg.who", "bytes", text), *m.parts[1:]))


def _keys(m):
    raw = m.parts[1].payload
    return [raw[k : k + ADVERTISED] for k in range(0, len(raw), ADVERTISED)]


def _signed(public, run=RUN, round_=0, name="client-1"):
    """Keys for letters and masks as a client would advertise them."""
    key, shown = Key(bytes(31) + b"\x01"), public + public + bytes(16)
    return shown + key.public + key.sign(*secagg.signed_keys(run, round_, name, shown))


def _keyed(m, at, raw):
    keys = _keys(m)
    keys[at] = raw
    text = np.frombuffer(b"".join(keys), np.uint8)
    return replace(m, parts=(m.parts[0], make_part("secagg.keys", "bytes", text)))


@pytest.mark.parametrize("lie", SHARES)
def test_a_server_that_lies_about_who_takes_part_is_refused(tmp_path, lie):
    client, request = questions(tmp_path, 1)
    change, why = SHARES[lie]
    assert why in refusal(client, encode(change(decode(request))))


def test_changed_swapped_or_missing_letters_are_refused(tmp_path):
    client, request = questions(tmp_path, 2)
    m = decode(request)
    own, senders, letters = m.parts[:-2], *m.parts[-2:]
    raw = letters.payload

    def sent(raw, *bits):
        parts = (
            (make_part(senders.name, "u1", np.uint8(bits)) if bits else senders),
            replace(letters, payload=raw, shape=(len(raw),)),
        )
        return encode(Message(m.header, (*own, *parts)))

    for bad, why in (
        (sent(bytes([raw[0] ^ 1]) + raw[1:]), "letter from 'client-1' is refused"),
        (sent(raw[82:164] + raw[:82] + raw[164:]), "is refused"),
        (sent(raw[82:]), "has 246 bytes; 328 are expected"),
        (sent(raw[:82], 1, 1, 0, 0, 0), "at least 2 are needed"),
        (sent(raw, 1, 1, 1, 1), "not 5 bits"),
    ):
        assert why in refusal(client, bad)
    assert decode(client.answer(request)).header.kind is Kind.REPLY


@pytest.mark.parametrize("exchange", range(5))
@pytest.mark.parametrize("kind", ["garbage", "short", "zeros"])
def test_a_client_that_sends_garbage_is_excluded_and_the_sum_is_right(tmp_path, exchange, kind):
    def spoil(client, e, answer):
        if (client, e) != ("client-1", exchange):
            return answer
        m = decode(answer)
        first = m.parts[0]
        size = 82 if e == 1 else len(first.payload)  # only its letter to client-0
        bad = {"garbage": b"\xf0" * size, "short": first.payload[1:size], "zeros": bytes(size)}[kind]
        raw = bad + first.payload[size:]
        return encode(replace(m, parts=(replace(first, payload=raw, shape=(len(raw),)), *m.parts[1:])))

    fed, outcome, _ = run_one_round(Adds(), tmp_path, spoil=spoil)
    if exchange >= 3:  # its reply arrived; its signature and shares are not needed
        assert adds_up(fed, FIVE)
    elif exchange == 1 and kind != "short":  # its letter to client-0 cannot be decrypted: client-0 fails
        assert "letter from 'client-1'" in outcome.excluded["client-0"]
        assert adds_up(fed, FIVE[1:])
    elif exchange == 2 and kind != "short":  # values under another mask look like any others; the sum is wrong
        assert "a sum is out of range" in outcome.void
    elif exchange == 0 and kind == "garbage":
        assert outcome.excluded or outcome.void
    else:
        assert "refused" in outcome.excluded["client-1"]
        assert adds_up(fed, [c for c in FIVE if c != "client-1"])


@pytest.mark.parametrize("exchange", range(4))
def test_a_reply_of_another_shape_is_refused_in_every_exchange(tmp_path, exchange):
    def spoil(client, e, answer):
        m = decode(answer)
        parts = tuple(replace(p, shape=(1, *p.shape)) for p in m.parts)
        return encode(replace(m, parts=parts)) if (client, e) == ("client-1", exchange) else answer

    fed, outcome, _ = run_one_round(Adds(), tmp_path, spoil=spoil)
    assert not outcome.void
    assert exchange == 3 or "declared is" in outcome.excluded["client-1"]
    assert adds_up(fed, FIVE if exchange == 3 else [c for c in FIVE if c != "client-1"])


def test_two_clients_with_wrong_shares_void_the_round(tmp_path):
    def spoil(client, exchange, answer):
        m = decode(answer)
        if exchange != 4 or client not in FIVE[:2]:
            return answer
        return encode(replace(m, parts=(replace(m.parts[0], payload=bytes(len(m.parts[0].payload))),)))

    fed, outcome, _ = run_one_round(Adds(), tmp_path, spoil=spoil)
    assert "do not match it: a client sent wrong shares" in outcome.void
    assert fed.server["closed"] == 0


def test_a_lying_client_voids_the_round_and_the_run_continues(tmp_path, monkeypatch):
    """It sends 7 for a declared bit, under honest masks."""
    from vitrail.engines.secagg.messages import IntegerFormat

    honest = IntegerFormat.words

    def lie(self, array):
        words = honest(self, array)
        return words + np.uint8(7) if self.width == 3 and array is not None and lying else words

    monkeypatch.setattr(IntegerFormat, "words", lie)
    lying = True
    fed, outcome, _ = run_one_round(Adds(), tmp_path)
    assert outcome.void == "a sum is out of range: a client sent a false value; it cannot be identified"
    assert fed.server["closed"] == 0
    lying = False
    fed, outcome, _ = run_one_round(Adds(), tmp_path, fed=fed)
    assert adds_up(fed, FIVE, t=1)


def test_a_value_beyond_its_declared_limit_does_not_leave_the_client(tmp_path, monkeypatch):
    honest = Adds.client_round

    def large(self, state, message, data, rng):
        state, reply = honest(self, state, message, data, rng)
        if state["name"] == "client-2":
            reply = replace(reply, parts={**reply.parts, "x": np.full(5, 4.5, np.float32)})
        return state, reply

    monkeypatch.setattr(Adds, "client_round", large)
    fed, outcome, _ = run_one_round(Adds(), tmp_path)
    assert outcome.excluded == {"client-2": "its part 'x' cannot be sent: its value 4.5 is outside -4 to 4"}
    assert adds_up(fed, [c for c in FIVE if c != "client-2"])


def test_methods_that_cannot_use_secure_aggregation_are_refused_early():
    with pytest.raises(VitrailError, match="note, own of each client"):
        check_secagg(secure(Toy(), 2))
    with pytest.raises(VitrailError, match="discriminator, gradient of each client"):
        check_secagg(secure(quick("mdgan"), 2))
    with pytest.raises(VitrailError, match="klms"):
        check_secagg(secure(quick("prism", coding="klms"), 2))
    for threshold in (1, 2, 6):
        with pytest.raises(VitrailError, match="use 3 to 5"):
            check_secagg(secure(Adds(), threshold))
    for fine in (Adds(), secure(Adds(), 5), secure(Toy(), 0), secure(quick("prism"), 2), secure(quick("fedgan"), 3)):
        check_secagg(fine)


def test_a_client_without_images_fails_before_others_depend_on_it(tmp_path):
    indices = {**shares(), "client-0": np.arange(0)}
    _, outcomes, traffic = federate(Adds(Task((1, 8, 8), 0, 1, 3, secagg_threshold=2)), tmp_path, indices=indices)
    assert "no images" in outcomes[0].excluded["client-0"]
    assert not outcomes[0].void
    assert len([c for c, _ in traffic.requests if c == "client-0"]) == 1


def test_values_differ_between_clients():
    assert not np.array_equal(numbers("client-0", 0)["bits"], numbers("client-1", 0)["bits"])
