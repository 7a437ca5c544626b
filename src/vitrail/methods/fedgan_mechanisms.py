"""Privacy mechanisms of the federated GAN: each replaces some steps of Algorithm 1 (fedgan.py).

dp-sgd: only D is trained on images, so only its gradients on them get noise, image by image; its gradients on fakes,
and all of G's, depend on noisy values alone. Fakes' gradients are clipped too, or D would learn mostly from them.
Several steps of D per step of G compensate for the noise (Bie, Kamath, Zhang; 2023).

dp-fedavg: clients train as without privacy and send the change of the trainable weights. BatchNorm's statistics are
not sent: D never uses them, and the server computes G's from random inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import clip_weights
from vitrail.methods.messages import NUM_CLIENTS, PartSpec, Sums
from vitrail.nets.flat import from_vector, on_meta, to_vector, trainable_mask
from vitrail.nets.masked import recalibrate
from vitrail.privacy import dpfedavg, dpsgd
from vitrail.privacy.mechanism import Mechanism
from vitrail.utils.errors import VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

if TYPE_CHECKING:
    from vitrail.methods.fedgan import FedGan


# -- dp-sgd ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DpSgd:
    """Clients train D with noise, and send the networks alone: the number of images and the losses are private."""

    run: FedGan
    auto_norm: ClassVar[Literal["batch", "group"]] = "group"

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]:
        """Lines 4 to 11: take dp_steps private steps of D, and a step of G after every d_steps of them."""
        run, G, D = self.run, nets["generator"], nets["discriminator"]
        source, draw = run.source(rng.child("noise")), rng.child("training").torch()
        for t in range(run.dp_steps):
            z, y_fake = gan.sample_latent(run.batch_size, run.latent_dim, run.task, draw)
            with torch.no_grad():
                fake = G(z, y_fake)
            run.private_step(D, optimizers["discriminator"], data, (fake, y_fake), source)
            if (t + 1) % run.d_steps == 0:
                z, y_fake = gan.sample_latent(run.batch_size, run.latent_dim, run.task, draw)
                gan.step(optimizers["generator"], gan.g_loss(D(G(z, y_fake), y_fake), run.g_loss))
        return np.empty(0)

    def reply(self, w_k: Mapping[str, Array], *_: Any) -> dict[str, Array]:
        """Return the networks; every client has weight 1."""
        return {name: clip_weights(w_k[name]) for name in self.run.uploaded}

    def average(self, sums: Sums, *_: Any) -> State:
        """Lines 12 to 14, with the number of clients as the total weight."""
        return self.run.average(replace(sums, values={**sums.values, "weight": np.array([sums.clients])}))

    def specs(self, nets: gan.Nets) -> dict[str, PartSpec]:
        """Return the parts of `reply`."""
        return {n: replace(self.run.specs(nets)[n], over=NUM_CLIENTS) for n in self.run.uploaded}

    def mechanism(self) -> Mechanism:
        """Return the mechanism at a noise multiplier of 1."""
        run = self.run
        dpsgd.check(on_meta(run.nets)["discriminator"])
        leaves = f"{' and '.join(run.uploaded)}, trained with noised gradients"
        return dpsgd.mechanism(run.max_grad_norm, run.sample_rate, run.dp_steps, leaves)


# -- dp-fedavg ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DpFedAvg:
    """Clients send clipped updates, and the server adds noise to their sum."""

    run: FedGan
    auto_norm: ClassVar[Literal["batch", "group"]] = "group"

    def train(self, nets: gan.Nets, optimizers: gan.Optimizers, data: Images, rng: Rng) -> NDArray[Any]:
        """Lines 4 to 11, as without privacy."""
        return self.run.train(nets, optimizers, data, rng)

    def reply(self, _w: Any, _n: int, _losses: Any, nets: gan.Nets, before: Mapping[str, Array]) -> dict[str, Array]:
        """Return the change of the trainable weights, clipped; a change that is not finite becomes zeros."""
        changes = {name: to_vector(nets[name]) - before[name] for name in self.run.synced}
        update = {name: change[trainable_mask(nets[name])] for name, change in changes.items()}
        return dpfedavg.clip_update(update, self.run.max_grad_norm, self.run.wire_dtype)

    def average(self, sums: Sums, server: State, rng: Rng) -> State:
        """Lines 12 to 14: add the mean of the noisy sum; compute BatchNorm's statistics of G from random inputs."""
        run = self.run
        assert run.mechanism is not None  # noqa: S101
        noise = run.mechanism.sigma, run.source(rng.child("noise"))
        mean = dpfedavg.mean_update(sums.values, sums.clients, run.synced, noise)
        nets = {name: net for name, net in run.nets().items() if name in run.synced}
        for name, net in nets.items():
            vector = np.array(server[name], np.float64)
            vector[trainable_mask(net)] += mean[name]
            from_vector(net, vector.astype(np.float32))
        draw = rng.child("statistics").torch()
        batches = [gan.sample_latent(64, run.latent_dim, run.task, draw) for _ in range(8)]
        recalibrate(nets["generator"], [(z,) if y is None else (z, y) for z, y in batches])
        return {name: to_vector(net) for name, net in nets.items()}

    def specs(self, nets: gan.Nets) -> dict[str, PartSpec]:
        """Return the parts of `reply`."""
        run, size = self.run, {name: int(trainable_mask(nets[name]).sum()) for name in self.run.synced}
        return {name: PartSpec("sum", run.wire_dtype, n, run.max_grad_norm) for name, n in size.items()}

    def mechanism(self) -> Mechanism:
        """Return the mechanism at a noise multiplier of 1."""
        run = self.run
        if "generator" not in run.synced:
            raise VitrailError(
                f"privacy=dp-fedavg with sync={run.sync}: an update is the change of a network that was received, and "
                "here clients never take G back; use sync=d&g or sync=g, or privacy=dp-sgd"
            )
        return dpfedavg.mechanism(run.max_grad_norm, " and ".join(run.synced), bool(run.task.secagg_threshold))


MECHANISMS: dict[str, type[DpSgd | DpFedAvg]] = {"dp-sgd": DpSgd, "dp-fedavg": DpFedAvg}
