"""The pages in a real browser."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from runner.approvals import Action, Principal, Rule
from runner.approvals.rules import Grants
from runner.server import pages
from runner.server.access import GRANTS, Person
from runner.server.app import routes
from runner.server.deciding import act
from runner.store.requests import EmitEvent
from runner.testing.plugin import private_store
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import GRAPHS, Served, Site, ask, echo, put_grant
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    '"><script>alert(1)</script>',
    "'-alert(1)-'",
    "javascript:alert(1)",
    "[x](javascript:alert(1))",
    "![x](https://evil.example/a.png)",
    "<iframe src=https://evil.example>",
    "<a href=https://evil.example>x</a>",
    "{{7*7}}{% raw %}",
    "</textarea><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "<style>@import 'https://evil.example/a.css'</style>",
    "<link rel=stylesheet href=https://evil.example/a.css>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<form action=https://evil.example><button>x",
    "<base href=https://evil.example/>",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "`${alert(1)}`",
]
"""Texts that act where a page forgets what they are; five forms of each make a hundred."""


@pytest.fixture(scope="module")
def shop():
    """The pages of docs/screenshots.py, with something on each, at their address; no test changes them."""
    with pytest.MonkeyPatch.context() as patch, private_store() as store:
        patch.syspath_prepend(ROOT / "docs")
        import screenshots

        shop = screenshots.Shop(store.url)
        paths = shop.fill()
        shop.show_workers()
        with screenshots.served(shop, free_port()) as url:
            yield {name: url + path for name, path in paths.items()}


IS_NARROW = "document.documentElement.scrollWidth <= innerWidth"

FOCUS = """() => {
    const item = document.activeElement, box = item.getBoundingClientRect(), style = getComputedStyle(item);
    const [x, y] = [box.x + Math.min(9, box.width / 2), box.y + Math.min(9, box.height / 2)];
    const top = document.elementFromPoint(x, y);
    return {
        name: item.outerHTML.slice(0, 200),
        place: [...document.querySelectorAll("*")].indexOf(item),
        shows: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
        isOnTop: item === top || item.contains(top) || top?.contains(item),
    };
}"""
"""The element with the focus: where it stands in the document, and whether the eye finds it."""


FIELDS = "form[method=post] :is(input:not([type=hidden]), select, textarea)"

ACTIONS = "forms => forms.map((form) => form.getAttribute('action'))"

DECIDES_NOTHING = "form[method=post] > button[formmethod=dialog]"
"""The first button of a form: what Enter in a field presses."""


@pytest.fixture
def forms(shop, site, redis_url):
    """Pages that have, between them, a form for every POST route of the pages."""
    run = site.start("approval")
    nodes = {"look_up": echo, "check": echo, "approve": ask, "pay": echo}
    edges = ("look_up check", "look_up approve", "approve pay")
    schema = {"type": "object", "properties": {"amount": {"type": "number"}}}

    def ask_amount(ctx):
        return ctx.interrupt(
            "how much?", rule=Rule(eligible=["anyone"]), response_schema=schema
        ).decision

    def ask_payment(ctx):
        rule = Rule(eligible=["anyone"], grants=Grants({}))
        action = Action("shop", "function", "pay", {"amount": 5, "currency": "EUR"})
        return ctx.interrupt("pay", rule=rule, action=action).decision

    graphs = {
        "approval": lambda: wired(nodes, *edges).build(),
        "amount": lambda: wired({"ask": ask_amount}).build(),
        "payment": lambda: wired({"ask": ask_payment}).build(),
    }
    changed = Site(redis_url, graphs)
    amount = changed.start("amount").interrupts()[0]
    payment = changed.start("payment").interrupts()[0]
    put_grant(changed, "g1", "payment")
    changed.client.begin_absence(
        by="ana", to="ben", until=datetime.now(UTC) + timedelta(days=1)
    )
    with Served(changed.app, free_port()) as served:
        yield {
            **shop,
            "again": f"{shop['run']}/plan/again",
            "retry": f"{shop['failed']}/plan/retry",
            "amount": f"{served.url}/q/{amount.id}",
            "payment": f"{served.url}/q/{payment.id}",
            "grants": f"{served.url}/grants",
            "absences": f"{served.url}/absences",
            "migrate": f"{served.url}/runs/{run.id}/plan/migrate",
            "node": f"{shop['run']}?node=approve",
        }


def enter_in_each_field(page):
    """Press Enter in each field of each form that changes something, valid or not; return what was sent."""
    posts = []

    def note(request):
        posts.append(request)

    page.on("request", note)
    page.route(
        "**",
        lambda route: (
            route.fulfill(status=204) if route.request.method == "POST" else route.fallback()
        ),
    )
    page.evaluate(
        "for (const item of document.querySelectorAll('details')) item.open = true;"
        "for (const form of document.forms) form.noValidate = true;"
    )
    fields = page.locator(FIELDS)
    for place in range(fields.count()):
        fields.nth(place).focus()
        page.keyboard.press("Enter")
    with page.expect_request("**/last") as last:  # sent behind all that the keys have sent
        page.evaluate("void fetch('/last', { method: 'POST' })")
    page.unroute_all()
    page.remove_listener("request", note)
    return fields.count(), [
        request.post_data
        for request in posts
        if request.method == "POST" and request != last.value
    ]


@pytest.mark.parametrize("scripts", [True, False])
def test_enter_in_a_field_sends_nothing(forms, browser, scripts):
    """In no form that changes something, with and without JavaScript; each route with a form is there."""
    context = browser.new_context(java_script_enabled=scripts)
    page = context.new_page()
    actions, pressed = set(), 0
    for name, url in forms.items():
        page.goto(url)
        actions |= set(page.eval_on_selector_all("form[method=post]", ACTIONS))
        fields, sent = enter_in_each_field(page)
        assert sent == [], name
        pressed += fields
    page.goto(forms["question"])
    page.click("text=Change the arguments")
    page.fill("[name='f.amount']", "1")
    page.click("text=Approve with changes")
    assert page.locator("[name=typed]").count() == 1
    assert enter_in_each_field(page) == (6, [])
    context.close()

    assert pressed > 30
    for route in routes(pages.ROUTERS):
        if "POST" in route.methods:
            assert any(route.path_regex.match(action) for action in actions), route.path


@pytest.mark.parametrize("name", ["amount", "together"])
def test_enter_would_reject_by_the_order_of_buttons(forms, browser, name):
    """The control of the test above: without the button that decides nothing, the first one rejects."""
    # Without scripts: a page that is exchanged meanwhile would have the button again.
    page = browser.new_page(java_script_enabled=False)
    page.goto(forms[name])
    page.fill("[name=comment] >> nth=0", "a friendly word")
    page.evaluate(
        f"document.querySelectorAll('{DECIDES_NOTHING}').forEach((item) => item.remove())"
    )

    _, sent = enter_in_each_field(page)
    page.close()

    assert any("decision=reject" in body for body in sent)


LINES = """() => [...document.querySelectorAll("tbody tr")].map((row) => {
    const cells = [...row.children].map((cell) => cell.getBoundingClientRect().top);
    return [row.getBoundingClientRect().height, new Set(cells).size];
})"""
"""Of each row of a list: its height, and how many heights its cells begin at."""

TITLES = """Math.min(...[...document.querySelectorAll("tr[data-row]:has(td.pick)")].map((row) =>
    row.querySelector("th").getBoundingClientRect().width / row.getBoundingClientRect().width))"""
"""The least part of its row's width that a question's title has."""


def test_a_row_of_a_list_is_one_line(shop, browser):
    """At 1,280 pixels; on a telephone its cells stand below each other, those of a question in two lines."""
    page = browser.new_page()
    for name in ("runs", "inbox", "done"):
        page.goto(shop[name])
        page.set_viewport_size({"width": 1280, "height": 900})
        wide = page.evaluate(LINES)
        page.set_viewport_size({"width": 390, "height": 900})
        narrow = page.evaluate(LINES)
        assert name != "inbox" or page.evaluate(TITLES) > 0.75
        page.set_viewport_size({"width": 1280, "height": 900})
        assert name != "inbox" or page.evaluate(TITLES) > 0.3
        assert all(height < 48 and tops == 1 for height, tops in wide), (name, wide)
        is_run = name == "runs"
        assert all(
            tops > 1 and (height > 60 if is_run else height <= 72) for height, tops in narrow
        )
    page.close()


def test_a_choice_stands_beside_its_words(shop, browser):
    """Each event of a webhook is one line, at both widths: the box is no wider than a box."""
    page = browser.new_page()
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(shop["webhooks"])
        page.click("text=New webhook")
        boxes = [label.bounding_box() for label in page.locator(".radio").all()]
        assert max(box["height"] for box in boxes) < 40
    page.close()


def test_the_menu_is_one_line(site, tab):
    """With every entry, on a telephone too: that of the page is in view, and the focus brings any other."""
    site.as_role("reader", "approver", "operator", "admin")
    bounds = "(item) => { const b = item.getBoundingClientRect(); return [b.left, b.right]; }"
    for width in (1280, 390, 320):
        tab.set_viewport_size({"width": width, "height": 700})
        tab.goto("/webhooks")
        links = tab.locator("nav[aria-label=Main] a")
        assert tab.locator("header").bounding_box()["height"] < 60, width
        assert tab.evaluate(IS_NARROW), width
        assert links.last.get_attribute("aria-current") == "page"
        left, right = links.last.evaluate(bounds)
        assert 0 <= left < right <= width, width
        tab.goto("/inbox")
        left, right = links.first.evaluate(bounds)
        assert 0 <= left < right <= width, width
        tab.goto("/webhooks")
        links.first.focus()
        left, right = links.first.evaluate(bounds)
        assert 0 <= left < right <= width, width


NAMES = """() => Object.fromEntries([...document.querySelectorAll(".facts th")].map((item) => {
    const range = document.createRange();
    range.selectNodeContents(item);
    return [item.innerText, range.getClientRects().length];
}))"""
"""The names of arguments, each with its lines."""


CUT = """() => [...document.querySelectorAll("body *")].filter((item) => {
    const box = item.getBoundingClientRect(), style = getComputedStyle(item);
    const words = [...item.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!words || !box.width || item.closest(".hidden, .skip, svg, [hidden]")) return false;
    const scrolls = item.closest("section:has(> table), .graph, pre, .data, .bar nav");
    const clips = style.overflowX !== "visible" && item.scrollWidth > item.clientWidth + 1;
    return clips || (!scrolls && (box.left < -1 || box.right > innerWidth + 1));
}).map((item) => item.outerHTML.slice(0, 120))"""
"""Elements whose words are cut off, or reach beyond the window."""


def go_with_the_keyboard(page, name):
    """Go through a page in its order with Tab; what has the focus shows it, and nothing covers it."""
    page.set_viewport_size({"width": 1280, "height": 700})
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip", name
    places = []
    while (focus := page.evaluate(FOCUS))["place"] not in places and not focus[
        "name"
    ].startswith("<body"):
        assert focus["shows"], (name, focus)
        assert focus["isOnTop"], (name, focus)
        places.append(focus["place"])
        page.keyboard.press("Tab")
    assert places == sorted(places), name
    assert len(places) > 8, name
    page.evaluate("document.activeElement.blur()")


@pytest.mark.timeout(600)
def test_every_page_is_for_everybody(shop, browser):
    """Keys reach all of a page, text of twice the size fits, three widths hold it, axe says nothing.

    Targets are 24 pixels, at two widths. A dark page has the same elements, so of it only the contrast of its
    colours is looked at. With the colours of the system each state keeps an edge.
    """
    from axe_playwright_python.sync_playwright import DEFAULT_OPTIONS, Axe

    context = browser.new_context(bypass_csp=True, reduced_motion="reduce")
    page, axe = context.new_page(), Axe()
    looks = [
        (1280, "light", {"rules": {"target-size": {"enabled": True}}}),
        (1280, "dark", {"runOnly": ["color-contrast"]}),
        (320, "light", {"rules": {"target-size": {"enabled": True}}}),
    ]
    for name, url in shop.items():
        page.goto(url)
        go_with_the_keyboard(page, name)
        twice = page.add_style_tag(content="html { font-size: 200%; }")
        for width in (1280, 390, 320):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(IS_NARROW), (name, width)
            assert page.evaluate(CUT) == [], (name, width)
        twice.evaluate("(item) => item.remove()")
        page.evaluate(
            "document.querySelectorAll('details').forEach((item) => { item.open = true; })"
        )
        for width in (1280, 768, 320):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(IS_NARROW), (name, width)
            for _, scheme, chosen in (look for look in looks if look[0] == width):
                page.emulate_media(color_scheme=scheme)
                found = axe.run(page, options={**DEFAULT_OPTIONS, **chosen})
                wrong = [
                    (item["id"], [node["html"] for node in item["nodes"]])
                    for item in found.response["violations"]
                ]
                assert not wrong, (name, width, scheme, wrong)
    page.emulate_media(forced_colors="active")
    page.goto(shop["runs"])
    edge = "(item) => getComputedStyle(item).borderTopWidth"
    assert page.eval_on_selector(".state", edge) == "1px"
    context.close()


def test_names_of_arguments_are_whole_on_a_phone(redis_url, browser):
    """Beside a long value the name of an argument, and the one of a short value, is on one line."""

    def pay(ctx):
        action = Action("shop", "function", "pay", {"iban": "DE89" * 30, "amount": 7})
        return ctx.interrupt("pay", {"why": "late" * 50}, rule=Rule(), action=action).decision

    site = Site(redis_url, {"pay": lambda: wired({"pay": pay}).build()})
    (question,) = site.start("pay").interrupts()
    with Served(site.app, free_port()) as served:
        page = browser.new_page(viewport={"width": 390, "height": 900})
        page.goto(f"{served.url}/q/{question.id}")
        names = page.evaluate(NAMES)
        page.close()
    assert names == {"iban": 1, "amount": 1, "why": 1}


def paying(redis_url, args, schema=None, **options):
    """Return a site with an open question about a payment, which anybody may decide."""

    def pay(ctx):
        action = Action("shop", "function", "pay", args)
        rule = Rule(eligible=["anyone"], **options)
        approval = ctx.interrupt("pay", rule=rule, action=action, response_schema=schema)
        return [approval.decision, approval.response]

    site = Site(redis_url, {"pay": lambda: wired({"pay": pay}).build()})
    return site, site.start("pay")


def offered(page):
    """Return the labels of the buttons that a form offers, the primary one marked."""
    return [
        f"{button.inner_text()}{' *' if 'primary' in (button.get_attribute('class') or '') else ''}"
        for button in page.locator("#decide .buttons button:visible").all()
    ]


@pytest.mark.parametrize("field", ["f.amount", "arguments"])
def test_the_button_says_what_it_approves(redis_url, browser, field):
    """Once an argument differs it is *Approve with changes*, and back; after a refusal, too."""
    note = "\u202e" * (field == "arguments")  # is edited as JSON
    site, run = paying(redis_url, {"amount": 10599.52, "note": note})
    text = f"[name='{field}']"
    with Served(site.app, free_port()) as served:
        page = browser.new_page()
        page.goto(f"{served.url}/q/{run.interrupts()[0].id}")
        assert offered(page) == ["Reject", "Approve *"]
        page.click("text=Change the arguments")
        before = page.input_value(text)
        after = before.replace("10599.52", "1.5")
        page.fill(text, after)
        assert offered(page) == ["Reject", "Approve with changes *"]
        page.keyboard.press("Escape")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("a")
        assert page.evaluate("document.activeElement.value") == "edit"
        page.fill(text, before)
        assert offered(page) == ["Reject", "Approve *"]
        page.fill(text, after)
        page.click("button:text-is('Reject')")
        assert "Say in the comment" in page.inner_text("#decision")
        assert (page.input_value(text), offered(page)) == (
            after,
            ["Reject", "Approve with changes *"],
        )
        page.fill(text, before)
        assert offered(page) == ["Reject", "Approve *"]
        page.fill(text, after)
        page.click("text=Approve with changes")
        assert (page.inner_text("del"), page.inner_text("ins")) == ("10,599.52", "1.50")
        page.click("button:text-is('Confirm')")
        page.wait_for_selector("[data-result=accepted]")
        page.close()
    site.work()
    decision, response = run.result().results["pay"].output
    assert (decision, response["amount"]) == ("edit", 1.5)


@pytest.mark.parametrize("scripts", [True, False])
def test_any_answer_can_be_sent_as_json(redis_url, browser, scripts):
    """Also while fields are empty that are required; those stop the button of the fields."""
    item = {"type": "object", "properties": {"iban": {"type": "string"}}}
    properties = {"name": {"type": "string"}, "accounts": {"type": "array", "items": item}}
    schema = {"type": "object", "properties": properties, "required": ["name"]}

    def asks(ctx):
        return ctx.interrupt("who?", response_schema=schema)

    site = Site(redis_url, {"ask": lambda: wired({"ask": asks}).build()})
    run = site.start("ask")
    answer = {"name": "", "accounts": [{"iban": "007"}]}
    with Served(site.app, free_port()) as served:
        page = browser.new_page(java_script_enabled=scripts)
        page.goto(f"{served.url}/q/{run.interrupts()[0].id}")
        page.click("text=Send the answer")
        assert page.locator(":invalid[name='f.name']").count() == 1
        page.click("text=Answer as JSON")
        page.fill("[name='f.']", json.dumps(answer))
        page.click("text=Send the JSON")
        page.wait_for_selector("[data-result=accepted]")
        page.close()
    site.work()
    assert run.result().results["ask"].output == answer


MAIN = """() => {
    const main = document.getElementById("main").cloneNode(true);
    for (const item of main.querySelectorAll(".stale, time, input, svg")) item.remove();
    return main.textContent.replace(/\\s+/g, " ");
}"""
"""What a page says, without times and drawings."""


@pytest.mark.parametrize("kind", ["question", "run"])
def test_a_page_that_is_open_says_what_a_new_one_says(redis_url, browser, kind):
    """After everything that people do to a question, until it is decided and its run has ended."""
    site, run = paying(redis_url, {"amount": 48000.0}, need=2, delegate="anyone")
    (question,) = run.interrupts()
    client, digest = site.client, question.digest
    steps = [
        lambda: client.claim(question.id, by="ben", ttl=600),
        lambda: client.comment(question.id, "who is this?", by="ben"),
        lambda: client.vote(question.id, "approve", by="ben", digest=digest),
        lambda: client.vote(question.id, "edit", by="cid", response={"amount": 4800.0}),
        lambda: client.release(question.id, by="ben"),
        lambda: client.vote(question.id, "respond", by="dan", response="later"),
        lambda: client.withdraw_vote(question.id, by="dan"),
        lambda: client.delegate(question.id, to="fay", by="eva"),
        lambda: client.vote(question.id, "approve", by="ana", response={"amount": 4800.0}),
        site.work,
    ]
    path = f"/q/{question.id}" if kind == "question" else f"/runs/{run.id}"
    with Served(site.app, free_port()) as served:
        page, other = browser.new_page(base_url=served.url), browser.new_page()
        page.goto(path)
        for number, step in enumerate(steps):
            step()
            other.goto(f"{served.url}{path}")
            said = other.evaluate(MAIN)
            wait_until(lambda said=said: page.evaluate(MAIN) == said, f"step {number} is shown")
        page.close()
        other.close()
    assert str(run.status) == "completed"


HARD = {
    "null": None,
    "choice": None,
    "other choice": "c",
    "switch": None,
    "float": 48000.0,
    "tiny": 1e-07,
    "huge": 1e300,
    "date": "tomorrow",
    "email": " a@example.com ",
    "link": "not one\nat all",
    "short": "two\nlines",
    "ends": "\na\r\nb\n",
    "tab": "\ta",
    "list": ["a\nb", ""],
    "object": {"deep": {"list": [1, None, {}]}},
    "none": None,
    "empty": "",
    "nothing": {},
}
"""Arguments that the inputs of a browser can't hold, or send back as others."""

