from __future__ import annotations

import threading
from contextlib import ExitStack

import pydantic
import pytest

from runner import GraphBuilder
from runner.errors import (
    DefinitionError,
    LeaseLost,
    NodeFailed,
    UnstorableError,
)
from runner.hooks import AfterNodeCallEvent
from runner.records import failures
from runner.records.executors import Input
from runner.records.outcomes import Failed
from tests.integrations.adapter_contract import StoredNode, done, waits
from tests.integrations.extras import need

need("strands", "strands")

from strands import ToolContext, tool  # noqa: E402 - only where the extra is installed
from strands.hooks import AfterToolCallEvent, BeforeInvocationEvent, BeforeToolCallEvent  # noqa: E402 - as above
from strands.session import FileSessionManager, S3SessionManager  # noqa: E402 - as above

from runner.errors import CorruptDocument  # noqa: E402 - as above
from runner.integrations.strands import StrandsAgent  # noqa: E402 - as above
from tests.integrations.strands_agents import agent, ask, results, use  # noqa: E402 - as above

pytestmark = pytest.mark.full


def node(*replies, **options):
    return StoredNode(lambda: StrandsAgent(lambda: agent(*replies, **options)))


def hooked(event_type, callback, *replies, **options):
    """A node whose agent has one callback more."""

    def build():
        built = agent(*replies, **options)
        built.add_hook(callback, event_type)
        return built

    return StoredNode(lambda: StrandsAgent(build))


def answers(waiting, *responses):
    pairs = zip(waiting.interrupts, responses, strict=True)
    return [
        {"interruptResponse": {"interruptId": q.id, "response": response}}
        for q, response in pairs
    ]


# -- questions -----------------------------------------------------------------------------------


def test_a_hook_asks_before_a_tool():
    """A question of a BeforeToolCall callback is ours, and its answer decides about the tool."""

    def gate(event):
        if event.interrupt("may_i", reason=event.tool_use["name"]) == "no":
            event.cancel_tool = "a person said no"

    for response, shown in (("yes", "sky is blue"), ("no", "a person said no")):
        asking = hooked(BeforeToolCallEvent, gate, use("ask", "call_0", topic="sky"), results)
        [question] = waits(asking.execute())
        assert question.reason == "ask"
        asking.answer(question, response)
        outcome = asking.execute()
        if response == "yes":
            [second] = waits(outcome)
            asking.answer(second, "blue")
            outcome = asking.execute()
        assert done(outcome).output == shown


def test_a_question_is_shown_while_other_tools_run():
    """A question is published at once; a person may answer it before the batch has ended."""
    shown = threading.Event()

    class Watched(StoredNode):
        def add_questions(self, questions):
            super().add_questions(questions)
            shown.set()

    @tool
    def slow() -> str:
        """Wait until the question is out."""
        return "seen" if shown.wait(60) else "never shown"

    replies = ([use("ask", "call_0", topic="sky"), use("slow", "call_1")], results)
    asking = Watched(lambda: StrandsAgent(lambda: agent(*replies, tools=(ask, slow))))
    [question] = waits(asking.execute())
    asking.answer(question, "blue")

    assert done(asking.execute()).output == "sky is blue; seen"


@pytest.mark.parametrize("ids", [("call_0", "call_0"), ("call_0", "call_1")])
def test_one_answer_is_for_one_call(ids):
    """Two calls that ask under one id fail the node, also with an answer; control: two ids ask twice."""
    calls = [
        use("ask", key, topic=topic) for key, topic in zip(ids, ("sky", "sea"), strict=True)
    ]
    asking = node(calls, results)
    if len(set(ids)) == 2:
        assert len(waits(asking.execute())) == 2
        return
    shown = waits(node(calls[:1], results).execute())
    for _ in range(2):
        error = failures.restore(asking.execute().error)
        assert "the same id" in str(error)
        asking.answer(shown[0], "blue")


def test_a_reason_that_cannot_be_stored_fails_the_node():
    """A question that no store could keep ends in an error that names it, not in a broken pause."""

    @tool(context=True)
    def asks_badly(tool_context: ToolContext) -> str:
        """Ask with an object."""
        return tool_context.interrupt("colour", reason=threading.Lock())

    ended = node(use("asks_badly", "call_0"), tools=(asks_badly,)).execute()

    assert isinstance(ended, Failed)
    error = failures.restore(ended.error)
    assert isinstance(error, (UnstorableError, TypeError)), error


# -- state ---------------------------------------------------------------------------------------


def test_the_input_of_a_node_has_the_usual_form():
    """Task and outputs of earlier nodes reach the agent as its first message."""
    told = node(lambda messages: messages[0]["content"][-1]["text"])
    told.inputs = [Input("before", 1, "a result")]

    assert done(told.execute()).output == "  - Agent: a result"


