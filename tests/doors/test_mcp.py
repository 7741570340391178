"""The MCP server, driven by the client of the SDK."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any, ClassVar, Literal

import pytest
from fastapi.testclient import TestClient

from runner.approvals import Principal, freezing
from runner.errors import UsageError
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.settings import DAY, Settings
from tests.doors.conftest import GRAPHS, LiveSite
from tests.integrations.extras import need
from tests.waiting import wait_until

need("mcp", "mcp")

import mcp_types as types  # noqa: E402 - only where the extra is installed
from mcp import Client  # noqa: E402 - likewise
from mcp.client.extension import ClientExtension, ResultClaim  # noqa: E402 - likewise
from mcp.server.request_state import RequestStateSecurity  # noqa: E402 - likewise
from mcp.shared.exceptions import MCPError  # noqa: E402 - likewise
from pydantic import Field  # noqa: E402 - beside those

from runner.doors.mcp import TASKS, Door, keys_of, serve_stdio  # noqa: E402 - likewise

pytestmark = [pytest.mark.full, pytest.mark.anyio]


class Started(types.Result):
    result_type: Literal["task"] = Field("task", alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str


class Tasks(ClientExtension):
    """The extension, for clients that ask for a task themselves."""

    identifier = TASKS

    def claims(self):
        return [ResultClaim(result_type="task", model=Started, resolve=None)]


class TaskParams(types.RequestParams):
    model_config: ClassVar = {"extra": "allow"}


class TaskCall(types.Request[Any, Any]):
    name_param = "taskId"


class Document(types.Result):
    model_config: ClassVar = {"extra": "allow"}


BEN = Person(Principal("ben"), frozenset(GRANTS))

MODERN = "2026-07-28"

ACCEPT = {"Accept": "application/json, text/event-stream"}


async def ask_user(context, params):
    raise AssertionError("nobody asks here")


@asynccontextmanager
async def connected(site, *extensions, person=None, answer=ask_user, **options):
    """Connect a client to the server in this process, as a person who may do everything."""
    door = Door(site.app.state.services, person or site.person)
    async with Client(
        door.server, elicitation_callback=answer, extensions=extensions, **options
    ) as client:
        yield client


async def call(client, tool, state=None, responses=None, **arguments):
    """Call a tool once, without what the client does by itself."""
    return await client.session.call_tool(
        tool,
        arguments,
        request_state=state,
        input_responses=responses,
        allow_input_required=True,
        allow_claimed=True,
    )


async def task_call(client, method, task_id, **fields):
    """Call a method of the extension, and return its result as JSON."""
    params = TaskParams(taskId=task_id, **fields)
    result = await client.session.send_request(TaskCall(method=method, params=params), Document)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def update(client, task_id, responses):
    """Answer questions of a task."""
    return await task_call(client, "tasks/update", task_id, inputResponses=responses)


async def task_that(client, task_id, status):
    """Wait for a state of a task, as clients do."""
    async with asyncio.timeout(60):
        while (task := await task_call(client, "tasks/get", task_id))["status"] != status:  # noqa: ASYNC110 - it polls
            await asyncio.sleep(0.01)
    return task


def questions_of(site, run_id, number=1):
    """Wait until a run has asked so many questions, and return them."""

    def asked():
        return [item for item in site.client.interrupts() if item.run_id == run_id]

    wait_until(lambda: len(asked()) == number, f"{number} questions")
    return asked()


def raw(method, named, version=MODERN, **params):
    """Return a request as it is sent, with its headers."""
    prefix = "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": version,
        f"{prefix}clientInfo": {"name": "test", "version": "1"},
        f"{prefix}clientCapabilities": {"extensions": {TASKS: {}}}
        if "taskId" in params
        else {},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": method, "Mcp-Name": named}
    return request, {**ACCEPT, **headers, "Content-Type": "application/json"}


def accept(**content):
    return types.ElicitResult(action="accept", content=content)


def accepted(**content):
    return {"action": "accept", "content": content}


def only(questions):
    ((key, question),) = questions.items()
    return key, question


def runs_of(site):
    return len([*site.client.runs()])


def as_agent(site):
    return replace(site.person, principal=Principal("ana", kind="agent"))


def refused(error):
    return error.value.error.code


async def test_graphs_that_are_named_are_tools(site):
    """A tool has the schema of its graph's task; what does not fit it starts nothing."""
    site.settings.mcp_graphs = ["typed"]

    async with connected(site) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert [name for name in tools if name.startswith("graph_")] == ["graph_typed"]
        assert tools["graph_typed"].input_schema["properties"]["task"]["type"] == "integer"
        assert tools["runs_list"].annotations.read_only_hint

        unfit = await call(client, "graph_typed", task="four")
        assert unfit.is_error
        assert runs_of(site) == 0
        done = await call(client, "graph_typed", task=4)
        assert done.structured_content == {"number": 4}
        with pytest.raises(MCPError, match="no tool"):
            await call(client, "graph_echo", task=4)


