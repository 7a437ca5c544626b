"""PRISM's messages: the scores sent to clients and the masks sent back, coded with what both sides know.

A client that took part in the last round has s_{t-1}, so it is sent only the sum of the masks (and MADA's λ); any other
client is sent all of s_t. The first scores follow from the seed. Masks are coded with θ_t as the prior.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.methods.base import Broadcast, PartSpec, ServerMessage
from vitrail.utils.errors import Malformed
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire import scores
from vitrail.wire.codecs import Array
from vitrail.wire.klms import Klms, stream_of, with_stream
from vitrail.wire.message import NO_BASE
from vitrail.wire.range_coder import decode, decode_values, encode, encode_values
from vitrail.wire.scores import Scores

if TYPE_CHECKING:
    from vitrail.methods.prism.algorithm import Prism


def as_int(value: Any) -> int:
    """Return an integer that may be in an array of one element."""
    return int(np.ravel(value)[0])


# -- Download: s_t --------------------------------------------------------------------------------------------------


def has_last_scores(server: State, client: str) -> bool:
    """Return whether a client took part in the last round and so has s_{t-1}."""
    return bool(server["told"].get(client) == server["closed"] - 1)


def encode_scores(p: Prism, server: State, client: str, full: bool) -> Broadcast:
    """Return the request for one client; `full` if it lost its state."""
    parts: dict[str, tuple[str, Array]] = {}
    parts |= {name: ("seed", np.array([server[name]], np.uint64)) for name in ("seed", "draws")}
    parts["stratum"] = ("int32", np.array([server["who"].index(client), len(server["who"])], np.int32))
    base = NO_BASE
    if server["closed"] and has_last_scores(server, client) and not full:
        base = server["base"]
        parts["step"] = ("int32", np.array([server["clients"], server["lambda"]], np.int32))
        parts |= {name: ("bytes", server[name]) for name in ("counts", "changes") if name in server}
    elif server["closed"]:
        parts["full"] = ("bytes", server["full"] if "full" in server else encode_values(server["s"]))
    masked, scored = p.elements
    return Broadcast(parts, base, {"counts": masked, "changes": scored, "full": p.size})


def decode_scores(p: Prism, state: State, parts: Mapping[str, Array]) -> Scores:
    """Return s_t from a request's parts and the client's state."""
    if "full" in parts:
        return decode_values(parts["full"], p.size)
    if "step" not in parts:
        return p.initial_scores(as_int(parts["seed"]))
    clients, lam = map(int, parts["step"])
    s_before: Scores = state["s"]
    s_agg, (masked, scored) = s_before.copy(), p.split
    if "counts" in parts:
        known = scores.levels(s_before[masked], clients + 1)
        s_agg[masked] = scores.from_counts(decode(parts["counts"], known, clients + 1), clients, p.theta_clamp)
    s = scores.step(s_before, s_agg, lam)
    if "changes" in parts:
        s[scored] = s_before[scored] + decode_values(parts["changes"], p.elements[1])
    return s


def encode_step(p: Prism, s_t: Scores, s: Scores, counts: NDArray[np.int32] | None, clients: int) -> State:
    """Return what turns s_t into s_{t+1}: the sum of the masks, and the change of the score layers."""
    (masked, scored), step = p.split, {}
    if counts is not None:
        known = scores.levels(s_t[masked], clients + 1)
        step["counts"] = encode(counts, known, clients + 1, packed=p.coding == "packed")
    if p.elements[1]:
        step["changes"] = encode_values(s[scored].astype(np.int32) - s_t[scored])
    return step


# -- Upload: a mask, and scores -------------------------------------------------------------------------------------


def reply_spec(p: Prism) -> Mapping[str, PartSpec]:
    """Return the parts of a client's reply."""
    masked, scored = p.elements
    parts = {"metric.loss": PartSpec("sum", "float32", 1, limit=2.0**40)} if p.sends_loss else {}
    if masked and p.task.secagg_threshold:  # plain bits: a sum of coded masks could not be decoded
        parts["mask"] = PartSpec("sum", "u1", masked, limit=1, least=0)
    elif masked:
        parts["mask"] = PartSpec("sum", "bytes", masked, limit=1.0, least=0.0, unpack=partial(decode_mask, p))
    if scored:
        parts["scores"] = PartSpec("sum", p.score_codec, scored, limit=32.0)
    return parts


def encode_mask(p: Prism, mask: Array, prior: Scores) -> Array:
    """Code a mask with the probabilities of `prior`; with secure aggregation it stays as it is."""
    return mask if p.task.secagg_threshold else encode(mask, scores.levels(prior), 2, packed=p.coding == "packed")


def encode_candidates(p: Prism, s: NDArray[Any], prior: Scores, message: ServerMessage, rng: Rng) -> Array:
    """Code a sample of Bern(Sigmoid(s)) as the indices of random candidates that the server draws too (KLMS)."""
    k, draws = as_int(message.parts["stratum"]), as_int(message.parts["draws"])
    coder, own = Klms(p.klms_bits, p.klms_block), rng.child("upload").numpy()
    return with_stream(k, coder.encode(s, prior, _common_seed(draws, k), own))


def decode_mask(p: Prism, server: State, coded: Array) -> Array:
    """Return a client's mask, decoded with the s_t of the server's state."""
    prior = server["s"][p.split[0]]
    if p.coding != "klms":
        return decode(coded, scores.levels(prior), 2)
    k, chosen = stream_of(coded)
    if k >= len(server["who"]):
        raise Malformed(f"stream {k} of {len(server['who'])}")
    return Klms(p.klms_bits, p.klms_block).decode(chosen, prior, _common_seed(server["draws"], k))


def _common_seed(draws: int, k: int) -> int:
    """Return the seed that the k-th client of a round shares with the server."""
    return Rng((draws,)).child("klms", k).seed()
