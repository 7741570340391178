"""The HTTP API and the pages: `create_app()` makes one ASGI application; needs the extra `server`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runner.errors import needs_extra
from runner.lazy_names import lazy_names

if TYPE_CHECKING:
    from runner.records.interrupts import Decision
    from runner.server.access import SIGNED, Person
    from runner.server.app import create_app
    from runner.server.auth import ApiKeys, Local, ProxyHeaders
    from runner.server.deciding import decide
    from runner.server.oidc import OIDC
    from runner.server.problems import Problem
    from runner.server.services import Services

__all__ = [
    "OIDC",
    "SIGNED",
    "ApiKeys",
    "Decision",
    "Local",
    "Person",
    "Problem",
    "ProxyHeaders",
    "Services",
    "create_app",
    "decide",
]

_value = lazy_names(
    __name__,
    {
        "runner.records.interrupts": ("Decision",),
        "runner.server.access": ("SIGNED", "Person"),
        "runner.server.app": ("create_app",),
        "runner.server.auth": ("ApiKeys", "Local", "ProxyHeaders"),
        "runner.server.deciding": ("decide",),
        "runner.server.oidc": ("OIDC",),
        "runner.server.problems": ("Problem",),
        "runner.server.services": ("Services",),
    },
)


def __getattr__(name: str) -> Any:
    """Import a public name's module when the name is first used: most doors need only some of them."""
    with needs_extra("server", "the HTTP API and the pages"):
        return _value(name)
