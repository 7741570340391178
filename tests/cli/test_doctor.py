from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runner.cli.checks import examine
from runner.cli.doctor import place, trouble
from runner.cli.facts import FAIL, PASS, WARN, Facts
from runner.store.roster import Worker
from runner.store.vitals import Vitals, vitals
from tests.waiting import wait_until

NOW = 1_800_000_000_000
VITALS = Vitals("Valkey 9.1.0", (9, 1), NOW, "noeviction", True, 2_000_000, 0, 0, "always")
WORKER = Worker(
    name="celery@one",
    pid=1,
    pool="threads",
    slots=4,
    queues=["runner"],
    wants=["runner"],
    graphs={"refund": "f1"},
    accepts=["json"],
    lease=30.0,
    sweep_interval=5.0,
    seen=NOW,
)
WELL = Facts(VITALS, [WORKER], {"refund": "f1", "refund/inner": "f2"}, 0, NOW, 5.0, "", True, False)


def other(**changes):
    return replace(WORKER, name="celery@two", pid=2, **changes)


CASES = [
    ("version", FAIL, replace(WELL, vitals=replace(VITALS, version=(6, 0)))),
    ("eviction", FAIL, replace(WELL, vitals=replace(VITALS, policy="allkeys-lru"))),
    ("eviction", WARN, replace(WELL, vitals=replace(VITALS, policy="volatile-ttl"))),
    ("disk", WARN, replace(WELL, vitals=replace(VITALS, appendonly=False))),
    ("disk", WARN, replace(WELL, vitals=replace(VITALS, fsync="no"))),
    ("durability", FAIL, replace(WELL, durability="fsync", vitals=replace(VITALS, unable="it is off"))),
    ("durability", FAIL, replace(WELL, durability="replica")),
    (
        "durability",
        WARN,
        replace(WELL, durability="replica", vitals=replace(VITALS, replicas=1, least_replicas=0)),
    ),
    ("memory", WARN, replace(WELL, vitals=replace(VITALS, memory_limit=2_100_000))),
    ("password", WARN, replace(WELL, unguarded=True)),
    ("clocks", WARN, replace(WELL, clock=NOW + 5_000)),
    ("clocks", WARN, replace(WELL, workers=[replace(WORKER, ahead=-3_000)])),
    ("broker", FAIL, replace(WELL, broker="amqp://gone can't be reached")),
    ("workers", FAIL, replace(WELL, workers=[], graphs={})),
    ("workers", FAIL, replace(WELL, workers=[replace(WORKER, seen=NOW - 60_000)], graphs={})),
    ("workers", WARN, replace(WELL, workers=[WORKER, other(seen=NOW - 60_000)])),
    ("stopping", WARN, replace(WELL, workers=[WORKER, other(stopping=21.0, grace=10.0)])),
    ("graphs", WARN, replace(WELL, graphs={"refund": "f1", "hire": "f3"})),
    ("deploy", WARN, replace(WELL, workers=[WORKER, other(graphs={"refund": "f9"})])),
    ("deploy", WARN, replace(WELL, graphs={"refund": "f9"})),
    ("queues", FAIL, replace(WELL, workers=[replace(WORKER, wants=["gpu", "runner"])])),
    ("sweep", WARN, replace(WELL, vitals=replace(VITALS, overdue=60_000))),
    ("intervals", WARN, replace(WELL, workers=[replace(WORKER, sweep_interval=60.0)])),
    ("leases", WARN, replace(WELL, workers=[WORKER, other(lease=10.0)])),
    ("messages", FAIL, replace(WELL, workers=[replace(WORKER, accepts=["json", "pickle"])])),
    ("visibility", WARN, replace(WELL, workers=[replace(WORKER, visibility=10.0)])),
    ("events", WARN, replace(WELL, workers=[replace(WORKER, events=False)])),
    ("dead letters", WARN, replace(WELL, letters=3)),
    ("settings", WARN, replace(WELL, unknown=["RUNNER_LEESE (environment) is no setting"])),
    ("settings", WARN, replace(WELL, sizes={"result": 10, "state": 2, "run": 9})),
]


def test_a_healthy_installation_passes_everything():
    """Where nothing is wrong, nothing is said to be wrong."""
    assert {check.word for check in examine(WELL)} == {PASS}


@pytest.mark.parametrize(("name", "word", "facts"), CASES, ids=[f"{name}-{word}" for name, word, _ in CASES])
def test_each_fault_is_found_alone_and_has_a_fix(name, word, facts):
    """A fault is told by its own check, with what to do about it."""
    (found,) = [check for check in examine(facts) if check.word != PASS]

    assert (found.name, found.word) == (name, word)
    assert found.fix.endswith(".")


@pytest.mark.parametrize(
    ("fsync", "said"), [("always", "loses nothing"), ("everysec", "two seconds"), ("", "doesn't tell")]
)
def test_what_a_crash_of_the_store_may_lose_is_said(fsync, said):
    """Whoever chose a setting for speed reads what it risks, and the other way round what safety costs."""
    checks = examine(replace(WELL, vitals=replace(VITALS, fsync=fsync)))
    (disk,) = [check for check in checks if check.name == "disk"]

    assert disk.word == PASS
    assert said in disk.found


def test_doctor_looks_at_a_real_store_and_worker(cli):
    """On a real site everything passes but the append-only file, which the test's store does without."""
    wait_until(lambda: "celery@" in cli("workers", "list").stdout, "the worker is on the list")
    done = cli("doctor", "--json")
    checks = {check["name"]: check["result"] for check in json.loads(done.stdout)["checks"]}

    assert done.exit_code == 0
    assert checks.pop("disk") == "warn"
    assert checks.pop("dead letters") in {"pass", "warn"}
    assert set(checks.values()) == {"pass"}


def test_how_the_store_writes_to_disk_is_asked_of_it(shop_url):
    """The setting that counts is the server's own."""
    assert vitals(shop_url).fsync == "always"


def test_doctor_fails_where_no_worker_is(cli, redis_url):
    """A script learns from the exit code that runs would not go on."""
    done = cli("doctor", url=redis_url)
    cells = [line.split("\t") for line in done.stdout.splitlines()]

    assert done.exit_code == 1
    assert ["FAIL", "workers", "none", "Start one with `runner worker`."] in cells


def test_doctor_says_when_the_store_is_away(cli):
    """Without a store there is nothing to check, and the code says so."""
    assert cli("doctor", url="redis://127.0.0.1:1/0").exit_code == 7


def test_a_broker_that_is_away_is_named_without_its_password():
    """What is shown can be sent to others."""
    said = trouble("amqp://ana:secret@127.0.0.1:1//")

    assert "127.0.0.1:1" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@db:6379/0", "redis://:***@db:6379/0"),
        ("unix:///run/store.sock?db=0&password=secret", "unix:///run/store.sock?db=0&password=***"),
        ("redis://db/1", "redis://db/1"),
    ],
)
def test_passwords_are_never_shown(url, shown):
    """A URL is shown with its password left out, wherever it stands."""
    assert place(url) == shown


def test_a_worker_tells_what_it_is(cli):
    """The list of workers names pool, slots, queues and graphs of each."""
    wait_until(lambda: "celery@" in cli("workers", "list").stdout, "the worker is on the list")
    (worker,) = json.loads(cli("workers", "list", "--json").stdout)["workers"]

    assert (worker["state"], worker["pool"], worker["slots"]) == ("alive", "threads", 8)
    assert worker["queues"] == ["runner"]
    assert "shop-refund" in worker["graphs"]
