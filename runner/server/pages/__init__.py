"""The pages: a module for each, made on the server, whole without JavaScript."""

from fastapi.routing import APIRoute

from runner.server.pages import (
    home,
    inbox,
    limits,
    passkeys,
    question,
    run_actions,
    runs,
    schedules,
    static,
    system,
    webhooks,
)

ROUTERS = (
    static.router,
    home.router,
    inbox.router,
    question.router,
    passkeys.router,
    runs.router,
    run_actions.router,
    schedules.router,
    limits.router,
    webhooks.router,
    system.router,
)

for _route in (
    route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)
):
    if "GET" in (_route.methods or ()):
        _route.methods = {"GET", "HEAD"}  # for monitors
