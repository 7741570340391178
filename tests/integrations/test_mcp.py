"""Tools of a real MCP server over stdio, used by our agents."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner import GraphBuilder, RetryAfter, Status, async_loop
from runner.agent import Agent
from runner.agent.models.scripted import ScriptedModel
from runner.errors import DefinitionError
from runner.store.requests import CancelRun, WithdrawQuestion
from tests.integrations.extras import need
from tests.waiting import wait_until

need("mcp", "mcp")

from mcp import MCPError, StdioServerParameters  # noqa: E402 - only where the extra is installed

from runner.integrations.mcp import (  # noqa: E402 - likewise
    McpServer,
    McpTool,
    is_flat,
    mcp_tools,
    pause_after,
)
from tests.integrations import mcp_server  # noqa: E402 - likewise

pytestmark = pytest.mark.full

SERVER = Path(__file__).with_name("mcp_server.py")
PARAMETERS = StdioServerParameters(command=sys.executable, args=[str(SERVER)])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """The folder of the server's tasks."""
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def server(tasks):
    parameters = PARAMETERS.model_copy(update={"env": {"MCP_TASKS": str(tasks)}})
    return McpServer(parameters, call_timeout=60)


def call(name, **arguments):
    return {"toolUse": {"toolUseId": "t1", "name": name, "input": arguments}}


def run(server, *calls):
    """Let an agent make these calls, one a turn, and return what each gave it."""
    agent = Agent(
        name="a",
        model=ScriptedModel([*([each] for each in calls), "done"]),
        tools=server.tools(),
    )
    result = agent("go")
    assert str(result).strip() == "done"
    found = [
        part["toolResult"]
        for message in agent.messages
        for part in message["content"]
        if "toolResult" in part
    ]
    return [(each["status"], each["content"][0]["text"]) for each in found]


def test_a_tool_is_told_to_the_model_and_called(server):
    """The model sees name, description and schema; its call reaches the server."""
    spec = next(tool.tool_spec for tool in server.tools() if tool.tool_name == "add")

    assert spec["description"] == "Add two numbers."
    assert set(spec["inputSchema"]["json"]["properties"]) == {"first", "second"}
    assert run(server, call("add", first=2, second=3)) == [("success", "5")]


def test_an_error_of_the_tool_is_an_error_result(server):
    """What the server's tool raises becomes a result that the model can read."""
    [(status, text)] = run(server, call("refuse"))

    assert status == "error"
    assert "not today" in text


@pytest.mark.slow
def test_a_server_that_died_is_started_again(server, monkeypatch):
    """The call in which it died is an error and is not repeated; the next one has a new server."""
    registered = []
    monkeypatch.setattr(
        atexit, "register", lambda function, *_, **__: registered.append(function)
    )
    [(first, _)] = run(server, call("die"))
    [(second, text)] = run(server, call("add", first=1, second=1))

    assert (first, second, text) == ("error", "success", "2")
    assert server._end not in registered  # the end of the process ends it once


def test_one_session_serves_a_process(server):
    """Several calls meet the same server process."""
    [(_, first)] = run(server, call("process"))
    [(_, second)] = run(server, call("process"))

    assert first == second


@pytest.mark.slow
def test_only_the_tools_that_are_wanted():
    """Names choose; one that the server lacks is an error where the agent is built."""
    assert [tool.tool_name for tool in mcp_tools(PARAMETERS, ["add"])] == ["add"]
    with pytest.raises(DefinitionError, match="no tool \\['other'\\]"):
        mcp_tools(PARAMETERS, ["other"])


def test_a_server_that_can_not_start_is_a_definition_error():
    """A command that does not exist is reported when the tools are asked for."""
    with pytest.raises(DefinitionError, match="can't be used"):
        mcp_tools(StdioServerParameters(command="no-such-program"))


def test_a_server_that_never_introduces_itself_is_ended(tmp_path, monkeypatch):
    """Each attempt starts one, which has ended when the attempt has."""
    monkeypatch.setattr("runner.integrations.mcp.START_WITHIN", 0.1)
    # The shell ends when its input does, however late it runs.
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", 60, raising=False)
    started = tmp_path / "started"
    script = 'echo $$ >> "$0"; while read -r request; do :; done'
    silent = StdioServerParameters(command="sh", args=["-c", script, str(started)])
    server = McpServer(silent)
    for _ in range(2):
        with pytest.raises(DefinitionError, match="has not introduced itself"):
            server.tools()

    processes = [int(line) for line in started.read_text().split()]
    assert [alive(process) for process in processes] == [False, False]


