from __future__ import annotations

import gc
import gzip
import html
import re
import time
from base64 import b64encode
from random import Random
from weakref import ref

import pytest
import redis

from runner import GraphBuilder
from runner.approvals import Action, Rule
from runner.approvals.rules import Principal
from runner.operations.questions import read_questions
from runner.records.interrupts import Decision
from runner.records.listings import InterruptQuery
from runner.records.run import Status
from runner.server.access import Person
from runner.server.deciding import act, be_away, decide
from runner.server.pages import inbox, rendering
from runner.server.pages.amounts import amount_of
from runner.store.encoding import COMPRESSED
from runner.store.redis.partitions import open_store
from tests.graphs import wired
from tests.server.conftest import GRAPHS, Site
from tests.server.test_pages import HTML, send
from tests.waiting import wait_until

pytestmark = pytest.mark.full


def pay(ctx):
    rule = Rule(eligible=["group:finance"], need=2, delegate="anyone", exclude=["requester"])
    action = Action("acme", "function", "pay", {"to": "Acme", "amount": ctx.task["amount"]})
    options = {"risk": ctx.task.get("risk", ""), "expires_in": ctx.task.get("expires_in")}
    decided = ctx.interrupt("pay", reason="It is due.", rule=rule, action=action, **options)
    if not decided.approved:
        decided = ctx.interrupt("pay again", rule=rule, action=action)
    return decided.decision


def transfer(ctx):
    rule = Rule(eligible=["ana"], title="Transfer {amount} {currency} to {iban}")
    return ctx.interrupt("transfer", rule=rule, action={**ctx.task}).decision


def name_it(ctx):
    return ctx.interrupt("name it", reason="For the newsletter.", **ctx.task)


ASKING = {
    **GRAPHS,
    "payments": lambda: wired({"pay": pay}).build(),
    "transfers": lambda: wired({"transfer": transfer}).build(),
    "names": lambda: wired({"name": name_it}).build(),
}


@pytest.fixture
def desk(redis_url):
    """An application whose graphs ask; ana of finance looks."""
    site = Site(redis_url, ASKING)
    site.as_role("reader", "approver", name="ana", groups=["finance"])
    return site


def asked(site, graph, task, **options):
    (question,) = site.start(graph, task, requester="cora", **options).interrupts()
    return question


def four_questions(site):
    """Ask ana, and ben until tomorrow; ask about a cheap payment, and about a dear one for a minute."""
    questions = (
        asked(site, "names", {"assignees": ["ana"]}),
        asked(
            site, "names", {"assignees": ["ben"], "expires_in": 90_000.0}, tags={"region": "eu"}
        ),
        asked(site, "payments", {"amount": 80}),
        asked(site, "payments", {"amount": 900900, "risk": "high", "expires_in": 60.0}),
    )
    return [question.id for question in questions]


def rows(site, query=""):
    """The questions of a page, in its order."""
    reply = site.http.get(f"/inbox?{query}", headers=HTML)
    assert reply.status_code == 200, reply.text
    return re.findall(r'<tr data-row id="q-([^"]+)"', reply.text)


def test_tabs_and_filters_show_what_they_say(desk):
    """For me, by name or group, and all; each filter leaves what it names; what expires first is on top."""
    named, other, cheap, dear = four_questions(desk)

    assert rows(desk) == [dear, named, cheap]
    assert rows(desk, "tab=all") == [dear, other, named, cheap]
    for query, expected in {
        "tab=mine": [dear, named, cheap],
        "graph=names": [other, named],
        "name=pay": [dear, cheap],
        "tool=pay": [dear, cheap],
        "risk=high": [dear],
        "due=hour": [dear],
        "due=week": [dear, other],
        "age=hour": [],
        "tag=region%3Deu": [other],
        "text=NEWSLETTER": [other, named],
        "text=900900": [dear],
        f"run={cheap.partition('.')[0]}": [cheap],
        "tab=mine&risk=high&text=acme": [dear],
    }.items():
        assert rows(desk, query) == expected, query
    page = desk.page("/inbox?tab=mine")
    assert "<title>For me (3)" in page
    assert ('class="cut">cora</td>' in page, "human:|cora" in page) == (True, False)
    assert "pay(to=&#34;Acme&#34;, amount=80)" in page
    assert desk.http.get("/inbox?tab=other", headers=HTML).status_code == 422
    assert desk.http.get("/inbox?due=later", headers=HTML).status_code == 422


