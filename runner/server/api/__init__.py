"""The JSON API, version 1: a module for each subject."""

from runner.server.api import (
    absences,
    controls,
    events,
    grants,
    graphs,
    jobs,
    questions,
    runs,
    system,
)

ROUTERS = (
    system.operations,
    runs.router,
    jobs.router,
    questions.router,
    grants.router,
    absences.router,
    events.router,
    system.audit,
    controls.freezes,
    graphs.router,
    controls.schedules,
    controls.limits,
    controls.webhooks,
    system.workers,
    system.dead,
    system.sessions,
)
