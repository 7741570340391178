"""What only the Redis store promises: keys, expiry, doorbells, outages, forks."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import redis

from runner.dev.embedded import embedded_store
from runner.errors import CorruptDocument, PayloadTooLarge, StoreError, UsageError
from runner.limits.fairness import Fairness
from runner.limits.limit import Limit
from runner.operations.recovery import ForkOptions, plan_fork, write_retry
from runner.records import codec
from runner.records.checkpoints import SessionUpdate
from runner.records.interrupts import Decision
from runner.records.listings import RunQuery
from runner.records.metrics import NODE
from runner.records.run import Status
from runner.store import encoding
from runner.store.interface import Reply, Settlement, Start
from runner.store.redis import large_values
from runner.store.redis.doorbell_template import DoorbellTemplate
from runner.store.redis.keys import Keys
from runner.store.redis.listings import LOOKED_AT
from runner.store.redis.measurements import increments, vote
from runner.store.redis.store import RedisStore
from runner.store.requests import (
    AnswerQuestions,
    CancelRun,
    ClaimVisit,
    EmitEvent,
    ForkRun,
    ParkVisit,
    ReportEnd,
    SaveCheckpoint,
    SettleVisit,
    ShareSlots,
    StartRun,
)
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import rung, saved, shape, word_of
from tests.key_dictionary import type_in_dictionary
from tests.waiting import wait_until

KEYS = Keys()
TEMPLATE = DoorbellTemplate(
    ['{"id": "', "id", '", "tag": "', "delivery_tag", '", "q": "', "queue", '", "p": ', "priority",
     ', "s": "', "shadow", '", "a": "', "argsrepr", '"}'],
    {priority: "" if priority < 3 else f"\x06\x16{priority // 3 * 3}" for priority in range(10)},
    "runner/",
)  # fmt: skip


@pytest.fixture
def worker(store, clock):
    return ManualWorker(store, clock)


def keys(client, pattern="*"):
    return sorted(key.decode() for key in client.keys(pattern))


QUEUE = "runner/g\x06\x163"


def queued(client, key=QUEUE):
    return [json.loads(message) for message in reversed(client.lrange(key, 0, -1))]


def rung_for(client, key=QUEUE):
    """Name the visits whose messages are in a queue, as "a.1.1"."""
    return [message["id"].partition(".")[2] for message in queued(client, key)]


def lifetimes(client, *parts):
    """Return for how many milliseconds keys live whose names have any of these parts; -1 is for ever."""
    found = {key for part in parts for key in client.keys(f"*{part}*")}
    return {client.pttl(key) for key in found if client.exists(key)}


def with_child(worker, graph="a", **options):
    """Begin a run, and complete one inside its node a."""
    run_id, token = worker.begin(graph, **options)
    child = worker.start(shape("x", name="inner"), parent=token)
    worker.run(child, "x")
    return run_id, child


def at_once(work, names):
    """Call a function with each name, all in one moment; return what they return."""
    ready = threading.Barrier(len(names))

    def begin(name):
        ready.wait(60)
        return work(name)

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(begin, names))


def kill_workers(worker, run_id, node="a"):
    """Lose five workers of a node, one after the other."""
    for attempt in range(1, 6):
        worker.claim(run_id, node, attempt=attempt)
        worker.sweep(after=31)


def finish(worker, run_id):
    """Take a run through everything that leaves keys: messages, questions, events, children."""
    token = worker.token(run_id, "a")
    question = worker.question(token, expires_in=60)
    worker.store.do(ParkVisit(token, [question], saved(1, "m")))
    worker.answer(question)
    worker.settle(worker.token(run_id, "a"), "out")


def test_a_finished_run_expires_whole(worker, client):
    """When a run has ended every key of it has the retention as its expiry, its idempotency key too."""
    run_id = worker.start("a", idempotency_key="k")
    finish(worker, run_id)

    found = lifetimes(client, run_id, ":idem:")
    assert len(client.keys(f"*{run_id}*")) > 2
    assert 0 < min(found) <= max(found) <= 60_000


@pytest.mark.full
def test_a_sweep_forgets_all_runs_that_have_expired(worker, store, clock, client):
    """More runs than a sweep handles timers leave the lists in one sweep, however many end in a second."""
    for _ in range(25):
        worker.settle(worker.claim(worker.start("a"), "a").token)
    listed = [key for key in keys(client) if key.endswith(":retired")]
    clock.advance(61)

    assert [client.zcard(key) for key in listed] == [25]
    store.sweep(limit=4)

    assert not client.exists(*listed)


def test_closed_questions_are_forgotten_with_the_runs_of_their_graph(
    worker, store, clock, client
):
    """A sweep leaves the list of a graph what was closed within the retention, and what is open."""
    old, late, still_open = (worker.park(worker.start("a"), "a")[0] for _ in range(3))
    index = KEYS.prefix + "open:g:g"
    worker.answer(old)
    worker.settle(worker.token(old.run_id, "a"))
    clock.advance(50)
    worker.answer(late)
    clock.advance(11)

    assert client.zcard(index) == 3
    store.sweep()

    assert client.zrange(index, 0, -1) == [late.id.encode(), still_open.id.encode()]


def test_a_session_outlives_its_runs(worker, store, clock, client):
    """A session has no expiry, whatever becomes of the runs that wrote it."""
    token = worker.claim(worker.start("a"), "a").token
    worker.settle(token, saved=saved(1, "one"), session=SessionUpdate("ann:1", 0, {"n": 1}))
    clock.advance(61)
    store.sweep()

    assert [client.ttl(key) for key in keys(client, "*:session:*")] == [-1, -1]
    assert all(type_in_dictionary(key) for key in keys(client, "*:session:*"))


def test_a_waiting_run_never_expires(worker, client):
    """Nothing of a run that waits has an expiry, however often others end."""
    graph = shape("a")
    waiting = worker.start(graph)
    worker.park(waiting, "a")
    finish(worker, worker.start(graph))

    stored_keys = [key for key in keys(client) if waiting in key]
    assert len(stored_keys) > 1
    assert {client.pttl(key) for key in [*stored_keys, KEYS.shape(graph.fingerprint)]} == {-1}


def test_children_expire_with_their_root(worker, store, client):
    """A child that has ended stays while its parent may read it; the sweep lets it go after the root."""
    parent, child = with_child(worker)
    assert client.pttl(KEYS.run(child)) == -1
    worker.run(parent, "a")
    assert client.pttl(KEYS.run(parent)) > 0

    store.sweep()

    assert min(lifetimes(client, child)) > 0


def test_a_run_stays_until_its_end_was_told(worker, store, clock, client):
    """The expiry of a run with a task to call begins when that was called; its shape waits, too."""
    graph = shape("a")
    run_id, child = with_child(worker, graph, idempotency_key="k", on_end="shop.done")
    names = run_id, f":r:{child}", ":idem:", graph.fingerprint
    worker.run(run_id, "a")
    store.publish([shape("a>b")])
    clock.advance(3600)
    store.sweep()
    assert lifetimes(client, *names) == {-1}
    assert all(type_in_dictionary(key) for key in keys(client, KEYS.prefix + "*"))

    assert store.do(ReportEnd(run_id, 1)).word == "end_reported"

    store.sweep()
    found = lifetimes(client, *names)
    assert 0 < min(found) <= max(found) <= 60_000
    assert not client.zrange(f"{KEYS.prefix}timers", 0, -1)


def test_a_run_retried_before_its_end_was_told_counts_once(worker, store, client):
    """A run that goes on before its end was told uses its shape as one run, and leaves it as one."""
    graph = shape("a")
    run_id = worker.start(graph, on_end="shop.done")
    worker.fail(worker.token(run_id, "a"))
    write_retry(store, run_id)
    assert client.hget(KEYS.shape(graph.fingerprint), "runs") == b"1"

    worker.settle(worker.token(run_id, "a", 1, 2))
    store.do(ReportEnd(run_id, 2))
    assert client.hget(KEYS.shape(graph.fingerprint), "runs") == b"0"


@pytest.mark.parametrize("is_swept", [True, False])
def test_a_retried_run_stays(worker, store, clock, client, is_swept):
    """It loses its expiry, with its children, also those that no sweep has found, its shape and its key."""
    graph = shape("a>b")
    parent, child = with_child(worker, graph, idempotency_key="k")
    names = child, parent, ":idem:", graph.fingerprint
    worker.run(parent, "a")
    worker.fail(worker.token(parent, "b"))
    store.publish([shape("a>c")])
    if is_swept:
        store.sweep()
        assert min(lifetimes(client, *names)) > 0

    write_retry(store, parent)
    clock.advance(61)
    store.sweep()

    assert lifetimes(client, *names) == {-1}
    assert len(store.runs()) == 2
    worker.settle(worker.token(parent, "b", 1, 2))
    store.sweep()
    assert min(lifetimes(client, *names)) > 0


def test_listings_forget_runs_that_are_gone(worker, store, clock, client):
    """A run leaves the listings when its keys have expired."""
    run_id = worker.start("a", tags={"team": "red"})
    worker.run(run_id, "a")
    assert [
        len(store.runs(query)) for query in (RunQuery(), RunQuery(tags={"team": "red"}))
    ] == [
        1,
        1,
    ]
    clock.advance(61)
    store.sweep()

    assert (list(store.runs()), keys(client, "*:runs*")) == ([], [])


@pytest.mark.full
def test_a_page_of_a_listing_costs_a_bounded_amount_of_work(worker, store, client, clock):
    """Where few of many fit, a page ends early and its cursor goes on behind what was looked at."""
    first = worker.start("a", tags={"team": "red"})
    worker.run(first, "a")
    expired = {f"00expired{place}": clock.now + place for place in range(1, 2 * LOOKED_AT + 1)}
    query, pages, cursor = RunQuery(Status.COMPLETED, tags={"team": "red"}), [], ""
    (by_status,), (by_tag,) = KEYS.runs(query, ["g"])
    client.zadd(by_tag, expired)
    # One index has them all, and that by status and graph has one.
    assert [run.run_id for run in store.runs(query)] == [first]
    client.zadd(by_status, expired)
    while cursor is not None:
        page = store.runs(query, 1, cursor)
        pages.append([run.run_id for run in page])
        cursor = page.next

    assert 1 < len(pages) < 10
    assert [run_id for page in pages for run_id in page] == [first]


def test_a_large_value_is_stored_once_for_a_run_and_all_inside_it(worker, redis_url, client):
    """What goes through many nodes, into a graph inside and up again lies in one place while needed."""
    much = "x" * 100_000
    run_id = worker.start("a>b b>c")
    worker.settle(worker.token(run_id, "a"), much)
    child = worker.start(shape("x", name="inner"), much, parent=worker.token(run_id, "b"))
    worker.settle(worker.token(child, "x"), much)
    worker.settle(worker.token(run_id, "b"), much)

    assert client.hlen(KEYS.run(run_id, ":b")) == 1
    assert not client.exists(KEYS.run(child, ":b"))
    assert client.memory_usage(KEYS.run(run_id), samples=0) < 20_000
    assert client.memory_usage(KEYS.run(child), samples=0) < 20_000
    assert client.pttl(KEYS.run(run_id, ":b")) == -1
    token = worker.token(run_id, "c")
    worker.settle(token, much + "y")
    assert 0 < client.pttl(KEYS.run(run_id, ":b")) <= 60_000
    worker.settle(token, much + "z")
    assert 0 < client.pttl(KEYS.run(run_id, ":b")) <= 60_000
    client.delete(KEYS.run(run_id, ":b"))
    with (
        contextlib.closing(RedisStore(redis_url)) as other,
        pytest.raises(CorruptDocument, match="is gone"),
    ):
        other.read(run_id)


def test_the_hash_of_a_run_is_a_table(worker, store, client):
    """From the first field on: as a list it would be searched through for every field that is read."""
    waiting, ended = worker.start("a"), worker.start("a")
    worker.park(waiting, "a")
    worker.run(ended, "a")
    store.do(ForkRun(plan_fork(store, ended, "a", None, ForkOptions("00new"))))

    assert {client.object("encoding", KEYS.run(run)) for run in (waiting, ended, "00new")} == {
        b"hashtable"
    }


def test_a_large_value_is_compressed(worker, redis_url, client):
    """It counts as long as it is, and another process reads it back as it was."""
    texts = "words " * 20_000, " ".join(str(n * n % 99_991) for n in range(20_000))
    run_id = worker.start("a>b")
    for node, text in zip("ab", texts, strict=True):
        before = worker.read(run_id).size
        worker.settle(worker.token(run_id, node), text)
        assert worker.read(run_id).size > before + len(text)

    with contextlib.closing(RedisStore(redis_url)) as other:
        assert other.read(run_id).outputs == {("a", 1): texts[0], ("b", 1): texts[1]}
    small, large = sorted(map(len, client.hvals(KEYS.run(run_id, ":b"))))
    assert small < 2_000
    assert large < 0.7 * len(texts[1])


@pytest.mark.parametrize("compressed", [True, False])
def test_a_question_is_stored_compressed(worker, client, compressed):
    """In half the bytes of its JSON, named without its run; control: an older one is read, answered."""
    people, properties = ["ana@example.com"], {"approved": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["approved"]}
    options = {"reason": {"amount": 1_200}, "response_schema": schema, "assignees": people}
    run_id, question = worker.asking("a", expires_in=60, **options)
    key, field = KEYS.run(run_id), f"i:{question.id.partition('.')[2]}"
    text = client.hget(key, field)
    head, document = encoding.split_question(text)
    assert json.loads(document)["response_schema"] == schema
    texts = dict(zip(("n:a", "q:a"), client.hmget(key, "n:a", "q:a"), strict=True))
    assert not [text for text in texts.values() if run_id.encode() in text]
    if not compressed:
        full = {
            name: text.replace(b'".a.', f'"{run_id}.a.'.encode())
            for name, text in texts.items()
        }
        client.hset(key, mapping={field: head + document, **full})
    (stored,) = worker.store.interrupts([question.id])

    assert len(text) - len(head) < len(document) / 2
    assert replace(stored, asked_at=0) == question
    assert worker.answer(question, response={"approved": True}, responder=people[0]) == [
        "accepted"
    ]
    assert worker.claim(run_id, "a").answers[0].response == {"approved": True}


def test_measurements_of_a_graph_that_is_gone_are_deleted(store, clock, client):
    """After 30 days without one; those of other graphs, and those without a graph, stay."""
    for graph in ("gone", 'stays "}é'):
        store.measure(increments(NODE, 1, graph=graph, node="a", outcome="completed"))
    store.measure(vote("approve"))
    fields = client.hkeys(KEYS.metrics)
    for _ in range(3):
        clock.advance(11 * 86_400)
        store.measure(increments(NODE, 1, graph='stays "}é', node="a", outcome="completed"))
    gone = {field for field in fields if b'"gone"' in field}

    assert len(gone) == 3
    assert set(client.hkeys(KEYS.metrics)) == set(fields) - gone


def test_measurements_are_one_command(store, client):
    """However many fields they have: an increment for each cost as much as the nodes themselves."""
    store.measure({f'["a", {{}}, "{number}"]': 1 for number in range(3)})
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    store.measure({f'["a", {{}}, "{number}"]': 1 for number in range(500)})

    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1
    assert client.hget(KEYS.metrics, '["a", {}, "2"]') == b"2"


@pytest.mark.parametrize("damaged", [True, False])
def test_a_damaged_metric_refuses_no_answer(worker, client, damaged):
    """The answer is accepted, and counted where it can be; control: with sound metrics it is counted."""
    (run_id, question), field = worker.asking("a"), '["runner_answer_seconds", {}, "10"]'
    if damaged:
        client.hset(KEYS.metrics, field, "no number")

    assert worker.answer(question) == ["accepted"]
    assert worker.claim(run_id, "a").answers[0].response == "yes"
    assert client.hget(KEYS.metrics, field) == (b"no number" if damaged else b"1")
    assert client.hlen(KEYS.metrics) == 2


def test_an_event_does_not_repeat_its_question(worker, store, client):
    """It reads as if it did; controls: one that does, and one whose question is damaged."""
    run_id, question = worker.asking("a", reason="a long story", assignees=["ana", "ben"])
    key, field = KEYS.run(run_id), f"i:{question.id.partition('.')[2]}"
    (text,) = (text for text in client.lrange(f"{key}:e", 0, -1) if text.startswith(b"q\n"))
    read = lambda: {event.kind: event.data for event in store.events(run_id)}["interrupt.asked"]  # noqa: E731 - short
    data = {"name": "ok?", "assignees": ["ana", "ben"], "reason": "a long story"}

    assert b"story" not in text
    assert read() == data
    client.hset(key, field, "1 1 0 no question")
    assert read() is None
    longer = text.replace(b"\n2\n", b"\n%b\n" % codec.dump_json(data))
    client.lset(f"{key}:e", client.lpos(f"{key}:e", text), longer)
    assert read() == data


@pytest.mark.full
@pytest.mark.parametrize("remembered", [large_values.REMEMBERED, 0])
def test_a_large_value_passes_a_process_once(
    worker, redis_url, client, monkeypatch, remembered
):
    """20 nodes that read it, and pass it on, cost one reading; control: nothing is remembered."""
    monkeypatch.setattr(large_values, "REMEMBERED", remembered)
    much, names = secrets.token_hex(200_000), [f"n{number:02d}" for number in range(20)]
    graph = shape(" ".join(f"a>{name} {name}>z" for name in names))
    run_id, token = worker.begin(graph)
    worker.settle(token, much)
    with contextlib.closing(RedisStore(redis_url)) as store:
        other = ManualWorker(store)
        other.know(run_id, graph)
        before = client.info("stats")
        for name in names:
            claim = other.claim(run_id, name)
            assert codec.read(claim.inputs[0][2]) == much
            assert other.settle(claim.token, much) == "settled"
        after = client.info("stats")

    sent, written = (
        after[f"total_net_{way}_bytes"] - before[f"total_net_{way}_bytes"]
        for way in ("output", "input")
    )
    values = sent // 200_000, written // 200_000  # half the digits: compressed
    assert values == (1, 0) if remembered else (values[0] >= 20 and values[1] >= 20)


def test_a_large_value_that_the_store_has_lost_is_written_again(worker, redis_url, client):
    """A process that remembers it takes nothing for granted: after a failover it may be gone."""
    much = "x" * 100_000
    run_id, token = worker.begin("a>b")
    assert worker.settle(token, much) == "settled"
    token = worker.token(run_id, "b")
    client.delete(KEYS.run(run_id, ":b"))

    assert worker.settle(token, much) == "settled"
    with contextlib.closing(RedisStore(redis_url)) as other:
        assert other.read(run_id).outputs["b", 1] == much


def test_a_fork_has_its_own_large_values(worker, store, client):
    """What a fork takes over stays with it, though the run that it comes from is gone."""
    much = "x" * 100_000
    run_id = worker.start("a>b")
    entry = {"v": 1, "kind": "function", "ms": 1, "result": [much]}
    settlement = Settlement(Status.COMPLETED, "1", much, entry)
    store.do(SettleVisit(worker.token(run_id, "a"), settlement, "n"))
    worker.run(run_id, "b")
    store.do(ForkRun(plan_fork(store, run_id, "b", None, ForkOptions("00new"))))
    client.delete(*keys(client, f"*{run_id}*"))

    claim = worker.claim("00new", "b")
    assert codec.read(claim.inputs[0][2]) == much
    assert worker.read("00new").entries["a", 1] == entry


def test_a_large_value_of_a_run_that_is_gone_leaves_nothing(worker, client):
    """A late worker's result for a run that has expired is refused, and no key comes of it."""
    _, token = worker.begin("a")
    client.flushdb()

    assert worker.settle(token, "x" * 100_000) == "stale"
    assert keys(client) == []


