from __future__ import annotations

import functools
import re

import pytest

from runner import GraphBuilder, RetryPolicy
from runner.definition.model import FailurePolicy, Join
from runner.definition.registry import Registry
from runner.errors import DefinitionError, UsageError
from runner.store.memory.store import MemoryStore


def clerk(ctx):
    return "done"


def boss(ctx):
    return "done"


class Adapter:
    """Something foreign that can be a node."""

    kind = "other"

    def execute(self, visit):
        """Run the node."""


def two() -> GraphBuilder:
    builder = GraphBuilder()
    builder.add_node(clerk)
    builder.add_node(boss)
    return builder


def inner():
    builder = GraphBuilder()
    builder.add_node(clerk)
    return builder.build()


def test_a_graph_needs_a_node():
    """Building nothing is an error."""
    with pytest.raises(DefinitionError, match="at least one node"):
        GraphBuilder().build()


def test_a_node_is_named_by_its_executor():
    """Without an id a node has the name of its function, agent or graph; one without a name is numbered."""
    builder = GraphBuilder()

    assert builder.add_node(clerk).id == "clerk"
    assert builder.add_node(lambda ctx: 1).id == "node_1"
    assert builder.add_node(functools.partial(boss)).id == "node_2"
    assert builder.add_node(inner()).id == "default_graph"
    assert builder.add_node(clerk, "second").id == "second"


def test_two_nodes_cannot_have_one_id():
    """An id that is taken is refused with what to do."""
    builder = two()

    with pytest.raises(
        DefinitionError, match="Node 'clerk' already exists; give the second one another"
    ):
        builder.add_node(clerk)


def test_one_function_may_be_several_nodes():
    """A function holds no state, so it may stand in a graph twice under two ids."""
    builder = GraphBuilder()
    builder.add_node(clerk, "first")
    builder.add_node(clerk, "second")

    result = builder.build()("task")

    assert sorted(result.execution_order) == ["first", "second"]


@pytest.mark.parametrize("executor", [inner(), Adapter()], ids=["graph", "adapter"])
def test_an_object_with_state_is_one_node_only(executor):
    """A graph, agent or adapter may stand in a graph once: two nodes would share its state."""
    builder = GraphBuilder()
    builder.add_node(executor, "first")

    with pytest.raises(
        DefinitionError, match=r"Duplicate node instance detected: .* of node 'second'"
    ):
        builder.add_node(executor, "second")


@pytest.mark.parametrize(
    "executor", [None, 3, "clerk", lambda: 1, lambda a, b: 1, object(), print.__doc__]
)
def test_only_something_that_can_run_is_a_node(executor):
    """What takes no context and has no `execute` is refused with the list of what can be a node."""
    with pytest.raises(
        DefinitionError, match="can't be a node: give an Agent, a Graph, a function"
    ):
        GraphBuilder().add_node(executor, "x")


@pytest.mark.parametrize("node_id", [" ", "a/b", 'a"b', "a\\b", "a\nb", "x" * 129, 3])
def test_ids_are_short_printable_texts(node_id):
    """An id that could not stand in a key, a path or a log line is refused; dots and spaces may be in it."""
    with pytest.raises(DefinitionError, match="can't be a node id"):
        GraphBuilder().add_node(clerk, node_id)

    assert GraphBuilder().add_node(clerk, "pay.out (€) 2").id == "pay.out (€) 2"


