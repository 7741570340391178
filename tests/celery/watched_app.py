"""An app of another team whose broker is the primary that a Sentinel names."""

from __future__ import annotations

import os

from celery import Celery

import runner.celery

app = Celery("shop", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {"master_name": "main"}
runner.celery.install(app)