def test_without_retention_runs_stay(redis_url, client):
    """A store without retention keeps finished runs for ever."""
    worker = ManualWorker(RedisStore(redis_url, retention=None, push=False))
    run_id = worker.start("a")
    worker.run(run_id, "a")

    assert {client.pttl(key) for key in keys(client)} == {-1}


def test_a_replaced_shape_goes_with_its_last_run(worker, client):
    """A graph's old shape stays while a run uses it, then for the retention; the current one stays."""
    old, new = shape("a"), shape("a>b")
    run_id = worker.start(old)
    worker.store.publish([new])
    assert client.pttl(KEYS.shape(old.fingerprint)) == -1
    worker.run(run_id, "a")
    assert 0 < client.pttl(KEYS.shape(old.fingerprint)) <= 60_000
    worker.store.publish([old])
    assert client.pttl(KEYS.shape(old.fingerprint)) == -1
    assert 0 < client.pttl(KEYS.shape(new.fingerprint)) <= 60_000


def test_the_shape_of_a_current_graph_stays(worker, store, client):
    """However its last run ends, the shape that new runs begin with gets no expiry."""
    graph, inner = shape("a"), shape("x", name="g/inner")
    worker.run(worker.start(graph), "a")
    store.do(CancelRun(worker.start(graph), "enough"))
    parent = worker.start(graph)
    child = worker.start(inner, parent=worker.token(parent, "a"))
    worker.run(child, "x")
    worker.run(parent, "a")

    assert [client.pttl(KEYS.shape(one.fingerprint)) for one in (graph, inner)] == [-1, -1]


