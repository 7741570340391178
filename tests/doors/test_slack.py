"""The Slack door, against a workspace of the tests that speaks Slack's API."""

from __future__ import annotations

import json
import random
import threading
from contextlib import closing, contextmanager, nullcontext, suppress

import pytest
import redis
from fastapi.testclient import TestClient
from hypothesis import settings

from runner.approvals import Auth, Principal, Rule
from runner.approvals.keys import KeySet
from runner.doors.block_kit import MOST_INPUT, content_of
from runner.errors import DirectoryError, UsageError
from runner.server import create_app
from runner.server.problems import Problem
from runner.settings import Settings
from runner.store.redis.keys import Keys
from tests.doors.conftest import ACTION, FORM, GRAPHS, asking
from tests.doors.workspace import (
    CHANNEL,
    SECRET,
    TEAM,
    TOKEN,
    Workspace,
    buttons_of,
    request,
    signed,
    text_of,
)
from tests.integrations.extras import need
from tests.server.conftest import Site
from tests.waiting import wait_until

need("slack_sdk", "slack")

from runner.doors import notice_thread, slack  # noqa: E402 - only where the extra is installed
from runner.doors.notice_thread import Unavailable  # noqa: E402 - likewise
from runner.doors.slack import MOST_SENT, Intent, SlackDoor  # noqa: E402 - likewise

pytestmark = pytest.mark.full

EMAILS = {f"{name}@example.com": name for name in ("ana", "ben", "eve", "pat")}


class People:
    """Whose accounts are in the workspace: eve may only see, pat decides for another graph."""

    def groups(self, principal):
        """Return no groups."""
        return []

    def roles(self, principal):
        """Return the roles of the server."""
        return {"eve": ["viewer"], "pat": ["approver:other"]}.get(principal.sub, ["approver"])

    def person(self, account, email):
        """Return whose account of our workspace it is, by the address."""
        assert account.iss == f"https://slack.com/{TEAM}"
        return Principal(EMAILS[email]) if email in EMAILS else None


people = People()

MORE = {
    "marked": asking(
        reason="<!channel> *all* &lt; `x`", rule=Rule(eligible=["ana"]), action=ACTION
    ),
    "texts": asking(
        {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("who", "what", "why")},
        }
    ),
    "approve_only": asking(rule=Rule(decisions=["approve"]), action=ACTION),
    "reminded": asking(rule=Rule(eligible=["ana", "ben"]), action=ACTION, remind_after=[0.01]),
    "escalates": asking(rule=Rule(eligible=["ana"], escalate=[(2, ["ben"])]), action=ACTION),
    "lent": asking(rule=Rule(eligible=["ana"], delegate="anyone"), action=ACTION),
    "service": asking(rule=Rule(eligible=["ana"], auth=Auth(level=1)), action=ACTION),
}


@pytest.fixture
def workspace():
    """A workspace in which ana, ben, eve and pat have accounts, and others that are no one's."""
    with Workspace() as workspace:
        for email, name in EMAILS.items():
            workspace.join(f"U{name}", email)
        workspace.join("Unew", "new@example.com")
        workspace.join("Uold", "ana@example.com", deleted=True)
        workspace.join("Ubot", "ana@example.com", is_bot=True)
        workspace.join("Uguest", "ana@example.com", team_id="T0000002")
        workspace.join("Ushared", "ana@example.com", is_stranger=True)
        workspace.join("Uunsure", "ana@example.com", is_email_confirmed=False)
        yield workspace


@pytest.fixture
def site(redis_url, workspace):
    """An application with the door; each test runs the nodes itself."""
    site = Site(redis_url, {**GRAPHS, **MORE})
    values = {
        "slack_team": TEAM,
        "slack_channels": [CHANNEL, "echo=C0000009"],
        "slack_token": TOKEN,
        "slack_signing_secret": SECRET,
        "slack_url": workspace.url,
        "server_secret": "s" * 32,
        "server_url": "https://runner.example",
        "directory": f"{__name__}:people",
    }
    for name, value in values.items():
        setattr(site.settings, name, value)
    site.door = SlackDoor(site.app.state.services)
    with closing(site.client.engine.store):
        yield site
        site.app.state.services.release(runs=True)


def asked(site, workspace, graph):
    """Ask the question of a graph, and return it with its message."""
    run = site.start(graph)
    (question,) = run.interrupts()
    site.door.show(question.id)
    return question, [*workspace.messages.values()][-1]


def send(site, payload, **options):
    """Have the door receive a payload as Slack sends it."""
    return site.door.receive(*request(payload, **options))


def click(site, workspace, message, user="Uana", action="approve"):
    """Have the door receive a click on a button of a message."""
    return send(site, workspace.click(message, action, user))


def state_of(site, question):
    """Return how a question stands, with its votes."""
    return site.client.interrupt(question.id).status, site.app.state.services.store.votes(
        question.id
    )


def sealed(site, question, action="approve", digest=None):
    """Return the fields of a click on a button that the door would not show."""
    value = site.door.seal(Intent(action, question.id, digest or question.digest))
    return {"actions": [{"action_id": f"runner:{action}", "value": value, "action_ts": "1"}]}


