"""The graphs that this repository's workers serve: the examples', and one with a plain Celery task."""

from __future__ import annotations

from examples.approvals.graph import refund
from examples.orders.graph import orders
from examples.refunds.graph import refunds
from examples.release.graph import release
from tasks.mail import notify

__all__ = ["notify", "orders", "refund", "refunds", "release"]
