from __future__ import annotations

import itertools
import re
import threading
from dataclasses import replace

import pytest
import redis

from runner import Client
from runner.definition.registry import Registry
from runner.errors import ConflictError, NotFoundError, StoreError, UsageError
from runner.operations.doctor import examine, read_facts
from runner.schedules import scheduler as module
from runner.schedules.schedule import Schedule
from runner.schedules.scheduler import LATE, Scheduler
from runner.settings import Settings
from runner.store.redis.documents import Documents, timer_of
from runner.store.redis.partitions import open_store
from tests.graphs import ident, single
from tests.waiting import wait_until

MINUTELY = Schedule("s", "g", task={"a": 1}, interval=60, tags={"team": "a"})


class Ignored:
    def ring(self, doorbells):
        pass

    def call(self, task, kwargs, task_id):
        return True


class Site:
    """A store with one graph, whose clock can be said to be later by moving a schedule's times."""

    def __init__(self, url):
        self.settings, registry = Settings(redis_url=url, lease=1), Registry()
        registry.add("g", lambda: single(ident))
        registry.add("asks", lambda: single(lambda ctx: ctx.interrupt("go on?")))
        self.client = Client(
            store=open_store(self.settings), dispatcher=Ignored(), registry=registry
        )
        self.engine = self.client.engine
        self.engine.publish(["g", "asks"])
        self.raw = redis.Redis.from_url(url)

    def scheduler(self):
        """What one more process has."""
        return Scheduler(self.engine, Documents(Schedule, self.settings.redis_url))

    def make_due(self, schedule_id, by=1_000):
        """Set a schedule and its timer to so many ms ago."""
        schedules = Documents(Schedule, self.settings.redis_url)
        before = schedules.get(schedule_id)
        assert schedules.replace(before, replace(before, next_at=schedules.now() - by))

    def runs(self):
        return self.client.runs(tags={"schedule": "s"}).items

    def timer(self):
        return self.raw.zscore("runner:{p00}:timers", timer_of("schedule", "s"))


@pytest.fixture
def site(redis_url):
    """A store on which nothing is scheduled yet."""
    return Site(redis_url)


@pytest.fixture
def scheduler(site):
    """The scheduler of a process, with a schedule."""
    scheduler = site.scheduler()
    scheduler.add(MINUTELY)
    return scheduler


def test_a_sweep_starts_what_is_due(site):
    """The run has the task, the tags and the time; the next sweep starts nothing more."""
    scheduler = site.scheduler()
    site.engine.fire = {"schedule": scheduler.fire}
    made = scheduler.add(MINUTELY)
    site.engine.sweep()
    assert site.runs() == ()
    site.make_due("s")

    site.engine.sweep()
    site.engine.sweep()

    (run,) = site.runs()
    after = scheduler.schedules.get("s")
    assert run.tags["team"] == "a"
    assert run.tags["scheduled_at"]
    assert site.engine.store.read(run.run_id).task == {"a": 1}
    assert (after.last_run, after.next_at > made.created_at) == (run.run_id, True)
    assert site.timer() == after.next_at


def test_a_schedule_says_why_it_started_nothing(site, scheduler):
    """Until a later time starts a run."""
    scheduler.schedules.change("s", lambda schedule: replace(schedule, graph="away"))
    site.make_due("s")
    assert scheduler.fire("s") == ""
    failed = scheduler.schedules.get("s")
    scheduler.schedules.change("s", lambda schedule: replace(schedule, graph="g"))
    site.make_due("s")
    run_id = scheduler.fire("s")

    started = scheduler.schedules.get("s")
    assert ("'away'" in failed.error, failed.last_run) == (True, "")
    assert (started.error, started.last_run) == ("", run_id)


@pytest.mark.full
def test_the_doctor_names_a_schedule_that_starts_no_run(site, scheduler):
    """Since its start fails, nothing looks at it, or its last run waits; not one that works, or is paused."""

    def named(*, advice=""):
        checks = examine(read_facts(site.settings))
        found = [check for check in checks if check.name == "schedule"]
        assert all(advice in check.fix for check in found)
        return [re.split(":|, and", check.detail)[0] for check in found]

    assert named() == []
    site.make_due("s", by=LATE + 1)
    late = ["s is late"]
    assert named(advice="s:pause") == late
    scheduler.schedules.change("s", lambda schedule: replace(schedule, graph="away"))
    scheduler.fire("s")
    assert named(advice="DELETE /v1/schedules/s") == ["s started no run"]
    scheduler.schedules.change("s", lambda schedule: replace(schedule, graph="asks"))
    site.make_due("s")
    run_id = scheduler.fire("s")
    assert named() == []
    site.engine.deliver(run_id, "a", 1, 1)
    assert named(advice=run_id) == [f"s starts no run before its last one, {run_id}, has ended"]
    scheduler.pause("s")
    assert named() == []


@pytest.mark.full
def test_many_processes_start_one_run(site):
    """Each time has one run, however many take it at once."""
    site.scheduler().add(MINUTELY)
    site.make_due("s")
    together = threading.Barrier(8)

    def fire():
        scheduler = site.scheduler()
        together.wait()
        scheduler.fire("s")

    threads = [threading.Thread(target=fire) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(site.runs()) == 1


def test_a_process_that_dies_between_start_and_record_doubles_nothing(site, monkeypatch):
    """The timer comes again after a lease, and gets the run that was started."""
    dying = site.scheduler()
    dying.add(MINUTELY)
    site.make_due("s")

    def die(*_):
        raise StoreError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "replace", die)
        with pytest.raises(StoreError):
            dying.fire("s")
    assert len(site.runs()) == 1
    assert site.scheduler().schedules.get("s").last_run == ""
    site.engine.fire = {"schedule": site.scheduler().fire}

    def is_taken():
        site.engine.sweep()
        return site.scheduler().schedules.get("s").last_run

    wait_until(is_taken, "another process takes it")

    assert len(site.runs()) == 1


