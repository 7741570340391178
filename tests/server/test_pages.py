from __future__ import annotations

import html
import json
import re
import time
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from markupsafe import escape
from pydantic import BaseModel

from runner import Agent, GraphBuilder, Limit, tool
from runner.approvals import Action, Principal, Rule
from runner.cli.program import runner
from runner.execution.telemetry import trace_id
from runner.server import Person
from runner.server.browser import FormTokens
from runner.server.forms import edit_of, edit_schema, edit_texts, line_ends
from runner.server.pages.rendering import ago, clock, coded, humanize, markdown, visible
from runner.settings import Settings
from runner.store.redis.store import RedisStore
from runner.store.redis.workers import WorkerRegistry
from runner.testing import ScriptedModel
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.graphs import wired
from tests.server.conftest import GRAPHS, HTML, Site, ask, echo, fail


def token(site):
    return {"form_token": site.app.state.form_tokens.issue(site.person)}


def plain(page):
    """Return a page without the marks of amounts."""
    return re.sub("</?data[^>]*>", "", page)


class Order(BaseModel):
    number: int
    urgent: bool


def look_up(order: Order) -> str:
    return f"{order.number} at once" if order.urgent else "later"


class Controls(HTMLParser):
    """The controls of a page with what they hold, as a browser reads them."""

    def __init__(self, page):
        super().__init__()
        self.values, self.area = {}, None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Read an input, or begin a textarea."""
        own = dict(attrs)
        if tag == "input" and (own.get("type") != "radio" or "checked" in own):
            value = own.get("value", "").replace("\r\n", "\n").replace("\r", "\n")
            self.values.setdefault(own.get("name"), value)
        self.area = own["name"] if tag == "textarea" else None

    def handle_data(self, data):
        """Read the text of a textarea, whose first line end a browser drops."""
        if self.area:
            self.values.setdefault(self.area, data.replace("\r\n", "\n").removeprefix("\n"))
            self.area = None


def controls(page):
    """Return the values of a page's controls by name, with line ends as a browser sends them."""
    values = Controls(page).values
    return {name: value.replace("\n", "\r\n") for name, value in values.items() if name}


def send(site, path, **fields):
    """Send a form as a browser does from one of the pages."""
    headers = {"Origin": "https://runner.example", "Sec-Fetch-Site": "same-origin", **HTML}
    return site.http.post(
        path, data={**token(site), **fields}, headers=headers, follow_redirects=False
    )


def refund_for_ana(site):
    """Ask about a refund that cora asked for, and log ana of finance in."""
    site.as_role("approver", name="ana", groups=["finance"])
    return site.start("refund", requester="cora").interrupts()[0]


@pytest.mark.full
def test_pages_are_whole_html(site):
    """Each page has its title, one heading, the way around and no script of its own."""
    run, failed = site.start("approval", {"a": 1}), site.start("broken")
    site.add_webhook("chat")
    for path in (
        "/",
        "/inbox",
        "/runs",
        "/graphs",
        "/graphs/echo",
        "/schedules",
        "/limits",
        "/workers",
        "/dead",
        "/webhooks",
        "/webhooks/chat",
        f"/runs/{run.id}",
        f"/runs/{failed.id}",
        f"/q/{run.interrupts()[0].id}",
    ):
        text = site.page(path)
        assert text.count("<h1") == 1, path
        assert 'aria-label="Main"' in text
        assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:", text), (
            path
        )


@pytest.mark.full
def test_lists_say_who_asked_how_long_it_took_and_of_which_graph(site):
    """A run has its requester and, once it has ended, its duration; a question has its graph."""
    run = site.start("echo", requester="cora")
    graphs = ["approval", "refund"]
    for name in graphs:
        site.start(name, requester="cora")
    first, *others = site.page("/runs").split("<tr data-row")[::-1]
    inbox = site.page("/inbox?tab=all")

    assert f"/runs/{run.id}" in first
    assert re.search(r'data-label="took">\d+ ms</td><td data-label="by">cora</td>', first)
    assert not any('data-label="took">0' in row for row in others)
    assert re.findall(r'data-label="graph">(\w+) /<', inbox) == graphs


def test_a_freeze_of_a_mistyped_name_is_refused(site):
    """Unless its form says that nothing need have the name."""
    mistyped = {"scope": "graph:aproval", "reason": "fraud", "action": "freeze"}
    assert send(site, "/freeze", **mistyped).status_code == 404
    assert send(site, "/freeze", **mistyped, force="1").status_code == 303


@pytest.mark.full
def test_the_page_of_a_run_shows_its_undos(redis_url):
    """What failed, and what an undo asks; later a retry is not offered. Control: without undos it is."""
    options = {"pay": {"undo": fail}, "book": {"undo": lambda ctx: ctx.interrupt("ok?")}}
    graph = wired(
        {"pay": echo, "book": echo, "z": fail}, "pay book", "book z", **options
    ).build()
    site = Site(
        redis_url, {"saga": lambda: graph, "broken": lambda: wired({"z": fail}).build()}
    )
    run = site.start("saga")

    def page(run, tab="nodes", node=""):
        return site.page(f"/runs/{run.id}?tab={tab}&node={quote(node)}")

    (question,) = run.interrupts()
    assert f"/q/{question.id}" in page(run, "graph")
    assert "@undo:pay" not in page(run)
    assert "Waits for people" in page(run, node="@undo:book")
    site.client.respond(question.id, "done")
    site.work()

    assert run.status == "failed"
    assert "node &#34;z&#34; failed; node &#34;@undo:pay&#34; failed" in page(run)
    assert page(run).count('<th scope="row"><a') == 5
    assert "plan/retry" not in page(run)
    assert "plan/retry" in page(site.start("broken"))


@pytest.mark.full
def test_the_doctor_looks_once_in_some_seconds(site):
    """However many people open the first page; a freeze is seen at once."""
    served = site.app.state.services
    first = served.findings({})

    assert served.findings({}) is first
    assert served.findings({"all": 1}) is not first


@pytest.mark.full
def test_a_decision_at_high_risk_is_confirmed(site):
    """The exact call is shown; the word is typed, and then the decision counts."""
    question = refund_for_ana(site)
    path = f"/q/{question.id}"

    shown = site.page(path)
    first = send(site, path, digest=question.digest, decision="approve").text
    wrong = send(
        site, path, digest=question.digest, decision="approve", confirmed="yes", typed="refun"
    )
    assert site.votes(question) == []
    second = send(
        site, path, digest=question.digest, decision="approve", confirmed="yes", typed="refund"
    )

    assert "What will run" in shown
    assert "two of group finance" in shown
    assert 'class="primary"' not in shown
    assert "Type <code>refund</code>" in first
    assert (wrong.status_code, second.status_code) == (422, 200)
    assert "1 of 2" in second.text


