"""What each part of a gather is worth: the same batches with one part taken away at a time.

Run it as ``python benches/ablation.py``. The variants are timed in turns; medians, warm page cache, batches of 256.

- kept: every batch is kept until the end of its turn, so no memory is recycled
- one thread: ``workers=1``, so the calling thread does everything
- read: io_uring for every record, also for those that could be copied from a mapping
- pread: the same with the pread pool
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import records

import ringloader

BATCH = 256
TURNS = 6
BATCHES = 12
VARIANTS = {
    "as it is": {},
    "kept": {"KEEP": "1"},
    "one thread": {"RINGLOADER_WORKERS": "1"},
    "read": {"RINGLOADER_IO": "uring"},
    "pread": {"RINGLOADER_IO": "pread"},
}


def child(path: str) -> None:
    """Time one variant's turn and print its seconds a batch."""
    cls = ringloader.RaggedStore if "ragged" in path else ringloader.DenseStore
    keep = bool(os.environ.get("KEEP"))
    rng = np.random.default_rng(3)
    with cls.open(path, mode="r") as store:
        seconds, kept = [], []
        for number in range(BATCHES * (8 if "images" not in path else 1) + 4):
            indices = rng.integers(0, len(store), BATCH)
            start = time.perf_counter()
            batch = store[indices]
            if number >= 4:
                seconds.append(time.perf_counter() - start)
            if keep:
                kept.append(batch)
            del batch
    print(json.dumps(seconds))


def main() -> None:
    stores = {
        "images": (ringloader.DenseStore, records.images(1200), np.uint8, [(3, 224, 224)]),
        "tokens": (ringloader.DenseStore, records.token_blocks(100_000), np.int32, [(512,)]),
        "ragged": (ringloader.RaggedStore, records.token_sequences(100_000), np.int32, []),
    }
    with tempfile.TemporaryDirectory(prefix="ringloader-ablation-") as root:
        for name, (cls, data, dtype, shape) in stores.items():
            for codec in ("raw", "zstd"):
                path = Path(root) / f"{name}-{codec}"
                with cls.create(path, dtype, *shape, codec=codec) as store:
                    for start in range(0, len(data), 400):
                        store.append(data[start : start + 400])
                seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
                for _ in range(TURNS):
                    for variant, settings in VARIANTS.items():
                        done = subprocess.run(
                            [sys.executable, __file__, str(path)],
                            env=os.environ | settings,
                            capture_output=True,
                            text=True,
                            check=True,
                        )
                        seconds[variant] += json.loads(done.stdout)
                medians = {variant: statistics.median(times) for variant, times in seconds.items()}
                cells = (
                    f"{variant} {BATCH / spent / 1000:8.1f} krec/s ({medians['as it is'] / spent:.2f})"
                    for variant, spent in medians.items()
                )
                print(f"{name:7} {codec:5} " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1])
    else:
        main()
