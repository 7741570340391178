"""Takes the pictures of the server's pages: `python docs/screenshots.py`, with Chromium and Playwright.

The runs are those of a shop, on an embedded Redis server and a clock that nodes move: each picture shows the
same. `python docs/screenshots.py FOLDER [PAGE ...]` writes the pages in both themes at two widths instead.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import uvicorn
from playwright.sync_api import Browser, sync_playwright

from runner import Client, GraphBuilder, Limit
from runner.approvals import Action, Principal, Rule
from runner.definition.registry import Registry
from runner.dev.embedded import embedded_store
from runner.limits.control import LimitControl
from runner.schedules.schedule import Schedule
from runner.schedules.scheduler import Scheduler
from runner.server import Person, create_app
from runner.server.access import GRANTS
from runner.settings import Settings
from runner.store.interface import Doorbell
from runner.store.redis.connection import RedisConnection
from runner.store.redis.keys import Keys
from runner.store.redis.partitions import open_store
from runner.store.redis.workers import WorkerRegistry
from runner.store.shared import Shared
from runner.webhooks.delivery import WebhookAdmin
from runner.webhooks.webhook import Delivery, Webhook, attempted

IMAGES = Path(__file__).parent / "images"
OUTLINES = IMAGES / "server-pages.json"
"""What the pages of the pictures had when they were taken."""
MINUTE, HOUR, DAY = 60, 3_600, 86_400

KEPT = {
    "server-question": ("versions", "light", 1280, 900),
    "server-run": ("paid", "light", 1280, 900),
    "server-inbox": ("inbox", "dark", 320, 800),
    "desk-inbox": ("inbox", "light", 1100, 500),
    "desk-question": ("question", "light", 1100, 500),
    "desk-run": ("paid", "light", 1100, 620),
}
"""The pictures of the guides and of the README: page, theme, width, height."""


class Shop:
    """Runs of a shop; nodes are run in this process, `clock` is in seconds."""

    def __init__(self, url: str) -> None:
        self.settings = Settings(redis_url=url, webhook_allow="127.0.0.0/8")
        self.clock = time.time()
        store = open_store(self.settings)
        store.clock = lambda: round(self.clock * 1000)  # type: ignore[union-attr] # a store of one partition
        self.bells: deque[Doorbell] = deque()
        self.registry = Registry()
        self.client = Client(store=store, dispatcher=self, registry=self.registry)
        for name, build in self.graphs().items():
            self.registry.add(name, build)
        self.client.engine.publish(list(self.graphs()))

    def ring(self, doorbells: Sequence[Doorbell]) -> None:
        """Remember nodes that can run."""
        self.bells.extend(doorbells)

    def call(self, task: str, kwargs: Mapping[str, Any], task_id: str) -> bool:  # noqa: ARG002 - as declared
        """Take a call that no test makes."""
        return True

    def run(self, ago: float, graph: str, task: object, steps: int = 99, **options: Any) -> str:
        """Start a run some seconds ago, and take so many of its steps."""
        now, self.clock = self.clock, self.clock - ago
        run = self.client.start(graph, task, **options)
        while self.bells and steps:
            bell, steps = self.bells.popleft(), steps - 1
            self.client.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
        self.bells.clear()
        self.clock = now
        return run.id

    def step(self, seconds: float, output: object = None) -> Any:
        """Return a node that takes some time."""

        def work(ctx: Any) -> Any:
            self.clock += seconds
            return output if output is not None else ctx.task

        return work

    def graphs(self) -> dict[str, Any]:
        """Return the graphs by name."""

        def approve(ctx: Any) -> Any:
            self.clock += 2
            task = ctx.task
            if task["amount"] < 250:
                return "small enough"
            call = Action(
                "shop",
                "function",
                "pay_back",
                {
                    "order": task["order"],
                    "amount": task["amount"],
                    "currency": "EUR",
                    "to": task["iban"],
                },
            )
            decided = ctx.interrupt(
                "pay back",
                reason="The parcel came **eleven days late**, and the customer has asked twice.\n\n"
                "- The carrier confirms the delay.\n- No refund was made for this order before.",
                rule=Rule(
                    eligible=["group:finance", "ben", "dan"],
                    need=2,
                    exclude=["requester"],
                    title="Pay back {amount:money} to {to}",
                ),
                action=call,
                risk="high",
                expires_in=6 * HOUR,
            )
            return decided.decision

        def publish(ctx: Any) -> Any:
            schema = {
                "type": "object",
                "properties": {
                    "publish": {"title": "Publish", "enum": ["now", "tonight", "not at all"]},
                    "notes": {"title": "Words for the changelog", "type": "string"},
                    "share": {
                        "title": "Percent at first",
                        "type": "integer",
                        "minimum": 1,
                        "maximum": 100,
                    },
                },
                "required": ["publish"],
            }
            return ctx.interrupt(
                "publish",
                reason=f"Version {ctx.task['version']} is built.",
                response_schema=schema,
            )

        def send(ctx: Any) -> Any:
            self.clock += 3
            if ctx.task["week"] % 2:
                return "sent to 4,012 readers"
            raise ConnectionError("mail.example.com:587 refused the connection")

        def resize(ctx: Any) -> Any:
            self.clock += 1
            return f"{ctx.task} in three sizes"

        def wired(nodes: Mapping[str, Any], *edges: str) -> Any:
            builder = GraphBuilder()
            for name, work in nodes.items():
                builder.add_node(work, name)
            for edge in edges:
                builder.add_edge(*edge.split())
            return builder

        def pictures() -> Any:
            builder = wired(
                {"list": self.step(1, [f"photo-{number}.jpg" for number in range(12)])}
            )
            builder.add_map(resize, "resize", over="list")
            builder.add_edge("list", "resize")
            return builder.build()

        def newsletter() -> Any:
            builder = wired(
                {"collect": self.step(6, "31 articles"), "send": send}, "collect send"
            )
            return builder.set_limits([Limit("mail", concurrency=2, by="tag:team")]).build()

        def review(ctx: Any) -> Any:
            rule = Rule(eligible=["group:finance"], decisions=["approve", "reject"])
            return ctx.interrupt("file it?", reason=f"Receipt {ctx.task}", rule=rule).decision

        def receipts() -> Any:
            builder = wired({"list": self.step(1, list(range(40)))})
            builder.add_map(review, "review", over="list")
            builder.add_edge("list", "review")
            return builder.build()

        return {
            "receipts": receipts,
            "refund": lambda: wired(
                {
                    "look_up": self.step(1, {"order": 1042, "state": "delivered late"}),
                    "history": self.step(4, "two orders before, no refund"),
                    "carrier": self.step(9, "confirms the delay"),
                    "approve": approve,
                    "pay": self.step(2, "paid"),
                    "write": self.step(1, "written"),
                },
                "look_up history",
                "look_up carrier",
                "history approve",
                "carrier approve",
                "approve pay",
                "pay write",
            ).build(),
            "release": lambda: wired(
                {
                    "build": self.step(40, "shop-2.8.0.whl"),
                    "tests": self.step(95, "812 passed"),
                    "licences": self.step(8, "all known"),
                    "publish": publish,
                },
                "build tests",
                "build licences",
                "tests publish",
                "licences publish",
            ).build(),
            "newsletter": newsletter,
            "pictures": pictures,
        }

    def fill(self) -> dict[str, str]:
        """Make what the pages show; return the path of each page."""
        cora, ben = Principal("cora", name="Cora Lind"), Principal("ben", name="Ben Ode")
        for number in range(24):
            refund = {"order": 900 + number, "amount": 20 + 7 * number, "iban": "DE8937040044"}
            graph, team, task = (
                ("pictures", "media", {"album": number}),
                ("newsletter", "media", {"week": number}),
                ("refund", "billing", refund),
            )[number % 3]
            self.run(2 * DAY - number * 2 * HOUR, graph, task, tags={"team": team})
        self.run(
            35 * MINUTE, "release", {"version": "2.8.0"}, tags={"team": "shop"}, requester=ben
        )
        self.run(
            20, "release", {"version": "2.8.1"}, steps=2, tags={"team": "shop"}, requester=ben
        )
        self.run(50, "pictures", {"album": "autumn"}, steps=6, tags={"team": "media"})
        old = self.run(3 * HOUR, "release", {"version": "2.7.9"}, steps=3)
        self.client.run(old).cancel("superseded by 2.8.0")
        task = {"order": 1042, "amount": 1_280, "iban": "DE89370400440532013000"}
        shown = self.run(12 * MINUTE, "refund", task, tags={"team": "billing"}, requester=cora)
        question = next(iter(self.client.interrupts(run=shown)))
        self.client.vote(
            question.id, "approve", by="ben", comment="The carrier wrote to me, too."
        )
        edited = self._edited()
        receipts = self.run(
            5 * MINUTE, "receipts", {"month": "October"}, tags={"team": "billing"}
        )
        paid = next(iter(self.client.runs("completed", graph="refund")))
        failed = next(iter(self.client.runs("failed")))
        self._schedules()
        limits = LimitControl(Shared(self.settings))
        limits.pause("mail:tag:team:media", 1_800, "mail.example.com is down", "user:ben")
        self._letters()
        self._webhooks(shown)
        lists = (
            "inbox",
            "runs",
            "graphs",
            "workers",
            "dead",
            "schedules",
            "limits",
            "webhooks",
            "passkeys",
        )
        return {name: f"/{name}" for name in lists} | {
            "home": "/",
            "graph": "/graphs/refund",
            "run": f"/runs/{shown}",
            "node": f"/runs/{shown}?node=carrier",
            "fork": f"/runs/{shown}/plan/fork?node=carrier",
            "cancel": f"/runs/{shown}/plan/cancel",
            "audit": f"/runs/{shown}?tab=audit",
            "question": f"/q/{question.id}",
            "versions": f"/q/{edited}",
            "receipts": f"/runs/{receipts}",
            "paid": f"/runs/{paid.run_id}?node=approve&fit=yes",
            "done": "/inbox?tab=done",
            "together": f"/inbox/together?q={question.id}",
            "search": "/inbox?tab=mine&risk=high&text=carrier",
            "failed": f"/runs/{failed.run_id}",
            "deliveries": "/webhooks/chat",
            "missing": "/runs/0none",
        }

    def _edited(self) -> str:
        """Ask for a refund whose sum an approver has changed; pay another one. Return the question."""
        task = {"order": 1043, "amount": 4_800, "iban": "DE89370400440532013000"}
        cora = Principal("cora", name="Cora Lind")
        ids = []
        for ago in (30 * MINUTE, 8 * MINUTE):
            run = self.run(ago, "refund", task, tags={"team": "billing"}, requester=cora)
            ids.append(next(iter(self.client.interrupts(run=run))).id)
        action = self.client.interrupt(ids[1]).action or {}
        less = {**action["args"], "amount": 480}
        self.client.vote(ids[1], "approve", by="dan")
        self.client.vote(ids[1], "edit", by="ben", response=less, comment="A zero too many.")
        for name in ("ben", "dan"):
            self.client.vote(ids[0], "approve", by=name)
        while self.bells:
            bell = self.bells.popleft()
            self.client.engine.deliver(bell.run_id, bell.node, bell.visit, bell.attempt)
        return ids[1]

    def _schedules(self) -> None:
        scheduler = Scheduler(self.client.engine, Shared(self.settings).documents(Schedule))
        scheduler.add(
            Schedule(
                "weekly-newsletter", "newsletter", cron="0 9 * * 1", timezone="Europe/Rome"
            )
        )
        scheduler.add(Schedule("album", "pictures", interval=900.0, overlap="buffer"))
        scheduler.add(Schedule("old-albums", "pictures", interval=86_400.0))
        scheduler.pause("old-albums")

    def _webhooks(self, run_id: str) -> None:
        shared = Shared(self.settings)
        admin = WebhookAdmin(shared)
        admin.add(
            Webhook(
                "chat", "http://127.0.0.1:9/hooks", ["interrupt.asked", "interrupt.reminded"]
            )
        )
        admin.add(Webhook("billing", "http://127.0.0.1:9/runs", ["run.ended"], "refund"))
        admin.pause("billing")
        now = shared.workers.now()
        asked = Delivery(
            "msg_5f1c", f"{run_id}:9", "interrupt.asked", run_id, now - 12 * MINUTE * 1000
        )
        again = replace(asked, id="msg_77ab", kind="interrupt.reminded", at=now - 60_000)
        shared.deliveries.enqueue("chat", [(asked, b"{}"), (again, b"{}")])
        shared.deliveries.record("chat", attempted(asked, 204, "", now, []))
        shared.deliveries.record(
            "chat", attempted(again, 503, "answered 503 Service Unavailable", now, [300.0])
        )

    def show_workers(self) -> None:
        """Give signs of life of four workers."""
        roster = WorkerRegistry(self.settings.redis_url, self.settings.namespace)
        now, published = round(time.time() * 1000), self.client.engine.store.graphs()
        for number, (busy, stopping) in enumerate([(3, 0.0), (8, 0.0), (0, 0.0), (1, 12.0)]):
            name = f"runner@shop-{number + 1}"
            queues = ["runner", "gpu"] if number == 1 else ["runner"]
            described = {
                "name": name,
                "pid": 100 + number,
                "pool": "threads",
                "slots": 8,
                "busy": busy,
                "queues": queues,
                "graphs": dict(published),
                "started": now - 3 * DAY * 1000,
                "stopping": stopping,
                "grace": 60.0,
            }
            roster.enter(described, now)

    def _letters(self) -> None:
        redis, keys = (
            RedisConnection(self.settings.redis_url, ""),
            Keys(self.settings.namespace),
        )
        body = '{"v": 1, "interrupt_id": "i-204", "response": "yes"'
        reason = "the message is no JSON: expecting ',' delimiter at character 51"
        redis.call(
            "XADD",
            keys.dead_messages,
            "*",
            "stream",
            keys.responses,
            "reason",
            reason,
            "body",
            body,
        )
        run = next(iter(self.client.runs("failed")))
        place = "run_id", run.run_id, "node", "send", "visit", "1"
        redis.call(
            "XADD", keys.dead, "*", *place, "reason", "its worker died three times while it ran"
        )


@contextmanager
def served(shop: Shop, port: int = 8091) -> Iterator[str]:
    """Serve the pages to Ana of finance, who holds every role."""
    ana = Person(Principal("ana", name="Ana Ruiz"), frozenset(GRANTS), frozenset({"finance"}))
    app = create_app(shop.settings, auth=lambda _: ana)
    app.state.services.client = shop.client
    app.state.services.plan = shop.registry.find
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def outline(url: str) -> list[str]:
    """Name what a page has, in its order: its menu, tabs, headings and columns."""
    text = urlopen(url).read().decode()  # noqa: S310 - our own server
    elements = re.findall(r"<nav.*?</nav>|<(?:h1|h2|th scope=.col)[^>]*>.*?</", text, re.DOTALL)
    words = [
        word.strip() for element in elements for word in re.findall(r">([^<>]+)<", element)
    ]
    return [word for word in words if re.fullmatch(r"[A-Z][A-Za-z ]*", word)]


def picture(browser: Browser, url: str, path: Path, form: Sequence[Any]) -> None:
    """Take a picture of a page in a theme, width and height: of all of it where the height is 0."""
    theme, width, height = form
    page = browser.new_page(
        viewport={"width": width, "height": height or 900}, color_scheme=theme
    )
    page.goto(url)
    page.screenshot(path=path, full_page=not height)
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        sys.exit(f"{path} is wider than its window")
    page.close()


def main(folder: Path | None, only: Sequence[str]) -> None:
    """Take the pictures of the guides, or of all pages in a folder; `only` are names of pages."""
    with embedded_store() as embedded, sync_playwright() as play:
        shop = Shop(embedded.url)
        paths = shop.fill()
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        with served(shop) as url:
            if folder is None:
                shop.show_workers()
                shown = {}
                for name, (page, *form) in KEPT.items():
                    picture(browser, url + paths[page], IMAGES / f"{name}.png", form)
                    shown[name] = outline(url + paths[page])
                OUTLINES.write_text(json.dumps(shown, indent=1) + "\n")
                return
            folder.mkdir(exist_ok=True)
            for theme in ("light", "dark"):
                for width in (390, 1280):
                    shop.show_workers()
                    for name in only or paths:
                        where = folder / f"{name}-{theme}-{width}.png"
                        picture(browser, url + paths[name], where, (theme, width, 0))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, sys.argv[2:])
