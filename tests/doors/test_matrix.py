"""A question that is asked anywhere is answered anywhere, though the worker that asked it was killed."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import ExitStack

import pytest
from celery import Celery
from click.testing import CliRunner
from fastapi.testclient import TestClient

from runner import Status
from runner.approvals import Principal
from runner.approvals.keys import KeySet
from runner.cli.program import runner
from runner.doors.mail import MailDoor
from runner.operations.views import read_run
from runner.records.interrupts import digest
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.settings import Settings, as_broker
from tests.celery.sites import databases
from tests.doors.mailbox import Mailbox, link_of, token_of
from tests.doors.matrix import ASKERS, DOORS, ELSEWHERE
from tests.integrations.extras import need
from tests.server.test_pages import HTML, controls, send
from tests.waiting import wait_until

for module, extra in {
    "ag_ui": "agui",
    "agents": "openai-agents",
    "langchain": "dev",
    "mcp": "mcp",
    "pydantic_ai": "pydantic-ai",
    "slack_sdk": "slack",
    "strands": "strands",
}.items():
    need(module, extra)

from tests.doors import test_slack, workspace  # noqa: E402 - needs slack_sdk
from tests.doors.test_agui import Thread  # noqa: E402 - needs ag_ui
from tests.doors.test_mcp import Tasks, accepted, connected, only, task_call, task_that  # noqa: E402 - needs mcp

__all__ = ["databases"]

pytestmark = pytest.mark.slow


class Staff:
    """The directory: ana, by whichever account or mailbox."""

    def groups(self, principal):
        """Return no groups."""
        return []

    def roles(self, principal):
        """Return that of who decides."""
        return ["approver"]

    def person(self, account, email):
        """Return ana."""
        return Principal("ana")

    def addresses(self, selectors):
        """Return the address of ana."""
        return ["ana@example.com"]


staff = Staff()


class House:
    """A site with a worker of all askers, and every door."""

    def __init__(self, site, folder, slack, mailbox):
        self.site, self.client = site, site.client
        self.effects, self.books, self.tasks = (
            folder / name for name in ("effects", "books", "tasks")
        )
        self.effects.touch()
        self.tasks.mkdir()
        self.person = Person(Principal("ana"), frozenset(GRANTS), level=2)
        key = folder / "private.json"
        KeySet(folder / "public.json").make("server", key, level=2)
        self.settings = Settings(
            redis_url=site.url,
            mcp_graphs=[*ASKERS],
            server_url="https://runner.example",
            signing_key=str(key),
            server_secret="s" * 32,
            directory=f"{__name__}:staff",
            slack_team=workspace.TEAM,
            slack_channels=[workspace.CHANNEL],
            slack_token=workspace.TOKEN,
            slack_signing_secret=workspace.SECRET,
            slack_url=slack.url,
            mail_server=mailbox.url,
            mail_from="runner@example.com",
        )
        self.slack, self.mailbox = slack, mailbox
        self.app = create_app(
            self.settings, auth=lambda request: self.person, doors=["mcp", "agui", "mail"]
        )
        self.http = TestClient(self.app, base_url="https://runner.example")
        self.threads = {}
        self.door = test_slack.SlackDoor(self.app.state.services)

    def ready(self):
        """Have a worker."""
        self.site.ready(
            1,
            RUNNER_GRAPHS="tests.doors.askers",
            RUNNER_LEASE="10",  # longer than usual here: a busy machine must lose none
            EFFECTS=str(self.effects),
            MCP_CALLS=str(self.books),
            MCP_TASKS=str(self.tasks),
        )

    def start(self, asker, door):
        """Start a run, by its door where that only knows runs of its own."""
        if door != "agui":
            return self.client.start(asker, "go")
        thread = Thread(self, asker)
        thread.say("go")
        run_id = thread.interrupts[0].id.partition(".")[0]
        self.threads[run_id] = thread
        return self.client.run(run_id)

    def waits(self):
        """Tell if the node that waits for a task of an MCP server holds no slot."""
        (node,) = read_run(self.client.engine.store, self.waiting.id).nodes
        return node.status == "retrying"

    def count(self, asker):
        """Count what an asker did after an answer."""
        if asker == "mcp_server":  # which notes each call
            return len(self.books.read_text().splitlines())
        if asker == "mcp_task":
            tasks = [json.loads(file.read_text()) for file in self.tasks.glob("fish-*.json")]
            assert len(tasks) == len(DOORS)
            return sum(len(task.get("answers", [])) for task in tasks)
        return self.effects.read_text().splitlines().count(asker)


@pytest.fixture(scope="module")
def asked(databases, tmp_path_factory):
    """A run for each cell of the matrix, which has asked; the worker that asked was killed."""
    site, folder = next(databases), tmp_path_factory.mktemp("matrix")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        stack.callback(site.end)
        patch.setenv("RUNNER_DECISION_KEYS", str(folder / "public.json"))
        slack = stack.enter_context(workspace.Workspace())
        slack.join("Uana", "ana@example.com")
        house = House(site, folder, slack, stack.enter_context(Mailbox()))
        house.ready()
        runs = {(asker, door): house.start(asker, door) for door in DOORS for asker in ASKERS}
        house.waiting = site.client.start("mcp_wait", "go")
        for cell, run in runs.items():
            assert run.wait(60).status is Status.INTERRUPTED, cell
        wait_until(house.waits, "a node waits for a task")
        house.notices = {
            fields[b"detail"].decode(): json.loads(fields[b"question"])
            for _, fields in site.redis.xrange("runner:{p00}:notices")
            if fields[b"kind"] == b"interrupt.asked"
        }
        site.workers[0].kill()
        house.ready()
        yield house, runs


# Each answers as ana what the door shows, and returns the digest that was shown, or the link to the page.


def by_page(house, question, response):
    path = f"/q/{question.id}"
    digest = controls(house.http.get(path, headers=HTML).text)["digest"]
    fields = {"decision": "approve"}
    if response is not None:
        values = response if isinstance(response, dict) else {"answer": response}
        fields = {
            f"f.{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
    send(house, path, digest=digest, **fields)
    return digest


def by_api(house, question, response):
    path = f"/v1/questions/{question.id}"
    digest = house.http.get(path).json()["digest"]
    kind = "approve" if response is None else "respond"
    body = {"decision": kind, "response": response}
    house.http.post(f"{path}/votes", json=body, headers={"If-Match": f'"{digest}"'})
    return digest


def by_command(house, question, response):
    def command(*line):
        env = {"RUNNER_REDIS_URL": house.site.url}
        return json.loads(
            CliRunner().invoke(runner, ["interrupts", *line, "--json"], env=env).stdout
        )

    digest = command("show", question.id)["digest"]
    line = (
        ["vote", question.id, "approve", "--by", "ana"]
        if response is None
        else ["respond", question.id, "--response", json.dumps(response), "--responder", "ana"]
    )
    command(*line, "--digest", digest)
    return digest


def by_message(send_body):
    """Make a door that takes a message, which is made of the notice that says what was asked."""

    def answer(house, question, response):
        digest = house.notices[question.id]["digest"]
        who = (
            {"v": 2, "by": "human:|ana", "decision": "approve"}
            if response is None
            else {"v": 1, "responder": "ana", "response": response}
        )
        replies = f"runner:replies:{question.id}"
        body = {**who, "interrupt_id": question.id, "digest": digest, "reply_to": replies}
        send_body(house, body)
        house.site.receipt(replies)
        return digest

    return answer


def send_task(house, body):
    with Celery(broker=as_broker(house.site.url), set_as_current=False) as app:
        app.send_task("runner.respond", kwargs=body, queue="runner", serializer="json")


def by_mcp(house, question, response):
    async def answer():
        async with connected(house, Tasks()) as client:
            task = await task_that(client, question.run_id, "input_required")
            key, request = only(task["inputRequests"])
            if request["params"]["mode"] == "url":
                return request["params"]["url"]
            content = {"decision": "approve"} if response is None else response
            content = content if isinstance(content, dict) else {"answer": content}
            update = {"inputResponses": {key: accepted(**content)}}
            await task_call(client, "tasks/update", question.run_id, **update)
            return key.partition("#")[2]

    return asyncio.run(answer())


def by_agui(house, question, response):
    thread = house.threads[question.run_id]
    (interrupt,) = thread.interrupts
    shown = interrupt.metadata["runner"]
    if interrupt.reason == "runner:page":
        return shown["url"]
    thread.answer({"approved": True} if response is None else response)
    return shown["digest"]


def by_slack(house, question, response):
    slack = house.slack
    house.door.show(question.id)
    posted = [*slack.messages.values()][-1]
    buttons = workspace.buttons_of(posted)
    action = "approve" if response is None else "answer"
    if action not in buttons:
        return buttons["open"]["url"]
    test_slack.send(house, slack.click(posted, action, "Uana"))
    if response is not None:
        value = response if isinstance(response, str) else next(iter(response.values()))
        (field,) = [block for block in slack.views[-1]["blocks"] if block["type"] == "input"]
        options = field["element"].get("options", [])
        chosen = [option for option in options if option["text"]["text"] == value]
        entered = {"selected_option": chosen[0]} if chosen else {"value": value}
        test_slack.send(house, slack.submit("Uana", entered))
    return json.loads(buttons[action]["value"].partition(".")[2])[2]


def by_mail(house, question, response):
    assert MailDoor(house.app.state.services).handle(question.id, lambda: True)
    message = house.mailbox.mails[-1]
    token = token_of(message)
    if not token:
        return link_of(message)
    shown = house.http.get(link_of(message), headers=HTML).text
    fields = {"f.decision": '"approve"'}
    if response is not None:
        values = response if isinstance(response, dict) else {"answer": response}
        fields = {f"f.{name}": value for name, value in values.items()}
    form = {"form_token": controls(shown)["form_token"], **fields}
    house.http.post(link_of(message), data=form, headers={"Origin": "https://runner.example"})
    return re.search("sha256:[0-9a-f]{64}", shown)[0]


BY = {
    "page": by_page,
    "api": by_api,
    "command": by_command,
    "stream": by_message(lambda house, body: house.site.send(json.dumps(body))),
    "task": by_message(send_task),
    "mcp": by_mcp,
    "agui": by_agui,
    "slack": by_slack,
    "mail": by_mail,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("asker", ASKERS)
def test_asked_anywhere_answered_anywhere(asked, asker, door):
    """After kill -9 of the worker the answer counts once, for what the door has shown, and the run ends."""
    house, runs = asked
    run, response, before = runs[asker, door], ASKERS[asker].response, house.count(asker)
    (question,) = run.interrupts()

    shown = BY[door](house, question, response)
    if (asker, door) in ELSEWHERE:
        assert shown in {question.digest, f"https://runner.example/q/{question.id}"}
        assert house.client.interrupt(question.id).status == "open"
        shown = by_page(house, question, response)
    assert house.client.interrupt(question.id).status == "answered"
    by_api(house, question, response)
    wait_until(lambda: run.status is Status.COMPLETED, "the run has completed")

    assert shown == question.digest == digest(house.client.interrupt(question.id))
    assert str(run.result().results["asker"].output).strip() == ASKERS[asker].output
    assert house.count(asker) == before + 1


def test_a_task_outlives_the_worker_that_began_it(asked):
    """A worker that goes on after kill -9 looks at the task whose id was stored: there is no second one."""
    house, _ = asked
    (file,) = house.tasks.glob("nothing-*.json")
    looks = json.loads(file.read_text())["looks"]
    file.with_suffix(".done").touch()
    wait_until(lambda: house.waiting.status is Status.COMPLETED, "the run has completed")

    assert house.waiting.result().results["asker"].output.strip() == "nothing"
    assert json.loads(file.read_text())["looks"] > looks
    assert len([*house.tasks.glob("nothing-*.json")]) == 1