@pytest.mark.full
def test_arguments_are_edited_in_fields(site):
    """Of their kinds: what is wrong is said at the field; *Back* keeps what was typed."""
    question = refund_for_ana(site)
    path, form = f"/q/{question.id}", {"decision": "edit", "digest": question.digest}
    fresh = controls(site.page(path))
    wrong = send(site, path, **form, **{"f.order": "7", "f.amount": "many"})
    step = send(site, path, **form, comment="less", **{"f.order": "7", "f.amount": "12"})
    sent = controls(step.text)
    back = controls(send(site, path, **sent, back="yes").text)
    send(site, path, **{**sent, "confirmed": "yes", "typed": "refund"})

    assert (fresh["f.order"], fresh["f.amount"], "arguments" in fresh) == ("7", "120", False)
    assert wrong.status_code == 422
    assert "number" in re.search('role="alert">(.*?)<', wrong.text)[1]
    assert "<ins>12.00</ins>" in plain(step.text)
    assert (back["f.amount"], back["comment"]) == ("12", "less")
    (vote,) = site.votes(question)
    assert vote["body"]["response"] == {"order": 7, "amount": 12}


def payment(redis_url, args=None, schema=None, **rule):
    """Return a site with an open question about a payment, which its person may decide, and its path."""
    args = {"to": "Acme", "amount": 10599.52} if args is None else args

    def pay(ctx):
        action = Action("runner", "function", "pay", args)
        asked = {"rule": Rule(eligible=["anyone"], **rule), "response_schema": schema}
        approval = ctx.interrupt("pay?", action=action, **asked)
        return [approval.decision, approval.response]

    site = Site(redis_url, {"pay": lambda: wired({"pay": pay}).build()})
    (question,) = site.start("pay").interrupts()
    return site, question, f"/q/{question.id}"


def decided(site, question):
    """Return what became of the payment."""
    site.work()
    return site.output(question.run_id, "pay")


CHANGED = {"to": "Acme", "amount": 1.5}


@pytest.mark.full
@pytest.mark.parametrize(
    "fields",
    [{"f.to": "Acme", "f.amount": "1.5"}, {"arguments": json.dumps(CHANGED)}],
    ids=["fields", "JSON"],
)
@pytest.mark.parametrize("pressed", ["approve", "reject"])
@pytest.mark.parametrize("confirmed", ["with changes", "as shown"])
def test_changed_arguments_are_never_left_out(redis_url, fields, pressed, confirmed):
    """Beside another button they are shown with their difference, and either is confirmed."""
    site, question, path = payment(redis_url)

    step = send(
        site, path, decision=pressed, comment="so", digest=question.digest, **fields
    ).text
    assert site.votes(question) == []
    assert "Nothing was decided yet" in step
    assert "<del>10,599.52</del></td><td><ins>1.50</ins>" in plain(step)
    assert 'value="with changes" data-key="a">Approve with changes<' in step
    assert f">{'Reject' if pressed == 'reject' else 'Approve as proposed'}<" in step
    # What confirms another form confirms nothing here.
    again = send(site, path, **{**controls(step), "confirmed": "yes"}).text
    assert "Nothing was decided yet" in again
    send(site, path, **{**controls(step), "confirmed": confirmed})

    as_shown = ["approve", True] if pressed == "approve" else ["reject", {"rejected": "so"}]
    assert decided(site, question) == (
        as_shown if confirmed == "as shown" else ["edit", CHANGED]
    )


@pytest.mark.full
@pytest.mark.parametrize("pressed", ["approve", "reject"])
def test_untouched_fields_decide_at_once(redis_url, pressed):
    """The control: as they were shown, or as no form has them, they say nothing of their own."""
    for fields in ({}, {"f.to": "Acme"}, {"f.to": "Acme", "f.amount": "10599.52"}):
        site, question, path = payment(redis_url)
        send(site, path, decision=pressed, comment="so", digest=question.digest, **fields)
        assert decided(site, question)[0] == pressed


@pytest.mark.full
def test_a_rejection_beside_changed_arguments_needs_a_reason(redis_url):
    """It is asked for before anything is confirmed; what was typed stays."""
    site, question, path = payment(redis_url)
    fields = {"f.to": "Acme", "f.amount": "1.5", "digest": question.digest}

    refused = send(site, path, decision="reject", **fields)

    assert "Say in the comment why" in refused.text
    assert controls(refused.text)["f.amount"] == "1.5"


@pytest.mark.full
def test_changed_arguments_are_not_left_out_beside_a_version(redis_url):
    """Who has changed the arguments, and then presses the button of a version, says which of them counts."""
    site, question, path = payment(redis_url, need=2)
    ben = {"to": "Acme", "amount": 4800}
    site.client.vote(question.id, "edit", by="ben", response=ben)
    page = site.page(path)
    buttons = dict(re.findall('name="variant" value="([^"]*)"[^>]*>(.*?)<', page))
    for effect, label in buttons.items():
        step = send(
            site, path, variant=effect, digest=question.digest, **{"f.amount": "1.5"}
        ).text
        assert f'value="as shown">{label}<' in step
        assert "<ins>1.50</ins>" in plain(step)
    assert [*buttons.values()] == ["Approve ben's version", "Approve as proposed"]
    assert len(site.votes(question)) == 1

    effect = next(iter(buttons))
    send(site, path, variant=effect, digest=question.digest, **{"f.amount": "10599.52"})
    assert decided(site, question) == ["edit", ben]


