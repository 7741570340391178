"""`runner limits`: what the commands write, and what they refuse."""

from __future__ import annotations

import json

import pytest

from runner import Limit
from runner.records.json_form import milliseconds
from runner.store.redis.store import RedisStore
from tests.contract.store.manual_worker import shape


@pytest.fixture
def limits(call, redis_url):
    """Call `runner limits` on a store with a graph that has a limit."""
    store = RedisStore(redis_url)
    store.publish([shape("a", limits={"a": [Limit("model", concurrency=3, by="tag:account")]})])
    yield lambda *arguments: call("limits", *arguments, url=redis_url)
    store.close()


def test_a_limit_is_listed_set_paused_resumed_and_reset(limits):
    """Each command writes the limit as it is then: the number of the code, what is set, and its status."""
    changes = (
        (("set", "model", "--concurrency", "1"), "model\t3 at a time\t1 at a time\tactive\t0"),
        (("resume", "model"), "model\t3 at a time\t1 at a time\tactive\t0"),
        (("reset", "model"), "model\t3 at a time\t\tactive\t0"),
        (("list",), "model\t3 at a time\t\tactive\t0"),
        (("show", "model"), "model\t3 at a time\t\tactive\t0"),
    )
    for arguments, line in changes:
        done = limits(*arguments)
        assert (done.exit_code, done.stdout.strip("\n")) == (0, line)

    paused = limits("pause", "model", "--until-resumed", "--reason", "incident", "--by", "ana")
    assert "paused without an end (incident)" in paused.stdout
    paused = limits("pause", "model", "--for", "10m", "--by", "ana", "--json")
    document = json.loads(paused.stdout)
    assert (document["paused"], document["setting"]["by"]) == (True, "ana")
    (pause,) = document["setting"]["pauses"]
    assert milliseconds(pause["ends_at"]) - milliseconds(pause["at"]) == 600_000

    limits("resume", "model")
    limits("pause", "model:tag:account:7", "--until-resumed")
    assert limits("list").stdout.strip("\n").endswith("\tactive, 1 of its keys paused\t0")
    (line,) = limits("show", "model").stdout.splitlines()
    assert line == "model:tag:account:7\t\t\t\tpaused without an end"


def test_a_pause_says_whether_it_has_an_end(limits):
    """Without --for and --until-resumed, or with both, it is refused; so is a limit that no graph has."""
    assert limits("pause", "model").exit_code == 2
    assert limits("pause", "model", "--for", "10m", "--until-resumed").exit_code == 2
    assert limits("pause", "other", "--until-resumed").exit_code == 4
    assert limits("set", "model", "--rate", "5").exit_code == 2
    assert "active" in limits("list").stdout
