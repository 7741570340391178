"""Checks of store, broker, workers and settings, with the fix for each problem.

Each check is a function of the facts, which are read beforehand: no check reads anything itself.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

from runner.approvals.decision_keys import DecisionKeys, SigningKey
from runner.approvals.freezes import Freeze
from runner.dev.embedded import OLDEST
from runner.errors import RunnerError, UsageError
from runner.execution.held_nodes import UNDER_WAY
from runner.immutable import immutable
from runner.limits.concurrency import QueuedKey, of_graph
from runner.limits.control import LimitControl, LimitView, conflicts
from runner.limits.fairness import FairKey
from runner.limits.setting import LimitPause
from runner.operations.backlog import GATE, QueueBacklog, read_queues
from runner.operations.setting_sources import unknown_settings
from runner.operations.views import read_run
from runner.records.json_form import span
from runner.records.listings import InterruptQuery, RunQuery, grouped
from runner.records.run import Status, outermost
from runner.records.validation import one_line
from runner.records.workers import Worker
from runner.schedules.schedule import Schedule
from runner.schedules.scheduler import trouble
from runner.settings import Settings, as_broker, rabbitmq_tls
from runner.store.addresses import ALTERNATIVE, cluster, sentinels, without_password
from runner.store.interface import Store
from runner.store.shared import AuditLog, ServerInfo, Shared
from runner.webhooks.webhook import Webhook

PASS, WARN, FAIL = "pass", "warn", "fail"


@immutable
class Check:
    """The result of one check: pass, warn or fail; `fix` is empty for pass."""

    result: str
    name: str
    detail: str
    fix: str = ""


Checks = Iterator[Check]


# -- facts -------------------------------------------------------------------------------------------

BROKER_TIMEOUT = 3.0
"""Seconds that a broker may take to accept a connection."""


@immutable
class Facts:
    """Input of the checks. `clock` is this machine's in ms; `broker` is why it can't be reached, or "".

    `graph_queues` are the queues of each graph's nodes as the broker names them, `run_queues` the
    queues of graphs that have unfinished runs; `unreadable` are queues whose key isn't a list.
    `unread_queues` has the queue of starts and answers if such messages wait on it.
    `unasked` is why the workers of other apps can't be asked for their queues, or "".
    `other_servers` are all servers of partitions but the first, by address; `layout` is why the
    partitions can't be used as configured, or "". `signing` is the problem of the decision keys, or
    "". `voters` are the keys of people who have voted lately. `held` are the newest held runs.
    `server_processes` are those of `runner server` that reported lately.
    """

    vitals: ServerInfo
    workers: Sequence[Worker]
    graphs: Mapping[str, str]
    letters: int
    clock: int
    settings: Settings
    broker: str = ""
    unknown_settings: Sequence[str] = ()
    graph_queues: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    run_queues: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    foreign_queues: AbstractSet[str] = field(default_factory=set)
    unasked: str = ""
    unreadable: Sequence[str] = ()
    unread_queues: AbstractSet[str] = field(default_factory=set)
    held: Sequence[str] = ()
    other_servers: Mapping[str, ServerInfo] = field(default_factory=dict)
    layout: str = ""
    freezes: Sequence[Freeze] = ()
    schedules: Sequence[tuple[str, str]] = ()
    late_webhooks: Sequence[tuple[str, str]] = ()
    limits: Sequence[LimitView] = ()
    fair_keys: Sequence[FairKey] = ()
    queued: Sequence[QueuedKey] = ()
    audits: Sequence[Audited] = ()
    signing: str = ""
    voters: Sequence[str] = ()
    dropped: int = 0
    server_processes: Sequence[Worker] = ()
    backlog: Sequence[QueueBacklog] = ()

    @property
    def alive(self) -> list[Worker]:
        """The workers that have reported lately and accept nodes."""
        return [worker for worker in self.reporting if not worker.is_keeper]

    @property
    def keepers(self) -> list[Worker]:
        """The keepers that have reported lately."""
        return [worker for worker in self.reporting if worker.is_keeper]

    @property
    def reporting(self) -> list[Worker]:
        """The workers and keepers that have reported lately and are not stopping."""
        return self.in_state("alive")

    def in_state(self, state: str) -> list[Worker]:
        """Return the workers and keepers in a state."""
        return [worker for worker in self.workers if worker.state_at(self.vitals.now) == state]


@immutable
class Audited:
    """The audit of one partition: how many entries are sealed, and how many of these are signed.

    `waiting` entries are not sealed yet, the oldest for `lag` ms. `problem` is why the audit is not
    signed or anchored.
    """

    origin: str
    size: int
    signed: int
    waiting: int
    lag: int
    problem: str


def _audited(log: AuditLog) -> Audited:
    head = log.head()
    waiting, lag = log.unsealed(head)
    return Audited(log.origin(head.epoch), head.size, head.signed, waiting, lag, head.problem)


def read_facts(settings: Settings) -> Facts:
    """Read all facts.

    Raises:
        StoreError: the store can't be reached.
    """
    shared = Shared(settings)
    workers = shared.workers.all()
    store = shared.store
    servers = shared.servers()
    # Read at once, since it is compared with the first server's clock.
    clock = time.time_ns() // 1_000_000
    graphs = {name: shape for name, shape in store.graphs().items() if name != GATE}
    graph_queues, run_queues = _read_queues(store, graphs, settings.node_queue)
    foreign_queues, unasked = _foreign_queues(settings, workers)
    return Facts(
        vitals=servers.pop(without_password(settings.first_url)),
        other_servers=servers,
        layout=shared.layout_problem(),
        freezes=list(store.frozen().values()),
        schedules=list(_troubled(shared)),
        late_webhooks=list(_late_webhooks(shared)),
        limits=LimitControl(shared).all(),
        fair_keys=shared.fair_keys(MOST_FAIR_KEYS),
        queued=list(shared.queued_keys()),
        backlog=list(read_queues(shared)),
        audits=[_audited(log) for log in store.audit_logs],
        clock=clock,
        settings=settings,
        workers=workers,
        server_processes=[
            process
            for process in shared.server_processes.all()
            if process.alive(shared.server_processes.now())
        ],
        graphs=graphs,
        letters=shared.dead_letters.count(),
        dropped=shared.dead_letters.dropped(),
        graph_queues=graph_queues,
        run_queues=run_queues,
        unreadable=shared.unreadable_queues(
            {queue for worker in workers for queue in worker.queues}
        ),
        unread_queues=_unread_queues(shared),
        foreign_queues=foreign_queues,
        unasked=unasked,
        broker=""
        if settings.broker_is_store or not settings.broker_url
        else broker_problem(settings.broker_url),
        unknown_settings=unknown_settings(),
        held=[
            _with_reason(store, run.run_id)
            for run in store.runs(RunQuery(Status.NEEDS_MIGRATION), MOST_HELD)
        ],
        signing=signing_problem(settings.signing_key, settings.decision_keys),
        voters=_read_voters(store),
    )


def _troubled(shared: Shared) -> Iterator[tuple[str, str]]:
    """Yield each problem of a schedule that starts no run, with its fix."""
    schedules = shared.documents(Schedule)
    for schedule in schedules.all():
        problem, fix = trouble(shared.store, schedule, schedules.now())
        if problem:
            yield f"{schedule.id} {problem}", fix


def _late_webhooks(shared: Shared) -> Iterator[tuple[str, str]]:
    """Yield the id of each webhook that fails or is late, with its number of deliveries and last error."""
    webhooks = shared.documents(Webhook)
    for webhook in webhooks.all():
        # A delivery that is tried again late may have waited longer than the next one.
        waiting = [
            end[0]
            for index in (0, -1)
            if (end := shared.deliveries.next_delivery(webhook.id, index))
        ]
        if webhook.paused or not waiting:
            continue
        waited = webhooks.now() - min(each.at for each in waiting)
        last = max(waiting, key=lambda each: each.attempted_at).detail
        if last or waited > shared.settings.max_wait * 1000:
            why = f"one of them for {span(waited)}: {last or 'not tried yet'}"
            yield webhook.id, f"{shared.deliveries.backlog(webhook.id)[0]}, {why}"


RUNS_READ = 100
"""Maximum of unfinished runs read per graph and status, newest first: most have the same queues."""


def _read_queues(
    store: Store, graphs: Mapping[str, str], name_of: Callable[[str], str]
) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the queues of each graph as it is now, and the queues of its unfinished runs."""
    shapes: dict[tuple[str, str], set[str]] = {}

    def queues(graph: str, fingerprint: str) -> set[str]:
        if (graph, fingerprint) not in shapes:
            topology = store.topology(graph, fingerprint)
            nodes = topology.nodes.values() if topology else ()
            shapes[graph, fingerprint] = {name_of(node.queue) for node in nodes}
        return shapes[graph, fingerprint]

    graph_queues: dict[str, set[str]] = {}
    run_queues: dict[str, set[str]] = {}
    for graph, fingerprint in graphs.items():
        graph_queues.setdefault(outermost(graph), set()).update(queues(graph, fingerprint))
        for status in UNDER_WAY:
            for run in store.runs(RunQuery(status, graph=graph), RUNS_READ):
                run_queues.setdefault(outermost(graph), set()).update(
                    queues(graph, run.fingerprint)
                )
    return graph_queues, run_queues


