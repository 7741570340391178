"""Swarms of the released `strands-agents` and swarms here, side by side, and a swarm on workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.integrations.extras import need

need("strands", "strands")

import strands  # noqa: E402 - only where the extra is installed
import strands.multiagent  # noqa: E402

import runner  # noqa: E402
from runner.testing import ScriptedModel  # noqa: E402
from tests.differential.sides import Scripted, use  # noqa: E402

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("default"),  # another library's warnings
]

NAMES = ("ann", "bob", "eve")


@dataclass
class Turn:
    """What an agent does in its turn: ask a person, hand over (several times, the last counts)."""

    asks: bool = False
    handoffs: tuple[tuple[str, dict[str, Any]], ...] = ()


class Plays(Scripted):
    """Plays the turn that its prompt shows: how many agents have worked on the task before."""

    def __init__(self, turns, prompts):
        super().__init__(["unused"])
        self.turns, self.prompts = turns, prompts

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        said = [m for m in messages if m["role"] == "assistant"]
        texts = [block["text"] for block in messages[0]["content"]]
        number = count(texts[0])
        if not said:
            self.prompts.append(texts)
        turn = self.turns[number] if number < len(self.turns) else Turn()
        calls = [use("ask", f"ask{number}")] if turn.asks else []
        for at, (name, context) in enumerate(turn.handoffs):
            given = {"context": context} if context else {}
            calls.append(
                use(
                    "handoff_to_agent",
                    f"h{number}-{at}",
                    agent_name=name,
                    message=f"m{at}",
                    **given,
                )
            )
        reply = calls[len(said)] if len(said) < len(calls) else f"turn {number} ends"
        async for chunk in ScriptedModel([reply] * (len(said) + 1)).stream(
            messages, tool_specs, system_prompt
        ):
            yield chunk


def count(prompt: str) -> int:
    """Count the agents that have worked on the task, from the prompt."""
    line = next((x for x in prompt.splitlines() if x.startswith("Previous agents")), "")
    return line.count("→") + 1 if line else 0


def play(side: Any, turns: list[Turn], options: dict[str, Any], task: object = "go") -> Any:
    """Play a swarm to its end, answering all that it asks; return what happened."""
    prompts: list[Any] = []

    def ask(tool_context):
        """Ask a person."""
        return tool_context.interrupt("may I", reason="tool")

    ask.__annotations__["tool_context"] = side.ToolContext
    agents = [
        side.Agent(
            **({"callback_handler": None} if side is strands else {}),
            name=name,
            model=Plays(turns, prompts),
            tools=[side.tool(context=True)(ask)],
            description=f"{name}'s part" if name == "bob" else None,
        )
        for name in NAMES
    ]
    swarm = (strands.multiagent.Swarm if side is strands else runner.Swarm)(agents, **options)
    result, asked = swarm(task), []
    while result.status.value == "interrupted":
        assert len(asked) < 50
        asked.append([(each.name, each.reason) for each in result.interrupts])
        result = swarm(
            [
                {"interruptResponse": {"interruptId": each.id, "response": "yes"}}
                for each in result.interrupts
            ]
        )
    history = getattr(result, "node_history", None)
    order = result.execution_order if history is None else [node.node_id for node in history]
    texts = {name: str(node.result).strip() for name, node in result.results.items()}
    texts.pop(
        "@swarm", None
    )  # here a limit is the failure of the node that chooses the next one
    return result.status.value, order, prompts, asked, texts


contexts = st.dictionaries(st.sampled_from(["k", "l"]), st.integers(0, 9), max_size=2)
handoffs = st.lists(st.tuples(st.sampled_from([*NAMES, "nobody"]), contexts), max_size=2)
turns = st.builds(Turn, asks=st.booleans(), handoffs=handoffs.map(tuple))
limits = st.fixed_dictionaries(
    {},
    optional={
        "max_handoffs": st.integers(1, 5),
        "max_iterations": st.integers(1, 5),
        "repetitive_handoff_detection_window": st.integers(0, 4),
        "repetitive_handoff_min_unique_agents": st.integers(0, 3),
    },
)


@hypothesis.given(
    st.lists(turns, max_size=6), limits, st.sampled_from(["go", [{"text": "go"}]])
)
@hypothesis.settings(max_examples=max(10, 5 * hypothesis.settings.default.max_examples // 10))
def test_random_swarms(plan, options, task):
    """The order, every prompt, the questions, the status and the results are the same."""
    assert play(runner, plan, options, task) == play(strands, plan, options, task)
