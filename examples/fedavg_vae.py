"""Federated averaging of a variational autoencoder, a complete method of your own: python examples/fedavg_vae.py"""
# ruff: noqa: ARG002

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import vitrail
from vitrail.models.kinds import ModelKind
from vitrail.nets.flat import from_vector, to_vector, vector_size


class Vae(nn.Module):
    def __init__(self, shape, hidden, z):
        super().__init__()
        self.z, self.shape, pixels = z, tuple(shape), int(np.prod(shape))
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 2 * z))
        self.decoder = nn.Sequential(nn.Linear(z, hidden), nn.ReLU(), nn.Linear(hidden, pixels), nn.Tanh())

    def forward(self, z, labels=None):  # the decoder generates images in [-1, 1] from noise
        return self.decoder(z).view(-1, *self.shape)

    def loss(self, x, noise):
        mu, log_var = self.encoder(x).chunk(2, dim=1)
        kl = (mu**2 + log_var.exp() - log_var - 1).sum(1) / 2
        return ((x - self(mu + noise * (log_var / 2).exp())).square().flatten(1).sum(1) + kl).mean()


@vitrail.register_model_kind("vae", "weights of the autoencoder in examples/fedavg_vae.py")
class VaeKind(ModelKind):
    @classmethod
    def network(cls, tree):  # rebuilds the network of a model file
        return Vae(tree["shape"], tree["hidden"], tree["z"])


@vitrail.register_method("fedavg-vae", "federated averaging of a small variational autoencoder")
@dataclass(frozen=True)
class FedAvgVae(vitrail.BaseMethod):
    hidden: int = 128
    latent_dim: int = 16
    lr: float = 1e-3
    batch_size: int = 32

    def net(self):
        return Vae(self.task.shape, self.hidden, self.latent_dim)

    def reply_spec(self):
        weights = vitrail.PartSpec("sum", "float32", vector_size(self.net()), over="clients")
        return {"weights": weights, "metric.loss": vitrail.PartSpec("sum", "float32", 1)}

    def server_init(self, rng, data=None, start=None):
        torch.manual_seed(int(rng.numpy().integers(2**31)))
        return start or {"weights": to_vector(self.net())}

    def broadcast(self, server, client, full):
        return vitrail.Broadcast({"weights": ("float32", server["weights"])})

    def client_round(self, state, message, data, rng):
        net, draw = from_vector(self.net(), message.parts["weights"]), rng.torch()
        optimizer = torch.optim.Adam(net.parameters(), self.lr)
        images = torch.from_numpy(data.pixels) / 127.5 - 1
        for batch in torch.randperm(len(images), generator=draw).split(self.batch_size):
            loss = net.loss(images[batch], torch.randn(len(batch), net.z, generator=draw))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {}, vitrail.Reply({"weights": to_vector(net), "metric.loss": np.array([loss.item()], np.float32)})

    def finish_round(self, server, sums, rng):
        return {"weights": (sums.values["weights"] / sums.clients).astype(np.float32)}

    def export_models(self, server, client=None):
        weights = from_vector(self.net(), server["weights"]).state_dict()
        tree = {"shape": list(self.task.shape), "classes": 0, "hidden": self.hidden, "z": self.latent_dim}
        return {"generator": vitrail.Model("vae", {**tree, "weights": weights})}


if __name__ == "__main__":
    vitrail.train(FedAvgVae(lr=2e-3), data="digits", clients=4, rounds=20, progress=True)