def test_without_a_key_of_the_time_it_would_be_doubled(site, monkeypatch):
    """The control of the two tests above: the key is what makes repeats the same run."""
    numbers = itertools.count()
    monkeypatch.setattr(module, "key_of", lambda *_: f"any {next(numbers)}")
    scheduler = site.scheduler()
    scheduler.add(MINUTELY)
    site.make_due("s")
    with monkeypatch.context() as patch:
        patch.setattr(Documents, "replace", lambda *_: False)
        scheduler.fire("s")
    scheduler.fire("s")

    assert len(site.runs()) == 2


def test_a_paused_schedule_has_no_timer(site, scheduler):
    """Pausing takes the timer away, resuming sets it for the next time behind now."""
    scheduler.pause("s")
    assert site.timer() is None
    site.make_due("s")
    resumed = scheduler.resume("s")

    assert site.timer() == resumed.next_at > scheduler.schedules.now()


def test_a_backfill_starts_each_time_once(site, scheduler):
    """A range that was filled before gets no second runs."""
    first = scheduler.backfill("s", 0, 300_000)
    again = scheduler.backfill("s", 60_000, 360_000)

    assert len(first) == len(again)
    assert len(site.runs()) == len({*first, *again})
    assert set(first) & set(again)


def test_a_schedule_needs_its_graph_and_its_name(site, scheduler):
    """An unknown graph, a name that is taken and one that is not there are said at once."""
    with pytest.raises(ConflictError):
        scheduler.add(
            Schedule("s", MINUTELY.graph, interval=120)
        )  # the same twice in a ms is one
    with pytest.raises(NotFoundError, match="nowhere"):
        scheduler.add(Schedule("t", "nowhere", interval=60))
    with pytest.raises(NotFoundError):
        scheduler.pause("t")
    scheduler.remove("s")
    assert (scheduler.schedules.all(), site.timer()) == ([], None)
    assert scheduler.fire("s") == ""


def due_beside_a_broken_one(site):
    """Sweep where one of two schedules that are due can't be used."""
    scheduler = site.scheduler()
    scheduler.add(MINUTELY)
    scheduler.add(replace(MINUTELY, id="a-broken"))
    site.make_due("a-broken", by=9_000)
    site.make_due("s")

    def fire(schedule_id):
        if schedule_id == "a-broken":
            raise ValueError("a document of another version")
        scheduler.fire(schedule_id)

    site.engine.fire = {"schedule": fire}
    site.engine.sweep()


def documents(site):
    """Store a schedule, and return what two processes have."""
    site.scheduler().add(MINUTELY)
    return [Documents(Schedule, site.settings.redis_url) for _ in range(2)]


def test_changes_at_the_same_time_are_both_made(site):
    """A change that another one comes between is made again, on what that has written."""
    first, second = documents(site)
    seen = []

    def pause(schedule):
        if not seen:
            second.change("s", lambda other: replace(other, interval=120))
        seen.append(schedule.interval)
        return replace(schedule, paused=True)

    assert first.change("s", pause) == second.get("s")
    assert (second.get("s").interval, second.get("s").paused, seen) == (120, True, [60, 120])
    assert site.timer() is None


def test_a_change_whose_reply_is_lost_is_made_once(site):
    """The repeat finds what the first request has written, and leaves it."""
    first, second = documents(site)
    calls = []

    def double(schedule):
        doubled = replace(schedule, interval=2 * schedule.interval)
        if not calls:
            second.replace(schedule, doubled)  # as the request whose reply is lost
        calls.append(schedule)
        return doubled

    assert first.change("s", double).interval == second.get("s").interval == 120
    assert len(calls) == 1


def test_a_replacement_of_what_has_changed_is_refused(site):
    """It changes nothing; the control is the one that comes first."""
    first, second = documents(site)
    before = first.get("s")

    assert second.replace(before, replace(before, interval=120))
    assert not first.replace(before, replace(before, interval=180))
    assert first.get("s").interval == 120


def test_schedules_have_a_most(site, monkeypatch):
    """One more than a namespace may have is refused until another one is removed."""
    monkeypatch.setattr(Schedule, "limit", 2)
    scheduler = site.scheduler()
    for name in ("a", "b"):
        scheduler.add(replace(MINUTELY, id=name))
    with pytest.raises(UsageError, match="there are 2 schedules already"):
        scheduler.add(replace(MINUTELY, id="c"))
    scheduler.remove("a")

    assert scheduler.add(replace(MINUTELY, id="c")).id == "c"


def test_a_broken_schedule_keeps_no_other_waiting(site):
    """The other one is started by the same sweep, and the sweep does what else is due."""
    due_beside_a_broken_one(site)

    assert len(site.runs()) == 1


def test_a_sweep_that_ends_at_the_first_error_would_keep_it(site, monkeypatch):
    """The control of the test above."""
    monkeypatch.setattr(
        type(site.engine), "_fire", lambda engine, kind, name: engine.fire[kind](name)
    )

    with pytest.raises(ValueError, match="another version"):
        due_beside_a_broken_one(site)
    assert site.runs() == ()