@pytest.mark.full
def test_a_version_that_answers_instead_says_so(redis_url):
    """Its button gives that answer, and approves nothing; the page and the list say that no call is made."""
    site, question, path = payment(redis_url, need=2)
    said = site.client.vote(question.id, "respond", by="ben", response=CHANGED)
    assert said.status == "counted"
    page = site.page(path)
    assert "Answered by ben instead: the action is not approved" in page
    effect = re.search('name="variant" value="([^"]*)"[^>]*>Give this answer instead<', page)[1]
    step = send(site, path, variant=effect, digest=question.digest, **{"f.amount": "7"}).text
    assert 'value="as shown">Give this answer instead<' in step

    done = send(site, path, variant=effect, digest=question.digest).text

    assert "<b>Answered.</b> The action is not approved." in done
    assert "answered by ben, ana, 2 of 2: the action is not approved" in done
    assert decided(site, question) == ["respond", CHANGED]
    assert "answered instead" in site.page("/inbox?tab=done")
    site, question, path = payment(redis_url, need=2)
    site.client.vote(question.id, "respond", by="ben", response=CHANGED)
    effect = site.http.get(f"/v1/questions/{question.id}").json()["variants"][1]["effect"]
    votes, headers = f"/v1/questions/{question.id}/votes", {"If-Match": f'"{question.digest}"'}
    api = {"decision": "approve", "variant": effect}
    assert site.http.post(votes, json=api, headers=headers).status_code == 422
    api["decision"] = "respond"
    receipt = site.http.post(votes, json=api, headers=headers).json()
    assert (receipt["status"], receipt["detail"]) == (
        "accepted",
        "for an answer instead: the action is not approved",
    )


ZOD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["open", "done"]},
        "next": {"$ref": "#/properties/status"},
        "name": {"type": "string"},
        "more": {"type": "object", "additionalProperties": {"$ref": "#/properties/status"}},
    },
    "required": ["status", "name"],
    "additionalProperties": False,
}
"""A schema as zod writes it: the second use of a part refers to the first."""


@pytest.mark.full
@pytest.mark.parametrize("rule", [None, Rule(eligible=["anyone"])])
def test_what_a_message_may_answer_its_page_may(redis_url, rule):
    """In fields, or as JSON, byte for byte; control: what does not fit, is empty or is both is refused."""

    def asks(ctx):
        answer = ctx.interrupt("how?", rule=rule, response_schema=ZOD)
        return answer.response if rule else answer

    answer = {"status": "open", "next": "done", "name": "1e3", "more": {"a": "open"}}
    fields = {"f.status": '"open"', "f.next": '"done"', "f.name": "1e3"}
    in_fields = {**fields, "f.more": '{"a": "open"}'}
    as_json = {"f.": json.dumps(answer), "f.name": ""}
    site = Site(redis_url, {"pay": lambda: wired({"pay": asks}).build()})
    for form in (in_fields, as_json):
        (question,) = site.start("pay").interrupts()
        path, digest = f"/q/{question.id}", {"digest": question.digest, "decision": "respond"}
        assert 'name="f."' in site.page(path)
        for wrong in (
            {**in_fields, "f.name": ""},
            {**in_fields, "f.next": '"lost"'},
            {**in_fields, **as_json, "f.name": "both"},
            {**as_json, "f.": '{"status": "open"}'},
            {**as_json, "f.": "{"},
        ):
            refused = send(site, path, **digest, **wrong)
            assert (refused.status_code, refused.text.count('role="alert"')) == (422, 1), wrong
            assert controls(refused.text)["f."] == wrong.get("f.", "")
        sent = send(site, path, **digest, **form)
        assert (sent.status_code, 'data-result="accepted"' in sent.text) == (200, True)
        assert decided(site, question) == answer
        assert rule or site.client.interrupt(question.id).responder == "ana"
        # The control: as a message.
        (question,) = site.start("pay").interrupts()
        vote = site.client.vote(question.id, "respond", by="ana", response=answer)
        assert vote.status == "accepted"


@pytest.mark.full
@pytest.mark.parametrize(
    ("form", "decision"),
    [
        ({"f.": '{"to": "Acme", "amount": 1.5}'}, "edit"),
        ({"f.amount": "1.5", "f.": '{"to": "Acme", "amount": 10599.52}'}, "edit"),
        ({"f.": '{"amount": 10599.52, "to": "Acme"}'}, "approve"),
        ({"f.amount": "1.5", "f.": '{"to": "Acme", "amount": 2}'}, None),
        ({"f.": "{"}, None),
        ({"f.": ""}, None),
        ({"f.to": ""}, None),
        ({"f.amount": "many"}, None),
        ({"f.amount": "many", "decision": "reject", "comment": "so"}, None),
        ({"arguments": "{"}, None),
        ({"arguments": "[]"}, None),
    ],
)
def test_arguments_may_be_changed_as_json_beside_their_fields(redis_url, form, decision):
    """The one that was changed counts; both, or what can't be used, is refused, whatever was pressed."""
    site, question, path = payment(redis_url)
    assert json.loads(controls(site.page(path))["f."]) == {
        "to": "Acme",
        "amount": 10599.52,
    }
    shown = {"f.to": "Acme", "f.amount": "10599.52", "digest": question.digest}
    sent = send(site, path, **shown | {"decision": "approve"} | form)
    if decision == "edit":
        assert "<ins>1.50</ins>" in plain(sent.text)
        send(site, path, **{**controls(sent.text), "confirmed": "with changes"})
    if decision is None:
        assert (sent.status_code, 'role="alert"' in sent.text) == (422, True)
        assert site.votes(question) == []
        if "f." in form:
            assert controls(sent.text)["f."] == form["f."]
    else:
        assert decided(site, question)[0] == decision


@pytest.mark.full
@pytest.mark.parametrize("pressed", ["approve", "reject"])
@pytest.mark.parametrize(
    ("written", "confirmed"),
    [(None, ""), ("as ever", ""), ("by hand", "as shown"), ("by hand", "with changes")],
)
def test_an_answer_is_never_left_out(redis_url, pressed, written, confirmed):
    """Of a question with a rule and no call: what was written is sent, or the button is confirmed."""

    def asks(ctx):
        rule, schema = Rule(eligible=["anyone"]), {"default": "as ever"}
        return ctx.interrupt("how?", rule=rule, response_schema=schema).decision

    site = Site(redis_url, {"pay": lambda: wired({"pay": asks}).build()})
    (question,) = site.start("pay").interrupts()
    path = f"/q/{question.id}"
    form = {"digest": question.digest, "decision": pressed, "comment": "so"}
    step = send(site, path, **form, **({"f.answer": written} if written else {})).text
    assert site.client.interrupt(question.id).is_open is bool(confirmed)
    if confirmed:
        assert "written an answer" in step
        send(site, path, **{**controls(step), "confirmed": confirmed})

    assert decided(site, question) == ("respond" if confirmed == "with changes" else pressed)


@pytest.mark.full
def test_a_form_without_a_decision_answers_no_call(redis_url):
    """A question that shows a call is decided: what says nothing about it counts as nothing."""
    site, question, path = payment(redis_url)

    for form in ({}, {"f.answer": "true"}, {"decision": "respond", "f.answer": '"paid"'}):
        refused = send(site, path, digest=question.digest, **form)
        assert refused.status_code == 422
        assert "what becomes of the call" in refused.text
    assert site.votes(question) == []


