from __future__ import annotations

import pytest

from tests.integrations.adapter_contract import AdapterContract
from tests.integrations.extras import need

need("agents", "openai-agents")

from tests.integrations.openai_sdk_agents import call, node, results  # noqa: E402 - only where the extra is installed

pytestmark = pytest.mark.full

FIRST = call("paint", "call_0", wall="north")
SECOND = call("paint", "call_1", wall="south")


class TestOpenAIAgent(AdapterContract):
    usage = {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30}  # noqa: RUF012 - as the contract has it

    def succeeds(self):
        return node("done")

    def fails(self):
        return node(ValueError("broken"))

    def asks_once(self):
        return node(FIRST, results)

    def asks_twice(self):
        return node(FIRST, SECOND, results)

    def asks_both(self):
        return node([FIRST, SECOND], results)

    def asks_then_fails(self):
        return node(FIRST, self.failing_once(results))

    def response(self, question, text):
        return {"kind": "tool-denied", "message": text}