@pytest.mark.parametrize("graph_id", ["", "a/b", 3])
def test_a_graph_id_is_checked_when_it_is_set(graph_id):
    """A name that no graph can be registered under is refused at once."""
    with pytest.raises(DefinitionError, match="can't be a graph id"):
        GraphBuilder().set_graph_id(graph_id)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"join": "some"}, r"join must be one of \['all', 'any'\], not 'some'"),
        ({"resume": "never"}, r"resume must be one of \['all', 'each'\]"),
        ({"join": ["all"]}, r"join must be one of \['all', 'any'\], not \['all'\]"),
        ({"retry": 3}, "retry must be a RetryPolicy, not 3"),
        ({"queue": 3}, "queue must be a text without commas, not 3"),
        ({"version": 3}, "version must be a text, not 3"),
        ({"priority": 10}, "priority must be one of"),
        ({"priority": -1}, "priority must be one of"),
        ({"timeout": 0}, "the timeout of node 'clerk' must be a number above 0, not 0"),
        ({"timeout": "1"}, "must be a number above 0, not '1'"),
        ({"timeout": True}, "must be a number above 0, not True"),
        ({"timeout": float("nan")}, "must be a number above 0, not nan"),
    ],
)
def test_options_of_a_node_are_checked(options, says):
    """A wrong option names the node, the option and what is allowed."""
    with pytest.raises(DefinitionError, match=says):
        GraphBuilder().add_node(clerk, **options)


def test_options_of_a_node_are_kept():
    """What is said of a node is in its declaration."""
    retry = RetryPolicy(2)
    spec = GraphBuilder().add_node(
        clerk,
        join="any",
        retry=retry,
        timeout=2.5,
        queue="slow",
        priority=0,
        resume="each",
        version="2",
    )

    assert (spec.join, spec.retry, spec.timeout) == (Join.ANY, retry, 2.5)
    assert (spec.queue, spec.priority, spec.resume, spec.version) == ("slow", 0, "each", "2")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("nobody", "boss", "Source node 'nobody' not found. Add it with add_node first"),
        ("clerk", "nobody", "Target node 'nobody' not found. Add it with add_node first"),
        ("clerk", "bos", "Target node 'bos' not found. Did you mean 'boss'?"),
    ],
)
def test_edges_join_known_nodes(source, target, says):
    """An edge to or from a node that was not added is refused at once, with the side that is wrong."""
    with pytest.raises(DefinitionError, match=re.escape(says)):
        two().add_edge(source, target)


def test_edges_may_name_nodes_by_their_declarations():
    """What add_node returned can stand for the node; one of another builder can't."""
    builder = GraphBuilder()
    first, second = builder.add_node(clerk), builder.add_node(boss)

    assert builder.add_edge(first, second).target == "boss"
    with pytest.raises(DefinitionError, match="Source node 'clerk' not found"):
        builder.add_edge(two()._nodes["clerk"], second)


async def later(state):
    return True


@pytest.mark.parametrize(
    "condition",
    ["yes", 1, lambda: True, lambda a, b: True, later, bool],
    ids=["text", "number", "no argument", "two arguments", "async", "class"],
)
def test_a_condition_is_a_sync_function_of_the_state(condition):
    """A condition that could not be asked, or would always count as true, is refused when it is added."""
    with pytest.raises(
        DefinitionError, match="the condition from 'clerk' to 'boss' must be a sync function"
    ):
        two().add_edge("clerk", "boss", condition)


@pytest.mark.parametrize(
    "condition",
    [
        lambda state: True,
        lambda state, invocation_state: True,
        lambda state, *, invocation_state: True,
        lambda state, invocation_state=None, **more: True,
        functools.partial(lambda flag, state: flag, True),
    ],
)
def test_a_condition_may_take_the_invocation_state(condition):
    """A condition takes the state, and the invocation state where it names that."""
    builder = two()
    builder.add_edge("clerk", "boss", condition)

    assert builder.build()("task").execution_order == ["clerk", "boss"]


def test_an_entry_point_is_a_known_node():
    """Only a node that was added can be an entry point; naming it twice changes nothing."""
    with pytest.raises(DefinitionError, match="Node 'nobody' not found; add it before"):
        two().set_entry_point("nobody")

    builder = two().set_entry_point("boss").set_entry_point("boss").set_entry_point("clerk")

    assert builder.build().definition.entries == ("boss", "clerk")


def test_nodes_without_incoming_edges_are_the_entry_points():
    """Without named entry points a run begins at every node to which no edge leads from another, but back."""
    builder = two()
    builder.add_node(clerk, "last")
    builder.add_edge("boss", "last")
    builder.add_edge("clerk", "last")
    builder.add_edge("boss", "boss", lambda state: False)
    builder.add_edge("last", "clerk", back=True)

    assert builder.build().definition.entries == ("clerk", "boss")