def test_unchanged_fields_keep_their_values():
    """Also those that a form can't write: a line end of Windows, a number with a fraction of zero, null."""
    args = {
        "text": "a\r\nb",
        "sum": 2.0,
        "none": None,
        "list": ["a\nb"],
        "deep": {"a": {"b": [1]}},
        "on": True,
    }
    schema = edit_schema(None, args)
    texts = {name: line_ends(text) for name, text in edit_texts(schema, args).items()}

    assert edit_of(schema, args, texts) == (args, {})
    edited, _ = edit_of(schema, args, {**texts, "text": "c", "on": "false"})
    assert edited == {**args, "text": "c", "on": False}
    assert json.dumps(edited["sum"]) == "2.0"


@pytest.mark.full
def test_who_may_not_decide_sees_no_button(site):
    """But why; who may decide has them."""
    question = site.start("refund", requester="cora").interrupts()[0]
    pages = {}
    for name, groups in (("zoe", []), ("cora", ["finance"]), ("ana", ["finance"])):
        site.as_role("approver", name=name, groups=groups)
        pages[name] = site.page(f"/q/{question.id}")

    assert "decide this: not one of those who may decide this; groups" in pages["zoe"]
    assert "decide this: who asked for this does not decide it." in pages["cora"]
    assert {name: 'value="approve"' in page for name, page in pages.items()} == {
        "zoe": False,
        "cora": False,
        "ana": True,
    }


@pytest.mark.full
def test_a_second_approver_sees_each_version(site):
    """With its changes, its tally and a button of its own; the vote that the edit reset is void."""
    question = site.start("refund", requester="cora").interrupts()[0]
    path, confirmed = f"/q/{question.id}", {"confirmed": "yes", "typed": "refund"}
    shown = {}
    for name, form in {
        "ana": {"decision": "approve"},
        "ben": {"decision": "edit", "arguments": '{"order": 7, "amount": 12}'},
    }.items():
        shown[name] = site.page(path)
        site.as_role("approver", name=name, groups=["finance"])
        send(site, path, **form, **confirmed, digest=question.digest)
    site.as_role("approver", name="eva", groups=["finance"])
    page = site.page(path)
    effect = re.search(
        'name="variant" value="([^"]*)"[^>]*>Approve ben', page.partition("Changed by ben")[2]
    )[1]
    step = send(site, path, variant=effect, digest=question.digest).text
    done = send(site, path, variant=effect, digest=question.digest, **confirmed)
    site.work()

    assert "Versions" not in shown["ben"]
    assert page.count("Approve ben's version") == page.count("Approve as proposed") == 1
    assert "<del>120.00</del></td><td><ins>12.00</ins>" in plain(page)
    assert "<s>approved</s>" in page
    assert "<ins>12.00</ins>" in plain(step)
    assert done.status_code == 200
    output = site.output(question.run_id, "refund")
    assert output == ["edit", {"order": 7, "amount": 12}]


TYPED = "\n می\u200cخواهم 👩\u200d💻 10\xa0€\n\u202e<b>&amp;\u2028"  # noqa: RUF001 - as Persian is written
"""What somebody types: Persian, an emoji of three characters, a no-break space, and what pages escape."""


@pytest.mark.full
def test_what_people_type_comes_back(site):
    """Byte for byte through a refused answer, a refused edit, the confirm step and into the vote."""
    question = refund_for_ana(site)
    path = f"/q/{question.id}"
    edit = {
        "decision": "edit",
        "digest": question.digest,
        "comment": TYPED.replace("\n", "\r\n"),
    }
    arguments = '{"order": 7,\r\n "amount": "10\xa0000"}'

    refused = controls(send(site, path, **edit, arguments=arguments + "}").text)
    assert refused["comment"] == edit["comment"]
    assert refused["arguments"] == arguments + "}"
    step = controls(send(site, path, **edit, arguments=arguments).text)
    assert step["arguments"] == arguments
    step |= {"confirmed": "yes", "typed": "wrong"}
    step = controls(send(site, path, **step).text)
    done = send(site, path, **{**step, "confirmed": "yes", "typed": "refund"})

    (vote,) = site.votes(question)
    assert vote["comment"] == TYPED
    assert vote["body"]["response"]["amount"] == "10\xa0000"
    assert "\\r" not in done.text
    assert controls(done.text)["arguments"] == arguments


@pytest.mark.full
def test_what_is_edited_as_json_is_json(redis_url):
    """What can't be seen is an escape of JSON, and what is sent back unchanged means the same."""
    args = {"note": TYPED, "sum": "10\xa0000", "\u202e": "\x7f\U000e0041é"}

    def asks(ctx):
        action = Action("runner", "function", "pay", args)
        return ctx.interrupt("pay?", rule=Rule(eligible=["anyone"]), action=action).decision

    site = Site(redis_url, {"asks": lambda: wired({"ask": asks}).build()})
    run = site.start("asks", args)
    path = f"/q/{run.interrupts()[0].id}"

    for page, name in ((path, "arguments"), (f"/runs/{run.id}/plan/again", "task")):
        shown = controls(site.page(page))[name]
        assert json.loads(shown) == args
        assert "é" in shown
        assert all(char.isprintable() for char in shown.replace("\r\n", ""))
    again = send(site, f"/runs/{run.id}/again", task=shown).headers["location"]
    assert site.http.get(f"/v1{again}").json()["task"] == args


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"amount": 120, "order": 7}', "unchanged"),
        ('{"amount": 120.0, "order": 7}', "unchanged"),
        ('{"amount": "many", "order": 7}', "amount"),
        ('{"amount": 1, "amount": 2, "order": 7}', "twice"),
        ("[1]", "object"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_an_edit_that_can_not_count_is_not_confirmed(redis_url, arguments, says):
    """One without a change, or that does not fit the tool, is refused before anybody confirms it."""
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "number"}, "order": {"type": "integer"}},
    }

    def asks(ctx):
        action = Action("runner", "function", "pay", {"order": 7, "amount": 120})
        rule = Rule(eligible=["anyone"])
        return ctx.interrupt("pay?", rule=rule, action=action, response_schema=schema).decision

    site = Site(redis_url, {"asks": lambda: wired({"ask": asks}).build()})
    (question,) = site.start("asks").interrupts()
    path, edit = f"/q/{question.id}", {"decision": "edit", "digest": question.digest}

    refused = send(site, path, **edit, arguments=arguments)
    assert refused.status_code == 422
    assert says in re.search('role="alert">(.*?)<', refused.text)[1]
    good = send(site, path, **edit, arguments='{"amount": 1, "order": 7}')
    assert "<ins>1.00</ins>" in plain(good.text)
    assert site.client.interrupt(question.id).is_open


