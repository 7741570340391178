"""The Slack door in processes of its own, one of which is killed."""

from __future__ import annotations

from contextlib import closing

import httpx
import pytest

from runner import Client
from runner.dev.worker_process import worker_process
from tests.doors.servers import server
from tests.doors.workspace import (
    CHANNEL,
    SECRET,
    TEAM,
    TOKEN,
    Workspace,
    buttons_of,
    request,
    text_of,
)
from tests.integrations.extras import need
from tests.waiting import wait_until

need("slack_sdk", "slack")

pytestmark = pytest.mark.slow

REFUNDS = """
from runner import GraphBuilder, graph
from runner.approvals import Principal, Rule


@graph("refund")
def refund():
    builder = GraphBuilder()
    rule = Rule(eligible=["ana"])
    builder.add_node(lambda ctx: ctx.interrupt("refund", rule=rule).decision, "ask")
    return builder.build()


class Staff:
    def person(self, account, email):
        return Principal(email.partition("@")[0])

    def groups(self, principal):
        return []

    def roles(self, principal):
        return ["approver"]


staff = Staff()
"""


def test_a_click_counts_after_the_server_that_wrote_the_message_was_killed(
    redis_url, tmp_path, monkeypatch
):
    """After kill -9 between message and click another server decides, once, and takes the buttons away."""
    (tmp_path / "refunds.py").write_text(REFUNDS)
    with Workspace() as workspace:
        workspace.join("Uana", "ana@example.com")
        settings = {
            "RUNNER_GRAPHS": "refunds",
            "RUNNER_DIRECTORY": "refunds:staff",
            "RUNNER_REDIS_URL": redis_url,
            "RUNNER_SERVER_SECRET": "s" * 40,
            "RUNNER_SERVER_URL": "https://runner.example",
            "RUNNER_SLACK_CHANNELS": CHANNEL,
            "RUNNER_SLACK_SIGNING_SECRET": SECRET,
            "RUNNER_SLACK_TEAM": TEAM,
            "RUNNER_SLACK_TOKEN": TOKEN,
            "RUNNER_SLACK_URL": workspace.url,
            "PYTHONPATH": str(tmp_path),
        }
        monkeypatch.setenv("RUNNER_REDIS_URL", redis_url)
        with (
            closing(Client().engine.store) as store,
            worker_process(settings, concurrency=1) as worker,
        ):
            with server("slack", **settings) as (writer, _):
                worker.wait_ready()
                run = Client(store=store).start("refund", 7)
                wait_until(lambda: workspace.messages, "a message")
                (message,) = workspace.messages.values()
                writer.kill()
            with server("slack", **settings) as (_, url):
                body, timestamp, signature = request(
                    workspace.click(message, "approve", "Uana")
                )
                headers = {
                    "X-Slack-Request-Timestamp": timestamp,
                    "X-Slack-Signature": signature,
                }
                clicks = [
                    httpx.post(f"{url}/doors/slack", content=body, headers=headers).status_code
                    for _ in range(2)
                ]
                result = run.wait(60)
                wait_until(lambda: not buttons_of(*workspace.messages.values()), "no buttons")

    assert clicks == [200, 200]
    assert result.results["ask"].output == "approve"
    assert "approved by ana, 1 of 1" in text_of(*workspace.messages.values())