def test_a_graph_that_is_one_circle_needs_an_entry_point():
    """Where every node has an incoming edge, the builder asks where to begin."""
    builder = two()
    builder.add_edge("clerk", "boss")
    builder.add_edge("boss", "clerk")

    with pytest.raises(DefinitionError, match="No entry points found"):
        builder.build()

    assert builder.set_entry_point("clerk").build().definition.entries == ("clerk",)


def test_every_node_can_be_reached():
    """A node that no path leads to is an error that names it and the ways to mend it."""
    builder = two().set_entry_point("clerk")
    builder.add_node(clerk, "loop")
    builder.add_edge("boss", "loop")
    builder.add_edge("loop", "boss")

    with pytest.raises(
        DefinitionError,
        match=r"from the entry points \['clerk'\] reaches \['boss', 'loop'\]; add",
    ):
        builder.build()


def test_loops_that_overlap_are_refused():
    """Two loops that share nodes without one holding the other have no meaning and are refused."""
    builder = GraphBuilder()
    for name in "abcd":
        builder.add_node(clerk, name)
    for source, target in ("ab", "bc", "cd"):
        builder.add_edge(source, target)
    builder.add_edge("c", "a", back=True)
    builder.add_edge("d", "b", back=True)

    builder.build()

    other = GraphBuilder()
    for name in "xabcd":
        other.add_node(clerk, name)
    for source, target in ("xa", "xb", "ac", "bc", "cd"):
        other.add_edge(source, target)
    other.add_edge("c", "a", back=True)
    other.add_edge("d", "b", back=True)
    with pytest.raises(DefinitionError, match="the loops that start at 'a' and 'b' overlap"):
        other.build()


def test_a_back_edge_closes_a_loop():
    """An edge declared to go back must lead to a node from which there is a way to its source."""
    builder = two()
    builder.add_edge("clerk", "boss", back=True)

    with pytest.raises(
        DefinitionError, match="from 'clerk' back to 'boss' repeats nothing: no path"
    ):
        builder.build()


@pytest.mark.parametrize(
    "setting", ["set_max_node_executions", "set_execution_timeout", "set_node_timeout"]
)
@pytest.mark.parametrize("value", [0, -1, "3", None, True, float("inf")])
def test_limits_are_positive_numbers(setting, value):
    """A limit that could not be one is refused when it is set."""
    with pytest.raises(DefinitionError):
        getattr(GraphBuilder(), setting)(value)


def test_a_number_of_executions_is_whole():
    """Half an execution is no limit."""
    with pytest.raises(DefinitionError, match=r"must be a whole number, not 2\.5"):
        GraphBuilder().set_max_node_executions(2.5)


def test_a_failure_policy_is_one_of_two():
    """A policy that does not exist is refused with those that do."""
    with pytest.raises(DefinitionError, match="'fail_fast' or 'continue', not 'ignore'"):
        GraphBuilder().set_failure_policy("ignore")
    with pytest.raises(DefinitionError, match=r"'fail_fast' or 'continue', not \['continue'\]"):
        GraphBuilder().set_failure_policy(["continue"])


def test_a_forgotten_edge_is_no_entry_point():
    """A node without edges beside joined ones would run first: it is an entry point only by name."""

    def payment():
        builder = GraphBuilder()
        for name in ("draft", "approve", "pay"):
            builder.add_node(clerk, name)
        builder.add_edge("draft", "approve")
        return builder

    with pytest.raises(
        DefinitionError, match=r"node 'pay' has no edges, while other nodes have some"
    ):
        payment().build()

    named = payment().set_entry_point("draft").set_entry_point("pay").build()
    assert named.definition.entries == ("draft", "pay")


def test_nodes_without_any_edge_all_start():
    """In a graph without edges none was forgotten: all nodes are entry points."""
    builder = GraphBuilder()
    builder.add_node(clerk, "a")
    builder.add_node(clerk, "b")

    assert builder.build().definition.entries == ("a", "b")


