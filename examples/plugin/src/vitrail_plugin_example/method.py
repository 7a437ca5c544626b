"""A method: an independent Gaussian per pixel, from the clients' sums of pixels and of their squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail import BaseMethod, Broadcast, Images, Model, PartSpec, Reply, Rng, ServerMessage, Sums, setting
from vitrail.models.kinds import ModelKind


class GaussianPixels(nn.Module):
    """Generates images with independent Gaussian pixels; `labels` are not used."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.z, self.shape = int(np.prod(shape)), shape
        self.mean = nn.Parameter(torch.zeros(shape))
        self.std = nn.Parameter(torch.ones(shape))

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        return (self.mean + self.std * z.view(-1, *self.shape)).clamp(-1, 1)


class PixelGaussianKind(ModelKind):
    """Model files of this method."""

    @classmethod
    def network(cls, tree: dict[str, Any]) -> nn.Module:
        return GaussianPixels(tuple(tree["shape"]))


@dataclass(frozen=True)
class PixelGaussian(BaseMethod):
    """Estimate the mean and standard deviation of every pixel over all clients."""

    temperature: float = setting(1.0, "factor of the standard deviation", ge=0, le=10)

    defaults = {"rounds": 1}  # noqa: RUF012

    def reply_spec(self) -> Mapping[str, PartSpec]:
        pixels = int(np.prod(self.task.shape))
        part = PartSpec("sum", "float32", pixels)
        return {"mean": part, "mean_square": part, "metric.brightness": PartSpec("sum", "float32", 1)}

    def server_init(self, rng: Rng, data: Images | None = None, start: Any = None) -> dict[str, Any]:
        pixels = int(np.prod(self.task.shape))
        return start or {"mean": np.zeros(pixels, np.float32), "mean_square": np.ones(pixels, np.float32)}

    def broadcast(self, server: dict[str, Any], client: str, full: bool) -> Broadcast:
        return Broadcast({"mean": ("float32", server["mean"])})

    def client_round(
        self, state: dict[str, Any], message: ServerMessage, data: Images, rng: Rng
    ) -> tuple[dict[str, Any], Reply]:
        x = data.pixels.reshape(len(data), -1).astype(np.float32) / 127.5 - 1
        brightness = np.array([x.mean()], np.float32)
        return {}, Reply({"mean": x.mean(0), "mean_square": (x**2).mean(0), "metric.brightness": brightness})

    def finish_round(self, server: dict[str, Any], sums: Sums, rng: Rng) -> dict[str, Any]:
        return {name: (sums.values[name] / sums.clients).astype(np.float32) for name in ("mean", "mean_square")}

    def export_models(self, server: dict[str, Any], client: dict[str, Any] | None = None) -> Mapping[str, Model]:
        variance = np.maximum(server["mean_square"] - server["mean"] ** 2, 0)
        weights = {"mean": server["mean"], "std": self.temperature * np.sqrt(variance)}
        tensors = {name: torch.from_numpy(w.astype(np.float32)).view(self.task.shape) for name, w in weights.items()}
        tree = {"shape": list(self.task.shape), "classes": 0, "weights": tensors}
        return {"generator": Model("pixel-gaussian", tree)}