def test_results_have_the_schema_of_their_tool(site, monkeypatch):
    """The SDK's client checks outputs, and what says that a run goes on; who reads none gets no schema."""
    bells, ring = [], site.ring

    async def schemas(client):
        return {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}

    async def go(mode):
        monkeypatch.setattr("runner.doors.mcp.WAIT", 60)
        monkeypatch.setattr(site, "ring", ring)
        async with connected(site, answer=None, mode=mode) as client:
            offered = await schemas(client)
            assert offered["graph_planned"]["anyOf"][0]["required"] == ["trips"]
            assert offered["graph_text"] is None
            done = await client.call_tool("graph_planned", {"task": "Rome"})
            assert done.structured_content == {"trips": [{"city": "Rome", "day": "2026-07-28"}]}
            assert (await client.call_tool("graph_planned", {"task": 7})).is_error
            monkeypatch.setattr("runner.doors.mcp.WAIT", 0.01)
            monkeypatch.setattr(site, "ring", bells.extend)
            if mode == "legacy":
                assert "run_id" in (
                    (
                        await client.call_tool("graph_planned", {"task": "Oslo"})
                    ).structured_content
                )
        operator = Person(Principal("eve"), frozenset({"operator"}))
        async with connected(site, answer=None, mode=mode, person=operator) as client:
            assert (await schemas(client))["graph_planned"] is None

    for mode in ("legacy", MODERN):
        asyncio.run(go(mode))


async def test_a_repeated_call_with_its_key_is_one_run(site):
    """As after a lost response; another's key, other arguments and no key are calls of their own."""

    async def repeat(client, key, task=1):
        meta = {"celery-graph-runner/idempotency-key": key} if key else None
        result = await client.call_tool("graph_echo", {"task": task}, meta=meta)
        assert result.structured_content == {"task": task}
        return runs_of(site)

    async with connected(site) as client:
        assert [await repeat(client, "k") for _ in range(3)] == [1, 1, 1]
        assert await repeat(client, "k", task=2) == 2
        assert await repeat(client, None) == 3
    async with connected(site, person=replace(site.person, principal=Principal("ben"))) as c:
        assert await repeat(c, "k") == 4
    async with connected(site, Tasks()) as client:
        meta = {"celery-graph-runner/idempotency-key": "k"}
        started = await client.session.call_tool(
            "graph_echo", {"task": 1}, allow_claimed=True, meta=meta
        )
        assert (await task_that(client, started.task_id, "completed"))["result"]
        assert runs_of(site) == 4


async def test_a_failed_run_is_an_error_that_the_model_reads(site):
    """The result says which run failed, and why."""
    async with connected(site) as client:
        failed = await call(client, "graph_broken", task=4)
        assert failed.is_error
        assert "the secret printer is out of paper" in failed.content[0].text