def test_agent_state_and_pictures_survive_a_pause():
    """State set by a tool and bytes in the conversation come back in another process."""

    @tool(context=True)
    def remember(tool_context: ToolContext) -> str:
        """Remember, then ask."""
        tool_context.agent.state.set("seen", [*(tool_context.agent.state.get("seen") or []), 1])
        return tool_context.interrupt("colour")

    picture = {"image": {"format": "png", "source": {"bytes": b"\x89PNG\x00"}}}
    asking = StoredNode(
        lambda: StrandsAgent(
            lambda: agent(use("remember", "call_0"), results, tools=(remember,))
        ),
        [{"text": "look"}, picture],
    )
    [question] = waits(asking.execute())
    assert asking.messages[0]["content"][1] == picture
    asking.answer(question, "blue")
    ended = done(asking.execute())

    assert ended.result["state"] == {"seen": [1, 1]}
    assert asking.messages[0]["content"][1] == picture


def test_what_the_agent_puts_into_the_invocation_state_stays_inside():
    """The agent's loop writes live objects into its state; the node's own stays as it was given."""
    seen = []

    def note(event):
        seen.append(event.invocation_state["customer"])
        event.invocation_state["customer"]["name"] = "changed"

    noted = hooked(BeforeInvocationEvent, note, "done")
    noted.invocation_state = {"customer": {"name": "Ana"}}
    done(noted.execute())

    assert seen == [{"name": "changed"}]
    assert noted.invocation_state == {"customer": {"name": "Ana"}}


class Verdict(pydantic.BaseModel):
    """The end."""

    colour: str


def test_structured_output_survives_a_pause():
    """The next node gets the structured output as JSON, though the pause lay before or beside it."""
    one_by_one = (
        use("ask", "call_0", topic="sky"),
        use("Verdict", "call_1", colour="blue"),
        "unused",
    )
    at_once = (
        [use("ask", "call_0", topic="sky"), use("Verdict", "call_1", colour="blue")],
        use("Verdict", "call_2", colour="blue"),
    )
    for replies in (one_by_one, at_once):
        asking = node(*replies, structured_output_model=Verdict)
        [question] = waits(asking.execute())
        asking.answer(question, "blue")
        outcome = asking.execute()
        assert done(outcome).output == {"colour": "blue"}, replies


def test_memory_carries_over_visits_and_only_new_messages_are_written():
    """A second visit knows the first; what is stored of the conversation is not written again."""
    written = []

    class Counted(StoredNode):
        def keep(self, saved):
            written.append((saved.keep, len(saved.messages)))
            super().keep(saved)

    told = Counted(lambda: StrandsAgent(lambda: agent(lambda messages: str(len(messages)))))
    assert done(told.execute()).output == "1"
    told.next_visit("more")
    assert done(told.execute()).output == "3"

    assert written == [(0, 2), (2, 2)]


def test_usage_counts_one_visit():
    """A second visit counts its own tokens, not those of the first."""
    told = node("hello")
    for _ in range(2):
        assert done(told.execute()).usage["totalTokens"] == 15
        told.next_visit("more")


# -- crashes and failures ------------------------------------------------------------------------


def test_a_crash_repeats_no_finished_tool_and_no_model_call():
    """A node that fails after a batch of tools goes on behind it, with the model's reply it had."""
    ran, asked = [], []

    @tool
    def effect() -> str:
        """Do something once."""
        ran.append(1)
        return "did it"

    def first(messages):
        asked.append(1)
        return use("effect", "call_0")

    replies = [first, RuntimeError("the provider is down")]
    broken = StoredNode(lambda: StrandsAgent(lambda: agent(*replies, tools=(effect,))))
    assert isinstance(broken.execute(), Failed)
    replies[1] = results
    ended = done(broken.execute())

    assert ended.output == "did it"
    assert (ran, asked) == ([1], [1])
    assert ended.usage["totalTokens"] == 30


def test_an_error_of_a_hook_comes_out_as_itself():
    """The wrapper that the agent's loop puts around errors is taken off."""

    def raises(event):
        raise LookupError("no such customer")

    ended = hooked(
        AfterToolCallEvent, raises, use("ask", "call_0", topic="sky"), tools=()
    ).execute()

    assert isinstance(ended, Failed)
    assert isinstance(failures.restore(ended.error), LookupError)


