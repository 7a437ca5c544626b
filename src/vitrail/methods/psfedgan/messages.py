"""What a message of PS-FedGAN publishes, and its steps taken on a generator: by the server, or by whoever listens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.methods.base import MAX_WEIGHT, is_sendable
from vitrail.methods.psfedgan.local_training import LocalTrainer
from vitrail.nets.flat import from_vector, to_vector
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.psfedgan.algorithm import PsFedGan


@dataclass(frozen=True)
class Published:
    """Every step's D_u, a row each; the seed of all z_t and l_t; the labels that l_t is drawn from."""

    architecture: str
    discriminators: NDArray[np.float32]
    seed: int
    labels: Sequence[int]
    remembered: Array | None  # what the next message's D's are coded under

    def kept(self) -> State:
        """What is needed to read the next message."""
        return {"architecture": self.architecture, "published": self.remembered}


def read(run: PsFedGan, parts: Mapping[str, Array], before: State | None) -> Published:
    """A message, after what was kept of the one before it; nothing that is secret is needed."""
    name = bytes(parts["architecture"]).decode("ascii", "replace")
    labels, coding = run.labels_said(parts), run.coding(name)
    base = before["published"] if before is not None and before["architecture"] == name else None
    run.check_decoded_size(coding, parts["discriminators"])
    rows = coding.decode(parts["discriminators"], run.steps_per_message, base)
    if not is_sendable(rows):
        raise Malformed(f"its discriminators hold numbers beyond {MAX_WEIGHT:g}, or that are not finite")
    return Published(name, rows, int(parts["seed"][0]), labels, coding.remembered(rows, base))


def replay(run: PsFedGan, twin: LocalTrainer, said: Published) -> Iterator[tuple[float, Array]]:
    """Algorithm 1, server side: the steps of a message on a generator; gives its loss and what it is, at each."""
    with one_thread(), torch.enable_grad():
        D = run.discriminator(said.architecture).to(run.task.device).train()
        for t, row in enumerate(said.discriminators):
            made = twin.makes(*run.noise(said.seed, t, said.labels))
            yield twin.step(from_vector(D, row), made, run.g_loss), to_vector(twin.G)