@pytest.mark.full
def test_every_key_is_in_the_dictionary(worker, store, client, clock):
    """No script makes a key that the data dictionary does not name, with the type it says."""
    store.install_doorbell(TEMPLATE)
    parent = worker.start(shape("a>b", execution_timeout=1000), idempotency_key="k:1")
    child = worker.start(shape("a", name="in/ner"), parent=worker.token(parent, "a"))
    finish(worker, child)
    worker.park(worker.start("a b"), "a", expires_in=60)
    store.do(ShareSlots({"g": 1}))
    for tenant in "abcdef":
        worker.start(shape("a", fairness=Fairness("tag:t")), tags={"t": tenant})
    kill_workers(worker, parent)

    stored_keys = [key for key in keys(client) if not key.startswith("runner/")]

    assert {key: type_in_dictionary(key) for key in stored_keys} == {
        key: client.type(key).decode() for key in stored_keys
    }
    assert type_in_dictionary("runner:{p00}:r:x:zz") is None
    assert type_in_dictionary("runner/g") is None


def test_scripts_ring_the_queue_themselves(worker, store, client):
    """With a template installed a ready visit's message is on its queue in the same transition."""
    store.install_doorbell(TEMPLATE)
    run_id = worker.start('a>b a>c"ü')

    assert rung_for(client) == ["a.1.1"]
    client.delete(QUEUE)
    worker.run(run_id, "a")

    one, two = queued(client)
    assert (one["id"], one["s"], one["q"], one["p"]) == (f"{run_id}.b.1.1", "g/b", "g", 5)
    assert (two["id"], two["s"], two["a"]) == (
        f'{run_id}.c"ü.1.1',
        'g/c"ü',
        "visit=1 attempt=1",
    )
    assert one["tag"].startswith(one["id"])