OF_HARD = {
    "choice": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
    "other choice": {"enum": ["a", "b", "c"]},
    "switch": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    "date": {"type": "string", "format": "date"},
    "email": {"type": "string", "format": "email"},
    "link": {"type": "string", "format": "uri"},
    "short": {"type": "string", "maxLength": 20},
    "list": {"type": "array", "items": {"type": "string"}},
    "none": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}]},
    "absent": {"type": "string", "default": "of the schema"},
    "absent choice": {"enum": ["a", "b"], "default": "b"},
}
"""Their schemas, where they matter; two are of arguments that the call does not have."""


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("kind", ["schema", "values", "control"])
def test_an_untouched_call_is_approved_as_it_is(redis_url, browser, scripts, kind):
    """No field of a form counts as changed that nobody has changed; control: a text with a NUL in it."""
    part = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    numbers = {name: {"type": "number"} for name in ("float", "tiny", "huge")}
    properties = {name: {} for name in HARD} | numbers | OF_HARD
    schema = {"type": "object", "properties": properties, "$defs": {"Part": part}}
    args = HARD | ({"nul": "\x00"} if kind == "control" else {})
    site, run = paying(redis_url, args, schema if kind == "schema" else None)
    with Served(site.app, free_port()) as served:
        page = browser.new_page(java_script_enabled=scripts)
        page.goto(f"{served.url}/q/{run.interrupts()[0].id}")
        assert page.locator("[name=arguments]").count() == (kind == "control")
        if scripts:
            assert offered(page) == ["Reject", "Approve *"]
        page.click("button:text-is('Approve')")
        page.wait_for_selector("[data-result]")
        assert page.get_attribute("[data-result]", "data-result") == "accepted"
        page.close()
    site.work()
    assert run.result().results["pay"].output == ["approve", True]


