from __future__ import annotations

import json


def test_a_schedule_is_made_listed_paused_and_removed(cli):
    """The commands write what they did; a name that is taken is a conflict."""
    made = cli(
        "schedules",
        "add",
        "nightly",
        "shop-refund",
        "--cron",
        "0 3 * * *",
        "--timezone",
        "Europe/Rome",
    )
    listed = json.loads(cli("schedules", "list", "--json").stdout)["schedules"]

    assert made.exit_code == 0
    assert [(item["id"], item["overlap"]) for item in listed] == [("nightly", "skip")]
    assert cli("schedules", "add", "nightly", "shop-refund", "--every", "5m").exit_code == 5
    assert "paused" in cli("schedules", "pause", "nightly").stdout
    assert "active" in cli("schedules", "resume", "nightly").stdout
    filled = cli(
        "schedules",
        "backfill",
        "nightly",
        "--from",
        "2026-01-01T00:00:00Z",
        "--to",
        "2026-01-02T00:00:00Z",
    )
    assert len(filled.stdout.splitlines()) == 1
    assert cli("schedules", "remove", "nightly").exit_code == 0
    assert cli("schedules", "pause", "nightly").exit_code == 4


def test_what_makes_no_sense_is_refused(cli):
    """With the exit code of wrong usage, and nothing is made."""
    assert cli("schedules", "add", "x", "shop-refund").exit_code == 2
    assert cli("schedules", "add", "x", "shop-refund", "--every", "often").exit_code == 2
    assert cli("schedules", "add", "x", "nowhere", "--every", "5m").exit_code == 4
    assert "x" not in cli("schedules", "list").stdout.split()
