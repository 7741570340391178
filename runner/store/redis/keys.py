"""Every key of the Redis store: the data dictionary.

All keys begin with the namespace, `runner` unless RUNNER_NAMESPACE changes it, so that two environments
can share a server. A partition's keys begin with `runner:{pNN}:`. The braces are Redis Cluster's hash
tag, so these keys share one slot. Scripts get that prefix as their one key and build the others from it (see
docs/decisions/0003-one-key-scripts.md). A test checks that no key appears that isn't listed below. `Keys` has
the namespace's keys and the full names of a partition's keys; the code of transactions names the latter
without the prefix.

Celery's queues are lists that belong to the broker: `runner` and `runner/<queue>`, see runner/settings.py.

The keys of a partition, by their pattern below the prefix, each with its Redis type, its contents and how
long it stays. A key that stays with its run is there until the run has ended, and is archived if an archive
exists, then for the retention; a child's as long as its root's.

graphs (hash)
    graph name -> fingerprint of the shape published last. Stays for ever.
g:<fingerprint> (hash)
    a graph's shape: meta, n:<node>, o:<node> edges out, i:<node> edges in, l:<loop>; runs, the number of runs
    that use it. Stays while current or used by a run, then for the retention.
r:<run> (hash)
    v (form, ms of creation; long enough to make the hash a table, until it asks or ends), run (status,
    counters), of (fingerprint; parent, - or = of a packed run; graph), reason, lock, again, cancel (nonce),
    ended, ends, unreported; unless they have defaults (null, {}, nothing, for root the run itself) task,
    state, tags, idem, on_end, trace, requester (JSON), parent_node, root, path; at the root size (bytes, with
    all runs inside); chatter (bytes of long events since older ones were removed); n:<node>, l:<loop>
    records; a<scope>:<node> arrivals; o:<node>.<visit> output (JSON), x:<node>.<visit> place in the order and
    entry (JSON, of a function from its duration on), large: @<root> <digest>; q:<node> questions of its
    visit; with question ids without their run's id, as in all of these: i:<question> number, asked ms,
    expires ms, question (JSON; or z and its deflated form; or y, its digest and its deflated form without the
    digest), d:<question> status, ms, nonce, answer (JSON); v:<question> standing of its votes,
    v:<question>|<number> vote, v:<question>|<principal> voter's record (JSON); k:<node> document that resumes
    it (JSON), or 1 if it only has a task t:<node>.<visit> (JSON); m:<map> record of its items; h:<reference>
    outcome of the work of that name in another system (JSON); b:<name> spending of agents with a budget, see
    budget:<tag>=<value>:<window>:<number>; audit number of its entries in the audit, if any. Stays with its
    run.
r:<run>:m (hash)
    #<node> -> number of messages, <number>.<node> -> message (JSON). Stays with its run.
r:<run>:e (list)
    events, for a packed run one text (redis/packed_runs.py); the last has the number that the run counts:
    kind, ms, visit, node, data (JSON), detail; a question of the run itself without the run's id; an asked
    question with its number of people in place of the data in i:<question>; a receipt without the fields that
    its question's id implies. Stays with its run; the last 10,000 or so, fewer long ones.
r:<run>:w (stream)
    wakes readers that wait for the run's next event. Stays until some seconds after their wait.
r:<run>:s (stream)
    wakes readers that wait for the run to stop executing. Stays until some seconds after their wait.
r:<run>:c (list)
    child runs, oldest first. Stays with its run.
r:<run>:f (hash)
    <map>.<visit>.<index> -> item of a map (JSON); for more than 500, <map>.<visit>.#<n> -> the n-th 500
    items, a line each. Stays with its run.
r:<run>:b (hash)
    digest -> length of a large value of the run or of a run inside it, and the value (JSON, by zlib). Stays
    with its run.
key:o:<graph>:<key> (zset)
    open runs of a graph's concurrency key, by the ms at which they began. Stays while they are open.
key:q:<graph>:<key> (zset)
    runs that wait to begin until another run of their key has ended, by the ms of their start. Stays while
    they wait.
key:d:<graph>:<key> (zset)
    the run of a key that a debounce delays, by the ms of its first start. Stays until it begins.
key:w:<graph> (zset)
    keys for which runs wait to begin, by the ms of the start of the first. Stays while they wait.
idem:<graph>:<key> (string)
    idempotency key of a start -> run. Stays with its run.
session:m:<session> (list)
    messages of a session (JSON). Stays until forgotten: it is the user's data.
session:s:<session> (hash)
    name -> value of a session's state (JSON). Stays until forgotten: it is the user's data.
moving:m:<session> (list)
    messages of a session to move to its home. Stays until moved.
moving:s:<session> (hash)
    the same for its state: name -> [value]; [] deletes. Stays until moved.
moving:n:<session> (string)
    number of the last moved part. Stays until forgotten.
moved:<session> (hash)
    partition -> number of the last part that it sent. Stays until forgotten.
budget:<tag>=<value>:<window>:<number> (hash)
    spending of agents in one window (ms) in runs with a tag: <counter> sum, ^<counter> the last bound,
    +<counter> additions by people, ?<question> that made one, #<spender> nonce of the last request, and its
    exceeded counter, @<counter> the visit that asks to raise the bound, &<counter> number of visits that wait
    for that, &<counter> <number> each of them, !<counter> <visit> why it was refused. Stays twice the window
    after the last request.
timers (zset)
    <kind>|<run, or a bound>|<node, question, key or nothing> by the ms at which it is due. Stays until done.
schedules (hash)
    id of a schedule -> its times and its graph (JSON). Stays until removed.
job:<job> (hash)
    job: the action and its runs (JSON), ended: its end (ms), =<run> the run's result. Stays seven days after
    its last result.
webhooks (hash)
    id of a webhook -> its notices, its address, and the secret that signs them (JSON). Stays until removed.
slack_messages (hash)
    id of an open question -> the Slack message that shows it (JSON). Stays until it is decided.
mailed_questions (hash)
    id of an open question -> the people who were sent a link, and whose link has decided (JSON). Stays until
    it is decided.
mail_digests (hash)
    address -> when the next list of all questions that wait for that person is sent (JSON). Stays until
    nothing waits at that time.
webhook:d:<webhook> (hash)
    id of a delivery -> its state and its body (JSON); #bytes of the bodies, #dropped number, #lock the sender
    and the lock's end (ms). Stays 7 days, the last 10,000 or 50 MB; until the webhook is removed.
webhook:q:<webhook> (zset)
    ids of deliveries by the ms at which they are sent. Stays until sent.
webhook:l:<webhook> (zset)
    ids of deliveries by the ms of their notices. Stays as long as their documents.
early (hash)
    answers that came before their questions: # their count, their bytes and the last number; ?<question>
    numbers of its answers, !<number> door and message (JSON). Stays until asked or RUNNER_EARLY_ANSWER has
    passed.
early:<door> (stream)
    the same when they are due: number -> message (JSON). Stays until applied.
failing (hash)
    member of timers -> its failures in a row. Stays until it succeeds.
open:g:<graph> (zset)
    open questions of an outermost graph, by the ms they were asked; closed ones by minus the ms they were
    closed. Stays closed ones until a run of the graph expires and they are older than the retention.
open:a:<assignee> (zset)
    the same, for each assignee of a question. Stays until closed.
open:s:<selector> (zset)
    the same, for each group and role that a rule makes eligible, at first or later, or for anyone.
    Stays until closed.
open:t:<tool> (zset)
    the same, for the tool of a call. Stays until closed.
open:k:<risk> (zset)
    the same, for a risk. Stays until closed.
open:due:<list> (zset)
    expiring questions of each of these lists, by the ms at which they expire. Stays until closed.
open:r:<run> (zset)
    the same for an outermost run, except questions of its own nodes that aren't items of maps. Stays until
    closed.
runs:t:<tag>=<value> (zset)
    runs with a tag by the ms they were created. Stays as long as their keys.
runs:<status>:<graph> (zset)
    runs by the ms they were created. Stays as long as their keys.
limit:h:<limit> (zset)
    <run>|<node> that have a place of the limit; by the ms at which it lapses if the place is kept; for runs
    in other partitions @<visit>.<fence before the claim>|<run>|<node>, kept by 9e15. Stays while a node has a
    place.
limit:q:<limit> (zset)
    members as in limit:h that wait for a place, by the ms they asked. Stays while they wait.
fair:w:<lane> (zset)
    <run>.<node>.<visit>.<attempt> with rung doorbells, in the <queue>|<priority> that keys share, by the ms
    at which the window stops counting them. Stays until a worker has them.
fair:n:<lane>:<key> (zset)
    doorbells (JSON) of a key that wait for its turn, by the ms at which they came. Stays while they wait.
fair:p:<lane> (zset)
    keys by their pass: the smallest is next. Stays while they have nodes.
fair:s:<lane> (hash)
    time: the pass of the last taken node; count of nodes that came; =<key> its stride. Stays for ever; a
    key's while it has nodes.
fair:windows (hash)
    queue -> the most doorbells of it that are rung at a time. Stays for ever.
limit:waiting (zset)
    keys of limits for which nodes wait for a place, by the ms the first of them asked. Stays while they wait.
limits (hash)
    name of a limit -> the operators' setting, and its pauses (JSON). Stays until reset.
rates:<limit> (zset)
    keys of a limit with a rate by the ms at which the next execution may begin. Stays until then; at most
    100,000 of a limit, the earliest removed first.
retiring (list)
    children of ended runs, whose keys must still get their expiry; children of removed runs, to remove. Stays
    until swept.
archive (hash)
    place: the archive of ended runs; at: the last search for runs (ms); problem: the last failure. Stays for
    RUNNER_ARCHIVE_HOLD after that.
unarchived (zset)
    ended runs, except runs inside others, by the ms at which they may be archived. Stays until archived, or
    for RUNNER_ARCHIVE_HOLD.
retired (zset)
    ended runs with status, graph and tags (JSON), a line each, by the ms at which their keys expire. Stays
    until swept.
packed (string)
    the last entry of retired that was examined to pack its run: its ms, the entry. Stays for ever.
wake (list)
    one entry while a sweep is requested, because no doorbell template was stored. Stays until swept.
notices (stream)
    notices for approval services. Stays until every group has acknowledged them, about 100,000; without a
    group about 500.
dead (stream)
    nodes that used up their crash budget. Stays 30 days; the last 10,000 or so.
audit (stream)
    entries of the audit (JSON), one step's entries together, without their place in its tree. Stays until
    sealed, RUNNER_AUDIT_KEEP has passed and an archive has them.
audit:head (hash)
    the audit's tree: size, last (sealed entry), frontier; first (number of the first entry here), base
    (frontier there), steps (sealed, here); signed (size), signed_at (ms), note (signed checkpoint), key
    (public), anchored (size), problem; epoch. Stays for ever.
audit:leaves (list)
    hash of each sealed entry, from the first that is still here. Stays as long as the entries.
grants (hash)
    id -> grant and the votes for it (JSON); only in the first partition. Stays some weeks after it is over.
grant:<id> (hash)
    used (the count), sum:<argument>, key:<idempotency key> of each use. Stays some weeks after it is over.
absences (hash)
    principal -> the end of their absence, and who votes for them (JSON); only in the first partition. Stays
    until they are back.
frozen (hash)
    all, graph:<graph> or tool:<tool> -> why it is frozen (JSON). Stays until thawed.
passkeys (hash)
    x of a passkey's public key -> its signature count at its last use. Stays for ever.
metrics (hash)
    histogram, labels and bucket (JSON) -> measurements in it; when each graph last measured something. Stays
    for 30 days after its graph's last measurement, for ever without a graph.
history:<span>:<graph> (list)
    samples of a graph's metrics (JSON), of all graphs without a name, the newest first: 61 of the last hour,
    97 of the last day. Stays for a day after the last.
layout (string)
    number of the layout, which this page describes. Stays for ever.
partitions (list)
    numbers of partitions that the store has had; the present number last. Stays for ever.
spread (hash)
    graph -> 1 if its runs may live in any partition; 0 if it has limits, 2 if it has them now; key:<by> if
    the key of its concurrency names the partition. Stays for ever.
durable (string)
    the mark that is written to wait for a disk or a replica: the level. Stays for ever.
doorbell:<version> (hash)
    the task queue's message as a template; prefix of a queue's key, and its suffix by priority. Stays for
    ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from runner.records.listings import InterruptQuery, RunQuery
from runner.records.run import Status, outermost
from runner.store.addresses import NAMESPACE
from runner.store.redis.doorbell_template import VERSION

PARTITION = "p00"

STATUSES = (
    Status.EXECUTING,
    Status.INTERRUPTED,
    Status.NEEDS_MIGRATION,
    Status.COMPLETED,
    Status.FAILED,
    Status.CANCELLED,
)
"""States of a run."""


# Names below the prefix, as scripts take them.


def run_key(run_id: str, part: str = "") -> str:
    """Name a run's hash, or with a `part` such as `:s` another of its keys.

    No run's id has a colon: with a colon it would name a part of another run.
    """
    return f"r:{run_id.replace(':', '%')}{part}"


def shape_key(fingerprint: str) -> str:
    return f"g:{fingerprint}"


def idempotency_key(graph_id: str, key: str) -> str:
    """Name the record of a start with this key; no graph's name contains "//"."""
    return f"idem:{graph_id.replace(':', '//')}:{key}"


