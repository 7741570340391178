"""A finance department's day in a real browser: many questions, three people, a large run."""

from __future__ import annotations

from itertools import pairwise

import pytest

from runner import GraphBuilder
from runner.approvals import Action, Rule
from runner.approvals.rules import Principal
from runner.server.access import Person
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import Served, Site, echo
from tests.server.test_browser import IS_NARROW
from tests.server.test_run_page import is_seen

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

RECEIPTS, BRANCHES, STEPS = 200, 8, 7


def review(ctx):
    rule = Rule(eligible=["group:finance"], title="File receipt {number} of {month}")
    action = Action("shop", "function", "file", {"number": ctx.task, "month": "October"})
    return ctx.interrupt("file it?", rule=rule, action=action).decision


def receipts():
    builder = GraphBuilder()
    builder.add_node(lambda ctx: list(range(RECEIPTS)), "list")
    builder.add_map(review, "review", over="list")
    builder.add_edge("list", "review")
    return builder.build()


def pay(ctx):
    rule = Rule(
        eligible=["group:finance"],
        need=2,
        exclude=["requester"],
        title="Transfer {amount} {currency} to {iban}",
    )
    call = {"amount": 48000, "currency": "EUR", "iban": "DE89370400440532013000"}
    action = Action("shop", "function", "transfer", call)
    decided = ctx.interrupt(
        "transfer", reason="The supplier waits since **Monday**.", rule=rule, action=action
    )
    return decided.response if decided.decision == "edit" else call


def closing():
    branches = [[f"check_{line}_{step}" for step in range(STEPS)] for line in range(BRANCHES)]
    names = ["collect", *(name for branch in branches for name in branch), "book", "report"]
    edges = [f"{a} {b}" for branch in branches for a, b in pairwise(branch)]
    ends = [(f"collect {branch[0]}", f"{branch[-1]} pay") for branch in branches]
    nodes = {**dict.fromkeys(names, echo), "pay": pay}
    return wired(nodes, *edges, *sum(ends, ()), "pay book", "book report").build()


@pytest.fixture
def desk(redis_url):
    """200 receipts to file, and a run of 60 nodes with a transfer; who calls is named by a header."""
    site = Site(redis_url, {"receipts": receipts, "closing": closing})

    def who(request):
        principal = Principal(request.headers.get("x-who", "eve"))
        return Person(principal, frozenset({"approver", "reader"}), frozenset({"finance"}))

    site.app.state.auth = who
    site.start("receipts", requester="cora")
    site.closing = site.start("closing", requester="cora")
    return site


LABELS = """() => Math.min(...[...document.querySelectorAll(".graph text")].map(
    (text) => text.getScreenCTM().a * parseFloat(getComputedStyle(text).fontSize)))"""
"""The smallest label of a graph, in CSS pixels on the screen."""


def look(page, folder, name):
    """Take pictures of a page in both themes at two widths, and return what axe says against them."""
    from axe_playwright_python.sync_playwright import Axe

    violations = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            page.screenshot(path=folder / f"{name}-{scheme}-{width}.png")
            if page.locator("header").bounding_box()["height"] > 60:
                violations.append((scheme, width, "the menu takes two lines"))
            if not page.evaluate(IS_NARROW):
                violations.append((scheme, width, "it is wider than the window"))
        violations += [(scheme, item["id"]) for item in Axe().run(page).response["violations"]]
    page.set_viewport_size({"width": 1280, "height": 844})
    return violations


def test_a_finance_day(desk, browser, tmp_path):
    """On the first screens stand what waits for me, what would happen, and who decided what."""
    with Served(desk.app, free_port()) as served:
        ana, ben, eva = (
            browser.new_page(base_url=served.url, extra_http_headers={"x-who": name})
            for name in ("ana", "ben", "eva")
        )
        ana.goto("/")
        assert "201 for you" in ana.inner_text("#questions")
        ana.goto("/inbox")
        assert ana.locator("tbody th").all_inner_texts() == [
            f"file it? × {RECEIPTS} decide all {RECEIPTS} together",  # noqa: RUF001 - as shown
            "Transfer 48000 EUR to DE89370400440532013000",
        ]
        seen = {"inbox": look(ana, tmp_path, "inbox")}
        ana.click(f"text=decide all {RECEIPTS} together")
        ana.click(f"text=Approve {RECEIPTS}")
        ana.wait_for_selector("[data-result=accepted]")
        assert ana.locator("[data-result=accepted]").count() == RECEIPTS

        ben.goto(f"/runs/{desk.closing.id}?fit=yes")
        assert ben.evaluate(LABELS) > 9
        ben.click("text=Full size")
        ben.wait_for_selector(".graph:not(.fits)")
        assert ben.evaluate(LABELS) > 11
        ben.click("text=Go to what waits")
        assert is_seen(ben, "pay")
        assert not is_seen(ben, "collect")
        ben.click("#asks a")
        assert not ben.is_visible("text=Approve with changes")  # before there can be one
        ben.click("text=Change the arguments")
        assert ben.locator("[name='f.iban']").bounding_box()["width"] > 350
        ben.fill("[name='f.amount']", "4800")
        ben.fill(".answer [name=comment]", "A zero too many.")
        ben.click("text=Approve with changes")
        ben.click("button:has-text('Confirm')")
        ben.wait_for_selector("[data-result=counted]")
        eva.goto(ben.url)
        assert "Changed by ben: Transfer 4800 EUR" in eva.inner_text("#versions")
        seen["question"] = look(eva, tmp_path, "question")
        eva.click("article:has-text('Changed by ben') >> text=/Approve ben.s version/")
        eva.wait_for_selector("[data-result=accepted]")
        desk.work()

        eva.goto(f"/runs/{desk.closing.id}?fit=yes")
        sentence = "Transfer 4800 EUR to DE89370400440532013000"
        decision = eva.inner_text("#decided li")
        assert decision.startswith(sentence)
        assert "approved with changes by ben, eva, 2 of 2" in decision
        assert eva.locator("#graph-part [data-node]").count() == 60
        seen["run"] = look(eva, tmp_path, "run")
        ana.goto("/inbox?tab=done")
        assert sentence in ana.inner_text("tbody tr >> nth=0")
        seen["done"] = look(ana, tmp_path, "done")
        for page in (ana, ben, eva):
            page.close()
    assert not any(seen.values()), seen
    assert desk.closing.result().results["pay"].output["amount"] == 4800
