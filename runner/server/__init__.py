"""The HTTP API and the pages: `create_app()` makes one ASGI application; needs the extra `server`."""

from runner.errors import needs_extra

with needs_extra("server", "the HTTP API and the pages"):
    from runner.server.access import Person
    from runner.server.app import create_app
    from runner.server.auth import ApiKeys, Local, ProxyHeaders
    from runner.server.oidc import OIDC
    from runner.server.problems import Problem

__all__ = ["OIDC", "ApiKeys", "Local", "Person", "Problem", "ProxyHeaders", "create_app"]
