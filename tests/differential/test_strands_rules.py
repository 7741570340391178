"""The rules of Strands' graphs that `test_strands_graph` has no test of, one by one: G13 to G50.

Each plays both sides. Where a rule is a defect, or this library differs on purpose, what either does
is asserted.
"""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.integrations.extras import need

need("strands", "strands")

from tests.differential.graph_sides import GraphRecord, GraphSide, both  # noqa: E402 - only where it is installed
from tests.differential.sides import use  # noqa: E402
from tests.differential.test_strands_graph import ask, asks, play, plot, visits  # noqa: E402

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("default"),  # another library's warnings are not ours to mend
]


def two_asking():
    """Describe two agents that each ask, and what follows both."""
    nodes = {"x": [use("ask_one", "t1"), "x done"], "y": [use("ask_two", "t2"), "y done"]}
    return plot("xz yz", entries="xy", nodes=nodes, tools=[asks("one"), asks("two")])


def one_asking():
    """Describe an agent that asks, and one that follows it."""
    return plot("x xz", nodes={"x": [use("ask", "t1"), "x done"]}, tools=[ask])


def two_callbacks(reason=lambda: "because"):
    """Describe a node before which two callbacks ask, both at once."""
    names = ("one", "two")
    return plot(
        "x",
        hooks=[
            (
                "BeforeNodeCallEvent",
                lambda event, name=name: event.interrupt(name, reason=reason()),
            )
            for name in names
        ],
    )


def respond(side: GraphSide, response: object, to: str = "") -> GraphRecord:
    """Answer a question by its id, else the first that is open."""
    question_id = to or side.asked[0].id
    return side.play(
        [{"interruptResponse": {"interruptId": question_id, "response": response}}]
    )


def order(result) -> list[str]:
    """List the completed visits of a result of either side."""
    return [getattr(node, "node_id", node) for node in result.execution_order]


# -- failures --------------------------------------------------------------------------------------------


def test_an_agent_that_raises_stops_the_graph():
    """G13, G24: nothing follows it. Strands raises the error from the call and leaves the results in the
    graph; here the result has failed, and has the error.
    """
    theirs, ours = (
        side[0]
        for side in play(
            lambda: plot("sa sb ac bd", nodes={"a": [ValueError("no model")]}), "task"
        )
    )

    assert theirs.error == "ValueError: no model"
    assert (ours.error, ours.status) == ("", "failed")
    assert "c" not in ours.ran + theirs.ran
    assert {"After a", "After s"} <= {*ours.fired} & {*theirs.fired}


def test_a_callback_that_raises_before_a_node():
    """G26: the node doesn't run and nothing follows it. Here the callbacks after it see its error."""

    def broken(event):
        if event.node_id == "b":
            raise ValueError("no callback")

    theirs, ours = (
        side[0]
        for side in play(lambda: plot("ab bc", hooks=[("BeforeNodeCallEvent", broken)]), "task")
    )

    assert theirs.error == "ValueError: no callback"
    assert (ours.error, ours.status) == ("", "failed")
    assert theirs.fired == ["After a", "Before a", "Before b"]
    assert ours.fired == sorted([*theirs.fired, "After b"])
    assert ours.requests == theirs.requests


def stop(ctx) -> str:
    """Cancel the agent that calls this."""
    ctx.agent.cancel_signal.set()
    return "stopped"


def test_a_cancelled_agent():
    """G27: in Strands it has failed, and nothing follows it. Here its result says that it was cancelled, and
    what follows it goes on with that.
    """
    theirs, ours = (
        side[0]
        for side in play(
            lambda: plot("xv", nodes={"x": [use("stop", "t1"), "never"]}, tools=[stop]), "task"
        )
    )

    assert (theirs.status, theirs.ran) == ("failed", "x")
    assert (ours.status, ours.ran) == ("completed", "vx")


def test_a_graph_inside_that_raises_stops_the_outer_one():
    """G24, G28: an error that was raised inside is raised outside; here both have failed of it."""

    def make():
        return plot(
            "sg sy gv yz", nodes={"g": plot("ab", nodes={"a": [ValueError("no model")]})}
        )

    theirs, ours = (side[0] for side in play(make, "task"))

    assert theirs.error == "ValueError: no model"
    assert (ours.error, ours.status) == ("", "failed")
    assert "v" not in ours.ran + theirs.ran