# -- a server that asks ------------------------------------------------------------------------------


def answers(*pairs):
    return [
        {"interruptResponse": {"interruptId": question.id, "response": response}}
        for question, response in pairs
    ]


def agent_of(server, *calls):
    return Agent(name="a", model=ScriptedModel([list(calls), "done"]), tools=server.tools())


def results(agent):
    return [
        block["toolResult"]["content"][0]["text"]
        for message in agent.messages
        for block in message["content"]
        if "toolResult" in block
    ]


def test_what_a_server_asks_is_a_question(server):
    """A form is the schema of the answer, a link is in the reason; the call goes on with both answers."""
    agent = agent_of(server, call("book", guests=4, deposit=True))

    day, deposit = agent("go").interrupts
    assert (day.name, day.reason) == ("book", {"message": "Which day?", "tool": "book"})
    assert day.response_schema["properties"]["day"]["enum"] == ["Monday", "Friday"]
    assert deposit.reason["link"] == "https://pay.example/7"
    assert [question.id for question in agent(answers((deposit, "accept"))).interrupts] == [
        day.id
    ]
    (again,) = agent(answers((day, {"day": "Friday"}))).interrupts
    assert again.id != day.id
    agent(answers((again, {"day": "Monday"})))

    assert results(agent) == ["4 guests: accept Friday, accept: accept Monday"]


def test_a_server_that_asks_keeps_its_session(server):
    """Other calls go on in the session in which one waits, or asked for what people can't give."""
    [(_, before)] = run(server, call("process"))

    assert len(agent_of(server, call("book", guests=4))("go").interrupts) == 1
    assert run(server, call("process")) == [("success", before)]
    [(status, text)] = run(server, call("roots"))

    assert (status, "roots/list" in text) == ("error", True)
    assert run(server, call("process")) == [("success", before)]


def test_a_server_asks_in_flat_forms_alone(server):
    """Another schema, which could keep the process busy for hours, is an error result for the model."""
    [(status, text)] = run(server, call("interrogate"))
    assert (status, "lacks the form of an elicitation" in text) == ("error", True)
    assert len(agent_of(server, call("book", guests=4))("go").interrupts) == 1


