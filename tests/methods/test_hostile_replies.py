"""Every field of a valid reply is changed, one at a time: the round ends, and the other clients count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.federation import PRIVATE, RUN, federate, quick, same, shares
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, RoundResult, run_round
from vitrail.methods import METHODS
from vitrail.methods.base import Method, PartSpec
from vitrail.utils.rng import Rng
from vitrail.utils.state import finite
from vitrail.wire.codecs import BY_NAME
from vitrail.wire.message import Kind, Message, Part, decode, encode, make_part

CLIENTS = sorted(shares())
LIAR = "client-1"
DTYPES = {"float32": "<f4", "float16": "<f2", "bytes": "<u1", "int32": "<i4", "int64": "<i8", "seed": "<u8"}


def shapes(p: Part) -> Iterator[tuple[int, ...]]:
    """Other shapes of the same number of elements."""
    n = math.prod(p.shape)
    factor = next((k for k in range(2, n) if n % k == 0), 1)
    found = [(1, *p.shape), (*p.shape, 1), p.shape[::-1], (n,), (factor, n // factor), *([()] if n == 1 else [])]
    yield from dict.fromkeys(shape for shape in found if shape != p.shape)


def values(p: Part, d: PartSpec) -> Iterator[tuple[str, bytes]]:
    """Other payloads of the same length."""
    yield "reversed", p.payload[::-1]
    yield "garbage", np.random.default_rng(1).bytes(len(p.payload))
    yield "zeros", bytes(len(p.payload))
    yield "ones", b"\xff" * len(p.payload)
    yield "another first byte", bytes([p.payload[0] ^ 1]) + p.payload[1:] if p.payload else b"1"
    if p.codec not in DTYPES or p.codec == "bytes":
        return
    t = np.dtype(DTYPES[p.codec])
    about = np.finfo(t) if t.kind == "f" else np.iinfo(t)
    extremes = [about.min, about.max]
    if t.kind == "f":
        extremes += [np.nan, np.inf, -np.inf, about.smallest_subnormal, d.limit, max(d.least, -d.limit)]
    n = math.prod(p.shape)
    with np.errstate(over="ignore"):
        yield from ((f"all {value}", np.full(n, value, t).tobytes()) for value in extremes)


def lies(message: Message, declared: dict[str, PartSpec]) -> Iterator[tuple[str, bool, bytes]]:
    """What is changed, whether it must be refused, and the reply."""
    metrics = [p.name for p in message.parts if p.name.startswith("metric.")]
    for i, p in enumerate(message.parts):
        if p.name in metrics[1:]:
            continue  # they are all handled alike
        d = declared[p.name]
        flat = p.array().reshape(-1)

        def put(*new: Part, at: int = i) -> bytes:
            return encode(replace(message, parts=(*message.parts[:at], *new, *message.parts[at + 1 :])))

        for shape in shapes(p):
            yield f"{p.name}: shape {shape}", True, put(replace(p, shape=shape))
        for codec in ("float32", "float16", "bytes", "int64", "u1"):
            if codec != p.codec:
                zeros = np.zeros(p.shape, np.uint8)
                yield f"{p.name}: codec {codec}", True, put(Part(p.name, codec, p.shape, BY_NAME[codec].encode(zeros)))
        known = d.size is not None and d.unpack is None
        yield f"{p.name}: one more", known, put(make_part(p.name, p.codec, np.append(flat, flat[:1]), p.peer))
        yield f"{p.name}: one less", known, put(make_part(p.name, p.codec, flat[:-1], p.peer))
        yield f"{p.name}: empty", known, put(Part(p.name, p.codec, (0,), b"", p.peer))
        yield f"{p.name}: payload too long", True, put(replace(p, payload=p.payload + b"\0"))
        yield f"{p.name}: payload too short", True, put(replace(p, payload=p.payload[:-1]))
        yield f"{p.name}: of a huge shape", True, put(replace(p, shape=(2**31, 7)))
        for what, payload in values(p, d):
            yield f"{p.name}: {what}", False, put(replace(p, payload=payload))
        yield f"{p.name}: missing", d.how != "relay", put()
        yield f"{p.name}: twice", True, put(p, p)
        yield f"{p.name}: under another name", True, put(replace(p, name="\x1b[2J"))
        yield f"{p.name}: for another client", d.how != "relay", put(replace(p, peer="client-2"))


def played(method: Method, fed: Federation, replies: dict[str, bytes | Failure]) -> tuple[Federation, RoundResult]:
    """One round of the real server with these replies."""

    def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
        for client, _ in filter(None, requests):
            yield client, replies[client]

    return run_round(method, fed, RUN, CLIENTS, ask, Rng((5,)))


@pytest.mark.parametrize("name", [*METHODS, *PRIVATE])
def test_whatever_one_client_replies_the_round_ends_and_the_others_count(name, tmp_path):
    method = quick(name)
    fed = Federation(0, method.server_init(Rng((5,)).child("server", "init")))
    refused = 0
    for t in range(2):
        after, (honest,), traffic = federate(method, tmp_path, rounds=1, fed=fed)
        replies: dict[str, bytes | Failure] = dict(traffic.replies)
        if not replies:
            continue  # a round of the server alone
        assert honest.replied == CLIENTS
        assert same(played(method, fed, replies)[0].tree(), after.tree())
        absent, without = played(method, fed, {**replies, LIAR: Failure("gone")})
        told = list(lies(decode(replies[LIAR]), method.reply_spec()))
        for what, must, lie in told[:: 4 if t else 1]:  # in the second round, some of them on what the first one left
            got, outcome = played(method, fed, {**replies, LIAR: lie})
            assert got.round == t + 1
            assert not outcome.void, what
            assert finite(got.server), what
            assert outcome.up[LIAR] == len(lie)
            if LIAR in outcome.excluded:
                refused += 1
                assert outcome.excluded[LIAR].startswith("reply refused: "), what
                assert outcome.excluded[LIAR].isprintable()
                assert same(got.tree(), absent.tree()), what
                assert (outcome.replied, outcome.metrics) == (without.replied, without.metrics)
                assert outcome.floats_up == without.floats_up
            else:
                assert not must, f"{what} was accepted"
                assert outcome.replied == CLIENTS
                server, who = method.start_round(got.server, CLIENTS, Rng((6,)))
                for client in who:  # the next round can be asked for
                    method.broadcast(server, client, full=False)
                    method.broadcast(server, client, full=True)
        fed = after
    assert refused > 20


def largest(method: Method, pattern: str) -> Callable[[int, str, bytes], bytes]:
    """The liar's replies with every float part at the ends of its range; the weight stays as it was."""
    declared = method.reply_spec()

    def spoil(t: int, client: str, answer: bytes) -> bytes:
        message = decode(answer)
        if client != LIAR or message.header.kind is not Kind.REPLY:
            return answer
        parts = []
        for p in message.parts:
            d = declared[p.name]
            if p.codec not in ("float32", "float16") or p.name == "weight":
                parts.append(p)
                continue
            top = min(d.limit, float(np.finfo(DTYPES[p.codec]).max))
            a = np.full(p.shape, top, np.float32)
            if pattern == "both ends":
                a[np.random.default_rng(t).random(p.shape) < 0.5] = max(d.least, -top)
            parts.append(make_part(p.name, p.codec, a, p.peer))
        return encode(replace(message, parts=tuple(parts)))

    return spoil