async def hang(ctx) -> str:
    """Wait for something that never comes."""
    await asyncio.Event().wait()
    return "never"


@pytest.mark.slow
def test_a_node_past_its_timeout_is_ended_and_stops_the_graph():
    """G29: with callbacks after it. Strands raises from the call; both say what took too long."""
    records = []
    for side in both(
        lambda: plot("sx xz", nodes={"x": [use("hang", "t1"), "never"]}, tools=[hang])
    ):
        if side.name == "strands":
            side.graph.node_timeout = 1.0
        else:
            side.graph.definition = dataclasses.replace(side.graph.definition, node_timeout=1.0)
        records.append(side.play("task"))
    theirs, ours = records

    assert theirs.error == "Exception: Node 'x' execution timed out after 1.0s"
    assert (ours.error, ours.status) == ("", "failed")
    assert ours.ran == theirs.ran == "sx"
    assert ours.results == theirs.results == {"s": "s1\n"}


# -- results ---------------------------------------------------------------------------------------------


def test_sections_come_in_the_order_of_the_edges():
    """G18: in Strands in that of a set, which changes from process to process."""
    _, ours = both(lambda: plot("sc sa sb cz az bz"))
    ours.graph("task")
    texts = [block["text"] for block in ours.models["z"].requests[0][-1]["content"]]

    assert [text for text in texts if text.startswith("\nFrom")] == [
        "\nFrom c:",
        "\nFrom a:",
        "\nFrom b:",
    ]


def test_a_node_that_waits_is_in_no_count_of_what_was_done():
    """G20: not in the order, not among the completed. Here `results` has its questions; Strands leaves
    it out.
    """
    theirs, ours = both(one_asking)
    first, other = theirs.graph("task"), ours.graph("task")

    assert order(first) == order(other) == []
    assert first.completed_nodes == other.completed_nodes == 0
    assert first.interrupted_nodes == other.interrupted_nodes == 1
    assert "x" not in first.results
    assert [interrupt.name for interrupt in other.results["x"].interrupts] == ["go"]


def test_usage_is_that_of_this_run():
    """G23, B8: three visits of two agents, 15 tokens each. Strands counts an agent's past at every visit."""
    theirs, ours = both(
        lambda: plot("ab ba", conditions={"ba": lambda state: visits(state, "b") < 3})
    )

    assert [ours.graph("task").usage["totalTokens"] for _ in range(2)] == [90, 90]
    assert [theirs.graph("task").accumulated_usage["totalTokens"] for _ in range(2)] == [
        180,
        450,
    ]


def test_a_new_call_begins_anew():
    """G34: no visit, failure or count of the call before is left. Agents of Strands go on talking (G32);
    here they begin with their own messages again, for the call may as well be on another worker.
    """
    theirs, ours = play(lambda: plot("ab ba", limit=3), "task", "task")

    for side in (theirs, ours):
        assert [record.ran for record in side] == ["aab"] * 2
        assert [record.counts for record in side] == [side[0].counts] * 2
    # A round of a loop forgets what its nodes have done in the last one.
    assert [step.results for step in ours] == [{"a": "a2\n"}] * 2
    assert [step.results for step in theirs] == [
        {"a": "a2\n", "b": "b1\n"},
        {"a": "a4\n", "b": "b2\n"},
    ]


# -- answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "theirs"),
    [
        ("text", "TypeError: prompt_type=<class 'str'>"),
        ([{"text": "text"}], "TypeError: content_types=<['text']>"),
        (
            [{"interruptResponse": {"interruptId": "none", "response": 1}}],
            "KeyError: 'interrupt_id=<none>",
        ),
    ],
    ids=["a text", "blocks", "an unknown question"],
)
def test_a_graph_that_waits_takes_answers_only(task, theirs):
    """G40: anything else is refused by raising, the graph goes on waiting, and takes the answer then. Here
    every refusal is a ResponseError.
    """
    for side in both(one_asking):
        side.play("task")
        asked = list(side.asked)
        refused = side.play(task)
        assert refused.error.startswith(theirs if side.name == "strands" else "ResponseError: ")
        last = respond(side, "yes", asked[0].id)
        assert (last.status, last.ran) == ("completed", "xz")


