"""Eavesdroppers on a method whose server rebuilds secret generators from public messages: what each one has.

All of them read D_u, the seed of z_t and l_t, the labels and the settings, and repeat the server's steps on a generator
G_A. They differ in the start of G_A and in the messages that they receive. A1 and A2 are the attackers of PS-FedGAN
(Wijesinghe, Zhang, Ding; 2023, section 2.3): they have the secret G except one tensor, which is multiplied by r.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.methods.audit_hooks import Eavesdropping
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

R = (0.5, 0.9999)  # default factors: far from the true weights, and close to them
MISSED_EVERY = 10  # an eavesdropper with gaps misses one message in this many


@dataclass(frozen=True)
class EavesdropperKind:
    """What one eavesdropper knows and which messages it receives."""

    name: str  # also a label of its random stream
    granted: bool = True  # it has the secret G before its first step
    scaled: str = ""  # the tensor of G that is multiplied by r
    r: float = 1.0
    width: int = 0  # the width of G that it assumes; 0: the true one
    misses: range = range(0)  # the messages that it does not receive, counted from 0


def kinds(access: Eavesdropping, r: Sequence[float]) -> list[EavesdropperKind]:
    """List the eavesdroppers, from the one with most knowledge to the one with least."""
    found = [EavesdropperKind("with the seed")]
    found += [
        EavesdropperKind(f"{name}, r = {v!r}", scaled=tensor, r=v)
        for name, tensor in access.first_layer.items()
        for v in r
    ]
    other = max(1, access.width // 2)
    return [
        *found,
        EavesdropperKind("missed the first message", misses=range(1)),
        EavesdropperKind(f"missed one message in {MISSED_EVERY}", misses=range(1, sys.maxsize, MISSED_EVERY)),
        EavesdropperKind("without the seed", granted=False),
        EavesdropperKind(f"without the seed, width {other}", granted=False, width=other),
    ]


def check_r(r: Sequence[float]) -> list[float]:
    """Return factors without duplicates.

    Raises:
        VitrailError: If a factor is 1 in float32, and so changes nothing, or too large for float32.

    Examples:
        >>> check_r([0.5, 0.9999, 0.5])
        [0.5, 0.9999]
    """
    for v in r:
        if not abs(v) <= np.finfo(np.float32).max:
            raise VitrailError(f"--r {v!r}: not a factor of a float32 weight; give numbers such as 0.5,0.9999")
        if np.float32(v) == 1:
            raise VitrailError(
                f"--r {v!r} is 1 in float32, so this attacker would have the seed; that attacker is always included. "
                "Give an r of at most 0.9999999"
            )
    return list(dict.fromkeys(r))


class Eavesdropper:
    """One generator G_A, trained on the messages of one client.

    Args:
        kind: What this eavesdropper has.
        access: The method's hook.
        secret: The true G before its first step; used only if `kind.granted`.
        rng: Randomness of guessed seeds.
    """

    def __init__(self, kind: EavesdropperKind, access: Eavesdropping, secret: State, rng: Rng) -> None:
        self.kind, self.access = kind, access.with_width(kind.width) if kind.width else access
        self.losses: list[float] = []  # mean loss of G_A per message; nan for a missed one
        if not kind.granted:
            self.state = self.access.guessed_start(rng.child(kind.name).numpy().bytes(32))
        else:
            self.state = access.scaled(secret, kind.scaled, kind.r) if kind.scaled else secret

    def receive(self, message: Any) -> None:
        """Repeat a message's steps on G_A, unless this eavesdropper misses the message."""
        loss = math.nan
        if len(self.losses) not in self.kind.misses:
            self.state, loss = self.access.replay(self.state, message)
        self.losses.append(loss)
