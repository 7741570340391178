"""Runs wait, their graph changes, and they are moved to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from runner import Agent, Graph, GraphBuilder, Status, ToolContext, tool
from runner.approvals import Rule
from runner.client import Client
from runner.definition.registry import Registry
from runner.errors import ConflictError, NotFoundError, UsageError
from runner.execution.engine import Engine
from runner.limits.concurrency import Admission, Concurrency
from runner.operations import recovery
from runner.operations.answers import apply_decisions
from runner.operations.deploys import held
from runner.operations.migration import FamilyPlanner
from runner.operations.migration_plan import MigrationRequest
from runner.records.interrupts import Decision
from runner.records.listings import RunQuery
from runner.store.requests import ForkRun, MigrateRuns
from runner.testing import ScriptedModel
from tests.graphs import Bench, ident, wired


@pytest.fixture
def opened(in_redis):
    """Open a store by its clock."""
    return lambda clock: in_redis(clock, lease=30)


def ask(ctx):
    return [ctx.interrupt("approve"), sorted(ctx.inputs)]


def got(ctx):
    return {name: value for name, value in ctx.inputs.items() if name != "a"}


NODES = {"a": ident, "b": ask, "c": got}


def graph(*edges, nodes=NODES, **options) -> Graph:
    """Build a graph; the first node is where it begins."""
    builder = wired(nodes, *(edges or ("a b", "b c")), **options)
    return builder.set_entry_point(next(iter(nodes))).build()


class Deployed(Bench):
    """A run that waits, and the versions of its graph that come."""

    def __init__(self, opened, before: Graph, after: Graph | None = None) -> None:
        super().__init__(before, opened)
        self.engine.publish(["bench"])
        self.start()
        assert self.finish().status is Status.INTERRUPTED
        self.asked = self.result().interrupts
        if after:
            self.deploy(after)

    def deploy(self, after: Graph, admission: Admission | None = None) -> None:
        """Let another version of the graph run on from now on."""
        self.registry = Registry()
        self.registry.add("bench", lambda: after, admission)
        self.engine = Engine(self.store, self, self.registry)
        self.engine.publish(["bench"])

    def answer_old(self, response="yes"):
        """Answer what was asked before the deploy; name what became of each answer."""
        return self.respond(response, *(question.id for question in self.asked))

    def respond(self, response, *ids):
        answers = [Decision(question_id, response) for question_id in ids]
        return [receipt.status for receipt in apply_decisions(self.engine, answers)]

    def client(self) -> Client:
        return Client(store=self.store, dispatcher=self, registry=self.registry)

    def migrate(self, mapping=None, **said):
        """Move the run."""
        return self.client().run(self.run_id).migrate(mapping, **said)

    def stands(self) -> str:
        """Say where the run and its nodes are."""
        snapshot = self.store.read(self.run_id)
        nodes = ", ".join(
            f"{name} {snapshot.nodes[name].status}" for name in sorted(snapshot.nodes)
        )
        return f"{snapshot.record.status}: {nodes}"


def renamed(node) -> Graph:
    """Build the graph with another name of its waiting node."""
    return graph("a approval", "approval c", nodes={"a": ident, "approval": node, "c": got})


def agent():
    """Make an agent whose tool asks the question that the function asks."""

    @tool(context=True)
    def approve(tool_context: ToolContext) -> str:
        """Ask a person."""
        return str(tool_context.interrupt("approve"))

    use = {"toolUse": {"name": "approve", "toolUseId": "t1", "input": {}}}
    return Agent("approver", ScriptedModel([[use], "done"]), [approve])


def ask_typed(ctx):
    return ctx.interrupt("approve", response_schema={"type": "object"})


INNER = wired({"x": ask}).build()
INNER_RENAMED = wired({"y": ask}).build()
DONE = {"c": {"b": ["yes", ["a"]]}}


@dataclass(frozen=True)
class Case:
    """A change between two versions of a graph, and what becomes of a run that waits at b meanwhile.

    `held` are the nodes that the check before the deploy names. An answer to the old question leaves the
    run `after_answer`; then it is migrated with `options`; `outcomes` are what becomes of its nodes, `asks`
    the questions that replace older ones, `results` some outputs at its end.
    """

    name: str
    after: Graph
    held: tuple[str, ...]
    after_answer: str
    options: dict = field(default_factory=dict)
    outcomes: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    results: dict = field(default_factory=dict)
    before: Graph = field(default_factory=graph)


LOOPED_EDGES = ("a b", "b c", ("c b", lambda state: state.results["c"].visit < 2))
LOOPED = graph(*LOOPED_EDGES)

CASES = [
    Case(
        "a node is added after the waiting one",
        graph("a b", "b c", "b d", nodes={**NODES, "d": got}),
        ("b",),
        "needs_migration",
        outcomes=("b>b continues",),
        results={**DONE, "d": {"b": ["yes", ["a"]]}},
    ),
    Case(
        "a node is added beside the waiting one",
        graph("a b", "b c", "a d", nodes={**NODES, "d": ident}),
        (),
        "completed",
        results=DONE,
    ),
    Case(
        "a node is added before the waiting one",
        graph("a d", "d b", "b c", nodes={**NODES, "d": ident}),
        ("b",),
        "needs_migration",
        outcomes=("b>b comes later", ">d starts"),
        asks=("approve",),
        results={"c": {"b": ["again", ["d"]]}},
    ),
    Case(
        "the node after the waiting one is removed",
        graph("a b", nodes={"a": ident, "b": ask}),
        ("b", "c"),
        "needs_migration",
        outcomes=("b>b continues",),
        results={"b": ["yes", ["a"]]},
    ),
    Case(
        "the waiting node is removed",
        graph("a c", nodes={"a": ident, "c": got}),
        ("b", "c"),
        "needs_migration",
        {"drop": ["b"]},
        (">c starts", "b> dropped"),
        results={"c": {}},
    ),
    Case(
        "the waiting node is renamed",
        renamed(ask),
        ("b", "c"),
        "needs_migration",
        {"mapping": {"b": "approval"}},
        ("b>approval continues",),
        results={"c": {"approval": ["yes", ["a"]]}},
    ),
    Case(
        "an edge before the waiting node is another",
        graph("a b", "b c", ("a c", lambda state: state.execution_order != ["a"])),
        ("c",),
        "needs_migration",
        outcomes=("c>c continues",),
        results=DONE,
    ),
    Case(
        "an edge after the waiting node has a condition",
        graph("a b", ("b c", lambda state: state.results["b"].output[0] == "yes")),
        ("b", "c"),
        "needs_migration",
        outcomes=("b>b continues",),
        results=DONE,
    ),
    Case(
        "the waiting node is an agent now",
        graph(nodes={**NODES, "b": agent()}),
        ("b",),
        "needs_migration",
        outcomes=("b>b starts again",),
        asks=("approve",),
        results={"c": {"b": "done"}},
    ),
    Case(
        "the waiting node has another version",
        graph(b={"version": "2"}),
        ("b",),
        "needs_migration",
        outcomes=("b>b starts again",),
        asks=("approve",),
        results={"c": {"b": ["again", ["a"]]}},
    ),
    Case(
        "the waiting node has another version that can use what it kept",
        graph(b={"version": "2"}),
        ("b",),
        "needs_migration",
        {"mapping": {"b": "b"}},
        ("b>b continues",),
        results=DONE,
    ),
    Case(
        "the answer has another schema",
        graph(nodes={**NODES, "b": ask_typed}, b={"version": "2"}),
        ("b",),
        "needs_migration",
        {"mapping": {"b": "b"}},
        ("b>b continues",),
        asks=("approve",),
        results={"b": {"said": "again"}},
    ),
    Case(
        "the waiting node is in a graph inside now",
        graph("a inner", "inner c", nodes={"a": ident, "inner": INNER, "c": got}),
        ("b", "c"),
        "needs_migration",
        {"drop": ["b"]},
        (">inner starts", "b> dropped"),
        asks=("approve",),
        results={"c": {"inner": ["again", []]}},
    ),
    Case(
        "a loop is added around the waiting node",
        LOOPED,
        ("b", "c"),
        "needs_migration",
        outcomes=("b>b continues",),
        asks=("approve",),
        results={"c": {"b": ["again", ["a", "c"]]}},
    ),
]


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_waits_while_its_graph_changes(opened, case):
    """What the check said is what is held; the move does what it says, and the run ends right."""
    run = Deployed(opened, case.before)
    registry = Registry()
    registry.add("bench", lambda: case.after)
    assert (
        tuple(sorted(change.node for change in held(run.store, registry, ["bench"])))
        == case.held
    )

    run.deploy(case.after)
    run.answer_old()
    assert run.finish().status == case.after_answer
    if case.after_answer == "needs_migration":
        dry = run.migrate(**case.options, dry_run=True)
        assert run.stands().startswith("needs_migration")
        done = run.migrate(**case.options)
        assert dry == done
        assert (
            tuple(f"{node.node}>{node.today} {node.becomes}" for node in done.nodes)
            == case.outcomes
        )
        asks = [interrupt.name for interrupt in run.finish().interrupts]
        assert tuple(asks) == case.asks
        if asks:
            run.answer({"said": "again"} if "schema" in case.name else "again")
    result = run.finish()
    assert result.status is Status.COMPLETED
    outputs = {name: result.results[name].output for name in case.results}
    assert outputs == case.results
    assert result.execution_order.count("a") == 1


RENAMED = renamed(ask)


def test_an_open_question_of_a_renamed_node_is_asked_under_its_new_name(opened):
    """The old one is withdrawn, and whoever answers it learns so; the run goes on with the new one."""
    run = Deployed(opened, graph())
    (old,) = run.asked
    run.deploy(RENAMED)

    (outcome,) = run.migrate({"b": "approval"}).nodes

    (new,) = run.result().interrupts
    kinds = [(event.kind, event.detail) for event in run.store.events(run.run_id)]
    assert (outcome.becomes, outcome.unused) == ("is asked under its new name", ())
    assert (new.node_id, new.name, new.id != old.id) == ("approval", "approve", True)
    assert kinds[-3][0] == "run.migrated"
    assert kinds[-2:] == [("interrupt.withdrawn", old.id), ("interrupt.asked", new.id)]
    assert run.answer_old() == ["superseded"]
    run.answer("yes")
    assert run.finish().results["c"].output == {"approval": ["yes", ["a"]]}


def test_an_answer_moves_with_its_node_and_counts_once(opened):
    """A second answer, under the old id or the new one, is told that there is one."""
    run = Deployed(opened, graph(), RENAMED)
    run.answer_old()
    run.finish()

    run.migrate({"b": "approval"})

    (moved,) = [
        event for event in run.store.events(run.run_id) if event.kind == "interrupt.moved"
    ]
    assert moved.data == {"from": run.asked[0].id}
    assert run.respond("no", moved.detail) + run.answer_old("no") == ["duplicate"] * 2
    result = run.finish()
    assert result.results["approval"].output == ["yes", ["a"]]
    assert result.execution_order == ["a", "approval", "c"]


def test_what_does_not_apply_is_named(opened):
    """An answer that nobody will see is listed with its node and the reason, and in the run's event."""
    run = Deployed(opened, graph(), graph(b={"version": "2"}))
    run.answer_old()
    run.finish()

    done = run.migrate()

    (outcome,) = done.nodes
    (event_data,) = [
        event.data for event in run.store.events(run.run_id) if event.kind == "run.migrated"
    ]
    assert done.unused == [run.asked[0].id] == event_data["unused"]
    assert (outcome.node, outcome.reason) == ("b", 'its version was "" and is "2" now')
    (question,) = run.finish().interrupts
    assert (question.node_id, question.visit, question.response) == ("b", 2, None)


