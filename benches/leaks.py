"""Gather 100,000 batches from each kind of store and print how memory, descriptors and threads grew.

Run it as ``python benches/leaks.py [--batches N]``. Growth is counted from the 2,000th batch on. It ends with an
error if memory grew by more than 1 MiB, or descriptors or threads by one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import records

import ringloader

WARMUP = 2_000
RSS_GROWTH_MAX = 1 << 20


def usage() -> tuple[int, int, int]:
    """Resident bytes, open descriptors and threads of this process."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def watch(store: ringloader.DenseStore | ringloader.RaggedStore, batches: int) -> bool:
    rng = np.random.default_rng(0)
    before = usage()
    for number in range(batches + WARMUP):
        if number == WARMUP:
            before = usage()
        store.gather(rng.integers(0, len(store), int(rng.integers(1, 512))))
    grown = [after - start for after, start in zip(usage(), before, strict=True)]
    print(
        f"{store.path.name:14} {batches:,} batches: resident {grown[0] / 2**10:+.0f} KiB, "
        f"descriptors {grown[1]:+d}, threads {grown[2]:+d}",
        flush=True,
    )
    return grown[0] <= RSS_GROWTH_MAX and grown[1] <= 0 and grown[2] <= 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=100_000)
    batches = parser.parse_args().batches
    blocks, sequences = records.token_blocks(20_000), records.token_sequences(20_000)
    steady = True
    with tempfile.TemporaryDirectory(prefix="ringloader-leaks-") as root:
        for codec in ("raw", "zstd"):
            dense = ringloader.DenseStore.create(f"{root}/dense-{codec}", np.int32, (512,), codec=codec)
            ragged = ringloader.RaggedStore.create(f"{root}/ragged-{codec}", np.int32, codec=codec)
            with dense, ragged:
                dense.append(blocks)
                ragged.append(sequences)
                steady &= watch(dense, batches)
                steady &= watch(ragged, batches)
    if not steady:
        raise SystemExit("something grew")


if __name__ == "__main__":
    main()
