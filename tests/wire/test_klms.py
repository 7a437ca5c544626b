"""Masks chosen from common random candidates."""

import numpy as np
import pytest

from vitrail.utils.errors import Malformed
from vitrail.wire.klms import Klms

PRIOR = np.clip(np.random.default_rng(0).normal(0, 1024, 6000), -3500, 3500).astype(np.int16)


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def test_unchanged_scores_give_draws_from_the_prior():
    coder = Klms(4, 30)
    masks = np.array(
        [
            coder.decode(coder.encode(PRIOR / 1024, PRIOR, k, np.random.default_rng(k)), PRIOR, k)
            for k in range(60)
        ]
    )  # fmt: skip
    theta = sigmoid(PRIOR / 1024)
    assert np.abs(masks.mean(0) - theta).mean() < 1.2 * np.mean(np.sqrt(theta * (1 - theta) / 60))


def test_masks_follow_the_scores_with_enough_bits_and_partly_with_fewer():
    """The slope of the decoded change on the intended one; 1 is exact."""
    learned = PRIOR / 1024 + np.random.default_rng(1).normal(0, 0.7, len(PRIOR))
    moved, slopes = sigmoid(learned) - sigmoid(PRIOR / 1024), []
    for bits, block in ((8, 8), (6, 64), (2, 128)):
        coder = Klms(bits, block)
        masks = [coder.decode(coder.encode(learned, PRIOR, k, np.random.default_rng(k)), PRIOR, k) for k in range(30)]
        slopes.append(np.polyfit(moved, np.mean(masks, 0) - sigmoid(PRIOR / 1024), 1)[0])
    assert slopes[0] == pytest.approx(1, abs=0.1)
    assert slopes[0] > slopes[1] > slopes[2] > 0.1


def test_the_rate_is_as_configured():
    payload = Klms(6, 64).encode(PRIOR / 1024, PRIOR, 1, np.random.default_rng(0))
    assert len(payload) == -(-6 * -(-len(PRIOR) // 64) // 8)


def test_a_payload_of_another_length_is_refused():
    coder = Klms(6, 64)
    payload = coder.encode(PRIOR / 1024, PRIOR, 1, np.random.default_rng(0))
    for bad in (payload[:-1], np.append(payload, np.uint8(0)), payload[:0]):
        with pytest.raises(Malformed):
            coder.decode(bad, PRIOR, 1)
