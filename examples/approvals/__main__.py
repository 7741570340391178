"""An approval service: `python -m examples.approvals [--port 8000]`, then open the page it names.

It reads notices and receipts on a thread and shows the open questions on a page. It keeps nothing in
memory, so it may be stopped and started at any time. Where RUNNER_BROKER_URL is RabbitMQ's it reads and
answers there, and keeps what is open in the file that APPROVALS_DB names.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from examples.approvals.inbox import Inbox
from examples.approvals.page import page
from examples.approvals.rabbit import RabbitInbox

RECOVER = 60.0
"""Seconds between two looks at what other readers have left behind."""


def handler_for(inbox: Inbox | RabbitInbox) -> type[BaseHTTPRequestHandler]:
    """Make the class that answers requests with this inbox."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(HTTPStatus.OK, page(inbox.questions(), inbox.receipts()))

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            form = {name: values[0] for name, values in parse_qs(self.rfile.read(length).decode()).items()}
            try:
                response = json.loads(form.get("response", ""))
            except ValueError:
                self._send(HTTPStatus.BAD_REQUEST, 'The answer is no JSON. Text needs quotes: "yes"')
                return
            inbox.answer(form["id"], response, form["responder"])
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", "/")
            self.end_headers()

        def _send(self, status: HTTPStatus, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing of every request."""

    return Handler


def follow(inbox: Inbox | RabbitInbox) -> None:
    """Read for ever; while the store or RabbitMQ is away, try again every second."""
    while True:
        try:
            inbox.recover()
            due = time.monotonic() + RECOVER
            while time.monotonic() < due:
                inbox.follow()
        except inbox.broken as error:
            print(f"Nothing can be read ({error}); trying again.", file=sys.stderr, flush=True)
            time.sleep(1)


def open_inbox() -> Inbox | RabbitInbox:
    """Open the inbox that fits the installation: on RabbitMQ where it is the broker, else on Redis."""
    broker = os.environ.get("RUNNER_BROKER_URL", "")
    if broker.startswith("amqp"):
        return RabbitInbox(broker, os.environ.get("APPROVALS_DB", "approvals.db"))
    return Inbox(os.environ.get("RUNNER_REDIS_URL", "redis://127.0.0.1:6379/0"))


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m examples.approvals", description=__doc__)
    options.add_argument("--port", type=int, default=8000)
    host = os.environ.get("APPROVALS_HOST", "127.0.0.1")
    options.add_argument("--host", default=host, help="0.0.0.0 shows it to everybody who gets here")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    inbox = open_inbox()
    threading.Thread(target=follow, args=(inbox,), daemon=True).start()
    with ThreadingHTTPServer((given.host, given.port), handler_for(inbox)) as server:
        print(f"approvals: http://{given.host}:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("approvals: stopped", flush=True)


if __name__ == "__main__":
    main()
