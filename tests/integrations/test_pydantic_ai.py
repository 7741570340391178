from __future__ import annotations

import dataclasses
import datetime as dt

import pydantic
import pytest

from runner import GraphBuilder, Status
from runner.errors import LeaseLost, ResponseError
from runner.records import failures
from runner.records.executors import Input
from runner.records.outcomes import Failed
from tests.integrations.adapter_contract import StoredNode, done, waits
from tests.integrations.extras import need

need("pydantic_ai", "pydantic-ai")

from pydantic_ai import RunContext  # noqa: E402 - only where the extra is installed

from runner.integrations.pydantic_ai import PydanticAIAgent  # noqa: E402 - as above
from tests.integrations.pydantic_agents import agent, call, results  # noqa: E402 - as above

pytestmark = pytest.mark.full


def node(*replies, **options):
    return StoredNode(lambda: PydanticAIAgent(lambda: agent(*replies, **options)))


def answers(*pairs):
    return [
        {"interruptResponse": {"interruptId": q.id, "response": response}}
        for q, response in pairs
    ]


# -- deferred tools --------------------------------------------------------------------------------


def test_a_question_shows_the_call():
    """People see which tool is called with what, why it waits, and what the tool added."""
    asking = node(call("colour", "call_0", topic="sky"), results)
    [question] = waits(asking.execute())

    assert question.name == "colour"
    assert question.reason == {
        "kind": "question",
        "tool": "colour",
        "args": {"topic": "sky"},
        "metadata": {"asked_for": "sky"},
    }
    assert question.response_schema is None


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        (True, "paint is north painted"),
        (False, "paint is The tool call was denied."),
        (
            {"kind": "tool-approved", "override_args": {"wall": "south"}},
            "paint is south painted",
        ),
        ({"kind": "tool-denied", "message": "not on Sundays"}, "paint is not on Sundays"),
    ],
)
def test_a_call_that_needs_approval_waits_for_it(response, shown):
    """Yes, no, yes with other arguments and no with a reason do what they say."""
    asking = node(call("paint", "call_0", wall="north"), results)
    [question] = waits(asking.execute())
    assert question.reason["kind"] == "approval"
    asking.answer(question, response)

    assert done(asking.execute()).output == shown


@pytest.mark.parametrize(
    "response", ["yes", 1, {"approved": True}, {"kind": "tool-approved", "args": {}}, {}]
)
def test_what_is_no_approval_approves_nothing(response):
    """At the door an answer of another form is refused; the question stays open and the tool doesn't run."""
    builder = GraphBuilder()
    builder.add_node(
        PydanticAIAgent(lambda: agent(call("paint", "call_0", wall="north"), results)), "paints"
    )
    graph = builder.build()
    [question] = graph("go").interrupts
    with pytest.raises(ResponseError, match="no answer was applied"):
        graph(answers((question, response)))

    assert (
        graph(answers((question, False))).results["paints"].output
        == "paint is The tool call was denied."
    )


def test_a_mixed_batch_waits_for_all_and_runs_finished_tools_once():
    """A finished tool beside deferred ones isn't run again; approval and answer arrive at their calls."""
    ran = []

    def build():
        batch = [
            call("count", "call_0"),
            call("paint", "call_1", wall="north"),
            call("colour", "call_2", topic="sky"),
        ]
        built = agent(batch, results)

        @built.tool_plain
        def count() -> int:
            """Count."""
            ran.append(1)
            return len(ran)

        return built

    builder = GraphBuilder()
    builder.add_node(PydanticAIAgent(build), "works")
    graph = builder.build()
    waiting = graph("go")
    by_name = {question.name: question for question in waiting.interrupts}
    half = graph(answers((by_name["paint"], True)))
    assert [question.id for question in half.interrupts] == [by_name["colour"].id]
    ended = graph(answers((by_name["colour"], "blue")))

    assert ended.status is Status.COMPLETED
    assert ended.results["works"].output == "count is 1; paint is north painted; colour is blue"
    assert ended.usage == {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30}


# -- input, output, state --------------------------------------------------------------------------


def test_the_input_of_a_node_has_the_usual_form():
    """Task and outputs of earlier nodes reach the agent as one prompt, pictures among them."""
    told = node(lambda messages: str(messages[0].parts[0].content))
    told.inputs = [Input("before", 1, "a result")]
    assert "Original Task: go" in done(told.execute()).output
    assert "\nFrom before:\n  - Agent: a result" in done(told.execute()).output

    def kinds(messages):
        return " ".join(type(part).__name__ for part in messages[0].parts[0].content)

    picture = {"image": {"format": "png", "source": {"bytes": b"\x89PNG\x00"}}}
    calls = [call("colour", "call_0", topic="it")]
    shown = StoredNode(
        lambda: PydanticAIAgent(lambda: agent(calls, kinds)), [{"text": "look"}, picture]
    )
    [question] = waits(shown.execute())
    shown.answer(question, "blue")

    assert done(shown.execute()).output == "str BinaryImage"


