"""SDA-FL: Federated Learning with GAN-based Data Synthesis for Non-IID Clients, Li, Shao, Mao, Wang, Zhang; 2022.

Before anything else every client trains a GAN of its own, without labels, and shares pictures that it makes. Before
each mean these get pseudo labels where a model is sure enough of them; clients then train on their own pictures and on
everybody's labelled ones, so that all see nearly the same classes.

What differs from the paper: a client's made pictures are labelled by that client's model just before it is averaged, on
the client, so that labels travel and no single model is needed; networks are those of psfedgan and fedavg here.
Its GANs are not private: the paper's own results need an unlimited budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import LAST_COUNTED, Broadcast, PartSpec, Reply, ServerMessage, Sums
from vitrail.methods.baselines import shared_pool as pool
from vitrail.methods.baselines.classification import FederatedClassifier, descend
from vitrail.methods.fakes import pack
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.feature_moments import to_float
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

UNSURE = 255  # the label of a picture that no model is sure of
CODECS = {"pictures": "bytes"}


@dataclass(frozen=True)
class SdaFl(FederatedClassifier):
    """SDA-FL's settings."""

    shared_images: Annotated[
        int, Field(ge=1, le=100_000, description="pictures that a client's GAN makes and shares")
    ] = 200
    pseudo_label_threshold: Annotated[
        float, Field(gt=0, le=1, description="softmax from which a pseudo label counts")
    ] = 0.95
    gan_steps: Annotated[int, Field(ge=1, description="steps of a client's GAN, once, before it shares")] = 800
    gan_batch_size: Annotated[int, Field(ge=2, description="pictures in a step of the GAN")] = 16
    width: Annotated[int, Field(ge=4, le=512, description="the GAN's channels nearest to the picture")] = 16
    latent_dim: Annotated[int, Field(ge=1, le=4096, description="noise dimensions")] = 100
    gan_lr: Annotated[float, Field(gt=0, le=1e3, description="G's learning rate, by Adam; D's is half")] = 2e-3

    @property
    def needs_ack(self) -> bool:
        return True

    def reply_spec(self) -> Mapping[str, PartSpec]:
        if self.task.classes >= UNSURE:
            raise VitrailError(f"sdafl: {self.task.classes} classes; pseudo labels are for fewer than {UNSURE}")
        pixels = self.shared_images * int(np.prod(self.task.shape))
        shared = {
            "pictures": PartSpec(
                "each", "bytes", None, limit_bytes=pixels, shape=(self.shared_images, *self.task.shape)
            )
        }
        return {**super().reply_spec(), **shared, "labels": PartSpec("each", "bytes", self.shared_images)}

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        return {**super().server_init(rng, data, start), "shares": {}, "labels": {}, "pool": pool.gathered({})}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """The network, today's pseudo labels, and all made pictures to a client that lacks them."""
        told: dict[str, tuple[str, Array]] = {"network": ("float32", server["network"])}
        if server["pool"]["parts"]:
            told["labels"] = ("bytes", np.concatenate([server["labels"][c] for c in server["pool"]["clients"]]))
        return pool.outgoing(told, server["pool"], CODECS, full)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """A client's made pictures, once, and their labels by its own model."""
        sent, labels = parts["pictures"], parts["labels"]
        if ((labels >= self.task.classes) & (labels != UNSURE)).any():
            raise Malformed("pseudo labels of classes that there are not")
        after = {**server, "labels": {**server["labels"], client: labels}}
        if not sent.size:
            if client not in server["shares"]:
                raise Malformed("labels of pictures that it never shared")
            return after
        if sent.shape != (self.shared_images, *self.task.shape):
            raise Malformed(f"pictures of shape {sent.shape} are not {self.shared_images} pictures")
        share = {"pictures": sent}
        return {**after, "shares": {**server["shares"], client: share}}

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """FedAvg's mean, and the pool as it now is."""
        return {**super().finish_round(server, sums, rng), "pool": pool.gathered(server["shares"])}

    # -- client ---------------------------------------------------------------------------------------------------

    def synthesised(self, data: Images, rng: Rng) -> Array:
        """Pictures of a GAN that was trained on this client's, without labels."""
        task, draw = replace(self.task, classes=0), rng.child("noise").torch()
        G, D = (
            DcganGenerator(task.shape, 0, self.width, self.latent_dim),
            DcganDiscriminator(task.shape, 0, self.width, "group"),
        )
        nets = [initialise(net, rng.child(name).torch()).to(task.device) for name, net in (("g", G), ("d", D))]
        opt_g, opt_d = (
            gan.adam(n, r, (0.5, 0.999), None) for n, r in zip(nets, (self.gan_lr, self.gan_lr / 2), strict=True)
        )
        picks = rng.child("real").numpy()
        with one_thread(), torch.enable_grad():
            for _ in range(self.gan_steps):
                z, _ = gan.latent(self.gan_batch_size, self.latent_dim, task, draw)
                pick = picks.choice(len(data), min(self.gan_batch_size, len(data)), replace=False)
                fake = G(z)
                gan.step(opt_d, gan.d_loss(D, gan.pictures(data, pick, task), (fake, None)))
                gan.step(opt_g, gan.g_loss(D(fake), "nonsaturating"))
        G.eval()
        with torch.no_grad():
            sizes = [min(256, self.shared_images - at) for at in range(0, self.shared_images, 256)]
            made = [pack(G(gan.latent(n, self.latent_dim, task, draw)[0]).cpu(), "uint8") for n in sizes]
        return np.concatenate(made)

    @torch.no_grad()
    def labelled(self, C: nn.Module, pictures: Array) -> Array:
        """Pseudo labels by a model, where it is sure."""
        C.eval()
        shown = (to_float(pictures[at : at + 256]).to(self.task.device) for at in range(0, len(pictures), 256))
        sure, label = torch.cat([C(x).softmax(1) for x in shown]).max(1)
        return torch.where(sure >= self.pseudo_label_threshold, label, UNSURE).to(torch.uint8).cpu().numpy()

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Local steps on own and made pictures; then labels for the made ones of its own."""
        own = state["own"] if state else self.synthesised(data, rng.child("gan"))
        held = message.parts["pictures"] if "pictures" in message.parts else state.get("pool", np.empty(0, np.uint8))
        said = message.parts.get("labels", np.empty(0, np.uint8))
        known = np.flatnonzero(said != UNSURE)
        more = Images(held.reshape(-1, *self.task.shape)[known], said[known].astype(np.int64)) if len(known) else None
        C = self.opened(message.parts["network"])

        def loss(x: Tensor, y: Tensor) -> Tensor:
            if others is not None:
                x_more, y_more = next(others)
                x, y = torch.cat([x, x_more]), y if y_more is None else torch.cat([y, y_more])
            return F.cross_entropy(C(x), y)

        device = self.task.device
        others = self.draws(more, self.local_steps, rng.child("made"), device) if more is not None else None
        value = descend(C, self.draws(data, self.local_steps, rng, device), loss, self.rate(message.round), rng)
        has = state and LAST_COUNTED in message.parts  # the server has what this client made
        sent = np.empty(0, np.uint8) if has else own
        reply = self.reply(C, message, data, value, pictures=sent, labels=self.labelled(C, own))
        holds = pool.name_of({"pictures": held} if held.size else {})
        return {"own": own, "pool": held}, Reply(reply.parts, holds=holds)
