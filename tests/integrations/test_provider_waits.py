"""A provider that refuses for its rate limit and says when to try again: the node goes on then."""

from __future__ import annotations

import gc
import time
from email.utils import formatdate

import pytest

from runner import Agent, GraphBuilder, Status
from runner.agent.models.protocol import raise_delayed
from runner.errors import LONGEST_WAIT, RetryAfter
from tests.integrations.extras import need
from tests.integrations.openai_server import Refusal, endpoint, text

# Connections that wait for a next call are closed by the collector, which warns.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def _collected():
    yield
    gc.collect()


def ours(url):
    need("strands", "openai")
    need("openai", "openai")
    from strands.models.openai import OpenAIModel

    options = {"base_url": url, "api_key": "none", "max_retries": 0}
    return Agent("a", OpenAIModel(client_args=options, model_id="local"), model_attempts=1)


def of_strands(url):
    need("strands", "strands")
    need("openai", "openai")
    import strands
    from strands.models.openai import OpenAIModel

    from runner.integrations.strands import StrandsAgent

    options = {"base_url": url, "api_key": "none", "max_retries": 0}

    def agent():
        model = OpenAIModel(client_args=options, model_id="local")
        return strands.Agent(model=model, callback_handler=None, retry_strategy=None)

    return StrandsAgent(agent)


def of_pydantic(url):
    need("pydantic_ai", "pydantic-ai")
    need("openai", "openai")
    import openai
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from runner.integrations.pydantic_ai import PydanticAIAgent

    def agent():
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        model = OpenAIChatModel("local", provider=OpenAIProvider(openai_client=client))
        return pydantic_ai.Agent(model, output_type=[str, pydantic_ai.DeferredToolRequests])

    return PydanticAIAgent(agent)


def of_openai_agents(url):
    need("agents", "openai-agents")
    import agents
    import openai

    from tests.integrations.openai_sdk_agents import node

    def agent():
        client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        model = agents.OpenAIChatCompletionsModel("local", client)
        return agents.Agent(name="a", model=model)

    return node(factory=agent)


def refusing_once(**headers):
    refusals = [Refusal(429, "rate_limit_exceeded", "slow down", headers)]
    return lambda _request: refusals.pop() if refusals else text("hello")


@pytest.mark.parametrize("make", [ours, of_strands, of_pydantic, of_openai_agents])
@pytest.mark.parametrize(
    ("headers", "status"), [({"retry-after": "0"}, Status.COMPLETED), ({}, Status.FAILED)]
)
def test_the_node_goes_on_when_the_provider_says(make, headers, status):
    """A refusal with Retry-After counts as no attempt; one without is an error, and there is no policy."""
    with endpoint(refusing_once(**headers)) as served:
        builder = GraphBuilder()
        builder.add_node(make(served.url), "a")
        result = builder.build()("go")

    assert (result.status, result.results["a"].attempts) == (status, 1)
    assert len(served.requests) == 1 + (status is Status.COMPLETED)


class Refused(Exception):
    """An error of an HTTP client, which has the reply's headers in one of two places."""

    def __init__(self, headers, status=429):
        self.status_code, self.headers = status, headers


DATE = formatdate(time.time() + 100_000, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after": "1.5"}, 1.5, 1.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25, 0.25),
        ({"retry-after": DATE}, 1, 100_001),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"retry-after": "-5"}, 0, 0),
        ({"retry-after": "1e9"}, LONGEST_WAIT, LONGEST_WAIT),
    ],
)
def test_the_header_is_seconds_or_a_date(headers, least, most):
    """What is past means at once, and what is far away a week."""
    with pytest.raises(RetryAfter) as raised:
        raise_delayed(Refused(headers))

    assert least <= raised.value.seconds <= most


@pytest.mark.parametrize(
    "error",
    [
        Refused({"retry-after": "soon"}),
        Refused({"retry-after": "nan"}),
        Refused({"retry-after": "Wed, 99 Foo 2015"}),
        Refused({}),
        Refused(None),
        Refused({"retry-after": "7"}, status=503),
        ValueError("no reply at all"),
    ],
)
def test_what_says_no_time_is_left_alone(error):
    """Another status, no header or one that can't be read is the error that it is."""
    assert raise_delayed(error) is None


def test_an_error_that_is_its_own_cause_is_looked_at_once():
    """`raise error from error` makes such a one: it is an error as any other; control: with the header."""
    error = Refused({"retry-after": "7"})
    error.__cause__ = error
    with pytest.raises(RetryAfter):
        raise_delayed(error)
    error.headers = {}
    assert raise_delayed(error) is None


def waiting_tool(name):
    """A function that raises RetryAfter at its first call, as a tool of that name."""
    delays = [RetryAfter(0)]

    def book() -> str:
        """Book, when the shop is open."""
        if delays:
            raise delays.pop()
        return "booked"

    book.__name__ = name
    return book


def booking_with_strands():
    need("strands", "strands")
    import strands

    from runner.integrations.strands import StrandsAgent
    from tests.integrations import strands_agents as agents

    book = strands.tool(waiting_tool("book"))
    return StrandsAgent(
        lambda: agents.agent(agents.use("book", "t1"), agents.results, tools=[book])
    )


def booking_with_pydantic():
    need("pydantic_ai", "pydantic-ai")
    from runner.integrations.pydantic_ai import PydanticAIAgent
    from tests.integrations import pydantic_agents as agents

    book = waiting_tool("book")
    return PydanticAIAgent(
        lambda: agents.agent(agents.call("book", "t1"), agents.results, tools=[book])
    )


def booking_with_openai_agents():
    need("agents", "openai-agents")
    import agents

    from tests.integrations import openai_sdk_agents

    # By default the SDK has the model read a tool's errors.
    book = agents.function_tool(failure_error_function=None)(waiting_tool("book"))
    book_call = openai_sdk_agents.call("book", "t1")
    return openai_sdk_agents.node(book_call, openai_sdk_agents.results, tools=[book])


def booking_with_langgraph():
    need("langgraph", "langgraph")
    need("langchain", "dev")
    from langchain.agents import create_agent
    from langchain_core.tools import StructuredTool

    from runner.integrations.langgraph import LangGraphNode
    from tests.integrations import langgraph_graphs as graphs

    tools = [StructuredTool.from_function(waiting_tool("book"))]
    replies = [graphs.reply(graphs.call("book", "t1")), graphs.reply(content="booked")]
    return LangGraphNode(
        lambda checkpointer: create_agent(
            graphs.Model(replies=replies), tools, checkpointer=checkpointer
        )
    )


@pytest.mark.parametrize(
    "make",
    [
        booking_with_strands,
        booking_with_pydantic,
        booking_with_langgraph,
        booking_with_openai_agents,
    ],
)
def test_a_tool_of_a_framework_may_raise_it(make):
    """It leaves the framework, and the call is made again when the time has come."""
    builder = GraphBuilder()
    builder.add_node(make(), "a")
    result = builder.build()("go")

    assert (result.status, result.results["a"].attempts) == (Status.COMPLETED, 1)
    assert str(result.results["a"].output).endswith("booked")