def test_no_tool_starts_after_the_lease_was_lost():
    """Once another worker owns the node, no further tool or model call begins."""
    ran = []

    @tool
    def loses() -> str:
        """Lose the lease."""
        ran.append("loses")
        losing.lost = True
        return "lost"

    @tool
    def late() -> str:
        """Must not run."""
        ran.append("late")
        return "ran"

    from strands.tools.executors import SequentialToolExecutor

    losing = node(
        [use("loses", "call_0"), use("late", "call_1")],
        tools=(loses, late),
        tool_executor=SequentialToolExecutor(),
    )
    with pytest.raises(LeaseLost):
        losing.execute()

    assert ran == ["loses"]


def test_a_cancelled_agent_is_no_success():
    """An agent cancelled at once fails its node; one told to stop after its tools has ended well."""

    def at_once(event):
        event.agent.cancel(message="not today")

    def later(event):
        event.agent.cancel(message="enough", after_current_tools=True)

    cancelled = hooked(
        BeforeToolCallEvent, at_once, use("ask", "call_0", topic="sky"), tools=()
    ).execute()
    stopped = hooked(BeforeToolCallEvent, later, use("nothing", "call_0"), tools=()).execute()

    assert isinstance(cancelled, Failed)
    assert isinstance(failures.restore(cancelled.error), NodeFailed)
    assert done(stopped).output == "enough"


def test_a_factory_must_build_anew():
    """One agent object for two executions would mix conversations: it is refused."""
    shared = agent("hello")
    executor = StrandsAgent(lambda: shared)
    told = StoredNode(lambda: executor)
    done(told.execute())
    ended = told.execute()

    assert isinstance(ended, Failed)
    assert isinstance(failures.restore(ended.error), DefinitionError)


# -- in a graph ----------------------------------------------------------------------------------


def test_a_question_after_the_node_keeps_its_conversation():
    """While a person judges the node's result, the conversation stays, and the next visit knows it."""

    class Judge:
        def register_hooks(self, registry, **_):
            registry.add_callback(AfterNodeCallEvent, lambda event: event.interrupt("good?"))

    @tool
    def effect() -> str:
        """Do something."""
        return "did it"

    builder = GraphBuilder()
    builder.add_node(
        StrandsAgent(lambda: agent(use("effect", "call_0"), results, tools=(effect,))), "works"
    )
    builder.set_hook_providers([Judge()])
    graph = builder.build()
    waiting = graph("go")
    ended = graph(answers(waiting, "yes"))
    snapshot = graph._engine.store.read(ended.run_id, messages=True)

    assert ended.results["works"].output == "did it"
    roles = [message["role"] for message in snapshot.messages["works"]]
    assert roles == ["user", "assistant", "user", "assistant"]


@pytest.mark.parametrize("place", ["files", pytest.param("S3", marks=pytest.mark.full)])
def test_runs_continue_the_session_of_a_session_manager(place, tmp_path, monkeypatch):
    """Also a run that asks; without a session manager the second run knows nothing of the first."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    prompts = []

    def said(messages):
        prompts.append(
            [block["text"] for m in messages for block in m["content"] if "text" in block]
        )
        is_answered = any("toolResult" in block for block in messages[-1]["content"])
        return "report" if is_answered else use("ask", f"call_{len(messages)}", topic="sky")

    def manager():
        if place == "files":
            return FileSessionManager(session_id="s", storage_dir=str(tmp_path))
        return S3SessionManager(session_id="s", bucket="sessions", region_name="us-east-1")

    def run(make_manager, task):
        builder = GraphBuilder()
        build = lambda: agent(said, said, session_manager=make_manager())  # noqa: E731
        builder.add_node(StrandsAgent(build), "agent")
        graph = builder.build()
        assert graph(answers(graph(task), "blue")).status.value == "completed"
        return prompts[-1]

    with ExitStack() as stack:
        if place == "S3":
            import boto3
            import moto

            stack.enter_context(moto.mock_aws())
            boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="sessions")
        assert run(manager, "one") == ["one"]
        assert run(manager, "two") == ["one", "report", "two"]
        assert run(lambda: None, "two") == ["two"]


def test_its_result_reads_like_an_agents():
    """In the result of a run the node's result is an AgentResult."""
    builder = GraphBuilder()
    builder.add_node(StrandsAgent(lambda: agent("hello")), "says")
    ended = builder.build()("go")

    found = ended.results["says"].result
    assert (found.stop_reason, str(found)) == ("end_turn", "hello\n")


def test_a_snapshot_of_another_schema_is_refused():
    """A snapshot that this version of the framework can't load is left alone, and both versions are named."""
    asking = node(use("ask", "call_0", topic="sky"), results)
    waits(asking.execute())
    asking.text = asking.text.replace('"schema_version": "1.0"', '"schema_version": "9.0"')
    ended = asking.execute()

    assert isinstance(ended, Failed)
    error = failures.restore(ended.error)
    assert isinstance(error, CorruptDocument)
    assert "strands-agents" in str(error)
