"""RabbitMQ as the broker, Redis as the store: the same promises, on a real RabbitMQ."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import amqp
import pytest

from examples.approvals.rabbit import RabbitInbox
from runner import Status
from runner.celery.amqp import PREFETCH
from runner.operations.doctor import FAIL, examine, read_facts
from runner.settings import Settings
from tests.celery import service_graphs
from tests.celery.workers import MARGIN, RECOVERY
from tests.rabbitmq import listen
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
WITHIN = RECOVERY + MARGIN


@pytest.fixture(scope="module")
def site(databases, rabbit):
    """Workers whose broker is RabbitMQ; tests may kill them."""
    site = next(databases)
    yield site
    site.end()


def ready(site, rabbit, count=1):
    site.ready(count, RUNNER_BROKER_URL=rabbit.url)


def asked_without_worker(site, rabbit):
    """A vote on a question whose service has no worker any more; the settings of another service's."""
    ready(site, rabbit)
    (question,) = site.client.start("ruled", "go").wait(60).interrupts
    for worker in site.workers:
        worker.kill()
    shown = {"v": 2, "interrupt_id": question.id, "digest": question.digest}
    service = {"RUNNER_GRAPHS": "tests.celery.service_graphs", "SERVICE": "desk"}
    vote = {**shown, "decision": "respond", "response": 7, "by": "ana"}
    return vote, {"RUNNER_BROKER_URL": rabbit.url, **service}


def asked(site):
    run = site.client.start("question", "go")
    (question,) = run.wait(60).interrupts
    return run, question.id


def publish(channel, queue, body, **properties):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    message = amqp.Message(text, content_type="application/json", delivery_mode=2, **properties)
    channel.basic_publish(message, exchange="", routing_key=queue)


def take(channel, queue):
    """Wait for a message and acknowledge it."""
    messages = []

    def arrived():
        message = channel.basic_get(queue)
        if message is not None:
            channel.basic_ack(message.delivery_tag)
            messages.append(message)
        return messages

    wait_until(arrived, f"a message comes to {queue}")
    return messages[0]


def kept(site):
    return site.redis.hgetall("runner:{p00}:early")


def replies_to(channel):
    return channel.queue_declare("", exclusive=True).queue


PLAIN = """
import sys
from celery import Celery

app = Celery(broker=sys.argv[1])
kwargs = {"graph": "chain", "task": "go", "idempotency_key": sys.argv[2]}
app.send_task("runner.start", kwargs=kwargs, queue="runner", serializer="json")
assert "runner" not in sys.modules
"""


def send(rabbit, key):
    command = [sys.executable, "-c", PLAIN, rabbit.url, key]
    sent = subprocess.run(command, capture_output=True, text=True, check=False)
    assert sent.returncode == 0, sent.stderr


def completed(site):
    return list(site.client.runs(status=Status.COMPLETED, graph="chain", limit=100))


def test_a_celery_client_without_settings_starts_runs(site, rabbit, channel):
    """Before a worker has declared the queue and afterwards, by the call that the messages page shows."""
    for worker in site.workers:
        worker.kill()
    channel.queue_delete("runner")

    before = len(completed(site))
    send(rabbit, "first")
    ready(site, rabbit)
    send(rabbit, "second")

    wait_until(lambda: len(completed(site)) == before + 2, "both runs have ended")


def test_messages_that_no_worker_takes_are_noticed(site, empty_site, rabbit, channel):
    """A worker whose -Q leaves out their queue doesn't take them: doctor says so while one waits."""
    for worker in site.workers:
        worker.kill()
    served = {"queues": ",".join(service_graphs.names("shop")), "SERVICE": "shop"}
    empty_site.ready(
        **served, RUNNER_GRAPHS="tests.celery.service_graphs", RUNNER_BROKER_URL=rabbit.url
    )
    settings = Settings(redis_url=empty_site.url, broker_url=rabbit.url)

    def failed():
        return {c.name: c.detail for c in examine(read_facts(settings)) if c.result == FAIL}

    assert "queues" not in failed()  # the control: nothing waits there
    send(rabbit, "not taken")
    wait_until(lambda: "queues" in failed(), "doctor names the queue")
    assert failed()["queues"] == "no worker serves runner"
    channel.queue_purge("runner")
    wait_until(lambda: "queues" not in failed(), "nothing waits there")