def serving(site):
    """Return a client of a server with the door."""
    app = create_app(site.settings, auth=lambda request: None, doors=["slack"])
    app.state.services.client = site.client
    return TestClient(app, "https://runner.example", raise_server_exceptions=False)


def sent(content, kind="application/x-www-form-urlencoded"):
    """Return the body and the headers of a signed request."""
    body, timestamp, signature = content
    headers = {
        "Content-Type": kind,
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": signature,
    }
    return {"content": body, "headers": headers}


def mention(site, *, directly=False):
    """Have the door tell ana and ben of each question."""
    site.settings.directory = f"{__name__}:mentioned"
    site.settings.slack_direct = directly


@contextmanager
def following(door):
    """Have a door follow the notices in a thread, as a server does."""
    stopping = threading.Event()
    door.notices.listen()
    thread = threading.Thread(target=door.notices.follow, args=[stopping])
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(60)


def test_a_click_decides(site, workspace):
    """The message has the whole call; a click approves it as the person, and the buttons go away."""
    with serving(site) as http:
        run = site.start("rule")
        wait_until(lambda: workspace.messages, "a message")
        (message,) = workspace.messages.values()
        click = sent(request(workspace.click(message, "approve", "Uana")))
        forged = [
            http.post("/doors/slack", **click | {"headers": {**click["headers"], name: value}})
            for name, value in (
                ("X-Slack-Signature", "v0="),
                ("X-Slack-Signature", b"v0=\xe9"),
                ("X-Slack-Request-Timestamp", "now"),
                ("X-Slack-Request-Timestamp", "9" * 400),
            )
        ]
        before = run.interrupts()
        reply = http.post("/doors/slack", **click)
        site.work()
        wait_until(lambda: not buttons_of(*workspace.messages.values()), "no buttons")
        elsewhere = http.post("/v1/runs", **click)

    for part in (
        '"order": 7',
        '"amount": 120',
        "a late order",
        before[0].digest.partition(":")[2][:12],
    ):
        assert part in text_of(message)
    assert buttons_of(message)["open"]["url"] == f"https://runner.example/q/{before[0].id}"
    assert [each.status_code for each in forged] == [401] * 4
    assert len(before) == 1
    assert (reply.status_code, reply.content) == (200, b"")
    assert run.result().results["ask"].output == {"said": "approve"}
    assert "approved by ana, 1 of 1" in text_of(*workspace.messages.values())
    assert workspace.whispers == []
    assert elsewhere.status_code == 403  # the exception is for signed requests of that route


def test_a_rejection_asks_for_a_reason(site, workspace):
    """Reject opens a form; what is sent is the vote's comment. Without one nothing is decided."""
    question, message = asked(site, workspace, "rule")
    assert click(site, workspace, message, action="reject") == {}
    for entered in ({"value": None}, {"value": "  "}):
        refused = send(site, workspace.submit("Uana", entered))
        assert refused["errors"] == {"0": "Say why you reject it."}
    assert state_of(site, question) == ("open", [])

    assert send(site, workspace.submit("Uana", {"value": "too much"})) == {}
    (vote,) = state_of(site, question)[1]
    assert (vote["decision"], vote["comment"]) == ("reject", "too much")


class Mentioned(People):
    """A directory that knows addresses: of ana and ben, and of somebody who isn't in the workspace."""

    def addresses(self, selectors):
        """Return the addresses of everyone who may decide."""
        return ["ana@example.com", "ben@example.com", "cora@example.com"]


mentioned = Mentioned()


def test_who_may_decide_is_mentioned(site, workspace):
    """In the message's thread, once for the question and once for each reminder; the message stays one."""
    mention(site)
    question, message = asked(site, workspace, "reminded")
    ts = message["ts"]
    site.door.show(question.id)
    title = "refund waits for a decision."
    assert [each["text"] for each in workspace.threads[ts]] == [f"<@Uana> <@Uben> {title}"]

    with following(site.door):
        wait_until(
            lambda: (site.client.engine.sweep(), len(workspace.threads[ts]) > 1)[1],
            "the reminder is in Slack",
        )

    reminder = workspace.threads[ts][1]
    assert reminder["text"] == f"<@Uana> <@Uben> Reminder 1: {title}"
    assert (reminder["reply_broadcast"], len(workspace.messages)) == (True, 1)
    click(site, workspace, message)
    site.door.handle(question.id, lambda: True, 2)
    assert [each["text"] for each in workspace.threads[ts][2:]] == [
        "refund: approved by ana, 1 of 1"  # nobody is reminded of what is decided
    ]


