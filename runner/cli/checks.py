"""What `runner doctor` checks: each check is a function of the facts, and says how to mend what it found.

Nothing here asks anybody: the facts were read before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from runner.cli.facts import FAIL, PASS, WARN, Check, Facts
from runner.cli.output import span

OLDEST = (6, 2)
FULL = 0.9
SKEW = 1_000
"""Ms by which a clock may be off before times that people see are misleading."""
LATE = 3
"""Sweeps that may be missed before somebody should look."""

DISKS = {
    "off": (WARN, "off: a restart of the store loses runs", "Set appendonly yes."),
    "no": (WARN, "on, appendfsync no: a crash loses the last half minute", "Set appendfsync always."),
    "everysec": (PASS, "on, appendfsync everysec: quick, but a crash may lose the last two seconds", ""),
    "always": (PASS, "on, appendfsync always: a crash loses nothing, but each write waits for the disk", ""),
    "": (PASS, "on; the store doesn't tell its appendfsync", ""),
}
"""What the store's file is worth, by how often the server waits for the disk."""


def examine(facts: Facts) -> list[Check]:
    """Make every check."""
    return [check for each in CHECKS for check in each(facts)]


def _version(facts: Facts) -> Iterator[Check]:
    if facts.vitals.version < OLDEST:
        yield Check(FAIL, "version", facts.vitals.server, "Install Redis 6.2 or newer, or Valkey.")
    else:
        yield Check(PASS, "version", facts.vitals.server)


def _policy(facts: Facts) -> Iterator[Check]:
    policy = facts.vitals.policy
    if policy == "noeviction":
        yield Check(PASS, "eviction", policy)
        return
    # Whatever has an expiry may go: ended runs, receipts. With allkeys, also runs that wait.
    word = WARN if policy.startswith("volatile") or not policy else FAIL
    lost = "ended runs go early" if word is WARN else "runs that wait for people are thrown away"
    yield Check(
        word,
        "eviction",
        f"maxmemory-policy is {policy or 'unknown'}: when memory is full, {lost}",
        "Set maxmemory-policy noeviction.",
    )


def _disk(facts: Facts) -> Iterator[Check]:
    word, found, fix = DISKS.get(facts.vitals.fsync if facts.vitals.appendonly else "off", DISKS[""])
    yield Check(word, "disk", f"append-only file is {found}", fix)


def _durability(facts: Facts) -> Iterator[Check]:
    level, found = facts.durability, facts.vitals
    if level == "fsync" and found.unable:
        yield Check(
            FAIL, "durability", f"fsync is set, but {found.unable}", "Set appendonly yes; use 7.2 or newer."
        )
    elif level == "replica" and not found.replicas:
        fix = "Start a replica, or set RUNNER_DURABILITY to fsync or fast."
        yield Check(FAIL, "durability", "replica is set, but none is there: nothing is acknowledged", fix)
    elif level == "replica" and found.least_replicas == 0:
        alone = "replica; but a primary that is cut off goes on taking writes of those set to fast"
        yield Check(WARN, "durability", alone, "Set min-replicas-to-write 1.")
    elif level != "fast":
        yield Check(PASS, "durability", level)


def _memory(facts: Facts) -> Iterator[Check]:
    used, limit = facts.vitals.memory, facts.vitals.memory_limit
    shown = f"{used / 1e6:.0f} MB used" + (f" of {limit / 1e6:.0f} MB" if limit else ", no limit")
    if limit and used > FULL * limit:
        fix = "Raise maxmemory, or shorten RUNNER_RETENTION: a full store refuses new work."
        yield Check(WARN, "memory", shown, fix)
    else:
        yield Check(PASS, "memory", shown)


def _door(facts: Facts) -> Iterator[Check]:
    if facts.unguarded:
        yield Check(
            WARN,
            "password",
            "the store is on another machine and its URL has no password: who reaches it rules it",
            "Give the store a password (requirepass or an ACL) and put it into RUNNER_REDIS_URL.",
        )


def _clock(facts: Facts) -> Iterator[Check]:
    here = {"this machine": facts.clock - facts.vitals.now}
    off = {
        name: ms
        for name, ms in {**here, **{worker.name: worker.ahead for worker in facts.alive}}.items()
        if abs(ms) > SKEW
    }
    if off:
        said = ", ".join(f"{name} by {span(abs(ms))}" for name, ms in off.items())
        yield Check(WARN, "clocks", f"not the store's: {said}", "Run a time service (NTP) on all machines.")
    else:
        yield Check(PASS, "clocks", "agree with the store's")


def _broker(facts: Facts) -> Iterator[Check]:
    if facts.broker:
        yield Check(FAIL, "broker", facts.broker, "Start the broker, or correct RUNNER_BROKER_URL.")
    else:
        same = "the store, which rings for nodes itself" if facts.broker_is_store else "can be reached"
        yield Check(PASS, "broker", same)


def _workers(facts: Facts) -> Iterator[Check]:
    alive, silent, stopping = facts.alive, len(facts.named("gone")), len(facts.named("stopping"))
    gone = f", {silent} gone without a word" if silent else ""
    gone += f", {stopping} stopping" if stopping else ""
    if not alive:
        yield Check(FAIL, "workers", f"none{gone}", "Start one with `runner worker`.")
    else:
        busy, slots = sum(each.busy for each in alive), sum(each.slots for each in alive)
        told = f"{len(alive)} alive, {busy} of {slots} slots busy{gone}"
        fix = "`runner workers list` names them; their nodes run again elsewhere." if silent else ""
        yield Check(WARN if silent else PASS, "workers", told, fix)


