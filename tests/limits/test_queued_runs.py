"""Runs that wait for others of their key: what damage does to them, and what is shown."""

from __future__ import annotations

from contextlib import closing

import pytest
import redis

from runner.errors import DamagedRun
from runner.limits.concurrency import Admission, Concurrency, Debounce
from runner.operations.doctor import PASS, WARN, examine, read_facts
from runner.operations.installation import Installation
from runner.records.run import Status
from runner.settings import Settings
from runner.store.interface import Start
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.requests import CancelRun, StartRun
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, rung, shape
from tests.server.conftest import Site

PREFIX = Keys("runner").prefix
NO_TEXT = b"\xff"


class Starts:
    """A store with a graph whose runs depend on each other by a tag, and starts of it."""

    def __init__(self, url, concurrency=None, debounce=None, name="g"):
        # Lists have the time of the server.
        self.raw = redis.Redis.from_url(url)
        self.clock = ManualClock(int(self.raw.time()[0]) * 1000)
        self.store = RedisStore(url, clock=self.clock)
        self.worker = ManualWorker(self.store, self.clock)
        self.name = name
        self.graph = shape("a", name=name, admission=Admission(0, concurrency, debounce))
        self.store.publish([self.graph])
        self.installation = Installation(Settings(redis_url=url))

    def start(self, run_id, account="7", **options):
        """Start a run later than the one before; return its reply."""
        self.clock.advance(1)
        self.worker.know(run_id, self.graph)
        start = Start(run_id, self.name, None, "task", tags={"account": account}, **options)
        return self.store.do(StartRun(start))

    def told(self, result):
        """Return what doctor says of keys of runs, as a pass or as a warning."""
        checks = examine(read_facts(self.installation.settings))
        return [
            check.detail
            for check in checks
            if (check.name, check.result) == ("keys of runs", result)
        ]

    def close(self):
        self.store.close()
        self.raw.close()


@pytest.fixture
def begin(redis_url):
    """Make a store with rules for starts; it is closed with the test."""
    opened = []

    def make(*rules, **options):
        opened.append(closing(Starts(redis_url, *rules, **options)))
        return opened[-1].__enter__()

    yield make
    for each in opened:
        each.__exit__(None, None, None)


@pytest.mark.full
@pytest.mark.parametrize("damaged", [0, 3])
def test_damaged_members_of_a_queue_hold_no_run_up(begin, damaged):
    """The run behind those that are no text begins with the end before it; control: none are damaged."""
    site = begin(Concurrency(1, by="tag:account"))
    assert [rung(site.start(name)) for name in ("00one", "00two")] == [["a.1.1"], []]
    queue = f"{PREFIX}key:q:g:account=7"
    for number in range(damaged):
        site.raw.zadd(queue, {NO_TEXT + b"%d" % number: number})
    site.start("00three")

    for name in ("00one", "00two", "00three"):
        site.worker.run(name, "a")
        assert site.worker.statuses(name) == "completed: a completed"
    assert site.raw.exists(queue) == 0


def test_a_run_that_has_ended_takes_no_place(begin):
    """One that was cancelled after the queue was read is passed over: the run behind it begins."""
    site = begin(Concurrency(1, by="tag:account"))
    for name in ("00one", "00two", "00three"):
        site.start(name)
    site.store.do(CancelRun("00two", "", "nonce"))
    site.raw.zadd(f"{PREFIX}key:q:g:account=7", {"00two": 1})

    site.worker.run("00one", "a")
    assert site.raw.zrange(f"{PREFIX}key:o:g:account=7", 0, -1) == [b"00three"]
    site.worker.run("00three", "a")


@pytest.mark.full
@pytest.mark.parametrize(
    ("field", "value"), [("run", b"x"), ("run", b"\xff"), ("of", b"x"), ("of", b"\xff a b")]
)
def test_a_damaged_run_is_passed_over(begin, field, value):
    """One that waits and can't be read holds up neither the end before it nor the run behind."""
    site = begin(Concurrency(1, by="tag:account"))
    for name in ("00one", "00two", "00three"):
        site.start(name)
    site.raw.hset(Keys().run("00two"), field, value)

    site.worker.run("00one", "a")
    assert site.raw.zrange(f"{PREFIX}key:o:g:account=7", 0, -1) == [b"00three"]
    with pytest.raises(DamagedRun, match="00two is damaged"):
        site.store.do(CancelRun("00two", "", "nonce"))


