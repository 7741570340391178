"""The agent's machine, stored and reloaded between every two steps, ends as without any pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner import hooks
from runner.agent import Agent, ToolContext, drive, tool
from runner.agent.machine.protocol import AgentDefinition, Command, MachineEvent
from runner.agent.machine.state import AgentState, from_document, to_document
from runner.agent.machine.step import step
from runner.agent.models.scripted import ScriptedModel
from runner.errors import ResponseError
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Interrupted
from tests.agent.visits import Hooks, Killed, Node, done, use

BEFORE = ["pass", "ask", "cancel", "ask_cancel"]
BODY = ["ok", "fail", "ask", "ask_twice", "ask_fail"]
AFTER = ["pass", "ask", "ask_two", "retry", "ask_retry", "replace", "ask_replace", "overrule"]
GROUPS = {
    "before_invocation": hooks.BeforeInvocationEvent,
    "message_added": hooks.MessageAddedEvent,
    "before_model_call": hooks.BeforeModelCallEvent,
    "after_model_call": hooks.AfterModelCallEvent,
    "before_tools": hooks.BeforeToolsEvent,
    "after_tools": hooks.AfterToolsEvent,
    "after_invocation": hooks.AfterInvocationEvent,
}

attempts = st.lists(st.tuples(*map(st.sampled_from, (BEFORE, BODY, AFTER))), max_size=3)
turns = st.lists(
    st.lists(st.tuples(st.booleans(), attempts), min_size=1, max_size=3), max_size=2
)


@dataclass
class Plan:
    """What the model asks for, and what every callback and tool does, by call and attempt."""

    turns: list[list[tuple[bool, list[tuple[str, str, str]]]]]
    asking: frozenset[str]
    sequential: bool
    retried_model: bool
    completed: Counter[tuple[str, int]] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    in_advance: bool = False

    def part(self, key: str, attempt: int, place: int) -> str:
        """Say what happens at one place of one attempt; after the planned ones all goes well."""
        turn, position = map(int, key.split("-"))
        planned = self.turns[turn][position][1]
        return (
            planned[attempt - 1][place]
            if attempt <= len(planned)
            else ["pass", "ok", "pass"][place]
        )

    def ask(self, source: Any, scope: str, name: str) -> str:
        """Ask; in the run without pauses the answer is there in advance."""
        advance = answer_to(scope, name, source.attempt) if self.in_advance else None
        return str(source.interrupt(name, reason={"scope": scope}, response=advance))

    def act(self, context: ToolContext) -> str:
        """Be the tool."""
        key, attempt = context.tool_use["toolUseId"], context.attempt
        part = self.part(key, attempt, 1)
        responses = [self.ask(context, f"tool:{key}", "one")] if "ask" in part else []
        if part == "ask_twice":
            responses.append(self.ask(context, f"tool:{key}", "two"))
        self.completed[key, attempt] += 1
        self.keys.add(context.idempotency_key)
        if part.endswith("fail"):
            raise ValueError("/".join(responses))
        return f"{key} {attempt} {responses}"

    def before(self, event: hooks.BeforeToolCallEvent) -> None:
        """Be the callback before a call."""
        key = event.tool_use["toolUseId"]
        part = self.part(key, event.attempt, 0)
        response = self.ask(event, f"before_tool_call:{key}", "may") if "ask" in part else ""
        if part.endswith("cancel"):
            event.cancel_tool = f"cancelled {response}"

    def after(self, event: hooks.AfterToolCallEvent) -> None:
        """Be the callback after a call."""
        key = event.tool_use["toolUseId"]
        part = self.part(key, event.attempt, 2)
        text = event.result["content"][0].get("text", "")
        response = self.ask(event, f"after_tool_call:{key}", "review") if "ask" in part else ""
        if part == "ask_two":
            response += self.ask(event, f"after_tool_call:{key}", "again")
        if part.endswith("replace"):
            text = f"{text} replaced {response} {event.exception!r}"
            event.result = {"status": "success", "content": [{"text": text}]}
        event.retry = part.endswith("retry")
        event.retry_cancelled = part == "overrule" and event.cancel_message is not None

    def judge(self, event: hooks.AfterModelCallEvent) -> None:
        """Have every model call made twice, if the plan says so."""
        event.retry = self.retried_model and event.attempt == 1

    def group(self, name: str) -> Callable[[Any], None]:
        """Make the callback of an event that is not one call's."""

        def ask(event: Any) -> None:
            self.ask(event, name, f"group_{name}")

        return ask


def answer_to(scope: str, name: str, number: int) -> str:
    """Answer every question in a way of its own; those of group events all alike."""
    return f"{scope}/{name}/{number}" if scope.count(":") == 1 and "-" in scope else "yes"


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a conversation."""
    asking = draw(st.sets(st.sampled_from(sorted(GROUPS)), max_size=2))
    return Plan(draw(turns), frozenset(asking), draw(st.booleans()), draw(st.booleans()))


def build(plan: Plan) -> Agent:
    """Make the agent that carries out a plan."""

    @tool(context=True)
    async def act(tool_context: ToolContext) -> str:
        """Do as planned."""
        return plan.act(tool_context)

    pairs = [
        (hooks.BeforeToolCallEvent, plan.before),
        (hooks.AfterToolCallEvent, plan.after),
        (hooks.AfterToolCallEvent, decorate),
        (hooks.AfterModelCallEvent, plan.judge),
        *((GROUPS[name], plan.group(name)) for name in sorted(plan.asking)),
    ]
    replies = [
        [
            use("act" if call else "nobody", f"{turn}-{position}")
            for position, (call, _) in enumerate(calls)
        ]
        for turn, calls in enumerate(plan.turns)
    ]
    executor = "sequential" if plan.sequential else "concurrent"
    return Agent(
        "a",
        ScriptedModel([*replies, "end"]),
        [act],
        hooks=[Hooks(*pairs)],
        tool_executor=executor,
    )


def decorate(event: hooks.AfterToolCallEvent) -> None:
    """Change the result in place: a replay that isn't pristine would show it twice."""
    event.result["content"].append({"text": f"seen {event.attempt}"})


