"""What people are told of a question: its title, the exact call, and where they answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote


def title_of(notice: Mapping[str, Any]) -> str:
    """Return one line about the question of a notice."""
    if not notice["question"]:
        who = str(notice["data"]["by"]).rpartition("|")[2]
        return " ".join(
            f"{who} changed the call of {notice['node']}: please decide again".split()
        )
    name = " ".join(str(notice["question"].get("title") or notice["question"]["name"]).split())
    return (
        f"Still open: {name}"
        if notice["kind"] == "interrupt.reminded"
        else f"Please decide: {name}"
    )


def call_of(notice: Mapping[str, Any]) -> str:
    """Return what would run where the question approves a call, else why it was asked, as JSON.

    Of an edit it is the new arguments; None where they are too long for a notice.
    """
    question = notice["question"] or {"reason": notice["data"].get("response")}
    action = question.get("action")
    shown = {action["tool"]: action["args"]} if action else question.get("reason")
    return json.dumps(shown, indent=2)  # ASCII: no character of it can act on what shows it


def link_of(notice: Mapping[str, Any], pages: str) -> str:
    """Return the address of the question's page; `pages` is that of the server."""
    return f"{pages.rstrip('/')}/q/{quote(notice['detail'], safe='')}"