@pytest.mark.parametrize("bound", ["max_node_executions", "execution_timeout", None])
def test_only_a_loop_without_a_bound_warns(bound, recwarn):
    """The warning names the line that calls `build`, as in Strands; a graph without loops needs no bound."""
    builder = two()
    builder.add_edge("clerk", "boss")
    builder.build()
    builder.add_edge("boss", "clerk", lambda state: False)
    builder.set_entry_point("clerk")
    if bound:
        getattr(builder, f"set_{bound}")(10)
        builder.build()
        assert not recwarn.list
    else:
        with pytest.warns(UserWarning, match="begins at node 'clerk' is unbounded") as warned:
            builder.build()
        assert (warned[0].filename, len(warned)) == (__file__, 1)
        assert not recwarn.list


def test_a_definition_error_is_a_value_error():
    """Programs written for Strands catch ValueError around the builder."""
    with pytest.raises(ValueError, match="at least one node"):
        GraphBuilder().build()


def test_hook_providers_register_hooks():
    """An object that can't register callbacks is refused when it is given."""
    with pytest.raises(DefinitionError, match="has no register_hooks"):
        GraphBuilder().set_hook_providers([object()])


def test_settings_are_kept_and_can_be_chained():
    """Each setting returns the builder, and the built graph has them all."""
    store = MemoryStore()
    built = (
        two()
        .set_graph_id("refund")
        .set_version("3")
        .set_max_node_executions(7)
        .set_execution_timeout(60)
        .set_node_timeout(0.5)
        .set_failure_policy("continue")
        .reset_on_revisit()
        .set_hook_providers([])
        .set_store(store)
        .build()
    )

    found = built.definition
    assert (built.id, found.version, found.policy) == ("refund", "3", FailurePolicy.CONTINUE)
    assert (found.max_node_executions, found.execution_timeout, found.node_timeout) == (
        7,
        60,
        0.5,
    )
    assert (found.reset_on_revisit, found.hooks) == (True, ())


def test_a_built_graph_does_not_change_with_its_builder():
    """What is added after `build` is in the next graph only."""
    builder = two()
    first = builder.build()
    builder.add_node(clerk, "third")

    assert list(first.definition.nodes) == ["clerk", "boss"]
    assert list(builder.build().definition.nodes) == ["clerk", "boss", "third"]


# -- mistakes that are easily made -------------------------------------------------------------------


def test_a_builder_is_not_yet_a_graph():
    """Where a graph is needed, the message names the forgotten call of `build`."""
    builder = two()

    with pytest.raises(UsageError, match=r"call \.build\(\) first"):
        builder("task")
    with pytest.raises(
        AttributeError, match=r"no 'stream_async', a graph has: call \.build\(\) first"
    ):
        builder.stream_async("task")
    with pytest.raises(AttributeError, match="a GraphBuilder has no 'add_nodes'"):
        builder.add_nodes("task")
    with pytest.raises(
        DefinitionError, match=r"can't be a node, a graph can: call \.build\(\) first"
    ):
        two().add_node(builder, "inner")


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (two(), r"returned a GraphBuilder: return builder\.build\(\)"),
        (None, r"returned a NoneType: return builder\.build\(\)"),
        (3, "returned a int: return a graph"),
    ],
)
def test_a_registered_function_returns_a_graph(returned, says):
    """A function that returns something else is named, with what to return."""
    graphs = Registry()
    graphs.add("refund", lambda: returned)

    with pytest.raises(
        DefinitionError, match=rf"of graph 'refund' must return a graph, but {says}"
    ):
        graphs.get("refund")


def test_edges_join_ids_not_functions():
    """An edge between functions is refused with the id that the function has as a node."""
    builder = GraphBuilder()
    builder.add_node(clerk, "c")

    with pytest.raises(
        DefinitionError, match=r"joins nodes by their ids, not <function clerk .*: write 'c'"
    ):
        builder.add_edge(clerk, boss)
    with pytest.raises(
        DefinitionError, match=r"ids, not <function boss .*: add it with add_node"
    ):
        builder.add_edge("c", boss)
    with pytest.raises(DefinitionError, match=r"not \['c'\]"):
        builder.add_edge("c", ["c"])
