"""Check of FID against the value of the reference code, and what bfloat16 does to it.

    python benchmarks/fid.py                      1,000 images of CIFAR-10 against 1,000 others, and the reference
    python benchmarks/fid.py --images 10000       in float32 and in bfloat16: values and images per second

The images are the first of data_batch_1.bin and of test_batch.bin. With 1,000 images FID is far too large: the value
checks the network and the distance and describes nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import get_args

import torch

from vitrail.data import load
from vitrail.data.dataset import Images
from vitrail.metrics.extractors import BATCH, Extractor, load_inception_extractor
from vitrail.metrics.frechet import Gaussian, frechet
from vitrail.nets.feature_moments import to_float
from vitrail.nets.precision import Precision

N = 1000
REFERENCE = 46.07
WITHIN = 0.1


def gaussian(inception: Extractor, images: Images, n: int) -> Gaussian:
    """Return mean and covariance of the features of the first n images."""
    found = Gaussian.empty(inception.dim)
    for at in range(0, n, BATCH):
        found.update(inception.rows(to_float(images.pixels[at : min(at + BATCH, n)])))
    return found


def value(precision: Precision, n: int) -> float:
    """Print FID of n train against n test images, and the speed; return FID."""
    inception, data = load_inception_extractor(precision), load("cifar10:1")
    start = time.perf_counter()
    train, test = gaussian(inception, data.train, n), gaussian(inception, data.test, n)
    speed = 2 * n / (time.perf_counter() - start)
    fid = frechet(train, test)
    print(f"{precision}: FID {fid:.3f}, n = {n:,} train and {n:,} test images of {data.name}; {speed:.1f} images per "
          f"second on {torch.get_num_threads()} cores", flush=True)  # fmt: skip
    return fid


def main() -> None:
    """Print the values; fail if the one that has a reference differs from it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=N)
    n = parser.parse_args().images
    values = {p: value(p, n) for p in get_args(Precision) if p != "auto"}
    print(f"bfloat16 moves FID by {values['bfloat16'] - values['float32']:+.3f}")
    if n == N:
        print(f"reference {REFERENCE} (within {WITHIN})")
        if abs(values["float32"] - REFERENCE) > WITHIN:
            sys.exit("this is not the reference's FID: the network, its weights or the distance differ")


if __name__ == "__main__":
    main()
