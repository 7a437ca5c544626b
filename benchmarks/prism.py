"""Bytes sent by PRISM at the paper's size: the 32x32 ResNet, ten clients, 100 iterations per round at rate 0.1.

    python benchmarks/prism.py [--rounds 3] [--sampling independent] [--mada expected]

Prints, per round and in total, the bytes that one client sends and receives, compared with float32, with one byte per
element (as in the paper), with packed bits, and with the ideal code length; the size of the model file; the time to
code a mask on one core; and the time in which the server adds 1,000 masks, relative to the time to read them from
memory. Batches are small, because the bytes depend on how far scores move, not on the batch size.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import entropy

from vitrail.data import load
from vitrail.engines.replies import Failure
from vitrail.engines.rounds import Federation, run_round
from vitrail.engines.simulation import SimulatedClients, SimulationEngine
from vitrail.experiment import settings as config
from vitrail.methods.base import Task
from vitrail.models.model_file import save_model
from vitrail.utils.rng import Rng
from vitrail.wire.bit_counts import BitCounts
from vitrail.wire.klms import Klms
from vitrail.wire.message import decode as decode_message
from vitrail.wire.range_coder import decode, encode
from vitrail.wire.scores import levels

PAPER = {"generator": "resnet", "local_steps": 100, "lr": 0.1, "schedule": "constant", "score_std": 1.0}
K = 10


def ideal_bytes(symbols: np.ndarray, levels: np.ndarray) -> float:
    """Return the conditional entropy of symbols given their levels in bytes: a lower bound, without the table."""
    parts = (symbols[levels == level].astype(np.int64) for level in np.unique(levels))
    return float(sum(len(part) * entropy(np.bincount(part), base=2) for part in parts)) / 8


def traffic(args: argparse.Namespace) -> tuple[Any, Federation]:
    """Train for some rounds and print the bytes that one client sends and receives in each."""
    chosen = {
        **PAPER,
        "batch_size": args.batch,
        "sampling": args.sampling,
        "mada": args.mada,
        "features": "vitrail-fashion",
    }
    settings = config.resolve("prism", {**chosen, "rounds": args.rounds + 1})
    data, rng = load("mnist5k"), Rng((0,))
    method: Any = config.build_method(settings, Task(data.shape, 0, args.rounds + 1, K))
    fed = Federation(0, method.server_init(rng.child("server", "init")))
    shares = {f"client-{k}": np.arange(k, len(data.train), K) for k in range(K)}
    n = method.size
    print(f"bytes of one client, K = {K}, {n:,} elements, sampling={args.sampling}, mada={args.mada}")
    print(f"{'':10}{'up':>11}{'ideal':>11}{'over':>8}   {'down':>11}{'ideal':>11}{'over':>8}")
    totals = np.zeros(4)
    with tempfile.TemporaryDirectory() as folder:
        clients = SimulatedClients(method, b"a run of bytes 1", rng, shares, Path(folder))
        with SimulationEngine(clients, data.train.without_labels(), 2) as engine:
            replies: list[bytes] = []

            def ask(requests: Iterable[tuple[str, bytes] | None]) -> Iterator[tuple[str, bytes | Failure]]:
                for client, answer in engine.ask(requests):
                    assert isinstance(answer, bytes)
                    replies.append(answer)
                    yield client, answer

            ideal_down = 0.0
            for t in range(args.rounds + 1):  # the last round only for the bytes sent down in it
                replies.clear()
                s_t = fed.server["s"]
                fed, result = run_round(method, fed, clients.run, sorted(shares), ask, rng)
                masks = [decode(_mask(raw), levels(s_t), 2) for raw in replies]
                ideal_up = float(np.mean([ideal_bytes(m, levels(s_t)) for m in masks]))
                up, down = (float(np.mean(list(x.values()))) for x in (result.up, result.down))
                over = f"{down / ideal_down - 1:8.2%}" if ideal_down else f"{'':8}"
                print(
                    f"round {t + 1:<4}{up:11,.0f}{ideal_up:11,.0f}{up / ideal_up - 1:8.2%}   "
                    f"{down:11,.0f}{ideal_down:11,.0f}{over}",
                    flush=True,
                )
                totals += (up, ideal_up, down, ideal_down)
                counts = np.sum([m.astype(np.int64) for m in masks], axis=0)
                ideal_down = ideal_bytes(counts, levels(s_t, K + 1))
    rounds = args.rounds + 1
    print(f"{'total':10}{totals[0]:11,.0f}{totals[1]:11,.0f}{'':11}{totals[2]:11,.0f}{totals[3]:11,.0f}")
    print("compared with, per round:")
    for name, each in (("float32 scores", 4), ("one byte per element", 1), ("packed bits", 1 / 8)):
        print(f"  {name:20}{n * each:12,.0f}   {n * each * rounds / totals[0]:6.1f} x the bytes up in total")
    print(f"  {'float32 scores down':20}{n * 4:12,.0f}   {n * 4 * rounds / totals[2]:6.1f} x the bytes down in total")
    return method, fed


def _mask(reply: bytes) -> Any:
    return next(p for p in decode_message(reply).parts if p.name == "mask").array()


def model_file(method: Any, fed: Federation) -> None:
    """Print the size of the stored model."""
    with tempfile.TemporaryDirectory() as folder:
        for name, model in method.export_models(fed.server).items():
            path = Path(folder) / f"{name}.safetensors"
            save_model(path, model, (), {})
            print(f"model file ({name}): {path.stat().st_size:,} bytes; as float32 {4 * method.size:,}")


def coding(method: Any, fed: Federation) -> None:
    """Print the time and the bytes of coding a mask on one core."""
    s, draw = fed.server["s"], np.random.default_rng(0)
    mask = draw.random(len(s)) < 1 / (1 + np.exp(-s / 1024))
    coded = encode(mask, levels(s), 2)
    seconds = best(lambda: decode(encode(mask, levels(s), 2), levels(s), 2))
    print(f"encode and decode one mask: {seconds:.2f} s on one core, {len(coded):,} bytes")
    klms = Klms(method.klms_bits, method.klms_block)
    chosen: Any = None

    def choose() -> None:
        nonlocal chosen
        chosen = klms.encode(s / 1024, s, 1, draw)

    took, back = best(choose, 1), best(lambda: klms.decode(chosen, s, 1), 1)
    bits = 8 * len(chosen) / len(s)
    print(f"klms: {len(chosen):,} bytes, {bits:.3f} bits per element; encode {took:.1f} s, decode {back:.1f} s")


def aggregation(n: int, masks: int = 1000) -> None:
    """Print the time in which masks are added, relative to the time to read them."""
    n = n // 64 * 64
    packed = np.random.default_rng(0).integers(0, 256, (masks, n // 8), dtype=np.uint8)
    read = best(lambda: np.bitwise_xor.reduce(packed.view(np.uint64), axis=None))

    def count() -> None:
        counts = BitCounts(n)
        for mask in packed:
            counts.add(mask)
        counts.totals()

    def plain() -> None:
        total = np.zeros(n, np.int64)
        for mask in packed[: masks // 20]:
            total += np.unpackbits(mask)

    ours, slow = best(count), best(plain) * 20
    print(
        f"server, {masks:,} masks of {n:,}: {ours:.2f} s, {ours / read:.1f} x the time to read them ({read:.2f} s); "
        f"one by one into 64-bit counts {slow:.1f} s, {slow / read:.0f} x"
    )


def best(work: Callable[[], object], times: int = 3) -> float:
    """Return the shortest time of a few runs, because the machine may be shared."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sampling", default="stratified", choices=["stratified", "independent"])
    parser.add_argument("--mada", default="off", choices=["off", "sampled", "expected"])
    args = parser.parse_args()
    method, fed = traffic(args)
    model_file(method, fed)
    coding(method, fed)
    aggregation(method.size)


if __name__ == "__main__":
    main()
