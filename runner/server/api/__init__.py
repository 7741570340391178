"""The JSON API, version 1: a module for each thing that it is about."""

from runner.server.api import dead, graphs, health, questions, runs, schedules, workers

ROUTERS = (
    health.router,
    runs.router,
    questions.router,
    graphs.router,
    schedules.router,
    workers.router,
    dead.router,
)
