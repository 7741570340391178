"""Brings back the lines of nodes in Celery's log, as `docs/how-to/operate.md` says."""

from __future__ import annotations

import logging

for name in ("celery.worker.strategy", "celery.app.trace"):
    logging.getLogger(name).setLevel(logging.DEBUG)
logging.getLogger("runner.nodes").setLevel(logging.WARNING)