def test_a_cut_stream_comes_back(site, served, browser):
    """The server goes and comes back: the page goes on, and what was typed is still there."""
    run = site.start("approval")
    (question,) = run.interrupts()
    port = free_port()
    context = browser.new_context()
    page = context.new_page()
    with Served(site.app, port) as first:
        page.goto(f"{first.url}/q/{question.id}")
        page.check("input[name='f.ok'][value='false']")
    page.wait_for_selector(".stale:visible", timeout=30_000)
    with Served(site.app, port):
        site.client.respond(question.id, {"ok": True}, responder="ben")
        page.wait_for_selector("#head [data-state=answered]", timeout=30_000)
        assert page.is_checked("input[name='f.ok'][value='false']")
        page.wait_for_selector(".stale", state="hidden")
    context.close()


NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', {value: undefined});"


@pytest.mark.parametrize(("tabs", "script"), [(12, ""), (6, NO_LOCKS)])
def test_somebody_with_twelve_tabs_decides(site, served, browser, tabs, script):
    """The next page opens, is live and sends its form; control: a stream for each page stops the seventh."""
    runs = [site.start("approval") for _ in range(2)]
    (other,), (question,) = (run.interrupts() for run in runs)
    context = browser.new_context(base_url=served.url)
    context.add_init_script(script)
    for _ in range(tabs):
        context.new_page().goto(f"/q/{other.id}")
    streams = site.app.state.services.hub._people
    wait_until(lambda: sum(streams.values()) == (6 if script else 2), "the streams are open")
    page = context.new_page()
    if script:
        with pytest.raises(Exception, match="Timeout 3000ms"):
            page.goto(f"/q/{question.id}", timeout=3_000)
    else:
        page.goto(f"/q/{question.id}")
        site.client.respond(question.id, {"ok": True}, responder="ben")
        page.wait_for_selector("#head [data-state=answered]")
        page.goto(f"/q/{other.id}")
        page.check("input[name='f.ok'][value='true']")
        page.click("text=Send the answer")
        page.wait_for_selector("#head [data-state=answered]")
        assert sum(streams.values()) <= 2
    context.close()


