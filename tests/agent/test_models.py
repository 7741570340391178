"""Models: what a provider is given, how its chunks become a message, and what its errors do."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runner.agent import Agent, tool
from runner.agent.models.protocol import Assembly, ProviderMessages
from runner.agent.models.scripted import ScriptedModel
from runner.hooks import AfterModelCallEvent
from tests.agent.visits import Hooks, Node, done, failed, scripted, use


class ModelThrottledException(Exception):
    """Named as Strands names it."""


class ContextWindowOverflowException(Exception):
    """Named as Strands names it."""


def assembled(*chunks: Any) -> tuple[dict[str, Any], str]:
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.finished()


def delta(**content: Any) -> dict[str, Any]:
    return {"contentBlockDelta": {"delta": content}}


STOP = {"contentBlockStop": {}}


def start(**use_fields: Any) -> dict[str, Any]:
    return {"contentBlockStart": {"start": {"toolUse": use_fields} if use_fields else {}}}


def test_chunks_become_a_message_with_its_blocks_in_order() -> None:
    """Text, tool use with input in pieces, reasoning with signature, redacted bytes, citations."""
    message, reason = assembled(
        {"messageStart": {"role": "assistant"}},
        start(),
        delta(reasoningContent={"text": "let me "}),
        delta(reasoningContent={"text": "think"}),
        delta(reasoningContent={"signature": "sig=="}),
        STOP,
        delta(reasoningContent={"redactedContent": b"\x00\x01"}),
        STOP,
        delta(text="I will "),
        delta(text="look"),
        STOP,
        delta(text="cited"),
        delta(citation={"title": "T"}),
        STOP,
        start(toolUseId="t1", name="find", reasoningSignature="rs"),
        delta(toolUse={"input": '{"q": '}),
        delta(toolUse={"input": '"x"}'}),
        STOP,
        {"messageStop": {"stopReason": "tool_use"}},
    )
    assert reason == "tool_use"
    assert message["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "let me think", "signature": "sig=="}}},
        {"reasoningContent": {"redactedContent": b"\x00\x01"}},
        {"text": "I will look"},
        {"citationsContent": {"citations": [{"title": "T"}], "content": [{"text": "cited"}]}},
        {
            "toolUse": {
                "toolUseId": "t1",
                "name": "find",
                "reasoningSignature": "rs",
                "input": {"q": "x"},
            }
        },
    ]


@pytest.mark.parametrize(
    ("text", "parsed"), [("", {}), ("  ", {}), ('{"a": ', {}), ('{"a": 1}', {"a": 1})]
)
def test_a_tool_input_that_cannot_be_read_is_empty(text: str, parsed: Any) -> None:
    """Blank or broken JSON becomes an empty input, which the tool's schema judges."""
    message, _ = assembled(start(toolUseId="t", name="x"), delta(toolUse={"input": text}), STOP)
    assert message["content"][0]["toolUse"]["input"] == parsed


def test_stop_reasons_follow_the_content() -> None:
    """Tool uses make it tool_use, their absence end_turn; an unfinished tool use is dropped."""
    called = (start(toolUseId="t", name="x"), delta(toolUse={"input": "{}"}), STOP)
    assert assembled(*called, {"messageStop": {"stopReason": "end_turn"}})[1] == "tool_use"
    assert (
        assembled(delta(text="hi"), STOP, {"messageStop": {"stopReason": "tool_use"}})[1]
        == "end_turn"
    )
    assert assembled(delta(text="hi"), STOP) == (
        {"role": "assistant", "content": [{"text": "hi"}]},
        "end_turn",
    )
    message, reason = assembled(*called[:2], {"messageStop": {"stopReason": "end_turn"}})
    assert (message["content"], reason) == ([], "end_turn")


def test_a_provider_gets_clean_copies() -> None:
    """Role and content only, blank text replaced or dropped, invalid tool names replaced, deep copies."""
    messages = [
        {"role": "user", "content": [{"text": "hi"}], "metadata": {"x": 1}},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": [{"text": " "}]},
        {"role": "assistant", "content": [{"text": " "}, use("bad name", "t")]},
    ]
    before = copy.deepcopy(messages)
    conversation = ProviderMessages()
    conversation.read(messages)
    seen = conversation.prepare(0)
    assert seen == [
        {"role": "user", "content": [{"text": "hi"}]},
        {"role": "assistant", "content": [{"text": "[blank text]"}]},
        {"role": "assistant", "content": [{"text": "[blank text]"}]},
        {"role": "assistant", "content": [use("INVALID_TOOL_NAME", "t")]},
    ]
    seen[0]["content"][0]["text"] = "changed"
    assert messages == before


