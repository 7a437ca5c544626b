"""Attacks that check privacy claims: what they find is a lower bound on ε, beside the upper bound that is claimed."""

from __future__ import annotations

ATTACKS: dict[str, str] = {
    "canaries": "inserted pictures, clients or gradients that are looked for in what is released: a lower bound on ε",
    "membership": "whether the model tells pictures it was trained on from others",
    "shadows": "the same by likelihood ratios, against runs that are trained for the purpose (takes time)",
    "copies": "whether samples lie nearer to training pictures than new pictures do",
    "inversion": "pictures rebuilt from what one client sends",
    "eavesdroppers": "generators grown from what users of psfedgan publish (takes about as long as the run)",
}
