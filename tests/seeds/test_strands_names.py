"""Programs for Strands with their lines untouched: the second seed's example, and three that ask."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.extras import need

pytestmark = pytest.mark.full

need("strands", "strands")

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "from-strands.md"

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
"""


CLEANING = """
from strands import Agent, tool
from strands.hooks import BeforeToolCallEvent, HookProvider, HookRegistry
from strands.session import FileSessionManager
from strands.types.tools import ToolContext

removed = []

@tool
def remove(paths: list[str]) -> bool:
    "Remove files."
    removed.extend(paths)
    return True

class Janitor:
    @tool(context=True)
    def remove(self, tool_context: ToolContext, paths: list[str]) -> bool:
        "Remove files."
        if tool_context.interrupt("sure", reason={"paths": paths}).lower() != "y":
            return False
        removed.extend(paths)
        return True

class Ask(HookProvider):
    def register_hooks(self, registry: HookRegistry, **kwargs) -> None:
        registry.add_callback(BeforeToolCallEvent, self.approve)

    def approve(self, event: BeforeToolCallEvent) -> None:
        if event.tool_use["name"] != "remove" or event.agent.state.get("trust") == "t":
            return
        answer = event.interrupt("sure", reason={"paths": event.tool_use["input"]["paths"]})
        if answer.lower() not in ["y", "t"]:
            event.cancel_tool = "not allowed"
        event.agent.state.set("trust", answer.lower())

def serve(prompt, **options):
    return Agent(system_prompt="Tidy up.", callback_handler=None, **options)(prompt)

def ask_until_done(call, answer):
    result = call("tidy up, please")
    asked = 0
    while result.stop_reason == "interrupt":
        asked += 1
        assert [each.reason for each in result.interrupts] == [{"paths": ["a.txt"]}]
        result = call([
            {"interruptResponse": {"interruptId": each.id, "response": answer}}
            for each in result.interrupts
        ])
    return asked, str(result.message)
"""

CALL = """
use = {"toolUse": {"name": "remove", "input": {"paths": ["a.txt"]}}}
replies = [use, lambda messages: str(messages[-1]["content"])]
script = ScriptedModel(replies * 2)
"""

SHAPES = {
    "a callback approves": """
agent = Agent(tools=[remove], hooks=[Ask()], callback_handler=None)
assert ask_until_done(agent, "n")[0] == 1 and removed == []
assert "not allowed" in str(agent.messages)
""",
    "a method asks": """
agent = Agent(tools=[Janitor().remove], callback_handler=None)
assert ask_until_done(agent, "y")[0] == 1 and removed == ["a.txt"]
""",
    "each request makes its agent": """
def call(prompt):
    manager = FileSessionManager(session_id="tidy", storage_dir=FOLDER)
    return serve(prompt, tools=[remove], hooks=[Ask()], session_manager=manager)

assert ask_until_done(call, "t")[0] == 1 and removed == ["a.txt"]
assert ask_until_done(call, "t")[0] == 0 and removed == ["a.txt"] * 2
""",
    "a hook approves a node": """
from strands.hooks import BeforeNodeCallEvent
from strands.multiagent import Swarm
from strands.multiagent.base import Status

class AskForNode(HookProvider):
    def register_hooks(self, registry: HookRegistry, **kwargs) -> None:
        registry.add_callback(BeforeNodeCallEvent, self.approve)

    def approve(self, event: BeforeNodeCallEvent) -> None:
        if event.node_id == "tidy" and event.interrupt("sure", reason="disk") != "y":
            event.cancel_node = "not allowed"

tidy = Agent(name="tidy", tools=[remove], callback_handler=None)
swarm = Swarm([tidy], hooks=[AskForNode()])
result, asked = swarm("tidy up, please"), 0
while result.status == Status.INTERRUPTED:
    asked += 1
    result = swarm([
        {"interruptResponse": {"interruptId": each.id, "response": "y"}}
        for each in result.interrupts
    ])
assert (asked, result.status, removed) == (1, Status.COMPLETED, ["a.txt"])
""",
}
"""Programs of the shapes of Strands' public examples, which from-strands.md names, in other words."""

