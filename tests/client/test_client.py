from __future__ import annotations

import threading

import pytest

from runner import Client, GraphBuilder, Status
from runner.approvals import freezing
from runner.definition.registry import Registry
from runner.errors import (
    NotFoundError,
    ResponseError,
    UnstorableError,
    UsageError,
)
from runner.execution import engine
from runner.limits.concurrency import Admission, Concurrency
from runner.store.memory.store import MemoryStore
from tests.graphs import Bench, answers, ident, single, wired


def ask(ctx):
    return ctx.interrupt("ok?", {"n": 1})


def office(graph, store=MemoryStore):
    """Give a client, and a bench that does the work of its runs."""
    bench = Bench(graph, store)
    known = Registry()
    known.add("bench", lambda: graph)
    return Client(store=bench.store, dispatcher=bench, registry=known), bench


def test_a_run_is_started_and_read():
    """A client starts a run by the name of its graph; the run can be found again by its id."""
    client, bench = office(single(lambda ctx: [ctx.task, ctx.invocation_state]))
    run = client.start("bench", "task", invocation_state={"n": 1}, tags={"team": "red"})
    bench.finish_all()

    assert client.run(run.id).status is Status.COMPLETED
    assert run.result().results["a"].output == ["task", {"n": 1}]
    assert [(each.run_id, each.tags) for each in client.runs()] == [(run.id, {"team": "red"})]
    assert not client.runs(status="failed")


def test_a_client_needs_no_code():
    """A program without the graph's code starts it by name, once a worker has made it known."""
    client, bench = office(single(ident))
    client.engine.publish(["bench"])
    stranger = Client(store=bench.store, dispatcher=bench, registry=Registry())
    run = stranger.start("bench", "task")
    bench.finish_all()

    assert run.result().status is Status.COMPLETED
    with pytest.raises(NotFoundError, match="no graph 'nobody' is known"):
        stranger.start("nobody", "task")


def test_waiting_for_a_run():
    """`wait` returns when the run has ended or only people can go on; when its time is over it raises."""
    client, bench = office(wired({"a": ask, "b": ident}).build())
    run = client.start("bench", "task")

    with pytest.raises(TimeoutError, match=r"still executes after 0\.05 s; it continues"):
        run.wait(timeout=0.05)

    worker = threading.Thread(target=bench.finish_all)
    worker.start()
    result = run.wait(timeout=60)
    worker.join()

    assert (result.status, result.execution_order) == (Status.INTERRUPTED, ["b"])


def test_questions_are_listed_and_answered(in_redis):
    """Open questions are listed by run and for all runs; an answer gets a receipt."""
    client, bench = office(single(ask), in_redis)
    runs = [client.start("bench", number) for number in range(2)]
    bench.finish_all()
    first, second = client.interrupts()

    assert client.interrupt(first.id) == first
    assert [each.id for each in runs[0].interrupts()] == [first.id]

    receipt = client.respond(first.id, {"fine": True}, responder="ann", idempotency_key="k")
    again = client.respond(first.id, {"fine": True}, responder="ann", idempotency_key="k")
    late = client.respond(first.id, {"fine": False}, responder="bob")
    other = client.respond(first.id, {"fine": False}, responder="ann", idempotency_key="k")
    copied = client.respond(first.id, {"fine": True}, responder="eve", idempotency_key="k")
    shape = runs[1].respond(answers((second.id, "yes")))

    assert (receipt.status, receipt.run_id) == ("accepted", runs[0].id)
    assert again.status == "accepted"
    assert (late.status, late.detail) == ("duplicate", "already answered by ann")
    for refused in (other, copied):
        assert (refused.status, "another answer" in refused.detail) == ("rejected", True)
    assert [each.status for each in shape] == ["accepted"]
    bench.finish_all()
    assert [run.result().results["a"].output for run in runs] == [{"fine": True}, "yes"]


def test_waiting_never_returns_a_run_that_executes(in_redis):
    """Status and result are of one read, whatever a person does meanwhile."""
    client, bench = office(single(ask), in_redis)
    run = client.start("bench", 1)
    bench.finish_all()
    read = bench.store.read_unless_executing

    def answered_after(run_id, wait):
        """Read the run; a person answers right afterwards."""
        found = read(run_id, wait)
        for question in client.interrupts(run=run_id):
            client.respond(question.id, "yes")
        return found

    bench.store.read_unless_executing = answered_after
    result = run.wait(timeout=60)

    assert (result.status, len(result.interrupts)) == (Status.INTERRUPTED, 1)
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.1)


@pytest.mark.parametrize(
    "tags",
    [{"": "x"}, {"a=b": "x"}, {"a": 1}, {"a": "x" * 501}, {str(n): "" for n in range(51)}],
)
def test_tags_that_cannot_be_used(tags):
    """A tag by which no run could be found is refused, and nothing is started."""
    client, _ = office(single(ident))

    with pytest.raises(UsageError, match="tag"):
        client.start("bench", 1, tags=tags)
    assert not client.runs()


