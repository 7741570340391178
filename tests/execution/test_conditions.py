from __future__ import annotations

import pytest

from runner import Status
from runner.errors import ConflictError, StoreError
from runner.hooks import BeforeGraphEvent, HookRegistry
from runner.store.interface import Reply
from runner.store.memory.store import MemoryStore
from runner.store.requests import SettleVisit
from tests.graphs import Bench, ident, wired


def seen_by(look, **nodes):
    """Run a -> b where the condition looks at the state; return what it saw."""
    found = []

    def condition(state):
        found.append(look(state))
        return True

    graph = wired({"a": ident, "b": ident, **nodes}, ("a b", condition)).build()
    Bench(graph).start("the task", invocation_state={"tenant": 1}).deliver("a")
    return found[0]


def test_a_condition_sees_its_run():
    """Task, the source that just completed, its visit and its result are on the state."""
    task, node, visit, result = seen_by(lambda s: (s.task, s.node_id, s.visit, s.results["a"]))

    assert (task, node, visit) == ("the task", "a", 1)
    assert (result.status, result.output, result.result, result.attempts) == (
        Status.COMPLETED,
        "a",
        "a",
        1,
    )


@pytest.mark.parametrize("value", [0, "", [], None])
def test_the_truth_of_the_answer_counts(value):
    """A condition may return anything; what Python counts as false is no."""
    assert wired({"a": ident, "b": ident}, ("a b", lambda state: value)).build()(
        "task"
    ).execution_order == ["a"]


def test_a_condition_may_read_other_nodes():
    """Results of nodes that have started are there; one that has not started yet is absent."""
    nodes = {"first": ident, "a": ident, "b": ident, "later": ident}
    found = []

    def condition(state):
        found.append(
            (
                dict(state.results),
                "later" in state.results,
                state.results.get("later"),
                len(state.results),
            )
        )
        with pytest.raises(KeyError):
            state.results["later"]
        with pytest.raises(KeyError, match="is not a node of this graph"):
            state.results["nobody"]
        return state.results["first"].output == "first"

    result = wired(nodes, "first a", ("a b", condition), "b later").build()("task")

    assert result.execution_order == ["first", "a", "b", "later"]
    assert [set(found[0][0]), *found[0][1:]] == [{"first", "a"}, False, None, 2]


def test_a_condition_sees_who_completed_and_who_failed():
    """`completed_nodes` and `failed_nodes` name the nodes whose latest visit ended so."""

    def boom(ctx):
        raise ValueError

    found = []
    nodes = {"good": ident, "bad": boom, "a": ident, "b": ident}
    graph = wired(
        nodes,
        "good a",
        "bad a",
        ("a b", lambda s: found.append((s.completed_nodes, s.failed_nodes))),
    ).set_failure_policy("continue")
    graph.build()("task")

    assert found == [({"good", "a"}, {"bad"})]


def test_a_condition_sees_the_order_of_visits():
    """`execution_order` has the completed visits so far, each round and the source's included."""
    found = []

    def twice(state):
        found.append((state.execution_order, state.execution_count))
        return state.execution_count < 4

    graph = wired({"a": ident, "b": ident}, "a b", ("b a", twice))
    hooks = HookRegistry()
    hooks.add_callback(BeforeGraphEvent, lambda event: None)
    result = graph.set_entry_point("a").set_hook_providers([hooks]).build()("task")

    assert found == [(["a", "b"], 2), (["a", "b", "a", "b"], 4)]
    assert result.execution_order == found[1][0]


class Meddled(MemoryStore):
    """A store in which something else happens just before a node is settled, a number of times."""

    def __init__(self, clock) -> None:
        super().__init__(clock)
        self.meddle: list = []

    def do(self, request):
        """Settle, after what was planned."""
        if isinstance(request, SettleVisit) and self.meddle and request.token.node == "a":
            self.meddle.pop(0)()
        return super().do(request)


def meddled(graph, *meddle):
    """Return a bench whose store does these things between a condition's look and the settle of `a`."""
    bench = Bench(graph, Meddled)
    bench.store.meddle = list(meddle)
    return bench


@pytest.mark.parametrize(
    "done", [lambda state: state.completed_nodes, lambda state: set(state.execution_order)]
)
def test_two_sources_that_finish_together_do_not_miss_each_other(done):
    """A result that changed between a condition's look and the settle makes it look again; the node rests."""
    starts, looks = [], []

    def both(state):
        looks.append(state.node_id)
        return {"a", "x"} <= done(state)

    nodes = {"a": lambda ctx: starts.append(1), "x": ident, "b": ident}
    graph = wired(nodes, ("a b", both), ("x b", both), b={"join": "any"}).build()
    bench = meddled(graph, lambda: bench.deliver("x"))
    bench.start().deliver("a")

    assert looks == ["a", "x", "a"]
    assert len(starts) == 1
    assert bench.finish().execution_order == ["x", "a", "b"]


def test_a_condition_that_reads_its_own_source_never_looks_again():
    """Whatever happens elsewhere, a condition on its own source is asked once."""
    looks = []

    def own(state):
        looks.append(state.results["a"].output)
        return True

    graph = wired({"a": ident, "x": ident, "b": ident}, ("a b", own)).build()
    bench = meddled(graph, lambda: bench.deliver("x"))
    bench.start().deliver("a")

    assert looks == ["a"]


@pytest.mark.full
def test_results_that_keep_changing_are_an_error():
    """When what a condition reads changes for ever, that is an error, and nothing is recorded."""
    looks = []

    class Restless(MemoryStore):
        def do(self, request):
            """Refuse a settle, as if something had changed."""
            return Reply("changed") if isinstance(request, SettleVisit) else super().do(request)

    def condition(state):
        looks.append(len(state.results))

    bench = Bench(wired({"a": ident, "b": ident}, ("a b", condition)).build(), Restless).start()
    with pytest.raises(ConflictError, match="read results that kept changing"):
        bench.deliver("a")
    assert len(looks) > 3
    assert bench.result().results["a"].status is Status.RUNNING


def test_an_outage_while_a_condition_reads_is_no_failure():
    """A store that can't be reached stops the settle; the node is neither failed nor recorded."""

    class Away(MemoryStore):
        def fetch(self, run_id, nodes):
            """Be away."""
            raise StoreError("the store can't be reached")

    graph = wired({"a": ident, "b": ident}, ("a b", lambda state: "b" in state.results)).build()
    bench = Bench(graph, Away).start()

    with pytest.raises(StoreError):
        bench.deliver("a")
    assert bench.result().results["a"].status is Status.RUNNING


def test_unconditional_edges_ask_nothing():
    """Where no edge has a condition, nothing is read from the store."""

    class Unread(MemoryStore):
        def fetch(self, run_id, nodes):
            """Must not be asked."""
            raise AssertionError

    bench = Bench(wired({"a": ident, "b": ident}, "a b").build(), Unread).start()

    assert bench.finish().status is Status.COMPLETED
