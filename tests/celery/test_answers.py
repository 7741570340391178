"""Answers and starts by the doors that any program can use."""

from __future__ import annotations

import base64
import json
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery
from kombu import Connection
from kombu.serialization import disable_insecure_serializers, enable_insecure_serializers

from runner import Status
from runner.settings import as_broker
from runner.store.redis.dead_letters import DeadLetters
from tests.celery.workers import script
from tests.docs import blocks
from tests.waiting import wait_until

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "messages" / "README.md"
ANSWER_SCRIPT = blocks.read(PAGE)[0].text
"""The program that the documentation shows."""


def asked(site):
    """Start a run that asks, and give it with its question."""
    run = site.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    return run, question.id


def answer(interrupt_id, response="yes", **more):
    return json.dumps({"v": 1, "interrupt_id": interrupt_id, "response": response, **more})


def receipts_of(run):
    return [event.data["status"] for event in run.events() if event.kind == "receipt"]


@pytest.mark.slow
def test_five_lines_of_anybodys_code_answer(threads):
    """A program that knows only redis and json answers; the same again is a duplicate, with the winner."""
    run, question = asked(threads)
    replies = "runner:replies:script"

    first = script(ANSWER_SCRIPT, threads.url, question, '{"go": true}', replies).strip()
    accepted = threads.receipt(replies)
    again = script(ANSWER_SCRIPT, threads.url, question, '{"go": false}', replies).strip()
    duplicate = threads.receipt(replies)

    assert (accepted["status"], accepted["message_id"]) == ("accepted", first)
    assert (accepted["interrupt_id"], accepted["run_id"]) == (question, run.id)
    assert (duplicate["status"], duplicate["message_id"]) == ("duplicate", again)
    assert run.wait(60).results["node.with.dots"].output == {"go": True}
    assert receipts_of(run) == ["accepted", "duplicate"]


def test_an_entry_without_a_body_is_a_dead_letter(threads):
    """A message in another field is kept under its name."""
    letter = threads.dead_letter(threads.send(b"lost", field="data"))

    assert b"no field `body`" in letter["reason"]
    assert letter["field:data"] == b"lost"


def test_a_message_that_breaks_its_reader_does_not_stop_those_behind_it(threads):
    """Where applying an answer fails for a reason unknown, it is kept with that reason and others go on."""
    broken, question = asked(threads)
    field = "i:" + question.partition(".")[2]
    threads.redis.hset(f"runner:{{p00}}:r:{broken.id}", field, "1 1 0 no question")
    run, good = asked(threads)

    entry_id = threads.send(answer(question))
    threads.send(answer(good))

    assert b"could not be applied" in threads.dead_letter(entry_id)["reason"]
    wait_until(lambda: run.status is Status.COMPLETED, "the run behind has its answer")


@pytest.mark.slow
def test_a_message_that_the_store_does_not_take_lets_others_pass(threads):
    """It is tried again, and applied when somebody has mended what it met; nobody waits for that."""
    broken = "runner:{p00}:idem:chain:broken"
    threads.redis.lpush(broken, "not ours")
    start = {"v": 1, "graph": "chain", "task": "go"}

    with threads.redis.pipeline() as pipe:
        for key in ("broken", "whole"):
            body = {**start, "idempotency_key": key, "reply_to": f"runner:replies:{key}"}
            pipe.xadd("runner:starts", {"body": json.dumps(body)})
        pipe.execute()

    assert threads.receipt("runner:replies:whole")["status"] == "accepted"
    assert threads.redis.xlen("runner:replies:broken") == 0
    threads.redis.delete(broken)
    assert threads.receipt("runner:replies:broken")["status"] == "accepted"


