from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from runner.approvals import Principal
from runner.approvals.freezes import Freeze
from runner.approvals.keys import KeySet
from runner.errors import StoreError
from runner.operations.doctor import (
    FAIL,
    PASS,
    WARN,
    Audited,
    Facts,
    _foreign_queues,
    broker_detail,
    broker_problem,
    examine,
    signing_problem,
)
from runner.records.workers import Worker
from runner.settings import Settings
from runner.store.addresses import without_password
from runner.store.redis.connection import RedisConnection
from runner.store.redis.server_info import ServerInfo, read_server_info
from runner.store.redis.store import RedisStore
from tests.chaos.servers import SERVICE, Sentinel, Server, redis_of_the_system
from tests.cli.conftest import read
from tests.contract.store.manual_worker import ManualWorker
from tests.contract.store.voting import TWO, voting
from tests.rabbitmq import rabbit
from tests.waiting import wait_until

__all__ = ["rabbit"]

NOW = 1_800_000_000_000
VITALS = ServerInfo("Valkey 9.1.0", (9, 1), NOW, "noeviction", True, 2_000_000, 0, 0, "always")
ARCHIVE = {"place": "folder", "at": str(NOW - 10_000), "problem": ""}
WORKER = Worker(
    name="celery@one",
    pid=1,
    pool="threads",
    slots=4,
    queues=["runner", "runner/refund"],
    wants=["runner/refund"],
    graphs={"refund": "f1"},
    accepts=["json"],
    lease=30.0,
    sweep_interval=5.0,
    seen=NOW,
)
WELL = Facts(
    VITALS,
    [WORKER],
    {"refund": "f1", "refund/inner": "f2"},
    0,
    NOW,
    Settings(),
    graph_queues={"refund": {"runner/refund"}},
    run_queues={"refund": {"runner/refund"}},
    voters=["human:|ana", "human:https://idp|ben", "service:ci|ana"],
)


def on_store(**vitals):
    """Return the facts of an installation whose store is as well but for these."""
    return replace(WELL, vitals=replace(VITALS, **vitals))


def on_worker(**facts):
    """Return the facts of an installation whose worker is as well but for these."""
    return replace(WELL, workers=[replace(WORKER, **facts)])


def other(**changes):
    return replace(WORKER, name="celery@two", pid=2, **changes)


