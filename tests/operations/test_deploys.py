"""What happens to a waiting run when the graph's code is another one afterwards."""

from __future__ import annotations

from runner import Agent, Status, ToolContext, tool
from runner.definition.registry import Registry
from runner.execution.engine import Engine
from runner.operations.answers import apply_decisions
from runner.records.interrupts import Decision
from runner.testing import ScriptedModel
from tests.graphs import Bench, ident, wired


def ask(name):
    return lambda ctx: ctx.interrupt(name)


def waiting(*edges, **nodes):
    """Start a run that waits for a person."""
    bench = Bench(wired(nodes, *edges).build()).start()
    assert bench.finish().status is Status.INTERRUPTED
    return bench


def deploy(bench, *edges, publish=True, **nodes):
    """Let another version of the graph run on from now on."""
    registry = Registry()
    graph = wired(nodes, *edges).build()
    registry.add("bench", lambda: graph)
    bench.engine = Engine(bench.store, bench, registry)
    if publish:
        bench.engine.publish(["bench"])


def test_a_waiting_node_that_is_unchanged_goes_on():
    """New code and new nodes elsewhere in the graph are no obstacle: the answer is taken and the run ends."""
    bench = waiting("a b", "a c", a=ident, b=ask("approve"), c=ident)

    def new(ctx):
        return ["new", ctx.interrupt("approve")]

    deploy(bench, "a b", "a c", "c d", a=ident, b=new, c=ident, d=ident)
    bench.answer("yes")

    result = bench.finish()
    assert result.status is Status.COMPLETED
    assert result.results["b"].output == ["new", "yes"]
    assert result.execution_order == ["a", "c", "b"]


def test_a_waiting_node_that_changed_is_set_aside_with_its_answer():
    """Where the waiting node has other edges now, the run needs migration, and nothing runs or is lost."""
    bench = waiting("a b", a=ident, b=ask("approve"))
    (question,) = bench.result().interrupts

    deploy(bench, "a b", "b c", a=ident, b=ask("approve"), c=ident)
    bench.answer("yes")

    assert bench.finish().status is Status.NEEDS_MIGRATION
    assert bench.store.interrupts([question.id])[0].response == "yes"


def test_a_waiting_node_that_is_gone_is_set_aside_with_its_answer():
    """A renamed node's answer is kept, and the run does not end as if the node had been skipped."""
    bench = waiting("a b", a=ident, b=ask("approve"))
    (question,) = bench.result().interrupts

    deploy(bench, "a renamed", a=ident, renamed=ask("approve"))
    bench.answer("yes")

    assert bench.finish().status is Status.NEEDS_MIGRATION
    assert bench.result().execution_order == ["a"]
    assert bench.store.interrupts([question.id])[0].response == "yes"


def test_an_answer_goes_to_no_other_question_of_a_new_version():
    """A question that new code asks before the old one does not get the old one's answer."""
    bench = waiting(a=ask("approve"))
    (old,) = bench.result().interrupts

    deploy(bench, a=lambda ctx: [ctx.interrupt("who?"), ctx.interrupt("approve")])
    apply_decisions(bench.engine, [Decision(old.id, "yes")])

    (question,) = bench.finish().interrupts
    assert question.name == "who?"
    bench.answer("ana")
    assert bench.finish().results["a"].output == ["ana", "yes"]


def decide(schema):
    return lambda ctx: ctx.interrupt("approve", response_schema=schema)


OLD, NEW = {"type": "string"}, {"type": "object", "required": ["decision"]}


def test_an_answer_that_new_code_can_not_take_is_asked_for_again():
    """With another schema the old answer is shown as replaced, and the node never sees it."""
    bench = waiting(a=decide(OLD))
    (old,) = bench.result().interrupts

    deploy(bench, a=decide(NEW))
    apply_decisions(bench.engine, [Decision(old.id, "yes")])

    (question,) = bench.finish().interrupts
    events = [
        event.data
        for event in bench.store.events(bench.run_id)
        if event.kind == "interrupt.asked"
    ]
    assert (question.name, question.response_schema, question.replaces) == (
        "approve",
        NEW,
        old.id,
    )
    assert events == [{"name": "approve"}, {"name": "approve", "replaces": old.id}]
    assert apply_decisions(bench.engine, [Decision(question.id, "yes")])[0].status == "rejected"
    bench.answer({"decision": "yes"})
    assert bench.finish().results["a"].output == {"decision": "yes"}


def test_an_answer_that_fits_the_new_schema_too_counts():
    """Nobody is asked twice for an answer that the new code can use."""
    bench = waiting(a=decide(OLD))

    deploy(bench, a=decide({"type": ["string", "object"]}))
    bench.answer("yes")

    assert bench.finish().results["a"].output == "yes"