def test_the_api_lists_what_the_inbox_shows(desk):
    """Each filter of the page is one of `/v1/questions`, decided ones too; who may not read can't search."""
    named, other, cheap, dear = four_questions(desk)

    def listed(**query):
        reply = desk.http.get("/v1/questions", params=query)
        assert reply.status_code == 200, reply.text
        return {item["id"] for item in reply.json()["items"]}

    assert listed() == {named, other, cheap, dear}
    assert listed(mine=True) == {named, cheap, dear}
    assert listed(tool="pay") == {cheap, dear}
    assert listed(risk="high") == listed(due_within=3600) == listed(text="900900") == {dear}
    assert listed(tag="region=eu") == {other}
    assert listed(status="decided") == set()
    desk.client.respond(named, "Autumn", responder="ana")
    desk.client.respond(other, "Spring", responder="ben")
    assert listed(status="decided") == {named, other}
    assert listed(status="decided", mine=True) == {named}
    assert listed() == {cheap, dear}
    desk.client.withdraw(cheap, "too cheap")
    assert [listed(status=status) for status in ("answered", "withdrawn", "expired")] == [
        {named, other},
        {cheap},
        set(),
    ]
    desk.as_role("viewer")
    assert desk.http.get("/v1/questions", params={"text": "900900"}).status_code == 403


def test_the_effect_is_said_first_at_every_door(desk):
    """A title is filled from what is approved; with an edit from that, and not for who may not read."""
    call = {"amount": 48000, "currency": "EUR", "iban": "DE89\u202e"}
    sentence, decided = (rf"Transfer {amount} EUR to DE89\u202e" for amount in (48000, 4800))
    question = asked(desk, "transfers", call)
    heading, row = f"<h1>{sentence}</h1>", f'{question.id}">{sentence}</a>'
    paths = f"/q/{question.id}", "/inbox", f"/runs/{question.run_id}?node=transfer"
    texts = [re.sub(r"\?tab=\w+", "", desk.page(path)) for path in paths]
    api = desk.http.get("/v1/questions").json()["items"]
    ((notice, _),) = desk.app.state.services.notices.read(["0-0"])
    desk.as_role("viewer")
    hidden = [desk.page(path) for path in paths]
    bare = desk.http.get(f"/v1/questions/{question.id}").json()
    desk.as_role("reader", "approver", name="ana")
    edit = {**call, "amount": 4800}
    vote = Decision(question.id, edit, digest=question.digest, decision="edit")
    decide(desk.app.state.services, desk.person, vote)

    assert (heading in texts[0], row in texts[1], texts[2].count(row)) == (True, True, 2)
    assert (
        [one["title"] for one in api] == [notice.message()["question"]["title"]] == [sentence]
    )
    assert (bare["title"], [text for text in hidden if "48000" in text]) == ("transfer", [])
    page = desk.page(f"/q/{question.id}")
    assert (f"<h1>{decided}" in page, f"Changed by ana: {decided}</h3>" in page) == (True, True)
    run = desk.page(paths[2])
    desk.as_role("viewer")
    bare_run = desk.page(paths[2])
    link = f'<a href="/q/{question.id}">'
    assert (run.count(f"{link}{decided}</a>"), bare_run.count(f"{link}transfer</a>")) == (1, 1)
    assert "4800" not in bare_run


def test_a_title_that_names_no_argument_is_not_asked(desk):
    """The node fails with the name, instead of asking with a hole in the sentence."""
    run = desk.start("transfers", {"amount": 1})

    assert (run.status, run.interrupts()) == ("failed", [])
    assert "'currency', which is not an argument" in str(
        run.result().results["transfer"].result
    )