class Recording:
    """A provider that writes down how it is called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Reply with a text, and keep something for the next call."""
        self.calls.append((args, {**kwargs, "model_state": dict(kwargs["model_state"])}))
        kwargs["model_state"]["response_id"] = f"r{len(self.calls)}"
        for chunk in (
            delta(text="hi"),
            STOP,
            {"metadata": {"usage": {"inputTokens": 1, "totalTokens": 3}}},
        ):
            yield chunk


def test_a_provider_is_called_as_strands_calls_it() -> None:
    """Three positional arguments, the rest by name; what it keeps in model_state comes back to it."""

    @tool
    def act() -> None:
        """Act."""

    model = Recording()
    node = Node(lambda: Agent("a", model, [act], system_prompt="be brief", session_id="s1"))
    assert done(node.run()).usage == {"inputTokens": 1, "totalTokens": 3}
    node.next_visit("again")
    done(node.run())
    (messages, specs, prompt), options = model.calls[0]
    assert messages == [{"role": "user", "content": [{"text": "go"}]}]
    assert [spec["name"] for spec in specs] == ["act"]
    assert prompt == "be brief"
    assert options["system_prompt_content"] == [{"text": "be brief"}]
    assert options["tool_choice"] is None
    assert options["invocation_state"] == {}
    assert not options["cancel_signal"].is_set()
    assert options["agent_metadata"].session_id == "s1"
    assert [call[1]["model_state"] for call in model.calls] == [{}, {"response_id": "r1"}]


def test_a_model_never_gets_two_user_messages_in_a_row() -> None:
    """After an invocation that ended at a limit, its last results and the next input are one message."""
    shown: list[Any] = []

    class Listening(ScriptedModel):
        def stream(self, messages: Any, *args: Any, **options: Any) -> Any:
            shown.append(
                [(m["role"], [next(iter(block)) for block in m["content"]]) for m in messages]
            )
            return super().stream(messages, *args, **options)

    @tool
    def act() -> str:
        """Act."""
        return "acted"

    model = Listening([use("act"), "end"])
    node = Node(lambda: Agent("a", model, [act], max_turns=1), "one")
    done(node.run())
    node.next_visit("two")
    done(node.run())

    assert shown[1] == [
        ("user", ["text"]),
        ("assistant", ["toolUse"]),
        ("user", ["toolResult", "text"]),
    ]
    assert [m["role"] for m in node.messages] == [
        "user",
        "assistant",
        "user",
        "user",
        "assistant",
    ]


def test_without_tools_there_are_no_specs() -> None:
    """An empty list of tools becomes None."""
    model = Recording()
    done(Node(lambda: Agent("a", model)).run())
    assert model.calls[0][0][1] is None


def failing(times: int, error: Exception, then: Any = "end") -> Any:
    """A reply that raises some times first."""
    left = [error] * times

    def reply(messages: Any) -> Any:
        del messages
        return left.pop() if left else then

    return reply


def test_a_throttled_model_is_called_again() -> None:
    """Callbacks see each refusal, the call is repeated, and the conversation shows nothing of it."""
    seen: list[Any] = []

    def watch(event: AfterModelCallEvent) -> None:
        seen.append(type(event.exception).__name__)

    model = ScriptedModel([failing(2, ModelThrottledException("slow down"))])
    node = Node(
        lambda: Agent("a", model, hooks=[Hooks((AfterModelCallEvent, watch))], model_delay=0)
    )
    done(node.run())
    assert seen == ["ModelThrottledException", "ModelThrottledException", "NoneType"]
    assert len(node.messages) == 2


def test_a_model_that_stays_throttled_fails_the_node() -> None:
    """After `model_attempts` calls the error is the node's."""
    calls: list[int] = []

    def refuse(messages: Any) -> Any:
        calls.append(len(messages))
        return ModelThrottledException("slow down")

    node = Node(lambda: Agent("a", ScriptedModel([refuse]), model_delay=0, model_attempts=3))
    assert failed(node.run()).error.name == "ModelThrottledException"
    assert len(calls) == 3


def long_talk(rounds: int) -> list[Any]:
    """A conversation in which every round calls a tool."""
    messages: list[Any] = []
    for n in range(rounds):
        result = {"toolUseId": f"t{n}", "status": "success", "content": [{"text": "ok"}]}
        messages += [
            {"role": "user", "content": [{"text": f"q{n}"}]},
            {"role": "assistant", "content": [use("act", f"t{n}")]},
            {"role": "user", "content": [{"toolResult": result}]},
            {"role": "assistant", "content": [{"text": f"a{n}"}]},
        ]
    return messages


