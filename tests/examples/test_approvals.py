from __future__ import annotations

import http.client
import threading
import urllib.parse
from http.server import ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from examples.approvals.__main__ import handler_for
from examples.approvals.inbox import ANSWERED, NOTICES, Inbox
from examples.approvals.page import page
from runner.operations import recovery
from runner.store.redis.store import RedisStore
from tests.graphs import Bench, wired

ASKED = {
    "id": "run:1",
    "kind": "interrupt.asked",
    "detail": "q1",
    "run_id": "r",
    "node": "n",
    "question": '{"digest": "sha256:1"}',
}
CLOSED = {"id": "run:2", "kind": "interrupt.withdrawn", "detail": "q1", "question": ""}
AGAIN = {
    "id": "run:3",
    "kind": "interrupt.asked",
    "detail": "q1",
    "run_id": "r",
    "node": "n",
    "question": '{"digest": "sha256:2"}',
}
QUESTION = {
    "id": "q1",
    "name": "ok?",
    "node": "n",
    "run_id": "r",
    "reason": None,
    "digest": "sha256:1",
    "response_schema": None,
}


@pytest.fixture
def inbox(redis_url):
    return Inbox(redis_url)


def test_a_notice_that_comes_twice_opens_nothing_again(inbox):
    """Notices come at least once: a repeat of one that was closed changes nothing."""
    inbox.redis.xadd(NOTICES, ASKED)
    assert inbox.follow() == 1
    assert [question["id"] for question in inbox.questions()] == ["q1"]

    inbox.redis.xadd(NOTICES, CLOSED)
    inbox.redis.xadd(NOTICES, ASKED)
    assert inbox.follow() == 2
    assert list(inbox.questions()) == []
    assert inbox.redis.hexists(ANSWERED, "q1")


def test_a_question_that_is_asked_again_is_shown_again(inbox):
    """A question that was withdrawn and has its old id back, as after two migrations, is open."""
    for notice in (ASKED, CLOSED, AGAIN, CLOSED):
        inbox.redis.xadd(NOTICES, notice)
    inbox.follow()

    assert [question["digest"] for question in inbox.questions()] == ["sha256:2"]
    assert inbox.receipts() == {}


def test_a_question_is_shown_again_after_a_retry(inbox, redis_url):
    """A failure withdraws the question of another branch; the retry asks it again, and the page has it."""

    def fail_once(ctx):
        if ctx.attempt == 1:
            raise ValueError("no paper")

    nodes = {"ask": lambda ctx: ctx.interrupt("ok?"), "fail": fail_once}
    bench = Bench(wired(nodes).build(), lambda clock: RedisStore(redis_url, push=False)).start()
    bench.deliver("ask")
    bench.finish()
    inbox.follow()
    assert list(inbox.questions()) == []

    recovery.retry(bench.engine, bench.run_id)
    bench.finish()
    bench.store.close()
    inbox.follow()

    assert [question["name"] for question in inbox.questions()] == ["ok?"]


def test_what_a_dead_reader_left_is_taken_over(inbox, redis_url):
    """A notice that was read and not applied is not lost with its reader."""
    inbox.redis.xadd(NOTICES, ASKED)
    inbox.redis.xreadgroup("approvals", "gone", {NOTICES: ">"})
    inbox.redis.xclaim(
        NOTICES, "approvals", "gone", 0, [inbox.redis.xrange(NOTICES)[0][0]], idle=3_600_000
    )

    other = Inbox(redis_url)
    other.recover()
    assert [question["id"] for question in other.questions()] == ["q1"]


def test_the_page_hides_no_character():
    """A character that turns the text round or moves the cursor is written as its code."""
    shown = page(
        [{**QUESTION, "reason": "pay 1\u202e000"}],
        {"q0": {"status": "ok", "detail": "\x1b[2J"}},
    )

    assert "\u202e" not in shown
    assert "\\u202e" in shown
    assert "\x1b" not in shown


class RecordedAnswers:
    """An inbox with one question that keeps the answers it gets."""

    def __init__(self):
        self.answers = []

    def questions(self):
        return [QUESTION]

    def receipts(self):
        return {}

    def answer(self, *arguments):
        self.answers.append(arguments)


@pytest.fixture
def server():
    inbox = RecordedAnswers()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_for(inbox)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield SimpleNamespace(port=server.server_port, answers=inbox.answers)
        server.shutdown()


def request(server, method="GET", form=None, **headers):
    """Send a request, with Host and Origin as named, and return its status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = urllib.parse.urlencode(form) if form else None
    connection.request(method, "/answer", body, headers)
    status = connection.getresponse().status
    connection.close()
    return status


FORM = {"id": "q1", "digest": "sha256:1", "response": "true", "responder": "ana"}


def test_an_answer_carries_the_digest_of_what_was_shown(server):
    """The digest is in the form, so what was approved is what was on the page."""
    assert 'name="digest" value="sha256:1"' in page([QUESTION], {})
    assert request(server, "POST", FORM, Origin=f"http://127.0.0.1:{server.port}") == 303
    assert server.answers == [("q1", True, "ana", "sha256:1")]
    assert request(server, "POST", {**FORM, "digest": ""}) == 400


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://["]
)
def test_a_page_of_another_site_answers_nothing(server, origin):
    """A form that another site's page posts is refused."""
    assert request(server, "POST", FORM, Origin=origin) == 403
    assert server.answers == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "", "["])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_name_of_this_machine_is_not_served(server, host, method):
    """A name that was made to resolve to this machine reads nothing and answers nothing."""
    assert request(server, method, FORM if method == "POST" else None, Host=host) == 403
    assert server.answers == []


def test_the_page_shows_what_was_asked_and_runs_none_of_it():
    """Text of agents and users is text on the page, whatever it holds."""
    asked = {
        "id": "q1",
        "name": "<script>alert(1)</script>",
        "node": "n",
        "run_id": "r",
        "reason": {"note": "</pre><script>"},
        "digest": "sha256:1",
        "response_schema": {"properties": {"decision": {"enum": ["approve", "reject"]}}},
    }
    shown = page([asked], {})

    assert "<script>" not in shown
    assert "&quot;decision&quot;: &quot;approve&quot;" in shown
