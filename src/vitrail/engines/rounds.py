"""One round with a barrier, on any engine: select clients, send requests, aggregate replies, count bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from vitrail.engines.federation import Ask, Federation, OnProgress, OnStart, RoundResult, select_clients
from vitrail.engines.relays import Relay, relays_of, undelivered
from vitrail.engines.replies import CheckedPart, Failure, OrderedReplies, each_of, read_reply
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.robust import ReplyNorms, RobustSum, sum_for
from vitrail.engines.secagg.server import secure_sums
from vitrail.engines.sums import FixedPointSum
from vitrail.methods.base import Method, PartSpec, Sums
from vitrail.utils.errors import reason_of
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.message import Kind, Part

__all__ = ["Federation", "RoundResult", "finish_round", "run_round", "select_clients"]


def run_round(
    method: Method,
    fed: Federation,
    run: bytes,
    clients: Sequence[str],
    send: Ask,
    rng: Rng,
    *,
    quorum: int = 1,
    on_progress: OnProgress = lambda _: None,
    on_start: OnStart = lambda *_: None,
) -> tuple[Federation, RoundResult]:
    """Run one round and wait for all its replies.

    Args:
        method: The method.
        fed: The federation before the round.
        run: Id of the run.
        clients: Clients selected for this round; the method may use fewer.
        send: The engine that carries messages.
        rng: Random stream of the run.
        quorum: Smallest number of replies for which the round is not discarded.
        on_progress: Called after each reply.
        on_start: Called with the participants before the first request.

    Returns:
        The federation after the round, and the result of the round.
    """
    t, declared = fed.round, method.reply_spec()
    rng = rng.child("server", t)
    server, participants = method.start_round(fed.server, clients, rng.child("open"))
    on_start(t, participants)
    result = RoundResult(t, requested=len(participants))
    builder = RequestBuilder(method, server, fed, run, result)
    if method.task.secagg_threshold and participants:
        sums = secure_sums(method, builder, participants, send, on_progress)
        return finish_round(method, fed, server, participants, result, sums, rng, quorum)

    total, norms = sum_for(method, declared), ReplyNorms(declared)
    ordered = OrderedReplies(participants, declared)
    recipients = fed.known | set(clients)
    relays: list[Relay] = []
    need_full: list[str] = []  # clients that do not have the state that the server assumed
    for full, group in ((False, list(participants)), (True, need_full)):
        for client, answer in send(builder.requests(group, full)):
            reply = collect_reply(answer, client, run, declared, server, result, full=full)
            if reply is Kind.NEED_FULL:
                need_full.append(client)
                continue
            for name, parts in ordered.put(client, reply):
                received = accept_reply(method, server, name, parts, total, result, norms)
                if received is not None:
                    server = received
                    relays += relays_of(name, (p.part for p in parts), recipients)
            on_progress(result)

    result.outliers = norms.outliers()
    return finish_round(method, fed, server, participants, result, total.sums(len(result.replied)), rng, quorum, relays)


def collect_reply(
    answer: bytes | Failure,
    client: str,
    run: bytes,
    declared: Mapping[str, PartSpec],
    server: State,
    result: RoundResult,
    *,
    full: bool,
) -> tuple[CheckedPart, ...] | Literal[Kind.NEED_FULL] | None:
    """Check a reply and record it in the result.

    Returns:
        The checked parts, None for a failure, or NEED_FULL if the client must be sent the full state.
    """
    result.count_up(client, answer)
    reply = read_reply(answer, run, result.round, client, declared, server)
    if reply is Kind.NEED_FULL and not full:
        return Kind.NEED_FULL
    if isinstance(reply, Kind):
        reply = Failure("requested the full state although it was just sent")
    if isinstance(reply, Failure):
        result.excluded[client] = reply.reason
        return None
    result.replied.append(client)
    return reply


def accept_reply(
    method: Method,
    server: State,
    client: str,
    reply: tuple[CheckedPart, ...],
    total: FixedPointSum | RobustSum,
    result: RoundResult,
    norms: ReplyNorms | None = None,
) -> State | None:
    """Put a checked reply into the server's state and the sums.

    Returns:
        The server's state with the reply; None if the method refuses it or fails on it. Then the client is excluded,
        and neither the state nor the sums contain any of its parts.
    """
    try:
        each = each_of(reply, total.declared)
        received = method.receive(server, client, each) if each else server
        floats = sum(4 * _elements(p.part, total.declared[p.part.name]) for p in reply)
        if norms is not None:
            norms.add(client, reply)
        total.add(reply)
    except Exception as e:
        result.replied.remove(client)
        result.excluded[client] = f"reply refused: {reason_of(e)}"
        return None
    result.floats_up += floats
    return received


def _elements(part: Part, d: PartSpec) -> int:
    """Number of elements that a part encodes."""
    return d.numbers or (math.prod(part.shape) if d.unpack is None else d.size) or 0


def finish_round(
    method: Method,
    fed: Federation,
    server: State,
    participants: Sequence[str],
    result: RoundResult,
    sums: Sums | Failure,
    rng: Rng,
    quorum: int,
    relays: Sequence[Relay] = (),
) -> tuple[Federation, RoundResult]:
    """Finish a round with its sums, or discard it and record why in `result.void`.

    Returns:
        The federation after the round, and the completed result.
    """
    result.replied.sort(key=list(participants).index)
    after = Federation(fed.round + 1, server, fed.known | set(result.replied), counted=fed.counted)
    after.relays = undelivered(fed.relays, list(relays), result.replied)
    if isinstance(sums, Failure):
        result.void = sums.reason
        return after, result
    if participants and len(result.replied) < quorum:
        result.void = f"{len(result.replied)} of {len(participants)} clients replied, quorum is {quorum}"
        return after, result
    try:
        finished = method.finish_round(server, sums, rng.child("close"))
    except Exception as e:  # replies of this round or an earlier one may be more than the method can handle
        result.void = f"the method could not finish the round: {reason_of(e)}"
        return after, result
    if not finite(finished):
        result.void = "the server's state would not be finite"
        return after, result
    after.server = finished
    after.counted = {**fed.counted, **dict.fromkeys(result.replied, fed.round)}
    result.metrics = {
        name.removeprefix("metric."): float(v[0] / sums.clients)
        for name, v in sums.values.items()
        if name.startswith("metric.") and sums.clients
    }
    return after, result