def queued_index(graph_id: str) -> str:
    """Name the list of a graph's keys for which runs wait."""
    return f"key:w:{graph_id.replace(':', '//')}"


TEMPLATE = f"doorbell:{VERSION}"

LIMITS = "limits"


def node_of(member: str) -> str:
    """Return the "<run>|<node>" of a limit's member, which may begin with a claim."""
    return member.partition("|")[2] if member.startswith("@") else member


PASSKEYS = "passkeys"


class Keys:
    """The keys of one partition, and the keys that all partitions of a namespace share.

    `responses` and `starts` are the streams of answers and of runs to begin; an entry is removed once it is
    applied. `dead_messages` is a stream of unusable messages, with the reason. `replies` begins the name of
    every stream of receipts. `workers` is a hash: worker and process -> its description (JSON); a worker that
    is gone is removed after a day. `doors` is the same for the processes of `runner server`. `api_keys` is a
    sorted set: the hash of an API key -> its last use (ms).
    """

    def __init__(self, namespace: str = NAMESPACE, partition: str = PARTITION) -> None:
        """Take the names, such as "runner" and "p00"."""
        self.responses = f"{namespace}:responses"
        self.starts = f"{namespace}:starts"
        self.dead_messages = f"{namespace}:dead"
        self.replies = f"{namespace}:replies:"
        self.workers = f"{namespace}:workers"
        self.server_processes = f"{namespace}:doors"
        self.api_keys = f"{namespace}:api_keys"
        self.partition = partition
        self._singleton_lock = f"{namespace}:lock:"
        self.prefix = f"{namespace}:{{{partition}}}:"
        self.graphs = f"{self.prefix}graphs"
        self.open = f"{self.prefix}open"
        self.early = f"{self.prefix}early"
        self.notices = f"{self.prefix}notices"
        self.dead = f"{self.prefix}dead"
        self.doorbell = self.prefix + TEMPLATE
        self.durable = f"{self.prefix}durable"
        self.wake = f"{self.prefix}wake"
        self.failing = f"{self.prefix}failing"
        self.timers = f"{self.prefix}timers"
        self.metrics = f"{self.prefix}metrics"
        self.history = f"{self.prefix}history"
        self.archive = f"{self.prefix}archive"
        self.unarchived = f"{self.prefix}unarchived"
        self.layout = f"{self.prefix}layout"
        self.partitions = f"{self.prefix}partitions"
        self.audit = f"{self.prefix}audit"
        self.audit_head = f"{self.prefix}audit:head"
        self.audit_leaves = f"{self.prefix}audit:leaves"
        self.frozen = f"{self.prefix}frozen"
        self.grants = f"{self.prefix}grants"
        self.absences = f"{self.prefix}absences"
        self.spread = f"{self.prefix}spread"

    def singleton_lock(self, name: str) -> str:
        """Name the lock on work that one worker does for all: a text that expires."""
        return f"{self._singleton_lock}{name}"

    def shape(self, fingerprint: str) -> str:
        return self.prefix + shape_key(fingerprint)

    def run(self, run_id: str, part: str = "") -> str:
        """Name a run's hash, or with a `part` such as `:s` another of its keys."""
        return self.prefix + run_key(run_id, part)

    def handed_early(self, door: str) -> str:
        """Name the stream on which a door gets early answers back to apply them."""
        return f"{self.early}:{door}"

    def session(self, session_id: str) -> tuple[str, str]:
        return f"{self.prefix}session:m:{session_id}", f"{self.prefix}session:s:{session_id}"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}job:{job_id}"

    def grant_uses(self, grant_id: str) -> str:
        """Name the hash of a grant's uses."""
        return f"{self.prefix}grant:{grant_id}"

    def budget(self, name: str) -> str:
        """Name the sum of a tag in a window."""
        return f"{self.prefix}budget:{name}"

    def deliveries(self, webhook_id: str) -> tuple[str, str, str]:
        """Name a webhook's deliveries, its queue of deliveries to send, and their order."""
        documents, queue, log = (f"{self.prefix}webhook:{part}:{webhook_id}" for part in "dql")
        return documents, queue, log

    def moved_session(self, session_id: str) -> tuple[str, str]:
        """Name the records of a session's parts that have come, and that have gone."""
        return f"{self.prefix}moved:{session_id}", f"{self.prefix}moving:n:{session_id}"

    def idempotency(self, graph_id: str, key: str) -> str:
        """Name the record of a start with this key."""
        return self.prefix + idempotency_key(graph_id, key)

    def runs(self, query: RunQuery, graphs: Iterable[str]) -> list[list[str]]:
        """Return sets of indexes; each set has all matching runs, which belong to these graphs."""
        statuses = STATUSES if query.status is None else (query.status,)
        return [
            [f"{self.prefix}runs:{status}:{name}" for name in graphs for status in statuses],
            *([f"{self.prefix}runs:t:{name}={value}"] for name, value in query.tags.items()),
        ]

    def questions(
        self, query: InterruptQuery, root: str, graphs: Iterable[str]
    ) -> list[list[str]]:
        """Return sets of indexes; each set has all matching open questions, which belong to these graphs.

        The first set also has closed questions. The index of the family of `root` lacks the questions of its
        own nodes.
        """
        if root:
            return [[f"{self.open}:r:{root}"]]
        sets = [[f"g:{name}" for name in sorted({outermost(graph) for graph in graphs})]]
        kinds = {"a": query.assignee, "t": query.tool, "k": query.risk}
        sets += [[f"{kind}:{name}"] for kind, name in kinds.items() if name is not None]
        if query.selectors is not None:
            sets.append([_list_of(form) for form in query.selectors])
        return [[f"{self.open}:{name}" for name in names] for names in sets]

    def expiring(self, index: str) -> str:
        """Name the list of expiring questions in an index."""
        return f"{self.open}:due:{index.removeprefix(self.open)[1:]}"


def _list_of(selector: str) -> str:
    """Name the list of open questions for a group or role, or for a person's plain name."""
    kind, _, name = selector.partition(":")
    return f"a:{name}" if kind == "user" else f"s:{selector}"