CASES = [
    ("version", FAIL, replace(WELL, vitals=replace(VITALS, version=(6, 0)))),
    ("eviction", FAIL, on_store(policy="allkeys-lru")),
    ("eviction", WARN, on_store(policy="volatile-ttl")),
    ("disk", WARN, on_store(appendonly=False)),
    ("disk", WARN, on_store(fsync="no")),
    ("disk", FAIL, on_store(refused="MISCONF: no space")),
    ("queues", WARN, replace(WELL, unasked="Authentication required.")),
    (
        "durability",
        FAIL,
        replace(
            WELL,
            settings=Settings(durability="fsync"),
            vitals=replace(VITALS, unable="it is off"),
        ),
    ),
    ("durability", FAIL, replace(WELL, settings=Settings(durability="replica"))),
    (
        "durability",
        WARN,
        replace(
            WELL,
            settings=Settings(durability="replica"),
            vitals=replace(VITALS, replicas=1, least_replicas=0),
        ),
    ),
    ("partitions", FAIL, replace(WELL, layout="partition 1 is on a server that is not named")),
    ("queues", FAIL, replace(on_worker(queues=["runner/refund"]), unread_queues={"runner"})),
    ("partitions", FAIL, on_worker(partitions=2)),
    ("partitions", FAIL, replace(WELL, server_processes=[replace(WORKER, partitions=2)])),
    (
        "sweep",
        WARN,
        replace(
            WELL,
            other_servers={"redis://b": replace(VITALS, overdue=60_000)},
            settings=Settings(partitions=2),
        ),
    ),
    ("memory", WARN, on_store(memory_limit=2_100_000)),
    ("store", FAIL, on_store(role="slave")),
    ("memory", FAIL, on_store(memory_limit=2_010_000)),
    ("password", WARN, replace(WELL, settings=Settings(redis_url="redis://far"))),
    ("clocks", WARN, replace(WELL, clock=NOW + 5_000)),
    ("clocks", WARN, on_worker(ahead=-3_000)),
    ("clocks", WARN, replace(WELL, server_processes=[Worker("server-1@far", ahead=-3_000)])),
    ("broker", FAIL, replace(WELL, broker="amqp://gone can't be used")),
    ("workers", FAIL, replace(WELL, workers=[], graphs={})),
    ("workers", FAIL, replace(WELL, workers=[replace(WORKER, seen=NOW - 60_000)], graphs={})),
    ("workers", WARN, replace(WELL, workers=[WORKER, other(seen=NOW - 60_000)])),
    (
        "worker names",
        WARN,
        replace(WELL, workers=[WORKER, replace(WORKER, pid=WORKER.pid + 1)]),
    ),
    ("stopping", WARN, replace(WELL, workers=[WORKER, other(stopping=21.0, grace=10.0)])),
    ("graphs", WARN, replace(WELL, graphs={"refund": "f1", "hire": "f3"})),
    ("graphs", FAIL, replace(WELL, graphs={})),
    ("deploy", WARN, replace(WELL, workers=[WORKER, other(graphs={"refund": "f9"})])),
    ("deploy", WARN, replace(WELL, graphs={"refund": "f9"})),
    (
        "graphs",
        FAIL,
        replace(
            WELL, graphs={"refund": "f1", "hire": "f3"}, run_queues={"hire": {"runner/hire"}}
        ),
    ),
    ("archive", FAIL, replace(WELL, settings=Settings(archive="/folder"))),
    (
        "archive",
        FAIL,
        on_store(archive={**ARCHIVE, "problem": "the disk is full"}),
    ),
    (
        "archive",
        FAIL,
        on_store(archive={**ARCHIVE, "at": str(NOW - 400_000)}),
    ),
    (
        "queues",
        FAIL,
        on_worker(wants=["runner/gpu", "runner/refund"]),
    ),
    ("queues", FAIL, replace(WELL, run_queues={"refund": {"runner/former"}})),
    ("queues", FAIL, replace(WELL, unreadable=["runner/refund"])),
    ("routing", FAIL, replace(WELL, workers=[WORKER, other(graphs={})])),
    ("sweep", WARN, on_store(overdue=60_000)),
    ("timers", FAIL, on_store(failing=["00run"])),
    ("intervals", WARN, on_worker(sweep_interval=60.0)),
    ("leases", WARN, replace(WELL, workers=[WORKER, other(lease=10.0)])),
    ("messages", WARN, on_worker(accepts=["json", "pickle"])),
    ("visibility", WARN, on_worker(visibility=10.0)),
    ("events", WARN, on_worker(events=False)),
    ("dead letters", WARN, replace(WELL, letters=3)),
    ("held", WARN, replace(WELL, held=["0run"])),
    (
        "settings",
        WARN,
        replace(WELL, unknown_settings=["RUNNER_LEESE (environment) is not a setting"]),
    ),
    *(
        (
            "audit",
            result,
            replace(WELL, audits=[Audited("runner/p00", *audited)]),
        )
        for result, *audited in [
            (FAIL, 9, 9, 0, 0, "the disk is full"),
            (FAIL, 9, 9, 3, 61_000, ""),
            (WARN, 9, 0, 0, 0, ""),
            (WARN, 1_000, 9, 0, 0, ""),
        ]
    ),
    ("settings", WARN, replace(WELL, settings=Settings(max_run=5_000_000))),
    ("keys", WARN, replace(WELL, signing="no such file")),
    ("voters", WARN, replace(WELL, voters=["human:|ana", "human:https://idp|ana"])),
    (
        "schedule",
        WARN,
        replace(WELL, schedules=[("nightly started no run: no graph", "Fix it.")]),
    ),
    (
        "freeze",
        WARN,
        replace(WELL, freezes=[Freeze("tool:refund", "fraud", "ana", NOW - 1_000)]),
    ),
]


