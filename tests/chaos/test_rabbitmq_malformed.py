"""Malformed messages on the queues of a RabbitMQ: the worker keeps them as dead letters, and works on."""

from __future__ import annotations

import json
import random
import zlib

import amqp
import pytest

from runner import Status
from tests.celery.workers import Site
from tests.chaos.malformed_amqp import ENCODINGS, KINDS, corpus, fuzzed, message
from tests.waiting import wait_until

SEED = 21
FUZZED = 300
SLOW = 150
QUEUE, DEAD = "runner", "runner.dead"


@pytest.fixture(scope="module")
def site(databases, rabbit):
    """One worker with a single slot: if a message keeps it, nothing goes on."""
    site = next(databases)
    site.ready(1, slots=1, RUNNER_BROKER_URL=rabbit.url)
    yield site
    site.end()


@pytest.fixture
def channel(rabbit):
    """A plain AMQP channel, as somebody else's program has it."""
    with amqp.Connection(host=f"127.0.0.1:{rabbit.port}") as connection:
        yield connection.channel()


def still_works(site: Site) -> None:
    assert site.client.start("chain", "go").wait(SLOW).status is Status.COMPLETED
    assert site.workers[0].alive, site.workers[0].output()[-3000:]


def letters(site: Site) -> dict[bytes, str]:
    """The reasons of the dead letters, by their bytes."""
    entries = (fields for _, fields in site.redis.xrange("runner:dead"))
    return {fields[b"body"]: fields[b"reason"].decode() for fields in entries}


def buried(channel) -> list[amqp.Message]:
    """Take what the dead-letter exchange holds."""
    letters_there = []
    while (letter := channel.basic_get(DEAD, no_ack=True)) is not None:
        letters_there.append(letter)
    return letters_there


def test_a_worker_outlives_every_kind_of_malformed_message_on_its_queue(site, channel):
    """Each kind once, and many drawn at random: nodes run in between, and what is refused is kept."""
    rng = random.Random(SEED)  # noqa: S311 - no secret
    for malformed in [*corpus(), *(fuzzed(rng) for _ in range(FUZZED))]:
        channel.basic_publish(malformed, exchange="", routing_key=QUEUE)
    still_works(site)
    channel.basic_publish(
        message("[[],{},{}]", headers={"id": "1", "task": "nobody.knows"}), "", QUEUE
    )
    channel.basic_publish(message("[[1],{},{}]", kind="application/x-yaml"), "", QUEUE)

    wait_until(
        lambda: "nobody.knows" in letters(site).get(b"[[],{},{}]", ""),
        "it is a dead letter",
        seconds=SLOW,
    )
    wait_until(
        lambda: "yaml" in letters(site).get(b"[[1],{},{}]", ""), "so is the other", seconds=SLOW
    )
    still_works(site)


def test_without_the_guard_queued_ends_every_worker(site, rabbit, channel):
    """Control: Celery alone ends the worker that takes it, and RabbitMQ gives it to the next one."""
    channel.queue_declare("unguarded", durable=True, auto_delete=False)
    channel.basic_publish(
        message(headers={"id": "1", "task": ["x"]}), exchange="", routing_key="unguarded"
    )
    settings = {
        "RUNNER_BROKER_URL": rabbit.url,
        "RUNNER_GRAPHS": "tests.celery.graphs,tests.chaos.no_guard",
    }
    victims = [site.add(queues="unguarded", **settings) for _ in range(2)]

    wait_until(lambda: not any(victim.alive for victim in victims), "both end", seconds=SLOW)

    assert all("Unrecoverable error: TypeError" in victim.output() for victim in victims)
    channel.queue_purge("unguarded")
    still_works(site)


def test_doors_take_messages_by_their_bytes(site, channel):
    """Whatever a message says of its type and encoding: JSON is applied, and begins its run."""
    channel.queue_purge(DEAD)
    replies = channel.queue_declare("", exclusive=True).queue
    kinds = [{"kind": kind} for kind in KINDS] + [
        {"encoding": encoding} for encoding in ENCODINGS if encoding != "utf-16"
    ]
    for number, odd in enumerate(kinds):
        body = json.dumps({"v": 1, "graph": "chain", "task": number})
        start = message(body, headers={"id": number, "task": ["x"]}, reply_to=replies, **odd)
        channel.basic_publish(start, exchange="", routing_key="runner.starts")
    statuses = []

    def all_told():
        while (receipt := channel.basic_get(replies, no_ack=True)) is not None:
            statuses.append(json.loads(receipt.body)["status"])
        return len(statuses) == len(kinds)

    wait_until(all_told, "all are told", seconds=SLOW)
    assert set(statuses) == {"accepted"}
    assert not buried(channel)


def test_a_compressed_message_is_refused_and_not_unpacked(site, channel):
    """A small message may be huge inside: it is a dead letter, byte for byte, and says why."""
    channel.queue_purge(DEAD)
    body = zlib.compress(json.dumps({"v": 1, "graph": "chain", "task": "go"}).encode())
    for packed in ("zlib", "nonsense", 5):
        start = message(body, encoding="binary", headers={"compression": packed})
        channel.basic_publish(start, exchange="", routing_key="runner.starts")
    dead = []

    wait_until(
        lambda: dead.extend(buried(channel)) or len(dead) == 3, "all are kept", seconds=SLOW
    )
    assert {letter.body for letter in dead} == {body}
    assert all("compressed" in letter.headers["x-reason"] for letter in dead)
