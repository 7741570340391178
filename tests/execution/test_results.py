from __future__ import annotations

import dataclasses

import pydantic

from runner import Status
from runner.execution.results import node_result, total_usage
from runner.hooks import AfterNodeCallEvent
from runner.records import codec, failures
from runner.records.checkpoints import Saved
from runner.records.outcomes import Failed, Interrupted, Succeeded
from runner.records.run import NodeRecord
from tests.graphs import Bench, answer_all, ident, wired


class Order(pydantic.BaseModel):
    amount: int


class Spender:
    """A node that uses tokens, and asks first when it is told to."""

    kind = "spender"

    def __init__(self, tokens: int, *, asks: bool = False, fails: bool = False) -> None:
        self.tokens, self.asks, self.fails = tokens, asks, fails

    def execute(self, visit):
        """Spend."""
        usage = {"inputTokens": self.tokens, "outputTokens": 1}
        if self.asks and not visit.answers:
            return Interrupted([visit.address.ask("ok?", scope="spender")], Saved({"v": 1}))
        if self.fails:
            return Failed(failures.record(ValueError("spent")), usage=usage)
        return Succeeded("spent", "spent", usage)


def test_usage_adds_up_over_nodes_and_visits():
    """A run's usage is that of every visit that ended; a node's is that of its latest."""
    again = ("a a", lambda state: state.visit < 3)
    result = (
        wired({"a": Spender(10), "b": Spender(5)}, again, "a b")
        .set_entry_point("a")
        .build()("task")
    )

    assert result.usage == {"inputTokens": 35, "outputTokens": 4}
    assert result.results["a"].usage == {"inputTokens": 10, "outputTokens": 1}


def test_usage_inside_counts_outside():
    """What graphs inside used counts once on their node and on every run around it, also when they failed."""
    inner = wired({"x": Spender(10), "y": Spender(5, fails=True)}, "x y").build()
    middle = wired({"inner": inner, "z": Spender(1)}).set_failure_policy("continue").build()
    result = (
        wired({"in": middle, "b": Spender(2)}).set_failure_policy("continue").build()("task")
    )

    assert result.usage == {"inputTokens": 18, "outputTokens": 4}
    assert result.results["in"].usage == {"inputTokens": 16, "outputTokens": 3}


def test_usage_so_far():
    """While a graph inside waits, what it has used already counts."""
    inner = wired({"x": Spender(10), "y": Spender(5, asks=True)}, "x y").build()
    graph = wired({"in": inner}).build()
    first = graph("task")

    assert first.usage == {"inputTokens": 10, "outputTokens": 1}
    assert graph(answer_all(first)).usage == {"inputTokens": 15, "outputTokens": 2}


def test_questions_of_a_node_and_inside_it():
    """A question about a graph's node is listed although the graph inside has ended."""

    class Ask:
        def register_hooks(self, registry, **kwargs):
            """Ask after the graph's node."""
            registry.add_callback(AfterNodeCallEvent, lambda event: event.interrupt("publish?"))

    inner = wired({"x": lambda ctx: ctx.interrupt("ok?")}).build()
    graph = wired({"in": inner}).set_hook_providers([Ask()]).build()
    first = graph("task")
    second = graph(answer_all(first))

    assert [interrupt.name for interrupt in first.interrupts] == ["ok?"]
    assert [(question.name, question.node_id) for question in second.interrupts] == [
        ("publish?", "in")
    ]
    assert graph(answer_all(second)).results["in"].output == "yes"


def test_a_run_is_readable_after_a_run_inside_it_expired():
    """Where an inner run is gone, its node still shows what it left in the outer one."""
    bench = Bench(wired({"in": wired({"x": ident}).build()}).build()).start()
    bench.finish()
    real = bench.store.read
    child = bench.store.children(bench.run_id)[0]
    bench.store.read = lambda run_id: None if run_id == child else real(run_id)

    result = bench.result().results["in"]

    assert (result.status, result.output, result.result) == (Status.COMPLETED, "x", "x")


def test_a_result_whose_class_changed_is_readable():
    """A model that its class no longer takes is shown as plain data: the run stays readable."""
    record = NodeRecord(status=Status.COMPLETED, visit=1, attempt=1)
    packed = codec.pack(Order(amount=5), "result")
    packed["data"] = {"amount": "many"}

    result = node_result(
        record, {"amount": "many"}, {"v": 1, "kind": "function", "ms": 3, "result": packed}
    )

    assert (result.result, result.output, result.execution_time) == (
        {"amount": "many"},
        {"amount": "many"},
        3,
    )


def test_a_waiting_node_shows_nothing_of_an_older_visit():
    """In a loop a node that waits again has no result until this visit has one."""
    graph = wired(
        {"a": lambda ctx: ctx.interrupt("ok?")}, ("a a", lambda state: state.visit < 2)
    ).build()
    second = graph(answer_all(graph("task"), "first answer"))

    assert (
        second.results["a"].visit,
        second.results["a"].output,
        second.results["a"].result,
    ) == (
        2,
        None,
        None,
    )


def test_nodes_that_never_started_are_absent():
    """Results hold the nodes that have started or were skipped; pending ones are absent."""
    nodes = {"a": lambda ctx: ctx.interrupt("ok?"), "b": ident, "skip": ident, "s": ident}
    first = wired(nodes, "a b", ("s skip", lambda state: False)).build()("task")

    assert {node: str(result.status) for node, result in first.results.items()} == {
        "a": "waiting",
        "s": "completed",
        "skip": "skipped",
    }


def test_an_error_in_an_older_attempt_is_not_the_result():
    """A node that runs again has no error while it runs."""
    record = NodeRecord(status=Status.RETRYING, visit=1, attempt=2)
    entry = {
        "v": 1,
        "kind": "function",
        "ms": 1,
        "error": dataclasses.asdict(failures.record(ValueError("first"))),
    }

    result = node_result(record, None, entry)

    assert (result.error, result.result, result.attempts) == (None, None, 2)


def test_usage_of_nothing_is_empty():
    """Entries without usage add up to none."""
    assert total_usage(
        [{"v": 1}, {"usage": None}, {"usage": {"a": 1}}, {"usage": {"a": 2, "b": 1}}]
    ) == {
        "a": 3,
        "b": 1,
    }