QUESTIONS_READ = 100
"""The oldest open questions, and the newest closed ones, whose votes are read."""


def _read_voters(store: Store) -> list[str]:
    return sorted(
        {
            vote["by"]
            for closed in (False, True)
            for question in store.open_interrupts(InterruptQuery(closed=closed), QUESTIONS_READ)
            if question.rule is not None
            for vote in store.votes(question.id)
        }
    )


def broker_detail(settings: Settings) -> str:
    """Describe a broker that has no problem."""
    if settings.broker_is_store:
        return "the store, which dispatches nodes itself"
    if settings.broker.startswith("sqs:") and not urlsplit(settings.broker).hostname:
        return "Amazon SQS, which only workers use: they log its refusals"
    return "can be reached"


def broker_problem(urls: str) -> str:
    """Return why a broker can't be used; "" if it can, or if one of several can."""
    problems = [_broker_problem(url) for url in ALTERNATIVE.split(urls)]
    return "" if "" in problems else "; ".join(problems)


def _broker_problem(url: str) -> str:
    address = urlsplit(url)
    try:
        if address.scheme == "sqs":
            if address.hostname:
                socket.create_connection(
                    (address.hostname, address.port or 443), BROKER_TIMEOUT
                ).close()
        elif sentinels(url) or cluster(url):  # kombu takes their options from elsewhere
            Shared(Settings(redis_url=url)).workers.now()
        else:
            with _connection(as_broker(url)) as connection:
                connection.channel().close()
    except Exception as error:  # noqa: BLE001 - each broker's client has its own errors
        return f"{without_password(url)} can't be used ({one_line(error.__cause__ or error)})"
    return ""