@pytest.mark.parametrize("graph", ["escalates", "lent"])
def test_who_may_decide_later_is_mentioned_then(site, workspace, graph):
    """By an escalation or a reassignment: who was mentioned is not again, and the message stays one."""
    mention(site)
    question, message = asked(site, workspace, graph)
    texts = workspace.threads[message["ts"]]
    waits = "refund waits for a decision."
    assert [each["text"] for each in texts] == [f"<@Uana> {waits}"]

    if graph == "lent":
        site.client.reassign(question.id, to="ben", reason="ana has left", by="ola")
        site.door.show(question.id)
    else:
        with following(site.door):
            wait_until(
                lambda: (site.client.engine.sweep(), len(texts) > 1)[1], "ben is mentioned"
            )
    site.door.show(question.id)
    assert [each["text"] for each in texts] == [f"<@Uana> {waits}", f"<@Uben> {waits}"]
    assert len(workspace.messages) == 1


def test_people_are_told_in_direct_messages(site, workspace):
    """With the address of the page, once each, and again with a reminder; the thread mentions nobody."""
    mention(site, directly=True)
    question, message = asked(site, workspace, "reminded")
    site.door.show(question.id)
    text = f"refund waits for a decision. https://runner.example/q/{question.id}"
    assert workspace.direct == [("Uana", text), ("Uben", text)]
    assert message["ts"] not in workspace.threads

    site.door.show(question.id, 1)
    assert workspace.direct[2:] == [
        ("Uana", f"Reminder 1: {text}"),
        ("Uben", f"Reminder 1: {text}"),
    ]
    (reminder,) = workspace.threads[message["ts"]]
    assert reminder["text"] == "Reminder 1: refund waits for a decision."
    click(site, workspace, message)
    site.door.show(question.id)
    assert len(workspace.direct) == 4


def test_who_has_no_direct_message_is_told_later(site, workspace):
    """One that Slack refuses holds nobody up, and is tried again at the next notice."""
    mention(site, directly=True)
    answer = workspace.reply

    def reply(method, fields, authorization):
        if fields.get("channel") == "Uana":
            return 200, {"ok": False, "error": "messages_tab_disabled"}, {}
        return answer(method, fields, authorization)

    workspace.reply = reply
    question, _ = asked(site, workspace, "rule")
    assert [user for user, _ in workspace.direct] == ["Uben"]
    workspace.reply = answer
    site.door.show(question.id)
    assert [user for user, _ in workspace.direct] == ["Uben", "Uana"]


@pytest.mark.parametrize("reminder", [0, 1])
@pytest.mark.parametrize("method", ["person", "users.lookupByEmail", "chat.postMessage"])
def test_a_direct_message_is_sent_once(site, workspace, monkeypatch, method, reminder):
    """If the directory or Slack fails for one person, the notice is handled again for that person only."""
    mention(site, directly=True)
    question = site.start("reminded").interrupts()[0]
    if reminder:
        site.door.show(question.id)
    before, answer, person = len(workspace.direct), workspace.reply, mentioned.person

    def reply(name, fields, authorization):
        if name == method and {"Uben", "ben@example.com"} & {*fields.values()}:
            return 429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "0"}
        return answer(name, fields, authorization)

    def failing(account, email):
        if method == "person" and email == "ben@example.com":
            raise ConnectionError
        return person(account, email)

    with monkeypatch.context() as patch:
        patch.setattr(workspace, "reply", reply)
        patch.setattr(mentioned, "person", failing, raising=False)
        for _ in range(2):
            with pytest.raises((Unavailable, DirectoryError)):
                site.door.handle(question.id, lambda: True, reminder)
    site.door.handle(question.id, lambda: True, reminder)

    assert [user for user, _ in workspace.direct[before:]] == ["Uana", "Uben"]
    assert len(workspace.threads) == reminder


@pytest.mark.parametrize("is_direct", [False, True])
def test_a_reminder_that_was_noted_is_not_repeated(site, workspace, is_direct):
    """A process that dies before it has acknowledged the notice leaves it to another one."""
    mention(site, directly=is_direct)
    question, message = asked(site, workspace, "reminded")
    for number in (1, 1, 2, 2):
        site.door.handle(question.id, lambda: True, number)

    texts = [said["text"] for said in workspace.threads[message["ts"]]]
    assert [text.partition("Reminder ")[2][:2] for text in texts if "Reminder" in text] == [
        "1:",
        "2:",
    ]


@pytest.mark.parametrize("is_direct", [False, True])
def test_who_has_voted_is_not_reminded(site, workspace, is_direct):
    """In the thread and in direct messages: the others are."""
    mention(site, directly=is_direct)
    question, message = asked(site, workspace, "quorum")
    assert len(workspace.direct) == 2 * is_direct
    click(site, workspace, message)
    site.door.show(question.id, 1)

    assert [user for user, _ in workspace.direct[2:]] == ["Uben"] * is_direct
    reminder = workspace.threads[message["ts"]][-1]["text"]
    assert reminder.partition("Reminder 1: ")[0] == "<@Uben> " * (not is_direct)


def test_an_app_that_may_not_look_shows_questions(site, workspace, monkeypatch):
    """An app without the scope for addresses mentions nobody, and its messages don't wait for the scope."""
    mention(site)
    answer = workspace.reply

    def reply(name, fields, authorization):
        if name == "users.lookupByEmail":
            return 200, {"ok": False, "error": "missing_scope"}, {}
        return answer(name, fields, authorization)

    monkeypatch.setattr(workspace, "reply", reply)
    question = site.start("rule").interrupts()[0]
    assert site.door.handle(question.id, lambda: True)
    assert (len(workspace.messages), workspace.threads) == (1, {})


