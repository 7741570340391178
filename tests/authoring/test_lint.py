from __future__ import annotations

import pytest

from runner import Agent, GraphBuilder, ToolContext, tool
from runner.approvals import Rule as Approved
from runner.authoring.lint import LintProblem, check
from runner.celery import CeleryTask
from runner.definition.registry import compile_graph
from runner.hooks import AfterGraphEvent, BeforeGraphEvent
from runner.testing import ScriptedModel
from tests.graphs import ident, wired


def problems(builder: GraphBuilder) -> list[LintProblem]:
    return check(compile_graph(builder.build().definition))


def found(builder: GraphBuilder) -> list[tuple[str, str, str]]:
    return [
        (str(problem.severity), problem.code, problem.node) for problem in problems(builder)
    ]


def nodes(names: str) -> dict:
    return dict.fromkeys(names.split(), ident)


def holds(state):
    return state.results["a"].output


def never(state):
    """Nobody has thought of this case."""
    return False


class Provider:
    def register_hooks(self, registry, **kwargs):
        registry.add_callback(BeforeGraphEvent, lambda event: None)
        registry.add_callback(AfterGraphEvent, lambda event: None)


def test_a_sound_graph_has_no_problems():
    """Branches, joins and conditions that read what is there are nothing to report."""
    graph = wired(nodes("a b c d"), ("a b", holds), "a c", "b d", "c d")

    assert problems(graph) == []


def test_a_node_without_a_name_is_reported():
    """A lambda without an id is called by its position; controls: with an id, and a function's name."""
    builder = GraphBuilder()
    for name in (None, "second"):
        builder.add_node(lambda ctx: 1, name)
    builder.add_node(ident)

    assert found(builder) == [("hint", "id-by-position", "node_0")]


def test_a_problem_says_what_and_what_to_do():
    """A problem is a value with code, severity, graph, node, a message and an advice."""
    (one,) = problems(wired(nodes("a b"), ("a b", lambda state: state.results["x"].output)))

    assert (one.code, one.severity, one.graph, one.node) == (
        "unknown-node",
        "error",
        "default_graph",
        "a",
    )
    assert "reads the result of 'x', which isn't a node of this graph" in one.message
    assert one.advice == "Use one of its nodes: a, b."


# -- nodes that never run ----------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [never, lambda state: False, lambda state: None])
def test_what_is_behind_an_edge_that_is_never_taken_never_runs(condition):
    """An edge whose condition can only say no is found, and so is everything behind it alone."""
    graph = wired(nodes("a b c d"), ("a b", condition), "b c", "c d", "a d")

    assert found(graph) == [
        ("error", "never-runs", "b"),
        ("error", "never-runs", "c"),
        ("warning", "never-taken", "a"),
    ]


def test_what_only_an_edge_back_leads_to_never_runs():
    """First visits ignore edges that lead back, so such a node has no first visit."""
    builder = wired(nodes("a b c"), "a b", "c b").set_entry_point("a")
    builder.add_edge("b", "c", lambda state: state.visit < 3, back=True)

    assert ("error", "never-runs", "c") in found(builder)


def test_a_map_without_a_bound_is_pointed_out():
    """A map whose items all run at once is a hint; its items are no nodes to look at."""
    builder = GraphBuilder()
    builder.add_map(ident, "each", concurrency=2)
    assert found(builder) == []

    builder.add_map(ident, "all")
    assert found(builder) == [("hint", "map-without-bound", "all")]


def test_a_celery_task_without_a_timeout_is_pointed_out():
    """Its queue may be one that nobody serves; a timeout of its own, or of all nodes, ends that."""
    builder = GraphBuilder()
    builder.add_node(CeleryTask("shop.charge"), "a")
    assert found(builder) == [("warning", "task-without-timeout", "a")]

    assert found(builder.set_node_timeout(60)) == []
    builder = GraphBuilder()
    builder.add_node(CeleryTask("shop.charge"), "a", timeout=60)
    assert found(builder) == []


def test_hooks_add_no_problems():
    """The hidden nodes of a graph's events are not looked at."""
    builder = wired(nodes("a b"), "a b").set_hook_providers([Provider()])

    assert problems(builder) == []


# -- loops -------------------------------------------------------------------------------------------


def loop(out=None, again=None, within=None) -> GraphBuilder:
    graph = wired(nodes("a b c"), ("a b", within), ("b a", again), ("b c", out))
    return graph.set_entry_point("a")


