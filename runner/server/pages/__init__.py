"""The pages: a module each, rendered on the server, complete without JavaScript."""

from fastapi.routing import APIRoute

from runner.server.pages import (
    absences,
    bulk_decisions,
    controls,
    grants,
    home,
    inbox,
    passkeys,
    question,
    run_actions,
    runs,
    system,
)

ROUTERS = (
    home.router,
    inbox.router,
    bulk_decisions.router,
    question.router,
    grants.router,
    absences.router,
    passkeys.router,
    runs.router,
    run_actions.router,
    controls.router,
    system.router,
)

for _route in (
    route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)
):
    if "GET" in (_route.methods or ()):
        _route.methods = {"GET", "HEAD"}  # for monitors
