"""The workers that seal the audit die at every step of it: others go on, and what is exported holds."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from click.testing import CliRunner

from runner import Client, Status
from runner.cli.program import runner
from runner.definition.registry import Registry
from runner.settings import Settings
from runner.store.redis.partitions import open_store
from tests.celery.workers import LEASE
from tests.chaos import kill_switch
from tests.waiting import wait_until

DEATHS = [
    ("audit.before", "size"),
    ("audit.after", "size"),
    ("audit.before", "signed"),
    ("audit.after", "signed"),
    ("anchor.before", "any"),
    ("anchor.after", "any"),
    ("audit.after", "anchored"),
]
"""Where the worker dies that seals: around sealing, signing and anchoring."""


class Audited:
    """A site whose workers seal, sign and anchor, and the people who use the command line there."""

    def __init__(self, site, folder, partitions: int) -> None:
        self.site, self.folder, self.runs = site, folder, []
        self.settings = {
            "RUNNER_REDIS_URL": site.url,
            "RUNNER_PARTITIONS": str(partitions),
            "RUNNER_DECISION_KEYS": str(folder / "keys.json"),
        }
        site.client.engine.store.close()
        store = open_store(Settings(redis_url=site.url, partitions=partitions, lease=LEASE))
        site.client = Client(store=store, registry=Registry())
        self.logs = store.audit_logs
        door = str(folder / "door.json")
        self.call("keys", "new", "door", "--level", "1", "--private", door)
        self.public = folder / "audit.pub"
        self.public.write_text(self.call("audit", "key", str(folder / "audit.json")).stdout)
        self.anchor, self.kept = folder / "checkpoints", folder / "kept"
        self.signing = {"RUNNER_SIGNING_KEY": door}

    @property
    def sealing(self) -> dict[str, str]:
        """The settings of its workers."""
        return {
            **self.settings,
            "RUNNER_GRAPHS": "tests.chaos.refund_graphs",
            "RUNNER_AUDIT_KEY": str(self.folder / "audit.json"),
            "RUNNER_AUDIT_ANCHOR": f"file:{self.anchor}",
            "RUNNER_AUDIT_SEAL": "0.2",
            "RUNNER_AUDIT_SIGN": "0",
        }

    def call(self, *words: str, code: int = 0, **settings: str):
        done = CliRunner().invoke(runner, words, env={**self.settings, **settings})
        assert done.exit_code == code, done.output
        return done

    def refund(self, partition: int) -> None:
        """Have a refund approved by two people at the command line, and paid."""
        store = self.site.client.engine.store
        keys = iter(lambda: str(uuid4()), None)
        key = next(key for key in keys if store.partition("signed_refunding", key) == partition)
        run = self.site.client.start("signed_refunding", "go", idempotency_key=key)
        self.runs.append(run)
        wait_until(run.interrupts, "it asks", seconds=150)
        (question,) = run.interrupts()
        for name in ("ana", "ben"):
            words = ("interrupts", "vote", question.id, "approve", "--by", name)
            self.call(*words, "--digest", question.digest, **self.signing)
        wait_until(lambda: run.status is Status.COMPLETED, "it is paid back", seconds=150)

    def is_anchored(self) -> bool:
        heads = [(log, log.head()) for log in self.logs]
        return all(
            head.size == head.anchored > 0 and log.unsealed(head) == (0, 0)
            for log, head in heads
        )

    def export(self, name: str, *words: str):
        """Export what is signed; keep the checkpoints of before, for an export is an entry, too."""
        path = self.folder / name
        wait_until(self.is_anchored, "the entry of the export before is anchored, too")
        self.kept.write_bytes(self.anchor.read_bytes())
        self.call("audit", "export", "--output", str(path), *words)
        return path

    def verify(self, path, code: int = 0) -> list[str]:
        words = (
            "audit",
            "verify",
            str(path),
            "--key",
            str(self.public),
            "--checkpoint",
            str(self.kept),
        )
        return self.call(*words, code=code).stdout.rstrip("\n").split("\t")


@pytest.fixture(scope="module")
def sites(databases, fork_server, tmp_path_factory):
    """A site with one partition and one with two, when all deaths have been and all is anchored."""
    sites = {}
    for partitions in (1, 2):
        name = f"partitions{partitions}"
        sites[partitions] = audited = Audited(
            next(databases), tmp_path_factory.mktemp(name), partitions
        )
        for number in "ab":
            app = "tests.chaos.kill_points:app"
            fork_server.add(audited.site, name + number, app=app, **audited.sealing)
    with fork_server.running(*(audited.site for audited in sites.values())):
        for count, audited in sites.items():
            for number, death in enumerate(DEATHS):
                kill_switch.arm(audited.site, *death)
                audited.refund(number % count)
                wait_until(lambda: kill_switch.died_at(audited.site, *death), f"{death}")  # noqa: B023
            wait_until(audited.is_anchored, "all is anchored")
        yield sites


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.sample), 2])
def test_what_dying_workers_sealed_holds(sites, count):
    """Each partition and each run verifies, with the public key and the anchored checkpoints."""
    audited = sites[count]
    entries = 0
    for number in range(count):
        path = audited.export(f"all{number}.jsonl", "--partition", str(number))
        assert audited.verify(path)[0] == "holds"
        entries += sum('"type"' in line for line in path.read_text().splitlines())
    assert entries >= len(DEATHS) * 6

    redis = audited.site.redis
    # A worker that dies between an effect and its checkpoint repeats it, with its key.
    paid = [set(redis.lrange(key, 0, -1)) for key in redis.keys("refunded:*")]
    assert [len(keys) for keys in paid] == [1] * len(audited.runs)
    for run in audited.runs:
        path = audited.export("run.jsonl", "--run", run.id)
        assert audited.verify(path)[0] == "holds"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        types = [line["type"] for line in lines if "type" in line]
        assert types == [
            "run.started",
            "asked",
            "voted",
            "voted",
            "decided",
            "used",
            "effect.ended",
            "run.ended",
        ]


@pytest.mark.parametrize("count", [1, 2])
def test_a_byte_that_is_changed_is_named(sites, count):
    """Control: one character of an exported entry, and verify says that it is broken, and where."""
    audited = sites[count]
    path = audited.export("whole.jsonl", "--partition", str(count - 1))
    lines = path.read_text().splitlines(keepends=True)
    place = next(n for n, line in enumerate(lines) if '"actor":"human:|ben"' in line)
    lines[place] = lines[place].replace("|ben", "|bem")
    forged = audited.folder / "forged.jsonl"
    forged.write_text("".join(lines))

    result, line, *_ = audited.verify(forged, code=1)
    assert (result, line) == ("broken", str(place + 1))


def test_the_workers_died_where_they_seal(sites):
    """Each death was that of a whole worker, and another one went on."""
    for audited in sites.values():
        assert sum(len(worker.pids) for worker in audited.site.workers) == 2 + len(DEATHS)