def test_answers_are_taken_all_or_none():
    """G40: one that can't be used refuses the set. Strands keeps those that stand before it."""
    for side, keeps_the_first in zip(both(two_callbacks), (True, False), strict=True):
        side.play("task")
        one, two = sorted(side.asked, key=lambda question: question.name)
        wrong = [
            {"interruptResponse": {"interruptId": key, "response": 1}}
            for key in (one.id, "none")
        ]
        assert side.play(wrong).error
        record = respond(side, 2, two.id)
        assert (record.status == "completed") is keeps_the_first
        assert record.interrupts == ([] if keeps_the_first else [("one", "because")])


def test_answers_to_a_graph_that_asked_nothing():
    """G41: are no task. Strands runs the entry node with them, which raises; here nothing runs."""
    theirs, ours = both(lambda: plot("a"))

    refused = respond(theirs, "yes", "none")
    assert refused.error.startswith(
        "ValueError: Received interrupt responses but agent is not in interrupt"
    )
    assert refused.fired == ["After a", "Before a"]
    refused = respond(ours, "yes", "none")
    assert (
        refused.error
        == "ResponseError: the graph waits for no answers: it has no interrupted run."
    )
    assert refused.fired == []


def test_none_is_no_answer():
    """G42: the question stays open. The released Strands runs the node again for it, later ones and this
    library refuse it.
    """
    theirs, ours = both(one_asking)
    for side in (theirs, ours):
        side.play("task")
    asked = list(ours.asked)

    assert respond(theirs, None).interrupts == [("go", "because")]
    assert "None, which is no answer" in respond(ours, None).error
    assert [respond(ours, "yes", asked[0].id).status, respond(theirs, "yes").status] == [
        "completed"
    ] * 2


def test_an_empty_list_answers_nothing():
    """G43: the same question comes back. In Strands the node has run again for it."""
    theirs, ours = play(one_asking, "task", [], {"go": "yes"})

    for records in (theirs, ours):
        assert records[1].interrupts == records[0].interrupts == [("go", "because")]
        assert (records[2].status, records[2].ran) == ("completed", "xz")
    assert [records[1].ran for records in (theirs, ours)] == ["x", ""]


def test_a_question_that_was_answered_is_answered():
    """G44: what its node did with the answer stays. Strands takes a second one, which changes nothing;
    here it is refused, so that who sent it knows.
    """
    for side, error in zip(both(two_asking), ("", "duplicate: already answered"), strict=True):
        side.play("task")
        one, two = sorted(side.asked, key=lambda question: question.name)
        assert respond(side, "first", one.id).results == {"x": "x done\n"}
        again = respond(side, "second", one.id)
        assert error in again.error
        assert bool(again.error) is bool(error)
        last = respond(side, "yes", two.id)
        assert (last.status, last.results["x"]) == ("completed", "x done\n")
        assert "second" not in str(side.models["x"].requests)


def test_a_run_that_ends_closes_its_questions():
    """G49: the next call is a task again, and no old answer counts in it."""
    theirs, ours = both(one_asking)
    for side in (theirs, ours):
        side.play("task")
        old = side.asked[0].id
        assert side.answer(go="yes").status == "completed"
        assert respond(side, "late", old).error
        record = side.play("next")
        assert record.status == ("completed" if side is theirs else "interrupted")
    # The agent of Strands remembers that it has asked; here it begins its script again.
    assert [question.name for question in ours.asked] == ["go"]
    assert ours.asked[0].id != old


def test_a_question_keeps_the_reason_that_it_was_asked_with():
    """G50: code that runs again may reckon another one; people see the first."""
    count = iter("123456789")
    theirs, ours = play(
        lambda: two_callbacks(lambda: f"reason {next(count)}"), "task", {"two": "yes"}
    )

    for first, last in (theirs, ours):
        assert [name for name, _ in first.interrupts] == ["one", "two"]
        assert last.interrupts == first.interrupts[:1]