def test_a_healthy_installation_passes_everything():
    """A healthy installation has neither warnings nor failures."""
    assert {check.result for check in examine(WELL)} == {PASS}


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_away_is_the_problem_and_not_queues_of_tasks(scheme):
    """Workers of other apps can't be asked then: their queues count as served, and doctor goes on."""
    settings = Settings(redis_url="redis://127.0.0.1:1", broker_url=f"{scheme}://127.0.0.1:1//")
    workers = [Worker("w", queues=["runner"], tasks={"shop": "shop.charge"})]

    queues, reason = _foreign_queues(settings, workers)
    assert (queues, "refused" in reason) == ({"shop"}, True)
    assert _foreign_queues(settings, [replace(workers[0], queues=["shop"])]) == (set(), "")


def test_deleted_dead_letters_are_told():
    """The line of the dead letters says how many were deleted, also when there are none now."""
    (check,) = [
        check for check in examine(replace(WELL, dropped=224)) if check.name == "dead letters"
    ]

    assert (check.result, check.detail) == (
        PASS,
        "none; 224 were deleted, since there were too many",
    )


def test_all_that_is_wrong_with_an_audit_is_reported():
    """Neither a disk that is full nor a missing key hides that an audit without an archive grows."""
    audited = Audited("runner/p00", 1_000, 0, 3, 61_000, "the disk is full")
    facts = replace(WELL, audits=[audited])

    def results(facts):
        return [check.result for check in examine(facts) if check.name == "audit"]

    assert results(facts) == [FAIL, FAIL, WARN, WARN]
    assert results(replace(facts, vitals=replace(VITALS, archive=ARCHIVE))) == [
        FAIL,
        FAIL,
        WARN,
    ]
    assert results(replace(facts, audits=[replace(audited, size=0)])) == [FAIL, FAIL]


def test_an_archive_that_works_passes():
    """The check of the archive says where it is, and how many runs wait for it."""
    vitals = replace(VITALS, archive=ARCHIVE, unarchived=3)
    (check,) = [
        check for check in examine(replace(WELL, vitals=vitals)) if check.name == "archive"
    ]

    assert (check.result, check.detail) == (PASS, "folder; 3 ended runs wait for it")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "result", "facts"), CASES, ids=[f"{name}-{result}" for name, result, _ in CASES]
)
def test_each_problem_is_reported_by_one_check_with_a_fix(name, result, facts):
    """A problem is reported by its own check alone, with how to fix it."""
    (check,) = [check for check in examine(facts) if check.result != PASS]

    assert (check.name, check.result) == (name, result)
    assert check.fix.endswith(".")


@pytest.mark.parametrize(
    ("fsync", "detail"),
    [("always", "loses nothing"), ("everysec", "two seconds"), ("", "does not report")],
)
def test_what_a_crash_of_the_store_may_lose_is_reported(fsync, detail):
    """The check of the disk says what each setting risks or costs."""
    checks = examine(on_store(fsync=fsync))
    (disk,) = [check for check in checks if check.name == "disk"]

    assert disk.result == PASS
    assert detail in disk.detail


def test_a_key_that_signs_must_be_known(tmp_path):
    """What a process signs needs the public half; without a key, or with both, nothing is wrong."""
    public, private, other = (
        str(tmp_path / name) for name in ("keys.json", "own.json", "other.json")
    )
    KeySet(public).make("own", Path(private), level=1)
    KeySet(other).make("other", tmp_path / "unused.json", level=1)

    assert signing_problem("", "") == signing_problem(private, public) == ""
    assert "no key 'own'" in signing_problem(private, "")
    assert "no key 'own'" in signing_problem(private, other)
    assert "no private decision key" in signing_problem(public, public)