@pytest.mark.full
@pytest.mark.parametrize("when_full", ["queue", "refuse", "replace", "skip"])
def test_a_damaged_open_run_takes_one_place(begin, when_full):
    """A start beside one that is no text is answered as beside a run, and its place is the only one taken."""
    site = begin(Concurrency(2, by="tag:account", when_full=when_full))
    site.raw.zadd(f"{PREFIX}key:o:g:account=7", {NO_TEXT: 1})
    assert rung(site.start("00one")) == ["a.1.1"]
    word = {"refuse": "full", "skip": "exists"}.get(when_full, "started")
    reply = site.start("00two")
    assert (reply.word, rung(reply)) == (word, [])
    assert r"\xff first" in reply.detail or when_full != "refuse"


def test_a_damaged_debounced_run_is_no_run(begin):
    """A start beside one that is no text begins a run, which the next start of the key gets."""
    site = begin(None, Debounce(30, by="tag:account"))
    site.raw.zadd(f"{PREFIX}key:d:g:account=7", {NO_TEXT: 1})
    replies = [site.start("00one"), site.start("00two")]
    assert [(reply.word, reply.run_id) for reply in replies] == [
        ("started", "00one"),
        ("exists", "00one"),
    ]


@pytest.mark.full
def test_keys_say_which_runs_wait_and_behind_which(begin):
    """A key is listed while a run waits, with those that are open; control: an account without a wait."""
    site = begin(Concurrency(1, by="tag:account"), name="sync")
    for name in ("00one", "00two", "00three"):
        site.start(name)
    site.start("00other", "8")
    started = site.clock()

    (key,) = site.installation.queued_keys()
    assert (key.graph, key.key, key.runs, key.since) == (
        "sync",
        "account=7",
        2,
        started - 2_000,
    )
    named = [(run.run_id, run.since - started, run.status) for run in (*key.open, *key.waiting)]
    assert named == [
        ("00one", -3_000, Status.EXECUTING),
        ("00two", -2_000, Status.EXECUTING),
        ("00three", -1_000, Status.EXECUTING),
    ]
    site.worker.run("00one", "a")
    (key,) = site.installation.queued_keys("sync")
    assert (key.runs, key.since, key.open[0].run_id) == (1, started - 1_000, "00two")
    assert list(site.installation.queued_keys("other")) == []
    site.store.do(CancelRun("00three", "", "nonce"))
    assert list(site.installation.queued_keys()) == []
    assert not site.raw.exists(f"{PREFIX}key:w:sync")


@pytest.mark.full
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_list_of_queued_keys_has_pages(redis_url, partitions):
    """Also of keys that wait since one moment, in any partition, each is on one page, the oldest first."""
    installation = Installation(Settings(redis_url=redis_url, partitions=partitions))
    graph = shape("a", admission=Admission(concurrency=Concurrency(1, by="tag:account")))
    with closing(installation.store) as store, redis.Redis.from_url(redis_url) as raw:
        store.publish([graph])
        for number in range(12):
            tags = {"account": str(number)}
            partition = store.partition("g", None, tags)
            for name in ("opened", "waits"):
                run_id = f"{partition:02d}{name}{number}"
                store.do(StartRun(Start(run_id, "g", None, "task", tags=tags)))
            if number % 4:
                own = Keys("runner", f"p{partition:02d}").prefix
                raw.zadd(f"{own}key:w:g", {f"account={number}": 1}, xx=True)
        pages, cursor = [], None
        while pages == [] or cursor:
            pages.append(installation.queued_keys("", 5, cursor))
            cursor = pages[-1].next
    assert [len(page) for page in pages] == [5, 5, 2]
    names = [key.key for page in pages for key in page]
    assert names[:9] == sorted(f"account={number}" for number in range(12) if number % 4)
    assert sorted(names[9:]) == ["account=0", "account=4", "account=8"]


def test_a_list_of_queued_keys_is_of_the_graph_that_a_person_may_see(redis_url, begin):
    """With roles of one graph a person sees its keys only, and is refused those of another."""
    for name in ("pay", "ship"):
        site = begin(Concurrency(1), name=name)
        for number in range(2):
            site.start(f"00{name}{number}")
    pages = Site(redis_url, {})
    everything = [each["graph"] for each in pages.http.get("/v1/limits/queued").json()["items"]]
    assert everything == ["pay", "ship"]
    pages.as_role("viewer:pay")
    own = pages.http.get("/v1/limits/queued").json()["items"]
    assert [each["graph"] for each in own] == ["pay"]
    assert pages.http.get("/v1/limits/queued?graph=ship").status_code == 403


