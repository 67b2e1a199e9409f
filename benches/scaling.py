"""How gathers scale: batch sizes, record sizes, single records and threads, beside loaderx 1.8.6 and numpy's mmap.

Run it as ``python benches/scaling.py [--dir DIR] [--plots DIR] [--json FILE]``. Records are raw and in the page cache.
The contenders take turns; figures are medians, of rates except for the latencies.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import loaderx.zrecord
import matplotlib
import numpy as np
from contest import copy_store

import ringloader

matplotlib.use("svg")
from matplotlib import pyplot

BATCH_SIZES = [1, 4, 16, 64, 256, 1024, 4096, 16384]
RECORD_BYTES = [64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 8 << 20]
THREADS = [1, 2, 4, 8]
STORE_BYTES = 512 << 20
TURNS = 5
TURN_SECONDS = 0.1
Gathers = dict[str, Callable[[np.ndarray], np.ndarray]]


class Stores:
    """The same raw records in a store of each contender, in `gathers`."""

    def __init__(self, root: Path, record_bytes: int) -> None:
        self.root = root / str(record_bytes)
        self.root.mkdir()
        self.count = min(STORE_BYTES // record_bytes, 1 << 20)
        rng = np.random.default_rng(record_bytes)
        self.data = rng.integers(0, 256, (self.count, record_bytes), dtype=np.uint8)
        np.save(self.root / "data.npy", self.data)
        path = self.root / "store"
        with ringloader.DenseStore.create(path, np.uint8, (record_bytes,), codec="raw") as store:
            for start in range(0, self.count, 4096):
                store.append(self.data[start : start + 4096])
        self.opened = [
            ringloader.DenseStore.open(path, mode="r"),
            loaderx.zrecord.DenseStore.open(copy_store(path)),
        ]
        mapped = np.load(self.root / "data.npy", mmap_mode="r")
        self.gathers: Gathers = {
            "ringloader": self.opened[0].__getitem__,
            "loaderx": self.opened[1].__getitem__,
            "numpy mmap": lambda plan: np.asarray(mapped[plan]),
        }
        for gather in self.gathers.values():
            plan = rng.integers(0, self.count, min(self.count, 256))
            assert np.array_equal(gather(plan), self.data[plan])

    def close(self) -> None:
        self.gathers.clear()
        for store in self.opened:
            store.close()
        shutil.rmtree(self.root)


def turn(gather: Callable[[np.ndarray], np.ndarray], count: int, batch: int, seed: int) -> list[float]:
    """Seconds of each batch of one turn."""
    rng, spent = np.random.default_rng(seed), []
    begin = time.perf_counter()
    while time.perf_counter() - begin < TURN_SECONDS or len(spent) < 4:
        plan = rng.integers(0, count, batch)
        start = time.perf_counter()
        gather(plan)
        spent.append(time.perf_counter() - start)
    return spent[1:]


def by_turns(stores: Stores, batch: int) -> dict[str, list[float]]:
    spent: dict[str, list[float]] = {name: [] for name in stores.gathers}
    for number in range(TURNS):
        for name, gather in stores.gathers.items():
            spent[name] += turn(gather, stores.count, batch, number)
    return spent


def batch_sizes(stores: Stores) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in stores.gathers}
    for batch in BATCH_SIZES:
        for name, spent in by_turns(stores, batch).items():
            rates[name].append(batch / statistics.median(spent))
    return rates


def record_sizes(root: Path) -> dict[str, list[float]]:
    """Bytes a second; batches of 256, or fewer where that is over 64 MiB."""
    rates: dict[str, list[float]] = {}
    for record_bytes in RECORD_BYTES:
        stores = Stores(root, record_bytes)
        batch = min(256, (64 << 20) // record_bytes)
        for name, spent in by_turns(stores, batch).items():
            rates.setdefault(name, []).append(batch * record_bytes / statistics.median(spent))
        stores.close()
    return rates


def latencies(stores: Stores) -> dict[str, list[float]]:
    """Microseconds of the median and of the 99th percentile of single records."""
    of_one = by_turns(stores, 1)
    return {name: [float(np.percentile(spent, p)) * 1e6 for p in (50, 99)] for name, spent in of_one.items()}


def by_threads(stores: Stores) -> dict[str, list[float]]:
    """Records a second of all threads together, in batches of 256."""
    rates: dict[str, list[float]] = {}
    for threads in THREADS:
        samples: dict[str, list[float]] = {name: [] for name in stores.gathers}
        for number in range(TURNS):
            for name, gather in stores.gathers.items():
                samples[name].append(together(gather, stores.count, threads, number))
        for name, sample in samples.items():
            rates.setdefault(name, []).append(statistics.median(sample))
    return rates


def together(gather: Callable[[np.ndarray], np.ndarray], count: int, threads: int, seed: int) -> float:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(len(turn(gather, count, 256, seed * 100 + number)) + 1)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(done) == threads
    return sum(done) * 256 / (time.perf_counter() - begin)


def plot(
    path: Path, title: str, across: str, up: str, places: list[int], lines: dict[str, list[float]]
) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "ringloader"
    figure, axes = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
    for name, values in lines.items():
        axes.plot(places, values, marker="o", label=name)
    axes.set(title=title, xlabel=across, ylabel=up, xscale="log", yscale="log")
    axes.set_xticks(places, [str(place) for place in places], rotation=30)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where the stores are put")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="where the plots are put")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    args = parser.parse_args()
    args.plots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.dir) as root:
        stores = Stores(Path(root), 2048)
        results = {
            "batch_sizes": batch_sizes(stores),
            "latencies_us": latencies(stores),
            "threads": by_threads(stores),
        }
        stores.close()
        results["record_bytes"] = record_sizes(Path(root))
    tables = [
        ("batch_sizes", "2 KiB records, warm", "records in a batch", "records/s", BATCH_SIZES),
        (
            "record_bytes",
            "batches of 256 (64 MiB at most), warm",
            "bytes in a record",
            "bytes/s",
            RECORD_BYTES,
        ),
        ("threads", "2 KiB records, batches of 256, warm", "threads", "records/s", THREADS),
        ("latencies_us", "one 2 KiB record, warm", "percentile", "us", [50, 99]),
    ]
    for name, title, across, up, places in tables:
        plot(args.plots / f"{name}.svg", title, across, up, places, results[name])
        print(f"{name}: {up} at {across} {places}")
        for peer, values in results[name].items():
            print(f"  {peer:12}", " ".join(f"{value:.4g}" for value in values))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
