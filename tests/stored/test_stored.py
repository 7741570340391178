"""What every release has stored is read by today's library, answered, and ends right.

Each file holds what one release left in Redis of runs in every state; `export.py` writes another.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
import redis

from runner import Status
from runner.errors import CorruptDocument
from runner.execution.results import graph_result
from runner.operations import recovery
from runner.store.redis.store import RedisStore
from tests.key_dictionary import type_in_dictionary

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import stories  # noqa: E402 - beside this file, as for the export

FORMS = sorted(HERE.glob("*.json"))
RUNS = [(form, name) for form in FORMS for name in json.loads(form.read_text())["runs"]]


LATER = 60_000
"""Ms, longer than a lease."""


def data(text):
    return text.encode("utf-8", "surrogateescape")


def pairs(found):
    return {data(name): data(each) for name, each in found.items()}


def put(client, keys):
    """Write what was stored, as it was."""
    write = {
        "string": lambda key, value: client.set(key, data(value)),
        "hash": lambda key, value: client.hset(key, mapping=pairs(value)),
        "list": lambda key, value: client.rpush(key, *map(data, value)),
        "zset": lambda key, value: client.zadd(key, {data(name): at for name, at in value}),
        "stream": lambda key, value: [
            client.xadd(key, pairs(fields), id=at) for at, fields in value
        ],
    }
    for key, (kind, value) in keys.items():
        write[kind](key, value)


@pytest.fixture
def office(redis_url, monkeypatch):
    """Open what a form has stored with today's library."""
    monkeypatch.setattr(stories, "dying", [False])

    def opened(form):
        document = json.loads(form.read_text())
        with redis.Redis.from_url(redis_url) as client:
            put(client, document["keys"])
        # When the leases in the file have ended, however new it is.
        store = RedisStore(redis_url, push=False, clock=lambda: time.time_ns() // 10**6 + LATER)
        return stories.Office(store), document["runs"]

    return opened


def finish(found):
    """Let time do what is due (leases of dead workers, lost doorbells), and work until nothing is left."""
    while found.engine.sweep() or found.bells:
        found.work()


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "name"), RUNS, ids=[f"{form.stem}:{name}" for form, name in RUNS]
)
def test_a_stored_run_goes_on_and_ends_right(office, form, name):
    """Whoever upgrades finds every run as it was: it takes answers, repeats nothing, ends right."""
    found, runs = office(form)
    story, run_id = stories.STORIES[name], runs[name]
    before = found.store.read(run_id)
    assert before.record.status in {story.status, Status.EXECUTING}
    assert found.store.events(run_id)

    finish(found)
    if story.then == "retry":
        assert recovery.retry(found.engine, run_id) == ["b"]
        finish(found)
    for _ in range(3 if story.then == "answer" else 0):
        found.answer(found.family(run_id), "yes")
        finish(found)

    snapshot = found.store.read(run_id)
    result = graph_result(found.store, snapshot)
    assert result.status is Status.COMPLETED
    assert result.results["c"].output == story.output
    assert result.execution_order == story.order
    # What had completed was not run again.
    assert {at: snapshot.outputs[at] for at in before.outputs} == before.outputs


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS, ids=[form.stem for form in FORMS])
def test_what_is_stored_has_a_form_and_a_declared_key(office, form, redis_url):
    """Every run says in which form it is stored, and the dictionary still knows the keys."""
    _, runs = office(form)
    with redis.Redis.from_url(redis_url) as client:
        forms = {
            client.hget(f"runner:{{p00}}:r:{run_id}", "v").split()[0]
            for run_id in runs.values()
        }
        assert forms == {b"1"}
        assert [
            key for key in client.scan_iter() if type_in_dictionary(key.decode()) is None
        ] == []


@pytest.mark.parametrize("form", FORMS[-1:], ids=[form.stem for form in FORMS[-1:]])
def test_a_form_of_the_future_is_refused_and_left_as_it_is(office, form, redis_url):
    """A run of a newer library is not guessed at: reading says so, and not a byte of it changes."""
    found, runs = office(form)
    key = f"runner:{{p00}}:r:{runs['waiting-function']}"
    with redis.Redis.from_url(redis_url) as client:
        client.hset(key, "v", 2)
        before = client.hgetall(key)

        with pytest.raises(CorruptDocument, match="can't read; it was left untouched"):
            found.store.read(runs["waiting-function"])
        with pytest.raises(CorruptDocument, match="the version that wrote it"):
            found.store.peek(runs["waiting-function"])

        assert client.hgetall(key) == before


@pytest.mark.full
@pytest.mark.parametrize("form", FORMS[-1:], ids=[form.stem for form in FORMS[-1:]])
def test_a_document_of_the_future_holds_its_node(office, form, redis_url):
    """A node whose own document is newer waits for migration with its answer, and goes on once it is read."""
    found, runs = office(form)
    run_id = runs["waiting-function"]
    key = f"runner:{{p00}}:r:{run_id}"
    with redis.Redis.from_url(redis_url) as client:
        document = client.hget(key, "k:b")
        newer = document.replace(b'"v":1', b'"v":2', 1)
        assert newer != document
        client.hset(key, "k:b", newer)
        found.answer([run_id], "yes")
        finish(found)
        assert found.store.peek(run_id).status is Status.NEEDS_MIGRATION
        assert client.hget(key, "k:b") == newer

        client.hset(key, "k:b", document)
    found.open()
    finish(found)

    assert graph_result(found.store, found.store.read(run_id)).results["c"].output == {
        "b": stories.ASKED
    }