def test_who_may_not_read_can_not_search(desk):
    """A viewer learns nothing of a payload by asking whether it has a word."""
    question = asked(desk, "payments", {"amount": 900900})
    desk.as_role("viewer")

    assert (
        rows(desk, "text=nowhere")
        == rows(desk, "text=900900")
        == rows(desk, "tool=other")
        == [question.id]
    )
    assert "Acme" not in desk.page("/inbox")


def test_views_are_kept_in_the_browser(desk):
    """A view has a tab and filters, nothing else; a cookie that is malformed has none."""
    saved = send(
        desk, "/inbox/views", name="mine & high", address="tab=mine&risk=high&cursor=x&evil=1"
    )
    desk.http.cookies.update(saved.cookies)
    page = desk.page("/inbox")

    assert (saved.status_code, saved.headers["location"]) == (303, "/inbox?tab=mine&risk=high")
    assert '<a href="/inbox?tab=mine&amp;risk=high">mine &amp; high</a>' in page
    assert {"httponly", "secure", "samesite=lax"} <= set(
        saved.headers["set-cookie"].lower().split("; ")
    )
    gone = send(desk, "/inbox/views", name="mine & high", action="remove")
    desk.http.cookies.update(gone.cookies)
    assert "mine &amp; high" not in desk.page("/inbox")
    deep = b64encode(b"[" * 3_000).decode()
    for cookie in ("%%%", "e30=", "WzFd", "W1sxXV0=", deep):
        reply = desk.http.get("/inbox", headers={**HTML, "Cookie": f"runner_views={cookie}"})
        assert reply.status_code == 200, cookie


def test_a_browser_keeps_only_so_many_views(desk):
    """They stay below what a cookie may have, which a browser would drop in silence."""
    for number in range(30):
        saved = send(desk, "/inbox/views", name=str(number), address="text=" + "x" * 190)
        if saved.status_code == 422:
            break
        assert len(saved.headers["set-cookie"]) < 4_096
        desk.http.cookies.update(saved.cookies)

    assert (saved.status_code, number > 5) == (422, True)


def review(ctx):
    rule = Rule(eligible=["group:finance"], decisions=["approve", "reject"])
    return ctx.interrupt("file it?", reason=f"{ctx.task}", rule=rule).decision


def mapped(count):
    builder = GraphBuilder()
    builder.add_node(lambda ctx: list(range(count)), "list")
    builder.add_map(review, "review", over="list")
    builder.add_edge("list", "review")
    return builder.build()


@pytest.fixture
def library(redis_url):
    """A run whose map asks the same of 60 documents; ana of finance looks."""
    site = Site(redis_url, {**ASKING, "library": lambda: mapped(60)})
    site.as_role("reader", "approver", name="ana", groups=["finance"])
    return site


@pytest.mark.slow
def test_a_run_page_has_one_line_for_a_map_that_asks(library):
    """With the number and a way to them in the inbox; their items are no rows beside that of the map."""
    run = library.start("library")
    page = library.page(f"/runs/{run.id}")
    asks = page.partition('id="asks"')[2].partition("</section>")[0]
    (link,) = re.findall(r'href="(/inbox[^"]+)"', asks)

    nodes = library.page(f"/runs/{run.id}?tab=nodes")
    assert re.findall(r"<tr data-row.*?>([^<]+)</a>", nodes) == ["list", "review"]
    assert "waits for people</span>" in page.partition("<nav")[2]
    assert asks.count("<li>") == 1
    assert "file it? \N{MULTIPLICATION SIGN} 60" in asks
    assert len(rows(library, html.unescape(link).partition("?")[2])) == 50


@pytest.mark.parametrize(
    ("read", "words"), [(50, "decide 50 together"), (300, "decide all 60")]
)
def test_a_row_says_all_only_where_it_has_read_all(library, monkeypatch, read, words):
    """A page reads so many questions at most; of a map with more it offers those, and not all."""
    monkeypatch.setattr(inbox, "READ", read)
    library.start("library")

    assert words in library.page("/inbox")


