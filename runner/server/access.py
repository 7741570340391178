"""Who calls, and what they may do: roles, and the permission that every route names.

A route without a permission does not exist: `app.create_app` refuses it. So does a caller whom `auth` does
not know, unless the route is open to all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, cast

from fastapi import Depends, Request

from runner.approvals.rules import Principal, Voter
from runner.errors import UsageError
from runner.server.problems import Problem

Permission = Literal["open", "see", "read", "decide", "operate", "administer"]

GRANTS: dict[str, frozenset[Permission]] = {
    "viewer": frozenset({"see"}),
    "reader": frozenset({"see", "read"}),
    "approver": frozenset({"see", "read", "decide"}),
    "operator": frozenset({"see", "operate"}),
    "admin": frozenset({"see", "administer"}),
}
"""Permissions of each role: see what exists, read payloads, decide questions, change runs, administer."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who calls: a principal, with what its login says of it.

    `roles` are those of the server (see `GRANTS`) and those that rules of approvals name. `level` is how sure
    it is who calls (see docs/how-to/approvals.md), `login_at` when they logged in (seconds since 1970).
    """

    principal: Principal
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    level: int = 0
    login_at: float | None = None
    acr: str | None = None

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


class Allow:
    """The permission of a route, as its dependency: it returns who calls."""

    def __init__(self, permission: Permission) -> None:
        self.permission: Permission = permission

    async def __call__(self, request: Request) -> Person | None:
        """Return who calls.

        Raises:
            Problem: the caller is not known, or may not.
        """
        if self.permission == "open":
            return None
        person = await caller(request)
        if person is None:
            raise Problem(401, "Log in to do this.")
        if not person.may(self.permission):
            roles = ", ".join(role for role, grants in GRANTS.items() if self.permission in grants)
            raise Problem(403, f"This needs one of the roles: {roles}.")
        return person


OPEN, SEE, READ, DECIDE, OPERATE, ADMINISTER = (
    Allow("open"),
    Allow("see"),
    Allow("read"),
    Allow("decide"),
    Allow("operate"),
    Allow("administer"),
)

Seen = Annotated[Person, Depends(SEE)]
Reads = Annotated[Person, Depends(READ)]
Decides = Annotated[Person, Depends(DECIDE)]
Operates = Annotated[Person, Depends(OPERATE)]
Administers = Annotated[Person, Depends(ADMINISTER)]
"""Who calls a route, by what they must be allowed to."""
