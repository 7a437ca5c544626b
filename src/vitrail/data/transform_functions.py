"""The built-in image transforms: those of PaDPaF's experiments (Appendix C).

Difference from the paper: random parameters are drawn once per image, not every time it is used.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def _uniform(draw: np.random.Generator, low: float, high: float, *shape: int) -> Tensor:
    return torch.from_numpy(draw.uniform(low, high, shape).astype(np.float32))


def zoom_in(x: Tensor, _: np.random.Generator) -> Tensor:
    """Enlarge the central 22 of 32 pixels, which are CenterCrop(22) of MNIST's 28."""
    size = x.shape[-1]
    edge = (size - round(size * 22 / 32)) // 2
    inner = x[:, :, edge : size - edge, edge : size - edge]
    return F.interpolate(inner, size=(size, size), mode="bilinear", antialias=True)


def zoom_out(x: Tensor, _: np.random.Generator) -> Tensor:
    """Shrink to 4/7 with a black border: MNIST's 28 pixels become 16 of 32, as after Pad(14)."""
    size = x.shape[-1]
    edge = size // 2 - round(size * 2 / 7)
    small = F.interpolate(x, size=(size - 2 * edge, size - 2 * edge), mode="bilinear", antialias=True)
    return F.pad(small, (edge, edge, edge, edge))


def invert(x: Tensor, _: np.random.Generator) -> Tensor:
    """Invert all values."""
    return 1 - x


def blur(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Blur by a Gaussian kernel of 5 pixels, σ ~ U(0.1, 2), mirrored at the edge."""
    sigma = _uniform(draw, 0.1, 2, len(x), 1)
    weights = torch.softmax(-torch.arange(-2.0, 3).square() / (2 * sigma**2), 1)[:, :, None, None, None]
    x = F.pad(x, (2, 2, 2, 2), mode="reflect")
    height, width = x.shape[2] - 4, x.shape[3] - 4
    x = torch.stack([weights[:, k] * x[:, :, k : k + height] for k in range(5)]).sum(0)
    return torch.stack([weights[:, k] * x[:, :, :, k : k + width] for k in range(5)]).sum(0)


def flip_horizontal(x: Tensor, _: np.random.Generator) -> Tensor:
    """Exchange left and right."""
    return x.flip(3)


def flip_vertical(x: Tensor, _: np.random.Generator) -> Tensor:
    """Exchange top and bottom."""
    return x.flip(2)


def rotate(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Rotate by U(-40, 40) degrees."""
    return _affine(x, _uniform(draw, -40, 40, len(x)))


def brightness(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Multiply by U(0.2, 1.8): ColorJitter(brightness=0.8)."""
    return x * _uniform(draw, 0.2, 1.8, len(x), 1, 1, 1)


def affine(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Rotate by 30 to 70 degrees, scale by 0.5 to 0.75, translate by up to 10% horizontally and 30% vertically."""
    degrees, scale = _uniform(draw, 30, 70, len(x)), _uniform(draw, 0.5, 0.75, len(x))
    return _affine(x, degrees, scale, torch.stack([_uniform(draw, -m, m, len(x)) for m in (0.1, 0.3)], 1))


def solarize(x: Tensor, _: np.random.Generator) -> Tensor:
    """Invert values of at least 192 of 255."""
    return torch.where(x >= 192 / 255, 1 - x, x)


def erase(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Fill a rectangle of 2% to 10% of the image, aspect ratio 0.3 to 3.3, with grey: 0 in [-1, 1]."""
    n, _, height, width = x.shape
    area, log_ratio = _uniform(draw, 0.02, 0.1, n), _uniform(draw, np.log(0.3), np.log(3.3), n)
    h, w = ((area * torch.exp(s * log_ratio)).sqrt().clamp(max=0.9) for s in (-1, 1))
    top, left = _uniform(draw, 0, 1, n) * (1 - h), _uniform(draw, 0, 1, n) * (1 - w)
    rows, columns = (torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width
    inside = ((rows >= top[:, None]) & (rows < (top + h)[:, None]))[:, None, :, None]
    inside = inside & ((columns >= left[:, None]) & (columns < (left + w)[:, None]))[:, None, None, :]
    return torch.where(inside, torch.full_like(x, 0.5), x)


def grayscale(x: Tensor, _: np.random.Generator) -> Tensor:
    """Set all channels to the luma."""
    return x if x.shape[1] == 1 else (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, True).expand_as(x)


def perspective(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Move each corner inwards by up to a fifth of the image, a change of perspective (distortion_scale=0.4)."""
    corner = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64)
    moved = corner * (1 - draw.uniform(0, 0.4, (len(x), 4, 2)))
    # The homography from output positions (u, v) to input positions (x, y): two equations per corner.
    u, v, one = moved[..., 0], moved[..., 1], np.ones((len(x), 4))
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
    """Add U(0, 0.5) to each channel in [-1, 1] and multiply by U(0, 1)."""
    return (_scale_channels(x, draw) + 1) / 2


def colour_2(x: Tensor, draw: np.random.Generator) -> Tensor:
    """Apply `colour_1`, then normalize once more: 2x - 1."""
    return _scale_channels(x, draw)


def _scale_channels(x: Tensor, draw: np.random.Generator) -> Tensor:
    shape = (*x.shape[:2], 1, 1)
    return (2 * x - 1 + _uniform(draw, 0, 0.5, *shape)) * _uniform(draw, 0, 1, *shape)


def _affine(x: Tensor, degrees: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """Rotate about the centre, then scale, then translate by fractions of the image; new pixels are black."""
    angle, scale = torch.deg2rad(degrees), torch.ones(len(x)) if scale is None else scale
    c, s = torch.cos(angle) / scale, torch.sin(angle) / scale
    turn = torch.stack([c, -s, s, c], 1).view(-1, 2, 2)  # from output to input positions
    move = torch.zeros(len(x), 2) if shift is None else -2 * shift
    theta = torch.cat([turn, turn @ move[:, :, None]], 2)
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
