"""The HTTP API and the pages: `create_app()` makes one ASGI application; needs the extra `server`."""

from runner.errors import needs_extra

with needs_extra("server", "the HTTP API and the pages"):
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