def event(body):
    """Return the headers and the body of an event of Slack."""
    return sent(signed(json.dumps(body).encode()), "application/json")


def opened(user, **fields):
    """Return the event of a person who opens the app's home."""
    home = {"type": "app_home_opened", "user": user, "channel": "D1", "tab": "home"}
    return event({"type": "event_callback", "team_id": TEAM, "event": home, **fields})


def test_the_home_of_the_app_lists_what_waits(site, workspace):
    """When a person opens it, and anew when they have decided; each question leads to its page."""
    http = serving(site)
    question, message = asked(site, workspace, "rule")
    others = [asked(site, workspace, graph)[0] for graph in ("anyone", "others")]
    reply = http.post("/doors/slack", **opened("Uana"))
    assert (reply.status_code, reply.content) == (200, b"")
    summary, *entries = workspace.homes["Uana"]
    assert summary["text"]["text"] == "2 questions wait for you."
    assert summary["accessory"]["url"] == "https://runner.example/inbox?tab=mine"
    pages = {each["accessory"]["url"]: each["text"]["text"] for each in entries}
    assert pages == dict.fromkeys(
        (f"https://runner.example/q/{each.id}" for each in (question, others[0])), "refund"
    )

    click = sent(request(workspace.click(message, "approve", "Uana")))
    assert http.post("/doors/slack", **click).status_code == 200
    assert workspace.homes["Uana"][0]["text"]["text"] == "1 question waits for you."
    assert [*workspace.homes] == ["Uana"]


def test_a_home_shows_no_more_than_a_person_may_decide(site, workspace, caplog):
    """By the roles of the directory; a stranger has nothing, an account of elsewhere no home."""
    caplog.set_level("INFO")
    asked(site, workspace, "rule")
    asked(site, workspace, "anyone")
    http = serving(site)
    for user in ("Ueve", "Upat", "Unew", "Uguest"):
        assert http.post("/doors/slack", **opened(user)).status_code == 200
    texts = {
        user: [each["text"]["text"] for each in home] for user, home in workspace.homes.items()
    }
    assert texts == {user: ["Nothing waits for you."] for user in ("Ueve", "Upat", "Unew")}
    assert "The app's home of Uguest is as before" in caplog.text
    assert http.post("/doors/slack", **opened("Uana", team_id="T0000002")).status_code == 403
    workspace.faults.append((500, "no", {}))
    assert http.post("/doors/slack", **opened("Uana")).status_code == 200
    assert "Uana" not in workspace.homes


@pytest.mark.parametrize(
    "body",
    [[], {}, {"type": 1}, {"type": "event_callback", "event": []}, {"event": {"user": {}}}],
)
def test_an_odd_event_is_refused(site, body):
    """A signed body that isn't an event of Slack changes nothing."""
    http = serving(site)
    assert http.post("/doors/slack", **event(body)).status_code == 400


def test_slack_checks_the_address_of_events(site):
    """The door repeats the challenge of a signed request, and of no other."""
    http = serving(site)
    check = event({"type": "url_verification", "challenge": "3eZbrw", "token": "old"})
    assert http.post("/doors/slack", **check).json() == {"challenge": "3eZbrw"}
    check["headers"]["X-Slack-Signature"] = "v0=00"
    assert http.post("/doors/slack", **check).status_code == 401


def test_an_approval_asks_again_and_shows_the_call_as_fields(site, workspace):
    """Slack asks before it sends the click; the arguments stand beside each other, as they are."""
    _, message = asked(site, workspace, "rule")
    button = buttons_of(message)["approve"]
    assert (button["style"], button["confirm"]["text"]["text"]) == ("primary", "refund")
    assert "confirm" not in buttons_of(message)["reject"]
    fields = [each["text"] for each in message["blocks"][0]["fields"]]
    assert fields == [f"{name}\n{value}" for name, value in ACTION.args.items()]


def test_a_form_says_that_it_comes_too_late(site, workspace):
    """A question that was decided while the form was open stays as it is, and the form says by whom."""
    question, message = asked(site, workspace, "rule")
    click(site, workspace, message, action="reject")
    site.client.vote(question.id, "approve", by="ben")

    reply = send(site, workspace.submit("Uana", {"value": "no"}))

    assert reply["response_action"] == "errors"
    assert "approved by ben" in reply["errors"]["0"]
    assert [vote["by"] for vote in state_of(site, question)[1]] == ["human:|ben"]


@pytest.mark.parametrize("graph", ["risky", "sure", "long", "nested", "pattern"])
def test_a_question_for_its_page_has_no_other_button(site, workspace, graph):
    """High risk, a login, or more than a message can show: only the page decides, whatever is clicked."""
    question, message = asked(site, workspace, graph)
    control, shown = asked(site, workspace, "anyone")
    for each, its_message in ((question, message), (control, shown)):
        action = "approve" if each.rule else "answer"
        if graph != "long" or each is control:  # that one's button would be its answer's
            send(
                site, workspace.click(its_message, "open", "Uana") | sealed(site, each, action)
            )

    assert [*buttons_of(message)] == ["open"]
    assert state_of(site, question) == ("open", [])
    assert workspace.views == []
    assert state_of(site, control)[0] == "answered"


