"""A virtual cluster: workers, people, sweepers, a broker and a clock around one real store.

A history is a list of steps, pairs of a word and a number; the number chooses among what is there.
A step that fits nothing is passed over, so every part of a history is a history as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.errors import ConflictError, NotFoundError, TooManyRuns, UsageError
from runner.execution.engine import Engine
from runner.execution.results import GraphResult, graph_result
from runner.limits.concurrency import Admission
from runner.limits.fairness import LEAST_WINDOW
from runner.limits.setting import LimitPause, LimitSetting
from runner.operations.answers import apply_decisions, withdraw
from runner.operations.interventions import intervene
from runner.operations.recovery import fork, retry
from runner.records.interrupts import Decision, Interrupt, Receipt, ReceiptStatus
from runner.records.run import FINAL, Status
from runner.scheduler import CRASH_BUDGET
from runner.store.interface import Request as StoreRequest
from runner.store.memory.store import MemoryStore
from runner.store.requests import ChangeLimit, ShareSlots
from runner.testing import ManualClock
from tests.simulation.actors import Actor, Died, Process
from tests.simulation.plans import LIMIT, Ledger, Plan, answer_to, build
from tests.simulation.virtual import Broker
from tests.simulation.voting import Voters
from tests.simulation.watch import Seen, Violation, Watch, inside_memory, must

LEASE = 30
STOPS = 400
"""Stops after which one piece of work has gone wrong."""
ROUNDS = 400
"""Times that something gets due after which a healed cluster has gone wrong."""

VALUES = 2
"""Keys of the runs where starts have rules."""

SLOWNESS = 12
"""A slow worker has one turn where others have so many."""

Step = tuple[str, int]


@dataclass(frozen=True)
class Setting:
    """What a history plays in: one process for each entry of `slots`, one of which may be `slow`.

    `skews` are how wrong their clocks are: seconds ahead, and seconds in a second. With `stays` some settles
    may claim the next node. Where it is `fair`, the runs take turns, and one doorbell is rung at a time. With
    `rules` the runs have one of `VALUES` keys.
    """

    plan: Plan
    runs: int = 1
    slow: int = -1
    slots: tuple[int, ...] = (1, 1)
    skews: tuple[tuple[float, float], ...] = ((0.0, 1.0), (0.0, 1.0))
    stays: bool = True
    fair: bool = False
    rules: Admission | None = None


@dataclass
class Request:
    """What a person wants, again and again until there is a reply to it."""

    name: str
    do: Callable[[Process], object]
    actor: Actor | None = None
    reply: Any = None

    @property
    def is_open(self) -> bool:
        """Tell whether nobody works on it, and it has no reply."""
        return self.reply is None and (self.actor is None or self.actor.done)


@dataclass
class World:
    """One history from its start; `log` is all that happened, in order."""

    setting: Setting
    store: Any
    clock: ManualClock
    runs: Callable[[], Iterator[tuple[str, Seen]]]
    timers: Callable[[], dict[tuple[str, str, str], float]]
    asked: Callable[[], Iterable[Interrupt]]
    log: list[str] = field(default_factory=list)
    looks: int = 1
    closed: bool = False
    current: Actor | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        """Have nothing at work; `begin` makes the requests to start the runs."""
        self.ledger = Ledger(self._stop)
        self.broker, self.watch, self.voters = Broker(self), Watch(self), Voters(self)
        self.factories = {"plan": lambda: build(self.setting.plan, self.ledger)}
        self.workers: list[Process] = []
        self.requests: list[Request] = []
        self.known: list[Interrupt] = []
        self._changed = 0

    def begin(self) -> None:
        """Start the processes, on a virtual machine."""
        processes = zip(self.setting.slots, self.setting.skews, strict=True)
        self.workers = [
            Process(self, f"w{number}", *settings) for number, settings in enumerate(processes)
        ]
        self.people = Process(self, "people", 99, (0.0, 1.0))
        if self.setting.fair:
            self.store.do(ShareSlots({"plan": 1}, partitions=LEAST_WINDOW))
        for number in range(self.setting.runs):
            self._start(f"run{number}")

    def _stop(self, point: str) -> None:
        """Stop the code of a node; there a process may be killed, and some kill it always."""
        if self.current is None:
            return
        if point == "kills":
            self.note("killed by its node")
            self._kill(self.current.process, but=self.current)
            raise Died
        self.current.stop(point)

    def note(self, text: str) -> None:
        """Write down what happened."""
        who = self.current.name if self.current else "-"
        self.log.append(f"{self.clock.now % 10**9:>9} {who}: {text}")

    def judge(self, name: str, request: StoreRequest | None, reply: Any) -> None:
        """Hear a reply of the store to an actor."""
        self._changed += 1
        word = (
            reply
            if isinstance(reply, str | list | tuple)
            else getattr(reply, "word", type(reply).__name__)
        )
        self.note(f"{name} -> {word if isinstance(word, str) else len(word)}")
        self.watch.judge(request, reply)

    # -- requests of people ------------------------------------------------------------------------

    def _ask(self, name: str, do: Callable[[Process], object]) -> Request:
        request = Request(name, do)
        self.requests.append(request)
        return request

    def _start(self, key: str) -> None:
        tags = {"run": key, "key": f"k{int(key[3:]) % VALUES}"}

        def start(process: Process) -> str:
            try:
                return process.engine.start(
                    "plan", "task", idempotency_key=key, on_end="shop.done", tags=tags
                )
            except TooManyRuns:
                return "refused"

        self._ask(f"start {key}", start)

    def _send(self, request: Request) -> None:
        def work() -> object:
            request.reply = request.do(self.people)
            return request.reply

        request.actor = self.people.work(request.name, work)

    def _answer(self, questions: Sequence[Interrupt], *, off: bool = False) -> None:
        """Answer as another person than all before."""
        who = f"p{len(self.requests)}"
        answers = [
            Decision(
                question.id,
                {**answer_to(question.node_id, question.visit, question.name), "by": who},
                responder=who,
                idempotency_key=who,
                digest="sha256:of something else" if off else question.digest,
            )
            for question in questions
        ]

        def apply(process: Process) -> list[Receipt]:
            try:
                return apply_decisions(process.engine, answers)
            except ConflictError:
                return []  # questions of several partitions: told, and none was applied

        self._send(self._ask(f"answer {who}", apply))

    def questions(self) -> list[Interrupt]:
        """List the open questions without a rule, as a person sees them."""
        opened = [question for question in self.asked() if not question.rule]
        open_questions = sorted(opened, key=lambda question: question.id)
        self.known += [
            question
            for question in open_questions
            if all(question.id != other.id for other in self.known)
        ]
        return open_questions

    # -- steps ---------------------------------------------------------------------------------------

    @property
    def actors(self) -> list[Actor]:
        """List the work that can go on: frozen processes stand still."""
        return [
            actor
            for process in (*self.workers, self.people)
            if not process.frozen
            for actor in process.actors
        ]

    def play(self, steps: Sequence[Step]) -> None:
        """Let a history happen."""
        for word, number in steps:
            do = getattr(self, f"do_{word}", None) or getattr(self.voters, f"do_{word}")
            if do(number):
                self.look()

    def look(self) -> None:
        """Check everything after each of so many changes as `looks` says; 0 is never."""
        if self._changed >= self.looks > 0:
            self.watch.look()
            self._changed = 0

    def resume(self, actor: Actor, how: str = "go") -> bool:
        """Let an actor go on to its next stop."""
        self.current = actor
        if how != "go":
            self.note(f"{how} {actor.point}")
        try:
            actor.resume(how)
        finally:
            self.current = None
        if actor.done and actor in actor.process.actors:
            actor.process.actors.remove(actor)
        return True

    def finish(self, actor: Actor) -> bool:
        """Let an actor go on to its end."""
        for _ in range(STOPS):
            if actor.done:
                return True
            holder = actor.blocked_by
            self.resume(holder if holder is not None and not holder.done else actor)
            self.look()
        raise Violation(f"liveness: {actor.name} does not end; it is at {actor.point}")

    def _one(self, number: int) -> Actor | None:
        actors = self.actors
        if number % SLOWNESS:  # a slow worker gets a turn now and then
            slow = self.workers[self.setting.slow : self.setting.slow + 1]
            actors = [actor for actor in actors if actor.process not in slow] or actors
        return actors[number % len(actors)] if actors else None

    def do_work(self, number: int) -> bool:
        """An actor goes on to its next stop."""
        actor = self._one(number)
        return self.resume(actor) if actor else self._nudge(number)

    def _nudge(self, number: int) -> bool:
        """Where nobody is at work, somebody finds something to do."""
        ways = (self.do_deliver, self.do_again, self.do_answer, self.do_overslept)
        return any(way(number) for way in ways)

    def do_overslept(self, number: int) -> bool:
        """What is due next is found by a sweep."""
        times = list(self.timers().values())
        if times:
            self.advance(max(1, math.ceil(min(times)) - self.clock.now))
            self.do_sweep(number)
        return bool(times)

    def do_hurry(self, number: int) -> bool:
        """An actor goes on for some stops while all others stand."""
        actor = self._one(number)
        if actor is not None:
            self._go(actor, 1 + number // 7 % 8)
        return actor is not None

    def do_race(self, number: int) -> bool:
        """An actor stands within a request while all that others have begun is done, and something more."""
        actor = self._one(number)
        if actor is None:
            return False
        for _ in range(STOPS):
            if actor.done or actor.point == "within a request":
                break
            self.resume(actor)
        ways = (self.do_run, self.do_answer, self.do_again, self.do_double, self.do_late)
        ways[number % len(ways)](number)
        for other in self.actors:
            if other is not actor and not other.done:
                self.finish(other)
        return True

    def do_linger(self, number: int) -> bool:
        """An actor stands within a request for longer than a lease; others sweep, and begin something."""
        actor = self._one(number)
        others = [process for process in self.workers if process.is_idle and not process.frozen]
        if actor is None or not others:
            return False
        for _ in range(STOPS):
            if actor.done or actor.point == "within a request":
                break
            self.resume(actor)
        self.advance(1_000 * (LEASE + 1))
        self.finish(others[0].work("sweep", others[0].engine.sweep))
        for bell in self.broker.queue[:3]:
            taken = self._take(bell, number)
            if taken is not None:
                self.broker.queue.remove(bell)
                self._go(taken, number // 5 % 9)
        return True

    def do_flow(self, number: int) -> bool:
        """An actor goes on to its end."""
        actor = self._one(number)
        return actor is not None and self.finish(actor)

    def do_deliver(self, number: int) -> bool:
        """A worker with room takes any message from the queue."""
        if not self.broker.queue:
            return False
        bell = self.broker.queue[number % len(self.broker.queue)]
        actor = self._take(bell, number)
        if actor is not None:
            self.broker.queue.remove(bell)
        return actor is not None

    def do_run(self, number: int) -> bool:
        """A worker takes a message, and does all that it asks for."""
        before = len(self.actors)
        return (
            self.do_deliver(number)
            and len(self.actors) > before
            and self.finish(self._newest())
        )

    def do_double(self, number: int) -> bool:
        """A message arrives that stays in the queue as well."""
        queue = self.broker.queue
        return bool(queue) and self._take(queue[number % len(queue)], number) is not None

    def do_old(self, number: int) -> bool:
        """A message arrives that was sent at any time before."""
        sent = self.broker.sent
        return bool(sent) and self._take(sent[number % len(sent)], number) is not None

    def do_drop(self, number: int) -> bool:
        """A message is lost."""
        if self.broker.queue:
            self.broker.queue.pop(number % len(self.broker.queue))
        return False

    def _newest(self) -> Actor:
        return max((actor for actor in self.actors), key=lambda actor: actor.number)

    def _take(self, bell: Any, number: int) -> Actor | None:
        idle = [process for process in self.workers if process.is_idle]
        if not idle:
            return None
        process = idle[number % len(idle)]
        where = (bell.run_id, bell.node, bell.visit, bell.attempt)

        def run() -> None:
            """Do as a worker does; of every other message also what stays on the slot."""
            delivery = process.engine.deliver(
                *where, may_continue=lambda: self.setting.stays and number % 2 == 1
            )
            while delivery.following is not None:
                delivery = process.engine.execute(delivery.following, lambda: number % 2 == 1)

        return process.work(f"{bell.node}.{bell.visit}.{bell.attempt}", run)

    # -- faults --------------------------------------------------------------------------------------

    def _spares(self, process: Process) -> bool:
        """Tell whether a node of a process was lost so often that once more would bury it."""
        return any(actor.crashes >= CRASH_BUDGET - 2 for actor in process.actors)

    def do_die(self, number: int) -> bool:
        """The process of an actor is killed, and a new one begins."""
        actor = self._begun(number) if number % 2 else self._one(number)
        if actor is None or self._spares(actor.process):
            return False
        if actor.process is self.people:
            return self.resume(actor, "die")
        self._kill(actor.process)
        return True

    def do_leave(self, number: int) -> bool:
        """A worker is told to stop and has no time left: it gives up what it runs, and ends."""
        process = self.workers[number % len(self.workers)]
        if process.frozen or not process.actors or self._spares(process):
            return False
        self.finish(process.work("leave", process.engine.leave))
        self._kill(process)
        return True

    def _kill(self, process: Process, but: Actor | None = None) -> None:
        for actor in list(process.actors):
            if actor is not but:
                self.resume(actor, "die")
        process.begin()

    def do_cut(self, number: int) -> bool:
        """A request or its reply is lost, and the client gives up."""
        actor = self._one(number)
        if actor is None or self._spares(actor.process):
            return False
        return self.resume(actor, "cut")

    def do_unheard(self, number: int) -> bool:
        """A run is started, and nobody hears of it: the reply is lost."""
        if not self.do_again(number):
            return False
        actor = self._newest()
        while not actor.done and actor.point != "behind start":
            self.resume(actor)
        return self.resume(actor, "cut")

    def do_twice(self, number: int) -> bool:
        """A request is sent twice, as the client does when a reply is lost."""
        actor = self._one(number)
        return actor is not None and self.resume(actor, "twice")

    def do_freeze(self, number: int) -> bool:
        """A worker stops as a whole: no beat, no step, until it thaws."""
        process = self.workers[number % len(self.workers)]
        if not self._spares(process):
            process.frozen = True
        return False

    def do_stall(self, number: int) -> bool:
        """A worker stands still for longer than a lease; others take over what it had, and it comes back."""
        actor = self._begun(number)
        others = [
            process
            for process in self.workers
            if not (process.frozen or actor in process.actors)
        ]
        if actor is None or not others or self._spares(actor.process):
            return False
        actor.process.frozen = True
        self.advance(1_000 * (LEASE + 1))
        rung = len(self.broker.queue)
        self.finish(others[0].work("sweep", others[0].engine.sweep))
        for bell in self.broker.queue[rung:]:
            taken = self._take(bell, number)
            if taken is not None:
                self.broker.queue.remove(bell)
                self._go(taken, 4)
        actor.process.frozen = False
        return True

    def _begun(self, number: int) -> Actor | None:
        """Find an actor that has claimed something, anywhere on its way."""
        if not any(actor.claimed for actor in self.actors) and self.do_deliver(number):
            self._go(self._newest(), 3)
        actors = [actor for actor in self.actors if actor.claimed]
        if not actors:
            return None
        actor = actors[number % len(actors)]
        self._go(actor, number // 3 % 7)
        return None if actor.done else actor

    def _go(self, actor: Actor, stops: int) -> None:
        for _ in range(stops):
            if not actor.done:
                self.resume(actor)
                self.look()

    def do_thaw(self, number: int) -> bool:
        """A worker goes on where it stood."""
        self.workers[number % len(self.workers)].frozen = False
        return False

    # -- time and people -----------------------------------------------------------------------------

    def do_time(self, number: int) -> bool:
        """Time passes, up to a minute and a bit; living workers renew their leases."""
        self.advance(1_000 * (1 + number % 65))
        return True

    def advance(self, milliseconds: int) -> None:
        """Let time pass, in parts of a third of a lease."""
        self.note(f"{milliseconds} ms pass")
        until = self.clock.now + milliseconds
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + LEASE * 1000 // 3)
            for process in self.workers:
                if not process.frozen:
                    self._beat(process)
        self._changed = 0  # what is due is late until a sweep; the next request is looked at

    def _beat(self, process: Process) -> None:
        for actor in list(process.actors):
            if actor.crashes >= CRASH_BUDGET - 2 and actor.point == "behind claim":
                self.resume(
                    actor
                )  # it can't renew a lease that it does not know, and must not lose it
        process.beat()

    def do_sweep(self, number: int) -> bool:
        """A worker sweeps: any of them, any number at a time."""
        awake = [process for process in self.workers if not process.frozen]
        if not awake:
            return False
        process = awake[number % len(awake)]
        process.work("sweep", lambda: process.engine.sweep(1 + number % 5))
        return True

    def do_answer(self, number: int) -> bool:
        """A person answers an open question."""
        questions = self.questions()
        if questions:
            self._answer([questions[number % len(questions)]], off=number % 7 == 0)
        return bool(questions)

    def do_answers(self, number: int) -> bool:
        """A person answers several questions at once, as one set."""
        questions = self.questions()
        if questions:
            self._answer(questions[number % len(questions) :][:3])
        return bool(questions)

    def do_mixed(self, number: int) -> bool:
        """A person answers an open question and an old one, as one set."""
        questions = self.questions()
        old = (
            [
                question
                for question in self.known
                if question.id != questions[number % len(questions)].id
            ]
            if questions
            else []
        )
        if old:
            self._answer([questions[number % len(questions)], old[number % len(old)]])
        return bool(old)

    def do_late(self, number: int) -> bool:
        """A person answers a question that was asked at any time before."""
        self.questions()
        if self.known:
            self._answer([self.known[number % len(self.known)]])
        return bool(self.known)

    def do_again(self, number: int) -> bool:
        """A request that got no reply is sent again."""
        waiting = [request for request in self.requests if request.is_open]
        if waiting:
            self._send(waiting[number % len(waiting)])
        return bool(waiting)

    def do_withdraw(self, number: int) -> bool:
        """A person takes a question back, to have it asked anew."""
        questions = [*self.questions(), *self.voters.asked()]
        if not questions:
            return False
        asked = questions[number % len(questions)].id

        def take_back(process: Process) -> str:
            try:
                withdraw(process.engine, asked, "not so", reask=True)
            except ConflictError:
                return "too late"
            return "withdrawn"

        self._send(self._ask("withdraw", take_back))
        return True

    def do_cancel(self, number: int) -> bool:
        """A person stops a run."""
        run_ids = sorted(self.watch.keys.values())
        if run_ids:
            run_id = run_ids[number % len(run_ids)]
            self._send(
                self._ask("cancel", lambda process: process.engine.cancel(run_id, "enough"))
            )
        return bool(run_ids)

    def do_pause(self, number: int) -> bool:
        """A person pauses the limit that nodes share, for a while or until it is resumed."""
        until = self.clock.now + number * 100 if number % 3 else 0
        pause = LimitPause(LIMIT.name, until)
        return self._change_limit("limit.paused", lambda setting: setting.pause(pause))

    def do_resume(self, number: int) -> bool:
        """A person ends the pause, if there is one."""
        if self.watch.paused_until <= self.clock.now:
            return False
        return self._change_limit("limit.resumed", lambda setting: setting.resume(LIMIT.name))

    def _change_limit(self, event: str, change: Callable[[LimitSetting], LimitSetting]) -> bool:
        """Change the limit, unless another change has no reply: it may come at any time."""
        if any(
            request.name.startswith("limit") and not request.reply for request in self.requests
        ):
            return False
        self.watch.resumed()  # another pause replaces it, perhaps long before its reply
        request = ChangeLimit(LIMIT.name, change, event, LIMIT.name)
        self._send(self._ask(event, lambda process: process.engine.store.do(request)))
        return True

    def do_fork(self, number: int) -> bool:
        """A person starts a run from a node of another one, which goes on meanwhile."""
        node = f"n{number // 7 % len(self.setting.plan.kinds)}"
        return self._recover("fork", number, lambda engine, run_id: fork(engine, run_id, node))

    def do_retry(self, number: int) -> bool:
        """A person has a run go on that has failed or was stopped."""
        return self._recover("retry", number, retry)

    def do_overtaken(self, number: int) -> bool:
        """A fork is planned, and before it is written its source is retried and goes on."""
        if not self.do_fork(number):
            return False
        forks = self._newest()
        while not forks.done and forks.point != "before fork":
            self.resume(forks)
        self.do_retry(number)
        self.finish(self._newest())
        while not forks.done and self.broker.queue and number % 2:
            self.do_run(number)
            number //= 2
        return self.finish(forks)

    def do_hold(self, number: int) -> bool:
        """A person holds a node of a run, or of a run inside it."""
        run_ids = sorted(run_id for run_id, _ in self.runs())
        if not run_ids:
            return False
        run_id = run_ids[number % len(run_ids)]
        node = f"n{number // 7 % len(self.setting.plan.kinds)}"
        return self._intervene("hold", run_id, node)

    def do_release(self, number: int) -> bool:
        """A person releases a node that is held."""
        held = sorted(
            (run_id, node)
            for run_id, run in self.runs()
            for node, record in run.nodes.items()
            if record.hold and not (run.record.stopping or run.record.is_final)
        )
        return bool(held) and self._intervene("release", *held[number % len(held)])

    def _intervene(self, action: str, run_id: str, node: str) -> bool:
        def change(process: Process) -> str:
            try:
                return str(intervene(process.engine, run_id, node, action, by="ana"))
            except (ConflictError, NotFoundError) as error:
                return f"refused: {error}"

        self._send(self._ask(action, change))
        return True

    def _recover(self, name: str, number: int, do: Callable[[Engine, str], object]) -> bool:
        run_ids = sorted(self.watch.keys.values())
        if not run_ids:
            return False
        run_id = run_ids[number % len(run_ids)]

        def recover(process: Process) -> str:
            try:
                return f"done: {do(process.engine, run_id)}"
            except (ConflictError, NotFoundError, UsageError) as error:
                return f"refused: {error}"

        self._send(self._ask(name, recover))
        return True

    # -- healing -------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No fault any more and one sweeper: everything that can end ends, without a person."""
        self.note("no more faults")
        for process in self.workers:
            process.frozen = False
        for _ in range(ROUNDS):
            for actor in self.actors:
                self.finish(actor)
            if not (
                self._requests()
                or self.do_release(0)
                or self._messages()
                or self.do_resume(0)
                or self._due()
            ):
                break
        else:
            raise Violation(f"liveness: there is always something to do: {self.log[-5:]}")
        if self.looks:
            self.watch.look()
        for run_id, run in self.runs():
            status = run.record.status
            waits = run.record.is_queued and self.watch.has_no_room(run.key)
            must(
                status in FINAL or status is Status.INTERRUPTED or waits,
                "liveness",
                f"{run_id} stays {status}",
            )

    def _requests(self) -> bool:
        waiting = [request for request in self.requests if request.is_open]
        for request in waiting:
            self._send(request)
        return bool(waiting)

    def _messages(self) -> bool:
        had = bool(self.broker.queue)
        while self.broker.queue:
            self.do_run(0)
        return had

    def _due(self) -> bool:
        """Let the next thing become due, whatever that is, but for the ends of questions to come.

        A sweep that died has left what it had in hand between two milliseconds: that was due before.
        """
        now = self.clock.now
        times = [
            due
            for (kind, _, _), due in self.timers().items()
            if kind != "expire" or due <= now or due % 1
        ]
        if not times:
            return False
        if min(times) > self.clock.now:
            self.advance(math.ceil(min(times)) - self.clock.now)
        process = self.workers[0]
        self.finish(process.work("sweep", process.engine.sweep))
        return True

    def end(self) -> None:
        """Heal, let people answer whatever is open, and so come to the end of every run."""
        for _ in range(ROUNDS):
            self.heal()
            questions = self.questions()
            for question in questions:
                self._answer([question])
            if not (self.voters.settle() or questions):
                break
        for run_id, run in self.runs():
            must(
                run.record.is_final,
                "liveness",
                f"{run_id} has no question and stays {run.record.status}",
            )
        if self.looks:
            self.watch.indexes()
            self.watch.effects()
            self.watch.results()
            self.voters.check()
        self._told()

    def _told(self) -> None:
        """Everybody who asked for something was told what became of it."""
        called = {task_id.partition(".")[0] for task_id, _ in self.broker.calls}
        for run_id in self.watch.keys.values():
            must(run_id in called, "liveness", f"nobody was told that {run_id} has ended")
        for request in self.requests:
            must(request.reply is not None, "liveness", f"{request.name} has no reply")
            if not isinstance(request.reply, list):
                continue
            for receipt in request.reply:
                accepted = receipt.status is ReceiptStatus.ACCEPTED
                key = request.name.partition(" ")[2]
                mine = self.watch.accepted.get(receipt.interrupt_id) == key
                mine = mine or key in self.watch.taken_back
                must(accepted == mine, "I3", f"{request.name} was told {receipt}")

    def result(self, run_id: str) -> GraphResult:
        """Read how a run has ended."""
        return graph_result(self.store, self.store.read(run_id))

    def events(self) -> list[str]:
        """Write all that was told of all runs."""
        events = [
            (run_id, event)
            for run_id, _ in sorted(self.runs())
            for event in self.store.events(run_id)
        ]
        return [
            f"{run_id} {event.position} {event.at} {event.kind} {event.detail} {event.node} {event.data}"
            for run_id, event in events
        ]


def in_memory(setting: Setting, store: Callable[..., MemoryStore] = MemoryStore) -> World:
    """Make a world around a memory store."""
    clock = ManualClock()
    made = store(clock=clock, lease=LEASE)

    def asked() -> Iterator[Interrupt]:
        questions = (run.questions.values() for _, run in inside_memory(made))
        return filter(
            lambda question: question.is_open, itertools.chain.from_iterable(questions)
        )

    return World(
        *(setting, made, clock),
        lambda: inside_memory(made),
        lambda: made._database.timers,
        asked,
    )