def test_the_items_of_a_map_are_listed_one_by_one(library):
    """Behind their row, with a link to all that match; questions of another node are not among them."""
    run = library.start("library")
    one = asked(library, "payments", {"amount": 900900})
    single = f"tab=all&run={run.id}&name=file+it%3F&fold=no"
    page = library.page(f"/inbox?{single}")
    (link,) = re.findall(r'href="([^"]+)">Decide all that match', page)
    together = library.page(html.unescape(link))
    mixed = library.http.get(
        f"/inbox/together?q={one.id}&q={rows(library, single)[0]}", headers=HTML
    )

    assert len(rows(library, single)) == 50
    assert together.count('name="pick"') == 60
    assert mixed.status_code == 422
    assert f"&amp;q={one.id}" in mixed.text  # the way back has the selection


@pytest.mark.parametrize("options", [{"rule": Rule()}, {}])
def test_a_graph_inside_a_map_asks_with_its_item(redis_url, options):
    """Inbox and run page name the item, with a rule and without; control: another run's node stands alone."""

    def ask():
        return wired({"ask": lambda ctx: ctx.interrupt("publish?", **options)}).build()

    def book():
        builder = GraphBuilder()
        builder.add_node(lambda ctx: [1, 2], "list")
        builder.add_map(ask(), "chapters", over="list")
        builder.add_edge("list", "chapters")
        return builder.build()

    site = Site(redis_url, {"book": book, "leaf": ask})
    run, _ = site.start("book"), site.start("leaf")
    inbox, page = (site.page(path) for path in ("/inbox?tab=all", f"/runs/{run.id}"))

    for number in (0, 1):
        asker = f">chapters[{number}]/ask</a>"
        assert (asker in inbox, asker in page) == (True, True)
    assert inbox.count(">ask</a>") == 1


def test_programs_decide_the_items_of_a_map_together(library):
    """By client and API, each with its receipt; with another among them nothing is done."""
    run = library.start("library")
    digests = {question.id: question.digest for question in run.interrupts()}
    one = asked(library, "payments", {"amount": 900900})
    mixed = {"digests": {**digests, one.id: one.digest}, "decision": "reject"}
    refused = library.http.post("/v1/questions:vote", json=mixed)
    taken = dict(list(digests.items())[:2])
    library.client.engine.directory = f"{__name__}:FINANCE"
    receipts = library.client.respond_all(list(taken), "approve", by="ben", digests=taken)
    rest = dict(list(digests.items())[2:])
    voted = library.http.post(
        "/v1/questions:vote", json={"digests": rest, "decision": "approve"}
    )

    assert refused.status_code == 422
    assert [receipt.status for receipt in receipts] == ["accepted"] * 2
    assert [item["status"] for item in voted.json()["items"]] == ["accepted"] * 58


class Finance:
    """A directory in which all are in finance."""

    def groups(self, principal):
        return ["finance"]

    def roles(self, principal):
        return []


FINANCE = Finance()


def test_high_risk_is_typed_for_all(desk):
    """Nothing is counted before that; a digest that is another one counts for its question only."""
    questions = [
        asked(desk, "payments", {"amount": amount, "risk": "high"}) for amount in (80, 90)
    ]
    ids = [question.id for question in questions]
    digests = [questions[0].digest, "sha256:other"]
    form = {"q": ids, "pick": ids, "digest": digests, "decision": "approve"}

    wrong = send(desk, "/inbox/together", typed="pya", **form)
    votes = desk.client.engine.store.votes(ids[0])
    right = send(desk, "/inbox/together", typed="pay", **form)

    assert (wrong.status_code, "Type pay exactly" in wrong.text, votes) == (422, True, [])
    assert re.findall(r'data-result="(\w+)"', right.text) == ["counted", "rejected"]


def test_questions_that_differ_are_decided_one_by_one(desk):
    """Of other nodes or risks, or none at all: the page says so."""
    low, high = (
        asked(desk, "payments", {"amount": 1}),
        asked(desk, "payments", {"amount": 2, "risk": "high"}),
    )
    plain = asked(desk, "names", {})
    for ids in ([low.id, high.id], [low.id, plain.id], [], ["0none.a.1.b"]):
        query = "&".join(f"q={name}" for name in ids)
        assert desk.http.get(f"/inbox/together?{query}", headers=HTML).status_code == 422, ids


