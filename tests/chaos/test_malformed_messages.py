"""Malformed messages at every door of a worker: it keeps them as dead letters, and works on."""

from __future__ import annotations

import copy
import json
import pickle
import random

import pytest

from runner import Status
from tests.celery.workers import RECOVERY, Site
from tests.waiting import wait_until

SEED = 20
FUZZED = 2_000
SLOW = 150
QUEUE = "runner"
ODD = [
    None,
    True,
    0,
    -1,
    1e308,
    2**70,
    "",
    "x",
    "\x00",
    "a.b.1.1",
    [],
    [[]],
    {},
    {"a": None},
    [None] * 5,
]
ODD += [
    {"__type__": "datetime", "__value__": 1},
    {"__type__": "os.system", "__value__": "id"},
    "[" * 900,
]
KINDS = [
    "application/x-python-serialize",
    "application/x-yaml",
    "application/data",
    "text/plain",
    "",
    None,
]


def envelope(site: Site) -> str:
    """A message as Celery writes it for a node of a run that does not exist."""
    template, places = site.redis.hmget("runner:{p00}:doorbell:1", "template", "places")
    values = {
        "id": "0none.a.1.1",
        "shadow": "none/a",
        "queue": QUEUE,
        "priority": "5",
        "parent_id": "null",
    }
    return template.decode() % tuple(
        values.get(place, "copy") for place in places.decode().split()
    )


def corpus(good: str) -> list[bytes]:
    """Each way of being wrong, once."""
    message = json.loads(good)
    without = [{**message, name: None} for name in message] + [
        {key: value for key, value in message.items() if key != name} for name in message
    ]
    kinds = [{**message, "content-type": kind, "body": "gAR9lC4="} for kind in KINDS]
    tasks = [
        {**message, "headers": {**message["headers"], "task": task}}
        for task in ("nobody.knows", 7, None)
    ]
    ids = [
        {**message, "headers": {**message["headers"], "id": value}}
        for value in ("", 5, "a.b", "0.a.x.y", None)
    ]
    bodies = [
        {**message, "body": body}
        for body in ("{", "[1]", "[[],{}]", "[[],{},5]", json.dumps([[], ODD[-2], {}]), 5)
    ]
    plain = [
        b"",
        b"rubbish",
        b"\xff\xfe",
        b"5",
        b"[]",
        b"null",
        b"{}",
        pickle.dumps({"x": 1}),
        b"[" * 50_000,
    ]
    return plain + [
        json.dumps(value).encode() for value in [*without, *kinds, *tasks, *ids, *bodies]
    ]


