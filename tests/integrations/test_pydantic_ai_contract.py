from __future__ import annotations

import pytest

from tests.integrations.adapter_contract import AdapterContract
from tests.integrations.extras import need

need("pydantic_ai", "pydantic-ai")

from pydantic_ai.messages import UserPromptPart  # noqa: E402 - only where the extra is installed

from runner.integrations.pydantic_ai import PydanticAIAgent  # noqa: E402 - as above
from tests.integrations.pydantic_agents import agent, call, results  # noqa: E402 - as above

pytestmark = pytest.mark.full


class TestPydanticAIAgent(AdapterContract):
    usage = {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30}  # noqa: RUF012 - as the contract has it

    def succeeds(self):
        return PydanticAIAgent(lambda: agent("done"))

    def fails(self):
        return PydanticAIAgent(lambda: agent(ValueError("broken")))

    def asks_once(self):
        return PydanticAIAgent(lambda: agent(ask_then_tell))

    def asks_twice(self):
        # The same call id twice, as of a provider that numbers the calls of each reply anew.
        return PydanticAIAgent(
            lambda: agent(
                call("colour", "call_0", topic="sky"),
                call("colour", "call_0", topic="sea"),
                results,
            )
        )

    def asks_both(self):
        both = [call("colour", "call_0", topic="sky"), call("colour", "call_1", topic="sea")]
        return PydanticAIAgent(lambda: agent(both, results))

    def asks_then_fails(self):
        return PydanticAIAgent(
            lambda: agent(call("colour", "call_0", topic="sky"), self.failing_once(results))
        )


def ask_then_tell(messages):
    """Ask when told something, and tell what was answered."""
    told = any(isinstance(part, UserPromptPart) for part in messages[-1].parts)
    return call("colour", "call_0", topic="sky") if told else results(messages)
