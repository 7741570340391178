"""Slack: a message with the call and a button that opens the question's page.

The button decides nothing: who decides logs in on the page, where the whole call is.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from examples.notify.question import call_of, link_of, title_of

TIMEOUT = 5.0
LONGEST = 2_500
"""Characters of a call that are shown; Slack takes 3,000 in a block."""


def message(notice: Mapping[str, Any], pages: str) -> dict[str, Any]:
    """Return the message, as Slack's incoming webhooks take it."""
    title, call = title_of(notice), call_of(notice)
    cut = "" if len(call) <= LONGEST else "\nThe call goes on: see the page."
    text = _escaped(f"```{call[:LONGEST].replace('```', '` ` `')}```{cut}")
    button = {
        "type": "button",
        "text": _plain("Open the question"),
        "url": link_of(notice, pages),
    }
    return {
        "text": _escaped(title),
        "blocks": [
            {"type": "header", "text": _plain(title[:150])},
            {"type": "section", "text": {"type": "mrkdwn", "text": text}},
            {"type": "actions", "elements": [{**button, "style": "primary"}]},
        ],
    }


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text}


def _escaped(text: str) -> str:
    """Escape what Slack reads as a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def post(notice: Mapping[str, Any], pages: str, url: str) -> None:
    """Post the message to a channel's address; OSError where Slack does not take it."""
    body = json.dumps(message(notice, pages)).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - the URL is the operator's
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):  # noqa: S310 - as above
            return
    except urllib.error.HTTPError as error:
        error.close()
        raise
