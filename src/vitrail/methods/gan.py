"""What the GAN methods share: noise in, pictures in batches, losses, Adam, and the generator as a product."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods.base import Model, Task
from vitrail.nets.dcgan import DcganGenerator
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

Batch = tuple[Tensor, Tensor | None]  # pictures, or noise, and labels where there are any
Nets = dict[str, nn.Module]
Optimizers = dict[str, torch.optim.Optimizer]


def latent(n: int, z: int, task: Task, draw: torch.Generator) -> Batch:
    """z ~ N(0, 1) and labels, all equally likely."""
    noise = torch.randn(n, z, generator=draw).to(task.device)
    return noise, torch.randint(task.classes, (n,), generator=draw).to(task.device) if task.classes else None


def pictures(data: Images, pick: NDArray[np.intp], task: Task) -> Batch:
    """Some of a client's pictures as floats, with their labels."""
    y = None if data.labels is None or not task.classes else torch.from_numpy(data.labels[pick])
    return to_float(data.pixels[pick]).to(task.device), None if y is None else y.to(task.device)


def epochs(data: Images, n: int, batch: int, task: Task, rng: Rng) -> Iterator[Batch]:
    """Every picture once an epoch, n times, in a new order each time."""
    order = rng.child("order").numpy()
    for _ in range(n):
        for pick in np.array_split(order.permutation(len(data)), -(-len(data) // batch)):
            yield pictures(data, pick, task)


def bce(logits: Tensor, target: Tensor) -> Tensor:
    """-log of the chance that D gives to what is so."""
    return F.binary_cross_entropy_with_logits(logits, target)


def d_loss(D: nn.Module, real: Batch, fake: Batch) -> Tensor:
    """-log D(x) - log(1 - D(G(z))), averaged."""
    one = torch.ones(len(real[0]), device=real[0].device)
    return bce(D(*real), one) + bce(D(fake[0].detach(), fake[1]), torch.zeros(len(fake[0]), device=one.device))


def g_loss(says: Tensor, form: Literal["nonsaturating", "minimax"]) -> Tensor:
    """-log D(G(z)), or the paper's log(1 - D(G(z)))."""
    real = torch.ones_like(says)
    return bce(says, real) if form == "nonsaturating" else -bce(says, 1 - real)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def adam(net: nn.Module, lr: float, betas: tuple[float, float], state: State | None) -> torch.optim.Adam:
    """A network's Adam at this run's rate, its averages new or as they were."""
    optimizer = torch.optim.Adam(net.parameters(), lr, betas)
    if state is not None:
        restore(optimizer, state)
    return optimizer


def restore(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Give an optimiser its averages back, as copies: torch would go on with the very same tensors."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": deepcopy(state)})


def init_or_warm_start(start: State | None, first: State) -> State:
    """The vectors to begin with: new ones, or those of an earlier run of the same networks."""
    if start is None:
        return first
    if any(name not in start or start[name].shape != first[name].shape for name in first):
        raise VitrailError("init_from= names a run with another width, picture size or labels; take one like this")
    return {name: start[name] for name in first}


def product(vector: NDArray[np.float32], task: Task, width: int, z: int) -> dict[str, Model]:
    """A generator's vector as what a run produces."""
    net = from_vector(DcganGenerator(task.shape, task.classes, width, z), vector)
    about = {"shape": list(task.shape), "classes": task.classes, "width": width, "z": z}
    return {"generator": Model("dcgan", {**about, "weights": net.state_dict()})}
