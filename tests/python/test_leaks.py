"""Memory, descriptors and threads do not grow: 5,000 gathers here, 100,000 in benches/."""

import gc
import os
import sys
import threading

import numpy as np
import pytest
from helpers import assert_same_records

import ringloader

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self")

RSS_GROWTH_BYTES_MAX = 4 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def threads():
    return len(os.listdir("/proc/self/task"))


def assert_nothing_grows(work, warm_up_rounds, rounds):
    for _ in range(warm_up_rounds):
        work()
    gc.collect()
    before = resident_bytes(), descriptors(), threads(), threading.active_count()
    for _ in range(rounds):
        work()
    gc.collect()
    after = resident_bytes(), descriptors(), threads(), threading.active_count()
    assert after[1:] == before[1:]
    assert after[0] - before[0] <= RSS_GROWTH_BYTES_MAX, f"{(after[0] - before[0]) / 2**20:.1f} MiB"


def test_gathers_leave_nothing_behind(kind, tmp_path):
    records = kind.records(2_000)
    rng = np.random.default_rng(0)
    with kind.open(kind.build(tmp_path / "store", records), mode="r") as store:

        def work():
            chosen = rng.integers(0, 2_000, 128)
            batch = store.gather(chosen)
            assert len(batch) == 128
            if kind.geometry == "ragged":
                store.gather_packed(chosen[:32])

        assert_nothing_grows(work, 500, 5_000)
        assert_same_records(store[:], records)


def test_large_batches_leave_nothing_behind(tmp_path):
    with ringloader.DenseStore.create(tmp_path / "store", np.uint8, (16_384,), codec="raw") as store:
        store.append(np.zeros((64, 16_384), np.uint8))
        rng = np.random.default_rng(0)
        out = np.empty((32, 16_384), np.uint8)

        def work():
            store.gather(rng.integers(0, 64, int(rng.integers(1, 64))))
            store.gather(rng.integers(0, 64, 32), out=out)

        assert_nothing_grows(work, 200, 1_000)


def test_errors_leave_nothing_behind(kind, store):
    def work():
        for attempt in (lambda: store[[0, 64]], lambda: store[None], lambda: store.append([b"no"])):
            try:
                attempt()
            except (IndexError, ValueError):
                pass
            else:
                pytest.fail("there was no error")

    assert_nothing_grows(work, 300, 2_000)


def test_opening_and_closing_leaves_nothing_behind(kind, closed_store):
    def work():
        with kind.open(closed_store, mode="r") as store:
            store[0]

    assert_nothing_grows(work, 100, 400)


def test_refused_opens_leave_nothing_behind(kind, closed_store, tmp_path):
    (tmp_path / "empty").mkdir()
    with kind.open(closed_store):

        def work():
            for path in (closed_store, tmp_path / "empty"):
                try:
                    kind.open(path)
                except ringloader.ZrecordError as error:
                    assert error.code in (-8, -13)
                else:
                    pytest.fail("it opened")

        assert_nothing_grows(work, 100, 400)


def test_abandoned_iterations_leave_nothing_behind(kind, store):
    def work():
        iterator = iter(store)
        next(iterator)

    assert_nothing_grows(work, 200, 2_000)
