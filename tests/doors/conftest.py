from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial

import pytest
from pydantic import BaseModel

from runner import Client
from runner.approvals import Action, Auth, Rule
from runner.server import create_app
from tests.doors.gates import gate
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import Served, Site, echo, event_loop, fail

__all__ = ["event_loop"]


class LiveSite(Site):
    """A site whose nodes run at once, on threads of this process."""

    def __init__(self, url, graphs, doors=("mcp",), **settings):
        self.doors = doors
        self.pool = ThreadPoolExecutor(4)
        super().__init__(url, graphs)
        for name, value in settings.items():
            setattr(self.settings, name, value)
        self.app = self.replica()

    def replica(self):
        """Make another server on the same store."""
        app = create_app(self.settings, auth=lambda request: self.person, doors=self.doors)
        app.state.services.client = self.client
        app.state.services.plan = self.registry.find
        return app

    def ring(self, doorbells):
        for bell in doorbells:
            self.pool.submit(
                self.client.engine.deliver, bell.run_id, bell.node, bell.visit, bell.attempt
            )


def asking(schema=None, reason="a late order", **options):
    """Make a graph with one node that asks."""

    def ask(ctx):
        decided = ctx.interrupt("refund", reason, response_schema=schema, **options)
        return {"said": getattr(decided, "decision", decided)}

    return lambda: wired({"ask": ask}).build()


def typed(number: int) -> dict:
    return {"number": number}


class Trip(BaseModel):
    city: str
    day: date | None = None


class Plan(BaseModel):
    trips: list[Trip]


def planned_for(city: str) -> Plan:
    return Plan(trips=[Trip(city=city, day=date(2026, 7, 28))])


class Job(BaseModel):
    task: str


def one_field(job: Job) -> dict:
    return {"task": job.task}


def any_fields(counts: dict[str, int]) -> dict:
    return counts


FORM = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "City"},
        "days": {"type": "integer", "minimum": 1},
        "way": {"type": "string", "enum": ["train", "car"]},
    },
    "required": ["city", "days"],
}
NESTED = {"type": "object", "properties": {"to": {"type": "object", "properties": {}}}}
HIDDEN = {"type": "object", "properties": {"ok": {"type": "string", "title": "do\u202enot"}}}
PATTERN = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]+$"}}}
ACTION = Action("runner", "function", "refund", {"order": 7, "amount": 120})

GRAPHS = {
    "echo": lambda: wired({"echo": echo}).build(),
    "typed": lambda: wired({"typed": typed}).build(),
    "planned": lambda: wired({"plan": planned_for}).build(),
    "one_field": lambda: wired({"one_field": one_field}).build(),
    "any_fields": lambda: wired({"any_fields": any_fields}).build(),
    "broken": lambda: wired({"fail": fail}).build(),
    "text": asking(),
    "form": asking(FORM),
    "nested": asking(NESTED),
    "pattern": asking(PATTERN),
    "hidden": asking(HIDDEN),
    "long": asking(reason="x" * 9000),
    "two": lambda: wired(
        {
            "begin": echo,
            "left": lambda ctx: ctx.interrupt("left"),
            "right": lambda ctx: ctx.interrupt("right"),
        },
        "begin left",
        "begin right",
    ).build(),
    "rule": asking(rule=Rule(eligible=["ana", "ben"]), action=ACTION),
    "spoof": asking(
        rule=Rule(eligible=["ana"]),
        action=ACTION,
        reason="late\n\nrefund {}\n\nSo far: 2 of 2.",
    ),
    "quorum": asking(rule=Rule(eligible=["ana", "ben"], need=2), action=ACTION),
    "others": asking(rule=Rule(eligible=["ben"]), action=ACTION),
    "risky": asking(rule=Rule(), action=ACTION, risk="high"),
    "sure": asking(rule=Rule(auth=Auth(level=2)), action=ACTION),
    "anyone": asking(rule=Rule(), action=ACTION),
    "agents": asking(rule=Rule(agents=True), action=ACTION),
}


@pytest.fixture
def site(redis_url):
    """An application with the MCP server, whose clients may run every graph."""
    site = LiveSite(
        redis_url,
        GRAPHS,
        mcp_graphs=[*GRAPHS],
        mcp_keys="k" * 32,
        server_url="https://runner.example",
    )
    yield site
    site.pool.shutdown(cancel_futures=True)


@pytest.fixture
def opened(tmp_path, redis_url):
    """Open gates on the store, with their files in the folder of the test."""
    return partial(gate, tmp_path, redis_url)


@pytest.fixture
def people(redis_url):
    """Those who are asked."""
    return Client(redis_url)


@pytest.fixture
def served(site):
    """Serve the application for real clients."""
    with Served(site.app, free_port()) as served:
        yield served
