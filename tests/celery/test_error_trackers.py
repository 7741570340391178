"""A node that has failed is an error as a task's is: in Celery's log, to Sentry, to Celery's signal."""

from __future__ import annotations

import json

import pytest

from runner import Status
from tests.integrations.extras import need
from tests.waiting import wait_until

need("sentry_sdk", "sentry-sdk")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pool", ["threads", "prefork", "async"])
def test_a_node_that_failed_is_an_error_and_nothing_else_is(empty_site, tmp_path, pool):
    """One line and one event, with the node's frames; a retry, a question and a cancel have none.

    Celery reports no error of an expired task, so its node does; a failed task's is not reported again.
    """
    events = tmp_path / "events"
    worker = empty_site.add(
        pool,
        slots=1,
        app="tests.celery.tracked:app",
        forked=False,  # Sentry's SDK replaces functions of Celery before others import them.
        RUNNER_GRAPHS="tests.celery.tracked",
        SENTRY_FILE=str(events),
    )
    worker.wait_ready()
    client = empty_site.client
    asking = client.start("asks", "go")
    asking.wait(60)
    asking.cancel("enough")
    assert client.start("retries", "go").wait(60).status is Status.COMPLETED
    failed, nested = client.start("fails", 7), client.start("outer", 8)
    assert failed.wait(60).status is Status.FAILED
    assert nested.wait(60).status is Status.FAILED

    def errors():
        return [line for line in worker.output().splitlines() if "ERROR" in line]

    wait_until(lambda: len(errors()) >= 2, "two errors")
    discarded = client.start("discarded", 1)
    assert discarded.wait(60).status is Status.FAILED
    wait_until(lambda: len(errors()) >= 3, "a third error")
    elsewhere = client.start("elsewhere", 2)
    assert elsewhere.wait(60).status is Status.FAILED
    told = f"[{elsewhere.id}.only.1.1] raised expected: FailedElsewhere"
    wait_until(lambda: told in worker.output(), "the last node has ended")

    first, second, third, last = errors()
    late = f"task tracked.late ({discarded.id}.only.1.1.task) expired before a worker took it."
    assert (
        f"Task fails/only[{failed.id}.only.1.1] raised unexpected: LookupError('no order 7')"
        in first + second
    )
    assert f"Task discarded/only[{discarded.id}.only.1.1] raised unexpected" in third
    assert late in third
    assert "Task tracked.explode" in last
    log = worker.output()
    block = log[: log.index("LookupError: no order 7")]
    block = block[block.rindex("ERROR") :]
    assert "in explode" in block
    assert "runner/execution" not in block
    assert "celery/app/trace.py" not in block
    sent = [json.loads(line) for line in events.read_text().splitlines()]
    values = [event["exception"]["values"][-1]["value"] for event in sent]
    assert (sorted(values[:2]), values[2:]) == (
        ["no order 7", "no order 8"],
        [late, "of a task"],
    )
    assert {event["exception"]["values"][-1]["type"] for event in sent[:2]} == {"LookupError"}
    assert sent[values.index("no order 7")]["transaction"] == "fails/only"
    assert (
        sent[0]["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "explode"
    )
