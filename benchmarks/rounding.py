"""Whether rounding PS-FedGAN's discriminators hides an image, as its Proposition 4 states; takes about two minutes.

    python benchmarks/rounding.py --trials 400

A client has eight digits, or seven of them and a white image; all randomness is new in each trial. The attacker reads
one message and evaluates every D_u in it on each of the nine images. A linear map from D's outputs to the case is
fitted to the first half of the trials and evaluated on the second half.
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
    """Return eight digits, and the same with a white image in place of the last; all with the same label."""
    digits = load("digits", size=8).train.take(np.arange(8))
    white = digits.pixels.copy()
    white[-1] = 255
    zeros = np.zeros(8, np.int64)
    return Images(digits.pixels, zeros), Images(white, zeros)


def observe(method: PsFedGan, data: Images, candidates: torch.Tensor, rng: Rng) -> np.ndarray:
    """Return the change of D_u's output on each candidate image: at the end of the message, and on average."""
    server = method.server_init(rng.child("server"))
    request = {name: array for name, (_, array) in method.broadcast(server, "a", True).parts.items()}
    state = method.client_init("a", rng.child("client"))
    _, reply = method.client_round(state, ServerMessage(0, request), data, rng.child("round"))
    message = read(method, reply.parts, None)
    D = method.discriminator(message.architecture).eval()
    labels = torch.zeros(len(candidates), dtype=torch.int64)
    with torch.no_grad():
        outputs = torch.stack([from_vector(D, row)(candidates, labels).flatten() for row in message.discriminators])
    learned = (outputs - outputs[0]).numpy()
    return np.concatenate([learned[-1], learned.mean(0), [1.0]])


def evaluate(features: np.ndarray, coins: np.ndarray) -> tuple[float, float, float]:
    """Fit to the first half; return the rates of true and false positives and the lower bound of ε on the second."""
    half = len(coins) // 2
    along, *_ = np.linalg.lstsq(features[:half], coins[:half] - 0.5, rcond=None)
    guess, truth = features[half:] @ along > 0, coins[half:]
    tp, fp = int((guess & truth).sum()), int((guess & ~truth).sum())
    members, others = int(truth.sum()), int((~truth).sum())
    return tp / members, fp / others, from_rates(tp, members, fp, others, DELTA)


def main() -> None:
    """Print one line per coding of discriminators."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=400)
    n = parser.parse_args().trials
    torch.set_num_threads(1)
    without, with_white = both_cases()
    candidates = to_float(np.concatenate([without.pixels, with_white.pixels[-1:]]))
    coins = Rng((0,)).child("coins").numpy().random(n) < 0.5
    most = from_rates(int(coins[n // 2 :].sum()), int(coins[n // 2 :].sum()), 0, int((~coins[n // 2 :]).sum()), DELTA)
    small = {"width": 4, "latent_dim": 8, "d_width": 4, "batch_size": 8, "steps_per_message": STEPS, "rounds": 2}
    for coding in ("plain", "int8", "int4"):
        method = config.build_method(
            config.resolve("psfedgan", {**small, "d_coding": coding}), Task((1, 8, 8), 10, 2, 1)
        )
        assert isinstance(method, PsFedGan)
        features = [observe(method, with_white if c else without, candidates, Rng((1, i))) for i, c in enumerate(coins)]
        tpr, fpr, eps = evaluate(np.array(features), coins)
        print(f"{coding:6} true positives {tpr:.1%}, false {fpr:.1%}: ε ≥ {eps:.2f}, at most {most:.2f} could be shown")


if __name__ == "__main__":
    main()