def test_a_message_rung_again_has_another_tag(worker, store, client):
    """The same visit rung twice is two messages to the broker."""
    store.install_doorbell(TEMPLATE)
    worker.start("a")

    assert worker.sweep(after=31) == []
    assert len({message["tag"] for message in queued(client)}) == 2


def test_a_run_that_ends_again_is_rung_for_its_second_end(worker, store, client):
    """The worker that saw the run's first end, and commits the second without a look, counts it."""
    store.install_doorbell(TEMPLATE)
    run_id, token = worker.begin("a", on_end="shop.done")
    worker.fail(token)
    write_retry(store, run_id)
    worker.settle(worker.token(run_id, "a", 1, 2))

    assert worker.read(run_id).record.ends == 2
    assert rung_for(client) == ["a.1.1", "@end.1.1", "a.1.2", "@end.2.1"]


def test_without_a_template_the_next_sweep_rings(worker, store, client):
    """A run that was started before any worker is rung by the first sweep, not a whole lease later."""
    worker.start("a")

    assert not rung_for(client, "runner/g")
    store.install_doorbell(TEMPLATE)
    store.sweep()
    assert rung_for(client) == ["a.1.1"]


def test_a_template_that_another_process_stores_is_used_at_once(
    worker, store, client, redis_url
):
    """A process knows the template, but no doorbell is pushed with one that is not stored any more."""
    store.install_doorbell(TEMPLATE)
    run_id = worker.start("a>b b>c c>d")
    worker.run(run_id, "a", "b")
    client.delete(QUEUE)
    theirs = replace(TEMPLATE, queue_keys={5: "-other"}, prefix="their-")
    RedisStore(redis_url).install_doorbell(theirs)

    worker.run(run_id, "c")

    assert rung_for(client, "their-g-other") == ["d.1.1"]
    assert not rung_for(client)


