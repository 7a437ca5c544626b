"""KLMS (Isik et al. 2024, "Adaptive compression in federated learning via side information"; Havasi et al. 2019).

Both sides draw the same candidates for each block of the mask from the common prior θ_t; the client sends the index of
one, chosen with weight q/p, so that it is close to a draw from θ^k. The rate is fixed: bits / block per element. If θ^k
differs from θ_t by more, the distribution of the chosen mask is only approximate; its decoding is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.utils.errors import Malformed
from vitrail.wire.codecs import BY_NAME, Array
from vitrail.wire.scores import Scores, theta

Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Klms:
    """A coder of masks whose prior scores both sides have.

    Args:
        bits: Bits per block.
        block: Elements per block.

    Examples:
        >>> prior = np.zeros(640, np.int16)
        >>> coder = Klms(bits=6, block=64)
        >>> payload = coder.encode(np.full(640, 3.0), prior, 7, np.random.default_rng(0))
        >>> len(payload), bool(coder.decode(payload, prior, 7).mean() > 0.55)
        (8, True)
    """

    bits: int
    block: int

    def encode(self, s: NDArray[np.floating], prior: Scores, seed: int, own: np.random.Generator) -> NDArray[np.uint8]:
        """Choose a candidate per block, approximately distributed as Bern(sigmoid(s)).

        Args:
            s: Scores of the client.
            prior: Scores that both sides have.
            seed: Seed of the common candidates.
            own: The client's private randomness.

        Returns:
            The packed indices of the candidates.
        """
        p = _prior(prior)
        ratio = (s - np.log(p / (256 - p))).astype(np.float32)  # log q/p of a one minus log q/p of a zero
        blocks = -(-len(prior) // self.block)
        best, number = np.full(blocks, -np.inf, np.float32), np.zeros(blocks, np.uint32)
        for i, candidate in enumerate(self._candidates(p, seed)):
            weight = self._by_block(np.where(candidate, ratio, np.float32(0))).sum(1)
            weight += own.gumbel(size=blocks).astype(np.float32)  # Gumbel trick: the maximum is a draw by weight
            better = weight > best
            best[better], number[better] = weight[better], i
        return np.frombuffer(BY_NAME[f"u{self.bits}"].encode(number), np.uint8)

    def decode(self, payload: Array, prior: Scores, seed: int) -> NDArray[np.uint8]:
        """Return the chosen mask; raise Malformed if the payload has another length."""
        blocks = -(-len(prior) // self.block)
        number = BY_NAME[f"u{self.bits}"].decode(payload.tobytes(), (blocks,))
        mask = np.zeros((blocks, self.block), np.uint8)
        for i, candidate in enumerate(self._candidates(_prior(prior), seed)):
            chosen = number == i
            mask[chosen] = self._by_block(candidate)[chosen]
        return mask.reshape(-1)[: len(prior)]

    def _candidates(self, p: NDArray[np.int32], seed: int) -> Iterator[Bits]:
        """Draw masks from the prior, from the raw bytes of a counter: equal on every machine."""
        narrow = p.astype(np.uint8)
        for i in range(1 << self.bits):
            raw = np.random.Philox(key=[seed, i]).random_raw(-(-len(p) // 8)).astype("<u8")
            yield raw.view(np.uint8)[: len(p)] < narrow

    def _by_block(self, a: Array) -> Array:
        return np.pad(a, (0, -len(a) % self.block)).reshape(-1, self.block)


def _prior(s: Scores) -> NDArray[np.int32]:
    """Return θ in integer units of 1/256, never 0 or 1."""
    return np.clip(np.rint(256 * theta(s)), 1, 255).astype(np.int32)


def with_stream(stream: int, payload: Array) -> NDArray[np.uint8]:
    """Prepend the number of the candidates' random stream to a payload."""
    return np.concatenate([np.frombuffer(np.uint32(stream).astype("<u4").tobytes(), np.uint8), payload])


def stream_of(payload: Array) -> tuple[int, Array]:
    """Split a payload into the number of the stream and the rest."""
    if len(payload) < 4:
        raise Malformed("a coded mask must start with the number of its stream, 4 bytes")
    return int.from_bytes(payload[:4].tobytes(), "little"), payload[4:]