REFUSED = """
from strands.multiagent import GraphBuilder, Swarm

manager = FileSessionManager(session_id="tidy", storage_dir=FOLDER)
agent = Agent(tools=[remove], session_manager=manager)
for build in (lambda: GraphBuilder().add_node(agent), lambda: Swarm([agent])):
    try:
        build()
    except ValueError as error:
        assert "Session persistence is not supported" in str(error)
    else:
        raise AssertionError("not refused")
"""


MADE = """
from strands.hooks import AgentInitializedEvent, BaseHookEvent, HookEvent, MultiAgentInitializedEvent
from strands.multiagent import GraphBuilder, Swarm

made = []

def note(event: AgentInitializedEvent | MultiAgentInitializedEvent):
    made.append(event)

async def late(event: AgentInitializedEvent):
    made.append(event.agent.name)

agent = Agent(name="a", hooks=[note])
builder = GraphBuilder()
builder.add_node(agent, "a")
builder.set_hook_providers([note])
graph, swarm = builder.build(), Swarm([Agent(name="b")], hooks=[note])
assert [type(event) for event in made] == [AgentInitializedEvent] + [MultiAgentInitializedEvent] * 2
assert made[0].agent is agent and [event.source for event in made[1:]] == [graph, swarm]
assert isinstance(made[0], HookEvent) and not isinstance(made[1], HookEvent)
assert isinstance(made[1], BaseHookEvent)
assert "sonnet" in str(agent.model.get_config())
Agent(name="c", hooks=[late])
assert made[-1] == "c"
"""

JOINED = """
from strands.multiagent import GraphBuilder
from strands.multiagent.base import Status
from strands.multiagent.graph import GraphState

def all_done(state: GraphState) -> bool:
    return all(
        name in state.results and state.results[name].status == Status.COMPLETED for name in "ab"
    )

def has_said(state: GraphState) -> bool:
    nodes = {node.node_id for node in state.execution_order}
    return "c" in nodes and "said" in str(state.results["c"].result)

script = ScriptedModel(["said"] * 4)
builder = GraphBuilder()
for name in "abcd":
    builder.add_node(Agent(name=name, callback_handler=None), name)
for source, target, condition in ("a", "c", all_done), ("b", "c", all_done), ("c", "d", has_said):
    builder.add_edge(source, target, condition=condition)
graph = builder.build()
result = graph("go")
assert sorted(node.node_id for node in result.execution_order) == list("abcd")
assert isinstance(graph.state, GraphState) and len(graph.state.completed_nodes) == 4
"""

NESTED = """
from strands.agent import AgentResult
from strands.multiagent import GraphBuilder, Swarm
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, NodeResult, Status
from strands.telemetry.metrics import EventLoopMetrics

def say(messages):
    told.append([block["text"].rstrip() for block in messages[0]["content"]])
    return "said"

class Team(MultiAgentBase):
    async def stream_async(self, task, invocation_state=None, **kwargs):
        message = {"role": "assistant", "content": [{"text": "a team's word"}]}
        result = AgentResult("end_turn", message, EventLoopMetrics(), {})
        nodes = {"one": NodeResult(result, status=Status.COMPLETED)}
        yield {"result": MultiAgentResult(Status.COMPLETED, nodes)}

    async def invoke_async(self, task, invocation_state=None, **kwargs):
        raise NotImplementedError

    serialize_state = deserialize_state = invoke_async

told = []
outer = GraphBuilder()
outer.add_node(Team(), "team")
outer.add_node(Agent(name="last", callback_handler=None), "last")
outer.add_edge("team", "last")
script = ScriptedModel([say])
outer.build()("go")
pair = [Agent(name=name, callback_handler=None) for name in "ab"]
for inner in (Swarm(pair[:1]), pair[1]):
    builder = GraphBuilder()
    builder.add_node(inner, "inner")
    graph = builder.build()
    outer = GraphBuilder()
    outer.add_node(Agent(name="first", callback_handler=None), "first")
    outer.add_node(graph, "graph")
    outer.add_edge("first", "graph")
    script = ScriptedModel([say] * 2)
    result = outer.build()("go")
    assert result.results["graph"].result.results["inner"].status.value == "completed"
print(told)
"""

