"""Agents of the Claude Agent SDK as nodes: the Claude Code of its wheel, with a model on this machine."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("claude_agent_sdk", reason="168 MB: install the extra `claude-agent` alone")

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKError,
    create_sdk_mcp_server,
    query,
    tool,
)
from claude_agent_sdk._internal.query import Query
from claude_agent_sdk.testing import run_session_store_conformance

from runner import GraphBuilder, Status
from runner.approvals import freezes, freezing
from runner.approvals.rules import Rule
from runner.errors import DefinitionError, LeaseLost
from runner.integrations import claude_agent
from runner.integrations.claude_agent import ClaudeAgent, DocumentStore
from runner.records import failures
from runner.records.outcomes import Interrupted
from runner.testing import ManualClock
from tests.celery.sites import databases
from tests.execution.test_effects import vote
from tests.execution.test_freezes import GRAPHS, Site
from tests.integrations.adapter_contract import StoredNode, done, waits
from tests.integrations.messages_server import model
from tests.waiting import wait_until

pytestmark = pytest.mark.full

__all__ = ["databases"]

PAY = "mcp__shop__pay"
FREE = {"allowed_tools": [PAY]}
MADE: list[str] = []


@pytest.fixture(autouse=True)
def no_calls():
    MADE.clear()


def use(name, number, **given):
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}


def pay(number, order):
    return use(PAY, number, order=order)


@pytest.fixture
def claude(tmp_path):
    """Make a node whose model gives these replies, and then says what its tools have returned."""

    @tool("pay", "Pay an order.", {"order": str})
    async def pay(given):
        MADE.append(given["order"])
        return {"content": [{"type": "text", "text": f"{given['order']} is paid"}]}

    served = []

    def build(*replies, approval=None, gate=(PAY,), **changes):
        def reply(results):
            made = len(results)
            for each in replies:
                if not made:
                    return each
                made -= len(each)
            return [
                {"type": "text", "text": "; ".join(str(each["content"]) for each in results)}
            ]

        context = model(reply)
        served.append(context)
        env = {
            "ANTHROPIC_BASE_URL": context.__enter__(),
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        folders = iter(range(100))

        def options():
            """No file of an earlier execution is there, as on another machine."""
            folder = tmp_path / str(next(folders))
            folder.mkdir()
            given = {
                "cwd": folder,
                "env": {**env, "CLAUDE_CONFIG_DIR": str(folder / "config")},
                "mcp_servers": {"shop": create_sdk_mcp_server("shop", tools=[pay])},
                "setting_sources": [],
            }
            return ClaudeAgentOptions(**{**given, **changes})

        return ClaudeAgent(options, gate=gate, approval=approval, name="agent")

    yield build
    for context in served:
        context.__exit__(None, None, None)


def graph_of(adapter):
    builder = GraphBuilder()
    builder.add_node(adapter, "agent")
    return builder.build()


def test_the_store_is_one_for_the_sdk():
    """It passes the SDK's conformance kit; control: one that forgets the projects does not."""

    class Mixed(DocumentStore):
        def _of(self, key):
            return [row for row in self.rows if row["key"]["session_id"] == key["session_id"]]

    asyncio.run(run_session_store_conformance(DocumentStore))
    with pytest.raises(AssertionError):
        asyncio.run(run_session_store_conformance(Mixed))


@pytest.mark.parametrize(
    ("answer", "made", "said"),
    [
        (True, ["7"], "7 is paid"),
        ({"kind": "tool-approved", "override_args": {"order": "9"}}, ["9"], "9 is paid"),
        ({"kind": "tool-denied", "message": "not today"}, [], "not today"),
    ],
)
def test_a_gated_call_is_a_question(claude, answer, made, said):
    """It has the exact input; the call is made as it was answered, and no token is counted twice."""
    adapter = claude([pay(1, "7")])
    run = StoredNode(lambda: adapter)
    [question] = waits(run.execute())
    assert (question.name, question.reason["args"], MADE) == (PAY, {"order": "7"}, [])

    run.answer(question, answer)
    ended = done(run.execute())

    assert (MADE, said in ended.output) == (made, True)
    assert ended.usage == {"inputTokens": 20, "outputTokens": 10, "totalTokens": 30}