@pytest.mark.full
def test_doctor_looks_at_a_real_store_and_worker(cli):
    """On a real site everything passes but what the tests' store does without: its file on disk, and a key of
    the audit, which other tests may have written to.
    """

    def problems():
        checks = read(cli, "doctor")["checks"]
        return {check["name"]: check["result"] for check in checks if check["result"] != "pass"}

    wait_until(
        lambda: problems().keys() <= {"disk", "dead letters", "audit"},
        "the worker is on the list and in time",
    )
    assert cli("doctor").exit_code == 0
    assert problems()["disk"] == "warn"


def test_how_the_store_writes_to_disk_is_asked_of_it(shop_url):
    """The setting that counts is the server's own."""
    assert read_server_info(shop_url).fsync == "always"


def test_a_fix_names_the_store_that_was_examined(call, redis_url):
    """Its command has the option of this one, without the password."""
    with redis.Redis.from_url(redis_url) as client:
        client.acl_setuser(
            "ann", enabled=True, passwords=["+it's"], commands=["+@all"], keys=["*"]
        )
    address = f"{redis_url}&username=ann&password=it%27s"
    for words in (("--redis-url", address, "doctor"), ("doctor", "--redis-url", address)):
        done = call(*words, url="redis://127.0.0.1:1/0")
        (fix,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL\tworkers")]
        _, program, _ = fix.split("`")
        assert shlex.split(program)[:2] == ["runner", "--redis-url"]
        assert shlex.split(program)[2:] == [f"{redis_url}&username=ann&password=***", "worker"]
    assert "it%27s" not in done.output


def test_the_fix_of_a_freeze_can_be_pasted():
    """Also if the name of the tool has a quote."""
    facts = replace(WELL, freezes=[Freeze("tool:it's mine", "fraud", "ana", NOW - 1_000)])
    (check,) = [check for check in examine(facts) if check.result != PASS]
    assert shlex.split(check.fix.split("`")[1])[:4] == ["runner", "thaw", "--tool", "it's mine"]


def test_the_clocks_of_workers_with_one_name_are_all_compared():
    """The clock of one that is right doesn't hide that of the other."""
    late = replace(WORKER, ahead=-3_000)
    for workers in ([late, replace(WORKER, pid=2)], [replace(WORKER, pid=2), late]):
        checks = examine(replace(WELL, workers=workers))
        (clocks,) = [check for check in checks if check.name == "clocks"]
        assert clocks.detail == f"differ from the store's: {WORKER.name} by 3.0 s"


def test_doctor_fails_without_a_worker(call, redis_url):
    """The exit code tells a script that runs would not continue."""
    done = call("doctor", url=redis_url)
    cells = [line.split("\t") for line in done.stdout.splitlines()]

    assert done.exit_code == 1
    assert ["FAIL", "workers", "none", "Start one with `runner worker`."] in cells


@pytest.mark.full
def test_doctor_names_a_person_who_votes_under_two_issuers(call, redis_url):
    """A plain name and a login of that name count twice; votes of several people are no problem."""
    people = voting(ManualWorker(RedisStore(redis_url, push=False)), replace(TWO, need=3))

    def doubled():
        lines = call("doctor", url=redis_url).stdout.splitlines()
        return [cells for line in lines if "voters" in (cells := line.split("\t"))]

    assert people.words(("ana",), ("ben",)) == ["counted", "counted"]
    assert doubled() == []
    assert people.vote(Principal("ana", "https://idp")).status == "accepted"
    ((result, _, detail, _),) = doubled()
    assert (result, "human:https://idp|ana and human:|ana" in detail) == ("WARN", True)


def test_doctor_ends_with_7_without_a_store(call):
    """Without a store there is nothing to check, and the exit code says so."""
    assert call("doctor", url="redis://127.0.0.1:1/0").exit_code == 7


def test_another_layout_of_the_store_is_named(call, redis_url):
    """Doctor and lists read nothing where other keys are used, and say which version to use."""
    with redis.Redis.from_url(redis_url) as client:
        client.hset("runner:{p00}:graphs", "g", "f")
        for command in (["doctor"], ["runs", "list"]):
            done = call(*command, url=redis_url)
            assert (done.exit_code, "has data of layout 0 (no number)" in done.stderr) == (
                7,
                True,
            )
        client.set("runner:{p00}:layout", 1)

        assert call("runs", "list", url=redis_url).exit_code == 0


def test_a_broker_that_is_away_is_named_without_its_password():
    """What is shown can be sent to others."""
    problem = broker_problem("amqp://ana:secret@127.0.0.1:1//")

    assert "127.0.0.1:1" in problem
    assert "secret" not in problem


def refused(url):
    """Say whether a broker refuses a login with another password; it is used with its own."""
    password = urlsplit(url).password
    assert broker_problem(url) == ""
    problem = broker_problem(url.replace(f":{password}@", ":wrongly@"))
    assert "wrongly" not in problem
    return "WRONGPASS" in problem or "invalid username" in problem or "403" in problem


@pytest.mark.full
def test_a_broker_that_refuses_the_login_is_a_problem(tmp_path):
    """A Redis that is reached is logged in to, also behind Sentinels."""
    primary = Server(tmp_path, requirepass="pass").begin()
    sentinel = Sentinel(tmp_path).start()
    primary.client = redis.Redis(port=primary.port, password="pass")
    wait_until(primary.answers, "it answers")
    sentinel.watch(primary)
    sentinel.client.execute_command("SENTINEL", "SET", SERVICE, "auth-pass", "pass")
    try:
        assert refused(f"redis://:pass@127.0.0.1:{primary.port}/0")
        assert refused(sentinel.url.replace("://", "://:pass@"))
    finally:
        sentinel.end()
        primary.end()


@pytest.mark.full
def test_a_rabbitmq_that_refuses_the_login_is_a_problem(rabbit):
    """So is one that doesn't have the virtual host."""
    assert refused(rabbit.url)
    assert "vhost" in broker_problem(f"{rabbit.url}other")


@pytest.mark.parametrize(
    ("url", "problem", "detail"),
    [
        ("sqs://", "", "only workers use"),
        ("sqs://127.0.0.1:1", "can't be used", "can be reached"),
        ("amqp://127.0.0.1:1", "can't be used", "can be reached"),
    ],
)
def test_amazon_s_sqs_is_not_asked(url, problem, detail):
    """Doctor has no credentials for it, and says so; a server that has an address is connected to."""
    assert problem in broker_problem(url)
    assert bool(problem) == bool(broker_problem(url))
    assert detail in broker_detail(Settings(broker_url=url))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@db:6379/0", "redis://:***@db:6379/0"),
        (
            "unix:///run/store.sock?db=0&password=secret",
            "unix:///run/store.sock?db=0&password=***",
        ),
        ("redis://db/1", "redis://db/1"),
    ],
)
def test_passwords_are_never_shown(url, shown):
    """A URL is shown with its password left out, wherever it stands."""
    assert without_password(url) == shown