def test_a_run_is_started_by_a_message(threads):
    """A start on the stream begins a run, once for one idempotency key, and its receipt names it."""
    body = {
        "v": 1,
        "graph": "chain",
        "task": {"n": 1},
        "idempotency_key": "k1",
        "reply_to": "runner:replies:s",
    }

    threads.send(json.dumps(body), "runner:starts")
    first = threads.receipt("runner:replies:s")
    threads.send(json.dumps(body), "runner:starts")
    second = threads.receipt("runner:replies:s")

    assert first["status"] == second["status"] == "accepted"
    assert first["run_id"] == second["run_id"]
    assert threads.client.run(first["run_id"]).wait(60).status is Status.COMPLETED


def test_a_start_of_an_unknown_graph_is_a_dead_letter(threads):
    """Nobody's graph: the sender is told so, and the message is kept."""
    body = {"v": 1, "graph": "nobodys", "task": None, "reply_to": "runner:replies:s2"}
    entry_id = threads.send(json.dumps(body), "runner:starts")

    assert threads.receipt("runner:replies:s2")["status"] == "unknown"
    assert b"no graph 'nobodys'" in threads.dead_letter(entry_id)["reason"]


@pytest.fixture
def stranger(threads):
    """A Celery app of somebody else's, on the same broker, that knows only the names of our tasks."""
    app = Celery("stranger", broker=as_broker(threads.url), set_as_current=False)
    app.conf.broker_transport_options = {"socket_timeout": 10}
    yield app
    app.close()


def test_celery_programs_answer_and_start_by_name(threads, stranger):
    """`send_task` with our names is a door, too, and leads to the same receipts."""
    _, question = asked(threads)
    message = {"interrupt_id": question, "response": "yes", "reply_to": "runner:replies:task"}
    stranger.send_task("runner.respond", kwargs=message, queue="runner")
    assert threads.receipt("runner:replies:task")["status"] == "accepted"

    start = {"graph": "chain", "task": "go", "reply_to": "runner:replies:task"}
    stranger.send_task("runner.start", kwargs=start, queue="runner")
    started = threads.receipt("runner:replies:task")
    assert threads.client.run(started["run_id"]).wait(60).status is Status.COMPLETED


def test_a_chain_of_celery_tasks_ends_in_a_start(threads, stranger):
    """What the task before has returned, Celery passes as the first argument: it is the run's task."""
    start = {"graph": "chain", "reply_to": "runner:replies:chained"}
    (
        stranger.signature("celery.accumulate", args=[2, 3], queue="runner")
        | stranger.signature("runner.start", kwargs=start, queue="runner")
    ).apply_async()
    run_id = threads.receipt("runner:replies:chained")["run_id"]

    assert threads.client.run(run_id).wait(60).status is Status.COMPLETED
    assert threads.client.engine.store.read(run_id).task == [2, 3]


SPAN = f"00-{'a' * 32}-{'b' * 16}-01"
"""A span of the program that sends a start."""


@pytest.mark.parametrize(
    ("header", "field", "trace"),
    [(SPAN, None, SPAN), ("00-nonsense", None, ""), ("", SPAN, SPAN)],
)
def test_the_run_of_a_celery_task_continues_its_sender_s_trace(
    threads, stranger, header, field, trace
):
    """The header that OpenTelemetry's instrumentation writes is enough; a broken one stops nothing."""
    message = {"graph": "chain", "task": "go", "reply_to": "runner:replies:traced"}
    stranger.send_task(
        "runner.start",
        kwargs={**message, **({"traceparent": field} if field else {})},
        queue="runner",
        headers={"traceparent": header} if header else {},
    )
    run_id = threads.receipt("runner:replies:traced")["run_id"]

    assert threads.client.engine.store.peek(run_id).trace == trace


def test_the_run_of_a_message_continues_its_sender_s_trace(threads):
    """A message on the stream has a field for it."""
    body = {
        "v": 1,
        "graph": "chain",
        "task": "go",
        "reply_to": "runner:replies:traced",
        "traceparent": SPAN,
    }
    threads.send(json.dumps(body), "runner:starts")
    run_id = threads.receipt("runner:replies:traced")["run_id"]

    assert threads.client.engine.store.peek(run_id).trace == SPAN


