"""Authorization: the roles of callers, and the permission that every route names.

`app.create_app` refuses a route that names no permission. A route refuses a caller whom `auth` does not
know, unless it is open to all.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from typing import Annotated, Literal, cast

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from runner.approvals.rules import Principal, Voter
from runner.errors import UsageError
from runner.immutable import immutable
from runner.records.codec import JSONObject
from runner.records.run import outermost
from runner.server.problems import Problem, prefix

Permission = Literal["open", "see", "read", "decide", "operate", "administer"]

GRANTS: dict[str, frozenset[Permission]] = {
    "viewer": frozenset({"see"}),
    "reader": frozenset({"see", "read"}),
    "approver": frozenset({"see", "read", "decide"}),
    "operator": frozenset({"see", "operate"}),
    "admin": frozenset({"see", "administer"}),
}
"""Permissions of each role: see all but payloads, read payloads, decide, change runs, administer."""


def split_role(text: str) -> tuple[str, str]:
    """Return a role and the graph that it is limited to, "" for all: "approver:payments" has both.

    Raises:
        UsageError: the text isn't a role, or the role can't be limited to a graph.
    """
    role, colon, graph = text.partition(":")
    if role not in GRANTS or (colon and (not graph or role == "admin")):
        raise UsageError(
            f"{text!r:.200} is not a role; the roles are {', '.join(GRANTS)}; all but admin take ROLE:GRAPH."
        )
    return role, graph


@immutable
class Person:
    """A caller: a principal, with facts from its login.

    `roles` are the server's (see `GRANTS`) and those that approval rules name; "approver:payments" is
    limited to runs of the graph `payments`. `level` is how certain the caller's identity is (see
    docs/how-to/approvals.md), `login_at` is the time of the login (seconds since 1970). `graph` is the only
    graph that the person may work with here, "" for all.
    """

    principal: Principal
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    level: int = 0
    login_at: float | None = None
    acr: str | None = None
    graph: str = ""

    @property
    def graphs(self) -> list[str]:
        """The graphs that some of the roles are limited to."""
        pairs = (role.partition(":") for role in self.roles)
        return sorted({graph for role, _, graph in pairs if role in GRANTS and graph})

    def within(self, graph: str) -> Person:
        """Return the person with the roles that they have for runs of an outermost graph."""
        scoped = {role for role in self.roles if role.partition(":")[2] in self.graphs}
        of_graph = {
            role.partition(":")[0] for role in scoped if role.partition(":")[2] == graph
        }
        return replace(self, roles=self.roles - scoped | of_graph)

    @property
    def permissions(self) -> frozenset[Permission]:
        """All permissions that the roles grant."""
        return frozenset(grant for role in self.roles for grant in GRANTS.get(role, ()))

    def may(self, permission: Permission) -> bool:
        """Return whether a role grants the permission."""
        return permission == "open" or permission in self.permissions

    def voter(self, now: float) -> Voter:
        """Return the person as approval rules see them, at a time in seconds since 1970."""
        age = None if self.login_at is None else max(0.0, now - self.login_at)
        return Voter(self.principal, self.groups, self.roles, self.level, age, self.acr)


async def caller(request: Request) -> Person | None:
    """Return the caller; `auth` is asked once per request."""
    if not hasattr(request.state, "person"):
        request.state.person = await asked(request)
    return cast("Person | None", request.state.person)


async def asked(request: Request) -> Person | None:
    """Return the caller according to `auth` now.

    Raises:
        Problem: the name has characters that are invisible, or look like others.
    """
    answer = cast("Callable[[Request], object]", request.app.state.auth)(request)
    person = cast("Person | None", await answer if inspect.isawaitable(answer) else answer)
    try:
        _ = person and Principal.read(person.principal.key)
    except UsageError as error:
        raise Problem(403, f"The login can't be used: {error}") from error
    return person


Graphs = Callable[[Request], Awaitable[Collection[str]]]
"""A function that returns the outermost graphs of a request."""


async def graphs_of(request: Request, names: Iterable[str]) -> Collection[str]:
    """Return the outermost graphs of runs, or questions, by their ids."""
    services = request.app.state.services

    def read() -> Collection[str]:
        return {services.graph_of(name) for name in names}

    return await run_in_threadpool(read)


async def in_path(request: Request) -> Collection[str]:
    """Return the graph in the path, or the graph of the run or question in the path."""
    path = request.path_params
    if "graph" in path:
        return {path["graph"]}
    ids = [path[name] for name in ("run_id", "question_id") if name in path]
    return await graphs_of(request, ids)


async def in_query(request: Request) -> Collection[str]:
    """Return the graph that filters a listing."""
    name = request.query_params.get("graph", "")
    return {outermost(name)} if name else ()


async def of_runs(request: Request) -> Collection[str]:
    """Return the graphs of a stream's runs, or the graph that filters it."""
    ids = request.query_params.getlist("run")
    return await graphs_of(request, ids) if ids else await in_query(request)


