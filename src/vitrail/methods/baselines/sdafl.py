"""SDA-FL for classifiers: clients share images of their own GANs.

Li, Shao, Mao, Wang, Zhang: Federated Learning with GAN-based Data Synthesis for Non-IID Clients; 2022. First, each
client trains a GAN without labels and shares generated images. Before each average they get pseudo labels, where a
model is confident enough. Clients then train on their own images and on all pseudo-labelled ones, so that all see
nearly the same classes.

Differences from the paper: those in classification.py; a client's generated images are labelled by that client's model,
on the client, so that only labels are sent each round; the GAN's networks are those of psfedgan. The GANs are not
private: the paper's results need an unlimited budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.dataset import Images
from vitrail.methods import gan
from vitrail.methods.base import setting
from vitrail.methods.baselines import shared_pool
from vitrail.methods.baselines.classification import FederatedClassifier
from vitrail.methods.fakes import pack
from vitrail.methods.messages import LAST_COUNTED, Broadcast, PartSpec, Reply, ServerMessage, Sums
from vitrail.nets.dcgan import DcganDiscriminator, DcganGenerator, initialise
from vitrail.nets.feature_moments import to_float
from vitrail.utils.determinism import one_thread
from vitrail.utils.errors import Malformed, VitrailError
from vitrail.utils.rng import Rng
from vitrail.utils.state import State
from vitrail.wire.codecs import Array

UNSURE = 255  # pseudo label of an image for which the model is not confident
CODECS = {"pictures": "bytes"}


@dataclass(frozen=True)
class SdaFl(FederatedClassifier):
    """SDA-FL: FedAvg, with pseudo-labelled images of all clients' GANs."""

    shared_images: int = setting(200, "number of generated images that a client shares", ge=1, le=100_000)
    pseudo_label_threshold: float = setting(0.95, "smallest softmax probability of a pseudo label", gt=0, le=1)
    gan_steps: int = setting(800, "training steps of a client's GAN, in its first round", ge=1)
    gan_batch_size: int = setting(16, "images per training step of the GAN", ge=2)
    width: int = setting(16, "channels of the GAN's layers next to the image", ge=4, le=512)
    latent_dim: int = setting(100, "dimension of the GAN's noise z", ge=1, le=4096)
    gan_lr: float = setting(2e-3, "learning rate of G (Adam); D's is half of it", gt=0, le=1e3)

    needs_ack: ClassVar[bool] = True

    def reply_spec(self) -> Mapping[str, PartSpec]:
        if self.task.classes >= UNSURE:
            raise VitrailError(f"sdafl: {self.task.classes} classes; pseudo labels need fewer than {UNSURE}")
        shape = (self.shared_images, *self.task.shape)
        images = PartSpec("each", CODECS["pictures"], None, limit_bytes=int(np.prod(shape)), shape=shape)
        labels = PartSpec("each", "bytes", self.shared_images)
        return {**super().reply_spec(), "pictures": images, "labels": labels}

    # -- client ---------------------------------------------------------------------------------------------------

    def generate_images(self, data: Images, rng: Rng) -> Array:
        """Train a GAN on the client's images, without labels, and return generated images."""
        task, draw = replace(self.task, classes=0), rng.child("noise").torch()
        G = DcganGenerator(task.shape, 0, self.width, self.latent_dim)
        D = DcganDiscriminator(task.shape, 0, self.width, "group")
        for name, net in (("g", G), ("d", D)):
            initialise(net, rng.child(name).torch()).to(task.device)
        opt_g, opt_d = (gan.adam(net, lr, (0.5, 0.999), None) for net, lr in ((G, self.gan_lr), (D, self.gan_lr / 2)))
        picks = rng.child("real").numpy()
        with one_thread(), torch.enable_grad():
            for _ in range(self.gan_steps):
                z, _ = gan.sample_latent(self.gan_batch_size, self.latent_dim, task, draw)
                pick = picks.choice(len(data), min(self.gan_batch_size, len(data)), replace=False)
                fake = G(z)
                gan.step(opt_d, gan.d_loss(D, gan.image_batch(data, pick, task), (fake, None)))
                gan.step(opt_g, gan.g_loss(D(fake), "nonsaturating"))
        G.eval()
        with torch.no_grad():
            sizes = [min(256, self.shared_images - at) for at in range(0, self.shared_images, 256)]
            images = [pack(G(gan.sample_latent(n, self.latent_dim, task, draw)[0]).cpu(), "uint8") for n in sizes]
        return np.concatenate(images)

    @torch.no_grad()
    def pseudo_labels(self, C: nn.Module, images: Array) -> Array:
        """Return a model's labels, or UNSURE where its probability is below the threshold."""
        C.eval()
        batches = (to_float(images[at : at + 256]).to(self.task.device) for at in range(0, len(images), 256))
        probability, label = torch.cat([C(x).softmax(1) for x in batches]).max(1)
        return torch.where(probability >= self.pseudo_label_threshold, label, UNSURE).to(torch.uint8).cpu().numpy()

    def client_round(self, state: State, message: ServerMessage, data: Images, rng: Rng) -> tuple[State, Reply]:
        """Train on own and shared images; then label this client's generated images."""
        own = state["own"] if state else self.generate_images(data, rng.child("gan"))
        pool = message.parts["pictures"] if "pictures" in message.parts else state.get("pool", np.empty(0, np.uint8))
        labels = message.parts.get("labels", np.empty(0, np.uint8))
        known = np.flatnonzero(labels != UNSURE)
        C, device = self.load_net(message.parts["network"]), self.task.device
        shared = None
        if len(known):
            images = Images(pool.reshape(-1, *self.task.shape)[known], labels[known].astype(np.int64))
            shared = self.batches(images, self.local_steps, rng.child("made"), device)

        def loss(x: Tensor, y: Tensor) -> Tensor:
            if shared is not None:
                x_shared, y_shared = next(shared)
                x, y = torch.cat([x, x_shared]), y if y_shared is None else torch.cat([y, y_shared])
            return F.cross_entropy(C(x), y)

        mean_loss = self.train(C, loss, data, message.round, rng)
        received = state and LAST_COUNTED in message.parts  # the server has this client's generated images
        sent = np.empty(0, np.uint8) if received else own
        reply = self.make_reply(C, message, data, mean_loss, pictures=sent, labels=self.pseudo_labels(C, own))
        state_id = shared_pool.pool_digest({"pictures": pool} if pool.size else {})
        return {"own": own, "pool": pool}, Reply(reply.parts, state_id=state_id)

    # -- server ---------------------------------------------------------------------------------------------------

    def server_init(self, rng: Rng, data: Images | None = None, start: State | None = None) -> State:
        """Initialize w_0 and an empty pool."""
        first = super().server_init(rng, data, start)
        return {**first, "shares": {}, "labels": {}, "pool": shared_pool.collect({})}

    def broadcast(self, server: State, client: str, full: bool) -> Broadcast:  # noqa: ARG002
        """Send w_t, the latest pseudo labels, and all generated images to a client that does not have them."""
        parts: dict[str, tuple[str, Array]] = {"network": ("float32", server["network"])}
        if server["pool"]["parts"]:
            parts["labels"] = ("bytes", np.concatenate([server["labels"][c] for c in server["pool"]["clients"]]))
        return shared_pool.broadcast(parts, server["pool"], CODECS, full)

    def receive(self, server: State, client: str, parts: Mapping[str, Array]) -> State:
        """Store a client's generated images, which it sends once, and their pseudo labels."""
        images, labels = parts["pictures"], parts["labels"]
        if ((labels >= self.task.classes) & (labels != UNSURE)).any():
            raise Malformed(f"pseudo labels must be below {self.task.classes}, or {UNSURE}")
        after = {**server, "labels": {**server["labels"], client: labels}}
        if not images.size:
            if client not in server["shares"]:
                raise Malformed("pseudo labels for images that the client never shared")
            return after
        shape = (self.shared_images, *self.task.shape)
        if images.shape != shape:
            raise Malformed(f"shared images of shape {images.shape}; expected {shape}")
        return {**after, "shares": {**server["shares"], client: {"pictures": images}}}

    def finish_round(self, server: State, sums: Sums, rng: Rng) -> State:
        """Average as FedAvg, and update the pool."""
        return {**super().finish_round(server, sums, rng), "pool": shared_pool.collect(server["shares"])}
