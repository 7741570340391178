from __future__ import annotations

import pytest

from runner import GraphBuilder, Status
from runner.engine import Engine
from runner.interrupts import answers_from
from runner.registry import Registry
from runner.testing import answer, replay


def ask(ctx):
    return ctx.interrupt("well?")


def end(ctx):
    return "end"


def plain():
    builder = GraphBuilder()
    builder.add_node(ask)
    builder.add_node(end)
    builder.add_edge("ask", "end")
    return builder


def another_version():
    builder = GraphBuilder()
    builder.add_node(ask, version="2")
    builder.add_node(end)
    builder.add_edge("ask", "end")
    return builder


def another_edge():
    builder = plain()
    builder.add_node(lambda ctx: 1, "more")
    builder.add_edge("ask", "more")
    return builder


def another_end():
    builder = plain()
    builder.add_node(lambda ctx: 1, "more")
    builder.add_edge("end", "more")
    return builder


def another_branch():
    builder = plain()
    builder.add_node(lambda ctx: 1, "beside")
    return builder


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
    engine.answer(answers_from(answer(run.result, "yes")))
    while bells:
        bell = bells.pop(0)
        engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
    return run.status


@pytest.mark.parametrize("change", [plain, another_version, another_edge, another_end, another_branch])
def test_a_replay_says_what_a_worker_will_do(run_graph, change):
    """The run goes on to its end with the new graph exactly if `replay` says so."""
    run = run_graph(plain().build())
    found = replay(run.export(), change().build())
    status = deployed(run, change().build())

    assert found.goes_on == (status is Status.COMPLETED), (str(found), status)
    assert found.goes_on or status is Status.NEEDS_MIGRATION


def mapped(**options):
    builder = GraphBuilder()
    builder.add_map(lambda ctx: ctx.interrupt("well?") if ctx.task else 0, "each", **options)
    return builder.build()


def test_an_item_that_waits_is_named(run_graph):
    """Of a map that changed, the item with the question is named beside the map."""
    export = run_graph(mapped(), [0, 1]).export()

    assert replay(export, mapped()).goes_on
    found = replay(export, mapped(version="2"))
    assert "each[1]" in found.nodes
    assert found.questions == ["well?"]


def test_a_run_that_has_ended_needs_nothing(run_graph):
    """Nothing of a run that is over can be held."""
    run = run_graph(plain().build())
    run.answer("yes")

    assert replay(run.export(), another_version().build()).goes_on


def test_an_older_export_is_not_guessed_at(run_graph):
    """Where an older version wrote the document, a changed graph counts as one that can't go on."""
    export = run_graph(plain().build()).export()
    del export["signatures"]

    assert replay(export, plain().build()).goes_on
    assert "can't be compared" in str(replay(export, another_branch().build()))