def test_an_answer_that_lost_the_race_says_who_won(site):
    """The second person learns that the first was quicker, and who that was."""
    run = site.start("approval")
    (question,) = run.interrupts()
    site.client.respond(question.id, {"ok": False}, responder="ben")

    late = send(site, f"/q/{question.id}", digest=question.digest, **{"f.ok": "true"})

    assert late.status_code == 409
    assert "already answered by ben" in late.text
    assert site.client.interrupt(question.id).response == {"ok": False}


@pytest.mark.full
def test_a_vote_names_its_voter_beside_the_name_they_chose(site):
    """A display name is the login's, and often anybody's choice: who voted stands beside it."""
    (question,) = site.start("refund", requester="dora").interrupts()
    eve = Principal("eve", "https://login.example", name="Ana")
    site.person = Person(eve, frozenset({"approver"}), frozenset({"finance"}), 2)
    confirmed = {"typed": "refund", "confirmed": "yes", "digest": question.digest}
    send(site, f"/q/{question.id}", decision="approve", **confirmed)

    page = site.page(f"/q/{question.id}")
    assert "Ana <code>human:https://login.example|eve</code>" in page


@pytest.mark.full
def test_the_audit_says_who_was_shown_what_they_decide(site):
    """A form carries when its page was made, for whom and of which digest; a made-up one says nothing."""
    site.as_role("approver", name="ben", groups=("finance",))
    (question,) = site.start("refund", requester="dora").interrupts()
    path = f"/q/{question.id}"

    def hidden(name):
        return re.search(f'name="{name}" value="([^"]*)"', site.page(path))[1]

    seen = {"shown": hidden("shown"), "digest": hidden("digest")}
    send(site, f"{path}/comment", comment="looking", **seen)
    for made_up in (
        {**seen, "shown": "1"},
        {**seen, "digest": "sha256:other"},
        {**seen, "shown": token(site)["form_token"]},
        {"shown": token(site)["form_token"]},
    ):
        send(site, f"{path}/comment", comment="looking", **made_up)
    site.as_role("approver", name="cora", groups=("finance",))
    send(site, f"{path}/comment", comment="with ben's page", **seen)
    send(
        site,
        path,
        decision="reject",
        comment="no",
        digest=seen["digest"],
        shown=hidden("shown"),
    )

    (log,) = site.client.engine.store.audit_logs
    entries = [json.loads(raw) for _, raw in log.kept()]
    words = [(entry["type"], entry["actor"]) for entry in entries[2:]]
    ben, cora = ("commented", "human:|ben"), ("commented", "human:|cora")
    assert words[:6] == [("shown", "human:|ben"), ben, ben, ben, ben, ben]
    assert words[6] == cora
    assert words[7:9] == [("shown", "human:|cora"), ("voted", "human:|cora")]
    shown = entries[2]
    assert (shown["digests"]["question"], shown["question"]) == (question.digest, question.id)
    assert 0 <= shown["at"] - shown["outcome"]["shown_at"] < 60_000


def test_an_answer_to_an_older_text_is_refused(site):
    """The digest of the page is that of the question, or nothing is answered."""
    (question,) = site.start("approval").interrupts()

    for digest, status in {"sha256:other": 409, "": 422}.items():
        sent = send(site, f"/q/{question.id}", digest=digest, **{"f.ok": "true"})

        assert sent.status_code == status
        assert site.client.interrupt(question.id).is_open


@pytest.mark.full
@pytest.mark.parametrize("door", ["page", "api", "batch", "command"])
def test_a_run_says_who_retried_it(site, door):
    """At each door, in its events and on its page."""
    run = site.start("broken")
    env = {"RUNNER_REDIS_URL": site.settings.redis_url}
    {
        "page": lambda: send(site, f"/runs/{run.id}/retry"),
        "api": lambda: site.http.post(f"/v1/runs/{run.id}:retry"),
        "batch": lambda: site.http.post(
            "/v1/runs:batch",
            json={"action": "retry", "filter": {"run_ids": [run.id]}, "dry_run": False},
        ),
        "command": lambda: CliRunner().invoke(
            runner, ["runs", "retry", run.id, "--by", "ana"], env=env
        ),
    }[door]()

    (retried,) = (event for event in run.events() if event.kind == "run.retried")
    assert retried.detail == "human:|ana"
    page = site.page(f"/runs/{run.id}?tab=events")
    assert re.search(r"run\.retried</span>\s*<span class=\"hint\">ana<", page)


@pytest.mark.full
def test_runs_are_started_and_changed_with_forms(site):
    """Start, cancel, retry, fork and again lead to the run's page, which says who cancelled it."""
    started = send(site, "/graphs/approval", **{"f.answer": '{"a": 1}'})
    site.work()
    assert (started.status_code, started.headers["location"][:6]) == (303, "/runs/")
    path = started.headers["location"]

    assert send(site, f"{path}/cancel", reason="no").status_code == 303
    assert send(site, f"{path}/cancel", reason="no").status_code == 409
    assert "cancelled by ana: no" in site.page(path)
    assert send(site, f"{path}/fork", node="look_up").headers["location"] != path
    assert send(site, f"{path}/again").headers["location"] != path


def nested():
    inner = wired({"draft": echo, "read": echo}, "draft read").build()
    builder = GraphBuilder().set_failure_policy("continue")
    builder.add_node(inner, "inner")
    builder.add_map(echo, "each", over=lambda ctx: [1, 2, 3])
    builder.add_node(fail, "fail")
    builder.add_edge("inner", "each")
    builder.add_edge("inner", "fail")
    return builder.build()


@pytest.mark.full
def test_a_node_is_shown_beside_its_run(redis_url):
    """What it was given and left, its items and where to look further; for a role without payloads less."""
    site = Site(redis_url, {"nested": nested, **GRAPHS})
    site.app.state.services.settings = Settings(
        redis_url=redis_url,
        flower_url="https://flower.example/",
        trace_url="https://trace.example/{trace_id}",
    )
    run = site.start("nested", {"secret": 1})
    child = site.client.engine.store.read(run.id).nodes["inner"].child

    def shown(node):
        text = site.page(f"/runs/{run.id}?node={node}")
        return text[text.index('<aside id="node"') :] if "<aside" in text else ""

    assert "secret" in shown("inner")
    assert f'href="/runs/{child}"' in shown("inner")
    assert "output of draft" in shown("inner/read")
    assert "each[2]" in shown("each")
    assert f'href="https://flower.example/task/{run.id}.fail.1.1"' in shown("fail")
    assert f'href="https://trace.example/{trace_id(run.id)}"' in shown("fail")
    assert "the secret printer" in shown("fail")
    assert shown("nothing") == ""
    site.as_role("viewer")
    for node in ("inner", "inner/read", "each", "fail"):
        assert "secret" not in shown(node)


