"""Check of FID: 1,000 images of CIFAR-10 against 1,000 others, compared with the value of the reference code.

    python benchmarks/fid.py

The images are the first 1,000 of data_batch_1.bin and of test_batch.bin. With so few images FID is far too large: the
value checks the network and the distance and describes nothing else.
"""

from __future__ import annotations

import sys
import time

import torch

from vitrail.data import load
from vitrail.data.dataset import Images
from vitrail.metrics.frechet import Gaussian, frechet
from vitrail.nets.feature_moments import to_float
from vitrail.nets.inception import TOGETHER, Inception, load_inception

N = 1000
REFERENCE = 46.07
WITHIN = 0.1


@torch.no_grad()
def gaussian(net: Inception, images: Images) -> Gaussian:
    """Return mean and covariance of the features of the first images."""
    found = Gaussian.empty(net.num_features)
    for at in range(0, N, TOGETHER):
        found.update(net(to_float(images.pixels[at : min(at + TOGETHER, N)])))
    return found


def main() -> None:
    """Print the value, the reference and the speed; fail if value and reference differ."""
    net, data = load_inception(), load("cifar10:1")
    start = time.perf_counter()
    train, test = gaussian(net, data.train), gaussian(net, data.test)
    speed = 2 * N / (time.perf_counter() - start)
    value = frechet(train, test)
    print(f"FID {value:.3f}, reference {REFERENCE} (within {WITHIN})")
    print(f"n = {N:,} train against {N:,} test images of {data.name}")
    print(f"{speed:.1f} images per second on {torch.get_num_threads()} threads")
    if abs(value - REFERENCE) > WITHIN:
        sys.exit("this is not the reference's FID: the network, its weights or the distance differ")


if __name__ == "__main__":
    main()