def test_a_task_that_is_no_message_is_a_dead_letter(threads, stranger):
    """What Celery programs send wrongly is kept with its reason, too."""
    stranger.send_task(
        "runner.respond", args=["a", "b"], kwargs={"shade": "blue"}, queue="runner"
    )
    stranger.send_task("runner.respond", kwargs={"colour": "crimson"}, queue="runner")

    assert b"keyword arguments" in letter_with(threads, b'"blue"')[b"reason"]
    assert b"interrupt_id: Field required" in letter_with(threads, b'"crimson"')[b"reason"]


def test_what_celery_refuses_is_a_dead_letter(threads, stranger):
    """A task that nobody has, and one that came too late: both are kept; the late one can be sent again."""
    run, question = asked(threads)
    letters = DeadLetters(threads.url)
    message = {"interrupt_id": question, "response": "yes"}
    long_ago = datetime.now(UTC) - timedelta(hours=1)

    stranger.send_task("nobody.knows", args=[7], queue="runner")
    stranger.send_task("runner.respond", kwargs=message, queue="runner", expires=long_ago)

    def letter_about(word):
        return next((letter for letter in letters.all() if word in letter.reason), None)

    wait_until(
        lambda: letter_about("'nobody.knows'") and letter_about("it expired at"),
        "both are dead letters",
    )
    assert json.loads(letter_about("'nobody.knows'").body)[0] == [7]
    assert run.status is Status.INTERRUPTED
    letters.replay(letter_about("it expired at"))
    wait_until(lambda: run.status is Status.COMPLETED, "the run has its answer")
    assert run.result().results["node.with.dots"].output == "yes"


@pytest.mark.full
@pytest.mark.parametrize(
    "response",
    [
        {"__type__": "datetime", "__value__": "2026-01-02T03:04:05"},
        {"__type__": "x", "__value__": 1},
    ],
)
def test_a_task_s_answer_arrives_as_it_was_sent(threads, stranger, response):
    """Objects that Celery's own reader takes for something else are data like all others."""
    run, question = asked(threads)

    message = {"interrupt_id": question, "response": [response]}
    stranger.send_task("runner.respond", kwargs=message, queue="runner")

    wait_until(lambda: run.status is Status.COMPLETED, "the run has its answer")
    assert run.result().results["node.with.dots"].output == [response]


def letter_with(site, text):
    """Wait for the dead letter whose body has this text."""
    letters = []

    def arrived():
        dead = (fields for _, fields in site.redis.xrange("runner:dead"))
        letters[:] = [fields for fields in dead if text in fields.get(b"body", b"")]
        return letters

    wait_until(arrived, f"a message with {text!r} is among the dead letters")
    return letters[0]


def publish(site, body, **properties):
    """Put a message for `runner.respond` on the queue, as a program without Celery might."""
    headers = {"lang": "py", "task": "runner.respond", "id": "x"}
    options = {"content_type": "application/json", "content_encoding": "utf-8", **properties}
    with Connection(as_broker(site.url)) as connection, connection.Producer() as producer:
        producer.publish(body, routing_key="runner", exchange="", headers=headers, **options)


def test_an_answer_of_another_content_type_is_a_dead_letter(threads, tmp_path):
    """A pickled answer is not lost and not opened: it is kept, in base64, with the reason."""
    canary = tmp_path / "canary"
    pickled = pickle.dumps(([], {"response": Bomb(str(canary))}, {}))

    publish(
        threads,
        pickled,
        content_type="application/x-python-serialize",
        content_encoding="binary",
    )

    letter = letter_with(threads, base64.b64encode(pickled))
    assert b"the content type is application/x-python-serialize; send JSON" in letter[b"reason"]
    assert base64.b64decode(letter[b"body"].split()[1]) == pickled
    assert not canary.exists()


