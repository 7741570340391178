from __future__ import annotations

import json


def test_a_webhook_is_made_listed_paused_and_removed(cli, monkeypatch):
    """The commands write what they did; the secret once."""
    monkeypatch.setenv("RUNNER_WEBHOOK_ALLOW", "127.0.0.0/8")
    made = cli(
        "webhooks",
        "add",
        "chat",
        "http://127.0.0.1:1/",
        "--event",
        "run.ended",
        "--tag",
        "team=a",
    )
    listed = json.loads(cli("webhooks", "list", "--json").stdout)["webhooks"]

    assert made.stdout.split("\t")[1].startswith("whsec_")
    assert [(item["tags"], item["secret"]) for item in listed if item["id"] == "chat"] == [
        ({"team": "a"}, "")
    ]
    assert cli("webhooks", "add", "chat", "http://127.0.0.1:1/").exit_code == 5
    assert "whsec_" in cli("webhooks", "rotate", "chat").stdout
    assert "paused" in cli("webhooks", "pause", "chat").stdout
    assert "active" in cli("webhooks", "resume", "chat").stdout
    assert cli("webhooks", "deliveries", "chat").stdout == ""
    assert cli("webhooks", "redeliver", "chat", "msg_1").exit_code == 4
    assert cli("webhooks", "remove", "chat").exit_code == 0
    assert cli("webhooks", "deliveries", "chat").exit_code == 4


def test_the_public_key_is_written_where_that_checks(cli, monkeypatch):
    """There is no secret to share then; an address inside is refused."""
    monkeypatch.setenv("RUNNER_WEBHOOK_ALLOW", "127.0.0.0/8")

    assert (
        "whpk_"
        in cli("webhooks", "add", "keys", "http://127.0.0.1:1/", "--signature", "v1a").stdout
    )
    assert cli("webhooks", "add", "x", "https://10.0.0.1/").exit_code == 2