@pytest.mark.parametrize(
    ("graph", "mode"),
    [
        ("text", "form"),
        ("form", "form"),
        ("rule", "form"),
        ("nested", "url"),
        ("pattern", "url"),
        ("hidden", "url"),
        ("long", "url"),
        ("risky", "url"),
        ("sure", "url"),
    ],
)
async def test_what_a_flat_form_can_t_ask_is_a_link(site, graph, mode):
    """Structure, constraints, length, high risk and logins lead to the page; nothing is cut."""
    async with connected(site) as client:
        asked = await call(client, f"graph_{graph}", task=1)
        _, question = only(asked.input_requests)
        assert question.params.mode == mode
        if mode == "url":
            assert question.params.url.startswith("https://runner.example/q/")
        else:
            assert "a late order" in question.params.message


async def test_no_line_of_an_agent_reads_as_the_call_or_the_votes(site):
    """The reason is quoted beside a rule: one call and one count stand at the beginning of a line."""
    async with connected(site) as client:
        asked = await call(client, "graph_spoof", task=1)
        _, question = only(asked.input_requests)
        lines = question.params.message.splitlines()
        assert "> So far: 2 of 2." in lines
        assert len([line for line in lines if line.startswith("refund {")]) == 1
        assert not any(line.startswith("So far") for line in lines)


@pytest.mark.parametrize(
    ("graph", "task"),
    [("one_field", {"task": "x"}), ("any_fields", {"apples": 1, "task": 2})],
)
async def test_the_fields_of_a_typed_task_are_the_arguments(site, graph, task):
    """A field that is called `task`, or fields that no schema names, are those of the task as well."""
    async with connected(site) as client:
        assert (await call(client, f"graph_{graph}", **task)).structured_content == task


async def test_the_client_asks_its_user_and_the_run_goes_on(site):
    """The SDK's client fills in the form and calls again: one run, with the answer."""

    async def answer(context, params):
        assert params.requested_schema["required"] == ["city", "days"]
        return accept(city="Rome", days=2)

    async with connected(site, answer=answer) as client:
        done = await client.call_tool("graph_form", {"task": 1})
        assert done.structured_content == {"said": {"city": "Rome", "days": 2}}
        assert runs_of(site) == 1
        await call(client, "graph_form", task=1)
        assert runs_of(site) == 2  # without the state it is another call


async def test_an_answer_that_does_not_fit_is_asked_again(site):
    """The client is told what is wrong, and the question stays open."""
    async with connected(site) as client:
        asked = await call(client, "graph_form", task=1)
        key, _ = only(asked.input_requests)
        wrong = {key: accept(city="Rome", days=0)}
        again = await call(client, "graph_form", asked.request_state, wrong, task=1)
        assert again.input_requests[key].params.message.startswith("Not accepted: days: 0 is")
        right = {key: accept(city="Rome", days=1)}
        done = await call(client, "graph_form", again.request_state, right, task=1)
        assert not done.is_error


async def test_a_decision_leaves_out_no_field(site):
    """An argument beside the decision is refused, and asked again; control: the decision alone counts."""
    async with connected(site) as client:
        asked = await call(client, "graph_rule", task=1)
        key, _ = only(asked.input_requests)
        changed = {key: accept(decision="approve", amount=1.5)}
        again = await call(client, "graph_rule", asked.request_state, changed, task=1)
        assert "amount" in again.input_requests[key].params.message
        (question,) = site.client.interrupts()
        assert site.votes(question) == []
        right = {key: accept(decision="approve")}
        done = await call(client, "graph_rule", again.request_state, right, task=1)
        assert done.structured_content == {"said": "approve"}


