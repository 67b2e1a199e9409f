"""What it costs to know where records are: the same small records in stores of 10^5 and of 10^8.

Run it as ``python benches/locations.py [--quick] [--dir DIR] [--json FILE]``; the data takes 3 GB in DIR and is removed
at the end. Records are int64 scalars, raw, so that the locations (16 bytes each on disk) outweigh them. In the deleted
stores random records were deleted, one in a hundred, so that no stretch of the table is regular.

Every measurement of opening, of first gathers and of memory is a process of its own; processes take turns, and so do
the stores in the steady state. Figures are medians, batches are 256 random records, and every batch is compared with
what was written. ``numpy mmap`` gathers the same bytes without any table: what it loses from 10^5 to 10^8 is what
caches and page tables cost whoever touches that much memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import ringloader

BATCH = 256
APPENDED = 4_000_000
DELETED_SHARE = 100
FIRST = 1_000
TURNS = 5
STEADY = 4_000
STEADY_TURN = 100


def value(index: np.ndarray) -> np.ndarray:
    """The record that was appended as number ``index``."""
    return index.astype(np.int64) * 0x5851_F42D_4C95 ^ 0x1234_5678


def write(path: Path, length: int, deleted: bool) -> None:
    """A store of ``length`` records; beside one with deletes, ``order.npy`` has each record's number when appended."""
    with ringloader.DenseStore.create(path, np.int64, (), codec="raw") as store:
        for start in range(0, length, APPENDED):
            store.append(value(np.arange(start, min(start + APPENDED, length))))
        if deleted:
            holes = np.random.default_rng(1).choice(length, length // DELETED_SHARE, replace=False)
            store.delete(holes)
            np.save(path.with_suffix(".npy"), after_deletes(length, holes))


def after_deletes(length: int, holes: np.ndarray) -> np.ndarray:
    """The numbers of the records that are left, by their place: the last takes each deleted one's."""
    order = np.arange(length)
    for hole in np.sort(holes)[::-1]:
        length -= 1
        order[hole] = order[length]
    return order[:length]


class Subject:
    """An open store and what its records must be."""

    def __init__(self, path: Path) -> None:
        start = time.perf_counter()
        self.store = ringloader.DenseStore.open(path, mode="r")
        self.opened = time.perf_counter() - start
        order = path.with_suffix(".npy")
        self.order = np.load(order, mmap_mode="r") if order.exists() else None

    def gather(self, plan: np.ndarray) -> float:
        """The seconds that a gather of ``plan`` takes."""
        start = time.perf_counter()
        batch = self.store.gather(plan)
        spent = time.perf_counter() - start
        assert np.array_equal(batch, value(plan if self.order is None else self.order[plan]))
        return spent


class Mapped:
    """The bytes of a store that was never deleted from, as numpy maps them."""

    def __init__(self, path: Path) -> None:
        self.records = np.memmap(path / "0.chunk", np.int64, mode="r")

    def gather(self, plan: np.ndarray) -> float:
        start = time.perf_counter()
        batch = self.records[plan]
        spent = time.perf_counter() - start
        assert np.array_equal(batch, value(plan))
        return spent


def child(path: Path, task: str) -> None:
    """One process: opens the store, and gathers from it for the first time or from all of it."""
    rng = np.random.default_rng()
    if task == "first":
        # The engine starts with the first store of a process, whatever its size.
        with tempfile.TemporaryDirectory(dir=path.parent) as other:
            write(Path(other) / "store", BATCH, deleted=False)
            Subject(Path(other) / "store").gather(np.arange(BATCH))
        subject = Subject(path)
        spent = [subject.gather(rng.integers(0, len(subject.store), BATCH)) for _ in range(FIRST)]
        print(json.dumps({"open": subject.opened, "gathers": spent}))
        return
    subject = Subject(path)
    subject.gather(np.arange(BATCH))
    before = anonymous_bytes()
    length = len(subject.store)
    # Far apart at first, as a sampler asks for them, until every location was asked for.
    for _ in range(FIRST):
        subject.gather(rng.integers(0, length, BATCH))
    for start in range(0, length, 65536):
        subject.gather(np.arange(start, min(start + 65536, length), 64))
    print(json.dumps({"bytes": anonymous_bytes() - before}))


def anonymous_bytes() -> int:
    """Resident memory of this process that is no file's."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) * 1024


def run_child(path: Path, task: str) -> dict:
    command = [sys.executable, __file__, "--child", task, str(path)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def evict(path: Path) -> None:
    """Takes the store's files out of the page cache."""
    for file in path.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(path: Path) -> None:
    """Takes the store's files into the page cache."""
    for file in path.iterdir():
        with file.open("rb") as opened:
            while opened.read(16 << 20):
                pass


def first_gathers(stores: dict[str, Path]) -> dict[str, dict[str, float]]:
    runs: dict[str, list[dict]] = {name: [] for name in stores}
    cold: dict[str, list[dict]] = {name: [] for name in stores}
    for _ in range(TURNS):
        for name, path in stores.items():
            evict(path)
            cold[name].append(run_child(path, "first"))
            warm(path)
            runs[name].append(run_child(path, "first"))
    return {
        name: {
            "open": statistics.median(run["open"] for run in runs[name]),
            "first": statistics.median(run["gathers"][0] for run in runs[name]),
            "2 to 100": statistics.median(statistics.mean(run["gathers"][1:100]) for run in runs[name]),
            "1000 together": statistics.median(sum(run["gathers"]) for run in runs[name]),
            "open cold": statistics.median(run["open"] for run in cold[name]),
            "first cold": statistics.median(run["gathers"][0] for run in cold[name]),
        }
        for name in stores
    }


def steady(stores: dict[str, Path]) -> dict[str, float]:
    contenders: dict[str, tuple[Subject | Mapped, int]] = {}
    for name, path in stores.items():
        subject = Subject(path)
        contenders[name] = subject, len(subject.store)
        if subject.order is None:
            contenders[f"numpy mmap {name}"] = Mapped(path), len(subject.store)
    rng = np.random.default_rng(3)
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for subject, length in contenders.values():
        for start in range(0, length, 65536):
            subject.gather(np.arange(start, min(start + 65536, length), 64))
    for _ in range(STEADY // STEADY_TURN):
        for name, (subject, length) in contenders.items():
            for warmup in itertools.chain([True] * 3, [False] * STEADY_TURN):
                seconds = subject.gather(rng.integers(0, length, BATCH))
                if not warmup:
                    spent[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def report(results: dict[str, dict[str, float]]) -> None:
    columns = ["open", "first", "2 to 100", "1000 together", "open cold", "first cold", "steady"]
    print(f"{'milliseconds':28}" + "".join(f"{column:>15}" for column in columns) + f"{'memory, MiB':>15}")
    for name, figures in results.items():
        cells = [f"{figures[column] * 1e3:15.3f}" if column in figures else " " * 15 for column in columns]
        memory = f"{figures['bytes'] / 2**20:15.1f}" if "bytes" in figures else ""
        print(f"{name:28}" + "".join(cells) + memory)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a hundredth of the records")
    parser.add_argument("--dir", type=Path, default=Path(), help="where the data goes; default: here")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    parser.add_argument("--child", nargs=2, metavar=("TASK", "STORE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(Path(args.child[1]), args.child[0])
        return
    scale = 100 if args.quick else 1
    sizes = {
        "never deleted, 10^5": (10**5, False),
        "never deleted, 10^8": (10**8 // scale, False),
        "deleted, 10^5": (10**5, True),
        "deleted, 10^7": (10**7 // scale, True),
    }
    with tempfile.TemporaryDirectory(prefix="ringloader-locations-", dir=args.dir.resolve()) as root:
        stores = {}
        for number, (name, (length, deleted)) in enumerate(sizes.items()):
            stores[name] = Path(root) / str(number)
            write(stores[name], length, deleted)
        results = first_gathers(stores)
        for name, path in stores.items():
            results[name]["bytes"] = run_child(path, "memory")["bytes"]
        for name, seconds in steady(stores).items():
            results.setdefault(name, {})["steady"] = seconds
    report(results)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