def test_without_a_template_doorbells_are_returned(worker, store, redis_url):
    """Before a worker has left a template, and where the queue is elsewhere, the caller rings."""
    store.publish([shape("a")])
    assert rung(store.do(StartRun(Start("00one", "g", None, None)))) == ["a.1.1"]
    store.install_doorbell(TEMPLATE)
    assert rung(store.do(StartRun(Start("00two", "g", None, None)))) == []
    elsewhere = RedisStore(redis_url, push=False)
    assert rung(elsewhere.do(StartRun(Start("00three", "g", None, None)))) == ["a.1.1"]


def test_a_template_with_an_unknown_place_is_refused():
    """A template that a script could not fill in is refused before it is stored."""
    with pytest.raises(UsageError, match="colour"):
        DoorbellTemplate(["{", "colour", "}"]).fields()


def test_a_server_that_forgot_the_scripts_is_told_again(worker, client):
    """SCRIPT FLUSH, a failover or a restart costs one call."""
    run_id = worker.start("a")
    client.script_flush()
    worker.run(run_id, "a")
    assert worker.statuses(run_id) == "completed: a completed"


def test_an_event_wakes_readers_by_a_key_that_only_they_make(worker, store, client):
    """Where nobody waits for a run, no key is kept for it; where somebody did, the key lapses by itself."""
    run_id = worker.start("a")
    waiters = KEYS.run(run_id, ":w")
    store.do(EmitEvent(run_id, "progress", "a", 1, None))
    assert not client.exists(waiters)

    last = store.events(run_id)[-1].position
    assert store.events(run_id, last, wait=0.01) == []
    before = client.xrange(waiters)
    store.do(EmitEvent(run_id, "progress", "a", 1, None))
    assert client.xrange(waiters) != before
    assert 0 < client.ttl(waiters) < 60


def test_a_reader_that_waits_for_the_end_is_woken_once(worker, store, client):
    """Who waits for a run's end asks once and is woken once, however many nodes run meanwhile."""
    run_id = worker.start(shape("a b", "ab"))
    before = client.info("commandstats")
    reader = threading.Thread(target=lambda: store.read_unless_executing(run_id, wait=20))
    reader.start()
    waiters = KEYS.run(run_id, ":s")
    wait_until(lambda: client.info("clients")["blocked_clients"], "the reader waits")
    worker.run(run_id, "a")
    assert client.xlen(waiters) == 1
    (made,) = client.xrange(waiters)
    worker.run(run_id, "b")
    reader.join(20)

    reads = client.info("commandstats")["cmdstat_xread"]["calls"]
    assert reads - before.get("cmdstat_xread", {"calls": 0})["calls"] == 1
    assert client.xrange(waiters) != [made]
    assert 0 < client.ttl(waiters) < 60


def test_a_worker_needs_one_connection_for_each_thread(redis_url, worker, client):
    """What a worker asks now and then goes over its thread's connection, and opens no other one."""
    run_id = worker.start("a")
    worker.run(run_id, "a")
    client.xgroup_create(KEYS.notices, "approvals", "0")
    before = {each["id"] for each in client.client_list()}
    store = RedisStore(redis_url)
    store.sweep()
    assert store.waited(run_id, "a") is None

    def connections():
        return len({each["id"] for each in client.client_list()} - before)

    store.standings([f"{run_id}.a.1.1"])
    assert connections() == 1
    other = RedisStore(redis_url)
    other.sweep()
    assert connections() == 2, "control: another store has its own"
    for one in (store, other):
        one.close()


