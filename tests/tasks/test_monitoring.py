"""What a monitor such as Flower sees: nodes by their names, and waiting ones as waiting."""

from __future__ import annotations

import threading

import pytest
from celery import Celery
from celery.events.state import State

from runner import Status
from runner.settings import as_broker
from tests.waiting import wait_until


@pytest.fixture
def monitor(threads):
    """Follow the workers' events with Celery's own state, as Flower does."""
    app = Celery("monitor", broker=as_broker(threads.url), set_as_current=False)
    state = State()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": state.event})
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": True}, daemon=True)
        thread.start()
        wait_until(lambda: state.event_count, "the first event arrives")
        yield state
        receiver.should_stop = True
        thread.join(5)
    app.close()


def test_a_node_that_waits_is_shown_as_waiting(threads, monitor):
    """A monitor shows a waiting node as WAITING with its question's name, and as a success in the end."""
    run = threads.client.start("question", "go")
    (question,) = run.wait(20).interrupts
    task_id = f"{run.id}.node.with.dots.1.1"

    wait_until(lambda: task_id in monitor.tasks and monitor.tasks[task_id].state == "WAITING", "it waits")
    assert monitor.tasks[task_id].name == "question/node.with.dots"
    assert monitor.tasks[task_id].args == "visit=1 attempt=1"
    assert monitor.tasks[task_id].result == "WAITING for a person: approval"

    threads.client.respond(question.id, "yes")
    assert run.wait(20).status is Status.COMPLETED
    wait_until(lambda: monitor.tasks[task_id].state == "SUCCESS", "it has ended")
