"""Fixtures for tests of graphs: the pytest plugin, installed with the package; imports only pytest.

`run_graph`, `clock` and `crash_at` need nothing, `fake_store` needs the package fakeredis.
`runner_store` and `runner_worker` start real processes, and need a Valkey or Redis server. If a
fixture's requirement is missing, its tests fail if `CI` is set, and are skipped otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from runner.client import Client
    from runner.dev.embedded import EmbeddedStore
    from runner.testing.fake_redis import FakeStore
    from runner.testing.in_process import InProcessRuns, ManualClock


def absent(what: str) -> NoReturn:
    """Skip a test because something is missing, or fail it if `CI` is set; `what` is the reason.

    Raises:
        pytest.skip.Exception: `CI` isn't set. pytest.fail.Exception: `CI` is set.
    """
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what, allow_module_level=True)


@contextmanager
def private_store() -> Iterator[EmbeddedStore]:
    """Start a real, private Valkey or Redis, which ends with the block."""
    from runner.dev.embedded import embedded_store, find_server  # noqa: PLC0415 - few tests need it
    from runner.errors import StoreError  # noqa: PLC0415 - as above

    try:
        find_server()
    except StoreError as missing:
        absent(str(missing))
    with embedded_store() as store:
        yield store


@pytest.fixture
def run_graph() -> Iterator[InProcessRuns]:
    """Run graphs in process, one node at a time, by a clock that the test advances."""
    from runner.testing.in_process import InProcessRuns  # noqa: PLC0415 - not all tests need it

    runs = InProcessRuns()
    yield runs
    if points := runs.missed():
        pytest.fail(
            f"crash_at planned crashes that never came: {', '.join(points)}. Is the name right?"
        )


@pytest.fixture
def clock(run_graph: InProcessRuns) -> ManualClock:
    """The time of the runs of `run_graph`: `clock.advance(seconds)`."""
    return run_graph.clock


@pytest.fixture
def crash_at(run_graph: InProcessRuns) -> Callable[..., None]:
    """Make workers die: `crash_at("node", "after_effect")`, before the run begins."""
    return run_graph.crash_at


@pytest.fixture
def fake_store() -> Iterator[FakeStore]:
    """Make an empty fake Redis in this process: `.url` is its address, `.client` reads its keys.

    `.open()` returns a store on it, for `set_store` of a graph that is called in the test. A
    client, a store and the command line (except `doctor`) work on it; workers, which are other
    processes, don't.
    """
    from runner.errors import MissingExtra  # noqa: PLC0415 - few tests need it

    try:
        from runner.testing import fake_redis  # noqa: PLC0415 - as above
    except MissingExtra as missing:
        absent(str(missing))
    with fake_redis.fake_store() as store:
        yield store


@pytest.fixture(scope="module")
def runner_store() -> Iterator[EmbeddedStore]:
    """Start a real, private Valkey or Redis for the tests of one module; `.url` is its address."""
    with private_store() as store:
        yield store


@pytest.fixture(scope="module")
def runner_worker(runner_store: EmbeddedStore) -> Iterator[Callable[..., Client]]:
    """Start a real worker with the graphs of the named modules, and return a client of its store.

    `client = runner_worker("refunds")`. The tests of one module share it: a second call with the
    same modules starts nothing. Settings are keyword arguments: `runner_worker("refunds",
    RUNNER_LEASE="2")`.
    """
    from runner.testing.workers import Workers  # noqa: PLC0415 - few tests need it

    with ExitStack() as stack:
        yield Workers(runner_store.url, stack).client