@pytest.fixture(scope="module", autouse=True)
def reloading() -> Iterator[None]:
    """Store and reload the state of every agent between every two steps."""

    def step_and_reload(
        definition: AgentDefinition, state: AgentState, event: MachineEvent
    ) -> tuple[AgentState, list[Command]]:
        state, commands = step(definition, state, event)
        reloaded = from_document(to_document(state))
        assert reloaded == state
        return reloaded, commands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drive, "step", step_and_reload)
        yield


def without_pause(plan: Plan) -> tuple[list[Any], Counter[tuple[str, int]]]:
    """Carry out a plan with every answer given in advance."""
    plan.in_advance = True
    node = Node(lambda: build(plan))
    done(node.run())
    plan.in_advance = False
    completed, plan.completed = plan.completed, Counter()
    return node.messages, completed


def check_conversation(messages: list[Any]) -> None:
    """Each tool use has exactly one result, in the message right after it."""
    for index, message in enumerate(messages):
        uses = [
            block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block
        ]
        if uses:
            results = [
                block["toolResult"]["toolUseId"] for block in messages[index + 1]["content"]
            ]
            assert results == uses


def respond(node: Node, question: Interrupt) -> None:
    """Answer a question as the run without pauses answers it."""
    node.answer_id(question.id, answer_to(question.scope, question.name, question.number))


ROUNDS = 80
RELAXED = settings(
    max_examples=settings.default.max_examples // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.full
@RELAXED
@given(plan=plans(), data=st.data())
def test_paused_and_resumed_elsewhere_a_conversation_is_the_same(
    plan: Plan, data: st.DataObject
) -> None:
    """Same messages, same tool executions, whatever is asked and in whatever portions it is answered."""
    messages, completed = without_pause(plan)
    node = Node(lambda: build(plan))
    outcome = node.run()
    for _ in range(ROUNDS):
        if not isinstance(outcome, Interrupted):
            break
        assert outcome.interrupts
        chosen = data.draw(
            st.lists(st.sampled_from(node.open), unique_by=lambda q: q.id), label="answered"
        )
        for question in chosen:
            respond(node, question)
        outcome = node.run()
        if not chosen:
            assert isinstance(outcome, Interrupted)
            for question in node.open:
                respond(node, question)
            outcome = node.run()
    done(outcome)
    assert node.messages == messages
    assert plan.completed == completed
    check_conversation(node.messages)


@pytest.mark.full
@RELAXED
@given(plan=plans(), deaths=st.lists(st.integers(0, 4), max_size=4))
def test_killed_at_any_checkpoint_a_conversation_is_the_same(
    plan: Plan, deaths: list[int]
) -> None:
    """A crash repeats calls in flight at most, under the keys they had, and the conversation is the same."""
    messages, completed = without_pause(plan)
    keys, plan.keys = plan.keys, set()
    node = Node(lambda: build(plan))
    remaining = list(deaths)
    outcome: Any = None
    for _ in range(ROUNDS):
        node.kill_after = remaining.pop() if remaining else None
        try:
            outcome = node.run()
        except Killed:
            continue
        if not isinstance(outcome, Interrupted):
            break
        for question in node.open:
            respond(node, question)
    done(outcome)
    assert node.messages == messages
    assert plan.keys == keys
    assert plan.completed.keys() == completed.keys()
    assert all(count <= 1 + len(deaths) for count in plan.completed.values())
    check_conversation(node.messages)


@RELAXED
@given(plan=plans(), data=st.data())
def test_an_agent_called_directly_ends_the_same(plan: Plan, data: st.DataObject) -> None:
    """Answers complete, partial, reordered or repeated: an answered question keeps its first answer."""
    messages, completed = without_pause(plan)
    agent = build(plan)
    result = agent("go")
    given_before: list[dict[str, Any]] = []
    for _ in range(ROUNDS):
        if result.stop_reason != "interrupt":
            break
        chosen = data.draw(st.permutations(result.interrupts), label="order")
        count = data.draw(st.integers(1, len(chosen)), label="count")
        blocks = [block(q.id, answer_to(q.scope, q.name, q.number)) for q in chosen[:count]]
        if given_before and data.draw(st.booleans(), label="repeat"):
            old = data.draw(st.sampled_from(given_before))
            try:
                result = agent([block(old["interruptId"], "another answer")])
            except ResponseError:
                assert old["interruptId"] not in [q.id for q in result.interrupts]
        result = agent(blocks)
        given_before.extend(b["interruptResponse"] for b in blocks)
    assert result.stop_reason == "end_turn"
    assert agent.messages == messages
    assert plan.completed == completed


def block(key: str, response: Any) -> dict[str, Any]:
    """Write an answer in the shape of Strands."""
    return {"interruptResponse": {"interruptId": key, "response": response}}
