"""Does rounding PS-FedGAN's discriminators hide a picture? (Its Proposition 4 says so; about two minutes.)

    python benchmarks/rounding.py --trials 400

A client holds eight digits, or seven of them and a white picture; all that is random is new in each trial. The attacker
reads one message and asks every D_u in it how real it takes each of the nine pictures to be. A linear map from the
answers to the case is fitted to the first half of the trials; the second half is judged.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from vitrail.auditing.bounds import from_rates
from vitrail.data import load
from vitrail.data.dataset import Images
from vitrail.experiment import settings as config
from vitrail.methods.base import ServerMessage, Task
from vitrail.methods.psfedgan.algorithm import PsFedGan
from vitrail.methods.psfedgan.messages import read
from vitrail.nets.feature_moments import to_float
from vitrail.nets.flat import from_vector
from vitrail.utils.rng import Rng

STEPS, DELTA = 20, 1e-5


def both_cases() -> tuple[Images, Images]:
    """Eight digits, and the same with a white picture in place of the last; one label, so that labels tell nothing."""
    digits = load("digits", size=8).train.take(np.arange(8))
    white = digits.pixels.copy()
    white[-1] = 255
    zeros = np.zeros(8, np.int64)
    return Images(digits.pixels, zeros), Images(white, zeros)


def seen(method: PsFedGan, held: Images, asked: torch.Tensor, rng: Rng) -> np.ndarray:
    """How much more real each picture in question came to be for D_u: at the message's end, and on average."""
    server = method.server_init(rng.child("server"))
    told = {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()}
    state = method.client_init("a", rng.child("client"))
    _, reply = method.client_round(state, ServerMessage(0, told), held, rng.child("round"))
    said = read(method, reply.parts, None)
    D = method.discriminator(said.architecture).eval()
    labels = torch.zeros(len(asked), dtype=torch.int64)
    with torch.no_grad():
        says = torch.stack([from_vector(D, row)(asked, labels).flatten() for row in said.discriminators])
    learned = (says - says[0]).numpy()
    return np.concatenate([learned[-1], learned.mean(0), [1.0]])


def judged(features: np.ndarray, coins: np.ndarray) -> tuple[float, float, float]:
    """True and false positives, and ε at least, of the second half, by what was fitted to the first."""
    half = len(coins) // 2
    along, *_ = np.linalg.lstsq(features[:half], coins[:half] - 0.5, rcond=None)
    said, truth = features[half:] @ along > 0, coins[half:]
    tp, fp = int((said & truth).sum()), int((said & ~truth).sum())
    members, others = int(truth.sum()), int((~truth).sum())
    return tp / members, fp / others, from_rates(tp, members, fp, others, DELTA)


def main() -> None:
    """Print a line for each way in which D's travel."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--trials", type=int, default=400)
    n = arguments.parse_args().trials
    torch.set_num_threads(1)
    without, with_white = both_cases()
    asked = to_float(np.concatenate([without.pixels, with_white.pixels[-1:]]))
    coins = Rng((0,)).child("coins").numpy().random(n) < 0.5
    most = from_rates(int(coins[n // 2 :].sum()), int(coins[n // 2 :].sum()), 0, int((~coins[n // 2 :]).sum()), DELTA)
    small = {"width": 4, "latent_dim": 8, "d_width": 4, "batch_size": 8, "steps_per_message": STEPS, "rounds": 2}
    for coding in ("plain", "int8", "int4"):
        method = config.build_method(
            config.resolve("psfedgan", {**small, "d_coding": coding}), Task((1, 8, 8), 10, 2, 1)
        )
        assert isinstance(method, PsFedGan)
        features = [seen(method, with_white if c else without, asked, Rng((1, i))) for i, c in enumerate(coins)]
        tpr, fpr, eps = judged(np.array(features), coins)
        print(
            f"{coding:6} true positives {tpr:.1%}, false {fpr:.1%}: ε at least {eps:.2f} of {most:.2f} that could show"
        )


if __name__ == "__main__":
    main()
