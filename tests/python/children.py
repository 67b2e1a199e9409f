"""What child processes of the tests run. Spawned children import this by name."""

import errno
import gc
import json
import logging
import multiprocessing
import os
import sys

import loaderx
import numpy as np
from helpers import Kind, assert_same_records, same

import ringloader

PACKAGES = {"ringloader": ringloader, "loaderx": loaderx}
ANSWER_SECONDS_MAX = 60


def run(method, target, *arguments):
    """Runs `target` in a child of its own and gives what it returns, or how it failed."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=answer, args=(sender, target, *arguments))
    child.start()
    sender.close()
    try:
        assert receiver.poll(ANSWER_SECONDS_MAX), f"{target.__name__} did not answer"
        result = receiver.recv()
        child.join(ANSWER_SECONDS_MAX)
        assert child.exitcode == 0
    finally:
        if child.is_alive():
            child.kill()
            child.join()
    return result


def answer(sender, target, *arguments):
    sender.send(outcome(target, *arguments))
    sender.close()


def outcome(target, *arguments):
    """What `target` returns, or the name, code and text of its error."""
    try:
        return target(*arguments)
    except Exception as error:  # noqa: BLE001 - every error is an answer
        return Failure.of(error)


class Failure:
    """An error as a value that any process can read."""

    def __init__(self, name, code, text):
        self.name, self.code, self.text = name, code, text

    @classmethod
    def of(cls, error):
        return cls(type(error).__name__, getattr(error, "code", None), str(error))

    def __repr__(self):
        return f"Failure({self.name}, {self.code}, {self.text!r})"


def try_open(kind, path, package, options):
    """Whether the store can be opened now, and its length."""
    with kind.open(path, PACKAGES[package], **options) as store:
        return len(store)


def open_each(kind, paths, mode):
    """The outcome of opening each of `paths`."""
    return [outcome(try_open, kind, path, "ringloader", {"mode": mode}) for path in paths]


def checksum(store):
    """The sum of all values of all records, and the store's mode."""
    return sum(int(np.sum(record)) for record in store[:]), store.mode


def check_records(store, kind, count, rounds=1):
    """Reads all records of `kind.records(count)` and gives the mode they were read in."""
    records = kind.records(count)
    for _ in range(rounds):
        assert_same_records(store[:], records)
        assert same(store[-1], records[-1])
    return store.mode


def read_one(store):
    return np.asarray(store[0]).tolist()


def append_one(store, batch):
    return store.append(batch)


def close_and_collect(holder):
    """Drops the inherited handle in every way there is."""
    holder[0].close()
    holder.clear()
    gc.collect()
    return "dropped"


def collect(holder):
    holder.clear()
    gc.collect()
    return "collected"


def hold(kind, path, package, options, opened, finish):
    """Keeps the store open between two events."""
    with kind.open(path, PACKAGES[package], **options):
        opened.set()
        assert finish.wait(ANSWER_SECONDS_MAX)


def read_when_told(sender, store, go):
    """An inherited handle that is first used when the parent says so."""
    assert go.wait(ANSWER_SECONDS_MAX)
    sender.send(outcome(checksum, store))
    sender.close()


def wait_for(sender, store, go):
    """An inherited handle that is never used."""
    sender.send(store.closed)
    assert go.wait(ANSWER_SECONDS_MAX)


def sum_of(store, indices):
    """A worker's share of a pool's work."""
    return [int(np.sum(record)) for record in store.gather(indices)]


def create_within_file_limits(kind, directory, limits):
    """Tries to create a store under each limit on file size; what failed, and what was left.

    The limit makes a write fail part-way, as a full disk does, and holds for root too.
    """
    import resource

    results = []
    for limit in limits:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            result = outcome(lambda: kind.create(os.path.join(directory, "made", "store")).close())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        results.append((limit, result, sorted(os.listdir(directory))))
    return results


def refuse_io_uring(error):
    """Makes io_uring_setup fail with `error` from here on, as containers do.

    Gives False where this process may not set such a filter.
    """
    import ctypes
    import struct

    io_uring_setup, load_number, jump_if_equal, give = 425, 0x20, 0x15, 0x06
    program = b"".join(
        [
            struct.pack("<HBBI", load_number, 0, 0, 0),
            struct.pack("<HBBI", jump_if_equal, 0, 1, io_uring_setup),
            struct.pack("<HBBI", give, 0, 0, 0x00050000 | error),
            struct.pack("<HBBI", give, 0, 0, 0x7FFF0000),
        ]
    )

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    pr_set_no_new_privs, pr_set_seccomp, seccomp_mode_filter = 38, 22, 2
    libc = ctypes.CDLL(None, use_errno=True)
    filter_program = Program(4, ctypes.cast(ctypes.create_string_buffer(program), ctypes.c_char_p))
    if libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) != 0:
        return False
    if libc.prctl(pr_set_seccomp, seccomp_mode_filter, ctypes.byref(filter_program), 0, 0) != 0:
        return False
    ctypes.set_errno(0)
    ring = libc.syscall(io_uring_setup, 4, ctypes.create_string_buffer(120))
    return ring == -1 and ctypes.get_errno() == error


def read_without_io_uring(path, error):
    """Runs in a fresh interpreter: reads the store where rings are refused and prints what it saw."""
    if not refuse_io_uring(error):
        print(json.dumps("not possible"))
        return
    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append([record.levelname, record.getMessage()])
    logging.getLogger("ringloader").addHandler(handler)
    kind = Kind("zstd", "dense")
    with kind.open(path, mode="r") as store:
        same_records = check_records(store, kind, 64) == "r"
    forced = outcome(try_open, kind, path, "ringloader", {"mode": "r", "io": "uring"})
    info = ringloader.engine_info()
    print(
        json.dumps(
            {
                "io": info["io"],
                "io_reason": info["io_reason"],
                "same_records": same_records,
                "forced": [forced.name, forced.code, forced.text],
                "logged": logged,
            }
        )
    )


if __name__ == "__main__":
    read_without_io_uring(sys.argv[1], getattr(errno, sys.argv[2]))
