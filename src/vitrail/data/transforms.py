"""Clients as domains: the pictures of each client pass one transform of PaDPaF's experiments (Appendix C).

A transform takes pictures (n, c, h, w) as floats in [0, 1] and a random generator, and gives as many of that shape.
What is random is drawn for each picture once, where the paper draws anew at every look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import Dataset, Images
from vitrail.data.partitions import Partition
from vitrail.data.specs import parse_partition
from vitrail.utils.rng import Rng

Transform = Callable[[Tensor, np.random.Generator], Tensor]
BATCH = 4096


def in_domain(pictures: Images, domain: str, rng: Rng) -> Images:
    """Pictures as the client of a domain would hold them."""
    draw, apply = rng.child(domain).numpy(), TRANSFORMS[domain]
    done = [np.empty((0, *pictures.pixels.shape[1:]), np.uint8)]
    for at in range(0, len(pictures), BATCH):
        x = apply(torch.from_numpy(pictures.pixels[at : at + BATCH].astype(np.float32)) / 255, draw)
        done.append((x.clamp(0, 1) * 255).round().byte().numpy())
    return replace(pictures, pixels=np.concatenate(done))


def held_out(data: Dataset, domain: str, seed: int) -> Images:
    """The held-out pictures as the client of a domain would see them, for a run of this seed."""
    return in_domain(data.test, domain, Rng((seed,)).child("domains", "test"))


def in_domains(data: Dataset, shares: Partition, rng: Rng) -> Dataset:
    """A data set in which every client's pictures have passed the client's transform; the held-out ones have not."""
    pixels = np.array(data.train.pixels)
    for domain, held in zip(parse_partition(shares.spec).domains, shares.indices, strict=True):
        pixels[held] = in_domain(data.train.take(held), domain, rng.child("train")).pixels
    return replace(data, train=replace(data.train, pixels=pixels))


def _uniform(draw: np.random.Generator, low: float, high: float, *shape: int) -> Tensor:
    return torch.from_numpy(draw.uniform(low, high, shape).astype(np.float32))


def zoom_in(x: Tensor, _: np.random.Generator) -> Tensor:
    """The central 22 of 32 pixels, which are CenterCrop(22) of MNIST's 28, enlarged."""
    size = x.shape[-1]
    edge = (size - round(size * 22 / 32)) // 2
    inner = x[:, :, edge : size - edge, edge : size - edge]
    return F.interpolate(inner, size=(size, size), mode="bilinear", antialias=True)


def zoom_out(x: Tensor, _: np.random.Generator) -> Tensor:
    """4/7 as large amid black: MNIST's 28 pixels come to lie on 16 of 32, as after Pad(14)."""
    size = x.shape[-1]
    edge = size // 2 - round(size * 2 / 7)
    small = F.interpolate(x, size=(size - 2 * edge, size - 2 * edge), mode="bilinear", antialias=True)
    return F.pad(small, (edge, edge, edge, edge))


def invert(x: Tensor, _: np.random.Generator) -> Tensor:
    """Black for white."""
    return 1 - x


def blur(x: Tensor, draw: np.random.Generator) -> Tensor:
    """A Gaussian of 5 pixels, σ ~ U(0.1, 2), mirrored at the edge."""
    sigma = _uniform(draw, 0.1, 2, len(x), 1)
    weights = torch.softmax(-torch.arange(-2.0, 3).square() / (2 * sigma**2), 1)[:, :, None, None, None]
    x = F.pad(x, (2, 2, 2, 2), mode="reflect")
    height, width = x.shape[2] - 4, x.shape[3] - 4
    x = torch.stack([weights[:, k] * x[:, :, k : k + height] for k in range(5)]).sum(0)
    return torch.stack([weights[:, k] * x[:, :, :, k : k + width] for k in range(5)]).sum(0)


def flip_horizontal(x: Tensor, _: np.random.Generator) -> Tensor:
    """Left for right."""
    return x.flip(3)


def flip_vertical(x: Tensor, _: np.random.Generator) -> Tensor:
    """Top for bottom."""
    return x.flip(2)


