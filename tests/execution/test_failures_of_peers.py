"""Four failures that were measured with other systems, each of which must not happen here."""

from __future__ import annotations

import threading

from runner import Status
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from tests.graphs import Bench, ident, wired


def ask(name):
    return lambda ctx: ctx.interrupt(name)


def waiting(nodes, *edges) -> Bench:
    """Start a run that waits for a person."""
    bench = Bench(wired(nodes, *edges).build()).start()
    assert bench.finish().status is Status.INTERRUPTED
    return bench


def deploy(bench: Bench, nodes, *edges) -> None:
    """Let another version of the graph run on from now on."""
    registry = Registry()
    graph = wired(nodes, *edges).build()
    registry.add("bench", lambda: graph)
    bench.engine = Engine(bench.store, bench, registry)
    bench.engine.publish(["bench"])


def test_no_question_takes_the_answer_of_another_one():
    """Of two questions, the one that new code asks first does not get the answer to the old one."""
    bench = waiting({"a": ask("approve")})
    (old,) = bench.result().interrupts

    deploy(
        bench,
        {"a": lambda ctx: {"why?": ctx.interrupt("why?"), "approve": ctx.interrupt("approve")}},
    )
    apply_decisions(bench.engine, [Decision(old.id, "APPROVED")])

    (question,) = bench.finish().interrupts
    assert (question.name, question.response) == ("why?", None)
    bench.answer("it is cheap")
    assert bench.finish().results["a"].output == {"why?": "it is cheap", "approve": "APPROVED"}


def test_no_answer_is_swallowed_when_its_node_was_renamed():
    """The run neither ends as if nothing had waited nor skips the branch: it says that it needs migration."""
    bench = waiting({"a": ident, "b": ask("approve"), "c": ident}, "a b", "b c")
    (question,) = bench.result().interrupts

    deploy(
        bench, {"a": ident, "approval": ask("approve"), "c": ident}, "a approval", "approval c"
    )
    bench.answer("APPROVED")

    result = bench.finish()
    assert result.status is Status.NEEDS_MIGRATION
    assert result.execution_order == ["a"]
    assert "c" not in result.results
    assert bench.store.interrupts([question.id])[0].response == "APPROVED"


def test_a_waiting_run_wakes_after_a_deploy_of_other_code():
    """The code of the waiting node changed, its place in the graph did not: the answer lets it go on."""
    bench = waiting({"a": ident, "b": ask("approve")}, "a b")

    deploy(
        bench,
        {"a": lambda ctx: "new", "b": lambda ctx: ["new", ctx.interrupt("approve")]},
        "a b",
    )
    bench.answer("yes")

    result = bench.finish()
    assert result.status is Status.COMPLETED
    assert result.results["b"].output == ["new", "yes"]


def test_a_wait_costs_no_thread_and_no_slot():
    """Eighty runs wait and have no thread of their own; the next run ends at once."""
    bench = Bench(
        wired({"a": lambda ctx: ctx.interrupt("approve") if ctx.task else "done"}).build()
    )
    bench.start("ask").finish_all()
    before = threading.active_count()
    for _ in range(80):
        bench.start("ask").finish_all()

    # The one thread that renews leases ends when nothing runs, and starts again.
    assert threading.active_count() <= before + 1
    assert bench.start("").finish().status is Status.COMPLETED
    assert len(bench.store.runs(limit=100)) == 82
