"""The pages: a module for each, made on the server, complete without JavaScript."""

from fastapi.routing import APIRoute

from runner.server.pages import (
    absences,
    controls,
    grants,
    home,
    inbox,
    passkeys,
    question,
    run_actions,
    runs,
    system,
    together,
)

ROUTERS = (
    home.router,
    inbox.router,
    together.router,
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
