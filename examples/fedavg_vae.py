"""Federated averaging of a conditional variational autoencoder: python examples/fedavg_vae.py"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import vitrail
from vitrail.nets.dcgan import DcganGenerator
from vitrail.nets.flat import from_vector, to_vector, vector_size


class Vae(nn.Module):
    def __init__(self, shape, classes, width, z):
        super().__init__()
        pixels = int(np.prod(shape))
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 128), nn.ReLU(), nn.Linear(128, 2 * z))
        self.decoder = DcganGenerator(shape, classes, width, z)  # noise and labels to images in [-1, 1]

    def forward(self, x, y, noise):
        mu, log_var = self.encoder(x).chunk(2, dim=1)
        kl = (mu**2 + log_var.exp() - log_var - 1).sum(1) / 2
        error = x - self.decoder(mu + noise * (log_var / 2).exp(), y)
        return (error.square().flatten(1).sum(1) + kl).mean()


@vitrail.register_method("fedavg-vae", "federated averaging of a conditional variational autoencoder")
@dataclass(frozen=True)
class FedAvgVae(vitrail.BaseMethod):
    width: int = 8
    latent_dim: int = 16
    lr: float = 2e-3

    def net(self):
        return Vae(self.task.shape, self.task.classes, self.width, self.latent_dim)

    def reply_spec(self):
        one = vitrail.PartSpec("sum", "float32", 1)
        return {"weights": vitrail.PartSpec("sum", "float32", vector_size(self.net())), "metric.loss": one}

    def server_init(self, rng, data=None, start=None):
        torch.manual_seed(rng.seed())
        return start or {"weights": to_vector(self.net())}

    def broadcast(self, server, client, full):
        return vitrail.Broadcast({"weights": ("float32", server["weights"])})

    def client_round(self, state, message, data, rng):
        net, draw = from_vector(self.net(), message.parts["weights"]), rng.torch()
        optimizer = torch.optim.Adam(net.parameters(), self.lr)
        x, loss = torch.from_numpy(data.pixels) / 127.5 - 1, torch.zeros(())
        y = torch.from_numpy(data.labels if self.task.classes else np.zeros(len(data), np.int64))
        for i in torch.randperm(len(x), generator=draw).split(32):
            loss = net(x[i], y[i], torch.randn(len(i), self.latent_dim, generator=draw))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {}, vitrail.Reply({"weights": to_vector(net), "metric.loss": loss.detach().numpy().reshape(1)})

    def finish_round(self, server, sums, rng):
        return {"weights": (sums.values["weights"] / sums.clients).astype(np.float32)}

    def export_models(self, server, client=None):
        decoder = from_vector(self.net(), server["weights"]).decoder
        about = {"shape": list(self.task.shape), "classes": self.task.classes, "width": self.width}
        weights = decoder.state_dict()
        return {"generator": vitrail.Model("dcgan", {**about, "z": self.latent_dim, "weights": weights})}


if __name__ == "__main__":
    vitrail.train(FedAvgVae(), data="digits", size=8, clients=4, rounds=20, progress=True)
