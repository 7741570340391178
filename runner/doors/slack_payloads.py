"""The requests that Slack sends: a click on a button, a completed form, or an event."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from pydantic import BaseModel

from runner.errors import needs_extra

with needs_extra("server", "the Slack door"):
    from runner.server.problems import Problem


class Account(BaseModel):
    """The account that clicked; people can choose everything else the payload says about them."""

    id: str
    team_id: str | None = None


class Click(BaseModel):
    """A click on a button."""

    action_id: str
    action_ts: str = ""
    value: str = ""


class ClickedMessage(BaseModel):
    """The message whose button was clicked."""

    channel_id: str = ""
    message_ts: str = ""


class Modal(BaseModel):
    """A submitted form; `state` has the inputs by block and action."""

    id: str
    private_metadata: str = ""
    state: dict[str, dict[str, dict[str, dict[str, Any]]]]


class Workspace(BaseModel):
    """The workspace in a payload."""

    id: str


class Payload(BaseModel):
    """The fields of a request that the door reads; with a `challenge` Slack checks the door's address."""

    type: str
    challenge: str = ""
    team: Workspace | None
    user: Account
    trigger_id: str = ""
    container: ClickedMessage = ClickedMessage()
    actions: list[Click] = []
    view: Modal | None = None


def read_payload(body: bytes) -> Payload:
    """Read the body of a request from Slack.

    Raises:
        Problem: the body isn't an interaction or an event.
    """
    try:
        if body.startswith(b"{"):
            document = json.loads(body)
            event = document.get("event", document)
            fields = {name: event[name] for name in ("type", "challenge") if name in event}
            user, team = {"id": event.get("user", "")}, {"id": document.get("team_id", "")}
            return Payload.model_validate({**fields, "user": user, "team": team})
        (text,) = parse_qs(body.decode(), strict_parsing=True)["payload"]
        return Payload.model_validate_json(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Problem(400, "The body isn't a Slack interaction. Nothing was done.") from error
