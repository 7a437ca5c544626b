"""How often an oracle takes a run's pictures for what was asked: Fan & Liu's Score.

    python benchmarks/agreement.py RUN

The oracle is trained on held-out real pictures of the run's own data, which no client ever saw, and the pictures come
from the stored model file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vitrail import config
from vitrail.artifact import load
from vitrail.data import load as load_data
from vitrail.engines.embedded import one_thread
from vitrail.evaluate.oracle import agreement, train_oracle
from vitrail.rng import Rng


def main() -> None:
    """Print the oracle's own accuracy and its agreement with a run's model."""
    folder = Path(sys.argv[1])
    settings = config.resolve(str(folder / "settings.toml"), {})
    data = load_data(settings.data, size=settings.size, held_out=settings.held_out)
    with one_thread():
        oracle = train_oracle(data.test, len(data.classes), Rng((0,)))
        share = agreement(oracle, load(folder), 2000)
    print(
        f"oracle: {len(data.test)} held-out pictures of {data.name}, {oracle.accuracy:.1%} right on its own test fifth"
    )
    print(f"agreement with the asked label: {share:.1%} of 2,000 pictures of {folder / 'model.safetensors'}")


if __name__ == "__main__":
    main()
