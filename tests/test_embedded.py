from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import redis

from runner.dev.embedded import (
    OLDEST,
    EmbeddedStore,
    bundled_server,
    embedded_store,
    find_server,
)
from runner.errors import StoreError
from tests.tcp_store import tcp_store
from tests.waiting import wait_until

OWNER = """
    import os, sys
    from runner.dev.embedded import embedded_store

    with embedded_store() as store:
        if sys.argv[1] == "fork" and os.fork() == 0:
            sys.stdin.readline()
            os._exit(0)
        print(store.pid, store.socket_path, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def server_present(store_server):
    """Skip or fail here, once, where there is no server to start."""


def ping(store: EmbeddedStore) -> bool:
    with redis.Redis.from_url(store.url) as client:
        return client.ping()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def program(folder, name: str, text: str) -> None:
    folder.joinpath(name).write_text(f"#!/bin/sh\n{text}\n")
    folder.joinpath(name).chmod(0o755)


def test_a_store_answers_and_leaves_nothing_behind():
    """A store answers inside its block; after it, server and folder are gone."""
    with embedded_store() as store:
        folder, pid = store.socket_path.parent, store.pid

        assert ping(store)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    assert not lives(pid)
    assert not folder.exists()
    assert store.pid == 0


@pytest.mark.full
@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_killed_owner_leaves_no_server_behind(how):
    """SIGKILL of the owner ends its server and removes the folder, even if a forked child lives on."""
    command = [sys.executable, "-c", textwrap.dedent(OWNER), how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        pid, path = owner.stdout.readline().split()
        assert lives(int(pid))

        owner.kill()

        wait_until(lambda: not lives(int(pid)), "the server ended")
        wait_until(lambda: not Path(path).parent.exists(), "the folder was removed")


@pytest.mark.full
def test_a_forked_child_leaves_the_store_alone():
    """A forked child that runs into `stop` ends neither the server nor its folder."""
    with embedded_store() as store:
        child = os.fork()
        if child == 0:
            store.stop()
            os._exit(0)
        os.waitpid(child, 0)

        assert ping(store)


def test_the_store_outlives_the_thread_that_started_it():
    """A store belongs to the process, not to the thread that happened to start it."""
    store = EmbeddedStore(find_server(), appendonly=False, directory=None)
    starter = threading.Thread(target=store.start)
    starter.start()
    starter.join()

    assert ping(store)

    store.stop()


def test_a_frozen_server_is_ended_too():
    """A server that no longer reacts to anything can still be stopped."""
    with embedded_store() as store:
        pid = store.pid
        os.kill(pid, signal.SIGSTOP)

    assert not lives(pid)


@pytest.mark.full
@pytest.mark.parametrize(("appendonly", "kept"), [(True, b"here"), (False, None)])
def test_a_crash_loses_only_what_was_not_to_be_kept(appendonly, kept):
    """After a crash and a restart an append-only store has its data, at the same address."""
    with (
        embedded_store(appendonly=appendonly) as store,
        redis.Redis.from_url(store.url) as client,
    ):
        client.set("key", "here")
        store.kill()
        assert store.pid == 0

        store.restart()

        assert client.get("key") == kept


def test_what_is_acknowledged_is_on_disk():
    """An append-only store writes before it replies, also while the disk is slow."""
    with embedded_store(appendonly=True) as store, redis.Redis.from_url(store.url) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "always"}


def test_a_directory_keeps_its_data_and_serves_one_store(tmp_path):
    """Data in a named directory is there the next time; a second server on it is refused meanwhile."""
    with embedded_store(appendonly=True, directory=tmp_path) as store:
        with redis.Redis.from_url(store.url) as client:
            client.set("key", "here")
        with (
            pytest.raises(StoreError, match="uses"),
            embedded_store(appendonly=True, directory=tmp_path),
        ):
            pytest.fail("two servers on one directory")

    with embedded_store(appendonly=True, directory=tmp_path) as store:
        with redis.Redis.from_url(store.url) as client:
            assert client.get("key") == b"here"


def test_a_loopback_port_needs_the_password():
    """All three addresses work, and none without the password."""
    with tcp_store() as store:
        with redis.Redis.from_url(store.tcp_url) as client:
            assert client.ping()
        assert ping(store)
        with redis.Redis.from_url(f"unix://{store.socket_path}") as stranger:
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()


def test_the_socket_path_is_short_enough_everywhere(tmp_path, monkeypatch):
    """A deep temporary folder does not make the socket's path too long for the kernel."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))

    with embedded_store() as store:
        assert ping(store)

    assert list(deep.iterdir()) == []


def test_no_server_at_all_says_what_to_install(tmp_path, monkeypatch):
    """Where no server can be found the error names three ways to get one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])

    with pytest.raises(StoreError, match=r"embedded.*apt install.*RUNNER_REDIS_URL"):
        find_server()


def test_an_old_server_is_passed_over(tmp_path, monkeypatch):
    """A server on PATH that is too old for the scripts is not used."""
    program(tmp_path, "redis-server", "echo Redis server v=6.0.16 sha=00000000:0 bits=64")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    assert find_server().parent != tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [False, True])
def test_these_tests_run_on_the_server_of_the_wheel(chosen, tmp_path):
    """Whatever lies on PATH, the tests use the server of the wheel, and say so; another one must be named."""
    program(tmp_path, "redis-server", "echo v=99.0")
    program(tmp_path, "valkey-server", "echo v=99.0")
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    options = ["--store", "redis-server"] if chosen else []
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", *options, __file__]

    said = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout

    server = tmp_path / "redis-server" if chosen else bundled_server()
    assert said.startswith(f"store: {server}\n")


def test_the_oldest_version_that_is_claimed_is_tested():
    """README, the page on deployment and CI name the version that is checked."""
    version = ".".join(map(str, OLDEST))
    root = Path(__file__).parents[1]

    assert f"**Redis** {version} or newer" in (root / "README.md").read_text()
    assert f"Redis {version} or newer" in (root / "docs/how-to/deploy.md").read_text()
    assert f"STORE=build/redis-{version}/bin/redis-server" in (root / ".ci/run").read_text()


def test_a_server_that_ends_at_once_shows_its_log(tmp_path, monkeypatch):
    """When the server can't start, the error carries what the server said, and nothing stays."""
    program(tmp_path, "valkey-server", "echo v=9.0; echo the disk is on fire >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(StoreError, match="the disk is on fire"), embedded_store():
        pytest.fail("a broken server was used")

    assert [path.name for path in tmp_path.iterdir()] == ["valkey-server"]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_redis_url_is_an_empty_database(redis_url, turn):
    """Each test that asks for `redis_url` finds an empty database, whatever the one before left."""
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", turn)


def test_the_private_store_has_no_tcp_port():
    """Nothing listens but the private socket."""
    with embedded_store() as store, redis.Redis.from_url(store.url) as client:
        assert client.config_get("port") == {"port": "0"}