def test_a_call_that_has_no_digest_is_refused_to_the_model(claude):
    """A number that JSON programs round is shown to no one, and the model learns why."""
    adapter = claude([use(PAY, 1, order="7", amount=2**60)])

    ended = done(StoredNode(lambda: adapter).execute())

    assert MADE == []
    assert "The call was not made" in ended.output


@pytest.mark.parametrize("name", ["Bash", "Write"])
@pytest.mark.parametrize("how", ["gated", "without the rule to ask", "not gated"])
def test_a_denied_call_is_not_made(claude, tmp_path, monkeypatch, name, how):
    """Also where Claude Code knows the hooks late and the options allow it; the controls are made."""
    initialize = Query.initialize

    async def slow(query):
        await asyncio.sleep(8)
        return await initialize(query)

    file = tmp_path / "effect"
    tool_input = {
        "Bash": {"command": f"touch {file}", "description": "Touch."},
        "Write": {"file_path": str(file), "content": "x"},
    }[name]
    adapter = claude(
        [use(name, 1, **tool_input)],
        gate=[] if how == "not gated" else [name],
        allowed_tools=[name],
        permission_mode="acceptEdits",
    )
    run = StoredNode(lambda: adapter)
    outcome = run.execute()
    if how != "not gated":
        [question] = waits(outcome)
        run.answer(question, False)
        monkeypatch.setattr(Query, "initialize", slow)
        if how != "gated":
            settings = json.dumps({"permissions": {"allow": [name]}})
            monkeypatch.setattr(claude_agent, "_settings", lambda *_: settings)
        outcome = run.execute()

    assert ("was denied" in done(outcome).output) is (how == "gated")
    assert file.exists() is (how != "gated")


def test_no_call_is_made_that_was_not_asked_for(claude):
    """Of two in one reply none is; one with the id, the name and the input of another is a question, too."""
    adapter = claude([pay(1, "7"), pay(2, "8")], [pay(3, "7")], [pay(3, "7")])
    run = StoredNode(lambda: adapter)
    asked = []
    while isinstance(outcome := run.execute(), Interrupted):
        [question] = outcome.interrupts
        asked.append(question.id)
        assert len(MADE) < len(asked)
        run.answer(question, True)

    done(outcome)
    assert len(set(asked)) == len(asked) == len(MADE)


@pytest.mark.parametrize("changed", ["nothing", "the call", "the transcript"])
def test_a_call_that_was_changed_after_its_approval_is_not_made(claude, run_graph, changed):
    """The call is compared with what was approved, which holds the node; another one is another question."""
    adapter = claude([pay(1, "7")], approval=Rule())

    def altered(visit):
        if visit.document and changed == "the call":
            visit.document["call"]["input"] = {"order": "9"}
        if visit.document and changed == "the transcript":
            text = json.dumps(visit.messages)
            assert '{"order": "7"}' in text
            visit.messages[:] = json.loads(text.replace('{"order": "7"}', '{"order": "9"}'))
        return visit

    class Altered(ClaudeAgent):
        async def _execute(self, visit):
            return await super()._execute(altered(visit))

    adapter.__class__ = Altered
    run = run_graph(graph_of(adapter), "go")
    vote(run, "ana")

    ends = {
        "nothing": (Status.COMPLETED, ["7"]),
        "the call": (Status.NEEDS_MIGRATION, []),
        "the transcript": (Status.INTERRUPTED, []),
    }
    assert (run.status, MADE) == ends[changed]


@pytest.mark.parametrize(
    "changes",
    [
        {"permission_mode": "bypassPermissions"},
        {"resume": "x"},
        {"continue_conversation": True},
        {"extra_args": {"settings": "{}"}},
        {"settings": '{"sandbox": {"enabled": true}}'},
    ],
)
def test_options_that_go_round_decisions_are_refused(claude, changes):
    """The node fails before Claude Code is started."""
    error = failures.restore(StoredNode(lambda: claude(**changes)).execute().error)

    assert isinstance(error, DefinitionError)
    words = ("permission", "--settings", "sandbox", next(iter(changes)))
    assert any(word in str(error) for word in words)


