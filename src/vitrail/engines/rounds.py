"""One round with a barrier, on any engine: select clients, send requests, aggregate replies, count bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from vitrail.engines.federation import Ask, Federation, OnProgress, OnStart, Relay, RoundResult, relays_of
from vitrail.engines.replies import CheckedReply, Failure, OrderedReplies, read_reply
from vitrail.engines.requests import RequestBuilder
from vitrail.engines.secagg.server import secure_sums
from vitrail.engines.sums import ReplyNorms, sum_for
from vitrail.methods.base import Method, PartSpec, Sums
from vitrail.utils.errors import reason_of
from vitrail.utils.rng import Rng
from vitrail.utils.state import State, finite
from vitrail.wire.message import Kind, Part

__all__ = ["Federation", "RoundInProgress", "RoundResult", "run_round"]


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
    t, rng = fed.round, rng.child("server", fed.round)
    server, participants = method.start_round(fed.server, clients, rng.child("open"))
    on_start(t, participants)
    current = RoundInProgress(method, run, t, participants)
    builder = RequestBuilder(method, replace(fed, server=server), run, current.result)
    if method.task.secagg_threshold and participants:
        sums = secure_sums(method, builder, participants, send, on_progress)
        return current.finish(builder.fed, rng, quorum, sums)

    ordered = OrderedReplies(participants, current.declared)
    recipients = fed.known | set(clients)
    relays: list[Relay] = []
    need_full: list[str] = []  # clients that do not have the state that the server assumed
    for full, group in ((False, list(participants)), (True, need_full)):
        for client, answer in send(builder.requests(group, full)):
            reply = current.collect(client, answer, server, full=full)
            if reply is Kind.NEED_FULL:
                need_full.append(client)
                continue
            for name, parts in ordered.put(client, reply):
                received = current.accept(name, parts, server)
                if received is not None:
                    server = received
                    relays += relays_of(name, (p.part for p in parts), recipients)
            on_progress(current.result)
    return current.finish(replace(fed, server=server), rng, quorum, relays=relays)


class RoundInProgress:
    """A round that has started: the replies so far, and their sums.

    Args:
        method: The method.
        run: Id of the run.
        t: Number of the round.
        participants: Clients that are sent a request.
    """

    def __init__(self, method: Method, run: bytes, t: int, participants: Sequence[str]) -> None:
        self.method, self.run, self.participants = method, run, participants
        self.declared = method.reply_spec()
        self.result = RoundResult(t, requested=len(participants))
        self.total, self.norms = sum_for(method, self.declared), ReplyNorms(self.declared)

    def collect(
        self, client: str, answer: bytes | Failure, server: State, *, full: bool
    ) -> CheckedReply | Literal[Kind.NEED_FULL] | None:
        """Check a reply and record it in the result.

        Returns:
            The checked parts, None for a failure, or NEED_FULL if the client must be sent the full state.
        """
        result = self.result
        result.count_up(client, answer)
        reply = read_reply(answer, self.run, result.round, client, self.declared, server, full=full)
        if isinstance(reply, Failure):
            result.excluded[client] = reply.reason
            return None
        if reply is not Kind.NEED_FULL:
            result.replied.append(client)
        return reply

    def accept(self, client: str, reply: CheckedReply, server: State) -> State | None:
        """Put a checked reply into the server's state and the sums.

        Returns:
            The server's state with the reply; None if the method refuses it or fails on it. Then the client is
            excluded, and neither the state nor the sums contain any of its parts.
        """
        try:
            each = {p.part.name: p.part.array() for p in reply if self.declared[p.part.name].how == "each"}
            received = self.method.receive(server, client, each) if each else server
            floats = sum(4 * _elements(p.part, self.declared[p.part.name]) for p in reply)
            self.norms.add(client, reply)
            self.total.add(reply)
        except Exception as e:
            self.result.replied.remove(client)
            self.result.excluded[client] = f"reply refused: {reason_of(e)}"
            return None
        self.result.floats_up += floats
        return received

    def finish(
        self, fed: Federation, rng: Rng, quorum: int, sums: Sums | Failure | None = None, relays: Sequence[Relay] = ()
    ) -> tuple[Federation, RoundResult]:
        """Finish the round with its sums, or discard it and record why in `result.void`.

        Args:
            fed: The federation before the round, with all replies in the server's state.
            rng: Random stream of the round.
            quorum: Smallest number of replies for which the round is not discarded.
            sums: Sums of secure aggregation, or the reason why there are none; None: the sums of accepted replies.
            relays: Parts of these replies for other clients.

        Returns:
            The federation after the round, and the completed result.
        """
        result, participants = self.result, self.participants
        sums = self.total.sums(len(result.replied)) if sums is None else sums
        result.outliers = self.norms.outliers()
        result.replied.sort(key=list(participants).index)
        waiting = fed.undelivered(list(relays), result.replied)
        after = Federation(fed.round + 1, fed.server, fed.known | set(result.replied), waiting, fed.counted)
        if isinstance(sums, Failure):
            result.void = sums.reason
            return after, result
        if participants and len(result.replied) < quorum:
            result.void = f"{len(result.replied)} of {len(participants)} clients replied, quorum is {quorum}"
            return after, result
        try:
            finished = self.method.finish_round(fed.server, sums, rng.child("close"))
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


def _elements(part: Part, d: PartSpec) -> int:
    """Number of elements that a part encodes."""
    return d.numbers or (math.prod(part.shape) if d.unpack is None else d.size) or 0
