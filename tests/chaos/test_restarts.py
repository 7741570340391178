"""The server of the store is killed and comes back: what it acknowledged is there, and work goes on."""

from __future__ import annotations

import random
import threading

import pytest

from runner import Status
from runner.store.redis.store import RedisStore
from tests.celery.test_stay import GRAPHS, busy, open_gate, starts
from tests.celery.workers import Site
from tests.chaos.load import Load
from tests.chaos.servers import Server
from tests.chaos.transitions import GRAPH, Walk
from tests.waiting import wait_until

KILLS = 30
PROGRESS = 150
"""Seconds that everything may take to end after the last kill, on a slow machine."""


@pytest.fixture
def server(tmp_path):
    """A server that writes each change to its disk before it acknowledges it."""
    server = Server(tmp_path, appendonly="yes").start()
    yield server
    server.end()


def restart(server) -> None:
    server.kill()
    server.start()


@pytest.mark.sample
def test_a_server_killed_after_every_transition_forgets_none(server):
    """After each reply the server is killed: the run is as it was, and the request again says the same."""
    store = RedisStore(server.url, push=False)
    for verb, wanted, send in Walk(store, "00walk"):
        reply = send("")
        before = store.read("00walk"), store.events("00walk")
        restart(server)

        assert reply == wanted, verb
        assert (store.read("00walk"), store.events("00walk")) == before, verb
        assert send("") == wanted, verb
    assert store.read("00walk").record.status is Status.CANCELLED
    store.close()


def test_without_the_append_only_file_transitions_are_forgotten(tmp_path):
    """Control: the same kill of a server without its file, and the run that was acknowledged is gone."""
    server = Server(tmp_path, appendonly="no").start()
    try:
        store = RedisStore(server.url, push=False)
        _, _, send = next(iter(Walk(store, "00walk")))
        assert send("") == "00walk"
        restart(server)

        assert store.read("00walk") is None
        store.close()
    finally:
        server.end()


def test_thirty_kills_under_load_lose_nothing_that_was_acknowledged(server, tmp_path):
    """Killed thirty times while runs start and people answer: every run ends, each visit once, by itself."""
    site = Site(server.url, tmp_path)
    dice = random.Random(5)  # noqa: S311 - when to kill is no secret
    try:
        site.ready(2)
        with Load(server.url) as load:
            kills = 0
            while (
                kills < KILLS or len(load.answered) < 2
            ):  # on a busy machine few answer meanwhile
                threading.Event().wait(dice.uniform(0.1, 0.6))
                restart(server)
                kills += 1
        load.finish(PROGRESS)
        load.check()
        load.close()
        assert load.errors["StoreError"]
        assert len(load.started) > KILLS
        assert len(load.answered) > 1
        assert all(worker.alive for worker in site.workers)
    finally:
        site.end()


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_workers_of_an_own_app_outlive_the_server_while_nodes_run(server, tmp_path, pool):
    """Each has a message that isn't acknowledged, and acknowledges it on a connection that is gone."""
    site = Site(server.url, tmp_path)
    try:
        for _ in range(2):
            app, options = "tests.celery.other_teams_app:app", ["--task-events"]
            site.add(pool, slots=2, app=app, options=options)
        site.ready(2)
        runs = [site.client.start("gated", "go") for _ in range(4)]
        wait_until(lambda: all(map(site.starts, runs)), "the nodes run")
        for _ in range(2):
            server.kill()
            lines = [worker.output().count("Trying again in") for worker in site.workers]
            wait_until(
                lambda before=lines: all(
                    worker.output().count("Trying again in") > count or not worker.alive
                    for worker, count in zip(site.workers, before, strict=True)
                ),
                "the workers have lost it",
            )
            server.start()
            assert all(worker.alive for worker in site.workers)
        for run in runs:
            site.open_gate(run)
            assert run.wait(PROGRESS).status is Status.COMPLETED
        for run in [site.client.start("chain", "go") for _ in range(4)]:
            assert run.wait(PROGRESS).status is Status.COMPLETED
        assert all(worker.alive for worker in site.workers)
        assert all("NoneType" not in worker.output() for worker in site.workers)
    finally:
        site.end()


def test_a_row_on_a_slot_goes_on_when_the_server_was_killed(server, tmp_path):
    """At the level `fsync` what a settle has claimed for its worker is on the disk as well as its result."""
    site = Site(server.url, tmp_path)
    try:
        site.ready(1, RUNNER_DURABILITY="fsync", **GRAPHS)
        run = busy(site)
        restart(server)
        open_gate(site, run, "b")

        assert run.wait(PROGRESS).status is Status.COMPLETED
        assert [len(starts(site, run, node)) for node in "ac"] == [1, 1]
        assert site.workers[0].alive
    finally:
        site.end()


def test_without_the_append_only_file_a_kill_loses_runs(tmp_path):
    """Control: one kill of a server without its file after some load, and acknowledged runs are gone."""
    server = Server(tmp_path, appendonly="no").start()
    try:
        store = RedisStore(server.url)
        store.publish([GRAPH])
        with Load(server.url, graphs=[GRAPH.graph_id]) as load:
            wait_until(lambda: len(load.started) > 3, "some runs were acknowledged")
        restart(server)

        assert [run_id for run_id in load.started.values() if store.read(run_id) is None]
        store.close()
    finally:
        server.end()
