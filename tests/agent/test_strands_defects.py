"""Defects of the released Strands graphs that users have met: none of them is here.

Every test runs on both stores. What a person is asked and answers goes through the store, and each
execution of a node begins from what is stored.
"""

from __future__ import annotations

import pydantic
import pytest

from runner import Agent, GraphBuilder, RetryPolicy, Status, ToolContext, tool
from runner.hooks import BeforeNodeCallEvent
from runner.store.memory.store import MemoryStore
from runner.store.redis.store import RedisStore
from runner.testing import ScriptedModel
from tests.agent.visits import Hooks, use

pytestmark = pytest.mark.full


@pytest.fixture(params=["memory", "redis"])
def store(request):
    """Yield a store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
        return
    redis_store = RedisStore(request.getfixturevalue("redis_url"), push=False)
    yield redis_store
    redis_store.close()


def build(store, edges, policy="fail_fast", hooks=(), **nodes):
    builder = GraphBuilder()
    for name, node in nodes.items():
        builder.add_node(node, name)
    for source, target, *condition in edges:
        builder.add_edge(source, target, *condition)
    builder.set_entry_point(next(iter(nodes)))
    return (
        builder.set_failure_policy(policy)
        .set_hook_providers(list(hooks))
        .set_store(store)
        .build()
    )


def answers(result, **responses):
    """Answer the open questions by the ids of their nodes."""
    ids = {question.node_id: question.id for question in result.interrupts}
    return [
        {"interruptResponse": {"interruptId": ids[node], "response": response}}
        for node, response in responses.items()
    ]


@tool(context=True)
def ask(tool_context: ToolContext) -> str:
    """Ask a person."""
    return f"person: {tool_context.interrupt('q')}"


def last_result(messages):
    """End with the text of the last tool result."""
    return messages[-1]["content"][0]["toolResult"]["content"][0]["text"]


def asker(**options):
    return Agent(
        "asker", ScriptedModel([use("ask", "call_0"), last_result] * 3), [ask], **options
    )


def name_of(ctx):
    return ctx.node_id


def broken(ctx):
    raise ValueError("broken")


def test_a_question_beside_a_failure_stays_answerable(store):
    """Where other branches go on, the question is published and its answer counts."""
    graph = build(store, [("s", "x"), ("s", "y")], "continue", s=name_of, x=asker(), y=broken)
    waiting = graph("one")

    assert waiting.status is Status.INTERRUPTED
    ended = graph(answers(waiting, x="yes"))
    assert (ended.status, ended.results["x"].output) == (Status.FAILED, "person: yes")


class Verdict(pydantic.BaseModel):
    """A verdict."""

    score: int


def test_structured_output_reaches_the_next_node_after_a_pause(store):
    """What was given before a pause of another node is there after it, as data and as JSON text."""
    judge = Agent(
        "judge", ScriptedModel([use("Verdict", score=3)]), structured_output_model=Verdict
    )
    seen = []

    def last(ctx):
        seen.append((ctx.inputs["judge"], '"score":3' in str(ctx.input_text)))

    graph = build(
        store,
        [("judge", "x"), ("judge", "last"), ("x", "last")],
        judge=judge,
        x=asker(),
        last=last,
    )
    waiting = graph("go")
    graph(answers(waiting, x="yes"))

    assert seen == [({"score": 3}, True)]


def test_a_node_refused_after_an_answer_leaves_the_graph_usable(store):
    """A hook refuses a node on resume: the run fails, nothing behind it runs, the next run starts fresh."""

    def gate(event):
        if event.node_id == "x" and event.interrupt("may") == "no":
            event.cancel_node = "a person said no"

    hooks = [Hooks((BeforeNodeCallEvent, gate))]
    graph = build(store, [("s", "x"), ("x", "y")], hooks=hooks, s=name_of, x=name_of, y=name_of)
    refused = graph(answers(graph("one"), x="no"))

    assert (refused.status, refused.execution_order) == (Status.FAILED, ["s"])
    allowed = graph(answers(graph("two"), x="yes"))
    assert allowed.execution_order == ["s", "x", "y"]


def test_usage_of_a_failed_attempt_is_counted_once(store):
    """A retried node goes on where it failed, and its result has the tokens of all its calls."""
    errors = [ConnectionError("gone")]
    replies = [use("ask", "call_0"), lambda messages: errors.pop() if errors else "end"]
    builder = GraphBuilder()
    retry = RetryPolicy(max_attempts=2, backoff=0.01)
    builder.add_node(Agent("a", ScriptedModel(replies), [ask]), "x", retry=retry)
    graph = builder.set_store(store).build()
    ended = graph(answers(graph("go"), x="yes"))

    assert (ended.status, ended.results["x"].attempts) == (Status.COMPLETED, 2)
    assert ended.usage["totalTokens"] == ended.results["x"].usage["totalTokens"] == 2 * 15


def test_a_window_never_drops_the_call_that_waits(store):
    """A conversation longer than its window pauses and resumes with its call and result whole."""
    past = [
        {"role": role, "content": [{"text": f"{role} {n}"}]}
        for n in range(6)
        for role in ("user", "assistant")
    ]
    shown = []

    def listen(messages):
        shown.append(
            [next(iter(block)) for message in messages for block in message["content"]]
        )
        return last_result(messages) if len(shown) > 1 else use("ask", "call_0")

    agent = Agent("a", ScriptedModel([listen] * 9), [ask], messages=past, conversation_window=2)
    graph = build(store, [], x=agent)
    waiting = graph("go")
    ended = graph(answers(waiting, x="yes"))

    assert ended.results["x"].output == "person: yes"
    assert shown == [["text"], ["text", "toolUse", "toolResult"]]
    assert len(agent.messages) == len(past) + 4
