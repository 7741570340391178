"""A freeze on real workers of every pool: effects stop, everything says so, and a thaw ends it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from runner import Status
from runner.approvals.freezes import LOOK_EVERY
from runner.cli.program import runner
from tests.celery.conftest import POOLS
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

GRAPHS = {"RUNNER_GRAPHS": "tests.celery.freezing_graphs"}
KINDS = {
    "graph": [("--graph", "busy_graph")],
    "tool": [("--tool", "look_tool"), ("--tool", "refund_tool")],
    "all": [("--all",)],
}
AT_WORK = 2_000
"""Milliseconds from the last look of a call to its effect, on a slow machine."""


class Busy:
    """A run that has effects all the time, and what the command line does to it."""

    def __init__(self, site, kind: str) -> None:
        self.site, self.kind = site, kind
        self.run = site.client.start(f"busy_{kind}", "go")
        self.environment = {"RUNNER_REDIS_URL": site.url}

    def call(self, *words: str, code: int = 0) -> str:
        done = CliRunner().invoke(runner, words, env=self.environment)
        assert done.exit_code == code, done.output
        return done.stdout

    def times(self, effect: str) -> list[int]:
        return [int(at) for at in self.site.redis.lrange(f"{effect}:{self.run.id}", 0, -1)]

    def now(self) -> int:
        seconds, micros = self.site.redis.time()
        return seconds * 1000 + micros // 1000

    def is_busy(self, since: int = 0) -> bool:
        return any(at > since for at in self.times("looked"))

    def freeze(self) -> None:
        for scope in KINDS[self.kind]:
            self.call("freeze", *scope, "--force", "--reason", "fraud", "--by", "ana")
        self.frozen_at = self.now()
        (question,) = self.run.interrupts()
        vote = ("interrupts", "vote", question.id, "approve", "--digest", question.digest)
        reply = self.call("--json", *vote, "--by", "ben")
        self.receipt = json.loads(reply)

    @property
    def deadline(self) -> int:
        """When no effect begins any more."""
        return self.frozen_at + round(LOOK_EVERY * 1000) + AT_WORK

    def shown(self) -> dict:
        return json.loads(self.call("--json", "runs", "show", self.run.id))

    def thaw(self) -> None:
        for scope in KINDS[self.kind]:
            self.call("thaw", *scope, "--reason", "over", "--by", "ana")
        self.thawed_at = self.now()


@pytest.fixture(scope="module")
def sites(databases):
    """A worker of each pool, and one that never looks."""
    sites = {name: next(databases) for name in (*POOLS, "blind")}
    for name, site in sites.items():
        pool, app = (
            (name, "runner.celery:app")
            if name in POOLS
            else ("threads", "tests.celery.blind:app")
        )
        site.add(pool, slots={"solo": 1, "prefork": 2}.get(pool, 4), app=app, **GRAPHS)
    for site in sites.values():
        site.workers[0].wait_ready()
    yield sites
    for site in sites.values():
        site.end()


@pytest.fixture(scope="module")
def frozen(sites):
    """On each site a run for each kind of freeze, after the freeze, its deadline and the thaw.

    What is frozen by its graph or its tools goes on beside the other one; all are frozen at last.
    """
    frozen = {}
    for kinds in (("graph", "tool"), ("all",)):
        begun = [
            Busy(site, kind)
            for name, site in sites.items()
            for kind in kinds
            if name != "blind"
        ]
        begun += [Busy(sites["blind"], "all")] if "all" in kinds else []
        wait_until(
            lambda: all(busy.is_busy() and busy.run.interrupts() for busy in begun),  # noqa: B023
            "all are busy",
        )
        for busy in begun:
            busy.freeze()
            frozen[busy.site, busy.kind] = busy
        wait_until(lambda: all(busy.now() > busy.deadline for busy in begun), "time is over")  # noqa: B023
        for busy in begun:
            busy.meanwhile, busy.notices = (
                busy.shown(),
                busy.site.redis.xrange("runner:{p00}:notices"),
            )
            busy.status = busy.run.status
            busy.doctor = CliRunner().invoke(runner, ["doctor"], env=busy.environment).stdout
            busy.thaw()
        on = [busy for busy in begun if busy.site is not sites["blind"]]
        wait_until(
            lambda: all(busy.is_busy(busy.thawed_at) and busy.times("refunded") for busy in on),  # noqa: B023
            "all go on",
        )
        for busy in begun:
            busy.site.redis.set(f"enough:{busy.run.id}", 1)
        wait_until(lambda: {busy.run.status for busy in begun} == {Status.COMPLETED}, "all end")  # noqa: B023
    return frozen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", POOLS)
def test_no_effect_begins_while_it_is_frozen(sites, frozen, pool, kind):
    """From the time that a look may take until the thaw; the approved call is then made once."""
    busy = frozen[sites[pool], kind]
    effects = busy.times("looked") + busy.times("refunded")

    assert not [at for at in effects if busy.deadline < at < busy.thawed_at]
    assert len(busy.times("refunded")) == 1
    assert busy.times("refunded")[0] > busy.frozen_at
    assert busy.run.result().results["look"].attempts == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pool", POOLS)
def test_everything_says_what_is_frozen(sites, frozen, pool, kind):
    """The run with its status, the receipt of the vote, the doctor, and notices of freeze and thaw."""
    busy = frozen[sites[pool], kind]
    scope = "all" if kind == "all" else f"{kind}:"

    assert busy.status is Status.EXECUTING
    assert busy.meanwhile["frozen"].startswith(scope)
    assert busy.meanwhile["frozen"].endswith("is frozen by ana: fraud")
    assert busy.receipt["status"] == "accepted"
    assert "is frozen by ana: fraud" in busy.receipt["detail"]
    assert "WARN\tfreeze" in busy.doctor
    assert busy.shown()["frozen"] == ""
    kinds = [
        fields[b"kind"]
        for _, fields in busy.notices
        if fields[b"detail"].decode().startswith(scope)
    ]
    assert kinds == [b"effects.frozen"] * len(KINDS[kind])
    after = busy.site.redis.xrange("runner:{p00}:notices")
    thawed = [fields for _, fields in after if fields[b"kind"] == b"effects.thawed"]
    assert {fields[b"detail"].decode().split(":")[0] for fields in thawed} == set(KINDS)


def test_a_worker_that_does_not_look_goes_on(sites, frozen):
    """Control: its effects begin after the time in which the others have stopped."""
    busy = frozen[sites["blind"], "all"]

    assert [at for at in busy.times("looked") if busy.deadline < at < busy.thawed_at]
    assert busy.times("refunded")[0] < busy.thawed_at


def test_a_thaw_needs_a_reason(sites, frozen):
    """Without one nothing is thawed."""
    busy = frozen[sites["threads"], "all"]
    busy.call("freeze", "--all", "--reason", "fraud")
    busy.call("thaw", "--all", code=2)
    busy.call("thaw", "--all", "--reason", " ", code=2)
    assert list(busy.site.client.engine.store.frozen()) == ["all"]