def fuzzed(rng: random.Random, good: str) -> bytes:
    """A message with something wrong in it, drawn at random."""
    if rng.random() < 0.15:
        return rng.randbytes(rng.randrange(60))
    text = bytearray(good.encode())
    if rng.random() < 0.3:
        for _ in range(rng.randrange(1, 6)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        return bytes(text[: rng.choice([len(text), rng.randrange(len(text))])])
    message = json.loads(good)
    for _ in range(rng.randrange(1, 3)):
        place = message
        while (
            isinstance(place.get(name := rng.choice(list(place) or ["x"])), dict)
            and rng.random() < 0.7
        ):
            place = place[name]
        place[name] = copy.deepcopy(rng.choice(ODD + KINDS))
    return json.dumps(message).encode()


@pytest.fixture(scope="module")
def site(databases):
    """One worker that gets everything."""
    site = next(databases)
    site.ready(1)
    yield site
    site.end()


def still_works(site: Site) -> None:
    assert site.client.start("chain", "go").wait(SLOW).status is Status.COMPLETED
    assert site.workers[0].alive, site.workers[0].output()[-3000:]


def taken(site: Site) -> bool:
    return not site.redis.llen(QUEUE)


@pytest.mark.sample
def test_a_worker_outlives_every_kind_of_malformed_message_on_its_queue(site):
    """Each kind once: what kombu can't read is a dead letter with its bytes; so is what Celery refuses."""
    site.redis.delete("runner:dead")
    site.redis.lpush(QUEUE, *corpus(envelope(site)))

    wait_until(lambda: taken(site), "all of it was taken", seconds=SLOW)
    still_works(site)
    assert site.dead_letter("")["reason"].startswith(b"it isn't a Celery message: ")
    letters = [fields[b"body"] for _, fields in site.redis.xrange("runner:dead")]
    assert {b"rubbish", b"\xff\xfe", b"5", b"null", b"{}"} <= set(letters)
    assert len(letters) >= 15
    reasons = [fields[b"reason"].decode() for _, fields in site.redis.xrange("runner:dead")]
    for words in (
        "knows the task 'nobody.knows'",
        "untrusted content of type yaml",
        "names no task",
    ):
        assert any(words in reason for reason in reasons), words


def test_a_worker_outlives_two_thousand_fuzzed_messages(site):
    """Whatever stands on the queue: the worker takes it, lives, and runs nodes in between."""
    rng, good = random.Random(SEED), envelope(site)  # noqa: S311 - no secret
    for _ in range(4):
        site.redis.lpush(QUEUE, *(fuzzed(rng, good) for _ in range(FUZZED // 4)))
        still_works(site)

    wait_until(lambda: taken(site), "all of it was taken", seconds=SLOW)
    still_works(site)


@pytest.mark.parametrize("message", [b"rubbish", b'{"properties":{"delivery_tag":"t"}}'])
def test_without_the_guard_one_malformed_message_ends_the_worker(databases, message):
    """Control: kombu alone ends the worker that takes what it can't read."""
    site = next(databases)
    site.ready(1, RUNNER_GRAPHS="tests.celery.graphs,tests.chaos.no_guard")

    site.redis.lpush(QUEUE, message)

    wait_until(lambda: not site.workers[0].alive, "the worker ends", seconds=SLOW)
    site.end()


def test_without_a_look_at_each_request_one_keeps_its_slot(databases):
    """Control: a thread of the pool stumbles over it, and nothing runs in its slot any more."""
    site = next(databases)
    site.ready(1, slots=1, RUNNER_GRAPHS="tests.celery.graphs,tests.chaos.no_request_check")
    site.redis.lpush(QUEUE, json.dumps({**json.loads(envelope(site)), "body": "[[],{},5]"}))
    wait_until(lambda: taken(site), "it was taken", seconds=SLOW)

    run = site.client.start("chain", "go")

    with pytest.raises(TimeoutError):
        run.wait(RECOVERY + 2)
    site.end()


def test_fuzzed_answers_and_starts_are_dead_letters(site):
    """A thousand bodies on each stream: all are let go of, and an open question stays answerable."""
    run = site.client.start("question", "go")
    (question,) = run.wait(SLOW).interrupts
    rng = random.Random(SEED)  # noqa: S311 - no secret
    good = {"v": 1, "interrupt_id": "0none.a.1.0", "response": 1, "graph": "nobody", "task": 1}
    for stream in ("runner:responses", "runner:starts"):
        with site.redis.pipeline(transaction=False) as pipe:
            for _ in range(FUZZED // 2):
                pipe.xadd(
                    stream,
                    {rng.choice(["body", "body", "body", "x"]): fuzzed(rng, json.dumps(good))},
                )
            pipe.execute()

    for stream in ("runner:responses", "runner:starts"):
        wait_until(
            lambda stream=stream: not site.redis.xlen(stream),
            f"{stream} is empty",
            seconds=SLOW,
        )
    still_works(site)
    assert run.status is Status.INTERRUPTED
    site.send(
        json.dumps(
            {"v": 1, "interrupt_id": question.id, "response": {"__type__": "x", "__value__": 1}}
        )
    )
    wait_until(lambda: run.status is Status.COMPLETED, "the answer is applied", seconds=SLOW)
    assert run.result().results["node.with.dots"].output == {"__type__": "x", "__value__": 1}
