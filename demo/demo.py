"""The main job on real data: write stores, check every record, train from random batches.

Two data sets that packages ship: scikit-learn's handwritten digits, as a dense stream of images and one of labels, and
the Python standard library's source files, as a ragged corpus of bytes under a trained dictionary. Run it with
``make demo``; the stores stay in ``.demo`` to be looked at.
"""

from __future__ import annotations

import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier

import ringloader
from ringloader import DenseStore, RaggedStore, train_dict

ROOT = Path(__file__).resolve().parent.parent / ".demo"
BATCH = 256
HELD_OUT = 297
"""Digits that the classifier never sees."""
STEPS = 200
GATHER_SECONDS = 2.0
"""How long each store is gathered from to measure its throughput."""

console = Console(highlight=False)
if not console.is_terminal:
    console.width = 110


def disk_bytes(path: Path) -> int:
    """Bytes that the files of a store take on disk."""
    return sum(
        file.stat().st_blocks * 512 if hasattr(file.stat(), "st_blocks") else file.stat().st_size
        for file in path.iterdir()
    )


def write(
    progress: Progress, store: DenseStore | RaggedStore, records: np.ndarray | list[bytes], step: int
) -> None:
    task = progress.add_task(f"writing {store.path.name}", total=len(records))
    for start in range(0, len(records), step):
        store.append(records[start : start + step])
        progress.advance(task, min(step, len(records) - start))
    store.sync()


def source_files() -> list[bytes]:
    """Every source file of the standard library that has any bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    texts = (file.read_bytes() for file in files if "site-packages" not in file.parts)
    return [text for text in texts if text]


def random_batches(length: int, seed: int) -> Iterator[np.ndarray]:
    """Endless random index batches."""
    rng = np.random.default_rng(seed)
    while True:
        yield rng.integers(0, length, BATCH)


def throughput(store: DenseStore | RaggedStore) -> tuple[float, float]:
    """Records and MiB a second of random batches of the store."""
    records = size = 0
    start = time.perf_counter()
    for indices in random_batches(len(store), seed=1):
        batch = store.gather(indices)
        records += len(batch)
        size += batch.nbytes if isinstance(batch, np.ndarray) else sum(record.nbytes for record in batch)
        spent = time.perf_counter() - start
        if spent > GATHER_SECONDS:
            return records / spent, size / spent / 2**20


def train(images: DenseStore, labels: DenseStore) -> float:
    """Train a linear classifier from random batches and give its accuracy on digits it has not seen."""
    seen = len(images) - HELD_OUT
    model = SGDClassifier(loss="log_loss", random_state=0)
    for _, indices in zip(range(STEPS), random_batches(seen, seed=0), strict=False):
        # Both streams are gathered at the same indices, so image i and label i belong together.
        batch, target = images[indices], labels[indices]
        model.partial_fit(batch.reshape(BATCH, -1) / 16.0, target, classes=np.arange(10))
    held_out = slice(seen, len(images))
    return float(model.score(images[held_out].reshape(HELD_OUT, -1) / 16.0, labels[held_out]))


def check(store: DenseStore | RaggedStore, records: np.ndarray | list[bytes]) -> int:
    """Compare every record with its source."""
    count = 0
    for stored, source in zip(store, records, strict=True):
        same = stored.tobytes() == source if isinstance(source, bytes) else np.array_equal(stored, source)
        if not same:
            raise SystemExit(f"record {count} of {store.path} is not what was written")
        count += 1
    return count


def main() -> None:
    shutil.rmtree(ROOT, ignore_errors=True)
    digits = load_digits()
    images = digits.images.astype(np.uint8)
    labels = digits.target.astype(np.int64)
    sources = source_files()

    columns = (TextColumn("{task.description:>22}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        with console.status("training a dictionary on the source files"):
            dictionary = train_dict(sources, tier="balanced")
        with (
            DenseStore.create(ROOT / "digits", images.dtype, images.shape[1:]) as store,
            DenseStore.create(ROOT / "labels", labels.dtype, (), codec="raw") as label_store,
            RaggedStore.create(
                ROOT / "sources", np.uint8, codec="zstd_dict", dict_bytes=dictionary
            ) as source_store,
        ):
            write(progress, store, images, 256)
            write(progress, label_store, labels, 256)
            write(progress, source_store, sources, 32)

    streams: dict[str, tuple[DenseStore | RaggedStore, np.ndarray | list[bytes]]] = {
        "digits": (DenseStore.open(ROOT / "digits", mode="r"), images),
        "labels": (DenseStore.open(ROOT / "labels", mode="r"), labels),
        "sources": (RaggedStore.open(ROOT / "sources", mode="r"), sources),
    }
    table = Table(title=f"stores in .demo, gathered in random batches of {BATCH}", title_justify="left")
    for heading in ("store", "codec", "records", "logical", "on disk", "ratio", "krec/s", "MiB/s", "checked"):
        table.add_column(heading, justify="left" if heading in ("store", "codec") else "right")
    for name, (store, records) in streams.items():
        logical = records.nbytes if isinstance(records, np.ndarray) else sum(map(len, records))
        disk = disk_bytes(store.path)
        krecords, mib = throughput(store)
        table.add_row(
            name,
            store.codec,
            f"{len(store):,}",
            f"{logical / 2**20:.2f} MiB",
            f"{disk / 2**20:.2f} MiB",
            f"{logical / disk:.2f}x",
            f"{krecords / 1000:,.0f}",
            f"{mib:,.0f}",
            f"{check(store, records):,}",
        )
    console.print(table)

    accuracy = train(streams["digits"][0], streams["labels"][0])
    console.print(
        f"a linear classifier, {STEPS} random batches of {BATCH} digits: {accuracy:.1%} right on {HELD_OUT} unseen digits"
    )
    info = ringloader.engine_info()
    console.print(f"read through {info['io']} ({info['io_reason']}), {info['workers']} workers")
    for store, _ in streams.values():
        store.close()
    if accuracy < 0.85:
        raise SystemExit("the classifier has not learned: the batches cannot be right")


if __name__ == "__main__":
    main()
