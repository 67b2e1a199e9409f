"""Gathers of ringloader beside loaderx 1.8.6, numpy's mmap and what the machine can do at most, in one run.

Run it as ``python benches/gathers.py [--quick] [--only NAME] [--dir DIR] [--json FILE] [--markdown FILE]``. Batches
have 256 records, random unless the workload says otherwise; figures are medians. A limit is a Rust program that does
the same work with nothing around it (benches/limits). Before each turn of a cold workload the page cache is dropped,
and before each turn of a warm one the files are read.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import loaderx.utils
import loaderx.zrecord
import numpy as np
import records
from contest import Contender, Limit, bring_in, build_limits, copy_store, evict, medians

import ringloader

BATCH = 256
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Result:
    """What was measured for a workload: seconds a batch, and what they should be beside the others'."""

    name: str
    seconds: dict[str, float]
    must: dict[str, float] = field(default_factory=dict)
    limit: str = ""

    def ratios(self) -> dict[str, float]:
        return {peer: spent / self.seconds["ringloader"] for peer, spent in self.seconds.items()}

    def row(self) -> list[str]:
        ratios = self.ratios()
        reached = all(ratios[peer] >= least for peer, least in self.must.items())
        must = ", ".join(f"{least:g} x {peer}" for peer, least in self.must.items())
        return [
            self.name,
            f"{BATCH / self.seconds['ringloader'] / 1000:.4g}",
            *(f"{ratios[peer]:.2f} x" if peer in ratios else "" for peer in ("loaderx", "numpy mmap")),
            f"{ratios['limit']:.2f} of {self.limit}" if "limit" in ratios else "",
            f"{must}: {'reached' if reached else 'NOT REACHED'}" if must else "",
        ]


HEADINGS = ["workload", "krec/s", "loaderx", "numpy mmap", "limit", "must"]


class Bench:
    """Where the stores are, and how much is measured."""

    def __init__(self, root: Path, quick: bool) -> None:
        self.root = root
        self.rounds = 3 if quick else 6
        self.scale = 1 if quick else 4
        self.limits = build_limits()
        self.rng = np.random.default_rng(7)

    def random_plans(self, length: int) -> Iterator[np.ndarray]:
        while True:
            yield self.rng.integers(0, length, BATCH)

    def limit(self, *arguments: object) -> Limit:
        return Limit(self.limits, arguments)


class Dense:
    """Records of one shape, in a store of each contender."""

    def __init__(self, bench: Bench, name: str, data: np.ndarray, codec: str) -> None:
        self.bench, self.data, self.codec = bench, data, codec
        self.path = bench.root / f"{name}-{codec}"
        dictionary = {"dict_bytes": loaderx.utils.train_dict(data)} if codec == "zstd_dict" else {}
        shape = data.shape[1:]
        with ringloader.DenseStore.create(self.path, data.dtype, shape, codec=codec, **dictionary) as store:
            # In large parts, as numpy writes its file: the page cache has larger pages then, for whoever maps it.
            for start in range(0, len(data), 10_000):
                store.append(data[start : start + 10_000])
        self.copied = copy_store(self.path)
        if codec == "raw":
            np.save(bench.root / "data.npy", data)
        self.open()

    def open(self) -> None:
        self.stores = {
            "ringloader": ringloader.DenseStore.open(self.path, mode="r"),
            "loaderx": loaderx.zrecord.DenseStore.open(self.copied),
        }
        if self.codec == "raw":
            self.stores["numpy mmap"] = np.load(self.bench.root / "data.npy", mmap_mode="r")

    def close(self) -> None:
        for name in ("ringloader", "loaderx"):
            self.stores[name].close()
        self.stores.clear()

    def evict(self) -> None:
        """Nothing that is mapped is dropped, so the stores are opened anew."""
        self.close()
        evict(self.bench.root)
        self.open()

    def bring_in(self) -> None:
        bring_in(self.bench.root)

    def contenders(self, batches: dict[str, int], untimed: int = 2) -> dict[str, Contender | Limit]:
        def check(batch: object, plan: object) -> None:
            assert np.array_equal(np.asarray(batch), self.data[plan])

        def contender(name: str) -> Contender:
            return Contender(
                lambda plan: self.stores[name][plan], check, batches.get(name, batches["others"]), untimed
            )

        return {name: contender(name) for name in self.stores}

    def warm(self, name: str, must: dict[str, float], batches: int) -> Result:
        contenders = self.contenders({"others": batches})
        length, record_bytes = len(self.data), self.data[0].nbytes
        if self.codec == "raw":
            limit_name = f"a {CORES}-thread memcpy"
            contenders["limit"] = self.bench.limit("memcpy", record_bytes, length, BATCH, batches * 4, CORES)
        else:
            limit_name = "a decode loop in memory"
            contenders["limit"] = self.bench.limit("decode", self.path, BATCH, batches * 2, CORES)
        seconds = medians(
            contenders, lambda: self.bench.random_plans(length), self.bench.rounds, self.bring_in
        )
        return Result(name, seconds, must, limit_name)

    def cold(self, name: str, must: dict[str, float], batches: dict[str, int]) -> Result:
        """The first batch counts too: a mapping's readahead may read most of the file for it."""
        contenders = self.contenders(batches, untimed=0)
        length, record_bytes = len(self.data), self.data[0].nbytes
        contenders["limit"] = self.bench.limit(
            "uring", self.path / "0.chunk", record_bytes, BATCH, batches["ringloader"]
        )
        seconds = medians(
            contenders, lambda: self.bench.random_plans(length), 2 * self.bench.rounds, self.evict
        )
        return Result(name, seconds, must, "an io_uring program")

    def scan(self, name: str, cold: bool, batches: int) -> Result:
        """From front to back, a slice after the other; a mapped array is copied, as it is only a view.

        A warm turn is long enough to see most of the store: a page that a process has never touched costs it more.
        """
        contenders = self.contenders({"others": batches}, untimed=0 if cold else 2)
        contenders["numpy mmap"].gather = lambda part: np.array(self.stores["numpy mmap"][part])
        for contender in contenders.values():
            contender.whole_turns = True

        def plans() -> Iterator[slice]:
            first = int(self.bench.rng.integers(0, len(self.data) - (batches + 3) * BATCH))
            return (slice(start, start + BATCH) for start in itertools.count(first, BATCH))

        before = self.evict if cold else self.bring_in
        rounds = self.bench.rounds * (2 if cold else 1)
        return Result(name, medians(contenders, plans, rounds, before), {"numpy mmap": 1.0})


