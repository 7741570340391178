"""Limits that are changed and paused while workers run: what holds, what is shown, what is audited."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace

import pytest
import redis
from click.testing import CliRunner

from runner import Client, GraphBuilder, Limit
from runner.cli.program import runner
from runner.definition.registry import Registry
from runner.errors import DefinitionError, NotFoundError, UsageError
from runner.limits.fairness import LEAST_WINDOW, Fairness
from runner.operations.doctor import FAIL, PASS, WARN, examine, read_facts
from runner.operations.installation import Installation
from runner.operations.views import read_run
from runner.records.json_form import stamp
from runner.records.run import Status
from runner.settings import Settings
from runner.store.interface import Claim, Settlement
from runner.store.redis.keys import Keys
from runner.store.redis.store import RedisStore
from runner.store.requests import CancelRun, ClaimVisit, SettleVisit, ShareSlots
from runner.testing import ManualClock
from tests.contract.store import ManualWorker
from tests.contract.store.manual_worker import shape

PREFIX = Keys("runner").prefix
LIMITS = f"{PREFIX}limits"
MODEL = Limit("model", concurrency=2, by="tag:tenant")


class Site:
    """A store, its operator, and a worker that works by hand."""

    def __init__(self, url: str) -> None:
        self.installation = Installation(Settings(redis_url=url))
        self.limits = self.installation.limits
        # Operators' changes have the time of the server.
        self.clock = ManualClock(self.installation.limit_settings()[1])
        self.store = RedisStore(url, clock=self.clock)
        self.worker = ManualWorker(self.store, self.clock)

    def start(self, *limits: Limit, name: str = "g", nodes: str = "a b c") -> str:
        names = nodes.split()
        graph = shape(nodes, name=name, limits=dict.fromkeys(names, limits))
        return self.worker.start(graph, tags={"tenant": "x"})

    def word(self, run_id: str, node: str) -> str:
        """Claim a node; say what came of it."""
        reply = self.store.do(ClaimVisit(run_id, node, 1, 1, self.worker.nonce()))
        return "claimed" if isinstance(reply, Claim) else reply.word

    def checks(self, level: str, name: str = "limits", **settings: object) -> list[str]:
        """Return the problems of limits that doctor finds, or others."""
        checks = examine(read_facts(self.installation.settings.model_copy(update=settings)))
        return [check.detail for check in checks if (check.name, check.result) == (name, level)]


@pytest.fixture
def site(redis_url):
    site = Site(redis_url)
    yield site
    site.store.close()


@pytest.mark.full
def test_both_numbers_are_shown_and_who_waits(site):
    """A view has the number of the code, the one that is set, the keys that wait, and who has their slots."""
    run_id = site.start(MODEL)
    site.limits.set("model", concurrency=1, reason="slow", by="ana")
    view = site.limits.get("model")
    assert (view.declarations[0].concurrency, view.setting.concurrency) == (2, 1)
    assert (view.setting.reason, view.setting.by) == ("slow", "ana")

    token = site.worker.token(run_id, "a")
    assert [site.word(run_id, node) for node in "bc"] == ["limited", "limited"]
    (waiting,) = site.limits.get("model").waiting
    assert (waiting.key, waiting.nodes) == ("model:tag:tenant:x", 2)
    assert waiting.holders == [f"{run_id}|a"]
    says = "2 nodes wait for the limit 'model:tag:tenant:x', the first for "
    assert [told.startswith(says) for told in site.checks(PASS)] == [True]
    assert site.checks(WARN) == []
    assert [told.startswith(says) for told in site.checks(WARN, max_wait=0)] == [True]

    site.limits.reset("model")
    assert site.limits.get("model").setting is None
    settlement = Settlement(Status.COMPLETED, "", None, {"v": 1})
    site.store.do(SettleVisit(token, settlement, site.worker.nonce()))
    assert [site.word(run_id, node) for node in "bc"] == ["claimed", "claimed"]
    assert site.limits.get("model").waiting == []


@pytest.mark.full
def test_a_key_that_waits_for_its_rate_is_shown(site, redis_url):
    """How many nodes wait, and until when; doctor names it if that is long. Control: a key without a wait."""
    slow = Limit("slow", rate=1, per=120, by="tag:tenant")
    run_id = site.start(slow)
    assert site.word(run_id, "a") == "claimed"
    assert site.limits.get("slow").waiting == []
    assert [site.word(run_id, node)[:7] for node in "bc"] == ["limited"] * 2

    (waiting,) = site.limits.get("slow").waiting
    assert (waiting.key, waiting.nodes, waiting.since) == ("slow:tag:tenant:x", 2, 0)
    assert waiting.last_start_at == site.clock() + 240_000
    assert site.checks(WARN) == []
    assert site.checks(PASS)[0].startswith("2 nodes wait for start times of the limit")
    more = site.start(slow)
    assert site.word(more, "a")[:7] == "limited"
    assert site.limits.get("slow").waiting[0].nodes == 3
    (problem,) = site.checks(WARN)
    assert problem.startswith(
        "3 nodes wait for start times of the limit 'slow:tag:tenant:x', the"
    )
    shown = CliRunner().invoke(
        runner, ["limits", "show", "slow"], env={"RUNNER_REDIS_URL": redis_url}
    )
    assert f"\tthe last starts {stamp(site.clock() + 360_000)}" in shown.stdout


def test_a_damaged_name_hides_no_other_key(site, redis_url):
    """One that is no text among those that wait leaves the lists, doctor and metrics as they are."""
    run_id = site.start(MODEL)
    words = [site.word(run_id, node) for node in "abc"]
    assert words == ["claimed", "claimed", "limited"]
    with redis.Redis.from_url(redis_url) as raw:
        raw.zadd(f"{PREFIX}limit:waiting", {b"\xff": 1})
        raw.zadd(f"{PREFIX}limit:h:model:tag:tenant:x", {b"\xff": 1})
    (waiting,) = site.limits.get("model").waiting
    assert (waiting.nodes, len(waiting.holders)) == (1, 3)
    assert site.checks(FAIL) == []


@pytest.mark.full
@pytest.mark.parametrize("key", ["model", "model:tag:tenant:x"])
def test_a_pause_is_shown_until_it_is_over(site, key):
    """A limit or one key of it is paused; doctor names it, and that it has no end, until it is resumed."""
    run_id = site.start(MODEL)
    for seconds in (200, None):
        view = site.limits.pause(key, seconds, "incident", "ana")
        assert view.paused == (key == "model")
        (pause,) = view.setting.pauses
        assert (pause.key, pause.reason, pause.by) == (key, "incident", "ana")
        (warning,) = site.checks(WARN)
        assert warning.startswith(f"the limit {key!r} is paused")
        assert ("without an end" in warning) == (seconds is None)
    assert site.word(run_id, "a") == "limited"

    assert site.limits.resume(key, "over").setting is None
    assert site.checks(WARN) == []
    assert site.word(run_id, "a") == "claimed"


@pytest.mark.full
def test_a_node_under_a_limit_says_what_it_waits_for(site):
    """Its limit, or until when that or its key is paused, and why; control: one that was not refused."""
    by_input = Limit("customer", concurrency=9, by="input:id")
    run_id = site.start(MODEL, by_input)
    site.worker.claim(run_id, "a")

    def said(node="b"):
        site.word(run_id, node)
        views = {view.id: view for view in read_run(site.store, run_id).nodes}
        return views[node].progress

    assert said("b") == ""
    assert said("c") == "waits for the limit 'customer' or 'model'"
    site.limits.pause("model:tag:tenant:y", None)
    assert said("c") == "waits for the limit 'customer' or 'model'"
    site.limits.pause("model:tag:tenant:x", None, "incident")
    assert said("c") == "its key of the limit 'model' is paused until it is resumed: incident"
    site.limits.resume("model")
    view = site.limits.pause("model", 90)
    until = stamp(view.setting.pauses[0].ends_at)
    assert said("c") == f"the limit 'model' is paused until {until}"
    site.clock.advance(3600)
    assert said("c") == "waits for the limit 'customer' or 'model'"


def test_a_change_is_an_entry_of_the_audit(site):
    """Each change of a limit has its type, its limit and who made it in the audit, without its reason."""
    site.start(MODEL)
    site.limits.set("model", concurrency=1, by="ana")
    site.limits.pause("model", 60, "secret reason", "ana")
    site.limits.resume("model", by="ana")
    site.limits.reset("model", by="ana")

    texts = [text for _, text in site.store.audit_logs[0].after("0")]
    types = ["limit.set", "limit.paused", "limit.resumed", "limit.reset"]
    assert [kind for text in texts for kind in types if f'"{kind}"'.encode() in text] == types
    assert all(b"human:|ana" in text and b"limit:model" in text for text in texts)
    assert not any(b"secret" in text for text in texts)


def test_what_a_limit_lacks_can_not_be_set(site):
    """A limit without a rate gets none, one that no graph has is not found, and a number must count."""
    site.start(MODEL)
    with pytest.raises(UsageError, match="no interval"):
        site.limits.set("model", rate=5)
    with pytest.raises(NotFoundError):
        site.limits.set("other", concurrency=5)
    with pytest.raises(UsageError):
        site.limits.set("model", concurrency=0)
    with pytest.raises(UsageError):
        site.limits.pause("model", -1)
    with pytest.raises(UsageError, match="begin with model:tag:tenant:"):
        site.limits.pause("model:tag:account:x", 60)
    assert site.limits.get("model").setting is None


@pytest.mark.full
@pytest.mark.parametrize("value", ["\udcff", "x" * 10_001])
def test_a_key_that_no_run_can_have_is_refused(site, value):
    """A key that is no valid text, or too long, is refused before anything is stored; control: an odd one."""
    site.start(MODEL)
    with pytest.raises(UsageError, match="the key"):
        site.limits.pause(f"model:tag:tenant:{value}", 60)
    assert site.limits.get("model").setting is None
    assert site.limits.pause("model:tag:tenant:\x00:\n|'ü", 60).setting is not None


def test_the_command_that_doctor_says_names_one_argument(site):
    """A key with quotes in it, from the tags of a run, adds no command to the one that is to be copied."""
    site.start(MODEL)
    key = "model:tag:tenant:x'; reboot #"
    site.limits.pause(key, None)
    (check,) = [
        check
        for check in examine(read_facts(site.installation.settings))
        if key in check.detail
    ]
    command = check.fix.split("`")[1]
    assert shlex.split(command) == ["runner", "limits", "resume", key]


@pytest.mark.parametrize(
    "numbers",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 10**18},
        {"rate": math.nan},
        {"rate": 2_000},
        {"rate": 1e-300},
        {"rate": 1, "per": 1e306},
        {"rate": 1e306, "per": 1e306},
        {"rate": 10**400, "per": 10**400},
    ],
)
def test_a_number_that_no_store_can_count_with_is_refused(numbers):
    """It is refused where it is written, in code and by an operator; control: the largest ones."""
    with pytest.raises(DefinitionError, match="limit 'model'"):
        Limit("model", **numbers)
    Limit("model", 1_000_000, rate=1, per=366 * 86_400)


@pytest.mark.parametrize("name", ["", " ", None, 5, "a\nb", "a\u202eb", "x" * 201, "a:b"])
def test_a_limit_has_a_name_that_can_be_shown(name):
    """Another is refused where it is written, in a short text; control: any letters."""
    with pytest.raises(DefinitionError, match="name") as refused:
        Limit(name, concurrency=1)
    assert len(str(refused.value)) < 200
    Limit("é |/@*" + "x" * 194, concurrency=1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "slots"),
    [
        (json.dumps({"id": "model", "concurrency": 1, "of_a_newer_version": {}}), 1),
        (b"\xff{", 2),
        ("[]", 2),
        ('{"id": "model", "concurrency": "many"}', 2),
        ('{"id": "model", "pauses": [7]}', 2),
    ],
)
def test_a_setting_that_can_not_be_read_leaves_the_code(site, redis_url, text, slots):
    """Claims and settles go by the code, doctor fails, a reset helps; control: one with unknown fields."""
    run_id = site.start(MODEL)
    with redis.Redis.from_url(redis_url) as raw:
        raw.hset(LIMITS, "model", text)
        words = [site.word(run_id, node) for node in "abc"]
        assert words == ["claimed"] * slots + ["limited"] * (3 - slots)
        assert len(site.checks(FAIL)) == slots - 1
        site.limits.reset("model")
        assert site.checks(FAIL) == []
        assert site.word(run_id, "b") in ("claimed", "stale")
        assert raw.hgetall(LIMITS) == {}


def test_what_a_newer_version_has_set_stays(site, redis_url):
    """A pause keeps the fields of a setting that this version does not know; control: a reset drops them."""
    site.start(MODEL)
    with redis.Redis.from_url(redis_url) as raw:
        raw.hset(LIMITS, "model", '{"id": "model", "concurrency": 1, "newer": [7]}')
        site.limits.pause("model", 60)
        setting = json.loads(raw.hget(LIMITS, "model"))
        assert (setting["newer"], setting["concurrency"], len(setting["pauses"])) == ([7], 1, 1)
        site.limits.reset("model")
        assert raw.hgetall(LIMITS) == {}


@pytest.mark.full
def test_a_setting_outlives_the_limit_in_the_code(site):
    """Doctor names one that no graph has any more; it can be reset, and then it is not found."""
    site.start(MODEL)
    site.limits.pause("model", 60)
    assert len(site.checks(WARN)) == 1  # it is paused
    site.start()
    assert "no graph has it any more" in site.checks(WARN)[0]
    with pytest.raises(UsageError, match="no concurrency"):
        site.limits.set("model", concurrency=5)

    assert site.limits.reset("model").setting is None
    assert site.checks(WARN) == []
    with pytest.raises(NotFoundError):
        site.limits.get("model")


def test_no_key_is_listed_for_which_nothing_waits(site, redis_url):
    """The list loses a key whose last node takes a slot or is cancelled; control: another still waits."""
    run_id, other = (
        site.start(MODEL, nodes="a b c d"),
        site.start(MODEL, nodes="e", name="other"),
    )
    with redis.Redis.from_url(redis_url) as raw:

        def listed():
            return raw.zrange(f"{PREFIX}limit:waiting", 0, -1)

        token = site.worker.token(run_id, "a")
        assert [site.word(run_id, "b"), site.word(other, "e")] == ["claimed", "limited"]
        assert listed() == [b"model:tag:tenant:x"]
        site.store.do(CancelRun(other, "enough"))
        assert listed() == []
        assert [site.word(run_id, node) for node in "cd"] == ["limited", "limited"]
        site.limits.set("model", concurrency=4)
        assert site.word(run_id, "c") == "claimed"
        assert listed() == [b"model:tag:tenant:x"]
        assert site.word(run_id, "d") == "claimed"
        settlement = Settlement(Status.COMPLETED, "", None, {"v": 1})
        site.store.do(SettleVisit(token, settlement, site.worker.nonce()))
        assert listed() == []


@pytest.mark.full
def test_two_graphs_that_declare_a_limit_differently_are_a_mistake(site):
    """Doctor names the limit, the numbers and the graphs; control: alike, they are none."""
    site.start(MODEL, name="one")
    site.start(MODEL, name="two")
    assert site.checks(FAIL) == []

    site.start(Limit("model", concurrency=5, by="tag:tenant"), name="two")
    (problem,) = site.checks(FAIL)
    assert "2 at a time in one; 5 at a time in two" in problem


@pytest.mark.full
def test_of_two_declarations_the_newest_loses(site, redis_url):
    """The number of the service that was first holds for both until they agree; control: then the new one."""

    def deploy(name, concurrency):
        builder = GraphBuilder()
        limits = [replace(MODEL, concurrency=concurrency)] if concurrency else []
        builder.add_node(lambda ctx: None, "n", limits=limits)
        registry = Registry()
        registry.add(name, builder.build)
        client = Client(store=site.store, registry=registry)
        client.engine.publish([name])
        return client

    def begun():
        visits = [
            ClaimVisit(second.start("b", "").id, "n", 1, 1, site.worker.nonce())
            for _ in range(5)
        ]
        claims = [site.store.do(visit) for visit in visits]
        for visit in visits:
            site.store.do(CancelRun(visit.run_id, ""))
        tokens = [claim.token for claim in claims if isinstance(claim, Claim)]
        for token in tokens:
            site.worker.end(token)
        return len(tokens)

    second = deploy("b", 3)
    assert begun() == 3
    deploy("a", 1)
    assert begun() == 3
    assert "3 at a time in b; 1 at a time in a; the first holds" in site.checks(FAIL)[0]
    second = deploy("b", 2)
    assert begun() == 1
    site.limits.set("model", concurrency=4)
    assert begun() == 4
    site.limits.reset("model")
    assert begun() == 1
    assert "1 at a time in a; 2 at a time in b" in site.checks(FAIL)[0]
    deploy("a", 0)
    assert begun() == 2
    deploy("a", 1)
    assert begun() == 2

    deploy("a", 2)
    assert site.checks(FAIL) == []
    assert begun() == 2
    with redis.Redis.from_url(redis_url) as raw:
        (stored,) = raw.hgetall(LIMITS).values()
    assert json.loads(stored)["declared"] == [["model:tag:tenant:", 2, 0]]


@pytest.mark.full
@pytest.mark.parametrize("number", [1, 3])
def test_a_number_that_a_deploy_raises_admits_waiting_nodes(site, number):
    """The sweep after it rings for nodes of older runs, which then fit; control: the same number."""

    def deploy(concurrency):
        builder = GraphBuilder()
        for node in "abcd":
            builder.add_node(lambda ctx: None, node, limits=[Limit("one", concurrency)])
            builder.set_entry_point(node)
        registry = Registry()
        registry.add("g", builder.build)
        client = Client(store=site.store, registry=registry)
        client.engine.publish(["g"])
        return client

    run_id = deploy(1).start("g", "").id
    assert [site.word(run_id, node) for node in "abcd"] == ["claimed", *["limited"] * 3]
    site.worker.sweep()
    deploy(number)

    rung = site.worker.sweep()
    assert (rung == []) == (number == 1)
    words = [site.word(run_id, node) for node in "bcd"]
    assert words == ["claimed"] * (number - 1) + ["limited"] * (4 - number)


@pytest.mark.full
def test_a_key_that_waits_longer_than_a_larger_backlog_is_named(site, redis_url):
    """Doctor names both and how long they wait; controls: not beside a smaller backlog, nor as new a one."""

    def start(tenant, count):
        for _ in range(count):
            graph = shape("a", fairness=Fairness("tag:tenant"))
            site.worker.start(graph, tags={"tenant": tenant})

    site.store.do(ShareSlots({"g": LEAST_WINDOW}))
    start("in the queue", LEAST_WINDOW)
    start("quiet", 2)
    start("noisy", 1)
    with redis.Redis.from_url(redis_url) as raw:
        (waits,) = raw.keys(f"{PREFIX}fair:n:*:quiet")
        for node in raw.zrange(waits, 0, -1):
            raw.zincrby(waits, -3_600_000, node)
        assert site.checks(WARN, "fairness") == []
        start("noisy", 1)
        (problem,) = site.checks(WARN, "fairness")
        assert "key 'quiet' wait on g: 2 of priority 5 for 1 h" in problem
        assert "those of 'noisy', 2" in problem
        for node in raw.zrange(waits, 0, -1):
            raw.zincrby(waits, 3_600_000, node)
        assert site.checks(WARN, "fairness") == []