def test_a_start_from_a_program_without_a_broker_wakes_a_worker(site, rabbit):
    """A client that can't reach the broker does not wait for the next sweep: it asks for one."""
    worker = site.add(RUNNER_BROKER_URL=rabbit.url, RUNNER_SWEEP_INTERVAL="3600")
    worker.wait_ready()
    for other in site.workers[:-1]:
        other.kill()

    assert site.client.start("chain", "go").wait(60).status is Status.COMPLETED
    worker.kill()


def test_an_answer_is_a_plain_message_on_a_queue(site, rabbit, channel):
    """A program that knows only AMQP and JSON answers; the receipt comes back on its own queue."""
    ready(site, rabbit)
    run, question = asked(site)
    replies = replies_to(channel)
    body = {"v": 1, "interrupt_id": question, "response": {"go": True}}

    publish(
        channel, "runner.responses", body, reply_to=replies, correlation_id="7", message_id="m1"
    )
    receipt = take(channel, replies)
    publish(
        channel, "runner.responses", {**body, "response": 2}, reply_to=replies, message_id="m2"
    )

    assert json.loads(receipt.body)["status"] == "accepted"
    assert receipt.properties["correlation_id"] == "7"
    assert json.loads(take(channel, replies).body)["status"] == "duplicate"
    assert run.wait(60).results["node.with.dots"].output == {"go": True}


def test_a_full_queue_of_receipts_holds_up_no_message(site, rabbit, channel):
    """One that refuses a receipt loses it; the answers behind it have theirs."""
    ready(site, rabbit)
    full, replies = (
        channel.queue_declare("", exclusive=True, arguments=arguments).queue
        for arguments in ({"x-max-length": 0, "x-overflow": "reject-publish"}, None)
    )
    for number, queue in enumerate([full] * 4 + [replies]):
        body = {"v": 1, "interrupt_id": asked(site)[1], "response": number}
        publish(channel, "runner.responses", body, reply_to=queue)

    assert json.loads(take(channel, replies).body)["status"] == "accepted"


def test_votes_are_plain_messages_on_a_queue(site, rabbit, channel):
    """Two people decide by AMQP and JSON; a comment and a vote that is doubled have their receipts, too."""
    ready(site, rabbit)
    run = site.client.start("ruled", "go")
    (question,) = run.wait(60).interrupts
    replies, message = replies_to(channel), {"v": 2, "interrupt_id": question.id}
    vote = {**message, "decision": "respond", "response": 7, "digest": question.digest}

    told = []
    for number, sent in enumerate(
        (
            {**message, "operation": "comment", "comment": "why?", "by": "ana"},
            {**vote, "by": "ana"},
            {**vote, "by": "ana"},
            {**vote, "by": "ben"},
        )
    ):
        publish(channel, "runner.responses", sent, reply_to=replies, message_id=f"v{number}")
        told.append(json.loads(take(channel, replies).body)["status"])

    assert told == ["accepted", "counted", "duplicate", "accepted"]
    assert run.wait(60).results["a"].output == 7


def test_a_vote_waits_for_a_worker_with_its_graph(site, rabbit, channel):
    """A worker of another service keeps no vote to itself, however often it has got it."""
    vote, service = asked_without_worker(site, rabbit)
    other, replies = site.add(**service), replies_to(channel)
    other.wait_ready()

    publish(channel, "runner.responses", vote, reply_to=replies, correlation_id="7")
    wait_until(lambda: other.output().count("message.left") > 4, "it was left several times")
    ready(site, rabbit, 2)

    receipt = take(channel, replies)
    other.kill()
    assert json.loads(receipt.body)["status"] == "counted"
    assert receipt.properties["correlation_id"] == "7"


