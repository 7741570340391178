"""The life of whole runs in the reference model: visits, questions, failures, time, child runs.

Requests are taken one by one and answered with the word that a store must give. Which nodes are
ready, skipped or repeated is asked of `reference_model.picture`, from all that has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from runner.definition.model import Definition, FailurePolicy
from tests.properties.reference_model import End, Map, Picture, picture

LEASE = 30_000
LOST_IN_A_ROW = 5
LIVE = ("ready", "running", "retrying", "waiting")


Asked = tuple[str, float | None, str]
"""A question: its id, its seconds, and what its expiry does to its visit: see `Question.ends`."""


@dataclass
class Question:
    """A question of a visit; `seen` says that a claim has had its answer.

    `ends` says what its expiry does to its visit: nothing, "fail", or the node to which it leads. `look`
    is when somebody looks whether its time is over.
    """

    id: str
    status: str = "open"
    expires: int | None = None
    seen: bool = False
    ends: str = ""
    look: int = 0

    @property
    def news(self) -> bool:
        """Whether it was closed by a person or by time, and its visit does not know."""
        return self.status in ("answered", "expired") and not self.seen


@dataclass
class Visit:
    """One visit of one node; `due` ends its lease or its delay, `collects` says that it waits for items."""

    node: str
    number: int
    status: str = "ready"
    attempt: int = 1
    claim: object = None
    due: int = 0
    lost: int = 0
    questions: dict[str, Question] = field(default_factory=dict)
    asked_first: list[str] = field(default_factory=list)
    child: str = ""
    collects: bool = False

    @property
    def is_item(self) -> bool:
        """Whether it is of an item of a map."""
        return "[" in self.node

    @property
    def owner(self) -> str:
        """The node of the graph that it belongs to: an item has its map's."""
        return self.node.partition("[")[0]

    def open(self) -> list[Question]:
        """The questions that still take an answer."""
        return [question for question in self.questions.values() if question.status == "open"]


@dataclass
class Run:
    """One run: what has ended in it, the visits that were made of it, and why it stops."""

    id: str
    shape: Map
    definition: Definition
    deadline: int | None
    parent: tuple[str, str] | None = None
    ends: list[End] = field(default_factory=list)
    visits: dict[tuple[str, int], Visit] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    stopping: str = ""
    reason: str = ""
    frozen: Picture | None = None
    unsure: set[str] = field(default_factory=set)
    drawn: tuple[list[End], Picture] | None = None

    def picture(self) -> Picture:
        """Where the graph stands, drawn anew when more has ended; a run that stops takes nothing further."""
        if self.frozen:
            return self.frozen
        if self.drawn is None or self.drawn[0] != self.ends:
            self.drawn = list(self.ends), picture(self.shape, self.ends)
        return self.drawn[1]

    def now(self, node: str) -> Visit | None:
        """The visit that a node is in or has ended, if it is of the present round."""
        if "[" in node:
            owner = self.now(node.partition("[")[0])
            return self.visits.get((node, owner.number)) if owner else None
        drawing = self.picture()
        if node in drawing.skipped or node not in drawing.visits:
            return None
        last = self.visits.get((node, drawing.visits[node]))
        current = node in drawing.opened or drawing.settled(node)
        return last if current else None

    def open(self) -> list[Visit]:
        """The visits that have not ended."""
        return [visit for visit in self.visits.values() if visit.status in LIVE]