def test_a_loop_that_nothing_ends_is_an_error():
    """Without a condition on the way around and without a limit, a loop goes on for ever."""
    assert found(loop(out=holds)) == [("error", "endless-loop", "a")]


def test_a_loop_that_only_a_limit_ends_fails_every_run():
    """A limit ends such a loop, but as a failure."""
    assert found(loop().set_max_node_executions(9)) == [("warning", "loop-fails", "a")]
    assert found(loop().set_execution_timeout(9)) == [("warning", "loop-fails", "a")]


def test_a_loop_that_a_condition_ends_should_have_a_limit():
    """A condition anywhere on the way around can end the loop; a limit makes sure of it."""
    assert found(loop(again=holds)) == [("hint", "loop-without-limit", "a")]
    assert found(loop(within=holds)) == [("hint", "loop-without-limit", "a")]
    assert found(loop(again=holds).set_max_node_executions(9)) == []


def test_a_start_inside_a_loop_is_pointed_out():
    """Rounds begin at the loop's first node, so an entry point further on runs on its own only once."""
    graph = wired(nodes("a b c"), "a b", "b c", ("c a", holds)).set_max_node_executions(9)

    assert found(graph.set_entry_point("a").set_entry_point("b")) == [
        ("hint", "entry-in-loop", "b")
    ]


def test_an_entry_point_that_waits_is_pointed_out():
    """An entry point with edges into it does not run at the start unless its join is any."""
    graph = wired(nodes("a b"), "a b").set_entry_point("a").set_entry_point("b")

    assert found(graph) == [("hint", "entry-waits", "b")]


# -- what conditions read ----------------------------------------------------------------------------


def reads_stock(state):
    return state.results["stock"].output


def asks_first(state):
    return "stock" in state.results and state.results["stock"].output


def gets(state):
    return state.results.get("stock")


def catches(state):
    try:
        return state.results["stock"].output
    except KeyError:
        return False


def from_outside(node):
    return lambda state: state.results[node].output == "yes"


STOCK = "stock"


class Rule:
    def __call__(self, state):
        return state.results[STOCK].output


MISSING = [("warning", "missing-result", "look_up")]


@pytest.mark.full
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (reads_stock, MISSING),
        (lambda state: state.results["stock"].output, MISSING),
        (from_outside("stock"), MISSING),
        (Rule(), MISSING),
        (asks_first, []),
        (gets, []),
        (catches, []),
        (from_outside("look_up"), []),
    ],
)
def test_a_result_that_may_be_missing_is_found(condition, expected):
    """Reading another branch's result is a race; asking first, `get` and catching the KeyError are not."""
    graph = wired(
        nodes("begin stock look_up send"),
        "begin stock",
        "begin look_up",
        ("look_up send", condition),
    )

    assert found(graph) == expected


def at_the_end(*edges, condition=reads_stock, **options):
    return wired(
        nodes("begin stock other end last"),
        "begin stock",
        *edges,
        ("end last", condition),
        **options,
    )


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda ctx: ctx.inputs["stock"], [("warning", "missing-input", "send")]),
        (lambda ctx: ctx.inputs["look_up"], []),
        (lambda ctx: ctx.inputs.get("stock"), []),
        (lambda ctx: "stock" in ctx.inputs and ctx.inputs["stock"], []),
    ],
)
def test_an_input_without_its_edge_is_found(function, expected):
    """What a node reads without asking must have an edge to it; control: what has one, or is asked for."""
    graph = wired({**nodes("stock look_up"), "send": function}, "stock look_up", "look_up send")

    assert found(graph) == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (at_the_end("begin other", "stock end", "other end"), []),
        (
            at_the_end("begin other", ("stock end", lambda state: state.task), "other end"),
            ["end"],
        ),
        (at_the_end("stock other", "begin end", "other end"), []),
        (at_the_end("begin other", "stock end", "other end", end={"join": "any"}), ["end"]),
        (at_the_end("stock other", "stock end", "other end", end={"join": "any"}), []),
        (
            at_the_end("begin other", "stock end", "other end").set_failure_policy("continue"),
            ["end"],
        ),
    ],
    ids=[
        "join of all",
        "conditional",
        "longer way",
        "join of any",
        "every way",
        "failures go on",
    ],
)
def test_joins_decide_what_has_certainly_completed(graph, expected):
    """A join of all waits for what is always taken; a join of any knows only what every way has passed."""
    assert [
        problem.node for problem in problems(graph) if problem.code == "missing-result"
    ] == expected