@contextmanager
def _connection(url: str) -> Iterator[Any]:
    """Connect to a broker and log in."""
    from kombu import Connection  # noqa: PLC0415 - takes long, and few installations need it

    timeouts = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), BROKER_TIMEOUT)
    with Connection(
        url,
        ssl=rabbitmq_tls(url),
        connect_timeout=BROKER_TIMEOUT,
        transport_options=timeouts,
    ) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0.1)
        yield connection


def _unread_queues(shared: Shared) -> set[str]:
    """Return the queue of starts and answers if messages wait on it; SQS tells workers alone."""
    settings = shared.settings
    if (
        settings.broker_is_store
    ):  # maybe with Sentinels, whose options kombu takes from elsewhere
        nodes = shared.queued_nodes([settings.messages_queue])
        return {each.queue for each in nodes if each.tasks}
    if not settings.broker.startswith("sqs:"):
        with suppress(Exception), _connection(settings.broker) as connection:
            queue = connection.channel().queue_declare(settings.messages_queue, passive=True)
            if queue.message_count:
                return {queue.queue}
    return set()  # also if the queue doesn't exist


def _foreign_queues(settings: Settings, workers: Sequence[Worker]) -> tuple[set[str], str]:
    """Ask the Celery workers on the broker for their queues, if nodes send tasks to queues of other apps.

    If they can't be asked, the queues count as served, and the reason is returned, too.
    """
    task_queues = {queue for worker in workers for queue in worker.tasks}
    if task_queues.issubset(queue for worker in workers for queue in worker.queues):
        return set(), ""
    if settings.broker.startswith("sqs:"):
        return task_queues, ""
    from kombu.pidbox import Mailbox  # noqa: PLC0415 - as above

    try:
        with _connection(settings.broker) as connection:
            mailbox = Mailbox("celery", type="fanout", accept=["json"])(connection)
            replies = mailbox.multi_call("active_queues", timeout=BROKER_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - each broker's client has its own errors
        return task_queues, one_line(error) or type(error).__name__
    return {
        queue["name"] for reply in replies for queues in reply.values() for queue in queues
    }, ""


def _is_open_to_network(url: str) -> bool:
    """Return whether the store is on another machine and needs no password."""
    address = urlsplit(url)
    is_local = address.scheme == "unix" or address.hostname in {
        None,
        "localhost",
        "127.0.0.1",
        "::1",
    }
    return not is_local and address.password is None


def signing_problem(signing_key: str, decision_keys: str) -> str:
    """Describe a problem of the key files; "" if they have none, or none are set."""
    try:
        known_keys = DecisionKeys(decision_keys).read()
        kid = SigningKey.read(signing_key).kid if signing_key else ""
    except UsageError as error:
        return str(error)
    if not kid or kid in known_keys:
        return ""
    return (
        f"RUNNER_DECISION_KEYS has no key {kid!r}: votes signed with it count only at level 0"
    )


def _with_reason(store: Store, run_id: str) -> str:
    """Name a held run and why it is held; a run that can't be read is only named."""
    try:
        return f"{run_id} ({one_line(read_run(store, run_id).reason)})"
    except RunnerError:
        return run_id


# -- checks ------------------------------------------------------------------------------------------

NEARLY_FULL, FULL = 0.9, 0.99
"""Fractions of the memory limit: a full store stays a little below it, refusing larger writes."""
MAX_SKEW = 1_000
"""Ms by which a clock may be wrong before the times that people see are misleading."""
MAX_LATE_SWEEPS, MOST_HELD = 3, 5
UNATTENDED = 60
"""Sweep intervals in which at least one worker looks for runs to archive."""

DISK = {
    "off": (WARN, "off: a restart of the store loses runs", "Set appendonly yes."),
    "no": (
        WARN,
        "on, appendfsync no: a crash loses the last 30 seconds",
        "Set appendfsync always.",
    ),
    "everysec": (
        PASS,
        "on, appendfsync everysec: fast, but a crash may lose the last two seconds",
        "",
    ),
    "always": (
        PASS,
        "on, appendfsync always: a crash loses nothing, but each write waits for the disk",
        "",
    ),
    "": (PASS, "on; the server does not report its appendfsync", ""),
}
"""Guarantee of the append-only file, by how often the server waits for the disk."""


def examine(facts: Facts) -> list[Check]:
    """Run every check, and the checks of servers once for each server."""
    return [result for check in CHECKS for result in _results(check, facts)]


def _results(check: Callable[[Facts], Checks], facts: Facts) -> Checks:
    yield from check(facts)
    for server, vitals in facts.other_servers.items() if check in CHECKS_OF_SERVERS else ():
        for result in check(replace(facts, vitals=vitals)):
            yield replace(result, detail=f"{server}: {result.detail}")


def _check(
    name: str, detail: str, problem: str = "", fix: str = "", result: str = WARN
) -> Checks:
    """Yield a problem with its fix, or else a pass with `detail`; nothing if both are empty."""
    if problem:
        yield Check(result, name, problem, fix)
    elif detail:
        yield Check(PASS, name, detail)


def _store(facts: Facts) -> Checks:
    address = without_password(facts.settings.redis_url)
    problem = (
        f"{address} is a replica, which refuses all writes"
        if facts.vitals.role == "slave"
        else ""
    )
    fix = "Name the primary in RUNNER_REDIS_URL, or the Sentinels that know it."
    yield from _check("store", address, problem, fix, FAIL)


def _settings(facts: Facts) -> Checks:
    yield from _check(
        "settings", "", "; ".join(facts.unknown_settings), "Correct the name, or remove it."
    )
    sizes = {
        "RUNNER_MAX_RESULT": facts.settings.max_result,
        "RUNNER_MAX_STATE": facts.settings.max_state,
    }
    larger = [name for name, size in sizes.items() if size > facts.settings.max_run]
    problem = (
        larger and f"{' and '.join(larger)} can't be used up, because RUNNER_MAX_RUN is smaller"
    )
    yield from _check(
        "settings", "", problem or "", "Raise RUNNER_MAX_RUN, or lower the others."
    )


def _keys(facts: Facts) -> Checks:
    yield from _check(
        "keys", "", facts.signing, "Give doors and workers a file with its public half."
    )


def _voters(facts: Facts) -> Checks:
    people = [key for key in facts.voters if key.startswith("human:")]
    by_name = grouped(people, lambda key: key.partition("|")[2])
    double = [" and ".join(keys) for keys in by_name.values() if len(keys) > 1]
    problem = f"one name votes with several issuers, so counts several times: {_names(double)}"
    yield from _check(
        "voters",
        "",
        problem if double else "",
        "Let all doors name a person with one issuer; set the issuer of names without one in "
        "RUNNER_PLAIN_NAMES_ISSUER.",
    )


def _version(facts: Facts) -> Checks:
    server = facts.vitals.server
    problem = server if facts.vitals.version < OLDEST else ""
    fix = f"Install Redis {OLDEST[0]}.{OLDEST[1]} or newer, or Valkey."
    yield from _check("version", server, problem, fix, FAIL)


def _eviction(facts: Facts) -> Checks:
    policy = facts.vitals.policy
    # volatile-* evicts keys with an expiry, such as ended runs and receipts; allkeys-* also waiting
    # runs.
    result = WARN if policy.startswith("volatile") or not policy else FAIL
    lost = (
        "ended runs are deleted early"
        if result == WARN
        else "runs that wait for people are deleted"
    )
    problem = f"maxmemory-policy is {policy or 'unknown'}: when memory is full, {lost}"
    problem = "" if policy == "noeviction" else problem
    yield from _check("eviction", policy, problem, "Set maxmemory-policy noeviction.", result)


def _disk(facts: Facts) -> Checks:
    result, detail, fix = DISK.get(
        facts.vitals.fsync if facts.vitals.appendonly else "off", DISK[""]
    )
    detail = f"append-only file is {detail}"
    if facts.vitals.refused:
        result = FAIL
        detail = facts.vitals.refused
        fix = "Make room on the server's disk, or see its log."
    yield Check(result, "disk", detail, fix)


def _durability(facts: Facts) -> Checks:
    level = facts.settings.durability
    vitals = facts.vitals
    problem = fix = ""
    result = FAIL
    if level == "fsync" and vitals.unable:
        problem = f"set to fsync, but {vitals.unable}"
        fix = "Set appendonly yes; use 7.2 or newer."
    elif level == "replica" and not vitals.replicas:
        problem = "set to replica, but there is none: no write is acknowledged"
        fix = "Start a replica, or set RUNNER_DURABILITY to fsync or fast."
    elif level == "replica" and vitals.least_replicas == 0:
        problem = "replica; but a disconnected primary still accepts the writes of clients set to fast"
        fix = "Set min-replicas-to-write 1."
        result = WARN
    yield from _check("durability", level if level != "fast" else "", problem, fix, result)


def _partitions(facts: Facts) -> Checks:
    servers = len(facts.other_servers) + 1
    partitions = len(facts.settings.partition_addresses)
    detail = f"{partitions} on {servers} server{'s' if servers > 1 else ''}"
    differences = ", ".join(
        f"{process.name} has {process.partitions}"
        for process in (*facts.reporting, *facts.server_processes)
        if process.partitions not in {0, partitions}
    )
    problem = facts.layout or (differences and f"{partitions} set here, but {differences}")
    fix = (
        "Set the same RUNNER_PARTITIONS and RUNNER_REDIS_URL for all workers and programs, and restart them; "
        "until then runs may not begin, and workers may refuse to start."
    )
    yield from _check("partitions", detail if partitions > 1 else "", problem, fix, FAIL)


def _memory(facts: Facts) -> Checks:
    used_bytes = facts.vitals.memory
    limit = facts.vitals.memory_limit
    detail = f"{used_bytes / 1e6:.0f} MB used" + (
        f" of {limit / 1e6:.0f} MB" if limit else ", no limit"
    )
    share = used_bytes / limit if limit else 0
    is_full = share > FULL
    problem = detail if share > NEARLY_FULL else ""
    if is_full:
        problem = f"full: {detail}; starts and doorbells are refused"
    yield from _check(
        "memory",
        detail,
        problem,
        "Raise maxmemory, or shorten RUNNER_RETENTION: a full store refuses new work.",
        FAIL if is_full else WARN,
    )


def _password(facts: Facts) -> Checks:
    problem = (
        "the store is on another machine and its URL has no password: any client can change runs, and decide "
        "where a rule has level 0"
    )
    fix = (
        "Set a password in the store (requirepass or an ACL) and put it into RUNNER_REDIS_URL; let rules ask "
        "for `auth=Auth(level=1)` or more."
    )
    is_open = any(
        _is_open_to_network(place.url) for place in facts.settings.partition_addresses
    )
    yield from _check("password", "", problem if is_open else "", fix)


def _clocks(facts: Facts) -> Checks:
    skews = [("this machine", facts.clock - facts.vitals.now)]
    skews += [
        (process.name, process.ahead) for process in (*facts.reporting, *facts.server_processes)
    ]
    wrong = ", ".join(f"{name} by {span(abs(ms))}" for name, ms in skews if abs(ms) > MAX_SKEW)
    problem = wrong and f"differ from the store's: {wrong}"
    yield from _check(
        "clocks", "agree with the store's", problem, "Run a time service (NTP) on all machines."
    )


def _broker(facts: Facts) -> Checks:
    fix = "Start the broker, or correct RUNNER_BROKER_URL."
    yield from _check("broker", broker_detail(facts.settings), facts.broker, fix, FAIL)


def _workers(facts: Facts) -> Checks:
    alive = facts.alive
    dead_count = len(facts.in_state("gone"))
    stopping = len(facts.in_state("stopping"))
    other_states = f", {dead_count} gone without stopping" if dead_count else ""
    other_states += f", {stopping} stopping" if stopping else ""
    keepers = f"{len(facts.keepers)} {'keeper' if len(facts.keepers) == 1 else 'keepers'}"
    detail = (
        f"{len(alive)} alive, {sum(worker.busy for worker in alive)} of "
        f"{sum(worker.slots for worker in alive)} slots busy{other_states}"
    )
    detail += f", {keepers}" if facts.keepers else ""
    problem = detail if dead_count else ""
    fix = "`runner workers list` names them; their nodes run again on other workers."
    result = WARN
    if not alive:
        problem = f"none{other_states}"
        fix = "Start one with `runner worker`."
        result = FAIL
    if facts.keepers and not alive:
        problem += (
            f", but {keepers}: answers and timers are applied, nodes wait on their queues"
        )
        fix = "Start one with `runner worker` when nodes are to run."
        result = WARN
    yield from _check("workers", detail, problem, fix, result)


def _names_of_workers(facts: Facts) -> Checks:
    counts = Counter(worker.name for worker in facts.reporting)
    names = _names(sorted(name for name, count in counts.items() if count > 1))
    problem = names and f"several have one name: {names}; Flower and remote control mix them up"
    yield from _check("worker names", "", problem, "Give each its own, with --hostname.")


def _stopping(facts: Facts) -> Checks:
    names = ", ".join(worker.name for worker in facts.in_state("hangs"))
    fix = "End those processes (kill -9), and set a timeout on the nodes that they name in their logs."
    late = f"should have stopped by now: {names}; their nodes run again on other workers"
    yield from _check("stopping", "", names and late, fix)


def _graphs(facts: Facts) -> Checks:
    graph_names = sorted(name for name in facts.graphs if "/" not in name)
    served_graphs = {name for worker in facts.reporting for name in worker.graphs}
    if lost := sorted(served_graphs.difference(graph_names)):
        yield Check(
            FAIL,
            "graphs",
            f"the store does not have {_names(lost)}, which workers have: it has lost data",
            "Workers publish them again within a minute; docs/how-to/backup.md says what else to do.",
        )
        return
    orphan_graphs = [name for name in graph_names if name not in served_graphs]
    stuck_graphs = [name for name in orphan_graphs if name in facts.run_queues]
    problem = orphan_graphs and f"no worker has {_names(orphan_graphs)}: new runs would wait"
    if stuck_graphs:
        problem = f"no worker has {_names(stuck_graphs)}, and unfinished runs wait for one"
    fix = "Start a worker whose RUNNER_GRAPHS names their modules."
    if not stuck_graphs:
        fix += " `runner graphs remove` removes a graph that is not needed any more."
    yield from _check(
        "graphs",
        _names(graph_names) or "none yet",
        problem or "",
        fix,
        FAIL if stuck_graphs else WARN,
    )


def _deploy(facts: Facts) -> Checks:
    versions = {version for worker in facts.reporting for version in worker.graphs.items()}
    counts = Counter(name for name, _ in versions)
    differing = _names(sorted(name for name, count in counts.items() if count > 1))
    old_graphs = _names(
        sorted(
            name
            for name in counts.keys() & facts.graphs.keys()
            if (name, facts.graphs[name]) not in versions
        )
    )
    yield from _check(
        "deploy",
        "",
        old_graphs
        and f"no worker has the store's version of {old_graphs}: its runs are put back on the queue",
        "Start a worker that has it; or, if the workers' version is right, restart them.",
    )
    problem = differing and f"workers have different versions of {differing}"
    fix = "Finish the deploy: restart the workers that have the older graph."
    yield from _check("deploy", "", problem, fix)


def _queues(facts: Facts) -> Checks:
    served_queues = {queue for worker in facts.alive for queue in worker.queues}
    graphs = {name for worker in facts.alive for name in worker.graphs}
    wanted_queues = {queue for worker in facts.alive for queue in worker.wants}
    # Runs keep the queues that their graph had when they started. The check "graphs" reports graphs
    # without a worker.
    wanted_queues |= {queue for name in graphs for queue in facts.run_queues.get(name, ())}
    wanted_queues |= facts.unread_queues
    missing = sorted(wanted_queues - served_queues)
    problem = f"no worker serves {_names(missing)}" if missing else ""
    fix = f"Start a worker without --queues (-Q), or add these to it: {', '.join(missing)}."
    if facts.unreadable:
        problem = (
            f"no worker can read {_names(facts.unreadable)}: the key of that name isn't a list"
        )
        fix = "Give the queue another name, or delete the key if nothing needs it."
    unserved_tasks = {
        f"{task!r} on {queue!r}"
        for worker in facts.alive
        for queue, task in worker.tasks.items()
        if queue not in served_queues | facts.foreign_queues
    }
    if unserved_tasks and not problem:
        problem = f"nodes send tasks to queues that no Celery worker serves: {_names(sorted(unserved_tasks))}"
        fix = "Start a worker of the app that has the task, with -Q and that queue."
    yield from _check("queues", _names(sorted(served_queues)), problem, fix, FAIL)
    unasked = (
        facts.unasked and f"workers of other apps can't be asked for them: {facts.unasked}"
    )
    yield from _check(
        "queues", "", unasked, "Let this broker user write, and see that the broker has room."
    )


def _backlog(facts: Facts) -> Checks:
    """Check that no node waits too long for a worker."""
    waiting = [row for row in facts.backlog if row.ready]
    late = [str(row) for row in waiting if row.oldest_seconds > facts.settings.max_wait]
    problem = (
        f"a node waits for longer than {facts.settings.max_wait:g} s on {_names(late)}"
        if late
        else ""
    )
    detail = _names([str(row) for row in waiting]) or "no node waits for a worker"
    yield from _check(
        "backlog",
        detail if facts.alive else "",
        problem,
        "Start workers for the queue, or raise --concurrency; `runner workers backlog` shows all queues.",
        FAIL,
    )


def _routing(facts: Facts) -> Checks:
    """Check that no worker serves a queue with nodes of a graph that it doesn't have."""
    # Graphs that have neither a worker nor an unfinished run send nothing.
    graphs = {name for worker in facts.alive for name in worker.graphs} | set(facts.run_queues)
    node_queues = {
        name: {*facts.graph_queues.get(name, ()), *facts.run_queues.get(name, ())}
        for name in sorted(graphs)
    }
    for worker in facts.alive:
        for name, queues in node_queues.items():
            if name not in worker.graphs and (
                shared_queues := queues.intersection(worker.queues)
            ):
                yield Check(
                    FAIL,
                    "routing",
                    f"{worker.name} serves {_names(sorted(shared_queues))}, where nodes of {name} are, but "
                    "doesn't have that graph: it returns them, and they wait for another worker",
                    "Add the graph to that worker's RUNNER_GRAPHS, or give its nodes a separate queue.",
                )


def _sweep(facts: Facts) -> Checks:
    overdue = facts.vitals.overdue
    is_late = overdue > MAX_LATE_SWEEPS * facts.settings.sweep_interval * 1000
    problem = (
        f"late by {span(overdue)}: retries, expiries and lost work wait" if is_late else ""
    )
    yield from _check(
        "sweep",
        "nothing is late",
        problem,
        "Start a worker or a keeper, or read its log: each of them sweeps.",
    )


def _intervals(facts: Facts) -> Checks:
    slow = _names(
        [worker.name for worker in facts.reporting if worker.sweep_interval > worker.lease > 0]
    )
    problem = slow and f"{slow} sweep at longer intervals than their lease"
    yield from _check("intervals", "", problem, "Set RUNNER_SWEEP_INTERVAL below RUNNER_LEASE.")
    leases = sorted({worker.lease for worker in facts.reporting})
    differ = (
        f"workers differ: {', '.join(f'{lease:g} s' for lease in leases)}"
        if len(leases) > 1
        else ""
    )
    yield from _check("leases", "", differ, "Set the same RUNNER_LEASE for all.")


UNSAFE = {"pickle", "yaml", "application/x-python-serialize", "application/x-yaml"}
"""Content types of messages with which a client can run code."""


def _each_worker(facts: Facts) -> Checks:
    """Name the workers that have the same problem.

    Without a problem, a check that has a detail passes if any worker is alive.
    """
    for name, detail, is_wrong, problem, fix in (
        (
            "messages",
            "JSON only",
            lambda worker: UNSAFE.intersection(worker.accepts),
            "{} accept pickle or yaml: a client of the broker can run code there",
            'Set accept_content = ["json"] on the Celery app once its own tasks need nothing else.',
        ),
        (
            "visibility",
            "",
            lambda worker: 0 < worker.visibility < worker.lease,
            "the broker of {} redelivers messages before a lease is over",
            "Set visibility_timeout in broker_transport_options above RUNNER_LEASE.",
        ),
        (
            "slots",
            "",
            lambda worker: not worker.slots,
            "{} have none, and keep each node that they take until its lease ends",
            "Restart them, or add processes: `celery control pool_grow`, or Flower.",
        ),
        (
            "rate limit",
            "",
            lambda worker: worker.rate,
            "Celery's limit slows all nodes of {} together",
            "Remove it from the app, by `celery control rate_limit runner.node 0`, or in Flower.",
        ),
        (
            "events",
            "on; Flower shows them",
            lambda worker: not worker.events,
            "{} send none: Flower shows nothing",
            "Set RUNNER_EVENTS=true; start workers of your own app with -E (--task-events).",
        ),
    ):
        names = _names([worker.name for worker in facts.alive if is_wrong(worker)])
        yield from _check(
            name, detail if facts.alive else "", names and problem.format(names), fix
        )


def _held(facts: Facts) -> Checks:
    problem = f"runs wait for an operator: {_names(facts.held)}" if facts.held else ""
    yield from _check(
        "held",
        "",
        problem,
        "`runner runs show RUN` says why. Migrate, cancel or release it, or replay its dead letter.",
    )


def _letters(facts: Facts) -> Checks:
    dropped_note = (
        f"; {facts.dropped} were deleted, since there were too many" if facts.dropped else ""
    )
    problem = f"{facts.letters}{dropped_note}" if facts.letters else ""
    yield from _check(
        "dead letters", f"none{dropped_note}", problem, "Read them with `runner dead list`."
    )


def _timers(facts: Facts) -> Checks:
    names = _names(facts.vitals.failing)
    problem = names and f"retries, expiries and lost work of {names} can't be applied"
    fix = "Read the workers' log for `timer.failed`; cancel the run, or remove it once it has ended."
    yield from _check("timers", "", problem, fix, FAIL)


def _archive(facts: Facts) -> Checks:
    state = facts.vitals.archive
    waiting = facts.vitals.unarchived
    interval = max(
        [facts.settings.sweep_interval, *(worker.sweep_interval for worker in facts.alive)]
    )
    wait = f"{waiting} ended runs wait for it, and expire unarchived after RUNNER_ARCHIVE_HOLD"
    detail = problem = fix = ""
    if state.get("problem"):
        problem = f"{state['problem']} {wait}"
        fix = "Correct the problem, or RUNNER_ARCHIVE; the workers' log has more."
    elif state and facts.vitals.now - int(state["at"]) > UNATTENDED * max(1, interval) * 1000:
        problem = f"no worker writes to {state['place']} any more: {wait}"
        fix = "Start a worker with RUNNER_ARCHIVE."
    elif state:
        detail = f"{state['place']}; {waiting} ended runs wait for it"
    elif facts.settings.archive:
        problem = "no worker writes to an archive: ended runs expire unarchived"
        fix = "Set RUNNER_ARCHIVE for the workers, too, and restart them."
    yield from _check("archive", detail, problem, fix, FAIL)


LATE_SEAL = 60_000
"""Ms after which an unsealed entry is late: workers seal every RUNNER_AUDIT_SEAL seconds."""

GROWN = 1_000
"""Entries, about 0.5 KB each, above which a missing archive is worth a warning."""


def _audit(facts: Facts) -> Checks:
    audits = [audit for audit in facts.audits if audit.size or audit.waiting]
    for audit in audits if facts.settings.audit != "off" else ():
        late = f"{audit.waiting} entries are not sealed, the oldest for {span(audit.lag)}"
        sealed_only = f"{audit.size} entries are sealed and none is signed"
        stay = f"its {audit.size} entries and all later ones stay in memory forever: no archive is set"
        is_kept = facts.settings.archive or facts.vitals.archive or audit.size < GROWN
        sealing = "Start a worker or a keeper: each of them seals."
        signing = "Set RUNNER_AUDIT_KEY and RUNNER_AUDIT_ANCHOR for the workers."
        candidates = (
            (FAIL, audit.problem, "Read docs/how-to/audit.md."),
            (FAIL, late if audit.lag > LATE_SEAL else "", sealing),
            (WARN, sealed_only if audit.size > audit.signed == 0 else "", signing),
            (WARN, "" if is_kept else stay, "Set RUNNER_ARCHIVE for the workers."),
        )
        problems = [
            Check(result, "audit", f"{audit.origin}: {why}", fix)
            for result, why, fix in candidates
            if why
        ]
        detail = f"{audit.origin}: {audit.size} entries, {audit.signed} signed, {audit.waiting} not sealed"
        yield from problems or _check("audit", detail)


MOST_NAMED = 10
"""Most keys of a limit that are named."""

MOST_FAIR_KEYS = 100
"""Most keys that are read per queue and priority: those whose turn comes next."""


def _limits(facts: Facts) -> Checks:
    for limit in facts.limits:
        problem = conflicts(limit.declarations)
        if problem:
            yield Check(
                FAIL,
                "limits",
                f"the limit {limit.name!r} is declared differently: {problem}; the first holds.",
                "Declare it alike in all graphs, or give it another name in some.",
            )
        setting = limit.setting
        if setting and not (setting.v and limit.declarations):
            problem = (
                "no graph has it any more"
                if setting.v
                else "it can't be read, so the code holds"
            )
            yield Check(
                WARN if setting.v else FAIL,
                "limits",
                f"a change of the limit {limit.name!r} is stored, but {problem}",
                f"Run `runner limits reset {quote(limit.name)}`.",
            )
        for pause in setting.pauses[-MOST_NAMED:] if setting else ():
            end = (
                f"for another {span(pause.ends_at - facts.vitals.now)}"
                if pause.ends_at
                else "without an end"
            )
            yield Check(
                WARN,
                "limits",
                f"the limit {pause.key!r} is paused {end}{_by(pause)}",
                f"Run `runner limits resume {quote(pause.key)}` when its nodes may start.",
            )
        for key in limit.waiting[:MOST_NAMED]:
            if key.last_start_at:
                yield from _waits(
                    facts,
                    "limits",
                    key.last_start_at - facts.vitals.now,
                    f"{key.nodes} nodes wait for start times of the limit {key.key!r}, the last for another",
                    f"Raise its rate with `runner limits set {quote(limit.name)} --rate`, or start fewer.",
                )
            if key.since and not limit.paused:
                yield from _waits(
                    facts,
                    "limits",
                    facts.vitals.now - key.since,
                    f"{key.nodes} nodes wait for the limit {key.key!r}, the first for",
                    f"`runner limits show {quote(limit.name)}` shows the holders of its slots.",
                )


def _waits(facts: Facts, name: str, waited: int, detail: str, fix: str) -> Checks:
    """Report a wait in ms, as a warning if it is longer than a node may wait for a worker."""
    detail += f" {span(waited)}"
    yield from _check(
        name, detail, detail if waited > facts.settings.max_wait * 1000 else "", fix
    )


FAR = 10
"""A key that waits more than this many times as long as one with at least as many nodes is a warning."""


def _fairness(facts: Facts) -> Checks:
    now = facts.vitals.now
    for key in facts.fair_keys:
        waited = now - key.since
        ahead = [
            other
            for other in facts.fair_keys
            if (other.queue, other.nodes >= key.nodes) == (key.queue, True)
            if FAR * (now - other.since) < waited
        ]
        if waited > facts.settings.max_wait * 1000 and ahead:
            other = max(ahead, key=lambda each: each.nodes)
            yield Check(
                WARN,
                "fairness",
                f"nodes of the key {one_line(key.key)!r} wait on {key.queue}: {key.nodes} "
                f"of priority {key.priority} for {span(waited)}, but those of {one_line(other.key)!r}, "
                f"{other.nodes} of priority {other.priority}, for {span(now - other.since)}",
                "Give the key a weight in the graph's fairness, or its nodes the same priority; "
                "see `runner api GET /v1/limits/fairness`.",
            )


def _queued(facts: Facts) -> Checks:
    for key in facts.queued[:MOST_NAMED]:
        for run in key.waiting:
            if run.status is None:
                yield Check(
                    WARN,
                    "keys of runs",
                    f"runs of {_of(key)}; one of them, {one_line(run.run_id)!r}, can't be read",
                    "Do nothing: when its turn comes, the run behind it begins.",
                )
        if key.open:
            run = min(key.open, key=lambda run: run.status in _STANDS)
            does, fix = _STANDS.get(run.status, _ENDED)
            yield from _waits(
                facts,
                "keys of runs",
                facts.vitals.now - key.since,
                f"runs of {_of(key)} ({key.runs}) behind {one_line(run.run_id)!r}, which {does}, the first "
                "for",
                fix.format(
                    run=quote(run.run_id),
                    list=one_line(f"key:o:{of_graph(key.graph, key.key)}"),
                ),
            )


_STANDS: Mapping[Status | None, tuple[str, str]] = {
    Status.EXECUTING: ("executes", "See `runner runs show {run}` for what it does."),
    Status.INTERRUPTED: (
        "waits for people",
        "Answer it, see `runner interrupts list --run {run}`, or run `runner runs cancel {run}`.",
    ),
    Status.NEEDS_MIGRATION: ("is held", "See `runner runs show {run}` for why."),
}
"""By status: an open run's activity, and how others get its place."""

_ENDED = (
    "has ended, or is gone, and keeps its place",
    "Remove it from the sorted set {list} of its partition, by ZREM.",
)


def _of(key: QueuedKey) -> str:
    return f"the graph {key.graph!r} wait for {one_line(key.key)!r}"


def _by(pause: LimitPause) -> str:
    by_whom = f" by {pause.by}" if pause.by else ""
    return by_whom + (f": {one_line(pause.reason)}" if pause.reason else "")


def _freezes(facts: Facts) -> Checks:
    for freeze in facts.freezes:
        since = f"{freeze}, for {span(facts.vitals.now - freeze.at)}"
        kind, _, name = freeze.scope.partition(":")
        option = f"--{kind} {quote(name)}" if name else f"--{kind}"
        yield Check(
            WARN, "freeze", since, f"Run `runner thaw {option} --reason …` when it may go on."
        )


def _schedules(facts: Facts) -> Checks:
    for problem, fix in facts.schedules:
        yield Check(WARN, "schedule", problem, fix)


def _webhooks(facts: Facts) -> Checks:
    for webhook_id, waiting in facts.late_webhooks:
        yield Check(
            WARN,
            "webhook",
            f"deliveries to {webhook_id!r} wait ({waiting})",
            f"Correct its endpoint; see `runner api GET /v1/webhooks/{webhook_id}/deliveries`.",
        )


CHECKS: Iterable[Callable[[Facts], Checks]] = (
    _store,
    _memory,
    _disk,
    _settings,
    _keys,
    _voters,
    _version,
    _eviction,
    _durability,
    _partitions,
    _password,
    _clocks,
    _broker,
    _workers,
    _names_of_workers,
    _stopping,
    _graphs,
    _deploy,
    _queues,
    _backlog,
    _routing,
    _sweep,
    _timers,
    _intervals,
    _each_worker,
    _archive,
    _audit,
    _freezes,
    _schedules,
    _webhooks,
    _limits,
    _fairness,
    _queued,
    _letters,
    _held,
)

CHECKS_OF_SERVERS = frozenset(
    {_version, _eviction, _disk, _durability, _memory, _sweep, _timers}
)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