async def test_a_state_counts_for_its_call_and_its_caller_only(site):
    """A changed state, another tool, other arguments and another person are refused; as it is it counts."""
    async with connected(site) as client:
        asked = await call(client, "graph_text", task=1)
        state, responses = (
            asked.request_state,
            {only(asked.input_requests)[0]: accept(answer="yes")},
        )
        middle = len(state) // 2
        forged = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
        for tool, sent, task in (
            ("graph_text", forged, 1),
            ("graph_text", json.dumps({"run": "x"}), 1),
            ("graph_text", state, 2),
            ("graph_form", state, 1),
        ):
            with pytest.raises(MCPError, match="requestState") as error:
                await call(client, tool, sent, responses, task=task)
            assert refused(error) == types.INVALID_PARAMS
        async with connected(site, person=BEN) as other:
            with pytest.raises(MCPError, match="requestState"):
                await call(other, "graph_text", state, responses, task=1)
        assert [question.is_open for question in site.client.interrupts()] == [True]

        done = await call(client, "graph_text", state, responses, task=1)
        assert done.structured_content == {"said": "yes"}


async def test_every_server_with_the_keys_opens_a_state(site):
    """A call goes on at another server, after a change of keys too; without the key it is refused."""
    async with connected(site) as client:
        asked = await call(client, "graph_text", task=1)
    responses = {only(asked.input_requests)[0]: accept(answer="yes")}
    site.settings.mcp_keys = "n" * 32
    async with connected(site) as client:
        with pytest.raises(MCPError, match="requestState"):
            await call(client, "graph_text", asked.request_state, responses, task=1)
    site.settings.mcp_keys = f"{'n' * 32}, {'k' * 32}"
    async with connected(site) as client:
        done = await call(client, "graph_text", asked.request_state, responses, task=1)
        assert done.structured_content == {"said": "yes"}


async def test_a_state_counts_for_a_week(site):
    """After six days the call goes on where it was; after eight the state is refused."""
    codec = RequestStateSecurity(keys=["k" * 32]).codec

    def aged(state, days):
        claims = json.loads(codec.unseal(state))
        times = {name: claims[name] - days * DAY for name in ("iat", "exp")}
        return codec.seal(json.dumps({**claims, **times}).encode())

    async with connected(site) as client:
        asked = await call(client, "graph_text", task=1)
        state, key = asked.request_state, only(asked.input_requests)[0]
        responses = {key: accept(answer="yes")}
        with pytest.raises(MCPError, match="requestState"):
            await call(client, "graph_text", aged(state, 8), responses, task=1)
        done = await call(client, "graph_text", aged(state, 6), responses, task=1)
        assert done.structured_content == {"said": "yes"}


async def test_a_call_whose_run_takes_long_returns(site, monkeypatch):
    """It is called again with its state, and is the same run; a client of before is told which that is."""
    monkeypatch.setattr("runner.doors.mcp.WAIT", 0.01)
    bells, ring = [], site.ring
    monkeypatch.setattr(site, "ring", bells.extend)

    async with connected(site, answer=None, mode="legacy") as client:
        told = (await call(client, "graph_echo", task=1)).structured_content
        assert told["status"] == "executing"
    async with connected(site) as client:
        asked = await call(client, "graph_echo", task=1)
        assert not asked.input_requests
        monkeypatch.setattr("runner.doors.mcp.WAIT", 60)
        ring(bells)
        done = await call(client, "graph_echo", asked.request_state, task=1)
        assert not done.is_error
    assert runs_of(site) == 2
    assert site.client.run(told["run_id"]).wait(60).status == "completed"


def test_a_short_key_is_refused_and_the_server_s_secret_is_one():
    """Servers that share RUNNER_SERVER_SECRET have the same key; without it each has one of its own."""
    with pytest.raises(UsageError, match="32 random characters"):
        keys_of(Settings(mcp_keys="short"))
    with pytest.raises(
        UsageError, match="32"
    ):  # one line on the terminal, not a group of errors
        asyncio.run(serve_stdio(Settings(mcp_keys="short")))
    shared = Settings(server_secret="s" * 32)
    assert keys_of(shared) == keys_of(shared)
    assert keys_of(Settings()) != keys_of(Settings())


