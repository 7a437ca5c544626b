"""Attacks that check privacy claims. Each gives a lower bound on ε, to compare with the claimed upper bound.

audit_run.py attacks a run's folder; attack.py has what attacks share. What they need of a method are its hooks.
"""

from __future__ import annotations

ATTACKS: dict[str, str] = {
    "canaries": "inserted images, clients or gradients that are detected in what is released: a lower bound on ε",
    "membership": "whether the model distinguishes images it was trained on from others",
    "shadows": "the same by likelihood ratios, against runs that are trained for this purpose (takes time)",
    "copies": "whether samples are closer to training images than new images are",
    "inversion": "images reconstructed from what one client sends",
    "eavesdroppers": "secret generators, rebuilt from messages as the server does (takes about as long as the run)",
}
