"""Fixtures of the suite, which runs with each of RINGLOADER_IO=auto, =uring and =pread."""

import os

import hypothesis
import pytest
from helpers import CODECS, KINDS

import ringloader

hypothesis.settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=100,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("deterministic")


def pytest_report_header():
    info = ringloader.engine_info()
    return f"ringloader {ringloader.__version__}: io={info['io']} ({info['io_reason']})"


@pytest.fixture(scope="session")
def backend():
    """The backend that this run is about: "uring", "pread" or None for the engine's choice."""
    return os.environ.get("RINGLOADER_IO") or None


@pytest.fixture(params=CODECS)
def codec(request):
    return request.param


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    """Every codec with every geometry."""
    return request.param


@pytest.fixture
def records(kind):
    """The 64 records of `store`."""
    return kind.records(64)


@pytest.fixture
def store(kind, records, tmp_path):
    """An open mode="r+" store of `kind` that holds `records`."""
    with kind.create(tmp_path / "store") as store:
        store.append(kind.batch(records))
        yield store


@pytest.fixture
def closed_store(kind, records, tmp_path):
    """The path of a closed store of `kind` that holds `records`."""
    return kind.build(tmp_path / "store", records)
