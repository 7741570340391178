"""Virtual workers: real engines whose every call to the store can be stopped, killed, cut or doubled.

An actor is one piece of work of a process: a delivery, a sweep, an answer. It runs as a greenlet, that is
a generator whose `yield` may stand in any function that it calls; so what runs between two stops is the
product's own code. Nothing goes on by itself: the world resumes one actor at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import greenlet

from runner.approvals.freezes import Freeze
from runner.definition.registry import Registry
from runner.errors import RunnerError, StoreError
from runner.execution.engine import Engine
from runner.limits.fairness import Fairness
from runner.store.interface import Claim, Reply, Request
from runner.store.requests import StartRun

READS = frozenset(
    {
        "read",
        "peek",
        "fetch",
        "interrupts",
        "session",
        "topology",
        "graphs",
        "children",
        "votes",
        "requester",
    }
)
"""Requests that change nothing: an actor stops before them, not behind them as well."""


FAIRNESS = Fairness("tag:run", {"run1": 3})


class Died(BaseException):
    """Ends an actor where its process is killed."""


class Actor:
    """One piece of work of a process; `point` is where it has stopped."""

    def __init__(self, process: Process, name: str, work: Callable[[], object]) -> None:
        """Begin nothing yet: the first `resume` does."""
        self.process, self.name, self.work = process, name, work
        self.number = next(process.world.numbers)
        self.point, self.crashes = "start", 0
        self.blocked_by: Actor | None = None
        self.done = self.dead = self.claimed = False
        self.calls: int | None = None
        """How many calls of a server the request had that it makes now, if it makes one."""
        self.result: Any = None
        self.error: RunnerError | None = None
        self._greenlet = greenlet.greenlet(self._run)

    def _run(self, how: str) -> None:
        try:
            if how != "die":
                self.result = self.work()
        except Died:
            self.dead = True
        except RunnerError as error:
            self.error = error
        self.done = True

    def resume(self, how: str = "go") -> None:
        """Let it go on to its next stop: "go", "die", "cut" (no reply or no request) or "twice"."""
        self._greenlet.switch(how)

    def stop(self, point: str) -> str:
        """Give way to the others; called by the code that the actor runs. Returns how it goes on."""
        if self.dead:
            raise Died  # code that outlives its worker's death, in a `finally` perhaps, does nothing
        self.point = point
        how: str = self._greenlet.parent.switch()
        if how == "die":
            self.dead = True
            raise Died
        return how


class Wire:
    """The store as one process sees it: each request stops its actor before and behind."""

    def __init__(self, process: Process) -> None:
        self._process, self._store = process, process.world.store
        self.lease_ms = self._store.lease_ms
        self.max_bytes, self.max_state = self._store.max_bytes, self._store.max_state
        self.namespace, self.clock = self._store.namespace, self._store.clock

    def frozen(self) -> dict[str, Freeze]:
        """Say that nothing is frozen: how often that is looked at depends on the real time."""
        return {}

    def do(self, request: Request) -> Any:
        """Do a request; its point is named by its verb."""
        return self._request(request.verb, lambda: self._store.do(request), request)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)
        return lambda *arguments, **named: self._request(
            name, lambda: method(*arguments, **named), None
        )

    def _request(self, name: str, call: Callable[[], Any], request: Request | None) -> Any:
        if self._process.world.closed:
            raise Died  # what stood still at the end is thrown away, and must not write on its way out
        actor = self._process.world.current
        if actor is None:  # a heartbeat: its thread is of no interest
            return call()
        how = actor.stop(f"before {name}")
        if how == "cut":
            raise StoreError(f"the request {name} was cut off.")
        reply = self._call(name, call, request)
        if (
            how == "twice"
        ):  # the client repeats a request whose reply was lost: same nonce, same reply
            reply = self._call(name, call, request)
        if name in READS:
            return reply
        claim = reply.claim if isinstance(reply, Reply) else reply
        if isinstance(claim, Claim):
            actor.crashes, actor.claimed = claim.record.crashes, True
        if actor.stop(f"behind {name}") == "cut":
            raise StoreError(f"the reply to {name} was lost.")
        return reply

    def _call(self, name: str, call: Callable[[], Any], request: Request | None) -> Any:
        actor = self._process.world.current
        actor.calls = 0
        if isinstance(request, StartRun):
            self._process.world.watch.unanswered.add(request.start.run_id)
        try:
            reply = call()
        except BaseException:
            self._process.world.watch.recovered(
                request
            )  # its reply is lost, but it may be done
            raise
        finally:
            actor.calls = None
        self._process.world.judge(name, request, reply)
        return reply


class Silent:
    """No alarms: they save time only, and the simulated sweepers find what is due."""

    def sweep_in(self, seconds: float) -> None:
        """Do nothing."""


class Process:
    """One virtual process: an engine with code of its own, and as many slots as it was given."""

    def __init__(self, world: Any, name: str, slots: int, skew: tuple[float, float]) -> None:
        """`skew` is how its clock is wrong: seconds ahead, and how fast it goes."""
        self.world, self.name, self.slots, self.skew = world, name, slots, skew
        self.frozen = False
        self.actors: list[Actor] = []
        self.begin()

    def begin(self) -> None:
        """Start, or start again after a death: with nothing but what the store has."""
        registry = Registry()
        for name, factory in self.world.factories.items():
            fairness = FAIRNESS if self.world.setting.fair else None
            registry.add(name, factory, self.world.setting.rules, fairness)
        self.engine = Engine(Wire(self), self.world.broker, registry, lease=math.inf)
        self.engine._sweep_timer = Silent()

    def work(self, name: str, work: Callable[[], object]) -> Actor:
        """Take on a piece of work."""
        actor = Actor(self, f"{self.name} {name}", work)
        self.actors.append(actor)
        return actor

    @property
    def is_idle(self) -> bool:
        """Tell whether another delivery has room."""
        return not self.frozen and len(self.actors) < self.slots

    def beat(self) -> None:
        """Renew the leases, as the thread of a living process does every third of one."""
        self.engine.leases.look()

    def clock(self) -> float:
        """Read this process's own clock, in seconds: it is wrong, and nothing may depend on it."""
        ahead, rate = self.skew
        return self.world.clock.now / 1000 * rate + ahead
