"""What monitors see of answers, tasks and results that come as Celery tasks: nothing but their ids."""

from __future__ import annotations

import threading

import pytest
from celery import Celery

from runner import Status
from runner.settings import as_broker
from tests.waiting import wait_until

SECRET = "s3cret-word"


class Monitor:
    """Another program that receives a worker's events and may ask it, as Flower does."""

    def __init__(self, url: str) -> None:
        self.app = Celery("monitor", broker=as_broker(url), set_as_current=False)
        self.events: list[dict] = []
        self._connection = self.app.connection_for_read()
        self._receiver = self.app.events.Receiver(
            self._connection, handlers={"*": self.events.append}
        )
        options = {"wakeup": True}
        self._thread = threading.Thread(
            target=self._receiver.capture, kwargs=options, daemon=True
        )
        self._thread.start()
        wait_until(lambda: self.events, "the first event arrives")

    def received(self, task_id: str) -> list[dict]:
        return [
            event
            for event in self.events
            if (event.get("uuid"), event["type"]) == (task_id, "task-received")
        ]

    def close(self) -> None:
        self._receiver.should_stop = True
        self._thread.join(60)
        self._connection.release()
        self.app.close()


@pytest.fixture
def worker(empty_site):
    """A worker that logs all that Celery has to say, and sends events."""
    options = ["--loglevel", "debug", "--task-events"]
    return empty_site.add(
        "prefork", slots=1, options=options, RUNNER_GRAPHS="tests.celery.graphs"
    )


@pytest.mark.slow
def test_answers_and_tasks_stand_in_no_log_and_no_event(worker, empty_site):
    """Whoever reads the log at level DEBUG, or watches the events, learns nothing confidential."""
    worker.wait_ready()
    monitor = Monitor(empty_site.url)
    try:
        started = monitor.app.send_task(
            "runner.start", kwargs={"graph": "question", "task": SECRET}, queue="runner"
        )
        wait_until(lambda: list(empty_site.client.runs()), "the run has started")
        (row,) = empty_site.client.runs()
        run = empty_site.client.run(row.run_id)
        (question,) = run.wait(60).interrupts
        message = {"interrupt_id": question.id, "response": SECRET}
        answered = monitor.app.send_task("runner.respond", kwargs=message, queue="runner")

        wait_until(lambda: run.status is Status.COMPLETED, "the answer is applied")
        for task in (started, answered):
            wait_until(lambda key=task.id: monitor.received(key), "the event has come")
        assert SECRET not in str(monitor.events)
        succeeded = f"Task runner.respond[{answered.id}] succeeded"
        wait_until(lambda: succeeded in worker.output(), "the log says so, too")
        assert "TaskPool: Apply" in worker.output()
        assert SECRET not in worker.output()
    finally:
        monitor.close()
