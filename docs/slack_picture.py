"""Draws the messages of the Slack door, from their Block Kit: `python docs/slack_picture.py`, with Chromium.

It is a drawing of the JSON that the door sends, not a picture of Slack: texts, buttons and their order are as
sent, colours and fonts are ours.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from playwright.sync_api import sync_playwright
from screenshots import IMAGES, Shop

from runner import GraphBuilder
from runner.approvals import Action, Rule
from runner.dev.embedded import embedded_store
from runner.doors.slack import SlackDoor
from runner.server.services import Services

STYLE = """
body { font: 15px/1.45 sans-serif; width: 560px; padding: 20px; margin: 0; background: #fff; color: #1d1c1d }
article { border: 1px solid #ddd; border-radius: 8px; padding: 12px 16px; margin-bottom: 16px }
.section { white-space: pre-wrap; overflow-wrap: anywhere }
.context { color: #616061; font-size: 12px; margin: 10px 0 }
.actions span { display: inline-block; border: 1px solid #aaa; border-radius: 4px; padding: 4px 14px;
  margin-right: 8px; font-weight: bold; font-size: 14px }
"""


def drawn(messages: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Write messages as HTML; KeyError for a block that this does not draw."""
    articles = []
    for blocks in messages:
        rows = []
        for block in blocks:
            parts = [block["text"]] if block["type"] == "section" else block["elements"]
            texts = [part["text"] for part in parts]
            if block["type"] == "actions":
                texts = [f"<span>{text['text']}</span>" for text in texts]
            rows.append(f'<div class="{block["type"]}">{"".join(texts)}</div>')
        articles.append(f"<article>{''.join(rows)}</article>")
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{''.join(articles)}"


class Refunds(Shop):
    """A shop that asks before it pays back."""

    def graphs(self) -> dict[str, Any]:
        """Return the graph that asks."""

        def refund(ctx: Any) -> Any:
            action = Action("shop", "function", "pay_back", {"order": ctx.task, "amount": 120})
            rule = Rule(
                eligible=["ana", "ben"], title="Pay back {amount} EUR for order {order}"
            )
            reason = "The parcel came eleven days late, and the customer has asked twice."
            return ctx.interrupt("refund", reason, rule=rule, action=action).decision

        builder = GraphBuilder()
        builder.add_node(refund)
        return {"refund": builder.build}

    def messages(self) -> list[Sequence[Mapping[str, Any]]]:
        """Return the blocks of a question: as it is asked, and when it is decided."""
        door = {
            "slack_team": "T0123456789",
            "slack_channels": ["C0123456789"],
            "slack_token": "xoxb-example",
            "slack_signing_secret": "example",
            "server_secret": "a-random-text-of-32-characters-or-more",
            "server_url": "https://runner.example",
            "directory": "staff:staff",
        }
        self.settings = self.settings.model_copy(update=door)
        services = Services(self.settings)
        slack = SlackDoor(services)
        run = self.client.run(self.run(60, "refund", 1042))
        (question,) = run.interrupts()
        asked, _ = slack.blocks(self.client.interrupt(question.id))
        self.client.vote(question.id, "approve", by="ana")
        decided, _ = slack.blocks(self.client.interrupt(question.id))
        services.release(runs=True)
        return [asked, decided]


def main() -> None:
    """Take the picture."""
    with embedded_store() as embedded, sync_playwright() as play:
        page = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        ).new_page(viewport={"width": 600, "height": 100})
        page.set_content(drawn(Refunds(embedded.url).messages()))
        page.screenshot(path=IMAGES / "slack-question.png", full_page=True)


if __name__ == "__main__":
    main()