# -- one question ------------------------------------------------------------------------------------------


def test_a_question_shows_all_that_happened_to_it(desk):
    """Comments, votes with what they are for, who has claimed it; and the node in its graph."""
    question = asked(desk, "payments", {"amount": 80})
    path = f"/q/{question.id}"
    for action, fields in {
        "claim": {},
        "comment": {"comment": "so much?"},
        "release": {},
    }.items():
        assert send(desk, f"{path}/{action}", **fields).headers["location"] == path
    send(desk, path, digest=question.digest, decision="approve", comment="fine")

    page = desk.page(path)
    (vote,) = desk.votes(question)
    assert re.findall(r'<li data-kind="(\w+)"', page) == [
        "asked",
        "claimed",
        "commented",
        "released",
        "voted",
    ]
    assert page.count(vote["effect"]) == 1
    assert ("so much?" in page, "group finance" in page, "for <b>cora</b>" in page) == (
        True,
        True,
        True,
    )
    assert 'data-node="pay" data-here' in page


def test_a_vote_is_taken_back_or_given_to_somebody(desk):
    """As the rule allows; who has delegated can't vote, and is told so."""
    question = asked(desk, "payments", {"amount": 80})
    path = f"/q/{question.id}"
    send(desk, path, digest=question.digest, decision="approve")
    assert "Take my vote back" in desk.page(path)

    assert send(desk, f"{path}/withdraw_vote").status_code == 303
    assert send(desk, f"{path}/delegate", to="eve").status_code == 303
    late = send(desk, path, digest=question.digest, decision="approve")

    assert (late.status_code, "forbidden" in late.text) == (409, True)
    assert send(desk, f"{path}/release").status_code == 409
    desk.as_role("approver", name="eve")
    assert rows(desk, "tab=mine") == [question.id]


def test_an_earlier_denial_of_the_same_call_is_shown(desk):
    """Who is asked again sees that somebody has said no, and why."""
    first = asked(desk, "payments", {"amount": 80})
    send(desk, f"/q/{first.id}", digest=first.digest, decision="reject", comment="too much")
    desk.work()
    (second,) = desk.client.run(first.run_id).interrupts()

    page = desk.page(f"/q/{second.id}")

    assert ("Denied before in this run" in page, "too much" in page) == (True, True)
    assert "Denied before" not in desk.page(f"/q/{first.id}")


def test_an_edit_shows_that_another_call_is_approved(desk):
    """The digest of what is approved, before and after; it is the one that the vote is for."""
    question = asked(desk, "payments", {"amount": 80})
    edit = {
        "decision": "edit",
        "arguments": '{"to": "Acme", "amount": 70}',
        "digest": question.digest,
    }

    step = send(desk, f"/q/{question.id}", **edit).text
    send(desk, f"/q/{question.id}", **edit, confirmed="yes")

    before, after = re.findall(r'<(?:del|ins) class="id">(sha256:\w+)<', step)
    assert before != after == desk.votes(question)[0]["effect"]
    odd = send(desk, f"/q/{question.id}", **{**edit, "arguments": '{"amount": NaN}'})
    assert odd.status_code == 422


# -- cost --------------------------------------------------------------------------------------------------


def commands_of(site, query):
    """The commands that a page sends to the store."""
    with redis.Redis.from_url(site.settings.redis_url) as raw:
        before = raw.info("stats")["total_commands_processed"]
        rows(site, query)
        return raw.info("stats")["total_commands_processed"] - before


def test_a_question_is_read_once_and_its_rule_is_made_once(desk, monkeypatch):
    """A row of one's own costs two reads, its document and its standing; the count on the tab adds none."""
    made, check = [], Rule.__post_init__
    monkeypatch.setattr(Rule, "__post_init__", lambda rule: (made.append(rule), check(rule)))
    queries = ["", "tab=mine"]
    for _ in range(2):
        asked(desk, "payments", {"amount": 80})
    few = [(rows(desk, query), commands_of(desk, query))[1] for query in queries]
    for _ in range(10):
        asked(desk, "payments", {"amount": 80})
    made.clear()

    assert [commands_of(desk, query) for query in queries] == [cost + 20 for cost in few]
    assert made == []
    assert [len(rows(desk, query)) for query in queries] == [12, 12]


