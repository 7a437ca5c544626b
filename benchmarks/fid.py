"""Whether our FID is the FID: 1,000 pictures of CIFAR-10 against 1,000 others, and the figure that others' code gives.

    python benchmarks/fid.py

The pictures are the first 1,000 of data_batch_1.bin and of test_batch.bin. So few make the figure far too large: it
checks the network and the distance, and says nothing about CIFAR-10.
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
def gaussian(net: Inception, pictures: Images) -> Gaussian:
    """Mean and covariance of the features of the first pictures."""
    found = Gaussian.empty(net.num_features)
    for at in range(0, N, TOGETHER):
        found.update(net(to_float(pictures.pixels[at : min(at + TOGETHER, N)])))
    return found


def main() -> None:
    """Print the figure, the reference and the speed; fail when they differ."""
    net, data = load_inception(), load("cifar10:1")
    began = time.perf_counter()
    train, test = gaussian(net, data.train), gaussian(net, data.test)
    speed = 2 * N / (time.perf_counter() - began)
    figure = frechet(train, test)
    print(f"FID {figure:.3f}, reference {REFERENCE} (within {WITHIN})")
    print(f"n = {N:,} train against {N:,} test pictures of {data.name}")
    print(f"{speed:.1f} images a second on {torch.get_num_threads()} threads")
    if abs(figure - REFERENCE) > WITHIN:
        sys.exit("this is not the reference's FID: the network, its weights or the distance differ")


if __name__ == "__main__":
    main()