@pytest.fixture
def desk(site):
    """The site, with somebody of finance who decides."""
    site.as_role("reader", "approver", name="ana", groups=["finance"])
    return site


def test_a_new_question_is_announced(desk, tab):
    """The rows that somebody reads stay where they are; what was decided meanwhile is marked."""
    first = desk.start("refund", requester="cora").interrupts()[0]
    tab.goto("/inbox?tab=all")
    tab.check("[name=q]")

    desk.start("approval")
    tab.wait_for_selector("#news a")
    assert (tab.inner_text("#news"), tab.locator("tr[data-row]").count()) == ("1 new", 1)
    assert tab.is_checked("[name=q]")
    desk.client.withdraw(first.id)
    tab.wait_for_selector("tr[data-ended=withdrawn]")
    assert not tab.is_checked("[name=q]")
    tab.click("#news a")
    tab.wait_for_function("document.querySelectorAll('tr[data-row]').length == 1")

    assert tab.locator("tr[data-row] th").inner_text().startswith("refund")
    assert tab.title().startswith("Inbox (1)")
    assert tab.problems == []


def test_an_unchanged_list_is_not_sent_again(desk, tab):
    """The page is asked for with its ETag; rows stay, and the next change is shown."""
    desk.start("refund", requester="cora")
    tab.goto("/inbox?tab=all")

    def status():
        with tab.expect_response("**/inbox?tab=all") as reply:
            tab.evaluate("dispatchEvent(new Event('online'))")
        return reply.value.status

    wait_until(lambda: status() == 304, "the page is as the browser has it")
    assert tab.locator("tr[data-row]").count() == 1
    desk.start("approval")
    tab.wait_for_selector("#news a")
    assert tab.problems == []


