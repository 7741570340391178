"""Sabotage: our app, whose worker never asks whether the connection on which it waits for messages lives."""

from __future__ import annotations

from runner.celery.application import make_app

app = make_app()
app.conf.broker_transport_options["health_check_interval"] = 3600