class World:
    """All runs, and a clock in milliseconds. Every method is one request and returns its word."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.runs: dict[str, Run] = {}

    # -- starting and claiming ---------------------------------------------------------------------

    def start(
        self, run_id: str, shape: Map, definition: Definition, claim: tuple | None = None
    ) -> str:
        """Begin a run; with the claim of a visit it is that visit's child."""
        parent = None
        if claim is not None:
            visit = self.held(*claim)
            if visit is None:
                return "stale"
            run = self.runs[claim[0]]
            if self.stops(run, visit):
                return self.let_go(run, visit)
            parent = (run.id, visit.node)
            visit.status, visit.child, visit.lost = "waiting", run_id, 0
            self.withdraw(visit)
        seconds = definition.execution_timeout
        deadline = self.now + round(seconds * 1000) if seconds else None
        self.runs[run_id] = Run(run_id, shape, definition, deadline, parent)
        self.spread(self.runs[run_id], {})
        return "started"

    def claim(
        self, run_id: str, node: str, number: int, attempt: int, claim: object
    ) -> Visit | str:
        """Take a visit that is ready."""
        visit = self.runs[run_id].now(node)
        wanted = visit is not None and (visit.number, visit.attempt) == (number, attempt)
        if visit is None or not wanted or visit.status != "ready":
            return "stale"
        visit.status, visit.claim, visit.due = "running", claim, self.now + LEASE
        for question in visit.questions.values():
            question.seen = question.status != "open"
        return visit

    def held(self, run_id: str, node: str, number: int, claim: object) -> Visit | None:
        """The visit that a claim still holds."""
        visit = self.runs[run_id].visits.get((node, number))
        return visit if visit and visit.status == "running" and visit.claim is claim else None

    def repeated(
        self, run_id: str, node: str, number: int, claim: object, words: tuple[str, ...]
    ) -> str:
        """What a claim hears that lets go of its visit once more: the first word, or that it is late."""
        visit = self.runs[run_id].visits.get((node, number))
        return (
            visit.status
            if visit and visit.claim is claim and visit.status in words
            else "stale"
        )

    # -- ending a visit ----------------------------------------------------------------------------

    def settle(self, claim: tuple, *, completed: bool, took: frozenset[int]) -> str:
        """End a visit."""
        visit = self.held(*claim)
        if visit is None:
            return "stale"
        self.conclude(self.runs[claim[0]], visit, completed=completed, took=took)
        return "settled"

    def conclude(
        self, run: Run, visit: Visit, *, completed: bool, took: frozenset[int] = frozenset()
    ) -> None:
        """Record an end, and let it spread unless the run stops."""
        visit.status = "completed" if completed else "failed"
        self.withdraw(visit)
        if completed:
            run.order.append(visit.node)
        before = self.nodes(run)
        if run.frozen is None:
            run.ends.append(End(visit.node, visit.number, completed, took))
        if (
            not completed
            and run.definition.policy is FailurePolicy.FAIL_FAST
            and not run.stopping
        ):
            run.ends.pop()
            self.stop(run, "failed", f'node "{visit.node}" failed')
        elif run.frozen is None:
            self.spread(run, before)
        self.after(run)

    def spread(self, run: Run, before: dict[str, tuple[str, int]]) -> None:
        """Make visits of what became ready; one more than the limit stops the run."""
        drawing = run.picture()
        limit = run.definition.max_node_executions
        new = [opened for opened in drawing.opened.items() if opened not in run.visits]
        for node, number in new:
            run.visits[node, number] = Visit(node, number)
        if limit and sum(not visit.is_item for visit in run.visits.values()) > limit:
            # Which of several nodes come first is nobody's business: they end in one of these ways.
            after = self.nodes(run)
            run.unsure = {node for node in after if after[node] != before.get(node)}
            self.stop(run, "failed", f"max_node_executions ({limit}) reached")

    def retry(self, claim: tuple, delay: int, *, counts: bool) -> str:
        """Try a visit again later; without an error it is the same attempt."""
        visit = self.held(*claim)
        if visit is None:
            return self.repeated(*claim, ("retrying", "cancelled"))
        run = self.runs[claim[0]]
        if self.stops(run, visit):
            return self.let_go(run, visit)
        visit.status, visit.due = "retrying", self.now + delay
        if counts:
            visit.attempt += 1
        self.after(run)
        return "retrying"

    def leave(self, claim: tuple) -> str:
        """Give a visit up at once: it is the same attempt, and no worker was lost."""
        visit = self.held(*claim)
        if visit is None:
            return {"ready": "left"}.get(
                word := self.repeated(*claim, ("ready", "cancelled")), word
            )
        run = self.runs[claim[0]]
        if self.stops(run, visit):
            return self.let_go(run, visit)
        visit.status = "ready"
        self.after(run)
        return "left"

    # -- questions ---------------------------------------------------------------------------------

    def ask(self, claim: tuple, questions: Sequence[Asked]) -> str:
        """Publish questions of a running visit."""
        visit = self.held(*claim)
        if visit is None:
            return "stale"
        if self.stops(self.runs[claim[0]], visit):
            return "stopping"
        self.put(visit, questions)
        return "asked"

    def put(self, visit: Visit, questions: Sequence[Asked]) -> None:
        """Open what is new."""
        for name, lasts, ends in questions:
            if name not in visit.questions:
                expires = self.now + round(lasts * 1000) if lasts else None
                visit.questions[name] = Question(
                    name, expires=expires, ends=ends, look=expires or 0
                )

    def park(self, claim: tuple, questions: Sequence[Asked], *, each: bool) -> str:
        """Let a visit wait, unless an answer that it has not seen lets it go on at once."""
        visit = self.held(*claim)
        if visit is None:
            return self.repeated(*claim, ("waiting", "ready", "cancelled"))
        run = self.runs[claim[0]]
        if self.stops(run, visit):
            return self.let_go(run, visit)
        names = {name for name, _, _ in questions}
        news = [question for question in visit.questions.values() if question.news]
        stored = [visit.questions.get(name) for name in names]
        opened = [copy for copy in stored if copy is None or copy.status == "open"]
        if not opened and not news:
            return "nothing_open"
        self.put(visit, questions)
        for question in visit.open():
            if question.id not in names:
                question.status = "withdrawn"
        goes_on = bool(news) and (each or not opened)
        visit.status, visit.lost = ("ready" if goes_on else "waiting"), 0
        self.after(run)
        return visit.status

    def answer(self, ids: Sequence[str]) -> list[str]:
        """Answer a set of questions: all of them or none."""
        words = [
            "rejected" if question_id in ids[:place] else self.fate(question_id)
            for place, question_id in enumerate(ids)
        ]
        if any(word != "accepted" for word in words):
            return ["rejected" if word == "accepted" else word for word in words]
        for question_id in ids:
            _, _visit, question = self.find(question_id)
            question.status = "answered"
        for question_id in ids:
            self.wake(*self.find(question_id)[:2])
        return words

    def fate(self, question_id: str) -> str:
        """What becomes of one answer if nothing else is wrong with its set."""
        _, _, question = self.find(question_id)
        if question.status == "open":
            if question.expires is not None and question.expires <= self.now:
                return "expired"
            return "accepted"
        return {"answered": "duplicate", "expired": "expired", "withdrawn": "superseded"}[
            question.status
        ]

    def find(self, question_id: str) -> tuple[Run, Visit, Question]:
        """Look everywhere for a question."""
        for run in self.runs.values():
            for visit in run.visits.values():
                if question_id in visit.questions:
                    return run, visit, visit.questions[question_id]
        raise KeyError(question_id)

    def wake(self, run: Run, visit: Visit) -> None:
        """Make a waiting visit ready once its rule is satisfied."""
        at_each_answer = run.definition.nodes[visit.owner].resume == "each"
        if (
            visit.status == "waiting"
            and not visit.child
            and not visit.collects
            and (at_each_answer or not visit.open())
        ):
            visit.status, visit.lost = "ready", 0
        self.after(run)

    def withdraw(self, visit: Visit) -> None:
        """Close what nobody answered."""
        for question in visit.open():
            question.status = "withdrawn"

    # -- stopping ----------------------------------------------------------------------------------

    def cancel(self, run_id: str, reason: str) -> str:
        """Stop a run on somebody's wish."""
        run = self.runs[run_id]
        if run.stopping or self.status(run) in ("completed", "failed", "cancelled"):
            return "already"
        self.stop(run, "cancelled", reason)
        self.after(run)
        return "cancelled"

    def stops(self, run: Run, visit: Visit) -> bool:
        """Whether a visit may only end."""
        return bool(run.stopping)

    def stop(self, run: Run, why: str, reason: str) -> None:
        """Cancel all that does not run; what runs may end."""
        if run.stopping:
            return
        run.frozen = run.picture()
        run.stopping, run.reason = why, reason
        self.drop(run.open())

    def drop(self, visits: Sequence[Visit]) -> None:
        """Cancel those of some visits that do not run."""
        for visit in visits:
            if visit.child and visit.status == "waiting":
                self.cancel(visit.child, "its parent run stops")
            elif visit.status not in ("running", "cancelled"):
                visit.status = "cancelled"
                self.withdraw(visit)

    def let_go(self, run: Run, visit: Visit) -> str:
        """End a visit that must not go on."""
        visit.status = "cancelled"
        self.withdraw(visit)
        self.after(run)
        return "cancelled"

    def after(self, run: Run) -> None:
        """Tell the parent of a child that has ended."""
        if run.parent is None or self.status(run) not in ("completed", "failed", "cancelled"):
            return
        above = self.runs[run.parent[0]]
        for visit in above.open():
            if visit.child == run.id and visit.status == "waiting":
                visit.status, visit.child = (
                    ("cancelled" if self.stops(above, visit) else "ready"),
                    "",
                )
                self.after(above)

    # -- time --------------------------------------------------------------------------------------

    def renew(self, claim: tuple) -> str:
        """Extend a lease."""
        visit = self.held(*claim)
        if visit is None:
            return "stale"
        visit.due = self.now + LEASE
        return "cancelled" if self.runs[claim[0]].stopping == "cancelled" else "ok"

    def due(self) -> Iterator[tuple[int, str]]:
        """List all that time has brought, earliest first."""
        for run in self.runs.values():
            if run.deadline is not None and self.status(run) not in (
                "completed",
                "failed",
                "cancelled",
            ):
                yield run.deadline, f"deadline {run.id}"
            for visit in run.open():
                if visit.status in ("running", "retrying"):
                    yield visit.due, f"visit {run.id} {visit.node} {visit.number}"
                for question in visit.open():
                    if question.expires is not None:
                        yield question.look, f"question {question.id}"

    def sweep(self) -> None:
        """Do all that is due, one thing after the other."""
        while todo := sorted(item for item in self.due() if item[0] <= self.now):
            kind, *rest = todo[0][1].split(" ")
            if kind == "deadline":
                run = self.runs[rest[0]]
                run.deadline = None
                self.stop(run, "failed", "execution timeout")
                self.after(run)
            elif kind == "visit":
                run = self.runs[rest[0]]
                self.time_is_over(run, run.visits[rest[1], int(rest[2])])
            else:
                self.expire(*self.find(rest[0]))

    def expire(self, run: Run, visit: Visit, question: Question) -> None:
        """Nobody answered: the visit learns so, or ends with its question as soon as it is not at work."""
        if question.ends and (visit.status == "running" or visit.child or visit.collects):
            question.look = self.now + LEASE
            return
        question.status = "expired"
        if not question.ends:
            self.wake(run, visit)
        elif self.stops(run, visit):
            self.let_go(run, visit)
        else:
            leads = {
                number
                for number, edge in enumerate(run.shape.edges)
                if edge.on_expire and (edge.source, edge.target) == (visit.node, question.ends)
            }
            self.conclude(run, visit, completed=question.ends != "fail", took=frozenset(leads))

    def time_is_over(self, run: Run, visit: Visit) -> None:
        """A delay is over, or a worker was lost."""
        if visit.status == "retrying":
            visit.status = "ready"
            return
        if self.stops(run, visit):
            self.let_go(run, visit)
            return
        visit.claim, visit.lost = None, visit.lost + 1
        if visit.lost == LOST_IN_A_ROW:
            self.conclude(run, visit, completed=False)
        else:
            visit.status, visit.attempt = "ready", visit.attempt + 1

    # -- reading -----------------------------------------------------------------------------------

    def status(self, run: Run) -> str:
        """Say where a run stands."""
        waits = False
        for visit in run.open():
            if visit.status != "waiting":
                return "executing"
            below = self.status(self.runs[visit.child]) if visit.child else "interrupted"
            if below == "executing":
                return "executing"
            waits = True
        if waits:
            return "interrupted"
        if run.stopping == "failed" or any(
            visit.status == "failed" and not visit.is_item for visit in run.visits.values()
        ):
            return "failed"
        return "cancelled" if run.stopping else "completed"

    def nodes(self, run: Run) -> dict[str, tuple[str, int]]:
        """Say where each node stands, and in which visit."""
        drawing = run.picture()
        positions = {}
        for node in run.shape.nodes:
            visit = run.now(node)
            status = (
                "skipped" if node in drawing.skipped else visit.status if visit else "pending"
            )
            positions[node] = (status, drawing.visits.get(node, 0))
        return positions

    def open_questions(self) -> set[str]:
        """All questions that take an answer."""
        return {
            question.id
            for run in self.runs.values()
            for visit in run.visits.values()
            for question in visit.open()
        }
