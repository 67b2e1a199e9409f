"""The one engine of a process: what runs, why, and how it is set before first use."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import Kind, assert_same_records
from interpreter import info, run

import ringloader

HERE = Path(__file__).resolve().parent
KEYS = {
    "io": str,
    "io_reason": str,
    "mapping": str,
    "depth": int,
    "workers": int,
    "pinned": bool,
    "cores": list,
    "pool_idle_bytes": int,
}


def test_the_suite_runs_on_the_backend_it_was_asked_to(backend):
    found = ringloader.engine_info()["io"]
    assert found in ("uring", "pread")
    if backend not in (None, "auto"):
        assert found == backend


def test_engine_info_says_what_runs_and_why():
    found = ringloader.engine_info()
    for key, kind in KEYS.items():
        assert type(found[key]) is kind, key
    assert found["io_reason"]
    assert found["workers"] >= 0
    assert found["pool_idle_bytes"] >= 0
    assert found["ring_refused"] is None
    assert found["local_rank"] is None
    assert found["cores"] and all(type(core) is int for core in found["cores"])


def test_engine_info_is_a_copy():
    ringloader.engine_info().clear()
    assert set(KEYS) <= set(ringloader.engine_info())


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_importing_starts_no_thread():
    count = "import os, numpy\nresult = len(os.listdir('/proc/self/task'))"
    with_numpy_alone = run(count, preamble="")
    assert run(count) == with_numpy_alone


def test_pread_can_be_asked_for_by_the_environment():
    found = info(RINGLOADER_IO="pread")
    assert found["io"] == "pread"
    assert found["io_reason"]


def test_auto_is_the_engine_s_choice():
    assert info(RINGLOADER_IO="auto")["io"] == info()["io"]
    assert info(RINGLOADER_IO="")["io"] == info()["io"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RINGLOADER_IO", "map"),
        ("RINGLOADER_IO", "URING"),
        ("RINGLOADER_WORKERS", "many"),
        ("RINGLOADER_WORKERS", "-1"),
        ("RINGLOADER_WORKERS", "1.5"),
        ("RINGLOADER_WORKERS", "99999999999999999999"),
        ("RINGLOADER_DEPTH", "0"),
        ("RINGLOADER_DEPTH", "deep"),
        ("RINGLOADER_DEPTH", "4097"),
        ("RINGLOADER_PIN", "maybe"),
        ("RINGLOADER_PIN", "2"),
    ],
)
def test_a_bad_variable_is_a_value_error_at_first_use_that_names_it(variable, value, tmp_path):
    name, message = info(**{variable: value})
    assert name == "ValueError"
    assert variable in message and value in message
    # Importing alone is no use.
    assert run("result = 'imported'", **{variable: value}) == "imported"
    kind = Kind("raw", "dense")
    path = kind.build(tmp_path / "store", kind.records(2))
    code = f"with ringloader.DenseStore.open({str(path)!r}, mode='r') as store:\n    result = len(store[:])"
    name, message = run(code, **{variable: value})
    assert name == "ValueError" and variable in message


def test_workers_and_pinning_can_be_set_by_the_environment():
    found = info(RINGLOADER_WORKERS="3", RINGLOADER_PIN="0")
    assert (found["workers"], found["pinned"]) == (3, False)
    assert info(RINGLOADER_WORKERS="1", RINGLOADER_PIN="1")["workers"] == 1


def test_configure_sets_workers_pinning_io_and_depth():
    found = run(
        "ringloader.configure(workers=2, pin=False, io='pread', depth=8)\nresult = ringloader.engine_info()"
    )
    assert (found["workers"], found["pinned"], found["io"], found["depth"]) == (2, False, "pread", 8)
    assert info(RINGLOADER_DEPTH="32")["depth"] == 32
    assert info()["depth"] == 256


def test_an_engine_that_cannot_be_made_can_be_configured_anew():
    code = """
try:
    ringloader.engine_info()
except ValueError:
    ringloader.configure(workers=3)
    result = ringloader.engine_info()["workers"]
"""
    assert run(code.strip(), RINGLOADER_WORKERS="many") == 3


def test_configure_goes_before_the_environment():
    found = run(
        "ringloader.configure(workers=2, pin=False)\nresult = ringloader.engine_info()",
        RINGLOADER_WORKERS="5",
        RINGLOADER_PIN="1",
        RINGLOADER_IO="pread",
    )
    assert (found["workers"], found["pinned"], found["io"]) == (2, False, "pread")


@pytest.mark.parametrize("use", ["ringloader.engine_info()", "use_a_store()"])
def test_configure_after_first_use_is_a_runtime_error(use, tmp_path):
    kind = Kind("zstd", "dense")
    path = kind.build(tmp_path / "store", kind.records(5))
    code = f"""
def use_a_store():
    with ringloader.DenseStore.open({str(path)!r}, mode="r") as store:
        store[:]
{use}
before = ringloader.engine_info()
try:
    ringloader.configure(workers=before["workers"] + 1)
except RuntimeError as error:
    result = [isinstance(error, ringloader.ZrecordError), str(error), before == ringloader.engine_info()]
