"""Safety of pages in a browser: the headers of each response, and checks of who sends a form.

A request that changes something must come from a page of this origin, as the browser states, and carry the
form token of the logged-in person. A program other than a browser sends neither `Origin` nor
`Sec-Fetch-Site`; it sends JSON, which a form of another site can't.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

import pydantic_core
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.errors import CorruptDocument
from runner.records import codec
from runner.server.access import Person, caller
from runner.server.auth import same
from runner.server.problems import Problem, respond

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
        "trusted-types runner"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    # Other sites get no referrer. With "no-referrer", browsers send "Origin: null" with this site's forms.
    "referrer-policy": "same-origin",
}

OF_UNKNOWN = 65_536
"""Bytes of a body that are read before the caller is known."""

MOST_UNKNOWN = "runner.most_unknown"
"""The name in a request's scope where a route that checks signatures puts a higher number."""

SHARED: dict[str, Any] = {
    "allow_methods": ["GET", "POST", "DELETE"],
    "allow_headers": [
        "authorization",
        "content-type",
        "if-match",
        "idempotency-key",
        "last-event-id",
    ],
    "expose_headers": ["etag", "location", "retry-after"],
}
"""Methods and headers for pages of RUNNER_CORS_ORIGINS, which never send the cookies of this origin."""

JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

TOKEN, TOKEN_HEADER = "form_token", "x-form-token"

TOKEN_AGE = 12 * 3600
"""Seconds for which an open page can send its form."""


class SecurityHeaders:
    """Middleware that adds the headers to each response, and by default forbids caches to store it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


TWO_LENGTHS = {b"content-length", b"transfer-encoding"}


class BodyLimit:
    """Middleware that refuses request bodies too large to be stored, before they are in memory.

    A body is read before the route identifies the caller, so an unknown caller's body is limited to
    `OF_UNKNOWN` bytes, or the number that the route has put into the scope as `MOST_UNKNOWN`. A request
    that gives its length in two ways is refused, and its connection closed: a proxy may have seen another
    end of it (request smuggling).
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        """`most` is in bytes."""
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        received_bytes = 0
        if {name for name, _ in scope.get("headers", ())} >= TWO_LENGTHS:
            detail = "A request has a Content-Length or a Transfer-Encoding, not both. Nothing was done."
            problem = Problem(400, detail, headers={"Connection": "close"})
            await respond(Request(scope), problem)(scope, receive, send)
            return

        async def bounded() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._most:
                raise HTTPException(
                    413, f"The body has more than {self._most:,} bytes; nothing was done."
                )
            if received_bytes > scope.get(MOST_UNKNOWN, OF_UNKNOWN):
                await _check_known(Request(scope))
            return message

        await self._app(scope, bounded if scope["type"] == "http" else receive, send)


async def _check_known(request: Request) -> None:
    # FastAPI answers 400 to any other exception while it reads a body.
    try:
        person = await caller(request)
    except Problem as problem:
        raise HTTPException(problem.status, problem.detail) from problem
    if person is None:
        raise HTTPException(401, "Log in to send this much.")


class FormTokens:
    """Tokens that prove that a form is from a page that this server made for the same person."""

    def __init__(self, secret: str = "") -> None:
        """With several processes all need the same `secret`; without one each makes its own."""
        self._secret = (secret or secrets.token_hex(32)).encode()

    def issue(
        self, person: Person | None, now: float | None = None, about: str | None = None
    ) -> str:
        """Make the token of a page, or of an item that it shows, such as a question by its digest."""
        time_text = f"{int(time.time() if now is None else now):x}"
        return f"{time_text}.{self._mac(person, time_text, about)}"

    def holds(self, token: str, person: Person | None, now: float | None = None) -> bool:
        """Return whether a token is this person's, and not too old."""
        issued_at = self.issued_at(token, person)
        return (
            bool(issued_at)
            and -60 <= (time.time() if now is None else now) - issued_at <= TOKEN_AGE
        )

    def issued_at(self, token: str, person: Person | None, about: str | None = None) -> int:
        """Return when a token was issued, in seconds since 1970; 0 if it isn't this person's."""
        time_text, _, mac = token.partition(".")
        return int(time_text, 16) if same(mac, self._mac(person, time_text, about)) else 0

    def _mac(self, person: Person | None, time_text: str, about: str | None) -> str:
        domain = "form" if about is None else "shown"
        text = f"{domain}\n{person.principal.key if person else ''}\n{time_text}\n{about or ''}"
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()


def content_type(request: Request) -> str:
    """Return the type of a body; it is JSON unless the request names another type."""
    return request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()


async def check_json(request: Request) -> None:
    """Refuse a JSON body that other readers read differently or can't read: a key twice, UTF-16, too deep.

    The numbers of decisions and grants are refused if a float would round them.

    Raises:
        Problem: the body is like that.
    """
    body = await request.body() if content_type(request).endswith("json") else b""
    path = request.scope["route"].path
    number = [codec.exact] * path.startswith(("/v1/questions", "/v1/grants"))
    try:
        _ = body and (codec.load_json(body, *number), pydantic_core.from_json(body))
    except (CorruptDocument, ValueError) as error:
        raise Problem(400, f"The body can't be read: {error}. Nothing was done.") from error


def check_origin(request: Request) -> bool:
    """Return whether a request that changes something comes from a browser's page of this origin.

    False means that it does not come from a browser, and sends JSON.

    Raises:
        Problem: it comes from a page elsewhere, or not from a browser and is not JSON.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is None and origin is None:
        kind = content_type(request)
        if kind.startswith("application/") and kind not in {JSON_TYPE, FORM_TYPE}:
            raise Problem(415, f"Send application/json, not {kind:.80}.")
        if kind != JSON_TYPE:
            raise Problem(403, "Send JSON, or a form from a page of this server.")
        return False
    # A cookie is sent to every port of a name, and "same-site" includes sibling names: neither is ours.
    if site not in {None, "same-origin"} or (
        origin is not None and not _is_ours(request, origin)
    ):
        raise Problem(403, "The request comes from a page of another site; nothing was done.")
    return True


def _is_ours(request: Request, origin: str) -> bool:
    """Return whether an origin is RUNNER_SERVER_URL's, or has the host that the request names."""
    ours = urlsplit(request.app.state.services.settings.server_url)
    address = urlsplit(origin)
    is_public = bool(ours.netloc) and address[:2] == ours[:2]
    return is_public or address.netloc == request.headers.get("host")


def origin_of(request: Request) -> str:
    """Return the origin at which people open the pages: RUNNER_SERVER_URL's, or else the request's."""
    address = urlsplit(request.app.state.services.settings.server_url or str(request.base_url))
    return f"{address.scheme}://{address.netloc}"


async def check_form(request: Request, person: Person | None, *, is_open: bool) -> None:
    """Refuse a browser's request that changes something without the token of its page.

    The page of a route that `is_open` needs no login.

    Raises:
        Problem: it comes from elsewhere, or lacks the token.
    """
    if request.headers.get("authorization", "").lower().startswith("bearer "):
        return  # a browser adds the other schemes by itself, and never this one
    if not check_origin(request):
        return
    token = request.headers.get(TOKEN_HEADER, "")
    if not token and "form" in request.headers.get("content-type", ""):
        token = str((await request.form()).get(TOKEN, ""))
    if not request.app.state.form_tokens.holds(token, person):
        raise Problem(
            403 if person or is_open else 401,
            "The page is too old. Go back, load it again and repeat what you typed; nothing was done."
            if is_open
            else "The page is too old, or you are logged out. Log in, then go back to what you typed.",
        )
