"""What a monitor such as Flower sees: nodes by their names, and waiting ones as waiting."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager

import pytest
from celery import Celery
from celery.events.state import State

from runner import Status
from runner.celery.application import make_app
from runner.celery.doorbells import CeleryDispatcher
from runner.celery.monitors import KNOWN_FOR, NO_EVENTS, MonitoredDispatcher
from runner.settings import Settings, as_broker
from runner.store.interface import Doorbell
from tests.waiting import wait_until


@contextmanager
def following(site, kind=State):
    """Follow the events of a site's workers with Celery's own state, as Flower does."""
    app = Celery("monitor", broker=as_broker(site.url), set_as_current=False)
    state = kind()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": state.event})
        thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": True}, daemon=True)
        thread.start()
        wait_until(lambda: state.event_count, "the first event arrives")
        yield state
        receiver.should_stop = True
        thread.join(60)
    app.close()


@contextmanager
def published(site):
    """List what a site's workers publish, without listening to it: the topic and message of each event."""
    topic, commands = f"PUBLISH /{site.number}.celeryev/", []
    with site.redis.monitor() as server:

        def watch():
            for command in server.listen():
                if command["command"].startswith("PUBLISH end"):
                    return
                if command["command"].startswith(topic):
                    commands.append(command["command"].removeprefix(topic).split(" ", 1))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        yield commands
        site.redis.publish("end", "")
        thread.join(60)


def heartbeat(commands):
    """Wait until the worker has published its next event, which comes later than collected ones."""
    before = len([topic for topic, _ in commands if topic == "worker.heartbeat"])
    wait_until(
        lambda: [topic for topic, _ in commands].count("worker.heartbeat") > before,
        "a heartbeat comes",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "is_sent"),
    [({}, False), ({"RUNNER_EVENTS": "true"}, True), ({"RUNNER_EVENTS": "false"}, False)],
)
def test_events_that_nobody_hears_are_not_sent(empty_site, settings, is_sent):
    """Without a monitor a worker publishes only its own events by default; a setting changes that."""
    empty_site.ready(1, **settings)
    with published(empty_site) as commands:
        run = empty_site.client.start("chain", "go")
        assert run.wait(60).status is Status.COMPLETED
        heartbeat(commands)
    sent = [body for topic, body in commands if topic.startswith("task.") and body != NO_EVENTS]

    assert bool(sent) is is_sent


@pytest.mark.slow
def test_a_monitor_that_starts_later_gets_every_event(empty_site):
    """Even one of tasks only, which wakes no worker, hears everything a second after it has come."""
    empty_site.ready(1)
    assert empty_site.client.start("chain", "go").wait(60).status is Status.COMPLETED
    app = Celery("monitor", broker=as_broker(empty_site.url), set_as_current=False)
    seen, before = [], empty_site.redis.pubsub_numpat()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection,
            handlers={"*": lambda event: seen.append((event["type"], event["uuid"]))},
            routing_key="task.#",
        )
        thread = threading.Thread(
            target=receiver.capture, kwargs={"wakeup": False}, daemon=True
        )
        thread.start()
        wait_until(lambda: empty_site.redis.pubsub_numpat() > before, "it has subscribed")
        begins = time.monotonic() + KNOWN_FOR
        wait_until(lambda: time.monotonic() > begins, "the worker's answer has lapsed")
        run = empty_site.client.start("chain", "go")
        tasks = [f"{run.id}.{node}.1.1" for node in "abc"]
        wait_until(lambda: ("task-succeeded", tasks[-1]) in seen, "the last event comes")
        receiver.should_stop = True
        thread.join(60)
    app.close()

    kinds = ("task-received", "task-started", "task-succeeded")
    assert seen == [(kind, task) for task in tasks for kind in kinds]


@pytest.mark.slow
def test_a_monitor_gets_every_event_after_a_reconnection(empty_site):
    """The worker has lost its connections to the broker once: its nodes and their events go on as before."""
    empty_site.ready(1)
    (worker,) = empty_site.workers
    connected = worker.output().count("Connected to")
    empty_site.redis.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: worker.output().count("Connected to") > connected, "it is back")
    with following(empty_site) as state:
        run = empty_site.client.start("chain", "go")
        assert run.wait(60).status is Status.COMPLETED
        tasks = [f"{run.id}.{node}.1.1" for node in "abc"]
        wait_until(
            lambda: (
                [getattr(state.tasks.get(task), "state", "") for task in tasks]
                == ["SUCCESS"] * 3
            ),
            "the monitor knows",
        )