async def test_a_task_asks_and_takes_a_part_of_the_answers(site):
    """Of two questions one may be answered first; keys that are unknown, foreign or answered are ignored."""
    async with connected(site, Tasks()) as client:
        foreign = await call(client, "graph_text", task=1)
        foreign = await task_that(client, foreign.task_id, "input_required")
        foreign_key, _ = only(foreign["inputRequests"])
        started = await call(client, "graph_two", task=1)
        questions_of(site, started.task_id, 2)
        task = await task_that(client, started.task_id, "input_required")
        left, right = sorted(task["inputRequests"], key=lambda key: ".right." in key)
        changed = right[:-1] + ("0" if right[-1] != "0" else "1")
        answers = {left: accepted(answer="l")}
        ignored = dict.fromkeys([foreign_key, "unknown", changed], accepted(answer="x"))
        done = await update(client, started.task_id, {**answers, **ignored})
        assert done["resultType"] == "complete"
        task = await task_call(client, "tasks/get", started.task_id)
        assert [*task["inputRequests"]] == [right]

        await update(
            client, started.task_id, {left: accepted(answer="x"), right: accepted(answer="r")}
        )
        task = await task_that(client, started.task_id, "completed")
        assert task["result"]["structuredContent"] == {"left": "l", "right": "r"}
        assert "inputRequests" not in task
        assert [item.run_id for item in site.client.interrupts()] == [foreign["taskId"]]


async def test_tasks_end_as_their_runs_do(site):
    """A failed run is a completed task with an error; a task that is cancelled stops its run."""
    async with connected(site, Tasks()) as client:
        started = await call(client, "graph_broken", task=1)
        task = await task_that(client, started.task_id, "completed")
        assert task["result"]["isError"]
        started = await call(client, "graph_text", task=1)
        await task_that(client, started.task_id, "input_required")
        await task_call(client, "tasks/cancel", started.task_id)
        await task_that(client, started.task_id, "cancelled")


async def test_a_task_says_why_it_does_not_go_on(site):
    """Its status has what freezes its run, until it goes on, and who may read what others wrote of it."""
    engine = site.client.engine
    async with connected(site, Tasks()) as client:
        freezing.freeze(engine, "graph:echo", "an incident", "ben")
        engine.freezes.refresh()
        started = await call(client, "graph_echo", task=1)
        task = await task_call(client, "tasks/get", started.task_id)
        assert (task["status"], "an incident" in task["statusMessage"]) == ("working", True)
        freezing.thaw(engine, "graph:echo", "it is over", "ben")
        engine.deliver(started.task_id, "echo", 1, 1)
        assert "statusMessage" not in await task_that(client, started.task_id, "completed")
        run = site.client.start("text", 1)
        run.cancel("a secret")
        task = await task_call(client, "tasks/get", run.id)
        assert "a secret" in task["statusMessage"]
    viewer = Person(Principal("eve"), frozenset({"viewer"}))
    async with connected(site, Tasks(), person=viewer) as other:
        assert "a secret" not in str(await task_call(other, "tasks/get", run.id))


async def test_tasks_are_those_of_the_door(site):
    """An unknown task, a run of another graph and a client without the extension have their errors."""
    run = site.client.start("echo", 1)
    async with connected(site, Tasks()) as client:
        assert (await task_that(client, run.id, "completed"))["taskId"] == run.id
        site.settings.mcp_graphs.remove("echo")
        for name in ("unknown", run.id):
            with pytest.raises(MCPError) as error:
                await task_call(client, "tasks/get", name)
            assert refused(error) == types.INVALID_PARAMS == -32602
    async with connected(site) as client:
        with pytest.raises(MCPError) as error:
            await task_call(client, "tasks/get", run.id)
        assert refused(error) == types.MISSING_REQUIRED_CLIENT_CAPABILITY == -32021
        assert error.value.error.data == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def test_the_header_names_the_task(site):
    """A proxy may route by it, so one that names another is refused; control: that of the task."""
    run = site.client.start("text", 1)
    http = TestClient(site.app, "https://runner.example")
    for name, outcome in (("another", "error"), (run.id, "result")):
        for method in ("tasks/get", "tasks/cancel"):
            request, headers = raw(method, name, taskId=run.id)
            reply = http.post("/mcp", json=request, headers=headers)
            assert outcome in reply.json()
            if outcome == "error":
                assert (reply.status_code, reply.json()["error"]["code"]) == (400, -32020)
                assert run.status != "cancelled"