def test_a_dead_node_leaves_a_letter_for_a_month(worker, client):
    """A node that used up its crash budget has one, with the reason, whatever clock the test has."""
    seconds, _ = client.time()
    for days in (40, 31, 29):
        client.xadd(KEYS.dead, {"node": days}, id=f"{(seconds - days * 86_400) * 1000}-1")
    run_id = worker.start("a")
    kill_workers(worker, run_id)

    older, letter = (fields for _, fields in client.xrange(KEYS.dead))
    assert older[b"node"] == b"29"
    assert letter.items() >= {b"run_id": run_id.encode(), b"node": b"a", b"visit": b"1"}.items()
    assert b"five times" in letter[b"reason"]


@pytest.mark.parametrize(
    ("losses", "then"), [(1, "runs again"), (5, "it has failed"), (1, "is cancelled")]
)
def test_the_log_says_what_becomes_of_a_lost_node(worker, clock, caplog, losses, then):
    """The last lease that a node may lose is its end, and an error: no task of Celery reports it.

    One that it loses in a run that stops is its end, too.
    """
    run_id = worker.start("a")
    for attempt in range(1, losses + 1):
        worker.claim(run_id, "a", attempt=attempt)
        if then == "is cancelled":
            worker.store.do(CancelRun(run_id, "enough"))
        clock.advance(31)
        caplog.clear()
        worker.store.sweep()

    (line,) = [each for each in caplog.records if each.message.startswith("node.lost")]
    assert then in line.message
    assert line.levelname == ("ERROR" if losses == 5 else "WARNING")


def test_notices_carry_the_question(worker, client):
    """A service that reads notices gets each question whole, and each notice has an id of its own."""
    run_id = worker.start("a")
    (question,) = worker.park(run_id, "a", reason="why")
    worker.answer(question)
    worker.run(run_id, "a")

    entries = [fields for _, fields in client.xrange(KEYS.notices)]
    assert [each[b"kind"] for each in entries] == [
        b"interrupt.asked",
        b"interrupt.answered",
        b"run.ended",
    ]
    assert len({each[b"id"] for each in entries}) == 3
    assert json.loads(entries[0][b"question"])["reason"] == "why"
    assert {each[b"run_id"].decode() for each in entries} == {run_id}


def test_an_outage_is_a_store_error_and_then_over():
    """A store that is away raises an error that says so; when it is back the same object works."""
    with embedded_store(appendonly=True) as server:
        store = RedisStore(server.url, push=False)
        worker = ManualWorker(store)
        run_id = worker.start("a")
        server.kill()
        answer = AnswerQuestions([Decision("x", 1)], "n")
        for work in (store.sweep, lambda: store.read(run_id), lambda: store.do(answer)):
            with pytest.raises(StoreError, match="could not be reached"):
                work()
        server.restart()
        worker.run(run_id, "a")
        assert worker.statuses(run_id) == "completed: a completed"
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("patience", [30, 0])
def test_the_end_of_a_visit_waits_for_a_store_that_is_away(patience):
    """What a node has done is written when the store is back; control: without patience it is refused."""
    with embedded_store(appendonly=True) as server:
        store = RedisStore(server.url, push=False, retry_for=patience)
        worker = ManualWorker(store)
        _, token = worker.begin("a>b")
        server.kill()
        back = threading.Timer(0.5, server.restart)
        back.start()
        failed = Settlement(
            Status.FAILED, "", None, {"error": {"type": "x:Error", "message": "no"}}
        )
        with contextlib.nullcontext() if patience else pytest.raises(StoreError):
            assert store.do(SettleVisit(token, failed, "n")).word == "settled"
        back.join()
        store.close()


def test_a_broken_connection_is_made_anew(worker, store, client):
    """A connection that the server closed costs nothing but a new one, at every door."""
    run_id = worker.start("a")
    for _ in range(2):
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        store.sweep()
        assert store.peek(run_id) is not None


def test_a_refused_command_is_a_store_error(worker, client):
    """A server that refuses to write (full, read-only) is the world's fault, and says which."""
    run_id = worker.start("a")
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreError, match="refused"):
            worker.run(run_id, "a")
    finally:
        client.config_set("maxmemory", "0")
    worker.run(run_id, "a")


def claim_in_child(store, run_id):
    store.do(ClaimVisit(run_id, "a", 1, 1, "child"))


def test_a_forked_process_has_connections_of_its_own(worker, store):
    """A store that was used before a fork works on both sides of it."""
    run_id = worker.start("a")
    child = multiprocessing.get_context("fork").Process(
        target=claim_in_child, args=(store, run_id)
    )
    child.start()
    child.join(60)

    assert child.exitcode == 0
    assert worker.statuses(run_id) == "executing: a running"


def test_threads_share_a_store(worker, store):
    """Many threads may claim at once: each visit goes to one of them."""
    run_id = worker.start("a")
    said = at_once(lambda name: store.do(ClaimVisit(run_id, "a", 1, 1, name)), "pqrs")

    assert sorted(map(word_of, said)) == ["claimed", "stale", "stale", "stale"]


@pytest.mark.parametrize("looks_before", [False, True])
def test_nodes_that_end_at_once_do_not_overfill_their_run(worker, store, looks_before):
    """Of many results as many are taken as there is room for; control: each node looks first, then writes."""
    names = "abcdefgh"
    run_id = worker.start(" ".join(names))
    tokens = {name: worker.token(run_id, name) for name in names}
    limit = worker.read(run_id).size + 4_500
    store.max_run = 50_000_000 if looks_before else limit
    looked = threading.Barrier(len(names))

    def end(name):
        fits = worker.read(run_id).size + 1_300 <= limit
        looked.wait(60)
        try:
            return fits and worker.settle(tokens[name], "x" * 900)
        except PayloadTooLarge:
            return "full"

    said, size = sorted(at_once(end, names)), worker.read(run_id).size
    assert said == (["settled"] * 8 if looks_before else ["full"] * 5 + ["settled"] * 3)
    assert size > limit + 4_500 if looks_before else size <= limit


