from __future__ import annotations

import functools
import itertools
import json

import pytest

from runner.records.checkpoints import SessionUpdate
from runner.records.listings import cursor_of
from runner.settings import Settings
from runner.store.redis import sessions
from runner.store.redis.partitions import connections, open_store
from tests.contract.store.manual_worker import ManualWorker, saved, shape

pytestmark = pytest.mark.full

NAMES = sorted(f"customer {number}" for number in range(60))


@pytest.fixture(params=[1, 2], ids=["one partition", "two"])
def site(request, call, redis_url, monkeypatch):
    """A store with sessions, of which runs in each partition have one in common, and the command line."""
    monkeypatch.setenv("RUNNER_PARTITIONS", str(request.param))
    store = open_store(Settings(redis_url=redis_url), push=False)
    store.publish([shape("a")])
    worker = ManualWorker(store)
    for index, name in enumerate([*NAMES, NAMES[0], NAMES[0]]):
        run_id = worker.start(shape("a"), beside=f"{index % request.param:02d}")
        state = {"n": 1} if index % 3 else {}
        worker.settle(
            worker.token(run_id, "a"),
            saved=saved(1, "hi"),
            session=SessionUpdate(f"/{name}", 0, state),
        )
    yield store, functools.partial(call, url=redis_url)
    store.close()


def pages(store, cli, limit=7, cursor=None):
    """Read all pages of a list, each by a command of its own."""
    # While the server resizes its table of keys, which each lookup carries on, SCAN may repeat some.
    for connection in connections(store):
        with connection.client.pipeline(transaction=False) as pipe:
            for _ in range(4_000):
                pipe.exists("nothing")
            pipe.execute()
    while True:
        more = f"&cursor={cursor}" if cursor else ""
        done = cli("api", "GET", f"/v1/sessions?limit={limit}{more}")
        assert done.exit_code == 0, done.stderr
        page = json.loads(done.stdout)
        yield {item["id"]: item["messages"] for item in page["items"]}
        cursor = page["next"]
        if cursor is None:
            return


def test_sessions_are_listed_in_pages_and_forgotten(site, monkeypatch):
    """Each is on one page, which is sorted, with its messages, however small pages and batches are."""
    store, cli = site
    monkeypatch.setattr(sessions, "SCANNED", 20)

    listed = [*itertools.islice(pages(store, cli), 400)]

    assert all(len(page) <= 7 and [*page] == sorted(page) for page in listed)
    assert sorted(itertools.chain(*listed)) == NAMES
    assert [page[NAMES[0]] for page in listed if NAMES[0] in page] == [3]
    path = f"/v1/sessions/{NAMES[0]}"
    assert [cli("api", "DELETE", f"{path}?graph=a").exit_code for _ in range(2)] == [4, 4]
    assert [cli("api", "DELETE", path).exit_code for _ in range(2)] == [0, 4]
    left = sorted(itertools.chain(*itertools.islice(pages(store, cli, 99), 400)))
    assert left == NAMES[1:]


def test_a_session_that_lies_in_two_partitions_is_listed_once(site):
    """The messages of both count; one that has only a state is listed, too."""
    store, cli = site
    first, *others = connections(store)
    first.client.hset("runner:{p00}:session:s:/state only", "n", "1")
    for other in others:
        for name in (*NAMES, "state only"):
            other.client.rpush(f"runner:{{p01}}:session:m:/{name}", "1")

    listed = [*itertools.islice(pages(store, cli), 400)]

    assert sorted(itertools.chain(*listed)) == sorted([*NAMES, "state only"])
    (messages,) = (page["state only"] for page in listed if "state only" in page)
    assert messages == len(others)
    assert sum(map(sum, (page.values() for page in listed))) == 62 + len(others) * 61


def test_a_batch_that_has_changed_is_listed_again(site):
    """A cursor leaves out what its page had, but not where SCAN finds another batch since then."""
    for end, everything in ((0, False), (123, True)):
        cursor = cursor_of((0, json.dumps([0, end, "z"])))
        listed = {*itertools.chain(*itertools.islice(pages(*site, 99, cursor), 400))}
        assert (len(listed) == len(NAMES)) is everything


@pytest.mark.parametrize("cursor", ["nonsense!", "MCAwMHJ1bg", "NyBbMCwwLG51bGxd"])
def test_a_cursor_of_another_list_is_refused(site, cursor):
    """With the exit code of wrong usage, and what to give."""
    done = site[1]("api", "GET", f"/v1/sessions?cursor={cursor}")
    assert (done.exit_code, "cursor of a listing" in done.stderr) == (2, True)