def rotate(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Turned by up to 40 degrees."""
    return _turned(x, _uniform(draw, -40, 40, len(x)))


def brightness(x: Tensor, draw: np.random.Generator) -> Tensor:
    """ColorJitter(brightness=0.8): times U(0.2, 1.8)."""
    return x * _uniform(draw, 0.2, 1.8, len(x), 1, 1, 1)


def affine(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Turned by 30 to 70 degrees, moved by up to 10% across and 30% down, and 0.5 to 0.75 times as large."""
    degrees, scale = _uniform(draw, 30, 70, len(x)), _uniform(draw, 0.5, 0.75, len(x))
    return _turned(x, degrees, scale, torch.stack([_uniform(draw, -m, m, len(x)) for m in (0.1, 0.3)], 1))


def solarize(x: Tensor, _: np.random.Generator) -> Tensor:
    """What is 192 of 255 or brighter, inverted."""
    return torch.where(x >= 192 / 255, 1 - x, x)


def erase(x: Tensor, draw: np.random.Generator) -> Tensor:
    """A rectangle of 2% to 10% of the picture, 0.3 to 3.3 times as wide as high, made grey: 0 of [-1, 1]."""
    n, _, height, width = x.shape
    area, log_ratio = _uniform(draw, 0.02, 0.1, n), _uniform(draw, np.log(0.3), np.log(3.3), n)
    h, w = ((area * torch.exp(s * log_ratio)).sqrt().clamp(max=0.9) for s in (-1, 1))
    top, left = _uniform(draw, 0, 1, n) * (1 - h), _uniform(draw, 0, 1, n) * (1 - w)
    rows, columns = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    hit = ((rows >= top[:, None]) & (rows < (top + h)[:, None]))[:, None, :, None]
    hit = hit & ((columns >= left[:, None]) & (columns < (left + w)[:, None]))[:, None, None, :]
    return torch.where(hit, torch.full_like(x, 0.5), x)


def grayscale(x: Tensor, _: np.random.Generator) -> Tensor:
    """Luma on all channels."""
    return x if x.shape[1] == 1 else (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, True).expand_as(x)


def perspective(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Seen from aside: each corner moves inwards by up to a fifth of the picture (distortion_scale=0.4)."""
    corner = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64)
    seen = corner * (1 - draw.uniform(0, 0.4, (len(x), 4, 2)))
    # The homography that takes what is seen at (u, v) from (x, y): two equations for each corner.
    u, v, one = seen[..., 0], seen[..., 1], np.ones((len(x), 4))
    rows_x = np.stack([u, v, one, 0 * u, 0 * u, 0 * u, -u * corner[:, 0], -v * corner[:, 0]], -1)
    rows_y = np.stack([0 * u, 0 * u, 0 * u, u, v, one, -u * corner[:, 1], -v * corner[:, 1]], -1)
    target = np.tile(np.concatenate([corner[:, 0], corner[:, 1]]), (len(x), 1))
    h = np.linalg.solve(np.concatenate([rows_x, rows_y], 1), target[..., None])[..., 0]
    matrix = torch.from_numpy(np.concatenate([h, np.ones((len(x), 1))], 1).reshape(-1, 3, 3).astype(np.float32))
    eye = torch.eye(2, 3).expand(len(x), 2, 3)
    grid = F.affine_grid(eye, list(x.shape), align_corners=False)
    lifted = torch.cat([grid, torch.ones_like(grid[..., :1])], -1) @ matrix.transpose(1, 2)[:, None]
    return F.grid_sample(x, lifted[..., :2] / lifted[..., 2:], align_corners=False)


def colour_1(x: Tensor, draw: np.random.Generator) -> Tensor:
    """On [-1, 1]: each channel of a picture plus U(0, 0.5), times U(0, 1)."""
    return (_tinted(x, draw) + 1) / 2


def colour_2(x: Tensor, draw: np.random.Generator) -> Tensor:
    """The same once more normalised: twice that, less 1."""
    return _tinted(x, draw)


def _tinted(x: Tensor, draw: np.random.Generator) -> Tensor:
    shape = (*x.shape[:2], 1, 1)
    return (2 * x - 1 + _uniform(draw, 0, 0.5, *shape)) * _uniform(draw, 0, 1, *shape)


def _turned(x: Tensor, degrees: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """Turned about the centre, then scaled, then moved by shares of the picture; black where nothing was."""
    angle, scale = torch.deg2rad(degrees), torch.ones(len(x)) if scale is None else scale
    c, s = torch.cos(angle) / scale, torch.sin(angle) / scale
    turn = torch.stack([c, -s, s, c], 1).view(-1, 2, 2)  # from where a pixel is to where it was
    move = torch.zeros(len(x), 2) if shift is None else -2 * shift
    theta = torch.cat([turn, turn @ move[:, :, None]], 2)
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


TRANSFORMS: dict[str, Transform] = {
    "zoom-in": zoom_in,
    "zoom-out": zoom_out,
    "invert": invert,
    "blur": blur,
    "flip-horizontal": flip_horizontal,
    "flip-vertical": flip_vertical,
    "rotate": rotate,
    "brightness": brightness,
    "affine": affine,
    "solarize": solarize,
    "erase": erase,
    "grayscale": grayscale,
    "perspective": perspective,
    "colour-1": colour_1,
    "colour-2": colour_2,
}
