from __future__ import annotations

import functools
import json

import pytest
import redis

from runner.store.redis.keys import Keys
from tests.cli.conftest import read
from tests.waiting import wait_until

KEYS = Keys()


@pytest.fixture
def letters(fake_store, call):
    """Put a dead message and a dead node into an empty store; return how to call `runner dead` on it."""
    message = {
        "stream": KEYS.responses,
        "id": "1-0",
        "reason": "no JSON",
        "body": b'{"v":1\xff',
    }
    fake_store.client.xadd(KEYS.dead_messages, message, id="1000-0")
    lost = {
        "run_id": "00run",
        "node": "pay",
        "visit": 1,
        "reason": "5 workers lost",
        "at": 2000,
    }
    fake_store.client.xadd(KEYS.dead, lost, id="2000-0")
    return functools.partial(call, "dead", url=fake_store.url), fake_store.client


def test_both_kinds_are_listed_the_newest_first(letters):
    """Messages and nodes are in one list, each with its reason."""
    call, _ = letters

    cells = [line.split("\t") for line in call("list").stdout.splitlines()]
    assert cells == [
        ["node:2000-0", "1970-01-01T00:00:02.000Z", "00run pay", "5 workers lost"],
        ["message:1000-0", "1970-01-01T00:00:01.000Z", KEYS.responses, "no JSON"],
    ]


def test_a_letter_is_shown_as_it_came(letters):
    """The message can be read, also where it is not text."""
    call, _ = letters

    _, shown = read(call, "list")["letters"]
    assert shown["body"] == '{"v":1�'
    assert shown["reason"] == "no JSON"


def test_a_message_is_sent_again_unchanged(letters):
    """Replaying puts the same bytes back on their stream, and the letter is gone."""
    call, client = letters

    done = call("replay", "message:1000-0")
    assert done.exit_code == 0
    ((_, fields),) = client.xrange(KEYS.responses)
    assert fields == {b"body": b'{"v":1\xff'}
    assert call("replay", "message:1000-0").exit_code == 4
    ((_, entry),) = client.xrange(KEYS.audit)
    audited = json.loads(entry[b"e"])
    assert (audited["type"], audited["outcome"]["letter"]) == (
        "dead.replayed",
        "message:1000-0",
    )


def test_replaying_a_nodes_letter_retries_its_run(cli, shop_url):
    """Replaying the letters of nodes retries their run once, and the letters are gone."""
    run_id = cli("run", "shop-print", "--wait").stdout.split("\t")[1]
    lost = {"run_id": run_id, "node": "fail_once", "visit": 1, "reason": "5 workers lost"}
    with redis.Redis.from_url(shop_url) as client:
        places = [f"node:{client.xadd(KEYS.dead, lost).decode()}" for _ in range(2)]

    done = cli("dead", "replay", *places)

    assert (done.exit_code, done.stdout) == (
        0,
        "".join(f"{place}\t{run_id}\n" for place in places),
    )
    wait_until(
        lambda: "completed" in cli("runs", "show", run_id).stdout.splitlines()[0],
        "it completes",
    )
    assert cli("dead", "list").stdout == ""


def test_a_letter_whose_run_is_gone_stays(letters):
    """The letters sent before it are reported; the hint says what to do about this one."""
    call, client = letters

    done = call("replay", "message:1000-0", "node:2000-0")

    assert done.exit_code == 4
    assert "00run" in done.stderr
    assert "runner api DELETE /v1/dead/node:2000-0" in done.stderr
    assert done.stdout.startswith("message:1000-0\t")
    assert client.xlen(KEYS.responses) == 1
    assert client.xlen(KEYS.dead) == 1


def test_ids_that_are_not_letters_are_refused(letters):
    """An id that can't be one has another exit code than one that is gone."""
    call, _ = letters

    assert call("replay", "1000-0").exit_code == 2
    assert call("replay", "message:9-9").exit_code == 4