def test_an_edit_is_shown_and_approved_on_the_page(site, workspace):
    """The next approver sees what was changed, by whom; the button of the first version decides nothing."""
    question, message = asked(site, workspace, "quorum")
    site.client.vote(question.id, "edit", by="ben", response={"order": 7, "amount": 5})
    click(site, workspace, message)
    site.door.show(question.id)
    shown = [*workspace.messages.values()][-1]

    assert [vote["by"] for vote in state_of(site, question)[1]] == ["human:|ben"]
    assert "Changed by ben, 1 of 2:\n> amount: 120 → 5" in text_of(shown)
    assert [*buttons_of(shown)] == ["open"]


def test_the_open_button_does_nothing_here(site, workspace):
    """Slack also sends a click on a link: it is no decision, and no error."""
    question, message = asked(site, workspace, "rule")

    assert click(site, workspace, message, action="open") == {}
    assert state_of(site, question) == ("open", [])


def test_buttons_are_the_decisions_of_the_rule(site, workspace):
    """What a rule does not let people decide has no button."""
    _, message = asked(site, workspace, "approve_only")
    _, other = asked(site, workspace, "rule")

    assert [*buttons_of(message)] == ["approve", "open"]
    assert [*buttons_of(other)] == ["approve", "reject", "open"]


def test_what_agents_write_is_text(site, workspace):
    """Nothing of a question is a mention, a link or formatted in Slack."""
    _, message = asked(site, workspace, "marked")

    assert "<!channel> *all* &lt; `x`" in text_of(message)
    assert "<" not in json.dumps(message)
    texts = [block["text"] for block in message["blocks"] if "text" in block]
    assert {text["type"] for text in texts} == {"plain_text"}


def test_a_form_asks_for_an_answer(site, workspace):
    """A question without a rule opens a form with its fields; what does not fit them is said there."""
    question, message = asked(site, workspace, "form")
    click = workspace.click(message, "answer", "Uana")
    send(site, click)
    (view,) = workspace.views
    labels = [
        (block["label"]["text"], block["optional"])
        for block in view["blocks"]
        if "label" in block
    ]
    inputs = [{"value": "Rome"}, {"value": "0"}, {"selected_option": None}]
    refused = send(site, workspace.submit("Uana", *inputs))
    before = state_of(site, question)[0]
    inputs = [{"value": "Rome"}, {"value": "3"}, {"selected_option": {"value": "1"}}]
    reply = send(site, workspace.submit("Uana", *inputs))
    site.work()

    assert labels == [("City", False), ("days", False), ("way", True)]
    assert "days" in refused["errors"]["0"]
    assert before == "open"
    assert reply == {}
    output = site.output(question.run_id, "ask")
    assert output == {
        "said": {"city": "Rome", "days": 3, "way": FORM["properties"]["way"]["enum"][1]}
    }


def test_a_form_may_be_filled_to_its_end(site, workspace):
    """Slack writes a character in up to eight bytes, so a request is larger than what others may send."""
    question, message = asked(site, workspace, "texts")
    click(site, workspace, message, action="answer")
    payload = workspace.submit("Uana", *[{"value": "\u5b57" * MOST_INPUT}] * 3)
    http = serving(site)
    replies = [
        http.post("/doors/slack", **sent(request(content)))
        for content in (payload, {**payload, "more": "x" * MOST_SENT})
    ]
    http.app.state.services.release(runs=True)

    assert [reply.status_code for reply in replies] == [200, 401]
    assert not replies[0].content
    assert state_of(site, question)[0] == "answered"


@pytest.mark.parametrize(("chosen", "content"), [([], {}), (["1"], {"tags": ["late"]})])
def test_an_input_that_is_empty_is_no_value(chosen, content):
    """A menu of several choices, too: none is not an empty list, which the schema might refuse."""
    menu = {"type": "array", "items": {"type": "string", "enum": ["new", "late"]}}
    entered = {"selected_options": [{"value": value} for value in chosen]}

    assert content_of({"properties": {"tags": menu}}, {"0": {"input": entered}}) == content


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ("Uben", "may not decide"),
        ("Unew", "directory does not know"),
        ("Uold", "not one of a person"),
        ("Ubot", "not one of a person"),
        ("Uguest", "not one of a person"),
        ("Ushared", "not one of a person"),
        ("Uunsure", "directory does not know"),
        ("Unobody", "user_not_found"),
        ("Ueve", "role that may decide"),
        ("Upat", "role that may decide"),
    ],
)
def test_who_may_not_decide_hears_why(site, workspace, user, why):
    """An account counts if the directory says whose it is, and the rule takes them; only they see why not."""
    graph = "lent" if user == "Uben" else "anyone"
    question, message = asked(site, workspace, graph)
    click(site, workspace, message, user)
    before, (whisper,) = state_of(site, question), workspace.whispers
    click(site, workspace, message)

    assert (whisper["user"], whisper["channel"]) == (user, CHANNEL)
    assert why in whisper["text"]
    assert before == ("open", [])
    assert state_of(site, question)[0] == "answered"


