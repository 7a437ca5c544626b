"""GAN training shared by methods: noise, batches of images, losses, Adam, DP-SGD of D, and the exported generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods.base import Model, PartSpec, Sums, Task
from vitrail.methods.private import PrivateMethod
from vitrail.nets.dcgan import DcganGenerator
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector
from vitrail.privacy import dpsgd
from vitrail.privacy.noise import Source
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State

Batch = tuple[Tensor, Tensor | None]  # images or noise, and labels if the run has classes
Nets = dict[str, Any]  # networks, each of its own class
Optimizers = dict[str, torch.optim.Optimizer]
LOSSES = dict.fromkeys(("metric.loss_g", "metric.loss_d"), PartSpec("sum", "float32", 1))  # as parts of a reply


def sample_latent(n: int, z: int, task: Task, draw: torch.Generator) -> Batch:
    """Return n noise vectors z ~ N(0, 1) and, with classes, uniform labels.

    Args:
        n: Number of vectors.
        z: Their dimension.
        task: Gives the number of classes and the device.
        draw: Source of randomness.
    """
    noise = torch.randn(n, z, generator=draw).to(task.device)
    return noise, torch.randint(task.classes, (n,), generator=draw).to(task.device) if task.classes else None


def image_batch(data: Images, pick: NDArray[np.intp], task: Task) -> Batch:
    """Return the images with these indices as floats in [-1, 1], and their labels."""
    y = None if data.labels is None or not task.classes else torch.from_numpy(data.labels[pick])
    return to_float(data.pixels[pick]).to(task.device), None if y is None else y.to(task.device)


def epochs(data: Images, n: int, batch: int, task: Task, rng: Rng) -> Iterator[Batch]:
    """Yield batches of all images, in a new order in each of n epochs.

    Args:
        data: The client's images.
        n: Number of epochs.
        batch: Largest batch size.
        task: Gives the number of classes and the device.
        rng: Source of randomness.
    """
    order = rng.child("order").numpy()
    for _ in range(n):
        for pick in np.array_split(order.permutation(len(data)), -(-len(data) // batch)):
            yield image_batch(data, pick, task)


def bce(logits: Tensor, target: Tensor) -> Tensor:
    """Return the binary cross-entropy of D's logits, averaged."""
    return F.binary_cross_entropy_with_logits(logits, target)


def d_loss(D: nn.Module, real: Batch, fake: Batch) -> Tensor:
    """Return -log D(x) - log(1 - D(G(z))), averaged."""
    one = torch.ones(len(real[0]), device=real[0].device)
    return bce(D(*real), one) + bce(D(fake[0].detach(), fake[1]), torch.zeros(len(fake[0]), device=one.device))


def g_loss(logits: Tensor, form: Literal["nonsaturating", "minimax"]) -> Tensor:
    """Return -log D(G(z)), or log(1 - D(G(z))) for "minimax", averaged; `logits` are D's of the fakes."""
    real = torch.ones_like(logits)
    return bce(logits, real) if form == "nonsaturating" else -bce(logits, 1 - real)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step on a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def adam(net: nn.Module, lr: float, betas: tuple[float, float], state: State | None) -> torch.optim.Adam:
    """Return the Adam of a network; `state` is its saved state, None for a new one."""
    optimizer = torch.optim.Adam(net.parameters(), lr, betas)
    if state is not None:
        load_optimizer_state(optimizer, state)
    return optimizer


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Load an optimizer's saved state as copies: torch would modify the given tensors."""
    optimizer.load_state_dict({**optimizer.state_dict(), "state": deepcopy(state)})


def init_or_warm_start(start: State | None, first: State) -> State:
    """Return the initial vectors: new ones, or those of an earlier run of the same networks.

    Args:
        start: Server state of the earlier run; None without init_from.
        first: New vectors by name.

    Raises:
        VitrailError: The earlier run has other networks.
    """
    if start is None:
        return first
    if any(name not in start or start[name].shape != first[name].shape for name in first):
        raise VitrailError(
            "init_from=: that run has another width, image size or labels; choose a run with the same networks"
        )
    return {name: start[name] for name in first}


def weighted_mean(sums: Sums, name: str) -> NDArray[np.float64]:
    """Return a sum over the sum of weights; zero total weight gives NaN, and the round is discarded."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums.values[name] / sums.values["weight"][0]


def generator_model(vector: NDArray[np.float32], task: Task, width: int, z: int) -> dict[str, Model]:
    """Return a generator's vector as the model that the run exports."""
    net = from_vector(DcganGenerator(task.shape, task.classes, width, z), vector)
    header = {"shape": list(task.shape), "classes": task.classes, "width": width, "z": z}
    return {"generator": Model("dcgan", {**header, "weights": net.state_dict()})}


class PrivateGan(PrivateMethod):
    """A method whose clients train D with DP-SGD (`privacy=dp-sgd`): the settings used here, and one step of D."""

    batch_size: int
    sample_rate: float
    max_grad_norm: float

    def private_step(
        self, D: nn.Module, optimizer: torch.optim.Optimizer, data: Images, fakes: Batch, source: Source
    ) -> None:
        """Take one step of D on noisy gradients of real images, and on those of fakes."""
        assert self.mechanism is not None  # noqa: S101
        real = image_batch(data, dpsgd.poisson_sample(source, len(data), self.sample_rate), self.task)
        clip, sigma = self.max_grad_norm, self.mechanism.sigma
        total = dpsgd.private_sum(D, lambda D, x, y: F.softplus(-D(x, y)), real, clip, sigma, source)  # -log D(x)
        total += dpsgd.clipped_sum(D, lambda D, x, y: F.softplus(D(x, y)), fakes, clip)  # -log(1 - D(x))
        dpsgd.set_gradient(D, total / self.batch_size)  # a public constant: the number of images drawn is private
        optimizer.step()


class GeneratorOnServer:
    """A method whose server trains one DCGAN generator G and exports it; clients have none."""

    task: Task
    width: int
    latent_dim: int

    def generator(self) -> DcganGenerator:
        """Return G, not initialized."""
        return DcganGenerator(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def export_models(self, server: State, client: State | None = None) -> Mapping[str, Model]:  # noqa: ARG002
        """Return the server's generator."""
        return generator_model(server["generator"], self.task, self.width, self.latent_dim)
