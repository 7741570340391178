"""The two recipes of docs/how-to/backup.md, on a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import redis

from runner.dev.embedded import embedded_store
from runner.store.redis.store import RedisStore
from tests.graphs import Bench, wired
from tests.tcp_store import tcp_store
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


class Shop:
    """A program and a worker; what they pay is noted outside of the store."""

    def __init__(self):
        """Nothing is paid yet."""
        self.paid = []

    def open(self, url):
        """Work on a store; only what is rung from now on is known."""
        graph = wired(
            {"ask": lambda ctx: ctx.interrupt("pay?"), "pay": self._pay}, "ask pay"
        ).build()
        return Bench(graph, store=lambda _: RedisStore(url, push=False))

    def _pay(self, ctx):
        self.paid.append(ctx.idempotency_key)

    def pay(self, bench):
        """Answer the run's question, and work until it has ended."""
        bench.answer()
        bench.finish_all()
        return self.paid[-1]


def copy_of_aof(client, data, backup):
    """Copy the append-only files, while no rewrite changes which they are."""
    client.config_set("auto-aof-rewrite-percentage", 0)
    wait_until(
        lambda: not client.info("persistence")["aof_rewrite_in_progress"], "the rewrite ended"
    )
    shutil.copytree(data / "appendonlydir", backup)
    client.config_set("auto-aof-rewrite-percentage", 100)


def copy_of_rdb(client, data, backup):
    """Have a snapshot written, and copy it."""
    client.save()
    backup.mkdir()
    shutil.copy(data / "dump.rdb", backup)


def restored_aof(backup, data):
    """Start a server on the append-only files."""
    shutil.copytree(backup, data / "appendonlydir")


def restored_rdb(backup, data):
    """Have a server read the snapshot and write append-only files; from then on it starts with these."""
    shutil.copy(backup / "dump.rdb", data)
    with (
        embedded_store(appendonly=False, directory=data) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        client.config_set("appendonly", "yes")

        def is_written():
            state = client.info("persistence")
            busy = state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]
            return (
                state["aof_enabled"] and not busy and state["aof_last_bgrewrite_status"] == "ok"
            )

        wait_until(is_written, "the append-only files were written")


def command(url, *words):
    """Run `runner` as an operator does, and return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli", *words, "--json", "--redis-url", url],
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("copy", "restore"), [(copy_of_aof, restored_aof), (copy_of_rdb, restored_rdb)]
)
def test_a_restored_store_goes_on_from_its_backup(tmp_path, copy, restore):
    """What was paid after the backup is paid again with the same keys, and nothing before the thaw."""
    lost, fresh, backup, shop = (
        tmp_path / "lost",
        tmp_path / "fresh",
        tmp_path / "backup",
        Shop(),
    )
    fresh.mkdir()
    with (
        embedded_store(appendonly=True, directory=lost) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        waiting = shop.open(server.url).start(idempotency_key="order-1")
        waiting.finish_all()
        copy(client, lost, backup)
        later = shop.open(server.url).start(idempotency_key="order-2")
        later.finish_all()
        unkeyed = shop.open(server.url).start()
        unkeyed.finish_all()
        first, second, third = shop.pay(waiting), shop.pay(later), shop.pay(unkeyed)
    restore(backup, fresh)

    with tcp_store(appendonly=True, directory=fresh) as server:
        command(server.tcp_url, "freeze", "--all", "--reason", "restored", "--by", "ana")
        report = command(server.tcp_url, "doctor")
        checks = {check["name"]: check["result"] for check in report["checks"]}
        again = shop.open(server.tcp_url)
        again.run_id = waiting.run_id
        again.engine.freezes.refresh()
        again.answer()
        again.finish_all()
        assert len(shop.paid) == 3
        assert again.result().status == "executing"
        command(server.tcp_url, "thaw", "--all", "--reason", "compared", "--by", "ana")
        again.engine.freezes.refresh()
        wait_until(
            lambda: again.engine.sweep() or again.bells, "the sweep rang for what had waited"
        )
        again.finish_all()
        for key in ({"idempotency_key": "order-2"}, {}):
            restarted = shop.open(server.tcp_url).start(**key)
            restarted.finish_all()
            shop.pay(restarted)

    assert shop.paid[3:5] == [first, second]
    assert shop.paid[5] != third
    # No worker process runs here: nothing else is wrong.
    assert {name for name, result in checks.items() if result == "fail"} == {
        "workers",
        "graphs",
    }
    assert (checks["disk"], checks["freeze"]) == ("pass", "warn")


def test_a_snapshot_is_not_read_beside_append_only_files(tmp_path):
    """A server that is started with `appendonly yes` on a snapshot alone is empty; by the recipe, not."""
    data, shop = tmp_path / "data", Shop()
    with (
        embedded_store(appendonly=True, directory=data) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        shop.open(server.url).start(idempotency_key="order-1").finish_all()
        copy_of_rdb(client, data, tmp_path / "backup")
        had = client.dbsize()
    sizes = {}
    for recipe in (True, False):
        fresh = tmp_path / f"fresh{recipe}"
        fresh.mkdir()
        shutil.copy(tmp_path / "backup" / "dump.rdb", fresh)
        if recipe:
            restored_rdb(tmp_path / "backup", fresh)
        with embedded_store(appendonly=True, directory=fresh) as server:
            with redis.Redis.from_url(server.url) as client:
                sizes[recipe] = client.dbsize()

    assert sizes == {True: had, False: 0}
