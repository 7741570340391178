from __future__ import annotations

import pytest

from runner import Status
from runner.agent.models.protocol import Model
from tests.integrations import sums
from tests.integrations.extras import need
from tests.integrations.openai_server import Refusal, endpoint, text

need("strands", "strands")
need("openai", "openai")

from strands.models.openai import OpenAIModel  # noqa: E402 - only where the extras are installed

pytestmark = pytest.mark.full


def provider(served):
    return OpenAIModel(
        client_args={"base_url": served.url, "api_key": "none", "max_retries": 0},
        model_id="local",
    )


def test_a_strands_provider_is_a_model():
    """A provider of Strands has the shape of our models, unchanged."""
    with endpoint() as served:
        assert isinstance(provider(served), Model)


def test_an_agent_of_ours_works_on_it():
    """Text, tool calls, streaming, a pause for a person and usage work over the real wire format."""
    with endpoint(*sums.replies(said="Adding.")) as served:
        _, ended = sums.played(provider(served))

    assert ended.status is Status.COMPLETED
    assert ended.results["sums"].output == "Five, and yes."
    assert ended.usage == {"inputTokens": 22, "outputTokens": 14, "totalTokens": 36}
    asked, told = (request["messages"] for request in served.requests)
    assert [message["role"] for message in asked] == ["system", "user"]
    assert [message["role"] for message in told] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert [call["id"] for call in told[2]["tool_calls"]] == ["call_1", "call_2"]


def test_its_errors_reach_the_node():
    """What the provider raises is the node's failure, under its own type."""
    with endpoint(Refusal(401, "invalid_api_key", "who are you?")) as served:
        ended = sums.graph(provider(served))("hello")

    assert ended.status is Status.FAILED
    assert type(ended.results["sums"].result).__name__ == "AuthenticationError"


@pytest.mark.parametrize("reply", [text("so ", "far", finish="length")])
def test_a_reply_that_is_too_long_is_an_error(reply):
    """A reply cut off by the limit of tokens is no answer."""
    with endpoint(reply) as served:
        ended = sums.graph(provider(served))("hello")

    assert ended.status is Status.FAILED
    assert type(ended.results["sums"].result).__name__ == "MaxTokensReached"
