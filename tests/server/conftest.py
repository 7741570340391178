from __future__ import annotations

import functools
import os
import shutil
import threading
import time
from collections import deque

import pytest
import uvicorn
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient

from runner import Client
from runner.approvals import Action, Rule
from runner.approvals.grants import Grant, GrantRecord
from runner.approvals.rules import Principal
from runner.definition.registry import Registry
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.settings import Settings
from runner.store.redis.partitions import open_store
from runner.store.requests import ChangeGrant
from runner.webhooks.webhook import Delivery, Webhook
from tests.graphs import wired
from tests.ports import free_port
from tests.waiting import wait_until

HTML = {"Accept": "text/html"}


@pytest.fixture(autouse=True)
def event_loop(monkeypatch):
    """One event loop for a test, as in a server; a TestClient would start one for each request."""
    with start_blocking_portal() as portal:
        monkeypatch.setattr(TestClient, "portal", portal)
        yield


@functools.cache
def settings_in(environment: frozenset) -> Settings:
    """Read the settings once in each environment, since that takes as long as building the application."""
    del environment
    return Settings(webhook_allow="127.0.0.0/8")


class Site:
    """An application on a store whose nodes run in this process, when a test says so."""

    def __init__(self, url, graphs, doors=()):
        self.registry = Registry()
        for name, build in graphs.items():
            self.registry.add(name, build)
        environment = frozenset(
            pair for pair in os.environ.items() if pair[0].startswith("RUNNER_")
        )
        self.settings = settings_in(environment).model_copy(update={"redis_url": url})
        self.bells = deque()
        self.client = Client(
            store=open_store(self.settings), dispatcher=self, registry=self.registry
        )
        self.client.engine.publish(list(graphs))
        self.person = Person(Principal("ana"), frozenset(GRANTS))
        self.app = create_app(self.settings, auth=lambda request: self.person, doors=doors)
        self.app.state.services.client = self.client
        self.app.state.services.plan = self.registry.find
        self.http = TestClient(
            self.app, base_url="https://runner.example", raise_server_exceptions=False
        )

    def ring(self, doorbells):
        self.bells.extend(doorbells)

    def call(self, task, kwargs, task_id):
        return True

    def work(self):
        """Run nodes until nothing is ready."""
        while self.bells:
            bell = self.bells.popleft()
            self.client.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)

    def start(self, graph, task=None, **options):
        """Start a run, and run its nodes until they have ended or wait."""
        run = self.client.start(graph, task, **options)
        self.work()
        return run

    def page(self, path):
        """Read a page as a browser does."""
        return self.http.get(path, headers=HTML).text

    def votes(self, question):
        """Return the votes on a question as they are stored."""
        return self.client.engine.store.votes(question.id)

    def output(self, run_id, node):
        """Return the output of a node of a run that has ended."""
        return self.client.run(run_id).result().results[node].output

    def add_webhook(self, name):
        """Make a webhook with a delivery; nobody sends it."""
        services = self.app.state.services
        admin = services.webhooks
        made = admin.add(Webhook(name, "http://127.0.0.1:1/hooks"))
        services.deliveries.enqueue(
            name,
            [
                (
                    Delivery("msg_1", "0r:1", "run.ended", "0none", at=services.workers.now()),
                    b"{}",
                )
            ],
        )
        return made

    def as_role(self, *roles, name="ana", groups=(), level=2):
        """Log somebody in."""
        self.person = (
            Person(Principal(name), frozenset(roles), frozenset(groups), level)
            if roles
            else None
        )


def ask(ctx):
    return ctx.interrupt(
        "refund",
        reason={"order": 7, "note": "unpunctual"},
        response_schema={
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
        },
    )


def refund(ctx):
    rule = Rule(eligible=["group:finance"], need=2, exclude=["requester"])
    action = Action("runner", "function", "refund", {"order": 7, "amount": 120})
    decided = ctx.interrupt(
        "refund", reason="a **late** order", rule=rule, action=action, risk="high"
    )
    return [decided.decision, decided.response]


def fail(ctx):
    raise ValueError("the secret printer is out of paper")


def echo(ctx):
    return {"task": ctx.task}


GRAPHS = {
    "approval": lambda: wired(
        {"look_up": echo, "approve": ask, "pay": echo}, "look_up approve", "approve pay"
    ).build(),
    "refund": lambda: wired({"refund": refund}).build(),
    "echo": lambda: wired({"echo": echo}).build(),
    "broken": lambda: wired({"fail": fail}).build(),
}


@pytest.fixture
def site(redis_url):
    """An application whose graphs ask, end and fail; who calls may do everything."""
    return Site(redis_url, GRAPHS)


def put_grant(site, grant_id, graph, properties=None):
    """Store a grant for a graph that nobody has voted for yet."""
    now = round(time.time() * 1000)
    bounds = {"properties": properties or {}}
    grant = Grant(
        grant_id, "default", "function", "pay", [graph], bounds, 1, {}, now, now + 60_000
    )
    record = GrantRecord(grant, Rule(eligible=["ana"]).frozen())
    site.client.engine.store.do(ChangeGrant(grant_id, lambda _: record, "grant.voted", "ana"))


class Served:
    """The application on a port of this machine, by uvicorn in a thread."""

    def __init__(self, app, port=0, uds=None):
        self.url = f"http://127.0.0.1:{port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, host="127.0.0.1", port=port, uds=uds, log_level="warning", ws="none"
            )
        )
        self._server.config.timeout_graceful_shutdown = 1
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self):
        self._thread.start()
        wait_until(lambda: self._server.started, "the server listens")
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(10)


@pytest.fixture
def served(site):
    """Serve the application for real clients and browsers."""
    with Served(site.app, free_port()) as served:
        yield served


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(browser, served):
    """A page of the application, which fails the test on an error of its own."""
    context = browser.new_context(base_url=served.url)
    page = context.new_page()
    page.problems = []
    page.on(
        "console",
        lambda line: page.problems.append(line.text) if line.type == "error" else None,
    )
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on(
        "dialog",
        lambda dialog: (page.problems.append(f"dialog {dialog.message}"), dialog.dismiss()),
    )
    yield page
    context.close()