def images_raw(bench: Bench) -> Iterator[Result]:
    dense = Dense(bench, "images", records.images(3400 * bench.scale), "raw")
    yield dense.warm("warm 147 KiB raw", {"loaderx": 1.8, "numpy mmap": 2.0}, 10)
    yield dense.scan("warm scan 147 KiB raw", False, 12 * bench.scale)
    cold = {"ringloader": 4, "loaderx": 4, "numpy mmap": 1, "others": 4}
    yield dense.cold("cold 147 KiB raw", {"loaderx": 1.5, "numpy mmap": 4.0}, cold)
    yield dense.scan("cold scan 147 KiB raw", True, 10)
    dense.close()


def tokens_raw(bench: Bench) -> Iterator[Result]:
    dense = Dense(bench, "tokens", records.token_blocks(250_000 * bench.scale), "raw")
    yield dense.warm("warm 2 KiB tokens raw", {"loaderx": 3.0, "numpy mmap": 1.0}, 500)
    yield dense.scan("warm scan 2 KiB raw", False, 950 * bench.scale)
    cold = {"ringloader": 20, "loaderx": 8, "numpy mmap": 1, "others": 4}
    yield dense.cold("cold 2 KiB raw", {"loaderx": 5.0, "numpy mmap": 30.0}, cold)
    yield dense.scan("cold scan 2 KiB raw", True, 400)
    dense.close()


def compressed(bench: Bench) -> Iterator[Result]:
    workloads = [
        ("images", "147 KiB", records.images(500 * bench.scale), "zstd", 1.15, 5),
        ("tokens", "2 KiB tokens", records.token_blocks(25_000 * bench.scale), "zstd", 1.4, 30),
        ("tokens", "2 KiB tokens", records.token_blocks(20_000), "zstd_dict", 1.2, 30),
    ]
    for name, title, data, codec, least, batches in workloads:
        dense = Dense(bench, name, data, codec)
        yield dense.warm(f"warm {title} {codec}", {"loaderx": least}, batches)
        dense.close()


def ragged(bench: Bench) -> Iterator[Result]:
    data = records.token_sequences(50_000 * bench.scale)
    for codec, least in (("raw", 8.0), ("zstd", 3.5)):
        path = bench.root / f"ragged-{codec}"
        with ringloader.RaggedStore.create(path, np.int32, codec=codec) as store:
            store.append(data)
        peer = loaderx.zrecord.RaggedStore.open(copy_store(path))
        with ringloader.RaggedStore.open(path, mode="r") as store:
            yield from ragged_results(bench, codec, least, data, store, peer)
        peer.close()


def ragged_results(
    bench: Bench, codec: str, least: float, data: list[np.ndarray], store: object, peer: object
) -> Iterator[Result]:
    def check(batch: object, plan: np.ndarray) -> None:
        if isinstance(batch, ringloader.RaggedBatch):
            batch = np.split(batch.values, batch.offsets[1:-1])
        assert len(batch) == len(plan)
        assert all(np.array_equal(record, data[i]) for record, i in zip(batch, plan, strict=True))

    gathers = {"list": store.__getitem__, "packed": store.gather_packed, "loaderx": peer.__getitem__}
    contenders = {name: Contender(gather, check, 50) for name, gather in gathers.items()}
    seconds = medians(contenders, lambda: bench.random_plans(len(data)), bench.rounds)
    for form in ("list", "packed"):
        beside = {"ringloader": seconds[form], "loaderx": seconds["loaderx"]}
        must = {"loaderx": least} if form == "list" else {}
        yield Result(f"warm ragged tokens {codec}, {form}", beside, must)


WORKLOADS = {"images": images_raw, "tokens": tokens_raw, "compressed": compressed, "ragged": ragged}


def table(results: list[Result]) -> str:
    rows = [HEADINGS, ["---", *["---:"] * 4, "---"], *(result.row() for result in results)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer records and turns")
    parser.add_argument("--only", default="", help=f"only some of {', '.join(WORKLOADS)}")
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="where the stores are put: a disk")
    parser.add_argument("--json", type=Path, help="also write every figure here")
    parser.add_argument("--markdown", type=Path, help="also write the table here")
    args = parser.parse_args()
    results: list[Result] = []
    print(f"reading through {ringloader.engine_info()['io']}; batches of {BATCH}; medians")
    for name, workload in WORKLOADS.items():
        if args.only in name:
            with tempfile.TemporaryDirectory(prefix=".ringloader-bench-", dir=args.dir) as root:
                for result in workload(Bench(Path(root), args.quick)):
                    print("  ".join(cell for cell in result.row() if cell), flush=True)
                    results.append(result)
                print(evict(Path(root)), "before each cold turn")
    if args.json:
        args.json.write_text(json.dumps({result.name: result.seconds for result in results}, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(table(results) + "\n")


if __name__ == "__main__":
    main()