def test_a_plain_question_costs_one_read_of_its_run(desk):
    """Besides its document and its standing: the place; who asked for the run is read once."""
    for _ in range(2):
        asked(desk, "names", {})
    few = (rows(desk, "tab=all"), commands_of(desk, "tab=all"))[1]
    for _ in range(10):
        asked(desk, "names", {})

    assert len(rows(desk, "tab=all")) == 12
    assert commands_of(desk, "tab=all") == few + 30


def test_requesters_that_are_kept_are_those_of_their_store(desk):
    """A copy of a store in which others ask shows those, though its questions have the same ids."""
    asked(desk, "names", {})
    store = desk.client.engine.store
    (question,) = store.open_interrupts()
    copied_settings = desk.settings.model_copy(
        update={"redis_url": desk.settings.redis_url.replace("db=0", "db=9")}
    )
    assert copied_settings.redis_url != desk.settings.redis_url
    with redis.Redis.from_url(desk.settings.redis_url) as raw:
        for key in raw.scan_iter():
            raw.copy(key, key, destination_db=9, replace=True)
    with redis.Redis.from_url(copied_settings.redis_url) as raw:
        for run in raw.scan_iter(_type="hash"):
            if stored := raw.hget(run, "requester"):
                raw.hset(run, "requester", stored.replace(b"cora", b"dora"))
    copied = open_store(copied_settings)

    shown = [read_questions(each, [question])[0].requester for each in (store, copied, store)]
    assert shown == ["human:|cora", "human:|dora", "human:|cora"]


@pytest.mark.slow
def test_pages_of_ones_own_are_full_and_repeat_nothing(desk):
    """Ana asked for three of the first fifty, and may not decide those: the page goes on behind them."""
    others = []
    for number in range(56):
        by_ana = number in {0, 20, 49}
        run = desk.start("payments", {"amount": 80}, requester="ana" if by_ana else "cora")
        others += [] if by_ana else [question.id for question in run.interrupts()]

    page = desk.page("/inbox?tab=mine")
    (cursor,) = re.findall(r'cursor=([^"&]+)"', page)
    pages = [rows(desk, "tab=mine"), rows(desk, f"tab=mine&cursor={cursor}")]

    assert [len(ids) for ids in pages] == [50, 3]
    assert [*pages[0], *pages[1]] == others


def test_a_list_says_how_much_money_waits(desk):
    """The sums of the amounts that its rows show, by currency, above them; a folded map shows none."""
    for currency, amount in (("EUR", "12.50"), ("EUR", "80"), ("USD", "9")):
        asked(desk, "transfers", {"currency": currency, "amount": amount, "iban": "DE1"})
    text = desk.page("/inbox?tab=mine")

    (sums,) = re.findall('<p class="hint">(.+) in these rows', text)
    assert re.sub("<[^>]+>", "", sums) == "92.50 EUR, 9.00 USD"
    assert "in these rows" not in desk.page("/inbox?tab=done")


def poll(site, query="tab=mine", etag=""):
    """The status of a page for a browser that has the page with an ETag, and the page's ETag."""
    reply = site.http.get(f"/inbox?{query}", headers={**HTML, "if-none-match": etag})
    return reply.status_code, reply.headers.get("etag", "")


def commands_of_poll(site):
    """The commands for a page that the browser has; another minute begins another page."""
    costs = []

    def is_unchanged():
        _, etag = poll(site)
        with redis.Redis.from_url(site.settings.redis_url) as raw:
            before = raw.info("stats")["total_commands_processed"]
            status, _ = poll(site, etag=etag)
            costs.append(raw.info("stats")["total_commands_processed"] - before)
        return status == 304

    wait_until(is_unchanged, "a page stays the same")
    return costs[-1]


def test_a_poll_of_an_unchanged_list_reads_no_row(desk):
    """What it costs does not depend on the questions: neither they nor their standings are read."""
    costs = [commands_of_poll(desk)]
    for number in (1, 9):
        for _ in range(number):
            asked(desk, "payments", {"amount": 80})
        costs.append(commands_of_poll(desk))

    assert costs[1:] == [costs[1]] * 2
    assert costs[0] <= costs[1] < 10
    assert poll(desk, "tab=all&text=pay")[1] == ""