def test_a_refused_login_is_no_outage(call, redis_url):
    """Who has the wrong password is told so, and not that work continues by itself."""
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("requirepass", "right")
        try:
            done = call(
                "doctor", url=redis_url + ("&" if "?" in redis_url else "?") + "password=wrong"
            )
        finally:
            client.config_set("requirepass", "")

    assert done.exit_code == 7
    assert "refused the login" in done.stderr
    assert "by itself" not in done.stderr
    assert "runner dev" not in done.stderr
    assert "runner dev" in call("doctor", url="redis://127.0.0.1:1/0").stderr


def test_a_long_command_without_a_login_is_a_refused_login(tmp_path):
    """Redis refuses it in words of its own, "unauthenticated multibulk length", and hangs up."""
    server = Server(tmp_path, requirepass="right")
    server._program = redis_of_the_system
    server.begin()
    with redis.Redis(port=server.port, password="right") as server.client:
        wait_until(server.answers, "it answers")
        connection = RedisConnection(server.url)
        try:
            for keys in (["short"], [*map(str, range(20))], ["x" * 20_000]):
                for call in (connection.call, lambda *words: connection.call_all(words, words)):
                    with pytest.raises(StoreError, match="refused the login"):
                        call("DEL", *keys)
        finally:
            connection.close()
            server.end()
