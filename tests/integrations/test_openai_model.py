from __future__ import annotations

import asyncio
import base64
import gc

import pytest

from runner import Status
from runner.agent.models.port import Assembly, is_overflow, is_throttled
from runner.errors import ModelFault, UsageError
from tests.integrations import sums
from tests.integrations.extras import need
from tests.integrations.openai_server import Refusal, calls, endpoint, text

need("openai", "openai")

import openai  # noqa: E402 - only where the extra is installed

from runner.agent.models.openai import OpenAIModel  # noqa: E402 - as above

# A model keeps its connection for the next call; one that a test drops is closed by the collector,
# which warns. Collecting after the last test keeps that warning among these tests.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True, scope="module")
def _collected():
    yield
    gc.collect()


SAID = [{"role": "user", "content": [{"text": "hello"}]}]
SPEC = {
    "name": "add",
    "description": "Add.",
    "inputSchema": {"json": {"type": "object", "properties": {}}},
}


def model(served, **options):
    return OpenAIModel("local", base_url=served.url, client_args={"max_retries": 0}, **options)


def reply(served, messages=SAID, specs=None, prompt=None, **options):
    """Call the model once and put its chunks together; return message, stop reason and usage."""

    async def read():
        given = options.pop("model", None) or model(served)
        assembly = Assembly()
        try:
            async for chunk in given.stream(messages, specs, prompt, **options):
                assembly.add(chunk)
        finally:
            await given.aclose()
        return *assembly.finished(), assembly.usage

    return asyncio.run(read())


def test_text_streams_in_with_its_usage():
    """A reply of text is one block, with the provider's count of tokens."""
    with endpoint(text("Hel", "lo", " there")) as served:
        message, stop, usage = reply(served)

    assert message["content"] == [{"text": "Hello there"}]
    assert stop == "end_turn"
    assert usage == {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}


def test_calls_come_in_their_order():
    """Tool calls whose pieces come mixed are put together, in the order in which they were made."""
    made = [("call_a", "add", {"x": 1}), ("call_b", "add", {"x": 2})]
    with endpoint(calls(*made, said="Adding.")) as served:
        message, stop, _ = reply(served)

    assert message["content"] == [
        {"text": "Adding."},
        {"toolUse": {"toolUseId": "call_a", "name": "add", "input": {"x": 1}}},
        {"toolUse": {"toolUseId": "call_b", "name": "add", "input": {"x": 2}}},
    ]
    assert stop == "tool_use"


def test_calls_without_an_index_are_told_apart():
    """Servers that give every call the same index still make several calls."""
    events = calls(("call_a", "add", {"x": 1}), ("call_b", "add", {"x": 2}))
    whole = [
        {
            "index": 0,
            "id": key,
            "type": "function",
            "function": {"name": "add", "arguments": '{"x": 1}'},
        }
        for key in ("call_a", "call_b")
    ]
    first = {
        **events[0],
        "choices": [{"index": 0, "delta": {"tool_calls": whole}, "finish_reason": None}],
    }
    with endpoint([first, events[-2], events[-1]]) as served:
        message, _, _ = reply(served)

    assert [block["toolUse"]["toolUseId"] for block in message["content"]] == [
        "call_a",
        "call_b",
    ]


def test_reasoning_is_kept_apart_from_text():
    """What a server shows of its reasoning is a block of its own."""
    events = text("Four.")
    events[0]["choices"][0]["delta"] = {"role": "assistant", "reasoning_content": "two and two"}
    with endpoint(events) as served:
        message, _, _ = reply(served)

    assert message["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "two and two"}}},
        {"text": "Four."},
    ]


@pytest.mark.parametrize(
    ("finish", "stop"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "content_filtered")],
)
def test_the_reason_to_stop_is_told(finish, stop):
    """The provider's reason to stop comes out under the name that agents know."""
    with endpoint(text("so far", finish=finish)) as served:
        assert reply(served)[1] == stop


def test_a_reply_that_was_cut_short_is_not_used():
    """A stream that ends without a reason to stop raises instead of passing for a whole reply."""
    with (
        endpoint(text("so fa", finish=None, usage=None)) as served,
        pytest.raises(ModelFault, match="cut short"),
    ):
        reply(served)