async def test_two_people_decide_and_each_vote_has_the_digest(site):
    """One of two is counted, and each vote names what was shown; who has voted is asked no more."""
    async with (
        connected(site, Tasks()) as ana,
        connected(site, Tasks(), person=BEN) as other,
    ):
        started = await call(ana, "graph_quorum", task=1)
        task = await task_that(ana, started.task_id, "input_required")
        key, question = only(task["inputRequests"])
        assert '"amount": 120' in question["params"]["message"]
        await update(ana, started.task_id, {key: accepted(decision="approve")})
        task = await task_call(ana, "tasks/get", started.task_id)
        assert (task["status"], "/q/" in task["statusMessage"]) == ("working", True)
        await update(ana, started.task_id, {key: accepted(decision="approve")})
        task = await task_call(other, "tasks/get", started.task_id)
        assert "1 of 2" in task["inputRequests"][key]["params"]["message"]
        await update(other, started.task_id, {key: accepted(decision="approve")})
        await task_that(other, started.task_id, "completed")
    question_id, _, digest = key.partition("#")
    votes = site.client.engine.store.votes(question_id)
    assert [vote["body"]["digest"] for vote in votes] == [digest, digest]


async def test_a_question_is_asked_of_those_who_may_decide_it(site):
    """Who may not gets its link in the status, and their answer is ignored; who may is asked."""
    async with connected(site, Tasks()) as ana:
        started = await call(ana, "graph_others", task=1)
        asked = questions_of(site, started.task_id)
        task = await task_call(ana, "tasks/get", started.task_id)
        assert task["status"] == "working"
        assert f"https://runner.example/q/{asked[0].id}" in task["statusMessage"]
        key = f"{asked[0].id}#{asked[0].digest}"
        await update(ana, started.task_id, {key: accepted(decision="approve")})
        assert site.client.interrupt(asked[0].id).is_open
    async with connected(site, Tasks(), person=BEN) as other:
        assert only((await task_call(other, "tasks/get", started.task_id))["inputRequests"])
        await update(other, started.task_id, {key: accepted(decision="approve")})
        await task_that(other, started.task_id, "completed")


async def test_an_agent_never_decides_for_people(site):
    """An agent is not asked, and a tool call is an agent's vote; a rule may allow agents."""
    site.settings.mcp_write = True

    async def vote(client, question):
        return await call(
            client,
            "questions_vote",
            question_id=question.id,
            digest=question.digest,
            decision="approve",
        )

    async with connected(site, Tasks()) as client:
        started = await call(client, "graph_anyone", task=1)
        task = await task_that(client, started.task_id, "input_required")
        (question,) = site.client.interrupts()
        receipt = await vote(client, question)
        assert receipt.is_error
        assert "agents don't decide this" in receipt.content[0].text
        async with connected(site, Tasks(), person=as_agent(site)) as agent:
            hidden = await task_call(agent, "tasks/get", started.task_id)
            assert hidden["status"] == "working"
        key, _ = only(task["inputRequests"])
        await update(client, started.task_id, {key: accepted(decision="approve")})
        await task_that(client, started.task_id, "completed")

        started = await call(client, "graph_agents", task=1)
        await task_that(client, started.task_id, "input_required")
        (question,) = site.client.interrupts()
        changed = replace(question, digest=question.digest[:-1])
        assert (await vote(client, changed)).is_error
        assert not (await vote(client, question)).is_error
        await task_that(client, started.task_id, "completed")