CHANGES = {
    "asked": lambda site, _: asked(site, "payments", {"amount": 1}),
    "vote": lambda site, name: decided_by_ben(site, name, "approve"),
    "decision": lambda site, name: decided_by_ben(site, name, "reject"),
    "claim": lambda site, name: act(*who(site, "ben"), name, "claim", ttl=60),
    "delegation": lambda site, name: act(*who(site, "ben"), name, "delegate", to="eva"),
    "withdrawal": lambda site, name: site.client.run(name.partition(".")[0]).cancel("late"),
    "absence": lambda site, _: be_away(
        *who(site, "eva"), to="ana", until=round(time.time() * 1000) + 60_000
    ),
    "other person": lambda site, _: site.as_role("reader", "approver", name="eva"),
    "other group": lambda site, _: site.as_role("reader", "approver", groups=["legal"]),
    "fewer rights": lambda site, _: site.as_role("viewer", "approver", groups=["finance"]),
    "one graph": lambda site, _: site.as_role(
        "reader:payments", "approver:payments", groups=["finance"]
    ),
}


def who(site, name):
    """The services, and somebody of finance."""
    person = Person(
        Principal(name), frozenset({"reader", "approver"}), frozenset({"finance"}), 2
    )
    return site.app.state.services, person


def decided_by_ben(site, name, decision):
    """Vote on a question."""
    response = True if decision == "approve" else None
    return decide(*who(site, "ben"), Decision(name, response, decision=decision))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_poll_shows_each_change(desk, change):
    """A page that a browser has is never confirmed after a change, or to a person whose page it is not."""
    question = asked(desk, "payments", {"amount": 80})
    query = "tab=mine&graph=payments"
    _, etag = poll(desk, query)
    receipt = change(desk, question.id)

    assert getattr(receipt, "status", "") not in {"rejected", "forbidden"}
    assert poll(desk, query, etag)[0] == 200
    assert poll(desk, query.replace("mine", "all"), etag)[0] == 200


@pytest.mark.slow
def test_a_page_costs_the_same_among_more_questions(desk):
    """Commands and bytes of a full page don't grow with the questions; compressed it is small."""

    def cost(query):
        with redis.Redis.from_url(desk.settings.redis_url) as raw:
            before = raw.info("stats")
            text = desk.http.get(f"/inbox?{query}", headers=HTML).content
            after = raw.info("stats")
        assert text.count(b"<tr data-row") == 50, query
        assert len(gzip.compress(text)) < 60_000
        names = ("total_commands_processed", "total_net_output_bytes")
        return [after[name] - before[name] for name in names]

    queries = ["", "tab=mine", "tool=pay", "risk=low", "due=week", "graph=payments"]
    task = {"amount": 80, "risk": "low", "expires_in": 90_000.0}
    for _ in range(60):
        desk.start("payments", task, requester="cora")
    few = {
        query: cost(query) for query in queries if cost(query)
    }  # the first look reads what is kept
    for _ in range(240):
        desk.start("payments", task, requester="cora")
    for query, (commands, size) in few.items():
        more, larger = cost(query)
        assert more <= commands, query
        assert larger < size * 1.1, query


@pytest.mark.parametrize(
    "damage", [b"damage", b"\xff\xfe", b"\x011 2 0 " + COMPRESSED + b"\xff"]
)
def test_a_damaged_question_hides_no_other(site, damage):
    """Page, API and client list the others; its run says that it is damaged, and can be cancelled."""
    runs = [site.start("approval") for _ in range(3)]

    def listed():
        rows = site.page("/inbox?tab=all")
        items = site.http.get("/v1/questions").json()["items"]
        asked = {question.run_id for question in site.client.interrupts()}
        assert asked == {item["run_id"] for item in items}
        assert asked == {run.id for run in runs if f"{run.id}.approve" in rows}
        return asked

    assert listed() == {run.id for run in runs}
    with redis.Redis.from_url(site.settings.redis_url) as raw:
        (key,) = raw.keys(f"*r:{runs[1].id}")
        (field,) = (name for name in raw.hkeys(key) if name.startswith(b"i:"))
        raw.hset(key, field, damage)
    assert listed() == {runs[0].id, runs[2].id}
    assert site.http.get("/", headers={"Accept": "text/html"}).status_code == 200
    refused = site.http.get(f"/v1/runs/{runs[1].id}")
    assert (refused.status_code, "is damaged" in refused.json()["detail"]) == (500, True)
    assert runs[1].cancel("damaged")
    assert site.client.engine.store.peek(runs[1].id).status is Status.CANCELLED


