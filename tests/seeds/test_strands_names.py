"""The second seed's example with its lines untouched, the imports from `strands` too."""

from __future__ import annotations

import subprocess
import sys

from tests.integrations.extras import need

need("strands", "strands")

FIRST = """
import runner.compat.strands

runner.compat.strands.install()
"""

MODEL = """
import strands.models.bedrock

from runner.testing import ScriptedModel

replies = [{"toolUse": {"name": "weather_tool"}}, lambda messages: str(messages[-1]["content"])]
script = ScriptedModel(replies)
strands.models.bedrock.BedrockModel.stream = lambda self, *args, **options: script.stream(*args)
"""

EXAMPLE = """
from strands import Agent, tool
from strands.multiagent import GraphBuilder
from strands.multiagent.base import Status
from strands.types.tools import ToolContext

@tool(name="weather_tool", context=True)
def weather_tool(tool_context: ToolContext) -> str:
    response = tool_context.interrupt("weather_approval", reason="need location")
    return f"Weather in {response}: sunny"

weather_agent = Agent(name="weather", tools=[weather_tool])

builder = GraphBuilder()
builder.add_node(weather_agent, "weather_agent")
graph = builder.build()

# First invocation - will be interrupted
result = graph("What is the weather?")
assert result.status == Status.INTERRUPTED
assert len(result.interrupts) == 1
assert result.interrupts[0].name == "weather_approval"

# Resume with response
responses = [
    {
        "interruptResponse": {
            "interruptId": result.interrupts[0].id,
            "response": "Seattle",
        },
    },
]
result = graph(responses)
assert result.status == Status.COMPLETED
"""

LAST = """
import runner

assert isinstance(graph, runner.Graph)
assert "Weather in Seattle: sunny" in str(result.results["weather_agent"].result)
print("as written")
"""


def test_the_example_runs_with_its_imports():
    """Two lines ahead of it make the program run on this library; the model is what it has no key for."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST + MODEL + EXAMPLE + LAST],
        capture_output=True,
        text=True,
        timeout=120,
        env={"AWS_REGION": "us-east-1", "PATH": ""},
        check=False,
    )

    assert (ended.stdout.strip(), ended.stderr) == ("as written", "")