def test_several_are_decided_with_the_keyboard(desk, tab):
    """Select two rows with keys, read both calls, type the word, and both are counted."""
    questions = [desk.start("refund", requester="cora").interrupts()[0] for _ in range(2)]
    tab.goto("/inbox")
    for key in "jxjx":
        tab.keyboard.press(key)
    assert tab.locator("[name=q]:checked").count() == 2

    tab.focus("text=Decide 2 together · 240.00")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/together?*")
    assert tab.locator("tr[data-row]").count() == 2
    tab.focus("[name=typed]")
    tab.keyboard.type("refund")
    tab.focus("text=Approve 2 · 240.00")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("[data-result=counted]")

    assert tab.locator("[data-result=counted]").count() == 2
    assert all(len(desk.votes(question)) == 1 for question in questions)
    assert tab.problems == []


def test_a_key_decides_nothing_by_itself(desk, tab):
    """It goes to the button, and Enter does it; switched off, or in a field, keys do nothing."""
    question = desk.start("refund", requester="cora").interrupts()[0]
    tab.goto(f"/q/{question.id}")

    tab.keyboard.press("e")
    assert tab.evaluate("document.activeElement.textContent") == "Change the arguments"
    tab.focus("[name='f.amount']")
    tab.keyboard.press("r")
    assert tab.evaluate("document.activeElement.name") == "f.amount"
    tab.keyboard.press("Backspace")
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("a")
    assert tab.evaluate("document.activeElement.value") == "approve"
    assert desk.votes(question) == []
    tab.keyboard.press("?")
    tab.uncheck("#keys-on")
    tab.evaluate("document.activeElement.blur()")
    tab.keyboard.press("r")
    assert tab.evaluate("document.activeElement.tagName") == "BODY"
    tab.goto("/inbox")
    tab.keyboard.press("j")
    assert tab.evaluate("document.activeElement.closest('tr')") is None
    assert tab.problems == []


