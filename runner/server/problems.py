"""Errors for HTTP: problem documents of RFC 9457, or the same in words on pages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from runner import errors
from runner.records.codec import JSONObject
from runner.records.json_form import document

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

RETRY_AFTER = 5
"""Seconds after which a client may try again: the store can't be reached, or too many runs are open."""

DAMAGED = (
    "The stored data for this is damaged and can't be shown. Nothing was changed. The server's log says "
    "what is damaged. `runner runs cancel` still ends the run."
)

STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.NotFoundError, 404),
    (errors.PayloadTooLarge, 413),
    (errors.UsageError, 422),
    (errors.TooManyRuns, 429),
    (errors.ConflictError, 409),
    (errors.StoreError, 503),
)


class Problem(Exception):
    """A request that is refused; `more` are further members of the document, such as `errors`."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
        self.more = more

    def document(self) -> JSONObject:
        """Return the problem document."""
        title = HTTPStatus(self.status).phrase
        return {
            "type": "about:blank",
            "title": title,
            "status": self.status,
            "detail": self.detail,
            **document(self.more),
        }


def problem_of(error: BaseException) -> Problem:
    """Turn any error into a problem; if it isn't the caller's fault, the problem hides its details."""
    match error:
        case Problem():
            return error
        case RequestValidationError() if error.errors()[0]["type"] == "json_invalid":
            where = f"{pointer(error.errors()[0]['loc'])}: {error.errors()[0]['ctx']['error']}"
            return Problem(400, f"The body can't be read as JSON: {where}.")
        case RequestValidationError():
            faults = [
                {"pointer": pointer(item["loc"]), "detail": item["msg"]}
                for item in error.errors()
            ]
            detail = "; ".join(
                f"{fault['pointer'] or 'body'}: {fault['detail']}" for fault in faults
            )
            return Problem(422, detail, errors=faults)
        case HTTPException(status_code=404, detail="Not Found"):
            return Problem(404, "There is nothing at this address.")
        case HTTPException():
            return Problem(error.status_code, str(error.detail), headers=error.headers)
        case errors.CorruptDocument():
            log.error("request.damaged: %s", error)
            return Problem(500, DAMAGED)
    for kind, status in STATUSES:
        if isinstance(error, kind):
            headers = {"Retry-After": str(RETRY_AFTER)} if status in {429, 503} else {}
            detail = str(error)
            if status == 503:
                log.warning("request.unavailable: %s", error)
                detail = (type(error).__doc__ or "").strip()
            return Problem(status, detail, headers=headers)
    log.error("request.failed: %s", error, exc_info=error)
    return Problem(500, "The server failed. Nothing more is known here; its log has the error.")


def pointer(path: Iterable[int | str]) -> str:
    """Return a pointer to a place in the request: `/body/task`, `/query/limit`."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def respond(request: Request, error: Exception) -> Response:
    """Answer a request that failed: JSON for programs; pages have their own form."""
    problem = problem_of(error)
    if problem.status == 405:
        problem.headers["Allow"] = ", ".join(_methods(request))
    page = getattr(request.app.state, "error_page", None)
    login = getattr(getattr(request.app.state, "auth", None), "login_path", "")
    is_page = "text/html" in request.headers.get("accept", "")
    if login and is_page and problem.status == 401 and request.method == "GET":
        base = prefix(request)
        query = urlencode({"next": _path_below(request, base)})
        response: Response = RedirectResponse(f"{base}{login}?{query}", 303)
    elif page is not None and is_page:
        response = page(request, problem)
    else:
        response = JSONResponse(problem.document(), problem.status, media_type=MEDIA_TYPE)
    response.headers.update(problem.headers)
    return response


def _methods(request: Request) -> list[str]:
    """List the methods of an address: several routes may have it, each with its own method."""
    routes = request.app.router.routes
    return [
        method
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE")
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in routes
        )
    ]


def prefix(request: Request) -> str:
    """Return the path below which the application is mounted, without the last slash."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _path_below(request: Request, base: str) -> str:
    path = request.url.path.removeprefix(base) or "/"
    return f"{path}?{request.url.query}" if request.url.query else path