def test_a_task_s_event_waits_while_the_worker_closes_its_connection(empty_site):
    """A node on a thread goes on meanwhile; an error would leave its message neither done nor returned."""
    app = Celery("worker", broker=as_broker(empty_site.url), set_as_current=False)
    connection = app.connection_for_write()
    dispatcher = app.subclass_with_self(MonitoredDispatcher)(connection, buffer_group=["task"])
    dispatcher.send("worker-online")
    connection.close()
    dispatcher.send("task-started", uuid="1")

    assert [event["uuid"] for event in dispatcher._group_buffer["task"]] == ["1"]
    app.close()


@pytest.fixture(scope="module")
def monitor(sites):
    """What a monitor of the worker of threads knows."""
    site = sites["threads"]
    site.workers[0].wait_ready()
    with following(site) as state:
        yield state


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "by"), [("threads", "control"), ("prefork", "option")])
def test_events_are_sent_however_they_were_turned_on(empty_site, pool, by):
    """A node that waits is shown so, though no setting of the app's asks for events."""
    worker = empty_site.add(
        pool,
        slots=1,
        app="tests.celery.other_teams_app:app",
        options=["--task-events"] if by == "option" else [],
    )
    worker.wait_ready()
    with following(empty_site) as state:
        if by == "control":
            wait_until(
                lambda: empty_site.control.enable_events(reply=True),
                "the worker has turned them on",
            )
        run = empty_site.client.start("question", "go")
        run.wait(60)
        task_id = f"{run.id}.node.with.dots.1.1"

        wait_until(
            lambda: task_id in state.tasks and state.tasks[task_id].state == "WAITING",
            "it waits",
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "modules", "lines"),
    [
        ("prefork", "", set()),
        ("threads", "tests.celery.node_lines,", {"received", "succeeded"}),
    ],
)
def test_celery_logs_lines_of_tasks_and_of_nodes_only_at_debug(
    empty_site, pool, modules, lines
):
    """A node leaves one line of its own instead, with how it ended; a module can change that."""
    graphs = f"{modules}tests.celery.graphs"
    worker = empty_site.add(
        pool, slots=1, app="tests.celery.other_teams_app:app", RUNNER_GRAPHS=graphs
    )
    worker.wait_ready()
    run = empty_site.client.start("chain", "go")
    assert run.wait(60).status is Status.COMPLETED
    with Celery("sender", broker=as_broker(empty_site.url), set_as_current=False) as sender:
        own = sender.send_task("other_team.write", ["done"]).id

    def logged(task_id: str) -> set[str]:
        ours = [line for line in worker.output().splitlines() if task_id in line]
        return {
            word for word in ("received", "succeeded") for line in ours if f"] {word}" in line
        }

    wait_until(lambda: logged(own) == {"received", "succeeded"}, "its own task has ended")
    assert logged(f"{run.id}.c.1.1") == lines
    line = f"node.completed: chain/c[{run.id}.c.1.1] in 0."
    assert worker.output().count(line) == (not modules)


@pytest.mark.slow
def test_a_child_that_is_a_fresh_interpreter_logs_and_measures_its_nodes(empty_site):
    """It has the log's format, a line for each node in place of Celery's, and its times in the metrics."""
    worker = empty_site.add("prefork", slots=1, RUNNER_LOG_FORMAT="json")
    worker.wait_ready()
    run = empty_site.client.start("chain", "go")
    assert run.wait(60).status is Status.COMPLETED
    name = f"chain/c[{run.id}.c.1.1]"

    wait_until(lambda: name in worker.output(), "the child has logged it")
    (line,) = [line for line in worker.output().splitlines() if name in line]
    assert json.loads(line)["message"].startswith(f"node.completed: {name} in 0.")

    def measured() -> set[bytes]:
        keys = empty_site.redis.keys("*:metrics")
        return {field for key in keys for field in empty_site.redis.hkeys(key)}

    wait_until(lambda: any(b'"c"' in field for field in measured()), "its times are written")


def test_a_node_that_waits_is_shown_as_waiting(threads, monitor):
    """A monitor shows a waiting node as WAITING with its question's name, and as a success in the end."""
    run = threads.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    task_id = f"{run.id}.node.with.dots.1.1"

    wait_until(
        lambda: task_id in monitor.tasks and monitor.tasks[task_id].state == "WAITING",
        "it waits",
    )
    assert monitor.tasks[task_id].name == "question/node.with.dots"
    assert monitor.tasks[task_id].args == "visit=1 attempt=1"
    assert monitor.tasks[task_id].result == "WAITING for a person: approval"

    threads.client.respond(question.id, "yes")
    assert run.wait(60).status is Status.COMPLETED
    wait_until(lambda: monitor.tasks[task_id].state == "SUCCESS", "it has ended")


