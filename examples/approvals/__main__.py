"""An approval service: `python -m examples.approvals [--port 8000]`, then open the page it names.

It reads notices and receipts on a thread and shows the open questions on a page. It holds no state in
memory, so it may be stopped and started at any time. If RUNNER_BROKER_URL is a RabbitMQ, it reads and
answers there, and keeps the open questions in the file that APPROVALS_DB names.

It serves this machine's names only: behind a proxy, set APPROVALS_HOSTS to the others, separated by commas.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from examples.approvals.inbox import Inbox
from examples.approvals.page import page
from examples.approvals.rabbit import RabbitInbox

LOCAL = ("localhost", "127.0.0.1", "::1")
MAX_FORM = 1_000_000
"""Bytes of a form."""

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
)
"""The page runs no script, loads nothing, and can't be put into another page's frame."""

RECOVER = 60.0
"""Seconds between two checks for entries that dead readers have not acknowledged."""


def handler_for(
    inbox: Inbox | RabbitInbox, hosts: Collection[str] = LOCAL
) -> type[BaseHTTPRequestHandler]:
    """Return a handler class that serves this inbox under these names."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self._is_ours():
                self._send(HTTPStatus.OK, page(inbox.questions(), inbox.receipts()))

        def do_POST(self) -> None:
            if not self._is_ours():
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MAX_FORM:
                self._send(HTTPStatus.BAD_REQUEST, "The form has no length, or is too large.")
                return
            body = self.rfile.read(int(length)).decode(errors="replace")
            form = {name: values[0] for name, values in parse_qs(body).items()}
            missing = [name for name in ("id", "digest", "responder") if name not in form]
            if missing:
                self._send(HTTPStatus.BAD_REQUEST, f"The form has no {missing[0]}.")
                return
            try:
                response = json.loads(form.get("response", ""))
            except ValueError:
                self._send(
                    HTTPStatus.BAD_REQUEST,
                    'The answer is not valid JSON. Text needs quotes: "yes"',
                )
                return
            inbox.answer(form["id"], response, form["responder"], form["digest"])
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", "/")
            self.end_headers()

        def _is_ours(self) -> bool:
            """Refuse requests that another site's page sends through the browser of a person here.

            Such a page may have a name that was made to resolve to this machine: the Host tells. Or it
            posts a form to this address: the Origin tells, which browsers send with every form.
            """
            host = self.headers.get("Host", "")
            origin = self.headers.get("Origin", f"http://{host}")
            try:
                name, source = urlsplit(f"//{host}").hostname, urlsplit(origin).netloc
            except ValueError:
                name, source = None, ""
            if name not in hosts:
                self._send(
                    HTTPStatus.FORBIDDEN, "This name is not served here; see APPROVALS_HOSTS."
                )
            elif source != host:
                self._send(HTTPStatus.FORBIDDEN, "The request comes from another site.")
            else:
                return True
            return False

        def _send(self, status: HTTPStatus, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Don't log requests."""

    return Handler


def follow(inbox: Inbox | RabbitInbox) -> None:
    """Read for ever; while the store or RabbitMQ is unavailable, retry every second."""
    while True:
        try:
            inbox.recover()
            due = time.monotonic() + RECOVER
            while time.monotonic() < due:
                inbox.follow()
        except inbox.broken as error:
            print(
                f"Reading failed ({error}); retrying in a second.", file=sys.stderr, flush=True
            )
            time.sleep(1)


def open_inbox() -> Inbox | RabbitInbox:
    """Open the inbox for the configured broker: RabbitMQ or Redis."""
    broker = os.environ.get("RUNNER_BROKER_URL", "")
    if broker.startswith("amqp"):
        return RabbitInbox(broker, os.environ.get("APPROVALS_DB", "approvals.db"))
    return Inbox(os.environ.get("RUNNER_REDIS_URL", "redis://127.0.0.1:6379/0"))


def main() -> None:
    """Serve until Ctrl-C or SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m examples.approvals", description=__doc__)
    options.add_argument("--port", type=int, default=8000)
    host = os.environ.get("APPROVALS_HOST", "127.0.0.1")
    options.add_argument("--host", default=host, help="0.0.0.0 listens on all interfaces")
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    inbox = open_inbox()
    hosts = {
        *LOCAL,
        arguments.host,
        *filter(None, os.environ.get("APPROVALS_HOSTS", "").lower().split(",")),
    }
    threading.Thread(target=follow, args=(inbox,), daemon=True).start()
    with ThreadingHTTPServer(
        (arguments.host, arguments.port), handler_for(inbox, hosts)
    ) as server:
        print(f"approvals: http://{arguments.host}:{server.server_port}/", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("approvals: stopped", flush=True)


if __name__ == "__main__":
    main()
