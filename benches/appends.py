"""Append of ringloader beside loaderx 1.8.6, of the same records in one run.

Run it as ``python benches/appends.py [--quick] [--only NAME] [--json FILE]``. The peers append the same part in turns,
each first as often as the other. Medians are printed, and the ratio: above 1 ringloader is faster.
"""

from __future__ import annotations

import argparse
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


def report(name: str, seconds: dict[str, float], amount: float, unit: str) -> dict:
    ours = seconds["ringloader"]
    cells = [f"{peer} {amount / spent:8.1f} {unit}" for peer, spent in seconds.items()]
    ratios = {peer: spent / ours for peer, spent in seconds.items() if peer != "ringloader"}
    print(
        f"{name:26} {'  '.join(cells)}   " + "  ".join(f"{r:.2f} x {peer}" for peer, r in ratios.items()),
        flush=True,
    )
    return {"seconds": seconds, "ratios": ratios}


def append(
    cls: str, data: Sequence, codec: str, root: Path, step: int, *identity: object
) -> dict[str, float]:
    """The median seconds in which each peer appends `step` records to a new store."""
    dictionary = {"dict_bytes": loaderx.utils.train_dict(data)} if codec == "zstd_dict" else {}
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
    for store in stores.values():
        assert len(store) == len(data)
        store.close()
    # The last part may be smaller.
    return {peer: statistics.median(times[:-1] or times) for peer, times in spent.items()}


def dense(name: str, data: np.ndarray, codec: str, root: Path) -> dict:
    step = min(len(data), max(1, (16 << 20) // data[0].nbytes))
    seconds = append("DenseStore", data, codec, root, step, data.dtype, data.shape[1:])
    return report(f"{name} {codec}", seconds, step * data[0].nbytes / 2**20, "MiB/s")


def ragged(name: str, data: list[np.ndarray], codec: str, root: Path) -> dict:
    step = 4096
    mean = sum(record.nbytes for record in data) / len(data)
    seconds = append("RaggedStore", data, codec, root, step, data[0].dtype)
    return report(f"{name} {codec}", seconds, step * mean / 2**20, "MiB/s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer records")
    parser.add_argument("--only", default="", help="run workloads whose name contains this")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    scale = 1 if args.quick else 4
    results = {}
    workloads: dict[str, Callable[[Path], dict]] = {}
    for codec in ("raw", "zstd"):
        workloads[f"images {codec}"] = lambda root, codec=codec: dense(
            "images 147 KiB", records.images(400 * scale), codec, root
        )
    for codec in ("raw", "zstd", "zstd_dict"):
        count = 50_000 * scale if codec != "zstd_dict" else 20_000
        workloads[f"tokens {codec}"] = lambda root, codec=codec, count=count: dense(
            "tokens 2 KiB", records.token_blocks(count), codec, root
        )
        workloads[f"ragged {codec}"] = lambda root, codec=codec, count=count: ragged(
            "ragged tokens", records.token_sequences(count), codec, root
        )
    for name, workload in workloads.items():
        if args.only in name:
            with tempfile.TemporaryDirectory(prefix="ringloader-bench-") as root:
                results[name] = workload(Path(root))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