@pytest.mark.parametrize(
    ("field", "flat"),
    [
        ({"type": "string", "format": "email", "minLength": 1}, True),
        ({"type": "integer", "minimum": 1, "default": 2}, True),
        ({"type": "boolean"}, True),
        ({"type": "string", "enum": ["a"], "enumNames": ["A"]}, True),
        ({"type": "string", "oneOf": [{"const": "a", "title": "A"}]}, True),
        ({"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({"type": "object", "properties": {}}, False),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, False),
        ({"allOf": [{"type": "string"}]}, False),
        ({"$ref": "#"}, False),
        (True, False),
    ],
)
def test_the_forms_of_elicitations_are_flat(field, flat):
    """Texts, numbers, booleans and choices, in an object; nothing else is a form."""
    form = {"type": "object", "properties": {"a": field}, "required": ["a"]}
    assert is_flat(form) is flat
    assert not is_flat({**form, "$defs": {}})
    assert not is_flat({**form, "additionalProperties": field})


def test_a_tool_whose_schema_has_too_many_paths_is_refused(server):
    """Where the agent is built, with its name; the other tools are there by `only`."""
    levels = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"type": "object", "$ref": "#/$defs/d0", "$defs": {**levels, "d40": {}}}
    definition = SimpleNamespace(name="odd", description="", input_schema=schema)
    with pytest.raises(DefinitionError, match="tool 'odd' can't be used: it unfolds"):
        McpTool(server, definition)
    definition.input_schema = {"type": "object"}
    assert McpTool(server, definition).tool_name == "odd"


def test_a_server_that_asks_to_be_called_again_is(server):
    """A result that asks no one is no answer: the call is sent again with its state."""
    assert run(server, call("later")) == [("success", "ready")]


def test_a_question_of_a_server_can_be_declined(server, run_graph):
    """Where an operator withdraws it, the server is told that people declined."""
    agent = agent_of(server, call("book", guests=4))
    builder = GraphBuilder()
    builder.add_node(agent, "a")
    run = run_graph(builder.build(), "go")
    (question,) = run.interrupts

    run.ring(run.store.do(WithdrawQuestion(question.id, "no tables", reask=False)).doorbells)
    run.go_on()

    messages = run.store.read(run.id, messages=True).messages["a"]
    assert "4 guests: decline None" in str(messages)


def test_a_server_that_always_asks_to_be_called_again_is_asked_rarely():
    """The pause grows to a minute, after any number of rounds."""
    assert [pause_after(number) for number in (1, 2, 12, 10_000)] == [0.1, 0.2, 60, 60]


def test_an_error_of_the_protocol_keeps_the_session(server):
    """A call that the server refuses is an error; the next one meets the same server process."""
    [(_, before)] = run(server, call("process"))
    [(status, text)] = run(server, call("broken"))

    assert (status, "out of order" in text) == ("error", True)
    assert run(server, call("process")) == [("success", before)]


def test_a_call_that_ends_late_closes_no_later_session():
    """Of two calls that break their session one ends when the next was opened, which stays open."""
    server = McpServer(mcp_server.server)  # in this process

    async def go():
        hung = asyncio.create_task(server._called("hang", {}))
        await mcp_server.begun.wait()
        session, forgotten = server._client, asyncio.create_task(server._called("forget", {}))
        while server._client is session:  # noqa: ASYNC110 - the next call begins in that moment
            await asyncio.sleep(0)
        sums = [await server._called("add", {"first": 1, "second": 2})]
        opened = server._client
        mcp_server.released.set()
        broken = await asyncio.gather(hung, forgotten, return_exceptions=True)
        sums.append(await server._called("add", {"first": 3, "second": 4}))
        sessions = session, opened, server._client
        await server._close(opened)
        return broken, sums, sessions

    broken, sums, (first, second, last) = async_loop.run(go())
    assert [type(error) for error in broken] == [MCPError] * 2
    assert [each["content"][0]["text"] for each in sums] == ["3", "7"]
    assert first is not second is last


# -- a call that goes on as a task ---------------------------------------------------------------------


@pytest.fixture
def cook(run_graph, clock, server, tasks):
    """Have an agent cook a dish; a minute later return the run and what the server's task has noted."""

    def cook(dish, server=server, within=lambda agent: agent):
        builder = GraphBuilder()
        builder.add_node(within(agent_of(server, call("cook", dish=dish))), "a")
        run = run_graph(builder.build(), "go")
        waited = run.status
        clock.advance(60)
        [file] = tasks.glob(f"{dish}-*.json")
        return waited, run, file

    yield cook
    for file in tasks.iterdir():
        file.unlink()


def told(run):
    """Return the only result of a tool that the model has got."""
    messages = run.store.read(run.id, messages=True).messages["a"]
    blocks = [block for message in messages for block in message["content"]]
    [result] = [block["toolResult"] for block in blocks if "toolResult" in block]
    return result["status"], result["content"][0]["text"]


def looks(file):
    return json.loads(file.read_text())["looks"]


def test_a_task_of_a_server_is_looked_at_until_it_ends(cook):
    """One call makes one task; the node waits for it without a slot, and an error of a look ends nothing."""
    waited, run, file = cook("soup")

    assert (waited, run.status) == (Status.EXECUTING, Status.COMPLETED)
    assert (told(run), looks(file)) == (("success", "soup"), 3)


def test_what_a_task_asks_is_a_question(cook, clock):
    """Its answer is sent once, and the task goes on; without it the task waits, and nobody looks at it."""
    _, run, file = cook("fish")
    (question,) = run.interrupts
    before = looks(file)
    clock.advance(60)
    unseen = looks(file) == before
    run.answer({"day": "Friday"})
    clock.advance(60)

    assert question.response_schema["required"] == ["day"]
    assert unseen
    answer = '{"day": {"action": "accept", "content": {"day": "Friday"}}}'
    assert told(run) == ("success", f"fish {answer}")


def test_a_direct_call_says_when_to_go_on(server, tasks):
    """It raises what a node would wait for; the next call looks at the same task."""
    agent = agent_of(server, call("cook", dish="soup"))
    with pytest.raises(RetryAfter, match="goes on as task"):
        agent("go")
    for _ in range(2):
        with pytest.raises(RetryAfter):
            agent([])
    agent([])
    [file] = tasks.glob("soup-*.json")
    file.unlink()

    assert results(agent) == ["soup"]


def test_a_task_that_failed_is_an_error_result(cook):
    """The model reads why."""
    _, run, _ = cook("stones")

    status, text = told(run)
    assert (status, "has failed. too hard" in text) == ("error", True)


@pytest.mark.slow
@pytest.mark.parametrize("dish", ["ash", "smoke", "mash"])
def test_a_task_that_can_not_be_read_is_an_error_result(cook, dish):
    """A status that is unknown or missing, or a result that is none: the server is told, and it is over."""
    _, run, file = cook(dish)

    status, text = told(run)
    assert (status, "tasks/get" in text) == ("error", True)
    assert json.loads(file.read_text())["status"] == "cancelled"


def test_a_task_that_never_ends_is_cancelled(cook, server, clock, monkeypatch):
    """After its time the server is told, and the model gets an error; until then the node waits on."""
    _, run, file = cook("nothing")
    before, running = run.status, json.loads(file.read_text())["status"]
    monkeypatch.setattr(server, "task_timeout", 0)
    clock.advance(60)

    assert (before, running) == (Status.EXECUTING, "working")
    status, text = told(run)
    assert (status, "end in time" in text) == ("error", True)
    assert json.loads(file.read_text())["status"] == "cancelled"


def tool_of_an_agent(agent):
    return Agent("host", ScriptedModel([[call("a", input="go")], "done"]), tools=[agent])


def graph_inside(agent):
    builder = GraphBuilder()
    builder.add_node(agent, "inner")
    return builder.build()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("within", "dish"),
    [(lambda agent: agent, "nothing"), (tool_of_an_agent, "fish"), (graph_inside, "fish")],
)
def test_a_task_of_a_cancelled_run_is_cancelled(cook, dish, within):
    """The server is told, also while people are asked; control: it is not while the run goes on."""
    _, run, file = cook(dish, within=within)
    before = json.loads(file.read_text())["status"]
    run.ring(run.store.do(CancelRun(run.id, "enough")).doorbells)
    run.go_on()

    assert (before, json.loads(file.read_text())["status"]) == ("working", "cancelled")
    assert run.status == Status.CANCELLED


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [True, False])
def test_a_server_that_hangs_fails_no_cancelled_run(run_graph, tmp_path, hangs):
    """A timeout of the last step would fail the run; control: the server is told where it does answer."""
    hung = asyncio.Event()
    methods = []

    class Server(McpServer):
        async def of_task(self, method, *args):
            if method == "tasks/cancel":
                methods.append(method)
                if hangs:
                    await hung.wait()
            return await super().of_task(method, *args)

    parameters = PARAMETERS.model_copy(update={"env": {"MCP_TASKS": str(tmp_path)}})
    builder = GraphBuilder().set_node_timeout(5)
    builder.add_node(agent_of(Server(parameters), call("cook", dish="nothing")), "a")
    run = run_graph(builder.build(), "go")
    run.ring(run.store.do(CancelRun(run.id, "enough")).doorbells)
    run.go_on()

    assert methods == ["tasks/cancel"]
    assert run.status == Status.CANCELLED


def test_a_task_that_the_server_lost_is_an_error_result(cook, clock):
    """What the server does not know any more is not looked at again."""
    _, run, file = cook("nothing")
    file.unlink()
    clock.advance(60)

    status, text = told(run)
    assert (status, "no such task" in text) == ("error", True)


@pytest.mark.slow
def test_a_server_ends_with_its_process():
    """When the process that uses it is killed, no server stays behind."""
    program = (
        "import sys, os, signal, asyncio; from mcp import StdioServerParameters; "
        "from runner.integrations.mcp import McpServer; "
        f"server = McpServer(StdioServerParameters(command=sys.executable, args=[{str(SERVER)!r}])); "
        "print(asyncio.run(server.call('process', {}))['content'][0]['text'], flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )

    pid = int(done.stdout)
    wait_until(lambda: not alive(pid), "the server has ended")


def alive(pid):
    """Tell whether a process runs; one that has ended and was not yet collected does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