@pytest.mark.parametrize(
    ("out", "expected"), [(None, ["c"]), (lambda state: not holds(state), [])]
)
def test_a_loop_that_goes_on_takes_its_results_away(out, expected):
    """Behind a loop that is left while it repeats, a result of the loop may be missing for a while."""
    graph = wired(nodes("a b c d"), "a b", ("b a", holds), ("b c", out), ("c d", holds))

    missing = [
        problem.node
        for problem in problems(graph.set_entry_point("a"))
        if problem.code == "missing-result"
    ]

    assert missing == expected


# -- questions ---------------------------------------------------------------------------------------


@tool(context=True)
def place(tool_context: ToolContext) -> str:
    """Ask where."""
    return tool_context.interrupt("place", reason="where?")


def asks(ctx):
    return ctx.interrupt("refund", reason=1)


def asks_well(ctx):
    return ctx.interrupt("refund", response_schema={"type": "string"})


def asks_by_options(ctx, **options):
    return ctx.interrupt("refund", **options)


@pytest.mark.parametrize(
    ("executor", "question"),
    [
        (asks, "'refund'"),
        (lambda ctx: ctx.interrupt("other"), "'other'"),
        (Agent("inner", ScriptedModel(["x"]), tools=[place]), "'place' of the tool 'place'"),
        (
            Agent(
                "outer",
                ScriptedModel(["x"]),
                tools=[Agent("i", ScriptedModel(["x"]), tools=[place]).as_tool()],
            ),
            "'place' of the tool 'place'",
        ),
        (asks_well, None),
        (asks_by_options, None),
    ],
)
def test_questions_without_a_schema_are_found(executor, question):
    """A question that takes any answer is found in functions and in the tools of agents."""
    messages = [problem.message for problem in problems(wired({"a": executor}))]

    assert [f"The question {question} takes" in message for message in messages] == (
        [True] if question else []
    )


def approve(ctx):
    return ctx.interrupt("approve", response_schema={"type": "boolean"})


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        (["a ask", "a pay"], [("warning", "answer-without-effect", "ask")]),
        (["a pay", "pay ask"], []),
        (["a ask", "ask pay"], []),
    ],
)
def test_a_question_that_leads_nowhere_is_reported(edges, expected):
    """An answer that no other node waits for is a forgotten edge, unless the question comes last."""
    graph = wired({"a": ident, "ask": approve, "pay": ident}, *edges)

    assert found(graph) == expected


def test_reviewers_side_by_side_are_no_problem():
    """Several nodes that ask at the end of a graph don't depend on each other."""
    assert (
        found(wired({"a": ident, "legal": approve, "finance": approve}, "a legal", "a finance"))
        == []
    )


def by_rule(ctx):
    return ctx.interrupt("refund", rule=Approved(need=2), action={"order": ctx.task}).decision


def checks(ctx):
    return ctx.approved("refund", {"order": ctx.task}, rule=Approved(need=2)).decision


def behind_a_gate(ctx):
    return ctx.approved("ask").decision


def test_an_approved_node_has_the_rule_of_the_graph():
    """A later node that names it needs no rule of its own; without the approval nobody has decided by one."""
    findings = [
        found(chained(behind_a_gate, **options)) for options in ({"approval": Approved()}, {})
    ]
    assert [[rule for _, rule, _ in each] for each in findings] == [[], ["rule-of-the-store"]]


def chained(after, **options):
    builder = GraphBuilder()
    builder.add_node(ident, "ask", **options)
    builder.add_node(after, "pay")
    builder.add_edge("ask", "pay")
    return builder


def believes(ctx):
    return ctx.approved("refund", {"order": ctx.task}).decision


@pytest.mark.parametrize(
    ("behind", "options", "expected"),
    [
        (ident, {}, [("hint", "decision-unchecked", "pay")]),
        (believes, {}, [("hint", "rule-of-the-store", "pay")]),
        (checks, {}, []),
        (ident, {"approval": Approved()}, []),
    ],
)
def test_a_node_behind_a_decision_checks_it(behind, options, expected):
    """One that does what was approved must ask for the approval: what was returned can be rewritten."""
    graph = wired({"ask": by_rule})
    graph.add_node(behind, "pay", **options)
    graph.add_edge("ask", "pay")

    assert found(graph) == expected
