"""`runner limits`: what the commands write, and what they refuse."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from runner import Fairness, Limit
from runner.records.json_form import milliseconds
from runner.store.redis.store import RedisStore
from runner.store.requests import ShareSlots
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, shape


@pytest.fixture
def limits(call, redis_url):
    """Call `runner limits` on a store with a graph that has a limit."""
    store = RedisStore(redis_url)
    store.publish([shape("a", limits={"a": [Limit("model", concurrency=3, by="tag:account")]})])
    yield lambda *arguments: call("limits", *arguments, url=redis_url)
    store.close()


@pytest.mark.full
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


@pytest.mark.full
def test_a_key_that_is_not_paused_is_not_resumed(limits):
    """A wrong name of a key, or one to reset, changes nothing; the error says what does; control: that."""
    limits("pause", "model:tag:account:7", "--until-resumed")
    wrong = limits("resume", "model:tag:account:8")
    assert (wrong.exit_code, "runner limits show model" in wrong.stderr) == (4, True)
    reset = limits("reset", "model:tag:account:8")
    assert (reset.exit_code, "resume" in reset.stderr) == (2, True)
    assert "1 of its keys paused" in limits("list").stdout

    assert limits("resume", "model:tag:account:7").exit_code == 0
    assert "paused" not in limits("list").stdout


@pytest.mark.full
def test_keys_that_wait_for_their_turn_are_listed(call, redis_url):
    """The API and metrics say whose nodes wait, how many, since when; control: none in the window."""

    def waiting_keys():
        asked = call("api", "GET", "/v1/limits/fairness", url=redis_url)
        return json.loads(asked.stdout)["items"]

    clock, store = ManualClock(), RedisStore(redis_url)
    graph = shape("a", fairness=Fairness("tag:tenant"))
    worker = ManualWorker(store, clock)
    store.do(ShareSlots({"g": 4}))
    noisy = [worker.start(graph, tags={"tenant": "noisy"}) for _ in range(4)]
    assert waiting_keys() == []
    assert "runner_fair_nodes_waiting" not in call("metrics", url=redis_url).stdout

    for tenant in ("noisy", "noisy", "quiet"):
        worker.start(graph, tags={"tenant": tenant})
    keys = waiting_keys()
    assert [(key["key"], key["nodes"]) for key in keys] == [("noisy", 2), ("quiet", 1)]
    assert milliseconds(keys[0]["since"]) >= store.events(noisy[-1])[0].at
    assert 'runner_fair_nodes_waiting{queue="g"} 3' in call("metrics", url=redis_url).stdout
    store.close()


@pytest.mark.full
def test_metrics_count_the_nodes_that_wait_for_a_rate(call, redis_url):
    """They have the backlog of all keys, and when the last starts; control: a node that may start at once."""
    slow = Limit("slow", rate=1, per=240, by="tag:tenant")
    graph = shape("a b", entries=["a", "b"], limits={"a": [slow], "b": [slow]})
    with closing(RedisStore(redis_url)) as store:
        worker = ManualWorker(store)
        runs = [worker.start(graph, tags={"tenant": tenant}) for tenant in ("acme", "zeta")]
        for run_id in runs:
            worker.claim(run_id, "a")
        assert "runner_limit_" not in call("metrics", url=redis_url).stdout
        for run_id in runs:
            worker.limited(run_id, "b")
        numbers = call("metrics", url=redis_url).stdout
    assert 'runner_limit_waiting_nodes{limit="slow"} 2' in numbers
    (line,) = [
        line for line in numbers.splitlines() if "runner_limit_last_start_seconds{" in line
    ]
    assert 200 < float(line.rpartition(" ")[2]) <= 240
    assert "acme" not in numbers
