"""E-mail: a plain text with the call and the address of the question's page."""

from __future__ import annotations

import smtplib
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

from examples.notify.question import call_of, link_of, title_of

TIMEOUT = 10.0


def message(notice: Mapping[str, Any], pages: str, sender: str, receiver: str) -> EmailMessage:
    """Return the message to those whom the question names, or to `receiver` where those are no addresses."""
    assignees = [name for name in notice["question"].get("assignees", ()) if "@" in name]
    made = EmailMessage()
    # An encoded word would be decoded here, and line ends in it would begin headers.
    made["Subject"] = title_of(notice).replace("=?", "= ?")
    made["From"], made["To"] = sender, ", ".join(assignees or [receiver])
    made.set_content(
        f"{call_of(notice)}\n\nDecide here: {link_of(notice, pages)}\nRun: {notice['run_id']}\n"
    )
    return made


def send(mail: EmailMessage, host: str, port: int) -> None:
    """Hand the message to a mail server; OSError where it does not take it."""
    with smtplib.SMTP(host, port, timeout=TIMEOUT) as server:
        server.send_message(mail)