def test_an_agent_shows_its_conversation(redis_url):
    """Texts, calls of tools and what they returned, with the tokens used."""

    @tool
    def stock(article: str) -> int:
        """Count the pieces."""
        return 12

    replies = [
        [{"toolUse": {"toolUseId": "t1", "name": "stock", "input": {"article": "A-7"}}}],
        "All are there.",
    ]
    agent = Agent("clerk", model=ScriptedModel(replies), tools=[stock])
    site = Site(redis_url, {"agent": lambda: wired({"clerk": agent}).build()})
    run = site.start("agent", "How many?")

    text = site.page(f"/runs/{run.id}?node=clerk")

    assert "Conversation, 4 messages" in text
    assert "A-7" in text
    assert "All are there." in text
    assert "input tokens" in text


@pytest.mark.full
@pytest.mark.parametrize(
    ("roles", "names"),
    [
        (["approver"], {"inbox", "runs", "graphs"}),
        (["viewer"], {"inbox", "runs", "graphs", "schedules", "workers", "dead"}),
        (["approver", "operator"], {"inbox", "runs", "graphs", "schedules", "workers", "dead"}),
        (["admin"], {"inbox", "runs", "graphs", "schedules", "workers", "dead", "webhooks"}),
    ],
)
def test_the_menu_is_that_of_the_role(site, roles, names):
    """Who only decides has no entries of operators, and no entry leads to a refusal."""
    site.as_role(*roles)
    bar = re.search(r'<nav aria-label="Main">(.*?)</nav>', site.page("/"), re.DOTALL)
    links = set(re.findall(r'href="/(\w+)"', bar[1]))

    assert links == names
    assert {site.http.get(f"/{name}", headers=HTML).status_code for name in links} == {200}


@pytest.mark.full
def test_progress_is_shown_until_the_node_ends(redis_url):
    """A completed node shows none, whatever it reported last."""

    def count(ctx):
        ctx.progress(0.9, "step 9")
        return ctx.interrupt("go on?")

    site = Site(redis_url, {"counting": lambda: wired({"count": count}).build()})
    run = site.start("counting")
    address = f"/runs/{run.id}?tab=nodes&node=count"
    waiting = site.page(address)
    (question,) = run.interrupts()
    site.client.respond(question.id, "yes")
    site.work()
    ended = site.page(address)

    marked = "90% step 9</span>", "· 90% step 9"
    assert [[mark in text for mark in marked] for text in (waiting, ended)] == [
        [True, True],
        [False, False],
    ]


@pytest.mark.full
def test_a_question_has_its_case(redis_url):
    """Task, inputs and conversation are folded on its page, bounded, and only for who may read."""
    agent = Agent("clerk", model=ScriptedModel(["It came late\u202e."]))
    nodes = {"clerk": agent, "ask": lambda ctx: ctx.interrupt("pay?")}
    site = Site(redis_url, {"agent": lambda: wired(nodes, "clerk ask").build()})
    pages = {}
    for task in ("How much for A-7?", "x" * 300_000 + " the last word"):
        (question,) = site.start("agent", task).interrupts()
        pages[task] = site.page(f"/q/{question.id}")
    short, long = pages.values()
    site.as_role("viewer")

    case = short[short.index('<details id="case">') :]
    assert [case.count(text) for text in ("How much for A-7?", "It came late", "\u202e")] == [
        2,
        2,
        0,
    ]
    assert ("This is not all" in short, "This is not all" in long) == (False, True)
    assert (len(long) < len(short) + 40_000, "the last word" in long) == (True, False)
    assert "came late" not in site.page(f"/q/{question.id}")


@pytest.mark.full
def test_operators_hold_release_and_skip_a_node_beside_it(site):
    """Who may has the buttons that fit; the page then says who holds it, and that it did not run."""
    run = site.start("approval", {"order": 7})

    def shown(node="approve"):
        return site.page(f"/runs/{run.id}?node={node}")

    forms = [f'action="/runs/{run.id}/node/{action}"' for action in ("hold", "release", "skip")]
    assert [form in shown() for form in forms] == [True, False, True]
    assert [form in shown("look_up") for form in forms] == [False] * 3
    change = f"/runs/{run.id}/node"
    assert send(site, f"{change}/hold", node="approve", reason="an audit").status_code == 303
    assert [form in shown() for form in forms] == [False, True, True]
    assert "approve is held by ana since" in shown()
    assert send(site, f"{change}/release", node="approve").status_code == 303
    assert "is held by" not in shown()
    for bad in ("{", "", " "):
        assert send(site, f"{change}/skip", node="approve", output=bad).status_code == 422
    assert send(site, f"{change}/skip", node="approve", output='{"ok": 1}').status_code == 303
    site.work()
    assert str(run.status) == "completed"
    assert "Skipped by ana, did not run." in shown()
    assert "skipped by ana, did not run" in site.page(f"/runs/{run.id}?tab=nodes")
    site.as_role("viewer")
    assert send(site, f"{change}/hold", node="pay").status_code == 403


@pytest.mark.full
def test_a_step_is_shown_before_it_is_done(site):
    """Which nodes run again, are copied or cancelled, which questions are withdrawn; nothing happens yet."""
    run, broken = site.start("approval", {"order": 7}), site.start("broken")

    def plan(one, action):
        return site.page(f"/runs/{one.id}/plan/{action}")

    cancel = plan(run, "cancel")
    assert [
        word in cancel
        for word in ("Are cancelled", "approve", "Questions that are withdrawn", "refund")
    ] == [True] * 4
    fork = plan(run, "fork?node=approve")
    assert (
        fork.index("Start at once")
        < fork.index("approve</li>")
        < fork.index("pay</li>")
        < fork.index("look_up</li>")
    )
    assert "Run again at once" in plan(broken, "retry")
    assert "&#34;order&#34;: 7" in plan(run, "again")
    assert site.http.get(f"/runs/{run.id}/plan/retry", headers=HTML).status_code == 409
    assert str(run.status) == "interrupted"

    forked = send(site, f"/runs/{run.id}/fork", node="look_up", input='{"order": 8}').headers[
        "location"
    ]
    site.work()
    assert '"order": 8' in site.page(f"{forked}?node=look_up").replace("&#34;", '"')


