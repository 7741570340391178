"""A plain Celery task, and a graph in which it does the work of a node.

The task knows nothing of graphs: any program may send it. The node `send` waits for its result without
holding a worker.
"""

from __future__ import annotations

import logging
import os
import smtplib
from email.message import EmailMessage

from celery import shared_task

from runner import Graph, GraphBuilder, NodeContext, RetryPolicy, graph
from runner.celery import CeleryTask

log = logging.getLogger(__name__)


@shared_task(name="tasks.send_mail", acks_late=True)
def send_mail(to: str, subject: str, text: str) -> dict[str, str]:
    """Send a mail through the server of SMTP_HOST; without one, write it to the log."""
    host = os.environ.get("SMTP_HOST")
    if host is None:
        log.info("mail to %s: %s", to, subject)
        return {"to": to, "sent": "to the log"}
    mail = EmailMessage()
    mail["To"], mail["Subject"] = to, subject
    mail["From"] = os.environ.get("SMTP_FROM", "runner@localhost")
    mail.set_content(text)
    with smtplib.SMTP(host, timeout=30) as server:
        server.send_message(mail)
    return {"to": to, "sent": f"through {host}"}


def write(ctx: NodeContext) -> dict[str, str]:
    """Write the mail; the task of the run is `{"to": ..., "order": ...}`."""
    to, order = ctx.task["to"], ctx.task["order"]
    return {"to": to, "subject": f"Order {order}", "text": f"Your order {order} is on its way."}


def note(ctx: NodeContext) -> str:
    """Return what the run is for people to read."""
    return f"The mail to {ctx.inputs['send']['to']} was sent {ctx.inputs['send']['sent']}."


@graph("notify")
def notify() -> Graph:
    """Write a mail, send it by the Celery task, and note it."""
    builder = GraphBuilder()
    builder.add_node(write, "write")
    builder.add_node(
        CeleryTask(send_mail, kwargs=lambda ctx: ctx.inputs["write"]),
        "send",
        timeout=60,
        retry=RetryPolicy(max_attempts=3, backoff=5),
    )
    builder.add_node(note, "note")
    builder.add_edge("write", "send")
    builder.add_edge("send", "note")
    return builder.build()
