"""Records that are copied from mapped files, and files that change under the mapping."""

import os
import signal
import sys

import numpy as np
import pytest
from helpers import Kind, assert_same_records
from interpreter import run

import ringloader

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files are mapped on Unix only")

# Opens a store of 5000 records with `io`, gathers them, has `before` happen, cuts its chunk and gathers again.
CUT = """
import faulthandler, os, signal, sys
import numpy as np
store = ringloader.DenseStore.open({path!r}, mode="r", io={io!r})
{before}
records = store[:]
{after}
assert np.array_equal(store[:], records)
os.truncate({path!r} + "/0.chunk", {end})
try:
    store[4000:]
    result = "records that are not there"
except ringloader.ZrecordError as error:
    result = [error.code, "record 4000" in str(error), np.array_equal(store[:10], records[:10])]
"""


@pytest.fixture
def path(tmp_path):
    kind = Kind("raw", "dense")
    return kind.build(tmp_path / "store", kind.records(5000))


@pytest.mark.parametrize("end", [4096 * 20, 4096 * 20 + 100])
@pytest.mark.parametrize("io", ["auto", "mmap"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("faulthandler.enable()", ""),
        ("", "faulthandler.enable()"),
        ("", "signal.signal(signal.SIGBUS, lambda *_: None)"),
        ("faulthandler.enable()", "faulthandler.disable()"),
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS])", ""),
        ("", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS])"),
    ],
)
def test_a_chunk_that_is_cut_is_an_error_and_the_process_lives(path, io, before, after, end):
    """Whatever else handles faults: where ours cannot be caught, records are read and not copied."""
    code = CUT.format(path=str(path), io=io, before=before, after=after, end=end)
    assert run(code.strip()) == [-8, True, True]


def test_mmap_can_be_asked_for(kind, closed_store, records):
    with kind.open(closed_store, mode="r", io="mmap") as store:
        assert_same_records(store[:], records)
        assert_same_records(store.gather([5, 5, 0]), [records[5], records[5], records[0]])
    found = run("result = ringloader.engine_info()", RINGLOADER_IO="mmap")
    assert found["io"] == "mmap"
    assert "mapping" in found["mapping"]


def test_a_fault_that_is_not_ours_still_ends_the_process(path, tmp_path):
    code = f"""
import mmap, os
ringloader.DenseStore.open({str(path)!r}, mode="r", io="mmap")[:]
file = open({str(tmp_path / "other")!r}, "wb+")
file.write(bytes(8192))
file.flush()
mapped = mmap.mmap(file.fileno(), 8192)
file.truncate(0)
pid = os.fork()
if pid == 0:
    mapped[5000]
    os._exit(0)
result = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    assert run(code.strip()) == -signal.SIGBUS


def test_a_batch_outlives_the_mapping_it_came_from(tmp_path):
    with ringloader.DenseStore.create(tmp_path / "store", np.int64, (), codec="raw") as store:
        store.append(np.arange(100_000))
        batch = store[:]
    os.truncate(tmp_path / "store" / "0.chunk", 0)
    assert np.array_equal(batch, np.arange(100_000))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="io_uring is Linux's")
def test_a_thread_that_can_have_no_ring_reads_with_pread_and_says_so_once(path):
    """The limit of open files is reached when the first of several threads needs a ring."""
    code = f"""
import logging, resource, signal, threading
import numpy as np
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("ringloader").addHandler(Keep())
store = ringloader.DenseStore.open({str(path)!r}, mode="r")
records = store[:]
signal.signal(signal.SIGBUS, lambda *_: None)  # from now on records are read
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
same = []
def gather():
    same.append(np.array_equal(store[:], records))
for _ in range(3):
    thread = threading.Thread(target=gather)
    thread.start()
    thread.join()
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
refused = ringloader.engine_info()["ring_refused"]
told = [line for line in lines if "pread" in line]
result = [same, len(told), "ulimit -n" in told[0], "ulimit -n" in refused]
"""
    found = run(code.strip())
    if ringloader.engine_info()["io"] != "uring":
        pytest.skip("io_uring does not work here at all")
    assert found == [[True] * 3, 1, True, True]