class Verdict(pydantic.BaseModel):
    colour: str


@dataclasses.dataclass
class Dated:
    day: dt.date


def test_typed_output_reaches_the_next_node_as_json():
    """Models and dataclasses come out in the form that can be stored."""
    told = node(call("final_result", "call_0", colour="blue"), output_type=Verdict)
    assert done(told.execute()).output == {"colour": "blue"}
    dated = node(call("final_result", "call_0", day="2026-01-02"), output_type=Dated)
    assert done(dated.execute()).output == {"day": "2026-01-02"}


def test_dependencies_come_from_the_invocation_state():
    """Tools get what `deps` makes of the run's state, in every process."""

    def build():
        built = agent(call("whose", "call_0"), results, deps_type=str)

        @built.tool
        def whose(ctx: RunContext[str]) -> str:
            """Say whose it is."""
            return ctx.deps

        return built

    told = StoredNode(lambda: PydanticAIAgent(build, deps=lambda state: state["customer"]))
    told.invocation_state = {"customer": "Ana's"}

    assert done(told.execute()).output == "whose is Ana's"


def test_memory_carries_over_visits():
    """A second visit knows the conversation of the first and counts its own tokens only."""
    told = node(lambda messages: str(len(messages)))
    assert done(told.execute()).output == "1"
    told.next_visit("more")
    ended = done(told.execute())

    assert ended.output == "3"
    assert ended.usage["totalTokens"] == 15


# -- crashes and failures --------------------------------------------------------------------------


def test_a_crash_repeats_no_finished_tool_and_no_model_call():
    """A node that fails after a batch of tools goes on behind it, with the model's reply it had."""
    ran, asked = [], []

    def first(messages):
        asked.append(1)
        return call("effect", "call_0")

    replies = [first, RuntimeError("the provider is down")]

    def build():
        built = agent(*replies)

        @built.tool_plain
        def effect() -> str:
            """Do something once."""
            ran.append(1)
            return "did it"

        return built

    broken = StoredNode(lambda: PydanticAIAgent(build))
    assert isinstance(broken.execute(), Failed)
    replies[1] = results
    ended = done(broken.execute())

    assert ended.output == "effect is did it"
    assert (ran, asked) == ([1], [1])
    assert ended.usage["totalTokens"] == 30


def test_a_crash_after_an_approved_call_does_not_run_it_again():
    """An approved call that ran is in the conversation; the failure after it repeats nothing."""
    ran = []
    replies = [call("wipe", "call_0"), RuntimeError("the provider is down")]

    def build():
        built = agent(*replies)

        @built.tool_plain(requires_approval=True)
        def wipe() -> str:
            """Wipe once."""
            ran.append(1)
            return "wiped"

        return built

    broken = StoredNode(lambda: PydanticAIAgent(build))
    [question] = waits(broken.execute())
    broken.answer(question, True)
    assert isinstance(broken.execute(), Failed)
    replies[1] = results

    assert done(broken.execute()).output == "wipe is wiped"
    assert ran == [1]


def test_no_model_call_begins_after_the_lease_was_lost():
    """Once another worker owns the node, the next step of the agent doesn't begin."""
    asked = []

    def build():
        built = agent(call("loses", "call_0"), lambda messages: asked.append(1) or "late")

        @built.tool_plain
        def loses() -> str:
            """Lose the lease."""
            losing.lost = True
            return "lost"

        return built

    losing = StoredNode(lambda: PydanticAIAgent(build))
    with pytest.raises(LeaseLost):
        losing.execute()

    assert asked == []


def test_an_agent_that_can_not_defer_fails_with_the_frameworks_own_words():
    """Where `output_type` lacks the deferred requests, the error says so."""
    from pydantic_ai import Agent

    def build():
        built = Agent(agent(call("wipe", "call_0")).model)
        built.tool_plain(requires_approval=True)(wipe)
        return built

    def wipe() -> str:
        """Wipe."""
        return "wiped"

    ended = StoredNode(lambda: PydanticAIAgent(build)).execute()

    assert isinstance(ended, Failed)
    assert "DeferredToolRequests" in str(failures.restore(ended.error))