def test_the_server_signs_for_the_person(site, workspace, tmp_path, monkeypatch):
    """A rule of level 1 counts a click that the server has signed; without its key it counts none."""
    monkeypatch.setenv("RUNNER_DECISION_KEYS", str(tmp_path / "public.json"))
    question, message = asked(site, workspace, "service")
    KeySet(tmp_path / "public.json").make("door", tmp_path / "key.json", level=1)
    click(site, workspace, message)
    before = state_of(site, question)
    site.settings.signing_key = str(tmp_path / "key.json")
    click(site, workspace, message)
    site.work()

    assert before == ("open", [])
    assert [vote["level"] for vote in state_of(site, question)[1]] == [1]
    assert site.client.run(question.run_id).result().status == "completed"


def test_the_door_needs_all_its_settings(site):
    """A door that could not check or reach something is not opened, and says what is missing."""
    with pytest.raises(UsageError, match=r"RUNNER_SLACK_TEAM, .*, RUNNER_SERVER_SECRET"):
        create_app(Settings(redis_url=site.settings.redis_url), doors=["slack"])


# What is stored, and the notices


def test_a_decision_elsewhere_takes_the_buttons_away(site, workspace):
    """A message follows its question: votes, a decision at another door; then nothing of it is stored."""
    with following(site.door):
        question = site.start("quorum").interrupts()[0]
        wait_until(lambda: workspace.messages, "a message")
        site.client.vote(question.id, "approve", by="ana")
        wait_until(lambda: "1 of 2" in text_of(*workspace.messages.values()), "the first vote")
        stored = site.door._messages.find(question.id)
        site.client.vote(question.id, "approve", by="ben")
        wait_until(lambda: not buttons_of(*workspace.messages.values()), "no buttons")
        wait_until(lambda: site.door._messages.find(question.id) is None, "nothing stored")

    assert stored is not None
    assert "approved by ana, ben, 2 of 2" in text_of(*workspace.messages.values())


def test_a_graph_has_its_channel(site, workspace):
    """A question goes to the channel of its graph, and to none where its graph has none."""
    site.settings.slack_channels = [f"quorum={CHANNEL}"]
    site.door = SlackDoor(site.app.state.services)
    other = site.start("rule").interrupts()[0]
    site.door.show(other.id)
    before = [*workspace.messages]
    asked(site, workspace, "quorum")

    assert before == []
    assert len(workspace.messages) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        (500, {"ok": False, "error": "internal_error"}, {}),
        (429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "0"}),
        (429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "soon"}),
        (503, "<html>maintenance</html>", {}),
        (200, "<html>log in</html>", {}),
        (200, [], {}),
        (200, {"ok": False, "error": "token_expired"}, {}),
    ],
)
def test_messages_wait_for_slack(site, workspace, monkeypatch, fault):
    """A message that Slack does not take now is written later, once."""
    monkeypatch.setattr(notice_thread, "PAUSE", 0.01)
    workspace.faults.extend([fault, fault])
    with following(site.door):
        site.start("rule")
        wait_until(lambda: workspace.messages, "the message")
        wait_until(lambda: len(workspace.calls) == 3, "three attempts")

    assert len(workspace.messages) == 1


def test_a_slow_slack_gets_each_message_once(site, workspace, monkeypatch):
    """A message may take longer than a click, which Slack itself gives up: it is not written again."""
    monkeypatch.setattr(slack, "TIMEOUT", 0.05)
    door = SlackDoor(site.app.state.services)
    workspace.slow = 0.2
    question = site.start("rule").interrupts()[0]
    door.show(question.id)
    door.show(question.id)
    (message,) = workspace.messages.values()
    door.receive(*request(workspace.click(message, "approve", "Uana")))

    assert state_of(site, question) == ("open", [])


@pytest.mark.parametrize("is_clicked", [False, True])
def test_a_click_tells_which_message_shows_a_question(site, workspace, is_clicked):
    """A message whose process died before it was stored loses its buttons, too, if a click on it decides."""
    question, message = asked(site, workspace, "rule")
    site.door._messages.remove(question.id)
    if is_clicked:
        click(site, workspace, message)
    else:
        site.client.vote(question.id, "approve", by="ana")
    site.door.show(question.id)

    assert ("approve" in buttons_of(*workspace.messages.values())) is not is_clicked
    assert len(workspace.messages) == 1
    assert state_of(site, question)[0] == "answered"


def test_what_is_stored_of_a_message_stays_readable(site, workspace, redis_url):
    """A message that 0.1.0 has stored is rewritten where it is, and no second one is written."""
    question, message = asked(site, workspace, "rule")
    key, stored = f"{Keys().prefix}slack_messages", {"channel": CHANNEL, "checksum": "", "v": 1}
    with redis.Redis.from_url(redis_url) as admin:
        fields = json.loads(admin.hget(key, question.id)).keys()
        stored |= {"id": question.id, "ts": message["ts"]}
        admin.hset(key, question.id, json.dumps(stored))
    workspace.messages[message["ts"]] = {"channel": CHANNEL, "blocks": []}
    site.door.show(question.id)

    assert fields == stored.keys() | {"mentioned"}
    (rewritten,) = workspace.messages.values()
    assert rewritten["blocks"] == message["blocks"]


