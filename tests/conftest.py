"""What every test can ask for: a clean environment and a real, private store."""

from __future__ import annotations

import atexit
import functools
import gc
import importlib.metadata
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import tomllib._parser
from pathlib import Path

import hypothesis
import pytest
import redis

from runner.dev.embedded import bundled_server
from runner.testing.plugin import clock, crash_at, fake_store, private_store, run_graph

# The plugin's fixtures, also in a checkout that was installed before there was a plugin.
__all__ = ["clock", "crash_at", "fake_store", "run_graph"]

# No deadline: on a busy machine one example may take long, and that is no fault of the code.
# `make test` runs the profile quick, with FULL=1 full, `make test-slow` quick, with FULL=1 suite, and `make
# test-all` thorough; large ones take a tenth. Other random cases are as many for each example.
hypothesis.settings.register_profile("quick", deadline=None, print_blob=True, max_examples=15)
hypothesis.settings.register_profile("full", deadline=None, print_blob=True, max_examples=40)
hypothesis.settings.register_profile("suite", deadline=None, print_blob=True, max_examples=100)
hypothesis.settings.register_profile(
    "thorough", deadline=None, print_blob=True, max_examples=1_000
)
hypothesis.settings.load_profile("suite")


# Settings parse pyproject.toml, and connections ask for the version of their client: a tenth of the time.
tomllib._parser.loads = functools.lru_cache(8)(tomllib._parser.loads)
importlib.metadata.version = functools.cache(importlib.metadata.version)

NEED_A_STORE = {"databases", "runner_store", "shop_url", "store_server"}
"""The fixtures that start a server for many tests."""

OF_A_MODULE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(full|slow|chaos)\b", re.MULTILINE)
"""The mark that a whole module has."""

MAY_BE_SLOW = re.compile("slow|any_store|adapter_contract")
"""The words of modules with slow tests: the mark, or one of the two places outside modules that set it."""

SECOND_HALF = re.compile(
    r"tests/(agent|contract|definition|execution|properties|records|scheduler|simulation)/"
)
"""The files of the second of two workers that share the modules: `--dist each`, as `make test` runs them."""

LONGEST = re.compile(
    r"test_(browser|finance_day|kubernetes|mcp_kit|pages|process|processes|rabbitmq|stay|wheel)\.py"
)
"""Files that would take longer than all others, if they began last."""

STORE = pytest.StashKey[str]()
"""The path of the server of the tests' stores."""


def pytest_addoption(parser):
    parser.addoption(
        "--store",
        metavar="SERVER",
        help="run only the tests that need a store, on this server: a name or a path",
    )


def pytest_configure(config):
    """Remove the settings of the shell, and choose the server of all stores, before anything reads them."""
    for name in [name for name in os.environ if name.startswith("RUNNER_")]:
        del os.environ[name]
    # A shell without job control starts what it puts in the background with Ctrl-C ignored, and every
    # child of such a process ignores it too: tests that press it would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    named = config.getoption("--store")
    server = shutil.which(named) if named else bundled_server()
    if named and server is None:
        raise pytest.UsageError(f"--store: there is no program {named!r}, so no test was run.")
    if server is not None:
        # Every process of the tests finds this name on PATH first.
        folder = tempfile.TemporaryDirectory(prefix="runner-store-")
        config.add_cleanup(folder.cleanup)
        Path(folder.name, "valkey-server").symlink_to(Path(server).absolute())
        os.environ["PATH"] = f"{folder.name}{os.pathsep}{os.environ['PATH']}"
    config.stash[STORE] = str(server or "as on PATH")


def pytest_sessionstart(session):
    """Name the server of the tests, also with -q, which leaves out the header."""
    if reporter := session.config.pluginmanager.get_plugin("terminalreporter"):
        reporter.write_line(f"store: {session.config.stash[STORE]}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a worker of xdist its half: of modules that both import, half the time would be imports."""
    workers = node.config.option.tx
    if node.config.option.dist == "each" and len(workers) == 2:
        node.workerinput["is_second"] = node.gateway.id == "gw1"


def pytest_ignore_collect(collection_path, config):
    """Import no module all of whose tests are left out, or are another worker's: some take a second."""
    if collection_path.suffix == ".py":
        is_second = getattr(config, "workerinput", {}).get("is_second")
        if is_second not in (None, bool(SECOND_HALF.search(collection_path.as_posix()))):
            return True
        text, chosen = collection_path.read_text(), config.option.markexpr
        if chosen.startswith("slow") and not MAY_BE_SLOW.search(text):
            return True
        marks = OF_A_MODULE.search(text)
        return (marks and f"not {marks[1]}" in chosen) or None
    return None


def pytest_collection(session):
    """Collect no garbage while the tests are collected: nearly all that is made stays."""
    gc.disable()


def pytest_collection_finish(session):
    """Except the modules and tests from the collection of garbage, which took a sixth of the suite's time."""
    if sys.version_info < (3, 14):  # There hypothesis looks for what refers to its generator.
        gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # Open files of modules close silently then.


@pytest.hookimpl(trylast=True)  # behind what shuffles them
def pytest_collection_modifyitems(config, items):
    """Begin with the longest files, and leave out what needs no store, where a server is named."""
    items.sort(key=lambda item: not LONGEST.search(item.nodeid))
    if config.getoption("--store"):
        others = [item for item in items if not NEED_A_STORE.intersection(item.fixturenames)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if NEED_A_STORE.intersection(item.fixturenames)]


@pytest.fixture(scope="session")
def anyio_backend():
    """Async tests run on asyncio, as workers do."""
    return "asyncio"


@pytest.fixture(scope="session")
def store_server():
    """One real server for the session (one for each xdist worker), gone with it."""
    with private_store() as store:
        yield store


@pytest.fixture
def redis_url(store_server):
    """Give the address of an empty database on the session's server."""
    with redis.Redis.from_url(store_server.url) as client:
        client.flushall()
    return store_server.url


DATABASES = itertools.cycle(range(1, 16))


@pytest.fixture
def in_redis(redis_url):
    """Make stores on a database of their own, by their clock.

    A sweep that an earlier test left on the first database, by the real time, would find every lease over.
    """
    from runner.store.redis.store import RedisStore

    stores, url = [], redis_url.replace("db=0", f"db={next(DATABASES)}")

    def make(clock, **options):
        stores.append(RedisStore(url, clock=clock, push=False, **options))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def waits_for_disk(store_server):
    """Skip where the server of this machine is too old to wait for its disk."""
    from runner.store.redis import durability

    with redis.Redis.from_url(store_server.url) as client:
        version = client.info("server")["redis_version"]
    if tuple(map(int, version.split(".")[:2])) < durability.OLDEST:
        least = ".".join(map(str, durability.OLDEST))
        pytest.skip(f"needs Redis {least} or a Valkey; the server on PATH is {version}")


@pytest.fixture(params=["fake", pytest.param("server", marks=pytest.mark.slow)])
def any_store(request):
    """A store for a client alone: a fake one in this process, and in the slow suite a server's, too."""
    if request.param == "fake":
        yield request.getfixturevalue("fake_store")
        return
    from runner.testing.fake_redis import FakeStore

    url = request.getfixturevalue("redis_url")
    with redis.Redis.from_url(url) as client:
        yield FakeStore(url, client)