def test_a_view_is_saved_and_found_again(desk, tab):
    """Filters have a name in this browser, until it is removed."""
    desk.start("refund", requester="cora")
    desk.start("approval")
    tab.goto("/inbox")
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.name") == "text"
    tab.click("summary:has-text('Filter')")
    tab.select_option("[name=risk]", "high")
    tab.click("button:has-text('Filter')")
    tab.wait_for_url("**risk=high**")
    tab.click("text=Save this view")
    tab.fill(".views [name=name]", "risky")
    tab.click("button:has-text('Save')")
    tab.wait_for_selector(".views >> text=risky")
    tab.goto("/inbox")
    tab.click("text=risky")

    tab.wait_for_url("**risk=high**")
    assert tab.locator("tr[data-row]").count() == 1
    tab.click("[aria-label='Remove the view risky']")
    tab.wait_for_selector("text=risky", state="detached")
    assert tab.problems == []


def forms_of(text):
    return [text, text.upper(), f"x{text}y", {"k": text}, {text: [text]}]


def test_hostile_text_does_nothing(redis_url, browser):
    """A hundred payloads wherever agents and users write: no dialog, no report, no request elsewhere."""
    payloads = [form for text in HOSTILE for form in forms_of(text)]
    name = HOSTILE[1]

    def asking(text):
        return lambda ctx: ctx.interrupt(f"{text}"[:200], reason=text)

    def call(ctx):
        rule = Rule(eligible=["anyone"], delegate="anyone")
        action = Action(name, "function", name, {text: text for text in HOSTILE})
        return ctx.interrupt(name, reason=name, rule=rule, action=action).decision

    def fail(ctx):
        raise ValueError(f"{payloads}")

    def echo(ctx):
        return payloads

    def build():
        asks = {f"ask{place}": asking(text) for place, text in enumerate(payloads)}
        builder = wired({**asks, "call": call, "fail": fail, "echo": echo})
        return builder.set_failure_policy("continue").build()

    site = Site(redis_url, {name: build, **GRAPHS})
    run = site.start(name, payloads, tags={"t": name}, requester=Principal(name))
    site.client.engine.store.do(
        EmitEvent(run.id, "progress", "ask0", 1, {"fraction": 0.5, "note": name})
    )
    questions = run.interrupts()
    assert len(questions) == len(payloads) + 1
    (ruled,) = [question.id for question in questions if question.rule]
    people = site.app.state.services, Person(Principal(name), frozenset(GRANTS))
    act(*people, ruled, "comment", comment=name)
    act(*people, ruled, "claim", ttl=600)
    with Served(site.app, free_port()) as served:
        context = browser.new_context(base_url=served.url)
        page = context.new_page()
        problems, requests = [], []
        page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        page.on(
            "console", lambda line: problems.append(line.text) if line.type == "error" else None
        )
        page.on("request", lambda request: requests.append(request.url))
        text = quote(name)
        page.goto(
            f"/inbox?text={text}&tool={text}&tag={text}&run={text}&graph={text}&name={text}&cursor="
        )
        page.click("text=Save this view")
        page.fill(".views [name=name]", name)
        page.click("button:has-text('Save')")
        paths = [
            "/",
            "/inbox",
            "/runs",
            "/graphs",
            f"/runs/{run.id}",
            f"/inbox/together?q={quote(ruled)}",
        ]
        paths += [
            f"/runs/{run.id}/plan/again",
            *(f"/runs/{run.id}?node={node}" for node in ("ask0", "fail", "echo")),
        ]
        for path in [
            *paths,
            *(f"/q/{quote(question.id)}" for question in (questions[0], questions[-1])),
        ]:
            page.goto(path)
            page.evaluate(
                "document.querySelectorAll('details').forEach((item) => { item.open = true; })"
            )
        # One page for each text, in one of its five forms in turn; the inbox above has all of them.
        for place in range(0, len(payloads), 5):
            question = questions[place + place // 5 % 5]
            page.goto(f"/q/{quote(question.id)}")
        context.close()

    assert problems == []
    assert {re.match(r"\w+://[^/]+", url)[0] for url in requests} == {served.url}


def test_a_form_of_another_origin_changes_nothing(site, served, browser):
    """A page of another port of this machine, which shares its cookies, can't send our forms."""
    run = site.start("approval")
    (question,) = run.interrupts()

    async def other(scope, receive, send):
        page = (
            f"<form method=post action='{served.url}/q/{question.id}'><input name=f.ok value=true></form>"
            "<script>document.forms[0].submit()</script>"
        )
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/html")],
            }
        )
        await send({"type": "http.response.body", "body": page.encode()})

    with Served(other, free_port()) as elsewhere:
        context = browser.new_context()
        page = context.new_page()
        page.goto(elsewhere.url)
        page.wait_for_url(f"{served.url}/**")
        assert "another site" in page.inner_text("body")
        context.close()
    assert run.interrupts()