def test_a_cancelled_run_takes_the_buttons_away(site, workspace):
    """A question that ends without an answer says so in its message."""
    with following(site.door):
        run = site.start("rule")
        wait_until(lambda: workspace.messages, "a message")
        run.cancel("not needed")
        wait_until(lambda: not buttons_of(*workspace.messages.values()), "no buttons")

    assert text_of(*workspace.messages.values()).endswith("withdrawn")


def test_a_question_that_is_not_shown_holds_no_other_back(site, workspace, caplog, redis_url):
    """A message that Slack refuses, or that can't be made, is in the log, and the next one is written."""
    site.door._channels["two"] = "C0000404"
    site.door.notices.listen()
    refused, unreadable, shown = (
        site.start(graph).interrupts()[0].id for graph in ("two", "rule", "rule")
    )
    with redis.Redis.from_url(redis_url) as admin:
        admin.hset(f"{Keys().prefix}slack_messages", unreadable, '{"v": 9}')
    with following(site.door):
        wait_until(lambda: workspace.messages, "the third message")

    assert f"{refused} can be decided only on its page: channel_not_found" in caplog.text
    assert f"{unreadable} can be decided only on its page; please report this" in caplog.text
    assert shown not in caplog.text


def test_a_server_that_has_stopped_has_no_connection_open(site, workspace, redis_url):
    """All that the threads of the door have opened is closed when the application has ended."""
    app = create_app(site.settings, auth=lambda request: None, doors=["slack"])
    with redis.Redis.from_url(redis_url) as admin:

        def connections():
            return {client["id"] for client in admin.client_list()}

        site.start("echo")
        before = connections()
        with TestClient(app):
            site.start("rule")
            wait_until(lambda: workspace.messages, "a message")
            during = connections()
        wait_until(lambda: not connections() - before, "no connection is open")

    assert during - before


def test_another_process_writes_what_one_has_left(site, workspace):
    """Notices in the hands of a process that died are shown by the next one."""
    services = site.app.state.services
    site.door.notices.listen()
    site.start("rule")
    (reader,) = services.notice_groups.readers(site.door.notices.group)
    taken = reader.read(1)
    reader.close()
    with following(site.door):
        wait_until(lambda: workspace.messages, "the message")

    assert taken


# Attacks


def effects(site, workspace, question):
    """Return all that a click may have changed."""
    return state_of(site, question), len(workspace.views)


class Attacks:
    """Clicks that must have no effect, each made of a good one by chance."""

    def __init__(self, site, workspace, question, message, seed):
        self.site, self.workspace, self.question, self.message = (
            site,
            workspace,
            question,
            message,
        )
        self.random = random.Random(seed)  # noqa: S311 - repeatable

    def click(self, **fields):
        """Return a click of ana, with other fields."""
        return (
            self.workspace.click(
                self.message, self.random.choice(["approve", "reject"]), "Uana"
            )
            | fields
        )

    def _changed(self, text):
        """Change, insert or remove a character."""
        place, kind = self.random.randrange(len(text)), self.random.randrange(3)
        other = chr(self.random.randrange(33, 127))
        middle = {0: other, 1: other + text[place], 2: ""}[kind]
        changed = text[:place] + middle + text[place + 1 :]
        return changed if changed != text else self._changed(text)

    def forged(self):
        """The signature, the time or the body is another than Slack's."""
        body, timestamp, signature = request(self.click())
        kind = self.random.randrange(4)
        if kind == 0:
            return self._changed(body.decode()).encode(), timestamp, signature
        if kind == 1:
            return body, str(int(timestamp) + self.random.choice([-9, -1, 1, 9])), signature
        if kind == 2:
            return request(self.click(), secret=self._changed(SECRET))
        return body, timestamp, self._changed(signature)

    def old(self):
        """The request was signed more than five minutes ago, or is to be sent later."""
        return request(
            self.click(), age=self.random.choice([1, -1]) * self.random.uniform(310, 1e6)
        )

    def foreign(self):
        """The click is from another workspace, or by a person of one."""
        team = self._changed(TEAM)
        fields = self.random.choice(
            [{"team": {"id": team}}, {"team": None}, {"user": {"id": "Uana", "team_id": team}}]
        )
        return request(self.click(**fields))

    def sealed_elsewhere(self):
        """The button is another's: its seal or its content was changed, or it is of another installation."""
        click = self.click()
        action = click["actions"][0]
        action["value"] = self.random.choice(
            [self._changed(action["value"]), "", action["value"][65:]]
        )
        return request(click)

    def changed_question(self):
        """The button was made for another digest."""
        digest, action = (
            f"sha256:{self.random.randbytes(32).hex()}",
            self.random.choice(["approve", "reject"]),
        )
        return request(self.click(**sealed(self.site, self.question, action, digest)))

    def misshapen(self):
        """Signed by Slack, but no interaction that this door knows."""
        click = self.click()
        kind = self.random.randrange(3)
        if kind == 0:
            del click[self.random.choice(["type", "team", "user"])]
        elif kind == 1:
            click["type"] = self._changed("block_actions")
        else:
            click["actions"] = self.random.choice([None, [{}], [7], "approve", []])
        return request(click)


