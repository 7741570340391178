"""Forms and pages as finance people use them: amounts, suppliers, contracts and plain questions."""

from __future__ import annotations

import base64
import html
import re

import pytest

from runner.approvals import Action, Rule
from runner.approvals.rules import Principal
from runner.server.access import Person
from tests.graphs import wired
from tests.ports import free_port
from tests.server.conftest import Served, Site
from tests.server.test_finance_day import look
from tests.server.test_forms import SUPPLIER
from tests.server.test_pages import send

PDF = base64.b64encode(b"%PDF-1.7\n" + b"x" * 41_000).decode()
CONTRACT = "\n".join(f"{number}. Clause {number} of the contract." for number in range(1100))


def pay(ctx):
    rule = Rule(eligible=["ana", "ben"], title="Pay {amount:money} to {iban}", edit="keeps")
    call = {"amount": 48000.0, "currency": "EUR", "iban": "DE89370400440532013000"} | ctx.task
    return ctx.interrupt(
        "pay", rule=rule, action=Action("shop", "function", "pay", call)
    ).response


def sign(ctx):
    rule = Rule(eligible=["ana"], title="Sign the contract with {to}")
    call = {"to": "Acme", "text": CONTRACT, "scan": PDF}
    return ctx.interrupt(
        "sign",
        reason="They **wait**.",
        rule=rule,
        action=Action("shop", "function", "sign", call),
    ).decision


def supply(ctx):
    return ctx.interrupt("supplier", {"name": "Acme Inc"}, response_schema=SUPPLIER)


def call_back(ctx):
    reason = {"customer": 4801, "phone": "+49 30 1234", "amount": 1234.5, "since": {"day": 3}}
    return ctx.interrupt(
        "call back?", reason, title="Call customer {customer} back about {amount:,.2f}"
    )


GRAPHS = {
    "pay": lambda: wired({"pay": pay}).build(),
    "sign": lambda: wired({"sign": sign}).build(),
    "supply": lambda: wired({"supply": supply}).build(),
    "call": lambda: wired({"call": call_back}).build(),
}


@pytest.fixture
def desk(redis_url):
    site = Site(redis_url, GRAPHS)
    site.as_role("reader", "approver", name="ana")
    return site


def asked(site, graph, task=None):
    (question,) = site.start(graph, task or {}, requester="cora").interrupts()
    return question


@pytest.fixture
def berlin(desk, browser):
    """A tab of somebody in Berlin with a German browser."""
    desk.app.state.auth = lambda request: Person(
        Principal("ana"), frozenset({"approver", "reader"})
    )
    with Served(desk.app, free_port()) as served:
        context = browser.new_context(
            base_url=served.url, locale="de-DE", timezone_id="Europe/Berlin"
        )
        context.set_default_timeout(15_000)
        yield context.new_page()
        context.close()


@pytest.mark.full
def test_a_plain_question_is_a_sentence_with_its_place_and_requester(desk):
    """Its title is filled from its reason, and covered by its digest; nowhere stands a Python value."""
    question = asked(desk, "call")
    sentence = "Call customer 4801 back about 1,234.50"
    assert sentence in desk.page("/inbox?tab=all")
    text = desk.page(f"/q/{question.id}")
    assert (f"<h1>{sentence}" in text, "for <b>cora</b>" in text, "{&#39;" in text) == (
        True,
        True,
        False,
    )
    assert re.search(r'<th scope="row">phone</th><td>\+49 30 1234</td>', text)
    for view in (
        desk.http.get(f"/v1/questions/{question.id}").json(),
        *desk.http.get("/v1/questions").json()["items"],
    ):
        assert view["title"] == sentence
        assert (view["place"]["graph"], view["node"]) == ("call", "call")
    other = desk.client.interrupt(question.id)
    assert other.title == sentence


@pytest.mark.parametrize("title", ["Call {phone", "Call {fax}", "{customer:>9}"])
def test_a_title_that_can_not_be_filled_fails_the_node(redis_url, title):
    """As that of a rule does: it is a mistake in the code."""

    def asks(ctx):
        return ctx.interrupt("call", {"phone": 1, "customer": 2}, title=title)

    site = Site(redis_url, {"call": lambda: wired({"call": asks}).build()})
    assert "title" in site.start("call").result().results["call"].error.message


@pytest.mark.full
def test_an_item_is_added_without_a_script(desk):
    """What was typed stays, also what is invalid; nothing is decided by it."""
    question = asked(desk, "supply")
    path = f"/q/{question.id}"
    assert 'name="f.name" value="Acme Inc"' in desk.page(path)
    typed = {
        "f.name": "Bolt",
        "f.zip": "1",
        "f.accounts/0/iban": "DE1",
        "f.accounts/0/limit": "x",
    }
    more = send(desk, path, digest=question.digest, add="accounts", **typed)
    assert more.status_code == 200
    for name, value in typed.items():
        assert f'name="{name}" value="{value}"' in more.text
    assert 'name="f.accounts/1/iban" value=""' in more.text
    assert desk.client.interrupt(question.id).is_open

    wrong = send(desk, path, digest=question.digest, **typed)
    assert re.findall(r'aria-describedby="p\.([^"]+)" autofocus', wrong.text) == [
        "zip",
        "accounts/0/limit",
    ]
    assert "&#34;1&#34; does not have the expected form, such as 10115" in wrong.text
    typed |= {"f.zip": "10115", "f.accounts/0/limit": "5", "f.accounts/1/iban": "DE2"}
    assert "The node supply goes on" in send(desk, path, digest=question.digest, **typed).text
    accounts = [{"iban": "DE1", "limit": 5}, {"iban": "DE2"}]
    assert desk.client.interrupt(question.id).response["accounts"] == accounts


