"""A finance department's day in a real browser: many questions, three people, a large run."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import settings

from runner import GraphBuilder
from runner.approvals import Action, Rule
from runner.approvals.rules import Principal
from runner.server.access import Person
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import Served, Site
from tests.server.test_browser import IS_NARROW
from tests.server.test_forms import SUPPLIER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]


def look(page):
    """Return what is wrong with a page in both themes at two widths: its menu, its width, what axe says.

    Its elements are the same in both themes, so of the dark one only the contrast of its colours counts.
    """
    from axe_playwright_python.sync_playwright import DEFAULT_OPTIONS, Axe

    violations = []
    for scheme, chosen in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            if page.locator("header").bounding_box()["height"] > 60:
                violations.append((scheme, width, "the menu takes two lines"))
            if not page.evaluate(IS_NARROW):
                violations.append((scheme, width, "it is wider than the window"))
        found = Axe().run(page, options={**DEFAULT_OPTIONS, **chosen})
        violations += [(scheme, item["id"]) for item in found.response["violations"]]
    page.set_viewport_size({"width": 1280, "height": 844})
    return violations


# -- two hundred questions, or one hundred of the quick profile --------------------------------------------

KINDS = {"refunds": 30, "callbacks": 30}
if settings.default.max_examples < 100:
    KINDS |= {"payouts": 5, "deadlines": 5, "letters": 4, "suppliers": 3, "contracts": 3}
    KINDS["expenses"] = 20
else:
    KINDS |= {"payouts": 20, "deadlines": 20, "letters": 16, "suppliers": 12, "contracts": 12}
    KINDS["expenses"] = 60
"""Eight kinds of questions; the last are the items of one map."""

SEND = "Send the answer"

LETTER = "Sehr geehrte Damen und Herren,\n\nwir **bitten** um Nachsicht.\n\n" * 30
CONTRACT = "\n".join(f"{number}. Clause {number} of the contract." for number in range(1100))
SCAN = b64encode(b"%PDF-1.7\n" + b"x" * 41_000).decode()
FINANCE = {"eligible": ["group:finance"], "exclude": ["requester"]}


def ask_by_kind(ctx):
    """Ask a question of the kind that the task names."""
    kind, number = ctx.task["kind"], ctx.task["number"]
    money = {"amount": 100.5 + number, "currency": "EUR", "iban": "DE89370400440532013000"}
    callback = {
        "customer": number,
        "amount": 9.5,
        "phone": "+49 30 1234",
        "since": "Monday",
        "language": "German",
    }
    plain = {"assignees": ["ana", "ben"]}
    if kind == "callbacks":
        schema = {"type": "object", "properties": {"reached": {"type": "boolean"}}}
        return ctx.interrupt(
            "call back?", callback, response_schema={**schema, "required": ["reached"]}, **plain
        )
    if kind == "suppliers":
        reason = {"name": f"Acme {number}", "zip": "10115"}
        return ctx.interrupt("supplier", reason, response_schema=SUPPLIER, **plain)
    rules = {
        "payouts": Rule(**FINANCE, need=2, title="Pay {amount:money} to {iban}"),
        "deadlines": Rule(
            eligible=["ben"], delegate="anyone", title="Extend the deadline of order {number}"
        ),
        "letters": Rule(**FINANCE, title="Send letter {number}"),
        "contracts": Rule(**FINANCE, title="Sign contract {number}"),
    }
    calls = {
        "deadlines": {"number": number, "days": 3},
        "letters": {"number": number, "text": LETTER},
        "contracts": {"number": number, "text": CONTRACT, "scan": SCAN},
    }
    rule = rules.get(kind, Rule(**FINANCE, title="Refund {amount:money}"))
    decided = ctx.interrupt(
        kind,
        reason="It is in order, says the agent.",
        rule=rule,
        action=Action("shop", "function", kind, calls.get(kind, money)),
        expires_in=86_400.0 if kind == "deadlines" else None,
    )
    return [decided.decision, decided.response]


def of_kind(kind):
    """A graph that asks a kind of question; the last kind asks once for each item of a map."""
    if kind != "expenses":
        return lambda: wired({"ask": ask_by_kind}).build()

    def build():
        builder = GraphBuilder()
        items = [{"kind": kind, "number": number} for number in range(KINDS[kind])]
        builder.add_node(lambda ctx: items, "list")
        builder.add_map(ask_by_kind, "ask", over="list")
        builder.add_edge("list", "ask")
        return builder.build()

    return build


@pytest.fixture
def full_desk(redis_url):
    """Open questions of eight kinds that cora asked; who calls is named by a header."""
    site = Site(redis_url, {kind: of_kind(kind) for kind in KINDS})

    def who(request):
        name = request.headers.get("x-who", "eve")
        groups = frozenset({"finance"} if name in {"ana", "ben"} else ())
        return Person(Principal(name), frozenset({"approver", "reader"}), groups)

    site.app.state.auth = who
    site.runs = [
        site.start(kind, {"kind": kind, "number": each}, requester="cora")
        for kind, number in KINDS.items()
        for each in range(1 if kind == "expenses" else number)
    ]
    return site


def amounts(first, end):
    """Return the sum of the amounts of some questions as a page writes it."""
    return f"{sum(100.5 + number for number in range(first, end)):,.2f} EUR"


TALLEST = """() => Math.max(...[...document.querySelectorAll("tr[data-row]")].map(
    (row) => row.getBoundingClientRect().height))"""
"""The height of the tallest row of a list, in CSS pixels."""


class Hand:
    """A person at a page, whose clicks are counted."""

    def __init__(self, page, kind=""):
        self.page, self.clicks = page, 0
        if kind:
            page.goto(f"/inbox?tab=mine&graph={kind}")

    def click(self, selector):
        self.clicks += 1
        self.page.locator(selector).first.click()

    def decide(self, button, comment="", **fields):
        """Decide the question that is open; typing takes no click."""
        if comment:
            self.page.fill("#decide [name=comment]", comment)
        for name, text in fields.items():
            self.page.fill(f"[name='f.{name}']", text)
        self.click(f"#decision button:text-is('{button}')")
        self.page.wait_for_selector("[data-result=accepted], [data-result=counted]")

    def go_on(self):
        """Go to the next question of the list, if one is left."""
        if not self.page.locator("[data-result] .button").count():
            return False
        self.click("[data-result] .button")
        self.page.wait_for_selector("#decide")
        return True


def decide_all(page, kind, number, buttons, **fields):
    """Decide some questions of a kind one by one, from a filter of the inbox; return the clicks for each."""
    hand = Hand(page, kind)
    hand.click("tbody th a")
    hand.decide(buttons[0], **fields)
    count = 1
    while hand.go_on():
        button = buttons[count % len(buttons)]
        hand.decide(button, "Not so." if button == "Reject" else "", **fields)
        count += 1
    assert count == number, kind
    return hand.clicks / count


def decide_together(page, kind, button, sums, *, number=0):
    """Decide some questions of a kind as a table, by default all; return the clicks."""
    hand, number = Hand(page, kind), number or KINDS[kind]
    if kind == "expenses":
        hand.click(f"text=decide all {number} together")
    else:
        hand.click("#pick-all")
        hand.click(f"text=Decide {number} together")
    page.wait_for_selector("table.together")
    assert f"{number} can be decided here: {sums}" in page.inner_text("form.together")
    if kind == "callbacks":
        assert not look(page)
        hand.click("[name='f.reached']")
    hand.click(f"button:has-text('{button} {number}')")
    page.wait_for_selector(f"#result[data-failed='0']:has-text('{number} ')")
    return hand.clicks


def first_screens(site, page):
    """Return the ends of the deciding buttons of each kind on a telephone, and what axe says against them."""
    ends, problems = {}, []
    for kind in KINDS:
        (question,) = site.client.interrupts(graph=kind, limit=1)
        page.goto(f"/q/{question.id}")
        problems += [(kind, *each) for each in look(page)]
        page.set_viewport_size({"width": 390, "height": 844})
        is_plain = kind in {"callbacks", "suppliers"}
        label = SEND if is_plain else "Approve"
        box = page.locator(f"#decision button:text-is('{label}')").bounding_box()
        ends[kind] = box["y"] + box["height"]
    page.goto("/inbox?tab=all")
    tallest = page.evaluate(TALLEST)
    page.set_viewport_size({"width": 1280, "height": 844})
    return ends, tallest, problems


def test_a_day_of_two_hundred_questions(full_desk, browser):
    """Two clicks a question from a filter, three for thirty equal ones, all of it on a telephone's screen."""
    with Served(full_desk.app, free_port()) as served:
        cora, ana, ben = (
            browser.new_page(base_url=served.url, extra_http_headers={"x-who": name})
            for name in ("cora", "ana", "ben")
        )
        for page in (cora, ana, ben):
            page.set_default_timeout(20_000)
        ana.goto("/inbox?tab=all")
        assert f"All {sum(KINDS.values())}" in " ".join(ana.inner_text("#tabs").split())
        cora.goto("/inbox?tab=requested")
        assert cora.locator("tr[data-row]").count() > 0
        cora.goto("/inbox?tab=mine")
        assert "Nothing waits for you" in cora.inner_text("#rows")
        ends, tallest, problems = first_screens(full_desk, ben)
        assert not problems
        assert {kind: end for kind, end in ends.items() if end > 844} == {}
        assert tallest <= 72

        clicks = {
            kind: decide_together(ana, kind, button, sums)
            for kind, button, sums in (
                ("refunds", "Approve", "3,450.00 EUR"),
                ("callbacks", "Answer", "285.00"),
                ("expenses", "Approve", amounts(0, KINDS["expenses"])),
            )
        }
        # An answer has a field, too.
        assert clicks == {"refunds": 3, "callbacks": 4, "expenses": 2}

        hand = Hand(ana, "payouts")
        hand.click("tbody th a")
        hand.click("text=Change the arguments")
        ana.fill("[name='f.amount']", "1.5")
        hand.click("#decision button:text-is('Approve with changes')")
        hand.click("button:text-is('Confirm')")
        ana.wait_for_selector("[data-result=counted]")
        edited = {"edit": hand.clicks}
        hand = Hand(ben, "deadlines")
        hand.click("tbody th a")
        ben.fill("#coordinate [name=to]", "ana")
        hand.click("button:text-is('Delegate')")
        ben.wait_for_selector("text=ana may vote in the place of ben")
        edited["delegation"] = hand.clicks
        hand = Hand(ana, "deadlines")
        hand.click("tbody th a")
        hand.decide("Reject", "Too late for that.")
        edited["its rejection"] = hand.clicks
        assert edited == {"edit": 4, "delegation": 2, "its rejection": 2}

        rate = {
            "payouts": decide_all(ana, "payouts", KINDS["payouts"] - 1, ["Approve"]),
            "deadlines": decide_all(ben, "deadlines", KINDS["deadlines"] - 1, ["Approve"]),
            "letters": decide_all(ana, "letters", KINDS["letters"], ["Approve", "Reject"]),
            "suppliers": decide_all(
                ana, "suppliers", KINDS["suppliers"], [SEND], **{"accounts/0/iban": "DE1"}
            ),
            "contracts": decide_all(ben, "contracts", KINDS["contracts"], ["Approve"]),
        }
        hand = Hand(ben, "payouts")
        hand.click("tbody th a:has-text('100.50')")
        hand.click('button:text-is("Approve ana\'s version")')
        ben.wait_for_selector("[data-result=accepted]")
        rate["a version"] = hand.clicks
        assert max(rate.values()) <= 2, rate
        number = KINDS["payouts"]
        rest = amounts(1, number)
        assert decide_together(ben, "payouts", "Approve", rest, number=number - 1) == 3

        cora.goto("/inbox?tab=requested")
        assert "Nothing that you asked for waits" in cora.inner_text("#rows")
        for page in (cora, ana, ben):
            page.close()
    full_desk.work()
    assert [run.status for run in full_desk.runs if run.status != "completed"] == []