def test_a_vote_that_is_left_stays_as_it_was_sent(site, rabbit, channel):
    """It has its id, its expiration and its priority when a worker of another service dies with it."""
    vote, service = asked_without_worker(site, rabbit)
    other = site.add(**service)
    other.wait_ready()
    sent = {"message_id": "mine", "reply_to": "desk", "correlation_id": "7"}
    publish(channel, "runner.responses", vote, **sent, expiration="900000", priority=3)
    wait_until(lambda: other.output().count("message.left") > 4, "it was left several times")
    other.kill()

    message = take(channel, "runner.responses")
    assert json.loads(message.body) == vote
    names = (*sent, "expiration", "priority")
    assert {name: message.properties[name] for name in names} == {
        **sent,
        "expiration": "900000",
        "priority": 3,
    }


def test_votes_that_a_full_queue_does_not_take_back_are_kept(site, rabbit, channel):
    """The worker that has them tries again, and loses none."""
    vote, service = asked_without_worker(site, rabbit)
    replies, number = replies_to(channel), PREFETCH + 10
    for _ in range(number):
        publish(channel, "runner.responses", vote, reply_to=replies)
    full = '{"max-length":5,"overflow":"reject-publish"}'
    rabbit.control("set_policy", "full", "^runner.responses$", full)
    other = site.add(**service)

    wait_until(lambda: other.output().count("message.left") > number + 20, "it tries again")
    ready(site, rabbit, 2)
    statuses = {json.loads(take(channel, replies).body)["status"] for _ in range(number)}

    rabbit.control("clear_policy", "full")
    assert "counted" in statuses
    assert "please report" not in other.output()
    other.kill()


def test_an_answer_delivered_twice_is_one_answer(site, rabbit, channel):
    """The broker may deliver a message again: the same one is told the same both times."""
    ready(site, rabbit)
    _, question = asked(site)
    replies = replies_to(channel)
    body = {"v": 1, "interrupt_id": question, "response": "yes"}

    for _ in range(2):
        publish(channel, "runner.responses", body, reply_to=replies)

    assert [json.loads(take(channel, replies).body)["status"] for _ in range(2)] == [
        "accepted",
        "accepted",
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff rubbish", "not valid JSON"),
        (b'{"v":1}', "interrupt_id: Field required"),
        (b'{"v":1,"interrupt_id":"00nobody.node.1.abc","response":1}', "no such question"),
    ],
)
def test_what_can_not_be_used_goes_to_the_dead_letter_exchange(
    site, rabbit, channel, body, reason
):
    """A malformed message is dead-lettered, byte for byte and with the reason, and the worker lives on."""
    ready(site, rabbit)
    channel.queue_purge("runner.dead")

    publish(channel, "runner.responses", body)
    letter = take(channel, "runner.dead")

    received = letter.body.encode() if isinstance(letter.body, str) else letter.body
    assert received == body
    assert reason in letter.headers["x-reason"]
    assert all(worker.alive for worker in site.workers)


def test_a_run_begins_by_a_message(site, rabbit, channel):
    """A start is a plain message, too; the same message again is the same run."""
    ready(site, rabbit)
    replies = replies_to(channel)
    body = {"v": 1, "graph": "chain", "task": "go"}

    for _ in range(2):
        publish(channel, "runner.starts", body, reply_to=replies, message_id="start-1")
    runs = {json.loads(take(channel, replies).body)["run_id"] for _ in range(2)}

    assert len(runs) == 1
    assert site.client.run(runs.pop()).wait(60).status is Status.COMPLETED


def test_a_door_may_be_bound_to_any_exchange(site, rabbit, channel):
    """What a message is follows from the queue that it came to, whatever its routing key."""
    ready(site, rabbit)
    replies = replies_to(channel)
    channel.exchange_declare("company", "topic", auto_delete=True)
    channel.queue_bind("runner.starts", "company", "eu.refunds")
    body = json.dumps({"v": 1, "graph": "chain", "task": "go"})

    channel.basic_publish(
        amqp.Message(body, reply_to=replies), exchange="company", routing_key="eu.refunds"
    )

    assert json.loads(take(channel, replies).body)["status"] == "accepted"