def test_of_many_answers_at_once_one_counts(worker, store):
    """People who answer the same question at the same moment: one is accepted, the others are told so."""
    _, question = worker.asking("a")

    def answer(name):
        (receipt,) = store.do(
            AnswerQuestions([Decision(question.id, name, name)], name)
        ).receipts
        return str(receipt.status), receipt.detail

    said = at_once(answer, "pqrstu")
    (winner,) = store.interrupts([question.id])
    late = "duplicate", f"already answered by {winner.responder}"
    assert sorted(said) == [("accepted", ""), *[late] * 5]


def test_a_timer_of_a_newer_version_is_left_to_it(worker, store, client, clock):
    """Beside newer workers an older one doesn't know every timer: it puts those back that it can't handle."""
    run_id = worker.start("a")
    worker.park(run_id, "a")
    member = f"later|{run_id}|a"
    client.zadd(f"{KEYS.prefix}timers", {member: clock.now})

    assert store.sweep().count == 1
    assert client.zscore(f"{KEYS.prefix}timers", member) == clock.now + 30_000


@pytest.mark.full
def test_threads_may_come_and_go(store):
    """A program with a thread for every request uses a store for as long as it likes."""
    said = []
    for _ in range(130):
        thread = threading.Thread(target=lambda: said.append(store.sweep().count))
        thread.start()
        thread.join(60)

    assert said == [0] * 130


def test_a_sweep_ends_on_a_slow_network(redis_url):
    """Ended runs are forgotten, too, where each round trip takes longer than the clock's unit."""
    times = iter(range(1_700_000_000_000, 1_700_000_000_300))
    store = RedisStore(redis_url, clock=lambda: next(times), retention=0.001, push=False)
    worker = ManualWorker(store)
    worker.run(worker.start("a"), "a")
    next(times)
    store.sweep()

    assert list(store.runs()) == []
    store.close()


@pytest.mark.full
@pytest.mark.parametrize("known", [99_999, 100_000])
def test_a_rate_forgets_the_key_whose_time_comes_first(worker, client, clock, known):
    """A limit keeps 100,000 keys, and what it forgets is counted; control: one less, and none is."""
    limit = Limit("slow", rate=1, per=1_000, by="input:id")
    key, soon = "runner:{p00}:rates:slow", clock() + 1_000
    client.zadd(key, {f"slow:input:id:{n}": soon + n for n in range(known)})
    worker.claim(worker.start(shape("a", limits={"a": [limit]}), task={"id": "new"}), "a")

    forgotten = client.hget(
        "runner:{p00}:metrics", '["runner_limit_keys_forgotten_total", {}, "sum"]'
    )
    assert client.zcard(key) == 100_000
    assert int(forgotten or 0) == known - 99_999
    assert (client.zscore(key, "slow:input:id:0") is None) == (known == 100_000)
    assert client.zscore(key, "slow:input:id:new")


@pytest.mark.full
@pytest.mark.parametrize("rate", [None, 1])
def test_claims_at_one_moment_share_a_limit(redis_url, rate):
    """As many nodes begin as there are places, and each start that a rate delays has its own time."""
    limit = Limit("some", concurrency=None if rate else 3, rate=rate, per=100)
    names = [f"n{number}" for number in range(16)]
    stores = [RedisStore(redis_url, push=False) for _ in names]
    worker = ManualWorker(stores[0])
    run_id = worker.start(shape(" ".join(names), limits={name: [limit] for name in names}))
    with ThreadPoolExecutor(len(names)) as pool:
        claims = [
            pool.submit(store.do, ClaimVisit(run_id, name, 1, 1, name))
            for store, name in zip(stores, names, strict=True)
        ]
        replies = [claim.result() for claim in claims]
    for store in stores:
        store.close()

    waits = sorted(reply.delay_ms for reply in replies if isinstance(reply, Reply))
    assert len(replies) - len(waits) == (1 if rate else 3)
    assert [round(wait / 100_000) for wait in waits] == (
        list(range(1, 16)) if rate else [0] * 13
    )


def test_a_run_of_another_form_is_not_guessed_at(worker, store, client):
    """A run that a newer version wrote is refused with a clear error, and left as it is."""
    run_id = worker.start("a")
    client.hset(KEYS.run(run_id), "v", 2)

    for read in (store.read, store.peek):
        with pytest.raises(CorruptDocument, match="left untouched"):
            read(run_id)


def test_without_a_clock_the_time_is_the_servers(redis_url, client):
    """Times come from Redis, so that all processes agree however wrong their own clocks are."""
    worker = ManualWorker(RedisStore(redis_url, push=False))
    seconds, _ = client.time()
    run_id = worker.start("a")

    assert 0 <= worker.read(run_id).created_at - seconds * 1000 < 60_000


@pytest.mark.parametrize(
    "url", ["htp://ann:secret@x", "redis://x:port/0", "unix:///s.sock?db=zero"]
)
def test_an_address_that_can_not_be_read_is_a_mistake_of_the_caller(url):
    """The message names the setting and shows no password."""
    with pytest.raises(UsageError, match="RUNNER_REDIS_URL") as told:
        RedisStore(url)

    assert "secret" not in str(told.value)


