"""Part `inbox`: what a page of the inbox costs among 100,000 open questions, for each tab and filter."""

from __future__ import annotations

import gzip
from time import perf_counter
from typing import Any

import redis
from fastapi.testclient import TestClient

from bench.fill import TEMPLATES, Filler, copy_runs
from bench.graphs import build
from bench.grid import Grid, number
from runner import NodeContext
from runner.approvals import DAY, Action, Principal, Rule
from runner.records.listings import InterruptQuery
from runner.server import create_app
from runner.server.access import GRANTS, Person
from runner.settings import Settings
from runner.store.redis.keys import Keys
from runner.testing.plugin import private_store

POOLS = False

LEVELS = [1_000, 10_000, 100_000]

LOOKS = 9

RARE = 100
"""Of so many questions one has a rule with a call, and another one names a person."""

PATHS = {
    "all": "",
    "mine": "tab=mine",
    "done": "tab=done",
    "graph": "graph=questions",
    "tool": "tool=pay",
    "risk": "risk=high",
    "due within a day": "due=day",
    "older than an hour": "age=hour",
    "run": "run={run}",
    "tag of a few": "tag=number=7",
    "text of none": "text=nowhere",
    "name of none": "name=nothing",
    "mine, by risk and text": "tab=mine&risk=high&text=acme",
    "page 3": "cursor={cursor}",
}


def ask(ctx: NodeContext) -> Any:
    """Ask as numbered: one of some with a rule, one of a person, half of the others with a time to answer."""
    place = int(ctx.task)
    if place % RARE == 0:
        rule = Rule(eligible=["group:finance"], need=2)
        action = Action("bench", "function", "pay", {"to": "Acme", "amount": place})
        return ctx.interrupt("pay", reason="It is due.", rule=rule, action=action, risk="high")
    people = ["ana"] if place % RARE == 1 else None
    lifetime = 3 * DAY if place % 2 else None
    reason = {
        "order": place,
        "customer": "Acme",
        "note": "what a person reads before they answer",
    }
    return ctx.interrupt("go", reason=reason, assignees=people, expires_in=lifetime)


class Inbox:
    """An application on a private store with questions."""

    def __init__(self, url: str) -> None:
        """Ask nothing yet; who looks is one of finance who is named, too."""
        self.filler = Filler(url, {"questions": lambda: build({"ask": ask}, [])})
        person = Person(Principal("ana"), frozenset(GRANTS), frozenset({"finance"}))
        self.asked = 0
        self.keys, self.redis = Keys(), redis.Redis.from_url(url)
        self.http = TestClient(create_app(Settings(redis_url=url), auth=lambda _: person))

    def fill(self, level: int) -> None:
        """Ask until there are so many; beyond the first ones each is a copy of one, with its lists."""
        for place in range(self.asked, min(level, TEMPLATES)):
            self.filler.start("questions", place, tags={"number": str(place)})
        self.asked = max(self.asked, min(level, TEMPLATES))
        copy_runs(self.redis, "questions", level - self.asked)
        self.asked = level

    def look(self, query: str) -> tuple[float, int]:
        """Read a page; return the least ms that it took, and its bytes compressed."""
        times = []
        for _ in range(LOOKS):
            began = perf_counter()
            reply = self.http.get(f"/inbox?{query}", headers={"accept": "text/html"})
            times.append((perf_counter() - began) * 1000)
            if reply.status_code != 200:
                raise RuntimeError(f"{query}: {reply.text}")
        return min(times), len(gzip.compress(reply.content))


def run(_pool: str, _rounds: int, sizes: list[int]) -> dict[str, Any]:
    """Look at each tab and through each filter, at each level."""
    figures: dict[str, Any] = {}
    with private_store() as server:
        inbox = Inbox(server.url)
        for level in sizes or LEVELS:
            inbox.fill(level)
            page = inbox.filler.store.open_interrupts(limit=1)
            third = _third(inbox)
            looks = {
                name: inbox.look(path.format(run=page[0].run_id, cursor=third))
                for name, path in PATHS.items()
            }
            figures[str(level)] = {
                name: {"ms": ms, "bytes": size} for name, (ms, size) in looks.items()
            }
    return figures


def _third(inbox: Inbox) -> str:
    """Return the cursor of the third page."""
    query, cursor = InterruptQuery(urgent=True), ""
    for _ in range(2):
        cursor = inbox.filler.store.open_interrupts(query, 50, cursor).next or ""
    return cursor


def grids(_pool: str, figures: dict[str, Any]) -> list[Grid]:
    """Show each tab and filter."""
    levels = list(figures)
    rows = [
        [
            name,
            *(number(figures[level][name]["ms"]) for level in levels),
            number(figures[levels[-1]][name]["bytes"] / 1000),
        ]
        for name in PATHS
    ]
    columns = [
        "the inbox, 50 a page",
        *(f"ms of {int(level):,}" for level in levels),
        "KB compressed",
    ]
    note = (
        "The whole page on the server, rendered; the least of nine looks. One question of a hundred has a "
        "rule for finance and a call, another names who looks, half expire. A search looks at 1,000 "
        "questions a page at most, and says so. Beyond 1,000 the questions are copies, made in Redis."
    )
    return [Grid("A page of the inbox", columns, rows, note)]
