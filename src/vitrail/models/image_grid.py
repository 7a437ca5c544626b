"""Pictures as one PNG."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.utils.atomic import write_atomically


def write_grid(path: Path, pictures: Tensor, columns: int = 0, scale: int = 0) -> None:
    """Lay out pictures (n, c, h, w) in [0, 1] row by row; small ones are enlarged to be seen."""
    n, c, h, w = pictures.shape
    columns = columns or max(1, int(np.ceil(np.sqrt(n))))
    rows = -(-n // columns)
    scale = scale or max(1, 64 // max(h, 1))
    gap = 2
    sheet = np.full((rows * (h + gap) + gap, columns * (w + gap) + gap, c), 40, np.uint8)
    values = (pictures.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    for i, picture in enumerate(values):
        y, x = gap + i // columns * (h + gap), gap + i % columns * (w + gap)
        sheet[y : y + h, x : x + w] = picture
    image = Image.fromarray(sheet.squeeze(2) if c == 1 else sheet)
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    out = io.BytesIO()
    image.save(out, "PNG")
    write_atomically(path, out.getvalue())