@pytest.mark.parametrize("last", ["park", "settle"])
def test_a_node_that_was_alone_is_not_when_another_was_answered(worker, store, last):
    """What a worker's claim has read is presumed when its node waits or ends; the script checks it."""
    run_id = worker.start("a b")
    (question,) = worker.park(run_id, "b")
    token = worker.token(run_id, "a")
    worker.answer(question)

    if last == "park":
        assert store.do(ParkVisit(token, [worker.question(token)], None)).word == "waiting"
        assert worker.statuses(run_id) == "executing: a waiting, b ready"
    else:
        assert worker.settle(token) == "settled"
        assert worker.statuses(run_id) == "executing: a completed, b ready"


def test_a_run_waits_for_an_archive_that_came_while_its_last_node_ran(worker, store, client):
    """That there is none was presumed: it is looked up again, and known from then on."""
    run_id, token = worker.begin("a")
    store.archivable("folder", 1, pause=0, mine=60, hold=60)

    assert worker.settle(token) == "settled"
    worker.run(other := worker.start("a"), "a")

    assert client.pttl(KEYS.run(run_id)) == client.pttl(KEYS.run(other)) == -1
    assert store.archivable("folder", 2, pause=0, mine=60, hold=60) == [run_id, other]


def test_a_run_is_read_without_its_conversations(worker, store, client):
    """Unless they are asked for: a result, a page or a wait does not read what an agent has said."""

    def sent(**options):
        """Count the bytes that the server sends for a run."""
        before = client.info("stats")["total_net_output_bytes"]
        assert store.read(run_id, **options).record.run_id == run_id
        return client.info("stats")["total_net_output_bytes"] - before

    run_id, token = worker.begin("a")
    store.do(SaveCheckpoint(token, saved(1, *(f"{number:1000}" for number in range(200)))))
    without, whole = sent(), sent(messages=True)

    assert without < 20_000
    assert whole > 200_000


def test_a_question_that_was_published_before_is_parked_with(worker, store, clock):
    """After `ask`, or a checkpoint, what the claim has read is not all: nothing is presumed."""
    run_id, token = worker.begin("a")
    store.do(SaveCheckpoint(token, saved(1, "m")))
    question = worker.ask(token)

    assert store.do(ParkVisit(token, [question], saved(2, "n"))).word == "waiting"
    again = worker.answer(question) and worker.claim(run_id, "a")
    assert (again.document, len(again.messages)) == (
        saved(2, "n").document,
        len(saved(2, "n").messages),
    )
    assert [answer.id for answer in again.answers] == [question.id]
    second = worker.numbered_question(again, "more?")
    assert store.do(ParkVisit(again.token, [second], saved(3, "o"))).word == "waiting"
    asked_at = {question.id: question.asked_at for question in worker.read(run_id).interrupts}
    assert asked_at[second.id] == clock()


def test_a_worker_that_dies_within_its_claim_closes_no_window(store, client, worker):
    """What was claimed and is still in the window makes room for others; control: unclaimed ones don't."""
    graph = shape("a", fairness=Fairness("tag:t"))
    store.do(ShareSlots({"g": 1}))
    runs = [worker.start(graph, tags={"t": "noisy"}) for _ in range(4)]
    window = "runner:{p00}:fair:w:g|5"
    rung = client.zrange(window, 0, -1, withscores=True)
    assert worker.begun(graph, tags={"t": "quiet"})[1] == []

    for run_id in runs:
        worker.claim(run_id, "a")
    client.delete(window)
    client.zadd(window, dict(rung))
    assert len(worker.begun(graph, tags={"t": "quiet"})[1]) == 1


def test_a_sweep_rings_where_the_last_arrivals_failed(store, client, worker, clock):
    """No later start or claim is needed, as after a deploy without turns; control: none rings too early."""
    graph = shape("a", fairness=Fairness("tag:t"))
    store.do(ShareSlots({"g": 1}))
    runs = [worker.start(graph, tags={"t": "noisy"}) for _ in range(6)]
    timers, lanes = "runner:{p00}:timers", "runner:{p00}:fair:[wnps]:*"
    before = {key: client.dump(key) for key in client.keys(lanes)}
    for run_id in runs[:4]:
        worker.settle(worker.token(run_id, "a"))
    for key, text in before.items():
        client.restore(key, 0, text, replace=True)
    client.zadd(timers, {f"node|{run_id}|a": clock() + 30_000 for run_id in runs[4:]})
    assert store.sweep().doorbells == []

    clock.advance(31)
    assert [bell.run_id for bell in store.sweep().doorbells] == runs[4:]


def test_a_long_backlog_of_runs_that_are_gone_is_passed(store, client, worker):
    """However many have gone, the next look at the slots comes to those behind them."""
    pack = """for nth = 1, 2500 do
      redis.call('ZADD', KEYS[1], nth - 3000, cjson.encode({'gone' .. nth, 'a', 1, 1, 'g', 5, 'g'}))
    end"""
    graph = shape("a", fairness=Fairness("tag:t"))
    store.do(ShareSlots({"g": 1}))
    for _ in range(5):
        last = worker.start(graph, tags={"t": "noisy"})
    client.eval(pack, 1, "runner:{p00}:fair:n:g|5:noisy")

    assert [bell.run_id for bell in store.do(ShareSlots({"g": 5})).doorbells] == [last]


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("You can't write against a read only replica.", True),
        # A script's, from Redis 6.2.
        ("Error running script: -READONLY You can't write against a read only replica.", True),
        ("User replica-reader has no permissions to run the 'evalsha' command", False),
    ],
)
def test_only_a_refusal_that_will_pass_is_said_to(store, text, passing):
    """A name in a refusal for good doesn't make it one that passes."""
    with pytest.raises(StoreError) as refused, store.connection.translated():
        raise redis.ResponseError(text)

    assert refused.value.passing == passing
    assert ("RUNNER_REDIS_URL" in str(refused.value)) == passing