@pytest.mark.full
def test_of_many_nodes_those_that_need_attention_are_listed(site, monkeypatch):
    """The others are counted, but for the one that is shown."""
    run = site.start("approval")
    monkeypatch.setattr("runner.server.pages.runs.NODES", 1)

    def rows(query=""):
        text = site.page(f"/runs/{run.id}?tab=nodes{query}")
        return re.findall(
            r"<tr data-row.*?data-in-place>(\w+)</a>", text
        ), "1 completed" in text

    assert rows() == (["approve"], True)
    assert rows("&node=look_up") == (["look_up"], False)


@pytest.mark.full
def test_a_migration_is_shown_before_it_is_done(site, redis_url):
    """What would become of each node of a run whose graph has changed since."""
    run = site.start("approval")
    nodes = {"look_up": echo, "check": echo, "approve": ask, "pay": echo}
    edges = ("look_up check", "look_up approve", "approve pay")
    changed = Site(redis_url, {"approval": lambda: wired(nodes, *edges).build()})

    assert f"/runs/{run.id}/plan/migrate" in changed.page(f"/runs/{run.id}")
    shown = changed.page(f"/runs/{run.id}/plan/migrate")
    assert "<td>starts</td>" in shown
    assert send(changed, f"/runs/{run.id}/migrate").status_code == 303
    changed.work()

    assert "check" in run.result().results


@pytest.mark.full
def test_home_counts_what_expires_soon(redis_url):
    """Questions that end within a day, not later or never; and those that wait for the reader."""

    def asking(seconds, **options):
        options["expires_in"] = seconds
        return lambda: wired({"ask": lambda ctx: ctx.interrupt("now?", **options)}).build()

    hurry = asking(3_600, assignees=["ana"])
    site = Site(redis_url, {"hurry": hurry, "later": asking(3 * 86_400), **GRAPHS})
    for name in ("hurry", "later", "approval"):
        site.start(name)

    text = site.page("/")
    assert '?due=day">1</a> expires within a day' in text
    assert (">3</span> open" in text, ">1</span> for you" in text) == (True, True)
    site.as_role("approver", name="ben")
    assert ">0</span> for you" in site.page("/")


def test_home_says_first_what_fails(site):
    """The checks stand above the charts, failures before warnings."""
    text = site.page("/")
    checks = text.partition('id="checks"')[2].partition("</section>")[0]
    results = re.findall(">(FAIL|WARN)<", checks)

    assert results == sorted(results)
    assert {*results} == {"FAIL", "WARN"}
    assert text.index('id="checks"') < text.index('id="charts"')


@pytest.mark.full
def test_a_limit_is_changed_with_forms(site, redis_url):
    """The page shows both numbers, who waits and who has the slot, and pauses a limit or one key of it."""
    limit = Limit("model", concurrency=1, by="tag:tenant")
    store = RedisStore(redis_url)
    worker = ManualWorker(store)
    graph = shape("a b", entries=["a", "b"], limits={"a": [limit], "b": [limit]})
    run_id = worker.start(graph, tags={"tenant": "x\ny"})
    worker.claim(run_id, "a")
    worker.limited(run_id, "b")

    def rows():
        return site.page("/limits")

    assert "1 at a time" in rows()
    assert "1 node waits" in rows()
    assert f'href="/runs/{run_id}?node=a"' in rows()
    send(site, "/limits/set", name="model", concurrency="2", reason="a faster one")
    assert "2 at a time" in rows()
    assert ": a faster one" in rows()
    for name in (quote("model:tag:tenant:x\ny"), "model"):
        assert f'name="name" value="{name}"><p class="hint">What runs goes on' in rows()
        send(site, "/limits/pause", name=name, minutes="" if name == "model" else "10")
        assert f'name="name" value="{name}"><button>Resume</button>' in rows()
    assert "until resumed" in rows()
    send(site, "/limits/resume", name="model")
    send(site, "/limits/reset", name="model")
    assert not re.search("2 at a time|Resume", rows())
    assert send(site, "/limits/set", name="model", concurrency="many").status_code == 422
    assert send(site, "/limits/remove", name="model").status_code == 422


@pytest.mark.full
def test_a_graph_is_started_from_its_page(redis_url):
    """The form has the fields of the task's type; what does not fit starts nothing."""
    site = Site(
        redis_url,
        {"refund": lambda: wired({"look_up": look_up}).build(), "echo": GRAPHS["echo"]},
    )
    path, task = "/graphs/refund", {"f.number": "7", "f.urgent": "true"}

    shown = site.page(path)
    refused = send(site, path, **task | {"f.number": "seven"})
    assert (refused.status_code, list(site.client.runs())) == (422, [])
    assert send(site, path, **{"f.": '{"number": "seven", "urgent": true}'}).status_code == 422
    started = send(site, path, key="of its page", **{"f.": '{"number": 7, "urgent": true}'})
    twice = send(site, path, key="of its page", **task)
    anything = send(site, "/graphs/echo", **{"f.answer": '{"a": [1]}'})
    assert send(site, "/graphs/echo", **{"f.answer": '{"a": [1'}).status_code == 422
    site.work()

    assert ('name="f.number"' in shown, 'value="seven"' in refused.text) == (True, True)
    assert started.headers["location"] == twice.headers["location"]
    results = [site.client.run(run.run_id).result().results for run in site.client.runs()]
    assert {key: node.output for nodes in results for key, node in nodes.items()} == {
        "look_up": "7 at once",
        "echo": {"task": {"a": [1]}},
    }
    assert started.headers["location"] in site.page(path)
    assert anything.status_code == 303
    assert site.http.get("/graphs/unknown", headers=HTML).status_code == 404


@pytest.mark.full
def test_who_may_not_act_sees_no_form(site):
    """A page offers what its reader may do, and no more."""
    run = site.start("approval", "secret")
    question = run.interrupts()[0].id
    site.as_role("reader")

    assert '<form method="post"' not in site.page(f"/runs/{run.id}")
    assert "Send the answer" not in site.page(f"/q/{question}")


