"""Grids of images as PNG files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.utils.atomic import write_atomically


def write_grid(path: Path, images: Tensor, columns: int = 0) -> None:
    """Write images row by row into one PNG file, enlarged to at least 64 pixels each.

    Args:
        path: The file; it is replaced atomically.
        images: Images (n, channels, height, width) in [0, 1].
        columns: Images per row; 0: as many columns as rows.
    """
    n, c, h, w = images.shape
    columns = columns or max(1, int(np.ceil(np.sqrt(n))))
    rows = -(-n // columns)
    scale, gap = max(1, 64 // max(h, 1)), 2
    sheet = np.full((rows * (h + gap) + gap, columns * (w + gap) + gap, c), 40, np.uint8)
    values = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    for i, pixels in enumerate(values):
        y, x = gap + i // columns * (h + gap), gap + i % columns * (w + gap)
        sheet[y : y + h, x : x + w] = pixels
    png = Image.fromarray(sheet.squeeze(2) if c == 1 else sheet)
    png = png.resize((png.width * scale, png.height * scale), Image.Resampling.NEAREST)
    out = io.BytesIO()
    png.save(out, "PNG")
    write_atomically(path, out.getvalue())


def grid_columns(n: int, classes: int) -> int:
    """Return the columns of a grid of n images of all classes in turn, so that each column has one class.

    Few classes are repeated up to ten columns, or eight or nine if no row is then incomplete.

    Examples:
        >>> grid_columns(30, 2), grid_columns(64, 2), grid_columns(4, 2), grid_columns(30, 20)
        (10, 8, 4, 20)
    """
    wide = [k * classes for k in range(10 // classes, 0, -1)] or [classes]
    full = [columns for columns in wide if columns >= 8 and n % columns == 0]
    return min((full or wide)[0], -(-n // classes) * classes)
