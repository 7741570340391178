from __future__ import annotations

import pytest

from tests.integrations.adapter_contract import AdapterContract
from tests.integrations.extras import need

need("strands", "strands")

from runner.integrations.strands import StrandsAgent  # noqa: E402 - only where the extra is installed
from tests.integrations.strands_agents import agent, results, use  # noqa: E402 - as above

pytestmark = pytest.mark.full


class TestStrandsAgent(AdapterContract):
    usage = {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30}  # noqa: RUF012 - as the contract has it

    def succeeds(self):
        return StrandsAgent(lambda: agent("done"))

    def fails(self):
        return StrandsAgent(lambda: agent(ValueError("broken")))

    def asks_once(self):
        return StrandsAgent(lambda: agent(ask_then_tell))

    def asks_twice(self):
        # The same tool use id twice, as of a provider that numbers the calls of each reply anew.
        return StrandsAgent(
            lambda: agent(
                use("ask", "call_0", topic="sky"), use("ask", "call_0", topic="sea"), results
            )
        )

    def asks_both(self):
        both = [use("ask", "call_0", topic="sky"), use("ask", "call_1", topic="sea")]
        return StrandsAgent(lambda: agent(both, results))

    def asks_then_fails(self):
        return StrandsAgent(
            lambda: agent(use("ask", "call_0", topic="sky"), self.failing_once(results))
        )


def ask_then_tell(messages):
    """Ask when told something, and tell what was answered."""
    last = messages[-1]["content"][0]
    return results(messages) if "toolResult" in last else use("ask", "call_0", topic="sky")
