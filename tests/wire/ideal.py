"""The ideal size of coded symbols, from their frequencies."""

from __future__ import annotations

import numpy as np
from scipy.stats import entropy


def ideal_bytes(symbols: np.ndarray, levels: np.ndarray) -> float:
    """Return the conditional entropy of symbols given their levels in bytes: a lower bound, without the table."""
    parts = (symbols[levels == level].astype(np.int64) for level in np.unique(levels))
    return float(sum(len(part) * entropy(np.bincount(part), base=2) for part in parts)) / 8
