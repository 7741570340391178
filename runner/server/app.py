"""The application: the routes with their permissions, errors and headers, for any ASGI server."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, cast

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from runner.errors import MissingExtra, RunnerError, UsageError
from runner.records.codec import JSONObject
from runner.server import api, pages
from runner.server.access import OPEN, SIGNED, Allow, caller
from runner.server.auth import Local
from runner.server.browser import (
    SAFE,
    SHARED,
    BodyLimit,
    FormTokens,
    SecurityHeaders,
    check_form,
    check_json,
)
from runner.server.openapi import complete
from runner.server.pages.rendering import error_page
from runner.server.problems import Problem, respond
from runner.server.server_processes import listed
from runner.server.services import Services
from runner.server.slots import Slots
from runner.settings import Settings

log = logging.getLogger(__name__)

ROUTERS = (*api.ROUTERS, *pages.ROUTERS)

DOORS = ("agui", "mail", "mcp", "slack")

MARGIN = 1_048_576
"""Bytes that a body may have in addition to the stored value."""

DESCRIPTION = """Runs, their questions and everything they wait for, over HTTP.

Errors are problem documents (RFC 9457). Lists have `items` and `next`, the cursor of the next page or null.
"""


class Application(FastAPI):
    """The application; its OpenAPI document also describes the routes' answers."""

    def openapi(self) -> JSONObject:
        """Return the document, which is made on the first call."""
        if not self.openapi_schema:
            self.openapi_schema = complete(super().openapi(), routes())
        return self.openapi_schema


def create_app(
    settings: Settings | None = None,
    auth: Callable[[Request], Any] | None = None,
    title: str = "Runner",
    doors: Sequence[str] = (),
) -> FastAPI:
    """Make the ASGI application of the API and the pages; it can be mounted below any path.

    `auth` identifies the caller: an object of `runner.server.auth`, or a callable, possibly async, that takes
    the request and returns a `Person`, or None for an unknown caller. Without it, anyone on this machine with
    the token logged here may do everything, and no one else anything (`Local`). `doors` are other protocols
    to serve: "agui", "mail", "mcp", "slack", or MODULE:OBJECT, which takes the `Services` and returns an
    `APIRouter`.

    Raises:
        UsageError: a setting can't be used, or there is no such door. MissingExtra: a door needs an extra.
    """
    settings = settings or Settings()
    app = Application(
        title=title,
        description=DESCRIPTION,
        version=version("celery-graph-runner"),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(_checked_request)],
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
        lifespan=listed,
    )
    app.state.services = Services(settings)
    if auth is None:
        auth = Local(secret=settings.server_secret)
        log.warning("server.login: Log in at /login?token=%s; `auth` is not set.", auth.token)
    app.state.auth = auth
    app.state.form_tokens = FormTokens(settings.server_secret)
    app.state.error_page = error_page
    app.add_middleware(Slots)
    app.add_middleware(BodyLimit, most=settings.max_result + MARGIN)
    app.add_middleware(SecurityHeaders)
    if settings.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings.cors_origins, **SHARED)
    for kind in (
        Problem,
        RunnerError,
        RequestValidationError,
        HTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, respond)
    auth_router = getattr(auth, "router", None)
    if auth_router is not None:
        _include(app.router, auth_router)
    app.router.routes += _ROUTER.routes
    for name in doors:
        router = imported(_door_object(name), "door")(app.state.services)
        if not isinstance(router, APIRouter):
            raise UsageError(f"--door {name!r} returns {router!r:.80} instead of an APIRouter.")
        _include(app.router, router)
    return app


def _door_object(name: str) -> str:
    if ":" not in name and name not in DOORS:
        names = ", ".join(DOORS)
        raise UsageError(f"--door {name!r} is not one of {names}, or MODULE:OBJECT.")
    return name if ":" in name else f"runner.doors.{name}:router"


def imported(name: str, option: str) -> Callable[..., Any]:
    """Return the object that an option names as MODULE:OBJECT.

    Raises:
        UsageError: it can't be imported, or can't be called.
    """
    module, colon, attribute = name.partition(":")
    try:
        value = getattr(importlib.import_module(module), attribute) if colon else None
    except MissingExtra:
        raise
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--{option} {name!r} can't be imported: {error}.") from error
    if not callable(value) or isinstance(value, type):
        raise UsageError(
            f"--{option} {name!r} is not a function or another object that can be called."
        )
    return cast("Callable[..., Any]", value)


def _operation_id(route: APIRoute) -> str:
    """Return the name that generated clients give a route of a door: its module and its function."""
    return f"{route.endpoint.__module__.rpartition('.')[2]}_{route.name}"


def _tagged_id(route: APIRoute) -> str:
    """Return the name that generated clients give a route: its tag and its name, as in runs_start."""
    tag = str(route.tags[0]).split()[0] if route.tags else ""
    return f"{tag}_{route.name}"


async def _checked_request(request: Request) -> None:
    route = request.scope["route"]
    if route.path.startswith("/v1/") and request.query_params:
        names = {"graph", *_parameters(route.dependant)}
        if unknown := sorted({*request.query_params} - names):
            if permission := permission_of(route):
                await permission(request)
            raise Problem(422, f"There is no parameter {unknown[0]!r:.80} here.")
    if request.method not in SAFE and (permission := permission_of(route)) is not SIGNED:
        await check_form(request, await caller(request), is_open=permission is OPEN)
        await check_json(request)


def _parameters(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the query parameters of a route."""
    yield from (field.alias for field in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _parameters(dependency)


def permission_of(route: APIRoute) -> Allow | None:
    """Return the permission that a route names; None if it names none."""
    return next(
        (
            dependency.call
            for dependency in route.dependant.dependencies
            if isinstance(dependency.call, Allow)
        ),
        None,
    )


def routes(routers: Iterable[APIRouter] | None = None) -> Iterator[APIRoute]:
    """List the routes that answer with data or pages."""
    return (
        route
        for router in routers or ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
    )


def _include(target: APIRouter, router: APIRouter) -> None:
    target.include_router(router)
    for route in routes((router,)):
        if permission_of(route) is None:
            raise UsageError(
                f"the route {route.path} names no permission, so no caller may be let in; a route that "
                "checks senders itself has dependencies=[Depends(runner.server.SIGNED)]."
            )


_ROUTER = APIRouter(
    dependencies=[Depends(_checked_request)], generate_unique_id_function=_tagged_id
)
"""The routes of every application, made once: FastAPI is slow to make them from the routers."""

for _each in ROUTERS:
    _include(_ROUTER, _each)
