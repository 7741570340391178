"""The endpoints of `examples.notify`, behind a webhook whose notices are sent as workers send them."""

from __future__ import annotations

import json
import socketserver
import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

import pytest

from examples.notify import mail
from examples.notify.__main__ import by_mail, by_slack
from examples.notify.endpoint import handler_for
from runner.approvals import Action, Rule
from runner.store.redis import connection
from runner.webhooks import delivery as module
from runner.webhooks.webhook import Webhook
from tests.endpoints import Endpoint
from tests.graphs import wired
from tests.waiting import wait_until
from tests.webhooks import Site

PAGES = "https://runner.example/ops/"


def ask(ctx):
    call = Action("shop", "function", "pay_back", {"order": 7, "to": "<!channel> & co"})
    ctx.interrupt(
        "refund",
        rule=Rule(
            eligible=["ana@example.com", "ben@example.com"], need=2, title="Refund {order}"
        ),
        action=call,
    )


@pytest.fixture
def site(redis_url, monkeypatch):
    """A store with a graph that asks for an approval."""
    monkeypatch.setattr(module, "LOOK", 0.02)
    monkeypatch.setattr(connection, "NOTICED_WITHIN", 0.01)
    return Site(redis_url, {"g": lambda: wired({"ask": ask}).build()})


@contextmanager
def listening(site, tell):
    """Have an endpoint of the example behind a webhook of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), None)
    made = site.admin.add(Webhook("h", f"http://127.0.0.1:{server.server_port}/"))
    server.RequestHandlerClass = handler_for(made.secret, tell)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        with site.served("h"):
            yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_slack_gets_the_call_and_a_button_to_the_page(site):
    """Nothing in the call mentions anybody; the button opens the question; a repeat posts nothing."""
    with (
        Endpoint() as slack,
        listening(site, by_slack({"RUNNER_PAGES": PAGES, "SLACK_URL": slack.url})),
    ):
        run_id = site.run()
        site.until("h", "delivered")
        (question,) = site.client.interrupts(run=run_id)
        (delivery,) = site.deliveries("h")
        site.admin.redeliver("h", delivery.id)
        site.until("h", "delivered")

    (request,) = slack.requests
    header, call, actions = json.loads(request.body)["blocks"]
    (button,) = actions["elements"]
    assert header["text"]["text"] == "Please decide: Refund 7"
    assert '"to": "&lt;!channel&gt; &amp; co"' in call["text"]["text"]
    assert button["url"] == f"https://runner.example/ops/q/{question.id}"


def test_slack_gets_what_an_approver_changed(site):
    """The new arguments, by whom, and a button to the question, so that the others decide on them."""
    with (
        Endpoint() as slack,
        listening(site, by_slack({"RUNNER_PAGES": PAGES, "SLACK_URL": slack.url})),
    ):
        run_id = site.run()
        (question,) = site.client.interrupts(run=run_id)
        site.client.vote(
            question.id, "edit", by="ana@example.com", response={"order": 8, "to": "x"}
        )
        wait_until(lambda: len(slack.requests) == 2, "both notices were posted")

    header, call, actions = json.loads(slack.requests[1].body)["blocks"]
    assert (
        header["text"]["text"] == "ana@example.com changed the call of ask: please decide again"
    )
    assert '"order": 8' in call["text"]["text"]
    assert actions["elements"][0]["url"] == f"https://runner.example/ops/q/{question.id}"


@pytest.mark.full
def test_a_notice_of_somebody_else_is_refused(site):
    """Signed by another secret it reaches nobody: 401."""
    told = []
    with listening(site, told.append) as server:
        server.RequestHandlerClass = handler_for("whsec_" + "A" * 44, told.append)
        site.run()
        site.until("h", "failed")

    assert (told, site.deliveries("h")[0].code) == ([], 401)


def test_a_title_adds_no_header():
    """An encoded word in a title stays one: no line of it is a header, and the control is a plain title."""
    for title in ("=?utf-8?q?=0ABcc:_eve@example.com?=", "Refund 7"):
        question = {"id": "q", "name": "n", "title": title, "reason": 1}
        notice = {"kind": "interrupt.asked", "question": question, "detail": "q", "run_id": "r"}
        sent = mail.message(notice, PAGES, "runner@example.com", "ops@example.com").as_string()
        assert "\nBcc:" not in sent
        assert "Please decide" in sent.splitlines()[0]


class MailServer(socketserver.StreamRequestHandler):
    """As much of SMTP as one message needs."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.mails.append(b"".join(lines).decode())
            self.wfile.write(
                b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 fine\r\n"
            )
            if line.upper().startswith(b"QUIT"):
                return


def test_a_mail_goes_to_those_who_may_decide(site):
    """With the call and the address of the page; a subject is one line."""
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        server.mails = []
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        host = f"127.0.0.1:{server.server_address[1]}"
        values = {
            "MAIL_HOST": host,
            "MAIL_FROM": "runner@example.com",
            "MAIL_TO": "ops@example.com",
        }
        with listening(site, by_mail({**values, "RUNNER_PAGES": PAGES})):
            run_id = site.run()
            site.until("h", "delivered")
        server.shutdown()
        thread.join()

    (sent,) = server.mails
    (question,) = site.client.interrupts(run=run_id)
    assert "Subject: Please decide: Refund 7" in sent
    assert "To: " in sent
    assert f"https://runner.example/ops/q/{question.id}" in sent.replace("=\r\n", "")