async def in_body(request: Request) -> Collection[str]:
    """Return the graph that a start, or the filter of a batch, names."""
    body = await _json(request)
    named = body.get("filter", body)
    if not isinstance(named, dict) or named.get("run_ids") is not None:
        return ()
    return {str(named["graph"])} if named.get("graph") else ()


async def of_questions(request: Request) -> Collection[str]:
    """Return the graphs of the questions that are shown or decided together."""
    query = request.query_params
    if request.method in {"GET", "HEAD"}:
        ids = [*query.getlist("q"), *query.getlist("like")]
    elif "form" in request.headers.get("content-type", ""):
        ids = [str(name) for name in (await request.form()).getlist("q")]
    else:
        ids = list((await _json(request)).get("digests") or ())
    return await graphs_of(request, ids)


def _name_graph(request: Request, graph: str) -> None:
    """Put a graph into the query of a request, as its sender might, so that no route can forget it."""
    request.scope["query_string"] = request.url.include_query_params(graph=graph).query.encode()
    for name in ("_query_params", "_url"):  # cached when the route's dependencies read them
        vars(request).pop(name, None)


async def _json(request: Request) -> JSONObject:
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


class Allow:
    """The permission of a route, as a dependency that returns the caller.

    A role limited to a graph counts if `graphs` returns only that graph for the request. A listing that
    names no graph is limited to the caller's graph, if their roles are limited to a single one. With
    `mixed`, such roles count for all graphs: the route itself leaves out items that a person may not see.
    """

    def __init__(
        self, permission: Permission, graphs: Graphs = in_path, *, mixed: bool = False
    ) -> None:
        self.permission: Permission = permission
        self._graphs, self._mixed = graphs, mixed

    async def __call__(self, request: Request) -> Person | None:
        """Return the caller, with their roles for the graph of the request.

        Raises:
            Problem: the caller is not known, or lacks the permission.
        """
        if self.permission == "open":
            return None
        person = await caller(request)
        if person is None:
            raise Problem(401, "Log in to do this.")
        if not person.graphs:
            if not person.may(self.permission):
                raise self._refusal(person)
            return person
        candidates = [
            name for name in person.graphs if person.within(name).may(self.permission)
        ]
        if self._mixed and (candidates or person.may(self.permission)):
            return person
        graphs = await self._graphs(request)
        is_page = "text/html" in request.headers.get("accept", "")
        lists = self._graphs in {in_query, of_runs}
        if (
            lists
            and len(candidates) == 1
            and not (graphs or is_page or person.may(self.permission))
        ):
            graphs = candidates
            _name_graph(request, candidates[0])
        if len(graphs) == 1:
            (graph,) = graphs
            limited = person.within(graph)
            if limited.may(self.permission):
                return limited if person.may(self.permission) else replace(limited, graph=graph)
        elif person.may(self.permission):
            return person
        if candidates and not graphs and is_page:
            address = request.url
            if address.path == f"{prefix(request)}/":  # the home page shows all graphs
                raise Problem(307, "", headers={"Location": f"{prefix(request)}/inbox"})
            if self._graphs is in_query:
                query = address.include_query_params(graph=candidates[0]).query
                raise Problem(307, "", headers={"Location": f"{address.path}?{query}"})
        raise self._refusal(person)

    def _refusal(self, person: Person) -> Problem:
        roles = ", ".join(role for role, grants in GRANTS.items() if self.permission in grants)
        limits = (
            f", for the graph; yours are for {', '.join(person.graphs)}"
            if person.graphs
            else ""
        )
        return Problem(403, f"This needs one of the roles: {roles}{limits}.")


OPEN = Allow("open")
SEE = Allow("see")
READ = Allow("read")
DECIDE = Allow("decide")
OPERATE = Allow("operate")
ADMINISTER = Allow("administer")

SIGNED = Allow("open")
"""For calls of another service on behalf of people: the route itself checks each request's signature."""

Seen = Annotated[Person, Depends(SEE)]
Reads = Annotated[Person, Depends(READ)]
Decides = Annotated[Person, Depends(DECIDE)]
Operates = Annotated[Person, Depends(OPERATE)]
Administers = Annotated[Person, Depends(ADMINISTER)]
"""The caller of a route, by the permission it needs; if the path names a run or question, for its graph."""

Known = Annotated[Person, Depends(Allow("see", mixed=True))]
Signs = Annotated[Person, Depends(Allow("decide", mixed=True))]
"""The same, with the permission for any graph."""

Lists = Annotated[Person, Depends(Allow("see", in_query))]
Hears = Annotated[Person, Depends(Allow("see", of_runs))]
Starts = Annotated[Person, Depends(Allow("operate", in_body))]
DecidesAll = Annotated[Person, Depends(Allow("decide", of_questions))]
"""Same, for the graph that a listing, start or batch names, or that all its runs or questions share."""
