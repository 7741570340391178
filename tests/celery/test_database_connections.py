"""Connections that nodes and tools open on threads are closed when their work ends, as a task's are."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from runner import GraphBuilder, async_loop
from runner.celery import around_thread_work
from tests.integrations.extras import need
from tests.postgres import postgres

need("django", "django")

__all__ = ["postgres"]

GRAPHS = ("functions", "coroutines", "tools", "langgraph")


def left_open(site, postgres, **environment):
    """Run 48 runs, a quarter of each graph, and return the number of connections that stay."""
    import psycopg

    worker = site.add(
        "threads",
        slots=4,
        app="tests.celery.database:app",
        RUNNER_GRAPHS="tests.celery.database",
        DJANGO_SETTINGS_MODULE="tests.celery.database",
        POSTGRES_FOLDER=str(postgres.folder),
        **environment,
    )
    worker.wait_ready()
    runs = [site.client.start(name, {}) for _ in range(12) for name in GRAPHS]
    assert {run.wait(120).status.value for run in runs} == {"completed"}
    with psycopg.connect(postgres.url) as connection:
        (count,) = connection.execute(
            "select count(*) from pg_stat_activity where application_name = 'nodes'"
        ).fetchone()
    return count


@pytest.mark.slow
def test_no_kind_of_node_leaves_connections_of_django_open(empty_site, postgres):
    """After runs of functions, coroutines, tools and LangGraph none is open."""
    need("langgraph", "langgraph")

    assert left_open(empty_site, postgres) == 0


@pytest.mark.slow
def test_without_the_closing_connections_stay_open(empty_site, postgres):
    """The control: threads that are no Celery task's keep what was opened on them."""
    need("langgraph", "langgraph")

    assert left_open(empty_site, postgres, SABOTAGE="1") > 3


def test_a_manager_is_entered_around_each_piece_of_work(monkeypatch):
    """It is left again when the work fails, and a node in process is inside it, too."""
    monkeypatch.setattr(async_loop, "_around", [])
    seen = []

    @around_thread_work
    @contextmanager
    def watch():
        seen.append("enter")
        try:
            yield
        finally:
            seen.append("leave")

    def node(ctx):
        seen.append("node")
        raise ValueError("no")

    builder = GraphBuilder()
    builder.add_node(node, "only")
    builder.build()(1)

    assert seen == ["enter", "node", "leave"]


@pytest.mark.parametrize("when", ["entered", "left"])
def test_a_manager_that_fails_keeps_no_work_from_its_end(monkeypatch, caplog, when):
    """The node is done, in a process without Django's settings too, and the log has the error."""
    monkeypatch.setattr(async_loop, "_around", [])
    import django.db  # noqa: F401 - imported and not configured

    @around_thread_work
    @contextmanager
    def fail():
        if when == "entered":
            raise OSError("no pool")
        yield
        raise OSError("no pool")

    builder = GraphBuilder()
    builder.add_node(lambda ctx: 42, "only")

    assert builder.build()(1).results["only"].output == 42
    assert "around_thread_work.failed" in caplog.text
