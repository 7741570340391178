from __future__ import annotations

import io
import json
import logging
from contextlib import contextmanager

import pytest

from runner import GraphBuilder, Status
from runner.execution import telemetry
from runner.records.outcomes import Interrupted, Succeeded

log = logging.getLogger("shop")


def build(*functions):
    builder = GraphBuilder()
    builder.set_graph_id("shop")
    for function in functions:
        builder.add_node(function, function.__name__)
    return builder.build()


@pytest.fixture
def watch():
    """Attach observers, and take them off again."""
    attached = []

    def attach(observer):
        telemetry.attach(observer)
        attached.append(observer)

    yield attach
    for observer in attached:
        telemetry.detach(observer)


def test_a_log_line_of_a_node_says_where_it_comes_from(caplog):
    """Run, graph, node, visit and attempt are on every record, in sync and async nodes alike."""
    caplog.handler.addFilter(telemetry.RunFilter())

    def sync_node(ctx):
        log.warning("sync")

    async def async_node(ctx):
        log.warning("async")

    run = build(sync_node, async_node)("go").run_id
    log.warning("outside")
    found = {
        record.message: (record.run_id, record.graph, record.node, record.visit, record.attempt)
        for record in caplog.records
        if record.name == "shop"
    }

    assert found == {
        "sync": (run, "shop", "sync_node", 1, 1),
        "async": (run, "shop", "async_node", 1, 1),
        "outside": ("", "", "", "", ""),
    }


def test_a_log_line_can_be_json():
    """One line for each record: what was logged, where, with its extra fields and its error."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(telemetry.JsonFormatter())
    log.addHandler(handler)

    def pay(ctx):
        log.warning("order %s\n\x1b[31m", 7, extra={"amount": 120})

    try:
        run = build(pay)("go").run_id
        try:
            int("no number")
        except ValueError:
            log.exception("printing failed")
    finally:
        log.removeHandler(handler)
    inside, outside = (json.loads(line) for line in written.getvalue().splitlines())

    assert inside["message"] == "order 7\n\x1b[31m"
    assert (inside["run_id"], inside["graph"], inside["node"]) == (run, "shop", "pay")
    assert (inside["visit"], inside["attempt"], inside["amount"]) == (1, 1, 120)
    assert (inside["level"], inside["logger"]) == ("WARNING", "shop")
    assert inside["time"].endswith("Z")
    assert "run_id" not in outside
    assert outside["exception"].endswith("'no number'")


def test_an_observer_sees_every_execution_and_how_it_ended(watch):
    """A node that asks is executed twice: it waits first, and then succeeds."""
    seen = []

    @contextmanager
    def observer(place, visit):
        yield lambda outcome: seen.append((place.node, type(outcome)))

    watch(observer)
    graph = build(ask)
    (question,) = graph("go").interrupts
    graph([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])

    assert seen == [("ask", Interrupted), ("ask", Succeeded)]


def ask(ctx):
    return ctx.interrupt("approval")


@pytest.mark.parametrize("when", ["enter", "tell", "leave"])
def test_an_observer_that_raises_breaks_no_run(watch, caplog, when):
    """Watching is never a reason to fail: what the observer raised is logged."""

    @contextmanager
    def observer(place, visit):
        def tell(_):
            assert when != "tell"

        assert when != "enter"
        yield tell
        assert when != "leave"

    watch(observer)

    assert build(work)("go").status is Status.COMPLETED
    assert "observer.failed" in caplog.text


def test_what_an_observer_raises_is_not_in_the_error_of_a_node(watch):
    """The traceback of a node that fails names its own errors; control: also the one that it handles."""

    def observer(place, visit):
        raise OSError

    def fail(ctx):
        try:
            {}["a"]
        except KeyError:
            raise ValueError  # noqa: B904 - the context is what is looked at

    watch(observer)
    text = build(fail)("go").results["fail"].error.traceback

    assert ("KeyError" in text, "OSError" in text) == (True, False)


def work(ctx):
    return "done"