async def test_tools_that_write_are_there_when_asked_for(site):
    """Without RUNNER_MCP_WRITE a client can't stop a run or vote by a tool."""
    run = site.client.start("text", 1)
    async with connected(site) as client:
        with pytest.raises(MCPError, match="no tool"):
            await call(client, "runs_cancel", run_id=run.id)
    site.settings.mcp_write = True
    async with connected(site) as client:
        assert not (await call(client, "runs_cancel", run_id=run.id)).is_error
    # A node that runs meanwhile ends first.
    assert site.client.run(run.id).wait(20).status == "cancelled"


async def test_declining_rejects_and_closing_the_form_decides_nothing(site):
    """A question without a rule, which no one can reject, stays open when it is declined."""
    async with connected(site, Tasks()) as client:
        for graph, action, outcome in (
            ("rule", "cancel", "input_required"),
            ("text", "decline", "input_required"),
            ("rule", "decline", "completed"),
        ):
            started = await call(client, f"graph_{graph}", task=1)
            task = await task_that(client, started.task_id, "input_required")
            key, _ = only(task["inputRequests"])
            await update(client, started.task_id, {key: {"action": action}})
            task = await task_that(client, started.task_id, outcome)
        assert task["result"]["structuredContent"] == {"said": "reject"}


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_a_client_without_forms_gets_the_link(site, mode):
    """Where nothing can be asked the result says what the run waits for, and where that is answered."""
    async with connected(site, answer=None, mode=mode) as client:
        waiting = await call(client, "graph_text", task=1)
        assert not waiting.is_error
        assert waiting.structured_content["status"] == "interrupted"
        assert "https://runner.example/q/" in waiting.content[0].text
        run = waiting.structured_content["run_id"]
        shown = await call(client, "runs_show", run_id=run)
        assert shown.structured_content["interrupts"][0]["name"] == "refund"


async def test_roles_count_for_tools(site):
    """A viewer lists but runs nothing; a role of one graph counts for its tool and its runs only."""

    async def names(client):
        return {tool.name for tool in (await client.list_tools()).tools}

    run = site.client.start("text", 1)
    viewer = Person(Principal("eve"), frozenset({"viewer"}))
    async with connected(site, person=viewer) as client:
        assert not any(name.startswith("graph_") for name in await names(client))
        assert (await call(client, "graph_echo", task=1)).is_error
        assert not (await call(client, "runs_show", run_id=run.id)).is_error
    limited = Person(Principal("eve"), frozenset({"operator:echo"}))
    async with connected(site, Tasks(), person=limited) as client:
        assert {name for name in await names(client) if "graph_" in name} == {"graph_echo"}
        assert (await call(client, "graph_text", task=1)).is_error
        assert (await call(client, "runs_show", run_id=run.id)).is_error
        assert (await call(client, "runs_list")).is_error
        assert not (await call(client, "runs_list", graph="echo", limit=5.0)).is_error
        with pytest.raises(MCPError, match="no task"):
            await task_call(client, "tasks/get", run.id)
        started = await call(client, "graph_echo", task=1)
        await task_that(client, started.task_id, "completed")


def test_over_http_each_request_says_who_calls(site, served):
    """Who calls is what `auth` says; other sites, large bodies and who is not known are refused."""
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    assert (
        site.http.post("/mcp", json=initialize).status_code == 404
    )  # no door unless it is named

    async def go():
        async with Client(
            f"{served.url}/mcp", extensions=[Tasks()], elicitation_callback=ask_user
        ) as c:
            assert c.session.protocol_version == "2026-07-28"
            started = await call(c, "graph_text", task=1)
            task = await task_that(c, started.task_id, "input_required")
            key, _ = only(task["inputRequests"])
            await update(c, started.task_id, {key: accepted(answer="yes")})
            await task_that(c, started.task_id, "completed")
        assert site.client.interrupt(key.partition("#")[0]).responder == "ana"

    asyncio.run(go())
    site.settings.max_result = 500
    http = TestClient(site.replica(), "https://runner.example", raise_server_exceptions=False)
    assert http.get("/mcp").status_code == 405
    evil = {"Origin": "https://evil.example"}
    assert http.post("/mcp", json=initialize, headers=evil).status_code == 403
    assert http.post("/mcp", json={"task": "x" * 2_000_000}).status_code == 413
    assert http.post("/mcp", json=initialize, headers=ACCEPT).status_code == 200
    site.person = None
    assert http.post("/mcp", json=initialize).status_code == 401