def test_a_run_takes_answers_to_its_own_questions_only():
    """`run.respond` is for the run and the runs inside it; a question of another run is refused whole."""
    client, bench = office(wired({"inner": single(ask), "own": ask}).build())
    one, other = client.start("bench", 1), client.start("bench", 2)
    bench.finish_all()
    own = [each.id for each in one.interrupts()]
    (stranger, _) = (each.id for each in other.interrupts())

    with pytest.raises(
        ResponseError, match=f"belongs to run .*, not to run {one.id}.* nothing was applied"
    ):
        one.respond(answers((own[0], "yes"), (own[1], "yes"), (stranger, "yes")))
    assert [each.id for each in one.interrupts()] == own
    inside = client.run(next(each.run_id for each in one.interrupts() if each.run_id != one.id))
    with pytest.raises(ResponseError, match="belongs to run"):
        inside.respond(answers(*((each, "yes") for each in own)))
    assert {
        receipt.status for receipt in one.respond(answers(*((each, "yes") for each in own)))
    } == {"accepted"}
    assert [receipt.status for receipt in one.respond(answers(("00gone.a.1.x", "yes")))] == [
        "unknown"
    ]


def test_answers_that_cannot_be_used():
    """Null, what can't be stored, a wrong digest and unknown ids are refused; the question stays open."""
    client, bench = office(single(ask))
    run = client.start("bench", "task")
    bench.finish_all()
    question = run.interrupts()[0]

    with pytest.raises(ResponseError, match="is None, which is no answer"):
        client.respond(question.id, None)
    with pytest.raises(UnstorableError, match="response is an object"):
        client.respond(question.id, object())
    with pytest.raises(ResponseError, match="interruptResponse"):
        run.respond([{"text": "yes"}])
    assert client.respond(question.id, 1, digest="sha256:0").status == "rejected"
    assert client.respond("00gone.a.1.x", 1).status == "unknown"
    assert client.respond(question.id, 1, digest=question.digest).status == "accepted"
    with pytest.raises(NotFoundError, match="was asked"):
        client.interrupt("00gone.a.1.x")


def test_following_a_run_until_it_ends():
    """A follower sees events as they happen, and is done when the run is."""
    client, bench = office(single(ident))
    run = client.start("bench", "task")
    seen = []
    follower = threading.Thread(
        target=lambda: seen.extend(event.kind for event in run.events(follow=True))
    )
    follower.start()
    bench.finish_all()
    follower.join(60)

    assert not follower.is_alive()
    assert seen[-1] == "run.ended"


def test_a_run_is_cancelled_once():
    """Cancelling stops a run with the reason; doing it again changes nothing."""
    client, bench = office(single(ask))
    run = client.start("bench", "task")
    bench.finish_all()

    assert run.cancel("not needed") is True
    assert run.cancel("again") is False
    assert (run.result().status, run.result().reason) == (Status.CANCELLED, "not needed")


@pytest.mark.full
@pytest.mark.parametrize("left", [0, 1_000])
def test_a_cancel_ends_a_run_of_many_nodes_without_a_sweep(monkeypatch, left):
    """Nobody waits for the next sweep; control: without steps of the caller some nodes are left to it."""
    monkeypatch.setattr(engine, "DRAINS", 0 if left else 40)
    builder = GraphBuilder()
    for number in range(1_500):
        builder.add_node(ask, f"n{number:04}")
    client, bench = office(builder.build())
    run = client.start("bench", "task")

    assert run.cancel("not needed") is True

    assert bench.store.peek(run.id).active == left


def test_a_run_that_is_not_there():
    """Every question about an unknown run is the same clear error."""
    client, _ = office(single(ident))

    for look in (lambda: client.run("nobody"), lambda: client.engine.cancel("nobody", "x")):
        with pytest.raises(NotFoundError, match="there is no run 'nobody' in this store"):
            look()


def test_without_a_broker_the_sweeper_rings():
    """A client that can't ring leaves the doorbell to the next sweep of any worker."""
    bench = Bench(single(ident))
    known = Registry()
    known.add("bench", lambda: single(ident))
    run = Client(store=bench.store, registry=known).start("bench", "task")

    assert bench.bells == []
    bench.later(31)
    bench.finish_all()
    assert run.status is Status.COMPLETED


def test_stores_are_given_or_opened(monkeypatch):
    """A client with a store of its own reads no settings."""
    monkeypatch.setenv("RUNNER_REDIS_URL", "nonsense")

    assert not Client(store=MemoryStore()).runs()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, run: client.interrupts(),
        lambda client, run: run.retry(),
        lambda client, run: run.fork("a"),
        lambda client, run: run.remove(),
        lambda client, run: freezing.freeze(client.engine, "all", "fraud"),
    ],
    ids=["interrupts", "retry", "fork", "remove", "freeze"],
)
def test_an_operation_that_the_memory_store_lacks_names_the_store_that_has_it(ask):
    """In process there is one run: its user is told what needs Redis."""

    def fails(ctx):
        raise ValueError("no")

    client, bench = office(single(fails))
    run = client.start("bench", "task")
    bench.finish_all()
    with pytest.raises(UsageError, match="Nothing was changed; use a Redis store"):
        ask(client, run)


def test_rules_for_starts_need_a_redis_store():
    """A graph whose runs wait for each other isn't started in a store that keeps one."""
    registry, rules = Registry(), Admission(concurrency=Concurrency(1))
    registry.add("bench", lambda: single(ident), rules)
    with pytest.raises(
        UsageError, match=r"starts or turns of graph 'bench'.*use a Redis store"
    ):
        Client(store=MemoryStore(), registry=registry).start("bench", "task")
