"""Decoding of image files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from vitrail.data.progress import show_progress
from vitrail.data.read_request import ReadRequest
from vitrail.data.resize import fit
from vitrail.utils.errors import Malformed, VitrailError

File = tuple[str | IO[bytes], str]  # path or stream, and the name of the file in error messages
# Accepted formats and file names; some of PIL's other formats run external programs or are not images.
FORMATS = ("PNG", "JPEG", "JPEG2000", "WEBP", "BMP", "GIF", "TIFF", "PPM")
ENDINGS = (".png", ".jpg", ".jpeg", ".jp2", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
PIXELS = 64_000_000  # maximum of one image
BAND = 2**20  # pixels converted at once
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")


def is_grey(image: Image.Image) -> bool:
    """Return whether an image has one channel, not counting alpha."""
    return image.mode in _GREY


def all_grey(files: Iterable[File]) -> bool:
    """Return whether all images have one channel; `files` are as in `decode_all`, and only their headers are read."""
    for file, name in files:
        with open_image(file, name) as image:
            if not is_grey(image):
                return False
    return True


@contextmanager
def open_image(file: str | IO[bytes], name: str) -> Iterator[Image.Image]:
    """Open an image; its pixels are read on first use.

    Args:
        file: Path or stream.
        name: Name of the file in error messages.

    Raises:
        Malformed: If the file cannot be decoded or has too many pixels.
    """
    try:
        with warnings.catch_warnings():
            # Up to twice its limit, PIL only warns of an image that would fill the memory.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > PIXELS:
                    raise Image.DecompressionBombError(f"{image.width} x {image.height}")
                yield image
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise Malformed(
            f"{name}: refused, too many pixels ({error}); at most {PIXELS:,} are read: make the image smaller first"
        ) from error
    except UnidentifiedImageError as error:
        raise Malformed(f"{name}: not an image that can be decoded") from error
    except VitrailError:
        raise
    except Exception as error:  # PIL's readers raise many types of exceptions
        raise Malformed(f"{name}: cannot be decoded ({error})") from error


def planes(image: Image.Image, grey: bool, name: str) -> NDArray[np.uint8]:
    """Return the bytes (c, h, w) of an image, upright, grey or RGB, without alpha."""
    image.load()  # the orientation may follow the pixels in the file
    upright = ImageOps.exif_transpose(image) if image.getexif().get(ExifTags.Base.Orientation, 1) != 1 else image
    if upright.mode in ("I", "F") or upright.mode.startswith("I;"):
        values, depth = np.asarray(upright), "16" if upright.mode.startswith("I;16") else "more than 8"
        raise Malformed(
            f"{name}: grey values of {depth} bits (from {values.min()} to {values.max()}), expected 8; rescale all "
            "images by the range of their device first, such as 12-bit values with np.uint8(values * (255 / 4095))"
        )
    width, height = upright.size
    out = np.empty((1 if grey else 3, height, width), np.uint8)
    step = max(1, BAND // width)
    for top in range(0, height, step):
        bottom = min(top + step, height)
        band = upright if bottom - top == height else upright.crop((0, top, width, bottom))
        if grey:
            out[0, top:bottom] = np.asarray(band.convert("L"), np.uint8)
        else:
            # Through RGBA, because PIL warns when it drops the transparency of a palette.
            straight = band if band.mode == "RGB" else band.convert("RGBA").convert("RGB")
            out[:, top:bottom] = np.asarray(straight, np.uint8).transpose(2, 0, 1)
    return out


def decode(file: str | IO[bytes], grey: bool, size: int, name: str) -> NDArray[np.uint8]:
    """Decode and resize an image file.

    Args:
        file: Path or stream.
        grey: Whether to return one channel instead of three.
        size: Height and width of the result.
        name: Name of the file in error messages.

    Returns:
        Bytes of shape (c, size, size).

    Raises:
        Malformed: If the file cannot be decoded or has too many pixels.
    """
    with open_image(file, name) as image:
        return fit(planes(image, grey, name)[None], size)[0]


def decode_all(files: Iterable[File], n: int, grey: bool, what: str, request: ReadRequest) -> NDArray[np.uint8]:
    """Decode n image files to bytes (n, c, size, size); `what` describes the progress."""
    out = np.empty((n, 1 if grey else 3, request.size, request.size), np.uint8)
    with show_progress(request.progress) as show:
        for i, (file, name) in enumerate(files):
            out[i] = decode(file, grey, request.size, name)
            show(what, i + 1, n)
    return out