def test_a_gate_is_a_list_of_names(claude):
    """A single name would be read as its letters, and gate nothing."""
    with pytest.raises(DefinitionError, match="list"):
        claude(gate=PAY)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"permissions": []}'])
def test_settings_that_can_not_be_read_are_refused(claude, tmp_path, text):
    """The error names the file; control: one that has settings, in the folder of Claude Code, with a BOM."""
    adapter = claude(settings="mine.json", cwd=tmp_path)
    (tmp_path / "mine.json").write_text('\ufeff{"permissions": {"ask": ["Bash"]}}')
    done(StoredNode(lambda: adapter).execute())

    (tmp_path / "mine.json").unlink()
    if text is not None:
        (tmp_path / "mine.json").write_text(text)
    error = failures.restore(StoredNode(lambda: adapter).execute().error)
    assert isinstance(error, DefinitionError)
    assert "mine.json" in str(error)


async def broken(**options):
    async for message in query(**options):
        yield message
    if not MADE:
        raise ClaudeSDKError("the process is gone")


@pytest.mark.parametrize("name", [PAY, "other"])
@pytest.mark.parametrize("ends", [query, broken])
def test_a_frozen_tool_is_not_called(monkeypatch, claude, name, ends, in_redis):
    """The node waits for the thaw, and then calls it, also where Claude Code ends with an error of its own.

    Control: a freeze of another tool lets it run.
    """
    monkeypatch.setattr(claude_agent, "query", ends)
    monkeypatch.setattr(freezes, "LOOK_EVERY", 0.0)
    monkeypatch.setitem(
        GRAPHS, "claude", lambda: graph_of(claude([pay(1, "7")], gate=(), **FREE))
    )
    clock = ManualClock()
    site = Site(in_redis(clock), clock)
    freezing.freeze(site.engine, f"tool:{name}", "fraud", force=True)
    run_id = site.engine.start("claude", "go")
    site.deliver()
    assert ["7"][: name == "other"] == MADE

    freezing.thaw(site.engine, f"tool:{name}", "over")
    site.sweep(16)
    assert (site.store.peek(run_id).status, MADE) == (Status.COMPLETED, ["7"])


def test_a_lost_visit_makes_no_call(claude):
    """A worker that has lost its visit ends Claude Code."""
    adapter = claude([pay(1, "7")], gate=(), **FREE)
    run = StoredNode(lambda: adapter)
    run.lost = True
    with pytest.raises(LeaseLost):
        run.execute()
    assert MADE == []


@pytest.mark.parametrize(
    ("decision", "response", "made"),
    [("approve", None, ["7"]), ("edit", {"order": "9"}, ["9"]), ("reject", None, [])],
)
def test_a_rule_decides_calls(run_graph, claude, decision, response, made):
    """People vote on the exact call; the vote is used by it."""
    run = run_graph(graph_of(claude([pay(1, "7")], approval=Rule())), "go")
    [question] = run.interrupts
    assert (question.action["tool"], question.action["args"]) == (PAY, {"order": "7"})
    assert vote(run, "ana", decision, response, question=question.id) == "accepted"

    assert (run.status, MADE) == (Status.COMPLETED, made)


@pytest.mark.slow
def test_another_worker_goes_on(databases, tmp_path):
    """The worker that asked is ended with kill -9; another one makes the call, once, and the run ends."""
    site, file = next(databases), tmp_path / "effect"
    command = use("Bash", 1, command=f"echo made >> {file}", description="Note.")

    def reply(results):
        return [{"type": "text", "text": "done"}] if results else [command]

    with model(reply) as url:
        worker = {"RUNNER_GRAPHS": "tests.integrations.claude_graphs", "RUNNER_LEASE": "10"}
        worker |= {"MODEL": url, "FOLDER": str(tmp_path)}
        try:
            site.ready(1, **worker)
            run = site.client.start("claude", "go")
            assert run.wait(120).status is Status.INTERRUPTED
            site.workers[0].kill()
            site.ready(1, **worker)
            (question,) = run.interrupts()
            site.client.vote(question.id, "approve", by="ana")
            wait_until(lambda: run.status is Status.COMPLETED, "the run has completed")
        finally:
            site.end()

    assert (file.read_text(), run.result().results["asker"].output) == ("made\n", "done")