@pytest.mark.parametrize("pattern", ["one end", "both ends"])
@pytest.mark.parametrize("name", [*METHODS, *PRIVATE])
def test_a_client_that_sends_the_largest_values_stops_no_round_and_excludes_nobody_else(name, pattern, tmp_path):
    method = quick(name, rounds=4)
    fed, outcomes, _ = federate(method, tmp_path, spoil=largest(method, pattern), rounds=4)
    for outcome in outcomes:
        assert not outcome.void
        assert set(outcome.excluded) <= {LIAR}, outcome.excluded
    assert finite(fed.server)


@pytest.mark.parametrize(
    ("name", "part"), [("fullgan", "generators"), ("mdgan", "gradient"), ("mdgan", "discriminator")]
)
def test_a_float_beyond_its_range_is_refused_by_name_whoever_it_is_for(name, part, tmp_path):
    method = quick(name, **({"wire_dtype": "float32"} if name == "mdgan" else {}))

    def spoil(t: int, client: str, answer: bytes) -> bytes:
        m = decode(answer)
        parts = [make_part(p.name, p.codec, np.full(p.shape, 3e38), p.peer) if p.name == part else p for p in m.parts]
        return encode(replace(m, parts=tuple(parts))) if client == LIAR else answer

    _, (outcome,), _ = federate(method, tmp_path, spoil=spoil, rounds=1)
    assert outcome.excluded == {LIAR: f"reply refused: part '{part}' has the value 3e+38, outside -65536 to 65536"}


def test_a_generator_whose_images_are_not_finite_is_refused_and_the_last_one_kept(tmp_path):
    method = quick("fullgan")
    fed, _, _ = federate(method, tmp_path, rounds=1)

    def spoil(t: int, client: str, answer: bytes) -> bytes:
        m = decode(answer)
        bad = [make_part(p.name, p.codec, np.full(p.shape, -1e4)) if p.name == "generators" else p for p in m.parts]
        return encode(replace(m, parts=tuple(bad))) if client == LIAR else answer

    after, (outcome,), _ = federate(method, tmp_path, rounds=1, fed=fed, spoil=spoil)
    assert outcome.excluded == {LIAR: "reply refused: its G makes images that are not finite"}
    assert same(after.server["users"][LIAR], fed.server["users"][LIAR])