@pytest.mark.full
def test_long_values_fold_and_are_complete(desk):
    """A text by its lines, a file by its name and size; nothing of them is cut."""
    question = asked(desk, "sign")
    page = desk.page(f"/q/{question.id}")
    assert re.findall(r"<summary>([\d,]+ \w+), show", page) == [
        "1,100 lines",
        "54,680 characters",
    ]
    assert f'{PDF}" download="scan.pdf">scan.pdf</a> <span class="hint">41,009 bytes' in page
    table = page[page.index('class="facts"') : page.index("</table>")]
    assert (table.count(CONTRACT), table.count(PDF)) == (1, 2)  # a file also in its link


def test_an_answer_that_came_too_late_is_still_shown(desk):
    """Somebody else answered meanwhile: what was typed can be copied from the page."""
    question = asked(desk, "call")
    desk.client.respond(question.id, "no", responder="ben")
    sent = {"decision": "respond", "digest": question.digest, "f.answer": "They called <back>."}
    reply = send(desk, f"/q/{question.id}", **sent)

    assert reply.status_code == 409
    assert "<q>They called &lt;back&gt;.</q>" in reply.text


@pytest.mark.full
@pytest.mark.parametrize("typed", ["1,234", "1,23,4", "0x10"])
def test_an_amount_that_could_be_two_is_refused(desk, typed):
    """A browser's input of numbers leaves out the comma of 1,234; a text comes as typed, and is refused."""
    question = asked(desk, "pay")
    path = f"/q/{question.id}"
    assert re.search(r'<input type="text" data-number name="f.amount"', desk.page(path))
    edit = {"decision": "edit", "digest": question.digest, "f.amount": typed}
    reply = send(desk, path, **edit)

    assert reply.status_code == 422
    said = f'"{typed}" is not a number such as 1234.56'
    assert said in html.unescape(reply.text)
    assert f'name="f.amount" value="{typed}"' in reply.text
    assert desk.client.interrupt(question.id).is_open


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_amounts_and_times_are_those_of_the_reader(desk, berlin):
    """In the inbox, the title, the call and beside the field where one is typed; the zone is said."""
    question = asked(desk, "pay")
    asked(desk, "pay", {"amount": 4800})
    berlin.goto("/inbox?tab=mine")
    assert berlin.locator("td[data-label=amount]").all_inner_texts() == [
        "48.000,00 EUR",
        "4.800,00 EUR",
    ]
    assert berlin.locator("tbody th a").first.inner_text().startswith("Pay 48.000,00 EUR to")
    assert re.fullmatch(
        r"Times are in Europe/Berlin \(\w+\+?\d*\)\.", berlin.inner_text("#zone")
    )
    seen = look(berlin)
    berlin.goto(f"/q/{question.id}?tab=mine")
    assert berlin.inner_text("#way [rel=next]").startswith("Next: Pay 4.800,00 EUR to")
    assert berlin.inner_text("h1").startswith("Pay 48.000,00 EUR to")
    assert "48.000,00" in berlin.inner_text("#call")
    berlin.click("text=Change the arguments")
    buttons = [berlin.locator(f".buttons [value={word}]") for word in ("approve", "edit")]
    for typed, is_changed in (("48000,00", False), ("48.000,01", True), ("4800,5", True)):
        berlin.fill("[name='f.amount']", typed)
        assert [button.is_visible() for button in buttons] == [not is_changed, is_changed]
    assert berlin.inner_text("[data-amount-of='f.amount']") == "4.800,50 EUR"
    berlin.fill("[name='f.amount']", "\u22124800,5")
    assert berlin.inner_text("[data-amount-of='f.amount']") == "-4.800,50 EUR"
    unclear = "element => element.validationMessage"
    berlin.fill("[name='f.amount']", "1.234")
    said = berlin.locator("[name='f.amount']").evaluate(unclear)
    assert said == "1.234 could be two numbers: type 1234, or 1.2340"
    berlin.fill("[name='f.amount']", "4800,5")
    assert berlin.locator("[name='f.amount']").evaluate(unclear) == ""
    seen += look(berlin)
    berlin.click("text=Approve with changes")
    assert "4.800,50" in berlin.inner_text("#decision")
    seen += look(berlin)
    assert not seen


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
def test_a_file_is_named_and_downloaded(desk, berlin):
    """With its kind and size; a long text is opened by a click, and complete."""
    question = asked(desk, "sign")
    berlin.goto(f"/q/{question.id}")
    assert "scan.pdf 41,009 bytes" in berlin.inner_text("#call")
    with berlin.expect_download() as download:
        berlin.click("text=scan.pdf")
    assert download.value.path().read_bytes() == base64.b64decode(PDF)
    assert berlin.locator("#call .fold").first.bounding_box()["height"] < 60
    berlin.click("text=1,100 lines, show")
    assert berlin.locator("#call .facts .fold[open]").inner_text().endswith(CONTRACT[-40:])
