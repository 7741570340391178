"""`runner grants`: what the commands make, write and refuse."""

from __future__ import annotations

import json

import pytest

from runner.approvals import Rule
from runner.approvals.rules import Grants
from tests.execution.test_grants import Desk


@pytest.fixture
def desk(redis_url):
    """A desk at level 0, where the login name says who somebody is."""
    allowed = Grants({"properties": {"amount": {"maximum": 500}}}, uses=10)
    return Desk(redis_url, Rule(need=2, grants=allowed))


def test_a_grant_is_made_voted_for_listed_and_revoked(call, desk, redis_url):
    """By two people; a call within it is made, and after it was revoked none is."""

    def grants(*arguments):
        return call("grants", *arguments, url=redis_url)

    assert grants("list").stdout.strip() == ""
    question = desk.question(desk.run())
    bounds = ("--max", "amount=200", "--only", "order=1042")
    made = grants("add", question, *bounds, "--uses", "3", "--for", "2h", "--by", "ana")
    assert (made.exit_code, made.stdout.split("\t")[0]) == (0, "counted")
    (view,) = json.loads(grants("list", "--json").stdout)["grants"]
    assert (view["state"], view["bounds"]) == (
        "waits",
        {"properties": {"amount": {"maximum": 200}, "order": {"const": "1042"}}},
    )
    assert grants("vote", view["id"], "approve", "--by", "ana").exit_code == 5
    assert grants("vote", view["id"], "approve", "--by", "ben").exit_code == 0
    desk.run()
    assert desk.paid() == [120]
    line = grants("list").stdout.split("\t")
    assert line[:2] == [view["id"], "refund"]
    assert line[3:5] == ["amount maximum 200; order const 1042", "1 of 3"]
    assert grants("revoke", view["id"], "--reason", "enough", "--by", "ana").exit_code == 0
    assert grants("revoke", view["id"], "--reason", "enough").exit_code == 5
    desk.run()
    assert desk.paid() == [120]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max", "amount=501"), "bounds.amount: wider than the rule allows"),
        (("--max", "amount"), "not NAME=VALUE"),
        (("--max", "amount=much"), "not a number"),
        (("--max", "amount=5", "--uses", "11"), "uses: must be"),
        (("--max", "amount=5", "--for", "30d"), "until: the rule allows"),
        (("--max", "amount=5", "--graph", "tlil"), "graphs: there is no graph"),
    ],
)
def test_a_grant_that_can_not_be_is_refused(call, desk, redis_url, arguments, words):
    """With the field, and exit code 2."""
    question = desk.question(desk.run())
    refused = call("grants", "add", question, *arguments, "--by", "ana", url=redis_url)
    assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
