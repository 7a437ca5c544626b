"""What an evaluation costs: seconds for 5,000 pictures by our own network, and memory as their number grows.

    python benchmarks/evaluation.py

The generator is PRISM's default for digits, untrained: what it draws does not change what it costs. Every figure comes
from a process of its own, with an empty cache.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(n: int, folder: Path) -> None:
    """Evaluate n pictures in this process and print seconds and peak memory."""
    began = time.perf_counter()
    from vitrail.experiment.evaluate import evaluate_stored

    imported = time.perf_counter()
    evaluate_stored(folder / "model.safetensors", families=["fd-vitrail"], n=n)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done = time.perf_counter()
    print(json.dumps({"n": n, "seconds": done - began, "import": imported - began, "MB": peak}))


def model(folder: Path) -> None:
    """A model file of PRISM's default generator."""
    from vitrail.experiment import settings as config
    from vitrail.methods.base import Task
    from vitrail.models.model_file import save_model
    from vitrail.utils.rng import Rng

    method = config.build_method(config.resolve("prism", {}), Task((1, 32, 32), 10, 1, 1))
    made = method.export_models(method.server_init(Rng((0,))))["generator"]
    save_model(folder / "model.safetensors", made, tuple("0123456789"), {"data": "mnist5k"})


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model(folder)
        print("| pictures | seconds, cold start and empty cache | of it imports | peak memory |\n|---|---|---|---|")
        for n in (5000, 20_000):
            home = {**os.environ, "VITRAIL_HOME": str(folder / f"home-{n}")}
            words = [sys.executable, __file__, str(n), name]
            out = subprocess.run(words, env=home, capture_output=True, text=True, check=True).stdout
            found = json.loads(out)
            print(f"| {n:,} | {found['seconds']:.1f} | {found['import']:.1f} | {found['MB']:.0f} MB |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