def _hanging(facts: Facts) -> Iterator[Check]:
    hanging = facts.named("hangs")
    if hanging:
        yield Check(
            WARN,
            "stopping",
            f"told to stop and still there: {', '.join(hanging)}; their nodes run again elsewhere",
            "End those processes (kill -9), and give the nodes that they name in their logs a timeout.",
        )


def _known_graphs(facts: Facts) -> Iterator[Check]:
    published = sorted(name for name in facts.graphs if "/" not in name)
    known = {name for worker in facts.alive for name in worker.graphs}
    orphans = [name for name in published if name not in known]
    if orphans:
        yield Check(
            WARN,
            "graphs",
            f"no worker has {_names(orphans)}: their runs don't go on",
            "Start a worker whose RUNNER_GRAPHS names their modules.",
        )
    else:
        yield Check(PASS, "graphs", _names(published) or "none yet")


def _same_graphs(facts: Facts) -> Iterator[Check]:
    shapes: dict[str, set[str]] = {}
    for worker in facts.alive:
        for name, fingerprint in worker.graphs.items():
            shapes.setdefault(name, set()).add(fingerprint)
    differ = sorted(name for name, found in shapes.items() if len(found) > 1)
    others = sorted(name for name, found in shapes.items() if facts.graphs.get(name, "") not in {*found, ""})
    if others:
        yield Check(
            WARN,
            "deploy",
            f"the store's {_names(others)} is another graph than every worker's: runs of it are put back",
            "Start a worker that has it; or, if the workers' is the right one, restart them.",
        )
    if differ:
        yield Check(
            WARN,
            "deploy",
            f"workers differ about {_names(differ)}",
            "Finish the deploy: restart the workers that have the older graph.",
        )


def _queues(facts: Facts) -> Iterator[Check]:
    served = {queue for worker in facts.alive for queue in worker.queues}
    wanted = {queue for worker in facts.alive for queue in worker.wants}
    if wanted - served:
        yield Check(
            FAIL,
            "queues",
            f"no worker serves {_names(sorted(wanted - served))}",
            "Start a worker for them, for example `runner worker -- --queues NAME`.",
        )
    elif served:
        yield Check(PASS, "queues", _names(sorted(served)))


def _sweep(facts: Facts) -> Iterator[Check]:
    overdue, limit = facts.vitals.overdue, LATE * facts.sweep_interval * 1000
    if overdue > limit:
        yield Check(
            WARN,
            "sweep",
            f"something is due for {span(overdue)}: lost work waits",
            "Start a worker, or look at its log: every worker sweeps.",
        )
    else:
        yield Check(PASS, "sweep", "nothing is late")


def _intervals(facts: Facts) -> Iterator[Check]:
    slow = [worker.name for worker in facts.alive if worker.sweep_interval > worker.lease > 0]
    if slow:
        fix = "Set RUNNER_SWEEP_INTERVAL below RUNNER_LEASE."
        yield Check(WARN, "intervals", f"{_names(slow)} sweep less often than a lease lasts", fix)
    leases = {worker.lease for worker in facts.alive}
    if len(leases) > 1:
        shown = ", ".join(f"{lease:g} s" for lease in sorted(leases))
        yield Check(WARN, "leases", f"workers differ: {shown}", "Give all the same RUNNER_LEASE.")


def _content(facts: Facts) -> Iterator[Check]:
    unsafe = ("pickle", "yaml", "application/x-python-serialize", "application/x-yaml")
    found = [worker.name for worker in facts.alive if any(kind in unsafe for kind in worker.accepts)]
    if found:
        yield Check(
            FAIL,
            "messages",
            f"{_names(found)} read pickle or yaml: who writes to the broker runs code there",
            'Set accept_content = ["json"] on the Celery app.',
        )
    elif facts.alive:
        yield Check(PASS, "messages", "JSON only")


def _visibility(facts: Facts) -> Iterator[Check]:
    short = [worker.name for worker in facts.alive if 0 < worker.visibility < worker.lease]
    if short:
        yield Check(
            WARN,
            "visibility",
            f"at {_names(short)} the broker repeats messages before a lease is over",
            "Set visibility_timeout in broker_transport_options above RUNNER_LEASE.",
        )


def _events(facts: Facts) -> Iterator[Check]:
    quiet = [worker.name for worker in facts.alive if not worker.events]
    if quiet:
        yield Check(
            WARN, "events", f"{_names(quiet)} send none: Flower shows nothing", "Set RUNNER_EVENTS=true."
        )
    elif facts.alive:
        yield Check(PASS, "events", "on; Flower shows them")


def _letters(facts: Facts) -> Iterator[Check]:
    if facts.letters:
        yield Check(WARN, "dead letters", str(facts.letters), "Read them with `runner dead list`.")
    else:
        yield Check(PASS, "dead letters", "none")


def _settings(facts: Facts) -> Iterator[Check]:
    if facts.unknown:
        yield Check(WARN, "settings", "; ".join(facts.unknown), "Correct the name, or remove it.")
    over = [f"RUNNER_MAX_{name.upper()}" for name, size in facts.sizes.items() if size > facts.sizes["run"]]
    if over:
        found = f"{' and '.join(over)} allow more than RUNNER_MAX_RUN: the run is full before"
        yield Check(WARN, "settings", found, "Raise RUNNER_MAX_RUN, or lower the others.")


CHECKS: Iterable[Callable[[Facts], Iterator[Check]]] = (
    _settings,
    _version,
    _policy,
    _disk,
    _durability,
    _memory,
    _door,
    _clock,
    _broker,
    _workers,
    _hanging,
    _known_graphs,
    _same_graphs,
    _queues,
    _sweep,
    _intervals,
    _content,
    _visibility,
    _events,
    _letters,
)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
