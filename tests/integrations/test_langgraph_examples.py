"""LangGraph's patterns for people in the loop end as with LangGraph alone, though a worker is killed."""

from __future__ import annotations

import json
from itertools import cycle

import pytest
from fastapi.testclient import TestClient

from runner import Status
from runner.approvals import Principal
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.settings import Settings
from tests.celery.sites import databases
from tests.integrations.extras import need
from tests.server.test_pages import HTML, controls, send
from tests.waiting import wait_until

need("langgraph", "langgraph")
need("langchain", "dev")

from tests.integrations.langgraph_examples import EXAMPLES, reference  # noqa: E402 - only where the extra is installed

__all__ = ["databases"]

pytestmark = pytest.mark.slow

CELLS = list(zip(EXAMPLES, cycle(("page", "api")), strict=False))
"""Each example, answered on the page or by the API in turn: neither knows of which graph a question is."""

WORKER = {"RUNNER_GRAPHS": "tests.integrations.langgraph_examples", "RUNNER_LEASE": "10"}


class Inbox:
    """A server, and the runs that wait for who uses it."""

    def __init__(self, site):
        self.site = site
        self.person = Person(Principal("ana"), frozenset(GRANTS))
        settings = Settings(redis_url=site.url, server_secret="s" * 32)
        self.app = create_app(settings, auth=lambda request: self.person)
        self.http = TestClient(self.app, base_url="https://runner.example")

    def questions(self, run, count):
        """Wait until a run asks so many questions at once."""
        wait_until(lambda: len(run.interrupts()) == count, "it asks")
        return run.interrupts()

    def page(self, question, response):
        """Answer on the page, as a browser does."""
        path = f"/q/{question.id}"
        digest = controls(self.http.get(path, headers=HTML).text)["digest"]
        is_form = question.response_schema and "properties" in question.response_schema
        values = response if is_form else {"answer": response}
        texts = {
            f"f.{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
        }
        send(self, path, digest=digest, **texts)

    def api(self, question, response):
        """Answer by the HTTP API."""
        path = f"/v1/questions/{question.id}"
        digest = self.http.get(path).json()["digest"]
        body = {"decision": "respond", "response": response}
        self.http.post(f"{path}/votes", json=body, headers={"If-Match": f'"{digest}"'})


@pytest.fixture(scope="module")
def inbox(databases):
    """The inbox, and a run of each example; the worker that asked was killed."""
    site = next(databases)
    try:
        site.ready(1, **WORKER)
        inbox = Inbox(site)
        inbox.runs = {
            (name, by): site.client.start(f"langgraph-{name}", None) for name, by in CELLS
        }
        for cell, run in inbox.runs.items():
            assert run.wait(60).status is Status.INTERRUPTED, cell
        site.workers[0].kill()
        site.ready(1, **WORKER)
        yield inbox
    finally:
        site.end()


def asked(questions):
    """What is asked, as LangGraph would show it; of the middleware's calls each is a question."""
    return [
        (question.reason["tool"], question.reason["args"])
        if question.name == "refund"
        else question.reason
        for question in questions
    ]


def interrupts(values):
    """The same of LangGraph's own interrupts."""
    return [
        entry
        for value in values
        for entry in (
            [(each["name"], each["args"]) for each in value["action_requests"]]
            if "action_requests" in value
            else [value]
        )
    ]


@pytest.mark.parametrize(("name", "by"), CELLS)
def test_an_example_ends_as_with_langgraph_alone(inbox, name, by):
    """After kill -9 it asks what LangGraph asks, and the answers from the inbox lead to the same state."""
    example, run = EXAMPLES[name], inbox.runs[name, by]
    values, end = reference(example)

    for expected, answers in zip(values, example.rounds, strict=True):
        questions = inbox.questions(run, len(answers))
        assert asked(questions) == interrupts(expected)
        for question, answer in zip(questions, answers, strict=True):
            getattr(inbox, by)(question, answer)
            assert inbox.site.client.interrupt(question.id).status == "answered"
    wait_until(lambda: run.status is Status.COMPLETED, "the run has completed")

    assert run.result().results["asker"].output == end