def test_a_body_that_can_not_be_read_is_an_error_of_json_rpc(site):
    """What is not JSON gets the error -32700 of JSON-RPC, and other refusals the status of the API."""
    http = TestClient(site.replica(), "https://runner.example", raise_server_exceptions=False)
    headers = {**ACCEPT, "Content-Type": "application/json"}
    for body in (b"{", b"\xff", b'{"jsonrpc": "2.0", "id": NaN}', b"[" * 100_000):
        reply = http.post("/mcp", content=body, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, types.PARSE_ERROR)
        assert reply.json()["id"] is None
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert http.post("/mcp", json=ping, headers=headers).json()["result"] == {}


@pytest.mark.parametrize("extensions", [(), (Tasks(),)], ids=["call", "task"])
def test_where_too_many_runs_are_open_nothing_is_started(redis_url, monkeypatch, extensions):
    """The model reads why; there is no run, and no task."""
    monkeypatch.setenv("RUNNER_MAX_OPEN_RUNS", "1")
    full = LiveSite(redis_url, GRAPHS, mcp_graphs=["text"], mcp_keys="k" * 32)
    full.client.start("text", 1)

    async def go():
        async with connected(full, *extensions) as client:
            refused = await call(client, "graph_text", task=2)
            assert refused.is_error
            assert "RUNNER_MAX_OPEN_RUNS allows 1" in refused.content[0].text

    asyncio.run(go())
    full.pool.shutdown(cancel_futures=True)
    assert runs_of(full) == 1


@pytest.mark.slow
def test_a_line_that_can_not_be_read_has_its_error_over_stdio(redis_url):
    """A client is answered, and its next request is served."""
    request, _ = raw("tools/list", "")
    lines = ["{", "7", '{"jsonrpc": "2.0", "id": 1, "method": "\\ud800"}', json.dumps(request)]
    with subprocess.Popen(
        [sys.executable, "-m", "runner.doors.mcp"],
        env={**os.environ, "RUNNER_REDIS_URL": redis_url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        replies = []
        for line in lines:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            replies.append(json.loads(process.stdout.readline()))

    assert [reply["error"]["code"] for reply in replies[:-1]] == [types.PARSE_ERROR] * 3
    assert [reply["id"] for reply in replies] == [None, None, None, 1]
    assert replies[-1]["result"]["tools"]
    assert process.returncode == 0


@pytest.mark.parametrize("version", [MODERN, "2025-06-18"])
def test_a_client_that_is_gone_leaves_its_seat(site, served, monkeypatch, version):
    """A call ends with its connection, not when it would have returned: others of the caller go on."""
    monkeypatch.setattr("runner.doors.mcp.WAIT", 3600.0)
    monkeypatch.setattr(site, "ring", lambda doorbells: None)  # the run executes for ever
    call = {"name": "graph_echo", "arguments": {"task": 1}}
    request, headers = raw("tools/call", "graph_echo", version, **call)
    seats = site.app.state.services.hub._people
    host, _, port = served.url.removeprefix("http://").partition(":")
    with closing(HTTPConnection(host, int(port), timeout=60)) as connection:
        connection.request("POST", "/mcp", json.dumps(request), headers)
        wait_until(lambda: seats, "the call waits")
    wait_until(lambda: not seats, "the seat is free")


def test_an_unknown_door_is_named_with_what_is_wrong(redis_url):
    """A door that can't be imported, or is a class, or returns no router, stops the start, not a request."""
    for name in ("telegraph", "os:nothing", "os:sep", "pathlib:PurePath", "builtins:repr"):
        with pytest.raises(UsageError, match=f"--door '.*{name}"):
            create_app(Settings(redis_url=redis_url), auth=lambda request: None, doors=[name])
