from __future__ import annotations

import json

import pytest

from runner import GraphBuilder, Status
from runner.definition.registry import Registry
from runner.errors import UsageError
from runner.execution.engine import Engine
from runner.operations.answers import apply_decisions
from runner.records.interrupts import answers_from
from runner.testing import answer, replay
from tests.testing.graphs import ask, graph_of, pay


def wait(ctx):
    return ctx.interrupt("well?")


def end(ctx):
    return "end"


def plain():
    builder = GraphBuilder()
    builder.add_node(wait)
    builder.add_node(end)
    builder.add_edge("wait", "end")
    return builder


def another_version():
    builder = GraphBuilder()
    builder.add_node(wait, version="2")
    builder.add_node(end)
    builder.add_edge("wait", "end")
    return builder


def another_edge():
    builder = plain()
    builder.add_node(lambda ctx: 1, "more")
    builder.add_edge("wait", "more")
    return builder


def another_end():
    builder = plain()
    builder.add_node(lambda ctx: 1, "more")
    builder.add_edge("end", "more")
    return builder


def another_branch():
    builder = plain()
    builder.add_node(lambda ctx: 1, "beside")
    return builder.set_entry_point("wait").set_entry_point("beside")


class Bells(list):
    """A dispatcher that keeps what it is given."""

    def ring(self, doorbells):
        self.extend(doorbells)


def deployed(run, graph):
    """Let a worker with another graph go on with a run that waits, after an answer; return its status."""
    known, bells = Registry(), Bells()
    known.add(graph.id, lambda: graph)
    engine = Engine(run.store, bells, known)
    engine.publish([graph.id])
    apply_decisions(engine, answers_from(answer(run.result, "yes")))
    while bells:
        bell = bells.pop(0)
        engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
    return run.status


@pytest.mark.parametrize(
    "change", [plain, another_version, another_edge, another_end, another_branch]
)
def test_a_replay_says_what_a_worker_will_do(run_graph, change):
    """The run goes on to its end with the new graph exactly if `replay` says so."""
    run = run_graph(plain().build())
    comparison = replay(run.export(), change().build())
    status = deployed(run, change().build())

    assert comparison.goes_on == (status is Status.COMPLETED), (str(comparison), status)
    assert comparison.goes_on or status is Status.NEEDS_MIGRATION


def mapped(**options):
    builder = GraphBuilder()
    builder.add_map(lambda ctx: ctx.interrupt("well?") if ctx.task else 0, "each", **options)
    return builder.build()


def test_an_item_that_waits_is_named(run_graph):
    """Of a map that changed, the item with the question is named beside the map."""
    export = run_graph(mapped(), [0, 1]).export()

    assert replay(export, mapped()).goes_on
    comparison = replay(export, mapped(version="2"))
    assert "each[1]" in comparison.nodes
    assert comparison.questions == ["well?"]


def test_a_run_that_has_ended_needs_nothing(run_graph):
    """Nothing of a run that is over can be held."""
    run = run_graph(plain().build())
    run.answer("yes")

    assert replay(run.export(), another_version().build()).goes_on


def test_an_unchanged_graph_goes_on_with_an_old_run(run_graph):
    """Where nothing of the graph's shape has changed, a waiting run goes on."""
    comparison = replay(run_graph(graph_of(ask, pay)).export(), graph_of(ask, pay))

    assert comparison.goes_on, str(comparison)
    assert comparison.nodes == []


def test_a_changed_node_is_named_with_its_question(run_graph):
    """A node that waits and got another edge needs a migration; what is elsewhere does not."""

    def look(ctx):
        return 1

    def log(ctx):
        return 2

    export = run_graph(graph_of(look, ask, pay)).export()
    comparison = replay(export, graph_of(look, ask, log, pay))

    assert not comparison.goes_on
    assert comparison.nodes == ["ask", "pay"]
    assert comparison.questions == ["approve"]
    assert "needs migration: ask has changed" in str(comparison)
    assert "pay is gone" in str(replay(export, graph_of(look, ask)))


def test_what_is_behind_a_run_may_change(run_graph):
    """Nodes that have ended are not compared."""

    def build(first):
        builder = GraphBuilder()
        builder.add_node(first, "first", version=first.__name__)
        builder.add_node(ask)
        builder.add_edge("first", "ask")
        return builder.build()

    def old(ctx):
        return 1

    def new(ctx):
        return 2

    assert replay(run_graph(build(old)).export(), build(new)).goes_on


def test_a_graph_inside_is_compared_too(run_graph):
    """A question of a graph inside is held when that graph has changed."""

    def around(*functions):
        builder = GraphBuilder()
        builder.add_node(graph_of(*functions), "inside")
        return builder.build()

    export = run_graph(around(ask, pay)).export()

    assert replay(export, around(ask, pay)).goes_on
    assert replay(export, around(ask)).questions == ["approve"]


def test_an_export_is_read_from_a_file(run_graph, tmp_path):
    """A file of `runner runs export` will do; anything else is refused in words."""
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run_graph(graph_of(ask)).export()))
    assert replay(file, graph_of(ask)).goes_on

    file.write_text("hello")
    with pytest.raises(UsageError, match="no JSON"):
        replay(file, graph_of(ask))
    with pytest.raises(UsageError, match="a document of"):
        replay({}, graph_of(ask))