class Seeing:
    """A provider that writes down what it was shown, and refuses what is too long."""

    def __init__(self, longest: int = 1000) -> None:
        self.shown: list[list[Any]] = []
        self.longest = longest

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Reply, or refuse."""
        self.shown.append(messages)
        if len(messages) > self.longest:
            raise ContextWindowOverflowException(len(messages))
        yield delta(text="hi")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9, 100])
def test_the_window_never_cuts_a_call_from_its_result(size: int) -> None:
    """The model sees whole exchanges only, as many as fit; the stored conversation stays whole."""
    model = Seeing()
    node = Node(lambda: Agent("a", model, messages=long_talk(4), conversation_window=size))
    done(node.run())
    shown = model.shown[0]
    assert "text" in shown[0]["content"][0]
    assert shown[-1]["content"] == [{"text": "go"}]
    assert len(shown) == max(n for n in (1, 5, 9, 13, 17) if n <= max(size, 1))
    assert len(node.messages) == 18


def test_a_conversation_too_long_for_the_model_is_made_shorter_until_it_fits() -> None:
    """An overflow makes the window smaller and the call is repeated; the next visit keeps the window."""
    model = Seeing(longest=6)
    node = Node(lambda: Agent("a", model, messages=long_talk(8)))
    done(node.run())
    assert len(model.shown[-1]) <= 6
    node.next_visit("more")
    calls = len(model.shown)
    done(node.run())
    assert len(model.shown) <= calls + 2


def test_an_overflow_that_nothing_can_be_cut_from_is_the_nodes_error() -> None:
    """With a single exchange left the error is raised, not repeated for ever."""
    node = Node(lambda: Agent("a", Seeing(longest=0)))
    assert failed(node.run()).error.name == "ContextWindowOverflowException"


class Fixed:
    """A provider with one reply, in chunks."""

    def __init__(self, *chunks: Any) -> None:
        self.chunks = chunks

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Reply."""
        for chunk in self.chunks:
            yield chunk


def test_a_reply_that_was_cut_off_fails_with_its_text_kept() -> None:
    """`max_tokens` is an error; the cut tool use becomes a text, so that the conversation stays valid."""
    model = Fixed(
        delta(text="I will"),
        STOP,
        start(toolUseId="t", name="act"),
        delta(toolUse={"input": '{"a'}),
        STOP,
        {"messageStop": {"stopReason": "max_tokens"}},
    )
    node = Node(lambda: Agent("a", model))
    assert failed(node.run()).error.name == "MaxTokensReached"
    assert [list(block) for block in node.messages[1]["content"]] == [["text"], ["text"]]


@pytest.mark.parametrize(
    "reason", ["content_filtered", "guardrail_intervened", "stop_sequence"]
)
def test_other_stop_reasons_end_the_invocation(reason: str) -> None:
    """The model's own reason comes out in the result."""
    node = Node(
        lambda: Agent(
            "a", Fixed(delta(text="x"), STOP, {"messageStop": {"stopReason": reason}})
        )
    )
    assert done(node.run()).result["stop_reason"] == reason


def test_a_redacted_input_is_replaced_in_the_store() -> None:
    """What a provider found unfit is stored as the text that it gave."""
    redact = {"redactContent": {"redactUserContentMessage": "[removed]"}}
    node = Node(
        lambda: Agent("a", Fixed(redact, delta(text="no"), STOP)), task="something unfit"
    )
    done(node.run())
    assert node.messages[0]["content"] == [{"text": "[removed]"}]


def test_a_script_counts_the_replies_in_the_conversation() -> None:
    """A resumed script goes on where the conversation stands; its last reply is repeated."""
    model = ScriptedModel(
        ["one", ["two", use("x", note=1)], lambda messages: f"{len(messages)} messages"]
    )
    node = Node(lambda: Agent("a", model))
    assert done(node.run()).output == "one"
    node.next_visit("b")
    assert done(node.run()).output == "5 messages"
    assert node.messages[3]["content"][1]["toolUse"] == {
        "toolUseId": "tooluse_1_1",
        "name": "x",
        "input": {"note": 1},
    }


def test_reasoning_keeps_its_signature_in_the_store() -> None:
    """Signatures and redacted bytes go back to the provider byte for byte."""
    blocks = [
        {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln/+=="}}},
        {"reasoningContent": {"redactedContent": b"\xff\x00"}},
        {"text": "fine"},
    ]
    node = scripted([blocks])
    done(node.run())
    assert node.messages[1]["content"] == blocks