def test_notices_come_out_on_the_topic_exchange(site, rabbit, channel):
    """Every question and every end is published to `runner.notices` under its kind, with a unique id.

    The workers share the notices, so those of one run may come in another order than they were written.
    """
    ready(site, rabbit)
    queue = listen(channel)
    run, question = asked(site)
    site.client.respond(question, "yes")
    run.wait(60)

    notices = {}
    while set(notices) != {"interrupt.asked", "interrupt.answered", "run.ended"}:
        message = take(channel, queue)
        notice = json.loads(message.body)
        if notice["run_id"] == run.id:
            assert message.delivery_info["routing_key"] == notice["kind"]
            notices[notice["kind"]] = (notice, message.properties["message_id"])

    assert notices["interrupt.asked"][0]["question"]["id"] == question
    assert len({message_id for _, message_id in notices.values()}) == 3


def test_a_killed_worker_s_node_runs_again_elsewhere(site, rabbit):
    """After kill -9 of a worker its node is run by another within lease + sweep, with the same key."""
    ready(site, rabbit, 2)
    run = site.client.start("gated", "go")
    site.starter(run).kill()
    wait_until(
        lambda: len(site.starts(run)) == 2, "another worker runs the node", seconds=WITHIN
    )
    site.open_gate(run)

    assert run.wait(WITHIN).status is Status.COMPLETED
    first, second = site.starts(run)
    assert first[2] == second[2]


def test_a_killed_broker_loses_no_run(site, rabbit):
    """While RabbitMQ is away nothing is lost: runs begin, and go on by themselves when it is back."""
    ready(site, rabbit)
    waiting, question = asked(site)
    rabbit.kill()
    runs = [site.client.start("chain", "go") for _ in range(3)]
    site.client.respond(question, "yes")
    rabbit.start()

    began = time.monotonic()
    for run in [*runs, waiting]:
        assert run.wait(90).status is Status.COMPLETED
    assert time.monotonic() - began < 90


def test_without_a_sweep_a_killed_worker_s_node_is_lost(databases, site, rabbit):
    """Control: RabbitMQ gives the doorbell of a killed worker to another, which may not claim it yet."""
    for worker in site.workers:
        worker.kill()  # they would take the doorbells of the control's runs off the queue
    site = next(databases)
    site.ready(2, RUNNER_BROKER_URL=rabbit.url, RUNNER_SWEEP_INTERVAL="3600")
    run = site.client.start("gated", "go")
    site.starter(run).kill()
    site.open_gate(run)

    with pytest.raises(TimeoutError):
        run.wait(RECOVERY + 2)
    site.end()


def known(inbox, question):
    return question in {interrupt["id"] for interrupt in inbox.questions()}


def test_the_approval_service_of_the_examples_works_over_rabbitmq_alone(site, rabbit, tmp_path):
    """It shows what is open, answers with a digest, reads the receipt, and forgets nothing when stopped."""
    ready(site, rabbit)
    file = str(tmp_path / "approvals.db")
    first = RabbitInbox(rabbit.url, file)
    first.follow()  # from here on its queue keeps what it has not read
    run, question = asked(site)
    first.recover()

    inbox = RabbitInbox(rabbit.url, file)
    wait_until(lambda: (inbox.follow(), known(inbox, question))[1], "the question is shown")
    (digest,) = [shown["digest"] for shown in inbox.questions() if shown["id"] == question]
    inbox.answer(question, "yes", "ana", digest)
    wait_until(
        lambda: (
            (inbox.follow(), inbox.receipts().get(question, {}).get("status"))[1] == "accepted"
        ),
        "it is told",
    )
    assert run.wait(60).status is Status.COMPLETED
    wait_until(
        lambda: (inbox.follow(), not known(inbox, question))[1], "the question is shown no more"
    )

    inbox.answer(question, "no", "bob", digest)
    status = lambda: inbox.receipts()[question]["status"]  # noqa: E731 - asked again and again
    wait_until(
        lambda: (inbox.follow(), status())[1] == "duplicate",
        "the second answer is told that it is late",
    )
    inbox.recover()
