"""The JSON API, version 1: a module for each thing that it is about."""

from runner.server.api import (
    audit,
    dead,
    events,
    graphs,
    health,
    jobs,
    keys,
    limits,
    me,
    questions,
    runs,
    schedules,
    webhooks,
    workers,
)

ROUTERS = (
    health.router,
    me.router,
    keys.router,
    runs.router,
    jobs.router,
    questions.router,
    events.router,
    audit.router,
    graphs.router,
    schedules.router,
    limits.router,
    webhooks.router,
    workers.router,
    dead.router,
)
