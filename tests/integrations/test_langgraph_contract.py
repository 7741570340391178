from __future__ import annotations

import pytest

from tests.integrations.adapter_contract import AdapterContract
from tests.integrations.extras import need

need("langgraph", "langgraph")

from runner.integrations.langgraph import LangGraphNode  # noqa: E402 - only where the extra is installed
from tests.integrations.langgraph_graphs import asks, graph, text  # noqa: E402 - as above

pytestmark = pytest.mark.full


def start(visit):
    """Begin with no notes: the task is not part of the output."""
    del visit
    return {"notes": []}


def node(**nodes):
    return LangGraphNode(graph(**nodes), input=start, output=text)


def broken(state):
    raise ValueError("broken")


class TestLangGraphNode(AdapterContract):
    def succeeds(self):
        return node(end=lambda state: {"notes": ["done"]})

    def fails(self):
        return node(end=broken)

    def asks_once(self):
        return node(ask=asks("sky"))

    def asks_twice(self):
        return node(ask=asks("sky", "sea"))

    def asks_both(self):
        return node(first=asks("sky"), second=asks("sea"))

    def asks_then_fails(self):
        def ask(state):
            return self.failing_once(lambda answer: answer)(asks("sky")(state))

        return node(ask=ask)
