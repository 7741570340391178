"""Authorization: the roles of callers, and the permission that every route names.

A route without a permission does not exist: `app.create_app` refuses it. So does a caller whom `auth` does
not know, unless the route is open to all.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from runner.approvals.rules import Principal, Voter
from runner.errors import UsageError
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
"""Permissions of each role: see what exists, read payloads, decide questions, change runs, administer."""


def split_role(text: str) -> tuple[str, str]:
    """Return a role and the graph that it is limited to, "" for all: "approver:payments" has both.

    Raises:
        UsageError: it is no role, or one that is not of a graph.
    """
    role, colon, graph = text.partition(":")
    if role not in GRANTS or (colon and (not graph or role == "admin")):
        raise UsageError(
            f"{text!r:.200} is no role; the roles are {', '.join(GRANTS)}, and but for admin ROLE:GRAPH."
        )
    return role, graph


@dataclass(frozen=True, slots=True)
class Person:
    """Who calls: a principal, with what its login says of it.

    `roles` are those of the server (see `GRANTS`) and those that rules of approvals name; "approver:payments"
    is one of runs of the graph `payments` only. `level` is how sure it is who calls (see
    docs/how-to/approvals.md), `login_at` when they logged in (seconds since 1970). `graph` is the only one
    that the person may do something with here, "" for all.
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
        """All that the roles grant."""
        return frozenset(grant for role in self.roles for grant in GRANTS.get(role, ()))

    def may(self, permission: Permission) -> bool:
        """Say if a role grants the permission."""
        return permission == "open" or permission in self.permissions

    def voter(self, now: float) -> Voter:
        """Return the person as rules of approvals see them, at a time in seconds since 1970."""
        age = None if self.login_at is None else max(0.0, now - self.login_at)
        return Voter(self.principal, self.groups, self.roles, self.level, age, self.acr)


async def caller(request: Request) -> Person | None:
    """Return who calls, asked once a request."""
    if not hasattr(request.state, "person"):
        request.state.person = await asked(request)
    return cast("Person | None", request.state.person)


async def asked(request: Request) -> Person | None:
    """Return who calls by what `auth` says now.

    Raises:
        Problem: their name has characters that can't be seen, or that look like others.
    """
    answer = cast("Callable[[Request], object]", request.app.state.auth)(request)
    person = cast("Person | None", await answer if inspect.isawaitable(answer) else answer)
    try:
        _ = person and Principal.read(person.principal.key)
    except UsageError as error:
        raise Problem(403, f"The login can't be used: {error}") from error
    return person


Graphs = Callable[[Request], Awaitable[Collection[str]]]
"""Returns the outermost graphs that a request is about."""


async def graphs_of(request: Request, names: Iterable[str]) -> Collection[str]:
    """Return the outermost graphs of runs, or questions, by their ids."""
    services = request.app.state.services

    def read() -> Collection[str]:
        return {services.graph_of(name) for name in names}

    return await run_in_threadpool(read)


async def in_path(request: Request) -> Collection[str]:
    """Return the graph of the run or the question that the path names, or the graph."""
    path = request.path_params
    if "graph" in path:
        return {path["graph"]}
    ids = [path[name] for name in ("run_id", "question_id") if name in path]
    return await graphs_of(request, ids)


async def in_query(request: Request) -> Collection[str]:
    """Return the graph of a listing that is filtered by one."""
    name = request.query_params.get("graph", "")
    return {outermost(name)} if name else ()


async def of_runs(request: Request) -> Collection[str]:
    """Return the graphs of the runs that a stream is of, or the graph by which it is filtered."""
    ids = request.query_params.getlist("run")
    return await graphs_of(request, ids) if ids else await in_query(request)


async def in_body(request: Request) -> Collection[str]:
    """Return the graph that a start names, or the filter of a batch."""
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
    """Put a graph into the query of a request, as its sender could have done: no route can forget it."""
    request.scope["query_string"] = request.url.include_query_params(graph=graph).query.encode()
    for name in ("_query_params", "_url"):  # read already, for the dependencies of the route
        vars(request).pop(name, None)


async def _json(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


class Allow:
    """The permission of a route, as its dependency: it returns who calls.

    Roles of a graph count where `graphs` says which graphs the request is about, and it is one. A listing
    that names none becomes one of the graph of who has roles of one only. With `mixed` they count for all
    graphs: the route itself leaves out what a person may not see.
    """

    def __init__(
        self, permission: Permission, graphs: Graphs = in_path, *, mixed: bool = False
    ) -> None:
        self.permission: Permission = permission
        self._graphs, self._mixed = graphs, mixed

    async def __call__(self, request: Request) -> Person | None:
        """Return who calls, with the roles that they have for the graph of the request.

        Raises:
            Problem: the caller is not known, or may not.
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
            if address.path == f"{prefix(request)}/":  # it is of all graphs
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


OPEN, SEE, READ, DECIDE, OPERATE, ADMINISTER = (
    Allow("open"),
    Allow("see"),
    Allow("read"),
    Allow("decide"),
    Allow("operate"),
    Allow("administer"),
)

SIGNED = Allow("open")
"""Another service calls, on behalf of people: the route checks the signature of each request itself."""

Seen = Annotated[Person, Depends(SEE)]
Reads = Annotated[Person, Depends(READ)]
Decides = Annotated[Person, Depends(DECIDE)]
Operates = Annotated[Person, Depends(OPERATE)]
Administers = Annotated[Person, Depends(ADMINISTER)]
"""Who calls a route, by what they must be allowed to, where one names a run or a question for that run."""

Known = Annotated[Person, Depends(Allow("see", mixed=True))]
Signs = Annotated[Person, Depends(Allow("decide", mixed=True))]
"""The same in any graph."""

Lists = Annotated[Person, Depends(Allow("see", in_query))]
Hears = Annotated[Person, Depends(Allow("see", of_runs))]
Starts = Annotated[Person, Depends(Allow("operate", in_body))]
DecidesAll = Annotated[Person, Depends(Allow("decide", of_questions))]
"""The same for the graph that a listing, a start or a batch names, or that all runs or questions are of."""