@pytest.mark.full
@pytest.mark.parametrize(("roles", "status"), [(["approver"], 403), ([], 401)])
def test_a_form_of_an_old_page_says_how_to_keep_what_was_typed(site, roles, status):
    """After the server was started again, or the login has ended: loading the page would lose it."""
    question = refund_for_ana(site)
    form = {**token(site), "digest": question.digest, "decision": "reject", "comment": "long"}
    site.app.state.form_tokens = FormTokens()
    site.as_role(*roles, groups=["finance"])
    headers = {"Origin": "https://runner.example", "Sec-Fetch-Site": "same-origin", **HTML}
    reply = site.http.post(f"/q/{question.id}", data=form, headers=headers)
    assert (reply.status_code, site.votes(question)) == (status, [])
    assert "Log in, then go back to what you typed" in reply.text


def test_an_error_is_a_page_in_words(site):
    """People get a page with what happened and where to go; nothing of the program's inside."""
    missing = site.http.get("/runs/0none", headers=HTML)

    assert missing.status_code == 404
    assert "Not found" in missing.text
    assert "Traceback" not in missing.text
    unknown = site.http.get("/rnus", headers=HTML)
    assert (unknown.status_code, "There is nothing at this address." in unknown.text) == (
        404,
        True,
    )
    assert "Not Found" not in unknown.text


def test_nothing_that_is_shown_is_hidden():
    """Control and direction characters are escapes; line ends stay."""
    assert visible("a\u202eb\x1b[31m\nc\u200b") == "a\\u202eb\\x1b[31m\nc\\u200b"
    assert escape(visible("<b>")) == "&lt;b&gt;"
    assert coded("set `<b>\u202e` now") == "set <code>&lt;b&gt;\\u202e</code> now"


HIDDEN = [
    "&#x202e;",
    "&#8238;",
    "&zwnj;",
    "&shy;",
    "&#X200B;",
    "&NoBreak;",
    "\u202e",
    "\u2066",
    "\xad",
    "\x1b[31m",
]


@pytest.mark.parametrize(
    "form",
    [
        "a {} b",
        "`a {} b`",
        "[a{}](https://x.example/{})",
        "**a {}**",
        "```{}\n{}\n```",
        "# {}",
        "> {}",
    ],
)
def test_markdown_hides_nothing(form):
    """Neither a character nor a reference to one acts on what stands beside it; the text is still there."""
    for text in HIDDEN:
        shown = html.unescape(markdown(form.replace("{}", text + "000,01")))
        assert "000,01" in shown
        assert all(char.isprintable() or char == "\n" for char in shown), text
    assert html.unescape(markdown("R&amp;D &copy; 10&nbsp;€")) == "<p>R&D © 10\xa0€</p>\n"


@pytest.mark.full
def test_what_an_agent_writes_turns_nothing_around(redis_url):
    """On the page of its question and in its conversation beside the run."""
    trick = "amount &#x202e;`000,01`&#x202c; EUR\u2066"
    agent = Agent("clerk", model=ScriptedModel([trick]))
    nodes = {"clerk": agent, "ask": lambda ctx: ctx.interrupt("pay?", reason=trick)}
    site = Site(redis_url, {"agent": lambda: wired(nodes, "clerk ask").build()})
    run = site.start("agent", "How much?")

    for path in (f"/q/{run.interrupts()[0].id}", f"/runs/{run.id}?node=clerk"):
        shown = html.unescape(site.page(path))
        assert "<code>000,01</code>" in shown
        assert not set("\u202e\u202c\u2066") & set(shown), path


@pytest.mark.parametrize(
    ("distance", "words"),
    [
        (5_000, "5 seconds"),
        (60_000, "1 minute"),
        (7_200_000, "2 hours"),
        (3 * 86_400_000 - 9, "3 days"),
    ],
)
def test_times_are_words(distance, words):
    """A reader gets the largest unit; the exact time is in the title."""
    assert humanize(distance) == words
    assert ago(10**12 - distance - 10_000, 10**12).endswith(" ago")


def test_a_time_of_another_day_has_its_date():
    """Who decided last week did not do so today; control: the time of a decision of today is enough."""
    midnight = time.time() // 86_400 * 86_400_000

    assert ">00:00:00 UTC<" in clock(midnight)
    assert ">1970-01-01 00:00:07 UTC<" in clock(7_000)
    assert ">00:00:07 UTC<" in clock(7_000, dated=False)  # where the date stands above


@pytest.mark.full
def test_workers_that_stop_are_counted_alike(site):
    """The first page and the page of workers say the same number; the latter, how many of them stop."""
    now = round(time.time() * 1000)
    roster = WorkerRegistry(site.settings.redis_url, site.settings.namespace)
    for name, stopping in (("a", 0.0), ("b", 12.0)):
        about = {"pool": "threads", "pid": 1, "slots": 8, "busy": 1, "queues": [], "graphs": {}}
        roster.enter(
            {"name": name, "started": now, "stopping": stopping, "grace": 60.0, **about}, now
        )

    home, workers = (site.page(path) for path in ("/", "/workers"))
    assert '<span class="number">2</span> alive' in home
    assert "2 alive, 1 of them stopping, 2 of 16 slots busy." in workers


@pytest.mark.full
def test_one_question_alone_is_decided_without_a_number(site):
    """Selected alone it is called what it asks for; of two, the heading says how many."""
    questions = [site.start("refund", requester="cora").interrupts()[0] for _ in range(2)]
    site.as_role("approver", groups=["finance"])
    alone, both = (
        site.page("/inbox/together?" + "&".join(f"q={one.id}" for one in chosen))
        for chosen in (questions[:1], questions)
    )

    assert ("<h1>refund" in alone, "<h1>2 " in both) == (True, True)


@pytest.mark.full
def test_a_webhook_is_made_with_a_form(site):
    """Its secret is on the page that follows, and on none after it; a delivery is sent again by a button."""
    fields = {"address": "http://127.0.0.1:1/hooks", "event": "run.ended", "graph": "echo"}
    made = send(site, "/webhooks", name="chat", **fields)
    later = site.page("/webhooks")

    assert (made.status_code, "whsec_" in made.text, "whsec_" in later) == (200, True, False)
    assert "run.ended" in later
    assert "whsec_" in send(site, "/webhooks/chat/rotate").text
    assert send(site, "/webhooks/chat/pause").status_code == 303
    assert "paused" in site.page("/webhooks")
    send(site, "/webhooks/chat/remove")
    site.add_webhook("mail")
    assert send(site, "/webhooks/mail/deliveries/msg_1").status_code == 303
    assert "msg_1" in site.page("/webhooks/mail")
    assert send(site, "/webhooks/mail/burn").status_code == 422


@tool
def order() -> str:
    """Order."""
    return "ordered"
