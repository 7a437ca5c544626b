"""Overhead of the engine beyond client training, and time and memory from 10 to 10,000 clients.

    VITRAIL_ASSETS=FOLDER python benchmarks/engine.py

The time of a round is compared with the time spent inside `client_round` in the same run, so a noisy machine cancels
out. The scaling curve trains prism on MNIST at 8x8 pixels, with the same images divided among more and more clients,
in one process: seconds per client of the second of two rounds, and the peak memory of the process.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

METHODS: dict[str, dict[str, Any]] = {"prism": {}, "fedgan": {}}


def overhead(method: str) -> dict[str, float]:
    """Three rounds of ten clients, in one process; the share of time not spent in the clients' training."""
    import vitrail
    from vitrail.methods import METHODS as REGISTERED

    cls: Any = REGISTERED[method]
    inside = [0.0]
    real = cls.client_round

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return real(*args)
        finally:
            inside[0] += time.perf_counter() - began

    cls.client_round = timed
    with tempfile.TemporaryDirectory() as folder:
        run = vitrail.train(method, out=f"{folder}/run", rounds=3, clients=10, workers=1, grids=0, **METHODS[method])
        rounds = sum(row["seconds"] for row in run.rows)
    return {"round_seconds": rounds / 3, "client_seconds": inside[0] / 3, "share": 1 - inside[0] / rounds}


def scaling(clients: int) -> dict[str, float]:
    """Return seconds per client in the second round, and peak resident memory in megabytes."""
    import vitrail

    small: dict[str, Any] = {"size": 8, "width": 0.25, "local_steps": 1, "batch_size": 20}
    with tempfile.TemporaryDirectory() as folder:
        run = vitrail.train(
            "prism", data="mnist", out=f"{folder}/run", rounds=2, clients=clients, workers=1, grids=0, eval_every=0,
            **small,
        )  # fmt: skip
        seconds = run.rows[-1]["seconds"] / clients
        disk = sum(p.stat().st_size for p in Path(folder).rglob("*.safetensors"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms_per_client": 1e3 * seconds, "peak_mb": peak, "disk_kb_per_client": disk / 1e3 / clients}


def in_new_process(*words: str) -> dict[str, float]:
    """Run one measurement in a new process with its own cache."""
    with tempfile.TemporaryDirectory() as home:
        import os

        done = subprocess.run(
            [sys.executable, __file__, *words],
            capture_output=True, text=True, check=True, env={**os.environ, "VITRAIL_HOME": home},
        )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print both tables."""
    if len(sys.argv) == 3:
        what, value = sys.argv[1:]
        print(json.dumps(overhead(value) if what == "overhead" else scaling(int(value))))
        return
    print("engine overhead beyond client training (10 clients, 3 rounds, default settings)")
    print(f"{'method':8} {'round':>9} {'clients':>9} {'overhead':>8}")
    for method in METHODS:
        m = in_new_process("overhead", method)
        print(f"{method:8} {m['round_seconds']:8.2f}s {m['client_seconds']:8.2f}s {m['share']:8.1%}")
    print("\nthe same images divided among more clients")
    print(f"{'clients':>8} {'per client':>11} {'peak memory':>12} {'state on disk, per client':>26}")
    for clients in (10, 100, 1_000, 10_000):
        m = in_new_process("scaling", str(clients))
        print(f"{clients:8,} {m['ms_per_client']:8.1f} ms {m['peak_mb']:9.0f} MB {m['disk_kb_per_client']:23.1f} kB")


if __name__ == "__main__":
    main()
