"""Contests: contenders that gather from the same records, timed in turns; and the caches and stores around them."""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass
class Contender:
    """A way to gather a batch, and how to compare the batch with its source.

    The first two batches of a turn are compared. The first ``untimed`` are not timed. With ``whole_turns`` a sample is
    the mean of a turn: what reads ahead waits in few batches only.
    """

    gather: Callable[[object], object]
    check: Callable[[object, object], None]
    batches: int
    untimed: int = 2
    whole_turns: bool = False

    def turn(self, plans: Iterable[object]) -> list[float]:
        """Seconds of batches, one of each plan."""
        spent: list[float] = []
        for number, plan in zip(range(self.batches + self.untimed), plans, strict=False):
            start = time.perf_counter()
            batch = self.gather(plan)
            seconds = time.perf_counter() - start
            if number < 2:
                self.check(batch, plan)
            if number >= self.untimed:
                spent.append(seconds)
            del batch
        return [statistics.mean(spent)] if self.whole_turns else spent


@dataclass
class Limit:
    """A command of the program of `build_limits`, which does the work with nothing around it."""

    program: Path
    arguments: tuple[object, ...]

    def turn(self, _plans: Iterable[object]) -> list[float]:
        """The median seconds of its batches."""
        command = [str(self.program), *map(str, self.arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [json.loads(done.stdout)["seconds"]]


def medians(
    contenders: dict[str, Contender | Limit],
    plans: Callable[[], Iterable[object]],
    rounds: int,
    before: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """The median seconds of each contender's batches.

    The contenders take turns, so that a noisy moment meets all of them, and each turn has plans of its own from
    ``plans``: whoever came later would otherwise find the records of the others in the processor's caches. Each round
    has an order of its own: a disk is slower for whoever follows a contender that has read as much as it gives.
    ``before`` is called before each turn.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(7)
    for _ in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            before()
            times[name] += contenders[name].turn(plans())
    return {name: statistics.median(samples) for name, samples in times.items()}


def build_limits() -> Path:
    """The program that measures what the machine can do at most."""
    command = ["cargo", "build", "--quiet", "--release", "--package", "ringloader-limits"]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")
    return Path(target) / "release" / "ringloader-limits"


def evict(root: Path) -> str:
    """Drop the files under `root` from the page cache, and say how that was done."""
    os.sync()
    try:
        DROP_CACHES.write_text("3")
        return "the page cache was dropped"
    except OSError:
        pass
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    return "the files were evicted with posix_fadvise, since only root can drop the page cache"


def bring_in(root: Path) -> None:
    """Read the files under `root`, so that what the system has evicted of them is in the page cache again."""
    part = bytearray(1 << 20)
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(part):
                    pass


def copy_store(path: Path) -> Path:
    """A second store of the same files, since loaderx lets a store be open once."""
    copied = path.with_name(path.name + "-loaderx")
    shutil.copytree(path, copied)
    return copied
