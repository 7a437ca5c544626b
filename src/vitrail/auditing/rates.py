"""How well scores separate members from others: AUC, and true positives at a low rate of false positives."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vitrail.auditing.attack import Figure
from vitrail.metrics.measure import Z, share

Scores = NDArray[np.floating]
FPRS = (0.01, 0.001)  # false positive rates at which attacks are judged (Carlini et al. 2022)


def auc(members: Scores, others: Scores) -> tuple[float, float, float]:
    """Return the probability that a member scores above a non-member, and its 95% interval (Hanley, McNeil 1982).

    Examples:
        >>> auc(np.array([2.0, 3.0]), np.array([1.0, 0.0]))[0]
        1.0
    """
    n, m = len(members), len(others)
    below = np.searchsorted(np.sort(others), members)
    upto = np.searchsorted(np.sort(others), members, side="right")
    a = float((below + upto).mean() / (2 * m))
    q1, q2 = a / (2 - a), 2 * a**2 / (1 + a)
    half = Z * math.sqrt(max(0.0, a * (1 - a) + (n - 1) * (q1 - a**2) + (m - 1) * (q2 - a**2)) / (n * m))
    return a, max(0.0, a - half), min(1.0, a + half)


def figures(members: Scores, others: Scores, of: str) -> list[Figure]:
    """Return AUC and TPR at low FPR; higher scores indicate membership."""
    found = [Figure(f"AUC, {of}", *auc(members, others), 0.5)]
    for fpr in FPRS:
        if len(others) * fpr < 1:
            continue  # too few others to show this rate
        threshold = np.quantile(others, 1 - fpr, method="higher")
        found.append(Figure(f"TPR at FPR {fpr:.1%}, {of}", *share((members > threshold).astype(float)), fpr))
    return found