def test_a_node_that_failed_is_shown_as_failed(threads, monitor):
    """A monitor shows FAILURE, the node's error in one line, and the node's own traceback."""
    run = threads.client.start("failure", "go")
    assert run.wait(60).status is Status.FAILED
    task_id = f"{run.id}.b.1.1"

    wait_until(
        lambda: task_id in monitor.tasks and monitor.tasks[task_id].state == "FAILURE",
        "it failed",
    )
    assert monitor.tasks[task_id].exception == "ValueError('boom in attempt 1')"
    assert "in explode" in monitor.tasks[task_id].traceback


@pytest.mark.slow
def test_a_node_that_an_expiry_ended_is_shown_as_ended(threads, monitor):
    """No worker ran when the time to answer was over; a monitor shows the failure, and the other way."""
    run = threads.client.start("expiring", "go")
    failed, led = f"{run.id}.fails.1.1", f"{run.id}.leads.1.1"

    wait_until(
        lambda: failed in monitor.tasks and monitor.tasks[failed].state == "FAILURE",
        "it failed",
    )
    assert "InterruptExpired" in monitor.tasks[failed].exception
    wait_until(
        lambda: led in monitor.tasks and monitor.tasks[led].state == "SUCCESS", "it has ended"
    )
    assert run.wait(20).results["lead"].output == "done"


def test_each_attempt_is_shown_and_a_retry_as_one(threads, monitor):
    """The first attempt is shown as RETRY with its error, the second one is a task of its own."""
    run = threads.client.start("retry", "go")
    assert run.wait(60).status is Status.COMPLETED
    first, second = (f"{run.id}.flaky.1.{attempt}" for attempt in (1, 2))

    for task, state in (
        (first, "RETRY"),
        (second, "SUCCESS"),
    ):  # the events of two threads may cross
        wait_until(
            lambda: task in monitor.tasks and monitor.tasks[task].state == state,  # noqa: B023
            f"{task} is {state}",
        )
    assert "boom in attempt 1" in monitor.tasks[first].exception
    assert monitor.tasks[second].args == "visit=1 attempt=2"


def test_a_failed_node_is_one_error_in_the_worker_s_log(threads):
    """As a task's failure is: one line, with the frames of the node's own code."""
    run = threads.client.start("failure", "go")
    assert run.wait(60).status is Status.FAILED
    (worker,) = threads.workers

    def lines():
        return [
            line for line in worker.output().splitlines() if f"{run.id}.b.1.1] raised" in line
        ]

    wait_until(lines, "the worker has logged the failure")
    assert len(lines()) == 1
    assert "ERROR" in lines()[0]
    assert 'in explode\n    raise ValueError(f"boom in attempt' in worker.output()


def test_a_task_names_the_one_that_rang_for_it(threads, monitor):
    """A monitor can follow a run from task to task: each one's parent is the task whose end rang for it."""
    run = threads.client.start("chain", "go")
    assert run.wait(60).status is Status.COMPLETED

    a, b, c = (f"{run.id}.{node}.1.1" for node in "abc")
    parents = {a: None, b: a, c: b}
    wait_until(
        lambda: (
            {task: monitor.tasks[task].parent_id for task in parents if task in monitor.tasks}
            == parents
        ),
        "each task names the one before",
    )


@pytest.mark.slow
def test_a_doorbell_that_rings_again_ends_once(threads):
    """A monitor sees two starts under one id, and counts nodes by their one success."""
    site, kinds = threads, []

    class Recording(State):
        """Celery's state of tasks, with the kind and the task of each event."""

        def event(self, event):
            kinds.append((event["type"], event.get("uuid")))
            return super().event(event)

    with following(site, Recording) as state:
        run = site.client.start("chain", "go")
        assert run.wait(60).status is Status.COMPLETED
        task_id = f"{run.id}.a.1.1"
        app = make_app(Settings(redis_url=site.url))
        CeleryDispatcher(app).ring([Doorbell(run.id, "a", 1, 1, "chain", 3, "chain")])
        wait_until(lambda: kinds.count(("task-started", task_id)) == 2, "it has rung again")
        following_run = site.client.start("chain", "go")
        last = ("task-succeeded", f"{following_run.id}.c.1.1")
        wait_until(lambda: last in kinds, "the events until then have come")
        assert kinds.count(("task-succeeded", task_id)) == 1
        assert kinds.count(("task-received", task_id)) == 2
        assert state.tasks[task_id].state == "SUCCESS"