def test_the_request_holds_everything_it_was_given():
    """Prompt, parameters, tools and the choice among them reach the provider in its own words."""
    with endpoint(text("ok")) as served:
        own = model(served, params={"temperature": 0})
        reply(
            served,
            specs=[SPEC],
            prompt="Be brief.",
            tool_choice={"tool": {"name": "add"}},
            model=own,
        )
    [sent] = served.requests

    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
    ]
    assert sent["temperature"] == 0
    assert sent["tools"][0]["function"]["name"] == "add"
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert sent["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("choice", "sent"), [({"any": {}}, "required"), ({"auto": {}}, "auto"), (None, None)]
)
def test_the_choice_among_tools_is_sent(choice, sent):
    """A model may be left the choice, or be made to call some tool."""
    with endpoint(text("ok")) as served:
        reply(served, specs=[SPEC], tool_choice=choice)

    assert served.requests[0].get("tool_choice") == sent


def test_results_pictures_and_files_are_sent():
    """Tool results go as tool messages; a picture in one follows as the user's, bytes as a data address."""
    picture = {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}
    paper = {"document": {"format": "pdf", "name": "plan", "source": {"bytes": b"%PDF"}}}
    uses = [
        {"toolUse": {"toolUseId": key, "name": "add", "input": {"x": 1}}} for key in ("a", "b")
    ]
    answers = [
        {
            "toolResult": {
                "toolUseId": "a",
                "status": "success",
                "content": [{"json": {"sum": 2}}, picture],
            }
        },
        {
            "toolResult": {
                "toolUseId": "b",
                "status": "error",
                "content": [{"text": "Error: no"}],
            }
        },
        {"text": "and this"},
        paper,
    ]
    conversation = [
        *SAID,
        {"role": "assistant", "content": [{"text": "Well."}, *uses]},
        {"role": "user", "content": answers},
    ]
    with endpoint(text("unused"), text("ok")) as served:
        reply(served, conversation)
    sent = served.requests[0]["messages"]

    assert [message["role"] for message in sent] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert sent[1]["content"] == "Well."
    assert sent[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"x": 1}'}
    assert [sent[2]["content"], sent[3]["content"]] == ['{"sum": 2}', "Error: no"]
    kinds = [part["type"] for part in sent[4]["content"]]
    assert kinds == ["image_url", "text", "file"]
    png = base64.b64encode(b"\x89PNG").decode()
    assert sent[4]["content"][0]["image_url"]["url"] == f"data:image/png;base64,{png}"
    assert sent[4]["content"][2]["file"]["filename"] == "plan.pdf"
    assert sent[4]["content"][2]["file"]["file_data"].startswith("data:application/pdf;base64,")


def test_a_block_without_a_form_in_this_api_is_refused():
    """A video can't be sent: the error says so, and nothing is left out in silence."""
    video = {"video": {"format": "mp4", "source": {"bytes": b""}}}
    with endpoint(text("ok")) as served, pytest.raises(UsageError, match="video"):
        reply(served, [{"role": "user", "content": [video]}])


def test_a_rate_limit_comes_out_under_its_name():
    """Agents know a throttled call by its name and try it again later."""
    with endpoint(Refusal(429, "rate_limit_exceeded", "slow down")) as served:
        with pytest.raises(ModelFault, match="slow down") as raised:
            reply(served)

    assert is_throttled(raised.value)
    assert isinstance(raised.value.__cause__, openai.RateLimitError)


@pytest.mark.parametrize(
    ("code", "message"),
    [("context_length_exceeded", "too much"), (None, "maximum context length is 8192 tokens")],
)
def test_a_conversation_too_long_comes_out_under_its_name(code, message):
    """Agents know an overflow by its name, whether the server has a code for it or only words."""
    with endpoint(Refusal(400, code, message)) as served, pytest.raises(ModelFault) as raised:
        reply(served)

    assert is_overflow(raised.value)


def test_other_errors_are_the_clients_own():
    """A wrong key is no matter of waiting: the client's error comes out as it is."""
    with endpoint(Refusal(401, "invalid_api_key", "who are you?")) as served:
        with pytest.raises(openai.AuthenticationError):
            reply(served)


def test_the_key_is_sent_and_none_is_needed_for_a_server_of_ones_own():
    """A given key is used; a server at a given address is called without one."""
    with endpoint(text("ok")) as served:
        reply(served, model=model(served, api_key="secret"))
        reply(served)

    assert served.keys[0] == "Bearer secret"
    assert served.keys[1].startswith("Bearer ")


def test_an_agent_works_on_it_to_the_end():
    """An agent calls tools, asks a person and ends, with every request as the real service wants it."""
    with endpoint(*sums.replies()) as served:
        waiting, ended = sums.played(model(served))

    assert waiting.status is Status.INTERRUPTED
    assert ended.status is Status.COMPLETED
    assert ended.results["sums"].output == "Five, and yes."
    assert ended.usage == {"inputTokens": 22, "outputTokens": 14, "totalTokens": 36}
    told = [m["content"] for m in served.requests[1]["messages"] if m["role"] == "tool"]
    assert told == ["5", "they said yes"]