def test_an_unchanged_row_is_rendered_once(desk):
    """A list that changed renders only the rows that did; who may see less gets rows of their own."""
    questions = [
        asked(desk, "transfers", {"amount": n, "currency": "EUR", "iban": "DE89"})
        for n in range(5)
    ]
    kept = rendering.TEMPLATES.globals["question_row"]

    def rendered(query="tab=all"):
        before = kept.cache_info().misses
        assert len(rows(desk, query)) == 5
        return kept.cache_info().misses - before

    rendered()
    act(*who(desk, "ana"), questions[2].id, "claim", ttl=60)

    assert [rendered(), rendered()] == [1, 0]
    assert "claimed by ana" in desk.page("/inbox?tab=all")
    desk.as_role("viewer", name="eva")
    assert rendered() == 5
    assert "DE89" not in desk.page("/inbox?tab=all")


def test_a_page_of_an_unchanged_list_reads_no_question_anew(desk):
    """Unchanged questions are the same objects in the next page; a claim and its release are seen at once."""
    for n in range(3):
        asked(desk, "transfers", {"amount": n, "currency": "EUR", "iban": "DE89"})
    store = desk.client.engine.store

    def listed():
        return read_questions(store, store.open_interrupts())

    first, second, last = listed()
    act(*who(desk, "ana"), second.id, "claim", ttl=60)
    again = listed()
    act(*who(desk, "ana"), second.id, "release")

    assert [again[0] is first, again[2] is last] == [True, True]
    assert [again[1].claim, listed()[1].claim] == ["human:|ana", ""]
    assert listed()[1] is second


def test_a_program_may_change_a_question_that_it_has_read(desk):
    """A call edited in place, as before a vote, changes neither what others read nor what is approved."""
    question = asked(desk, "transfers", {"amount": 5, "currency": "EUR", "iban": "DE89"})
    store = desk.client.engine.store
    list(store.open_interrupts())
    for read in (
        lambda: desk.client.interrupts()[0],
        lambda: desk.client.interrupt(question.id),
        lambda: desk.client.run(question.run_id).interrupts()[0],
    ):
        read().action["args"]["amount"] = 4
        assert read().action["args"]["amount"] == 5
    assert read_questions(store, store.open_interrupts())[0].action["args"]["amount"] == 5
    act(*who(desk, "ana"), question.id, "claim", ttl=60)
    desk.client.vote(question.id, "approve", by="ana", digest=question.digest)
    desk.work()
    assert desk.client.run(question.run_id).status is Status.COMPLETED


def test_a_list_keeps_no_large_question(desk):
    """A long contract or answer is in memory only while somebody looks at it; control: a short one stays."""
    long = Random(1).randbytes(9_000).hex()  # noqa: S311 - to repeat
    answered = asked(desk, "names", {})
    desk.client.respond(answered.id, long)
    asked(desk, "transfers", {"amount": 1, "currency": "EUR", "iban": "DE89"})
    asked(desk, "transfers", {"amount": 2, "currency": "EUR", "iban": long})
    store = desk.client.engine.store

    def looked_at():
        closed = store.open_interrupts(InterruptQuery(closed=True))
        found = [*store.open_interrupts(), *closed]
        amounts = map(amount_of, read_questions(store, found))
        assert [amount is None for amount in amounts] == [False, False, True]
        return list(map(ref, found))

    looks = looked_at()
    gc.collect()
    assert [look() is None for look in looks] == [False, True, True]
