"""Gather and append of ringloader beside loaderx 1.8.6 and a numpy mmap, on the same records in one run.

Run it as ``python benches/stores.py [--quick] [--only NAME]``. Every contender gathers the same random batches of
256, in turns, and every batch is checked against its source before it is timed. Medians are printed, and the ratios
of ringloader to each peer: above 1 ringloader is faster. The page cache is warm.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import loaderx.utils
import loaderx.zrecord
import numpy as np
import records

import ringloader

BATCH = 256
WARMUP = 5


class Contest:
    """Contenders for one workload, timed in turns so that a noisy moment meets all of them."""

    def __init__(self, name: str, unit_bytes: float) -> None:
        self.name = name
        self.unit_bytes = unit_bytes
        self.contenders: dict[str, Callable[[np.ndarray], object]] = {}

    def run(self, plans: Sequence[np.ndarray], check: Callable[[object, np.ndarray], None]) -> dict:
        for gather in self.contenders.values():
            for plan in plans[:WARMUP]:
                check(gather(plan), plan)
        times: dict[str, list[float]] = {name: [] for name in self.contenders}
        # Each contender runs some batches in a row, as a training loop does.
        for block in itertools.batched(plans, 10) if hasattr(itertools, "batched") else _batched(plans, 10):
            for name, gather in self.contenders.items():
                gather(block[0])
                for plan in block:
                    start = time.perf_counter()
                    batch = gather(plan)
                    times[name].append(time.perf_counter() - start)
                    del batch
        return {name: statistics.median(samples) for name, samples in times.items()}


def _batched(items: Sequence, size: int) -> list[Sequence]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def report(name: str, seconds: dict[str, float], amount: float, unit: str) -> dict:
    ours = seconds["ringloader"]
    cells = [f"{peer} {amount / spent:8.1f} {unit}" for peer, spent in seconds.items()]
    ratios = {peer: spent / ours for peer, spent in seconds.items() if peer != "ringloader"}
    print(
        f"{name:26} {'  '.join(cells)}   " + "  ".join(f"{r:.2f} x {peer}" for peer, r in ratios.items()),
        flush=True,
    )
    return {"seconds": seconds, "ratios": ratios}


def create_and_append(
    cls: str, data: Sequence, codec: str, root: Path, step: int, *identity: object
) -> tuple[dict, dict]:
    """Stores of both peers with the records of `data`, and the median seconds of an append of `step` of them.

    The peers append the same part in turns, each first as often as the other.
    """
    dictionary = {}
    if codec == "zstd_dict":
        dictionary = {"dict_bytes": loaderx.utils.train_dict(data)}
    peers = {"ringloader": ringloader, "loaderx": loaderx.zrecord}
    stores = {
        peer: getattr(module, cls).create(root / f"{peer}-{codec}", *identity, codec=codec, **dictionary)
        for peer, module in peers.items()
    }
    spent: dict[str, list[float]] = {peer: [] for peer in peers}
    for number, start in enumerate(range(0, len(data), step)):
        for peer in sorted(peers, reverse=number % 2 == 1):
            begin = time.perf_counter()
            stores[peer].append(data[start : start + step])
            spent[peer].append(time.perf_counter() - begin)
    # The last part may be smaller.
    return stores, {peer: statistics.median(times[:-1] or times) for peer, times in spent.items()}


def dense(name: str, data: np.ndarray, codec: str, root: Path, batches: int, with_mmap: bool) -> dict:
    step = max(1, (16 << 20) // data[0].nbytes)
    stores, appends = create_and_append("DenseStore", data, codec, root, step, data.dtype, data.shape[1:])
    results = {
        "append": report(
            f"{name} {codec} append", appends, min(step, len(data)) * data[0].nbytes / 2**20, "MiB/s"
        )
    }
    contest = Contest(name, data[0].nbytes)
    for peer in ("ringloader", "loaderx"):
        contest.contenders[peer] = stores[peer].__getitem__
    if with_mmap:
        np.save(root / "data.npy", data)
        contest.contenders["mmap"] = np.load(root / "data.npy", mmap_mode="r").__getitem__

    def check(batch: object, plan: np.ndarray) -> None:
        assert np.array_equal(np.asarray(batch), data[plan])

    seconds = contest.run(plans(len(data), batches), check)
    results["gather"] = report(f"{name} {codec} gather", seconds, BATCH / 1000, "krec/s")
    for store in stores.values():
        store.close()
    return results


def ragged(name: str, data: list[np.ndarray], codec: str, root: Path, batches: int) -> dict:
    step = 4096
    stores, appends = create_and_append("RaggedStore", data, codec, root, step, data[0].dtype)
    mean = sum(record.nbytes for record in data) / len(data)
    results = {"append": report(f"{name} {codec} append", appends, step * mean / 2**20, "MiB/s")}
    contest = Contest(name, mean)
    contest.contenders["ringloader"] = stores["ringloader"].__getitem__
    contest.contenders["loaderx"] = stores["loaderx"].__getitem__
    contest.contenders["ringloader packed"] = stores["ringloader"].gather_packed

    def check(batch: object, plan: np.ndarray) -> None:
        if isinstance(batch, ringloader.RaggedBatch):
            batch = np.split(batch.values, batch.offsets[1:-1])
        assert len(batch) == len(plan)
        assert all(np.array_equal(record, data[i]) for record, i in zip(batch, plan, strict=True))

    seconds = contest.run(plans(len(data), batches), check)
    results["gather"] = report(f"{name} {codec} gather", seconds, BATCH / 1000, "krec/s")
    for store in stores.values():
        store.close()
    return results


def plans(length: int, batches: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, length, BATCH) for _ in range(batches)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer records and batches")
    parser.add_argument("--only", default="", help="run workloads whose name contains this")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    scale = 1 if args.quick else 4
    print(f"reading through {ringloader.engine_info()['io']}; batches of {BATCH}; medians")
    results = {}
    workloads: dict[str, Callable[[Path], dict]] = {}
    for codec in ("raw", "zstd"):
        workloads[f"images {codec}"] = lambda root, codec=codec: dense(
            "images 147 KiB", records.images(400 * scale), codec, root, 20 * scale, codec == "raw"
        )
    for codec in ("raw", "zstd", "zstd_dict"):
        count = 50_000 * scale if codec != "zstd_dict" else 20_000
        workloads[f"tokens {codec}"] = lambda root, codec=codec, count=count: dense(
            "tokens 2 KiB", records.token_blocks(count), codec, root, 100 * scale, codec == "raw"
        )
        workloads[f"ragged {codec}"] = lambda root, codec=codec, count=count: ragged(
            "ragged tokens", records.token_sequences(count), codec, root, 50 * scale
        )
    for name, workload in workloads.items():
        if args.only in name:
            with tempfile.TemporaryDirectory(prefix="ringloader-bench-") as root:
                results[name] = workload(Path(root))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
