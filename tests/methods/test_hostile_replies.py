"""Every field of a valid reply is changed, one at a time: the round finishes, and other clients are not affected."""

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

pytestmark = pytest.mark.slow

CLIENTS = sorted(shares())
HOSTILE = "client-1"
DTYPES = {"float32": "<f4", "float16": "<f2", "bytes": "<u1", "int32": "<i4", "int64": "<i8", "seed": "<u8"}


def shapes(p: Part) -> Iterator[tuple[int, ...]]:
    """Yield other shapes with the same number of elements."""
    n = math.prod(p.shape)
    factor = next((k for k in range(2, n) if n % k == 0), 1)
    found = [(1, *p.shape), (*p.shape, 1), p.shape[::-1], (n,), (factor, n // factor), *([()] if n == 1 else [])]
    yield from dict.fromkeys(shape for shape in found if shape != p.shape)


def values(p: Part, d: PartSpec) -> Iterator[tuple[str, bytes]]:
    """Yield other payloads of the same length."""
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


def changed_replies(message: Message, declared: dict[str, PartSpec]) -> Iterator[tuple[str, bool, bytes]]:
    """Yield what is changed, whether it must be refused, and the reply."""
    metrics = [p.name for p in message.parts if p.name.startswith("metric.")]
    for i, p in enumerate(message.parts):
        if p.name in metrics[1:]:
            continue  # all metrics are handled alike
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


def one_round(method: Method, fed: Federation, replies: dict[str, bytes | Failure]) -> tuple[Federation, RoundResult]:
    """Run one round of the server with these replies."""

    def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
        for client, _ in filter(None, requests):
            yield client, replies[client]

    return run_round(method, fed, RUN, CLIENTS, ask, Rng((5,)))


@pytest.mark.parametrize("name", [*METHODS, *PRIVATE])
def test_any_reply_of_one_client_leaves_the_round_and_the_others_intact(name, tmp_path):
    method = quick(name)
    fed = Federation(0, method.server_init(Rng((5,)).child("server", "init")))
    refused = 0
    for t in range(2):
        after, (honest,), traffic = federate(method, tmp_path, rounds=1, fed=fed)
        replies: dict[str, bytes | Failure] = dict(traffic.replies)
        if not replies:
            continue  # the server runs this round alone
        assert honest.replied == CLIENTS
        assert same(one_round(method, fed, replies)[0].tree(), after.tree())
        absent, without = one_round(method, fed, {**replies, HOSTILE: Failure("absent")})
        changes = list(changed_replies(decode(replies[HOSTILE]), method.reply_spec()))
        for what, must, reply in changes[:: 4 if t else 1]:  # in the second round only some of them
            after_change, result = one_round(method, fed, {**replies, HOSTILE: reply})
            assert after_change.round == t + 1
            assert not result.void, what
            assert finite(after_change.server), what
            assert result.up[HOSTILE] == len(reply)
            if HOSTILE in result.excluded:
                refused += 1
                assert result.excluded[HOSTILE].startswith("reply refused: "), what
                assert result.excluded[HOSTILE].isprintable()
                assert same(after_change.tree(), absent.tree()), what
                assert (result.replied, result.metrics) == (without.replied, without.metrics)
                assert result.floats_up == without.floats_up
            else:
                assert not must, f"{what} was accepted"
                assert result.replied == CLIENTS
                server, who = method.start_round(after_change.server, CLIENTS, Rng((6,)))
                for client in who:  # requests for the next round can be made
                    method.broadcast(server, client, full=False)
                    method.broadcast(server, client, full=True)
        fed = after
    assert refused > 20


def largest(method: Method, pattern: str) -> Callable[[int, str, bytes], bytes]:
    """Replace every float part of the hostile client's replies by the limits of its range, except the weight."""
    declared = method.reply_spec()

    def spoil(t: int, client: str, reply: bytes) -> bytes:
        message = decode(reply)
        if client != HOSTILE or message.header.kind is not Kind.REPLY:
            return reply
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
def test_a_client_that_sends_the_largest_values_affects_no_other_client(name, pattern, tmp_path):
    method = quick(name, rounds=4)
    fed, results, _ = federate(method, tmp_path, spoil=largest(method, pattern), rounds=4)
    for result in results:
        assert not result.void
        assert set(result.excluded) <= {HOSTILE}, result.excluded
    assert finite(fed.server)


@pytest.mark.parametrize(
    ("name", "part"), [("fullgan", "generators"), ("mdgan", "gradient"), ("mdgan", "discriminator")]
)
def test_floats_beyond_their_range_are_refused_with_the_name_of_the_part(name, part, tmp_path):
    method = quick(name, **({"wire_dtype": "float32"} if name == "mdgan" else {}))

    def spoil(t: int, client: str, reply: bytes) -> bytes:
        m = decode(reply)
        parts = [make_part(p.name, p.codec, np.full(p.shape, 3e38), p.peer) if p.name == part else p for p in m.parts]
        return encode(replace(m, parts=tuple(parts))) if client == HOSTILE else reply

    _, (result,), _ = federate(method, tmp_path, spoil=spoil, rounds=1)
    assert result.excluded == {HOSTILE: f"reply refused: part '{part}' has the value 3e+38, outside -65536 to 65536"}


def test_a_generator_with_infinite_images_is_refused_and_the_last_one_stays(tmp_path):
    method = quick("fullgan")
    fed, _, _ = federate(method, tmp_path, rounds=1)

    def spoil(t: int, client: str, reply: bytes) -> bytes:
        m = decode(reply)
        bad = [make_part(p.name, p.codec, np.full(p.shape, -1e4)) if p.name == "generators" else p for p in m.parts]
        return encode(replace(m, parts=tuple(bad))) if client == HOSTILE else reply

    after, (result,), _ = federate(method, tmp_path, rounds=1, fed=fed, spoil=spoil)
    assert result.excluded == {HOSTILE: "reply refused: the client's G generates images that are not finite"}
    assert same(after.server["users"][HOSTILE], fed.server["users"][HOSTILE])