def test_pickle_is_never_opened(threads, stranger, tmp_path):
    """A pickled message is refused before anything in it can run, and the worker lives on."""
    canary = tmp_path / "canary"
    with (
        Connection(as_broker(threads.url)) as connection,
        connection.Producer(serializer="pickle") as producer,
    ):
        enable_insecure_serializers(["pickle"])
        headers = {"lang": "py", "task": "runner.node", "id": "x"}
        try:
            producer.publish(
                ((), {"x": Bomb(str(canary))}, {}),
                routing_key="runner",
                exchange="",
                headers=headers,
            )
        finally:
            disable_insecure_serializers()

    wait_until(
        lambda: "ContentDisallowed" in threads.workers[0].output(), "the worker refuses it"
    )
    assert not canary.exists()
    assert threads.client.start("chain", "go").wait(60).status is Status.COMPLETED


def test_remote_control_of_an_app_that_pickles_leaves_no_dead_letter(
    threads, stranger, tmp_path
):
    """Flower sends such commands every few seconds: they are not opened, not kept, and not counted."""
    canary = tmp_path / "canary"
    stranger.conf.task_serializer = "pickle"
    letters = threads.redis.xlen("runner:dead")
    enable_insecure_serializers(["pickle"])
    try:
        stranger.control.broadcast("ping", arguments={"x": Bomb(str(canary))})
    finally:
        disable_insecure_serializers()

    wait_until(
        lambda: "control.refused" in threads.workers[0].output(), "the worker refuses it"
    )
    assert threads.redis.xlen("runner:dead") == letters
    assert not canary.exists()


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_our_doors_put_nothing_foreign_on_the_queue(threads):
    """Whatever comes by the streams, Celery's lists get doorbells only: a bad item there ends a worker."""
    bodies = [b"garbage", b"{}", b"\x80\x04", answer("00x.y.1.z").encode()]
    entry_ids = [
        threads.send(body, stream)
        for body in bodies
        for stream in ("runner:responses", "runner:starts")
    ]
    for entry_id in entry_ids:
        threads.dead_letter(entry_id)

    queues = [
        key
        for queue in (b"runner", b"gpu")
        for key in threads.redis.scan_iter(queue + b"*", _type="list")
    ]
    messages = [message for key in queues for message in threads.redis.lrange(key, 0, -1)]
    assert not set(bodies) & set(messages)
    assert threads.workers[0].alive


FORGED = "x\n[2026-01-01 00:00:00,000: INFO/MainProcess] paid\x1b[2K\u202e"


@pytest.mark.parametrize("by", ["stream", "task"])
def test_a_sender_can_not_forge_lines_of_the_log(threads, by):
    """Names of fields reach the log escaped: no line of its own, no control or direction character."""
    send_forged(threads, by)
    (worker,) = threads.workers
    escaped = FORGED.encode("unicode_escape").decode()

    wait_until(lambda: f"{by}{escaped}" in worker.output(), "the log names the field")
    assert not any(
        line.startswith(FORGED.splitlines()[1]) for line in worker.output().splitlines()
    )
    assert "\x1b[2K" not in worker.output()
    assert "\u202e" not in worker.output()


@pytest.mark.slow
def test_a_log_without_escapes_has_the_forged_line(empty_site):
    """The control: a worker that logs such a name as it came has a line of the sender's, in its colours."""
    worker = empty_site.add(RUNNER_GRAPHS="tests.celery.graphs,tests.chaos.no_escapes")
    worker.wait_ready()
    send_forged(empty_site, "stream")

    wait_until(
        lambda: any(
            line.startswith(FORGED.splitlines()[1]) for line in worker.output().splitlines()
        ),
        "the log has the line",
    )
    assert "\x1b[2K" in worker.output()


def send_forged(site, by) -> None:
    """Send an answer with a field whose name is a line of a log, by a stream or as a Celery task."""
    message = {"interrupt_id": "x", "response": 1, by + FORGED: 1}
    if by == "stream":
        site.send(json.dumps({"v": 1, **message}))
        return
    app = Celery("forger", broker=as_broker(site.url), set_as_current=False)
    app.send_task("runner.respond", kwargs=message, queue="runner")
    app.close()