BEGUN = """
manager = FileSessionManager(session_id="old", storage_dir=FOLDER)
agent = Agent(tools=[remove], session_manager=manager, callback_handler=None, state={"runs": 0})
begun = len(agent.messages)
assert agent.state.get("runs") == (1 if begun else 0)
agent.state.set("runs", 1)
agent("tidy up, please")
sent = [block for message in agent.messages for block in message["content"]]
assert sum("toolUse" in block for block in sent) == sum("toolResult" in block for block in sent)
print(len(agent.messages))
"""


FORKS = """
import gc
import json
import os
import sys

import boto3
import runner.compat.strands
import runner.testing

gc.freeze()
for line in sys.stdin:
    if not (child := os.fork()):
        program, folder = json.loads(line)
        for number in 1, 2:
            os.dup2(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY), number)
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print(flush=True)
"""
"""Runs each program in a fork of one process, since the imports take longer than most of the programs."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a program on this library by the two lines ahead of it; return its output and its errors."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {"AWS_REGION": "us-east-1", "PATH": ""}
    with subprocess.Popen(command, env=environment, **pipes) as forks:

        def run(program: str, first: str = FIRST) -> tuple[str, ...]:
            folder = tmp_path_factory.mktemp("program")
            request = [first + program + "\nprint('ended')", str(folder)]
            print(json.dumps(request), file=forks.stdin, flush=True)
            assert forks.stdout.readline() == "\n"
            return tuple((folder / number).read_text().strip() for number in "12")

        yield run
        forks.stdin.close()


def test_the_example_runs_with_its_imports(run):
    """Two lines ahead of it make the program run on this library; the model is what it has no key for."""
    assert run(MODEL + EXAMPLE + LAST) == ("ended", "")


@pytest.mark.parametrize("first", ["", FIRST], ids=["Strands", "here"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_programs_that_ask_run_unchanged(run, shape, first, tmp_path):
    """They end in the same way on Strands itself and here: callbacks, a tool, and a session ask."""
    folder = f"FOLDER = {str(tmp_path)!r}\n"
    assert run(MODEL + CALL + CLEANING + folder + shape, first) == ("ended", "")


@pytest.mark.parametrize("first", ["", FIRST], ids=["Strands", "here"])
def test_conditions_see_strands_state(run, first):
    """The pattern of Strands' docs for a join of all compares statuses, nodes and texts of results."""
    assert run(MODEL + CALL + CLEANING + JOINED, first) == ("ended", "")


def test_a_nested_graph_is_told_the_same(run):
    """The graph, and a swarm in it, get the task and the output of the node before as in Strands."""
    told = run(MODEL + CALL + CLEANING + NESTED, "")
    assert "Original Task: go" in told[0]
    assert run(MODEL + CALL + CLEANING + NESTED) == told


def test_a_session_of_strands_goes_on(run, tmp_path):
    """An agent here knows what an agent of Strands has said and kept."""
    folder = f"FOLDER = {str(tmp_path)!r}\n"
    assert run(MODEL + CALL + CLEANING + folder + BEGUN, "") == ("4\nended", "")
    assert run(MODEL + CALL + CLEANING + folder + BEGUN) == ("8\nended", "")


def test_the_page_counts_the_changed_lines_of_each_program():
    """The lines ahead of a program are all that changes."""
    row = re.compile(r"^\| (.*?) \| \[.*\]\(https://.*\) \| (\d) \|$", re.MULTILINE)
    rows = row.findall(GUIDE.read_text())
    count = len([line for line in FIRST.splitlines() if line])
    assert rows == [(shape, str(count)) for shape in SHAPES]
    assert count <= 5


def test_agents_with_a_session_manager_are_refused(run, tmp_path):
    """A graph and a swarm refuse them, as Strands does, in place of forgetting what they said."""
    folder = f"FOLDER = {str(tmp_path)!r}\n"
    assert run(CLEANING + folder + REFUSED) == ("ended", "")


def test_events_of_making_fire_where_strands_fires_them(run):
    """For an agent, a graph and a swarm; a callback may be async."""
    assert run(CLEANING + MADE) == ("ended", "")
