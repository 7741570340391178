"""The pages: a module for each, made on the server, whole without JavaScript."""

from runner.server.pages import (
    home,
    inbox,
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
    runs.router,
    run_actions.router,
    schedules.router,
    webhooks.router,
    system.router,
)
