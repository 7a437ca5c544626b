"""Overhead of the engine beyond client training, and memory of 1,000 clients.

    python benchmarks/engine.py

The time of a round is compared with the time spent inside `client_round` in the same run, so a noisy machine cancels
out. Memory is the peak of a process that trains 10 or 1,000 clients on the same images.
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


def memory(clients: int) -> dict[str, float]:
    """Peak resident memory of a run over this many clients, in megabytes."""
    import vitrail

    with tempfile.TemporaryDirectory() as folder:
        vitrail.train(
            "prism", out=f"{folder}/run", rounds=1, clients=clients, workers=1, grids=0, local_steps=1, batch_size=20
        )
        size = sum(p.stat().st_size for p in Path(folder).rglob("*.safetensors"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"peak_mb": peak, "disk_mb": size / 1e6}


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
        print(json.dumps(overhead(value) if what == "overhead" else memory(int(value))))
        return
    print("engine overhead beyond client training (10 clients, 3 rounds, default settings)")
    print(f"{'method':8} {'round':>9} {'clients':>9} {'overhead':>8}")
    for method in METHODS:
        m = in_new_process("overhead", method)
        print(f"{method:8} {m['round_seconds']:8.2f}s {m['client_seconds']:8.2f}s {m['share']:8.1%}")
    print("\npeak memory, same images")
    few, many = in_new_process("memory", "10"), in_new_process("memory", "1000")
    ratio = many["peak_mb"] / few["peak_mb"]
    print(f"10 clients {few['peak_mb']:.0f} MB, 1,000 clients {many['peak_mb']:.0f} MB: {ratio:.3f} x")
    print(f"on disk {few['disk_mb']:.0f} MB and {many['disk_mb']:.0f} MB of client state")


if __name__ == "__main__":
    main()