REFUSED = [
    (RENAMED, {}, ConflictError, "b waits, and there is no such node now"),
    (RENAMED, {"mapping": {"b": "nowhere"}}, NotFoundError, "has no node 'nowhere' now"),
    (RENAMED, {"mapping": {"x": "approval"}}, NotFoundError, "had no node 'x'"),
    (RENAMED, {"mapping": {"b": "a"}}, UsageError, "a has run already"),
    (RENAMED, {"mapping": {"b/x": "c"}}, ConflictError, "b waits"),
    (
        RENAMED,
        {"mapping": {"b": "approval"}, "drop": ["b"]},
        UsageError,
        "b can't be both renamed and dropped",
    ),
    (
        RENAMED,
        {"mapping": {"b": "approval"}, "drop": ["x/y"]},
        NotFoundError,
        "'x/y' did not exist",
    ),
    (
        graph("d a", "a b", "b c", nodes={"d": ident, **NODES}),
        {},
        ConflictError,
        "a ran already, and other nodes",
    ),
    (graph(), {}, ConflictError, "none of its nodes is held"),
    (
        graph("a b", "b c", ("a c", lambda state: state.results["nowhere"])),
        {},
        ConflictError,
        "the condition of the new edge from 'a' to 'c' raised",
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("after", "options", "error", "said"), REFUSED, ids=[said for *_, said in REFUSED]
)
def test_what_can_not_be_moved_is_refused_and_nothing_changes(
    opened, after, options, error, said
):
    """The message says what is in the way and what to do; the run is as it was, to the last event."""
    run = Deployed(opened, graph(), after)
    before = run.store.read(run.run_id)

    with pytest.raises(error, match=said):
        run.migrate(**options)

    assert run.store.read(run.run_id) == before


def test_only_a_run_that_waits_is_moved(opened):
    """One that executes, or has ended, is refused; so is a program whose graph the workers don't have."""
    run = Deployed(opened, graph(), graph())
    run.answer_old()
    with pytest.raises(ConflictError, match="is executing: only a waiting run"):
        run.migrate()
    run.finish()
    with pytest.raises(ConflictError, match="is completed"):
        run.migrate()

    run = Deployed(opened, graph())
    run.registry = Registry()
    run.registry.add("bench", lambda: RENAMED)
    with pytest.raises(ConflictError, match="not the one that the workers have"):
        run.migrate({"b": "approval"})


def test_a_client_without_the_code_moves_runs_too(opened):
    """What the store knows of today's graph is enough, unless an edge that is new must be judged."""
    run = Deployed(opened, graph(), RENAMED)
    run.registry = Registry()
    run.migrate({"b": "approval"})
    run.answer("yes")
    assert run.finish().status is Status.COMPLETED

    run = Deployed(opened, graph(), graph("a b", "b c", "a c"))
    run.registry = Registry()
    with pytest.raises(ConflictError, match="without the graph's code"):
        run.migrate()


@pytest.mark.full
def test_a_renamed_agent_goes_on_in_its_conversation(opened):
    """The answer reaches the tool that asked, and no model call is made twice."""
    run = Deployed(opened, graph(nodes={**NODES, "b": agent()}), renamed(agent()))
    run.answer_old()
    run.finish()

    run.migrate({"b": "approval"})

    result = run.finish()
    assert result.results["c"].output == {"approval": "done"}
    messages = run.store.read(run.run_id, messages=True).messages
    assert list(messages) == ["approval"]
    assert len(messages["approval"]) == 4


def gated():
    """Make an agent whose tool is called once it is approved."""

    @tool(approval=Rule())
    def approve() -> str:
        """Do what was approved."""
        return "done"

    use = {"toolUse": {"name": "approve", "toolUseId": "t1", "input": {}}}
    return Agent("approver", ScriptedModel([[use], "done"]), [approve])


def asks_by_rule(ctx):
    return ctx.interrupt("approve", rule=Rule()).response


@pytest.mark.full
@pytest.mark.parametrize("node", [asks_by_rule, gated], ids=["function", "agent"])
def test_what_was_decided_for_a_node_of_another_name_is_asked_again(opened, node):
    """Votes are for the very node that asked: they are not taken along, and nothing is held for ever."""
    made = node() if node is gated else node
    decision = ("approve", None) if node is gated else ("respond", "yes")
    run = Deployed(opened, graph(nodes={**NODES, "b": made}))

    def vote(question_id: str) -> str:
        word, response = decision
        return run.client().vote(question_id, word, by="ana", response=response).status

    run.deploy(renamed(made))
    assert vote(run.asked[0].id) == "accepted"
    assert run.finish().status is Status.NEEDS_MIGRATION

    (outcome,) = run.migrate({"b": "approval"}).nodes

    assert outcome.becomes == "is asked under its new name"
    (again,) = run.finish().interrupts
    assert (again.node_id, again.name, again.is_open) == ("approval", "approve", True)
    assert vote(run.asked[0].id) == "duplicate"
    assert vote(again.id) == "accepted"
    result = run.finish()
    assert result.status is Status.COMPLETED
    assert result.results["c"].output == {"approval": "done" if node is gated else "yes"}


def items(**options) -> Graph:
    """Build a map over three items each of which asks."""
    name = options.pop("name", "b")
    builder = GraphBuilder()
    builder.add_node(lambda ctx: [1, 2, 3], "a")
    builder.add_map(
        lambda ctx: [ctx.task, ctx.interrupt(f"item {ctx.task}")], name, over="a", **options
    )
    builder.add_node(got, "c")
    builder.add_edge("a", name)
    builder.add_edge(name, "c")
    return builder.build()


@pytest.mark.full
@pytest.mark.parametrize(
    ("after", "options"),
    [(items(name="m"), {"mapping": {"b": "m"}}), (items(version="2"), {"mapping": {"b": "b"}})],
)
def test_a_map_goes_on_with_its_items(opened, after, options):
    """Items that are done stay done, those that wait wait on, under their map's new name."""
    run = Deployed(opened, items())
    first = next(question for question in run.asked if question.name == "item 1")
    run.respond("one", first.id)
    run.finish()
    run.deploy(after)

    run.migrate(**options)

    questions = run.finish().interrupts
    assert sorted(open_question.name for open_question in questions) == ["item 2", "item 3"]
    run.answer("more")
    (output,) = run.finish().results["c"].output.values()
    assert output == [[1, "one"], [2, "more"], [3, "more"]]


def test_a_node_that_was_skipped_takes_nothing_from_one_with_its_new_name(opened):
    """The map goes on with its items, though the request gives its id to the skipped node, too."""
    builder = GraphBuilder()
    builder.add_node(lambda ctx: [1, 2], "a")
    builder.add_map(lambda ctx: ctx.interrupt(f"item {ctx.task}"), "b", over="a")
    builder.add_node(ident, "other")
    builder.add_edge("a", "b")
    builder.add_edge("a", "other", condition=lambda state: False)
    run = Deployed(opened, builder.build(), items())

    run.migrate({"other": "b"})

    run.answer("yes")
    (output,) = run.finish().results["c"].output.values()
    assert output == [[1, "yes"], [2, "yes"]]


@pytest.mark.full
def test_an_answer_to_a_visit_that_is_undone_approves_nothing_else(opened):
    """The new shape's loop comes to the node again, as a visit of another number: all is asked anew."""

    def ask_twice(ctx):
        return [ctx.interrupt("approve"), ctx.interrupt("pay")]

    nodes = {"a": ident, "b": ask_twice, "c": got, "d": ident}
    run = Deployed(opened, graph(*LOOPED_EDGES, nodes={**NODES, "b": ask_twice}))
    run.answer("first")
    run.finish()
    run.answer("first")
    (old,) = run.finish().interrupts
    run.answer("of the old round")
    assert [question.name for question in run.finish().interrupts] == ["pay"]
    back = ("d a", lambda state: state.results["d"].visit < 2)
    run.deploy(graph("a b", "b c", "c d", back, nodes=nodes))

    moved = run.migrate()

    assert [outcome.unused for outcome in moved.nodes if outcome.unused] == [(old.id,)]
    (anew,) = run.finish().interrupts
    assert (anew.name, anew.visit, anew.id != old.id) == ("approve", 3, True)
    assert run.respond("no", old.id) == ["duplicate"]
    run.answer("new")
    run.finish()
    run.answer("new")
    assert run.finish().results["b"].output == ["new", "new"]


def test_a_map_with_another_window_goes_on_without_being_moved(opened):
    """How many items are at work at once is no part of what an item needs."""
    run = Deployed(opened, items(concurrency=1), items(concurrency=3))
    run.answer("x")
    assert [interrupt.name for interrupt in run.finish().interrupts] in ([], ["item 2"])
    while run.result().interrupts:
        run.answer("x")
        run.finish()
    assert run.result().status is Status.COMPLETED


def nested(inner: Graph, name: str = "b", **options) -> Graph:
    """Build a graph with one inside."""
    return graph(
        f"a {name}", f"{name} c", nodes={"a": ident, name: inner, "c": got}, **{name: options}
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("after", "options", "node"),
    [
        (nested(INNER_RENAMED), {"b/x": "b/y"}, "b"),
        (nested(INNER, "i"), {"b": "i"}, "i"),
        (nested(INNER_RENAMED, "i"), {"b": "i", "b/x": "i/y"}, "i"),
    ],
    ids=["inside", "around", "both"],
)
@pytest.mark.parametrize("first", [True, False], ids=["answered before", "answered after"])
def test_a_graph_inside_is_moved_with_its_run(opened, after, options, node, first):
    """Whether its own nodes were renamed or the node that it is, it goes on, and its answer counts once."""
    run = Deployed(opened, nested(INNER), after)
    if first:
        run.answer_old()
        run.finish()

    run.migrate(options)

    result = run.finish()
    if not first:
        assert [interrupt.name for interrupt in result.interrupts] == ["approve"]
        run.answer("yes")
        result = run.finish()
    assert result.results["c"].output == {node: ["yes", []]}
    (child,) = run.store.children(run.run_id)
    record = run.store.read(child).record
    assert (record.graph_id, record.parent_node, record.path) == (
        f"bench/{node}",
        node,
        f"{node}/",
    )
    assert [
        listed_run.run_id for listed_run in run.store.runs(RunQuery(graph=f"bench/{node}"))
    ] == [child]


def test_a_graph_inside_that_is_needed_no_more_is_stopped(opened):
    """Its run is cancelled and its questions are withdrawn."""
    run = Deployed(opened, nested(INNER))
    (child,) = run.store.children(run.run_id)
    run.deploy(graph())

    (outcome,) = run.migrate().nodes

    assert (outcome.becomes, outcome.reason) == (
        "starts again",
        "it was a graph and is a function now",
    )
    assert run.store.peek(child).status is Status.CANCELLED
    assert run.answer_old() == ["superseded"]
    run.finish()
    run.answer("yes")
    assert run.finish().results["b"].output == ["yes", ["a"]]


def test_a_failed_run_can_be_retried_after_it_was_moved(opened):
    """What the history says after a move is in today's words, so a retry works with today's graph."""

    def broken(ctx):
        if ctx.attempt == 1:
            raise ValueError("once")
        return "mended"

    run = Deployed(
        opened,
        graph(),
        graph("a approval", "approval c", nodes={"a": ident, "approval": ask, "c": broken}),
    )
    run.answer_old()
    run.finish()
    run.migrate({"b": "approval"})
    assert run.finish().status is Status.FAILED

    assert recovery.retry(run.engine, run.run_id) == ["c"]

    result = run.finish()
    assert result.execution_order == ["a", "approval", "c"]
    assert result.results["c"].output == "mended"


def test_a_repeated_move_gets_the_first_word(opened):
    """A request whose reply was lost can be sent again; one that comes too late changes nothing."""
    run = Deployed(opened, graph(), RENAMED)
    moves, _ = FamilyPlanner(run.store, run.registry).plan(
        run.run_id, MigrationRequest({"b": "approval"})
    )

    words = [run.store.do(MigrateRuns(moves, nonce)).word for nonce in ("n", "n", "other")]

    assert words == ["migrated", "migrated", "moved"]
    assert len(run.result().interrupts) == 1
    assert (
        run.store.do(MigrateRuns([replace(moves[0], run_id="00none")], "x")).word == "unknown"
    )
    assert (
        run.store.do(MigrateRuns([replace(moves[0], fingerprint="none")], "y")).word
        == "unknown_graph"
    )


EXCHANGE = {"b": "c", "c": "b"}


def test_a_question_never_takes_the_id_of_another_one(opened):
    """Two nodes that wait can't exchange their names: whoever answers by id would answer the wrong one."""
    both = graph("a b", "a c", nodes={"a": ident, "b": ask, "c": ask})
    run = Deployed(
        opened,
        both,
        graph("a b", "a c", "b d", nodes={"a": ident, "b": ask, "c": ask, "d": got}),
    )
    before = run.store.read(run.run_id)

    with pytest.raises(
        ConflictError, match=r"answers to it would reach the wrong question.*--drop b"
    ):
        run.migrate(EXCHANGE)

    assert run.store.read(run.run_id) == before


def test_a_new_node_does_not_meet_the_questions_of_an_older_one_of_its_name(opened):
    """The old node has another name now; the new one begins after its visits, and asks its own question."""
    run = Deployed(opened, graph(), RENAMED)
    run.migrate({"b": "approval"})
    nodes = {"a": ident, "approval": ask, "c": got, "b": ask}
    run.deploy(graph("a approval", "approval c", "a b", nodes=nodes))
    run.migrate()

    question = next(
        interrupt for interrupt in run.finish().interrupts if interrupt.node_id == "b"
    )
    assert (question.visit, question.id != run.asked[0].id) == (2, True)
    assert run.answer_old("no") == ["superseded"]
    run.answer("mine")
    assert run.finish().results["b"].output == ["mine", ["a"]]


def test_a_node_can_have_its_old_name_back(opened):
    """A deploy is taken back while the run waits: the question has its first id, and its answer counts."""
    run = Deployed(opened, graph())
    (old,) = run.asked
    for version, mapping in ((RENAMED, {"b": "approval"}), (graph(), {"approval": "b"})) * 2:
        run.deploy(version)
        run.migrate(mapping)

    (again,) = run.result().interrupts
    assert (again.id, again.digest) == (old.id, old.digest)
    assert run.answer_old() == ["accepted"]
    assert run.finish().results["c"].output == {"b": ["yes", ["a"]]}


def test_nobody_has_approved_what_a_new_edge_leads_to(opened):
    """A node whose question expired took the way for that case: no edge that is new counts as taken."""

    def ask_in_time(ctx):
        return ctx.interrupt("approve", expires_in=60, on_expire={"route": "late"})

    def build(**more):
        builder = wired(
            {"a": ask_in_time, "late": ask, **more}, *(f"a {name}" for name in more)
        )
        builder.add_edge("a", "late", on_expire=True)
        return builder.set_entry_point("a").build()

    run = Deployed(opened, build(b=got))
    run.later(60)
    run.finish()
    run.deploy(build(b=got, pay=ident))

    run.migrate()

    run.answer()
    result = run.finish()
    assert result.status is Status.COMPLETED
    assert result.execution_order == ["a", "late"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after", "ends"), [(100, None, 0), (100, 1000, 1000), (None, 100, 100)]
)
def test_a_moved_run_has_the_time_of_its_new_graph(opened, before, after, ends):
    """It is counted from the move on; the time of the older graph is over and done with."""

    def build(seconds, version):
        builder = wired(NODES, "a b", "b c").set_entry_point("a").set_version(version)
        return (builder.set_execution_timeout(seconds) if seconds else builder).build()

    run = Deployed(opened, build(before, "1"), build(after, "2"))
    run.later(50)

    run.migrate()

    run.later((ends or 5000) - 1)
    assert run.store.peek(run.run_id).status is Status.INTERRUPTED
    run.later(1)
    found = run.store.peek(run.run_id)
    assert found.status is (Status.FAILED if ends else Status.INTERRUPTED)
    assert found.reason == (f"execution timeout of {ends} s reached" if ends else "")


def test_a_renamed_node_keeps_its_idempotency_key(opened):
    """Its visit began before it had its name: what services know by the key is not done twice.

    A service is called at every start: before the question, after it, and after a failure; beside it, and
    under each of the names, a node of another visit has keys of its own.
    """
    keys = []

    def call(ctx):
        keys.append((ctx.node_id, ctx.idempotency_key))
        ctx.once("step", lambda: 1) if len(keys) > 1 else None
        answer = ctx.interrupt("approve")
        if len(keys) < 5:
            raise ValueError(answer)
        return answer

    def build(name):
        return graph(f"a {name}", f"{name} c", nodes={"a": ident, name: call, "c": ident})

    run = Deployed(opened, build("b"))
    for old, new in (("b", "d"), ("d", "e")):
        run.deploy(build(new))
        run.migrate({old: new})
    run.answer()
    run.finish()
    client = run.client()
    for _ in range(3):
        client.run(run.run_id).retry()
        run.finish()

    assert run.result().status is Status.COMPLETED
    assert keys == [("b", f"{run.run_id}.b.1"), *[("e", f"{run.run_id}.b.1")] * 4]


@pytest.mark.full
@pytest.mark.parametrize("renames", [["d"], ["d", "e"]])
def test_an_approval_of_a_renamed_node_is_used_by_the_next_one(opened, renames):
    """The asking visit keeps its key, under which it used the decision; each name asks once again."""

    def ask_by_rule(ctx):
        return ctx.interrupt("pay", rule=Rule(), action={"amount": 1}).approved

    def pay(ctx):
        return ctx.approved("pay", {"amount": 1}, rule=Rule()).decision

    def build(name):
        return graph(f"a {name}", f"{name} c", nodes={"a": ident, name: ask_by_rule, "c": pay})

    run = Deployed(opened, build("b"))
    old = "b"
    for name in renames:
        run.deploy(build(name))
        run.migrate({old: name})
        old = name
        run.finish()
    (question,) = run.result().interrupts
    client = run.client()
    assert client.vote(question.id, "approve", by="ana").status == "accepted"
    assert run.finish().results["c"].output == "approve", run.result()


@pytest.mark.full
def test_a_later_visit_of_a_renamed_node_has_a_key_of_its_own(opened):
    """Only the visit that began under the older name keeps that in its key."""
    keys = []

    def call(ctx):
        answer = ctx.interrupt("approve")
        keys.append(ctx.idempotency_key.removeprefix(f"{ctx.run_id}."))
        return ctx.once("told", lambda: answer)

    def build(name):
        def again(state):
            return state.results[name].output == "again"

        edges = [f"a {name}", (f"{name} a", again), f"{name} c"]
        return graph(*edges, nodes={"a": ident, name: call, "c": ident})

    run = Deployed(opened, build("b"), build("d"))
    run.migrate({"b": "d"})
    for response in ("again", "again", "done"):
        run.answer(response)
        run.finish()

    assert run.result().status is Status.COMPLETED
    assert keys == ["b.1", "d.2", "d.3"]


@pytest.mark.parametrize("migrated", [False, True])
def test_a_fork_takes_nothing_that_a_migration_moves_meanwhile(opened, migrated):
    """A run moves after its fork was planned: there is no fork. Without the move there is one."""
    run = Deployed(opened, graph())
    planned = recovery.plan_fork(
        run.store, run.run_id, "b", None, recovery.ForkOptions("00new")
    )
    if migrated:
        run.deploy(RENAMED)
        run.migrate({"b": "approval"})

    assert run.store.do(ForkRun(planned)).word == ("moved" if migrated else "forked")
    assert (run.store.peek("00new") is None) == migrated


def test_a_moved_run_takes_a_place_in_the_key_of_its_new_graph(opened):
    """The run that waited for it under the old key begins; the next start of the new key waits."""
    site = Deployed(opened, graph())

    def start(**tags):
        return site.engine.start("bench", None, tags=tags)

    site.deploy(graph(), Admission(concurrency=Concurrency(1, "tag:account")))
    first, second = start(account="7"), start(account="7")
    site.run_id = first
    assert site.finish().status is Status.INTERRUPTED
    assert site.store.peek(second).is_queued

    after = graph("a new", "new c", nodes={"a": ident, "new": ask, "c": got})
    site.deploy(after, Admission(concurrency=Concurrency(1)))
    site.migrate({"b": "new"})
    assert not site.store.peek(second).is_queued
    assert site.store.peek(start()).is_queued


@pytest.mark.full
def test_a_map_can_have_its_old_name_back(opened):
    """Also where some of its items have asked and completed under that name."""
    run = Deployed(opened, items())
    first = next(question for question in run.asked if question.name == "item 1")
    run.respond("one", first.id)
    run.finish()

    for old, new in (("b", "m"), ("m", "b")):
        run.deploy(items(name=new))
        run.migrate({old: new})
        run.finish()

    assert run.respond("late", first.id) == ["duplicate"]
    run.answer("more")
    (output,) = run.finish().results["c"].output.values()
    assert output == [[1, "one"], [2, "more"], [3, "more"]]


@pytest.mark.full
def test_items_of_a_round_that_does_not_come_any_more_are_dropped(opened):
    """Their map has ended in the round before; who was asked learns that no answer is needed."""

    def build(*back):
        builder = GraphBuilder()
        builder.add_node(lambda ctx: [1, 2], "a")
        builder.add_map(lambda ctx: ctx.interrupt(f"item {ctx.task}"), "b", over="a")
        builder.add_node(ident, "c")
        for source, target, *condition in (("a", "b"), ("b", "c"), *back):
            builder.add_edge(source, target, *condition)
        return builder.set_entry_point("a").build()

    run = Deployed(opened, build(("c", "b", lambda state: state.results["c"].visit < 2)))
    run.answer("first round")
    asked = run.finish().interrupts
    done = next(question for question in asked if question.name == "item 1")
    run.respond("second round", done.id)
    run.finish()
    run.deploy(build())

    run.migrate()

    result, snapshot = run.finish(), run.store.read(run.run_id)
    assert (result.status, result.execution_order) == (Status.COMPLETED, ["a", "b", "c"])
    assert result.results["b"].output == ["first round", "first round"]
    assert not snapshot.maps
    assert not any(question.is_open for question in snapshot.interrupts)


@pytest.mark.full
def test_a_visit_of_a_map_that_is_undone_leaves_no_items(opened):
    """The new shape's loop comes to the map again: it has another list, and asks for each item anew."""

    def build(nodes, *more):
        builder = GraphBuilder()
        builder.add_map(lambda ctx: [ctx.task, ctx.interrupt("approve")], "b", over="a")
        for name, function in nodes.items():
            builder.add_node(function, name)
        for source, target, *condition in (("a", "b"), ("b", "c"), *more):
            builder.add_edge(source, target, *condition)
        return builder.set_entry_point("a").build()

    nodes = {"a": lambda ctx: [3] if ctx.inputs else [1, 2], "c": ident}
    run = Deployed(opened, build(nodes, ("c", "b", lambda state: state.results["c"].visit < 2)))
    run.answer("first")
    done, _ = run.finish().interrupts
    run.respond("of the old round", done.id)
    run.finish()
    back = ("d", "a", lambda state: state.results["d"].visit < 2)
    run.deploy(build({**nodes, "d": ident}, ("c", "d"), back))

    run.migrate()

    (anew,) = run.finish().interrupts
    assert (anew.visit, anew.id != done.id) == (3, True)
    run.answer("new")
    assert run.finish().results["b"].output == [[3, "new"]]


@pytest.mark.full
def test_a_graph_inside_whose_node_is_gone_is_stopped(opened):
    """Its end is told to a run that has no such node any more: that changes nothing."""
    run = Deployed(opened, nested(INNER))
    (child,) = run.store.children(run.run_id)
    run.deploy(graph("a c", nodes={"a": ident, "c": got}))

    run.migrate(drop=["b"])

    assert run.store.peek(child).status is Status.CANCELLED
    assert run.answer_old() == ["superseded"]
    assert run.finish().execution_order == ["a", "c"]


@pytest.mark.full
def test_a_loop_keeps_its_rounds(opened):
    """A run in the second round of a loop is moved within it, and its visits keep their numbers."""

    def again(state):
        return state.results["b"].visit < 3

    def build(name):
        nodes = {"a": ident, name: ask, "c": got}
        return graph(
            f"a {name}",
            f"{name} c",
            (f"c {name}", again if name == "b" else lambda s: False),
            nodes=nodes,
        )

    run = Deployed(opened, build("b"))
    run.answer("first")
    (second,) = run.finish().interrupts
    run.asked = [second]
    run.deploy(build("d"))
    run.answer_old("second")
    run.finish()

    run.migrate({"b": "d"})

    result = run.finish()
    assert result.status is Status.COMPLETED
    assert result.execution_order == ["a", "d", "c", "d", "c"]
    assert run.store.read(run.run_id).outputs["d", 2] == ["second", ["a", "c"]]


@pytest.mark.full
def test_two_nodes_may_exchange_their_names(opened):
    """Each keeps what it has: its output, its place in the order, and what it waits for."""
    nodes = {"a": ident, "b": ident, "c": ident, "w": ask}
    run = Deployed(
        opened, graph("a b", "b c", "a w", nodes=nodes), graph("a c", "c b", "a w", nodes=nodes)
    )
    run.migrate(EXCHANGE)
    swapped = run.result().results
    assert (swapped["b"].output, swapped["c"].output) == ("c", "b")

    run.deploy(graph("a w", "w b", "a c", nodes={"a": ident, "w": ident, "b": ident, "c": ask}))
    run.migrate({"w": "c", "c": "w"})

    run.answer("yes")
    result = run.finish()
    assert (result.results["w"].output, result.results["c"].output) == ("b", ["yes", ["a"]])
    assert result.execution_order == ["a", "w", "b", "c"]


@pytest.mark.full
def test_nor_that_of_one_whose_node_is_gone(opened):
    """A node was dropped while it waited: its name is free for a new node, and not for one that waits."""
    before = graph("a b", "a c", nodes={"a": ident, "b": ask, "c": ask})
    run = Deployed(opened, before, graph("a c", nodes={"a": ident, "c": ask}))
    run.migrate(drop=["b"])
    run.deploy(graph("a b", nodes={"a": ident, "b": ask}))

    with pytest.raises(ConflictError, match="another node of that name has asked"):
        run.migrate({"c": "b"})

    (anew,) = run.migrate(drop=["c"]) and run.finish().interrupts
    assert (anew.node_id, anew.visit) == ("b", 2)
    assert set(run.answer_old()) == {"superseded"}


@pytest.mark.full
def test_an_answer_has_its_old_name_back_too(opened):
    """It was given before both moves, and is not asked for again."""
    run = Deployed(opened, graph(), RENAMED)
    run.answer_old()
    run.finish()
    run.migrate({"b": "approval"})
    run.deploy(graph())
    assert run.finish().status is Status.NEEDS_MIGRATION
    run.migrate({"approval": "b"})

    assert run.finish().results["c"].output == {"b": ["yes", ["a"]]}
    assert run.answer_old("no") == ["duplicate"]


@pytest.mark.full
@pytest.mark.parametrize(("before", "after"), [("10", 2), ("01", 2), ("10", 1), ("1", 2)])
def test_several_edges_may_lead_from_one_node_to_another(opened, before, after):
    """A node that one of them has led to waits on, however many there are in the new graph."""

    def build(taken, version):
        edges = [("a b", lambda state, taken=each: taken) for each in taken]
        return wired(NODES, *edges, "b c").set_entry_point("a").set_version(version).build()

    run = Deployed(
        opened, build([bit == "1" for bit in before], "1"), build([False] * after, "2")
    )

    run.migrate()

    run.answer_old("yes")
    assert run.finish().execution_order == ["a", "b", "c"]
