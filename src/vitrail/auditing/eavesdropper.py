"""Who listens to a user of PS-FedGAN: what each is granted beside what everybody can read, and what grows from it.

All hear D_u, the seed of z_t and l_t, the labels and the settings, and step as the server does. They differ in where
their G_A begins and in which messages they hear. The attackers of the paper (section 2.3) have the secret G but for
its first layer. A1 has r times its weight. A2 has r times its bias: here that layer has none, and BatchNorm's, the
first there is, begins at 0, which no r changes. What is added in the first layer beside z's part is that of the label,
W e(l), a bias for each label; so A2 has r times the embedding e.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitrail.methods.psfedgan import twin as twins
from vitrail.methods.psfedgan.algorithm import PsFedGan
from vitrail.methods.psfedgan.messages import Published, replay
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

R = (0.5, 0.9999)  # where none are given: far off, and nearly right
ONE_IN = 10  # messages, for the one who misses some
WEIGHT, EMBEDDING = "layers.0.weight", "embed.weight"


@dataclass(frozen=True)
class Kind:
    """What one eavesdropper has and lacks."""

    name: str
    granted: bool = True  # the secret G before its first step
    scaled: str = ""  # the tensor of it that is multiplied by r
    r: float = 1.0
    width: int = 0  # of G, where it takes G for another one
    misses_first: bool = False
    misses_some: bool = False

    def hears(self, n: int) -> bool:
        """Whether it hears the n-th message, from 0."""
        return not (self.misses_first and n == 0) and not (self.misses_some and n % ONE_IN == 1)


def kinds(run: PsFedGan, r: Sequence[float]) -> list[Kind]:
    """From the one who has everything to the one who has least."""
    found = [Kind("with the seed"), *(Kind(f"A1, r = {v!r}", scaled=WEIGHT, r=v) for v in r)]
    if run.task.classes:
        found += [Kind(f"A2, r = {v!r}", scaled=EMBEDDING, r=v) for v in r]
    other = max(1, run.width // 2)
    return [
        *found,
        Kind("missed the first message", misses_first=True),
        Kind(f"missed one message in {ONE_IN}", misses_some=True),
        Kind("without the seed", granted=False),
        Kind(f"without the seed, width {other}", granted=False, width=other),
    ]


def check_r(r: Sequence[float]) -> list[float]:
    """Factors that change what they multiply.

    >>> check_r([0.5, 0.9999])
    [0.5, 0.9999]
    """
    for v in r:
        if not abs(v) <= np.finfo(np.float32).max:
            raise VitrailError(f"--r {v!r}: no weight can be multiplied by it; give numbers such as 0.5,0.9999")
        if np.float32(v) == 1:
            raise VitrailError(
                f"--r {v!r} is 1 in float32, so this attacker has the seed, and such a one is always among them; "
                "give an r of at most 0.9999999"
            )
    return list(dict.fromkeys(r))


def begin(kind: Kind, run: PsFedGan, secret: State | None, guess: bytes) -> State:
    """G_A before its first step: the secret one with this kind's flaw, or one from a seed that it makes up."""
    G = run.generator()
    if secret is None:
        return twins.begin(G, twins.Secret(guess, ""), 0)
    from_vector(G, secret["generator"])
    if kind.scaled:
        G.get_parameter(kind.scaled).data.mul_(kind.r)
    return {**secret, "generator": to_vector(G)}


class Eavesdropper:
    """One G_A, grown along with one user's messages; `secret` is the true start, for those who are granted it."""

    def __init__(self, kind: Kind, run: PsFedGan, secret: State | None, rng: Rng) -> None:
        self.kind, self.run = kind, replace(run, width=kind.width) if kind.width else run
        self.twin = self.run.learner(begin(kind, self.run, secret, rng.child(kind.name).numpy().bytes(32)))
        self.losses: list[float] = []  # of G_A, the mean of each message's steps; nan where it missed one

    def hear(self, said: Published) -> None:
        """Take a message's steps."""
        heard = self.kind.hears(len(self.losses))
        losses = [loss for loss, _ in replay(self.run, self.twin, said)] if heard else [math.nan]
        self.losses.append(float(np.mean(losses)))