@pytest.mark.full
@pytest.mark.parametrize(
    ("does", "found"),
    [
        ("executes", "executes"),
        ("asks", "waits for people"),
        ("gone", "has ended, or is gone, and keeps its place"),
        ("ended", "has ended, or is gone, and keeps its place"),
    ],
)
def test_doctor_says_behind_which_run_others_wait(begin, does, found):
    """It names the open run and what that does: a warning after `RUNNER_MAX_WAIT`, a pass before."""
    site = begin(Concurrency(1, by="tag:account"), name="sync")
    for name in ("00one", "00two"):
        site.start(name)
    if does == "asks":
        site.worker.park("00one", "a")
    if does == "gone":
        site.raw.delete(Keys().run("00one"))
    if does == "ended":
        site.raw.hset(Keys().run("00one"), "run", "completed 0 0 0 0 1 3 -")
    (told,), warned = site.told(PASS), site.told(WARN)
    assert told.startswith("runs of the graph 'sync' wait for 'account=7' (1) behind '00one'")
    assert warned == []
    for part in ("q:sync:account=7", "w:sync"):
        (member,) = site.raw.zrange(f"{PREFIX}key:{part}", 0, -1)
        site.raw.zadd(f"{PREFIX}key:{part}", {member: site.clock() - 400_000})
    (problem,) = site.told(WARN)
    assert problem.startswith(
        f"runs of the graph 'sync' wait for 'account=7' (1) behind '00one', which {found}, the first for "
        "6 min"
    )


@pytest.mark.full
@pytest.mark.parametrize("name", ["sync", "eu:sync"])
def test_doctor_names_the_list_that_a_run_is_to_be_removed_from(begin, name):
    """Of a graph with a colon, too: the run that is gone is in the sorted set that doctor names."""
    site = begin(Concurrency(1, by="tag:account"), name=name)
    for run_id in ("00one", "00two"):
        site.start(run_id)
    site.raw.delete(Keys().run("00one"))
    graph = name.replace(":", "//")
    site.raw.zadd(f"{PREFIX}key:q:{graph}:account=7", {"00two": site.clock() - 700_000})
    site.raw.zadd(f"{PREFIX}key:w:{graph}", {"account=7": site.clock() - 700_000})
    checks = examine(read_facts(site.installation.settings))
    (fix,) = [check.fix for check in checks if check.name == "keys of runs"]
    (named,) = [word for word in fix.split() if word.startswith("key:o:")]
    assert site.raw.zrem(PREFIX + named, "00one") == 1


def test_damaged_members_hide_no_key_and_are_named(begin):
    """A member that is no text is shown as it is, and doctor names it; the runs beside it are listed."""
    site = begin(Concurrency(1, by="tag:account"))
    site.raw.zadd(f"{PREFIX}key:o:g:account=7", {NO_TEXT: 1})
    site.start("00one")
    site.raw.zadd(f"{PREFIX}key:q:g:account=7", {NO_TEXT: 1})
    site.raw.zadd(f"{PREFIX}key:w:g", {NO_TEXT: 1})
    (key,) = site.installation.queued_keys()
    assert [(run.run_id, run.status) for run in key.open] == [("\\xff", None)]
    assert [run.run_id for run in key.waiting] == ["\\xff", "00one"]
    told = [*site.told(PASS), *site.told(WARN)]
    assert len(told) == 2
    assert all(r"\xff" in each for each in told)


@pytest.mark.full
def test_a_bound_that_a_deploy_raises_admits_what_fits(begin):
    """The sweeps after it begin as many runs of each key as may be open, or all; a lower one begins none."""
    site = begin(Concurrency(1, by="tag:account"))
    many, few = [f"00a{number}" for number in range(5)], ["00b0", "00b1"]

    def deploy(at_most):
        rules = Admission(0, Concurrency(at_most, by="tag:account")) if at_most else None
        site.store.publish([shape("a", name=site.name, admission=rules)])

    def begun():
        for _ in range(3):
            site.worker.sweep()
        return [sum(bool(site.worker.read(run).nodes) for run in runs) for runs in (many, few)]

    for account, runs in (("7", many), ("8|a:b", few)):
        for run in runs:
            site.start(run, account)
    assert begun() == [1, 1]
    deploy(1)
    assert site.raw.zcount(f"{PREFIX}timers", "-inf", site.clock()) == 0
    deploy(4)
    assert begun() == [4, 2]
    deploy(2)
    assert begun() == [4, 2]
    deploy(0)
    assert begun() == [5, 2]


def test_a_higher_bound_of_open_runs_holds_for_the_next_start(begin):
    """Starts over it are refused, so none waits for the deploy that raises it."""
    site = begin(name="h")
    for most, words in ((1, ["started", "full"]), (2, ["started", "full"])):
        site.store.publish([shape("a", name="h", admission=Admission(most))])
        assert [site.start(f"00{most}{number}").word for number in range(2)] == words
