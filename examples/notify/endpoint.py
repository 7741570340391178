"""The endpoint: checks who sent a notice, and hands it to what tells people.

What it answers decides what the runner does: by 2xx the delivery is done, after anything else it comes again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from standardwebhooks import Webhook, WebhookVerificationError

log = logging.getLogger(__name__)

ASKING = ("interrupt.asked", "interrupt.reminded")
MOST = 1_000_000
"""Bytes of a notice that are taken."""

REMEMBERED = 10_000
"""Messages whose ids are remembered: one may come twice."""


def handler_for(
    secret: str, tell: Callable[[Mapping[str, Any]], None]
) -> type[BaseHTTPRequestHandler]:
    """Return a handler class that passes notices of open questions, and of edits, to `tell`, each once."""
    told: OrderedDict[str, None] = OrderedDict()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MOST:
                self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                return
            body = self.rfile.read(int(length))
            try:
                notice = Webhook(secret).verify(body, dict(self.headers))
            except (WebhookVerificationError, ValueError) as error:
                log.warning("refused: %s", error)
                self._answer(HTTPStatus.UNAUTHORIZED)
                return
            self._answer(self._pass_on(self.headers["webhook-id"], notice))

        def _pass_on(self, message_id: str, notice: Mapping[str, Any]) -> HTTPStatus:
            is_edit = (notice.get("data") or {}).get("decision") == "edit"
            if not (notice["kind"] in ASKING or is_edit) or message_id in told:
                return HTTPStatus.NO_CONTENT
            try:
                tell(notice)
            except OSError as error:  # also what urllib and smtplib raise
                log.warning("not told, so it comes again: %s", error)
                return HTTPStatus.BAD_GATEWAY
            told[message_id] = None
            if len(told) > REMEMBERED:
                told.popitem(last=False)
            return HTTPStatus.NO_CONTENT

        def _answer(self, status: HTTPStatus) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, form: str, *values: Any) -> None:
            log.debug(form, *values)

    return Handler
