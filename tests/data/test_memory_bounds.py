"""Small files that decompress to many bytes: reading them uses bounded memory, or they are refused."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy
from PIL import Image

from vitrail.data import from_arrays, load, resize
from vitrail.data.resize import fit
from vitrail.data.sources import npy_files as stored
from vitrail.utils.errors import Malformed

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
MB = 10**6

CHILD = """
import json, os, resource, sys
from vitrail.data import load

load("digits", size=9)  # imports that every source needs
for path in sys.argv[1:]:
    reader, writer = os.pipe()
    if os.fork() == 0:
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**31,) * 2)  # so that a failing test does not fill the memory
        rss = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before = rss()
        try:
            outcome = str(load(path, size=8, test_fraction=0).train.pixels.shape)
        except Exception as e:
            outcome = f"{type(e).__name__}: {e}"
        os.write(writer, json.dumps([outcome, rss() - before]).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    print(os.read(reader, 100_000).decode() or '["died", 0]', flush=True)
"""


def zeros(path: Path, fortran: bool = False, **arrays: tuple[str, tuple[int, ...]]) -> str:
    """Write an .npz file of zeros without having it in memory."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, (dtype, shape) in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                header = {"descr": dtype, "fortran_order": fortran, "shape": shape}
                npy.write_array_header_1_0(out, header)
                left = int(np.prod(shape)) * np.dtype(dtype).itemsize
                while left:
                    left -= out.write(bytes(min(2**24, left)))
    return f"npz:{path}"


def image(folder: Path, side: int) -> str:
    folder.mkdir()
    Image.new("RGB", (side, side)).save(folder / "x.png", compress_level=1)
    return f"folder:{folder}"


BOMBS: dict[
    str, tuple[Callable[[Path], str], str, int]
] = {  # name: how to make the file, expected outcome, maximum bytes of memory
    "images of one byte": (lambda p: zeros(p, images=("|u1", (200, 1000, 1000))), "(200, 1, 8, 8)", 200 * MB),
    "images of floats": (lambda p: zeros(p, images=("<f8", (40, 1000, 1000))), "(40, 1, 8, 8)", 250 * MB),
    "one large image": (lambda p: zeros(p, images=("|u1", (1, 9000, 9000))), "make them smaller first", 50 * MB),
    "tiny images": (lambda p: zeros(p, images=("|u1", (7 * 10**7, 1, 1))), "set a smaller size", 50 * MB),
    "Fortran order": (
        lambda p: zeros(p, True, images=("|u1", (80, 1000, 1000))),
        "save images with numpy.ascontiguousarray",
        50 * MB,
    ),
    "long labels": (
        lambda p: zeros(p, images=("|u1", (300, 8, 8)), labels=("<U70000", (300,))),
        "labels as integers",
        50 * MB,
    ),
    "an image of 81 megapixels": (lambda p: image(p, 9000), "9000 x 9000); at most 64,000,000 are read", 50 * MB),
    "an image of 62 megapixels": (lambda p: image(p, 7900), "(1, 3, 8, 8)", 600 * MB),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, int]]:
    """For each file: the outcome of reading it in a separate process, and the bytes of memory that this needed."""
    folder = tmp_path_factory.mktemp("bombs")
    sources = [make(folder / f"{i}") for i, (make, _, _) in enumerate(BOMBS.values())]
    done = subprocess.run([sys.executable, "-c", CHILD, *sources], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return dict(zip(BOMBS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_of_images_takes_bounded_memory(outcomes: dict[str, tuple[str, int]], name: str) -> None:
    outcome, cost = outcomes[name]
    _, expected, most = BOMBS[name]
    assert expected in outcome
    assert cost < most


@pytest.mark.parametrize("dtype", ["|u1", "<u2", "<i8", "<f4", "<f8", ">f4", "|b1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_read_in_blocks_gives_the_same_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, order: str
) -> None:
    images = RNG.integers(0, 2, (50, 12, 10, 3)) if dtype == "|b1" else RNG.integers(0, 256, (50, 12, 10, 3))
    images = np.asarray(images / 255 if "f" in dtype else images, dtype, order=order)
    labels = RNG.integers(0, 3, 50)
    np.savez_compressed(tmp_path / "a.npz", images=images, labels=labels)
    monkeypatch.setattr(stored, "BLOCK", 7 * images[0].nbytes)
    read = load(f"npz:{tmp_path / 'a.npz'}", size=8)
    given = from_arrays(images, labels, size=8)
    assert (read.train.digest(), read.test.digest()) == (given.train.digest(), given.test.digest())


@pytest.mark.parametrize(("side", "size"), [(40, 9), (9, 40)])
def test_resizing_in_small_parts_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch, side: int, size: int) -> None:
    pixels = RNG.integers(0, 256, (5, 3, side, side + 3), np.uint8)
    expected = fit(pixels, size)
    for budget in (2000, 20_000, 100_000):
        monkeypatch.setattr(resize, "BUDGET", budget)
        assert np.array_equal(fit(pixels, size), expected)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "LA", "CMYK"])
def test_an_image_converted_in_bands_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    from vitrail.data import decode

    image = Image.fromarray(RNG.integers(0, 256, (31, 20, 3), np.uint8)).convert(mode)
    expected = decode.planes(image, False, "x")
    monkeypatch.setattr(decode, "BAND", 20 * 7)
    assert np.array_equal(decode.planes(image, False, "x"), expected)
    assert np.array_equal(expected.transpose(1, 2, 0), np.asarray(image.convert("RGBA").convert("RGB")))


def test_an_npz_file_shorter_than_its_shape_is_refused_before_reading(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("images.npy", "w") as out:
        npy.write_array_header_1_0(out, {"descr": "|u1", "fortran_order": False, "shape": (9, 8, 8)})
        out.write(bytes(100))
    with pytest.raises(Malformed, match=r"a\.npz: .*fewer bytes than its shape"):
        load(f"npz:{tmp_path / 'a.npz'}")


def test_an_npz_file_with_an_unusual_compression_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", images=np.zeros((2, 8, 8), np.uint8))
    with (
        zipfile.ZipFile(tmp_path / "plain.npz") as plain,
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive,
    ):
        archive.writestr("images.npy", plain.read("images.npy"))
    with pytest.raises(Malformed, match=r"a\.npz: .*method that NumPy does not write"):
        load(f"npz:{tmp_path / 'a.npz'}")