def test_a_default_that_new_code_can_not_take_is_asked_for_again():
    """What a question would have taken when nobody answered is no answer to another question."""
    bench = waiting(
        a=lambda ctx: ctx.interrupt("approve", expires_in=5, on_expire={"response": "no"})
    )

    deploy(bench, a=decide(NEW))
    bench.later(6)

    (question,) = bench.finish().interrupts
    assert question.response_schema == NEW
    bench.answer({"decision": "no"})
    assert bench.finish().results["a"].output == {"decision": "no"}


def approver(schema):
    """Make an agent whose tool asks."""

    @tool(context=True)
    def approve(tool_context: ToolContext) -> str:
        """Ask a person."""
        return str(tool_context.interrupt("approve", response_schema=schema))

    use = {"toolUse": {"name": "approve", "toolUseId": "t1", "input": {}}}
    return Agent("approver", ScriptedModel([[use], "done"]), [approve])


def test_a_tool_of_an_agent_asks_again_what_it_can_not_take():
    """The question of a tool is checked as that of a function, and the call goes on with the new answer."""
    bench = waiting(a=approver(OLD))

    deploy(bench, a=approver(NEW))
    bench.answer("yes")

    (question,) = bench.finish().interrupts
    assert question.response_schema == NEW
    bench.answer({"decision": "yes"})
    assert bench.finish().status is Status.COMPLETED


def test_a_worker_with_the_older_graph_leaves_a_newer_run_alone():
    """During a deploy a node of a newer run is put back until a worker that has its graph takes it."""
    bench = Bench(wired({"a": ident, "b": ident}, "a b").build()).start()
    newer = bench.engine

    deploy(bench, publish=False, a=ident)
    assert bench.deliver("a") == "left"

    bench.engine = newer
    assert bench.finish().status is Status.COMPLETED


def test_a_run_whose_graph_is_not_here_says_so_once(caplog):
    """A node that no worker can run is seen in the log, once for its graph, and in its run's events."""
    bench = Bench(wired({"a": ident, "b": ident}, "a b").build()).start()

    deploy(bench, publish=False, a=ident)
    assert bench.deliver("a") == "left"  # at once; what comes again would go in circles
    for _ in range(2):
        assert bench.deliver("a") == "retrying"
        bench.later(2)
    bench.engine = Engine(bench.store, bench, Registry())
    bench.deliver("a")

    events = [
        event for event in bench.store.events(bench.run_id) if event.kind == "node.unserved"
    ]
    assert [(event.node, event.data["graph"], event.data["reason"]) for event in events] == [
        ("a", "bench", "another graph has this name here"),
        ("a", "bench", "no graph of this name can be built here"),
    ]
    lines = [line for line in caplog.messages if line.startswith("node.unserved")]
    assert len(lines) == 2
    assert "queue 'bench'" in lines[0]
    assert "graph is 'bench'" in lines[0]
    assert "runner doctor" in lines[0]


def rolled_back(bench, *edges, **nodes):
    """Answer what waits, see the run set aside, then let another version of the graph come."""
    bench.answer("yes")
    assert bench.finish().status is Status.NEEDS_MIGRATION
    deploy(bench, *edges, **nodes)


def test_a_run_that_was_set_aside_goes_on_with_its_old_graph():
    """When the deploy is taken back, the held node goes on by itself: no second answer, nothing repeated."""
    bench = waiting("a b", a=ident, b=ask("approve"))
    deploy(bench, "a renamed", a=ident, renamed=ask("approve"))

    rolled_back(bench, "a b", a=ident, b=ask("approve"))

    result = bench.finish()
    assert result.status is Status.COMPLETED
    assert result.results["b"].output == "yes"
    assert result.execution_order == ["a", "b"]
    assert "node.released" in [event.kind for event in bench.store.events(bench.run_id)]


def test_a_run_that_was_set_aside_goes_on_with_a_later_graph():
    """A third version in which the held node is what it was lets it go on, too."""
    bench = waiting("a b", a=ident, b=ask("approve"))
    deploy(bench, "a b", a=ident, b=ask("approve"), extra=ident)
    deploy(bench, "a renamed", a=ident, renamed=ask("approve"))

    rolled_back(bench, "a b", "a c", a=ident, b=ask("approve"), c=ident)

    assert bench.finish().results["b"].output == "yes"


def test_a_graph_inside_that_was_set_aside_makes_the_whole_run_need_migration():
    """The outermost run says so, and goes on when the graph inside does."""

    def inner(node):
        return wired({node: ask("approve")}).build()

    bench = waiting(a=inner("x"))
    deploy(bench, a=inner("y"))

    rolled_back(bench, a=inner("x"))

    assert bench.finish().results["a"].output == "yes"