KINDS = ("forged", "old", "foreign", "sealed_elsewhere", "changed_question", "misshapen")


@pytest.mark.parametrize(
    "number", [500, pytest.param(100 * settings.default.max_examples, marks=pytest.mark.slow)]
)
def test_clicks_that_are_not_ours_have_no_effect(site, workspace, number):
    """Forged, old, foreign, resealed and changed clicks change nothing; the good click beside them does."""
    question, message = asked(site, workspace, "quorum")
    attacks = Attacks(site, workspace, question, message, seed=number)
    before = effects(site, workspace, question)
    # Of these, Slack's API and the store are asked each time.
    weights = [30, 30, 30, 30, 3, 10]
    for kind in attacks.random.choices(KINDS, weights, k=number):
        refused = (
            nullcontext()
            if kind in {"changed_question", "misshapen"}
            else pytest.raises(Problem)
        )
        with refused, suppress(Problem) if kind == "misshapen" else nullcontext():
            site.door.receive(*getattr(attacks, kind)())
    after = effects(site, workspace, question)
    click(site, workspace, message)

    assert after == before == (("open", []), 0)
    assert [vote["by"] for vote in state_of(site, question)[1]] == ["human:|ana"]


def controls(site, workspace, question, message):
    """Return by kind a click that would be an attack, where what makes it one is right here."""
    click = workspace.click(message, "approve", "Uana")
    services, settings = site.app.state.services, site.settings

    def door(**values):
        for name, value in values.items():
            setattr(settings, name, value)
        return SlackDoor(services)

    def forged():
        return door(slack_signing_secret="other"), request(click, secret="other")

    def old():
        return site.door, request(click, age=280)

    def foreign():
        workspace.users["Uana"]["team_id"] = "T0000002"
        settings.directory = f"{__name__}:elsewhere"
        there = door(slack_team="T0000002")
        button = {
            "value": there.seal(Intent("approve", question.id, question.digest)),
            "action_id": "x",
        }
        of_there = {"team": {"id": "T0000002"}, "user": {"id": "Uana", "team_id": "T0000002"}}
        return there, request({**click, **of_there, "actions": [button]})

    def sealed_elsewhere():
        there = door(server_secret="o" * 32)
        value = there.seal(Intent("approve", question.id, question.digest))
        return there, request({**click, "actions": [{"value": value, "action_id": "x"}]})

    def changed_question():
        return site.door, request({**click, **sealed(site, question, digest=question.digest)})

    return {
        each.__name__: each
        for each in (forged, old, foreign, sealed_elsewhere, changed_question)
    }


class Elsewhere(People):
    """The same people, of any workspace."""

    def person(self, account, email):
        """Return whose address it is."""
        return Principal(EMAILS[email])


elsewhere = Elsewhere()


@pytest.mark.parametrize(
    "kind", ["forged", "old", "foreign", "sealed_elsewhere", "changed_question"]
)
def test_each_check_stops_nothing_else(site, workspace, kind):
    """The same click has its effect where only what the check asks for is as it should be."""
    question, message = asked(site, workspace, "rule")
    attack = Attacks(site, workspace, question, message, seed=1)
    with suppress(Problem):
        site.door.receive(*getattr(attack, kind)())
    before = state_of(site, question)
    door, good = controls(site, workspace, question, message)[kind]()
    door.receive(*good)

    assert before == ("open", [])
    assert state_of(site, question)[0] == "answered"


def test_a_replayed_click_counts_once(site, workspace):
    """The same request again changes nothing, also after the vote was taken back; a new click counts."""
    question, message = asked(site, workspace, "quorum")
    sent_once = request(workspace.click(message, "approve", "Uana"))
    site.door.receive(*sent_once)
    site.client.withdraw_vote(question.id, by="ana")
    first = state_of(site, question)
    for _ in range(3):
        site.door.receive(*sent_once)
    replayed = state_of(site, question)
    click(site, workspace, message)

    assert len(first[1]) == 0
    assert replayed == first
    assert len(state_of(site, question)[1]) == 1


def test_a_person_counts_once_at_all_doors(site, workspace):
    """Two of two takes two people: a click adds nothing to the same person's vote at another door."""
    question, message = asked(site, workspace, "quorum")
    site.client.vote(question.id, "approve", by="ana")
    click(site, workspace, message)
    site.door.show(question.id)
    between, text = state_of(site, question)[0], text_of(*workspace.messages.values())
    click(site, workspace, message, "Uben")

    assert between == "open"
    assert "So far: 1 of 2" in text
    assert state_of(site, question)[0] == "answered"