"""
    is_zrecord_error, message, unchanged = run(code.strip())
    assert not is_zrecord_error
    assert "before" in message
    assert unchanged


@pytest.mark.parametrize(
    "arguments",
    [
        *("workers=-1", "workers=10**9", "workers=2**70", "workers='2'", "workers=1.5"),
        *("io='map'", "io=''", "pin='yes'"),
        *("depth=0", "depth=-1", "depth=4097", "depth=2**70"),
    ],
)
def test_configure_refuses_what_means_nothing(arguments):
    code = f"""
import traceback
try:
    ringloader.configure({arguments})
except (ValueError, TypeError) as error:
    ringloader.configure(workers=1)
    told = "".join(traceback.format_exception_only(error))
    result = [isinstance(error, OverflowError), told, ringloader.engine_info()["workers"]]
"""
    is_overflow, message, workers = run(code.strip())
    assert not is_overflow
    assert arguments.split("=")[0] in message
    assert workers == 1


def test_what_a_later_configure_does_not_give_stays():
    code = """
ringloader.configure(workers=1, io="pread", depth=32)
ringloader.configure(depth=8, io="auto")
found = ringloader.engine_info()
result = [found["workers"], found["depth"], found["mapping"]]
"""
    workers, depth, mapping = run(code.strip(), RINGLOADER_IO="pread")
    assert (workers, depth) == (1, 8)
    assert "pread" not in mapping, "io='auto' goes before the environment, too"


@pytest.mark.parametrize("name", ["WORKERS", "PIN", "IO", "DEPTH"])
@pytest.mark.parametrize("use", ["open", "create"])
def test_a_setting_that_means_nothing_is_seen_when_a_store_is_opened(use, name, tmp_path):
    path = Kind("raw", "dense").build(tmp_path / "store", Kind("raw", "dense").records(5))
    call = {"open": f"open({str(path)!r})", "create": f"create({str(tmp_path / 'new')!r}, 'u1', ())"}[use]
    kind, message = run(f"ringloader.DenseStore.{call}", **{f"RINGLOADER_{name}": "fast"})
    assert kind == "ValueError"
    assert message.startswith(f"RINGLOADER_{name}: ")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="there is no affinity mask here")
def test_the_cores_are_those_that_the_process_may_use():
    allowed = os.sched_getaffinity(0)
    assert set(info()["cores"]) <= allowed
    one = min(allowed)
    assert info(preexec_fn=lambda: os.sched_setaffinity(0, {one}))["cores"] == [one]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="there is no affinity mask here")
def test_ranks_share_the_cores():
    allowed = sorted(os.sched_getaffinity(0))
    ranks = len(allowed)
    for rank in range(ranks):
        found = info(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
        assert (found["cores"], found["workers"]) == ([allowed[rank]], 1)
        assert found["local_rank"] == [rank, ranks]
    # More ranks than cores, and what means nothing.
    assert info(LOCAL_RANK="1", LOCAL_WORLD_SIZE=str(ranks + 1))["workers"] == 1
    for rank, size in [("2", "2"), ("x", "2"), ("0", ""), ("-1", "2")]:
        found = info(LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size)
        assert (found["cores"], found["local_rank"]) == (allowed, None)


@pytest.mark.parametrize(("workers", "pin"), [("0", "0"), ("1", "1"), ("7", "1"), ("7", "0")])
def test_any_number_of_workers_gives_the_same_records(workers, pin, tmp_path):
    kind = Kind("zstd", "dense")
    records = kind.records(20_000)
    path = kind.build(tmp_path / "store", records)
    code = f"""
import hashlib
with ringloader.DenseStore.open({str(path)!r}, mode="r") as store:
    result = [hashlib.sha256(store[:].tobytes()).hexdigest() for _ in range(3)]
"""
    expected = hashlib.sha256(kind.batch(records).tobytes()).hexdigest()
    assert run(code.strip(), RINGLOADER_WORKERS=workers, RINGLOADER_PIN=pin) == [expected] * 3


def test_the_ring_is_there_or_says_why_not(kind, closed_store, records):
    """io="uring" gives the same records, or an I/O error with the system's reason."""
    try:
        store = kind.open(closed_store, mode="r", io="uring")
    except ringloader.ZrecordError as error:
        assert error.code == -2
        assert "uring" in str(error)
        assert info()["io"] == "pread"
    else:
        with store:
            assert_same_records(store[:], records)
            assert_same_records(store.gather([5, 5, 0]), [records[5], records[5], records[0]])
        assert info()["io"] == "uring"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="io_uring and seccomp are Linux's")
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_a_refused_ring_falls_back_to_pread_and_says_why(error, tmp_path):
    """As in a locked-down container: same records, and the reason can be asked for."""
    kind = Kind("zstd", "dense")
    path = kind.build(tmp_path / "store", kind.records(64))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RINGLOADER_")}
    done = subprocess.run(
        [sys.executable, str(HERE / "children.py"), str(path), error],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if found == "not possible":
        pytest.skip("this process may not set a seccomp filter")
    assert found["io"] == "pread"
    assert found["same_records"]
    reason = {"EPERM": "not permitted", "ENOSYS": "not implemented"}[error]
    assert reason in found["io_reason"]
    assert [level for level, _ in found["logged"]] == ["WARNING"], "it is told once"
    assert reason in found["logged"][0][1]
    name, code, message = found["forced"]
    assert (name, code) == ("ZrecordError", -2)
    assert reason in message
