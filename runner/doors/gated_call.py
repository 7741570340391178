"""Calls that need approval, each a durable run of one graph that ends with the call, made at most once.

The graph's only node is executed by the process that can make the call: it asks people, judges their
decision directly before the effect, and records the use of the decision and the beginning of the call
before it makes it. No worker serves the graph's queue, so this process drops the
queue's doorbells; a worker or keeper of the store handles expiries, and the lease of a process that was
killed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from runner import GraphBuilder
from runner.approvals import digests, policies
from runner.approvals.gate import CallState
from runner.approvals.policies import CallContext, Gates, Policy
from runner.approvals.rules import Principal, Rule
from runner.client import Client
from runner.definition.registry import Registry
from runner.errors import (
    DefinitionError,
    InterruptExpired,
    InterruptWithdrawn,
    RunnerError,
    UsageError,
    needs_extra,
)
from runner.integrations.framework import (
    CallGate,
    FrameworkCall,
    Questions,
    packed,
    whole_call,
)
from runner.operations.exports import all_events
from runner.operations.views import read_run
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONObject
from runner.records.executors import Visit
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Failed, Interrupted, Outcome, Succeeded
from runner.records.run import Status
from runner.records.validation import violation
from runner.settings import Settings
from runner.store.requests import EmitEvent
from runner.store.shared import Shared, open_store

GRAPH, NODE = "gate", "call"

REMEMBERED = 3600.0
"""Seconds after its end in which the same call gets an outcome that no client has got yet."""


TOLD: JSONObject = {"fraction": 1.0, "note": "the client has got the outcome"}
"""The data of the event of a run whose outcome was told."""


class CallMaker(Protocol):
    """Makes calls that were approved; its methods block."""

    decisions: tuple[str, ...]

    def tool(self, name: str) -> tuple[JSON, bool]:
        """Return the present schema of a tool's arguments, and whether a call may be repeated.

        Raises:
            RunnerError: the tool isn't there, or can't be looked up.
        """

    def make(self, name: str, args: JSON, run_id: str) -> JSONObject:
        """Make a run's call and return its outcome: a `result` or an `error`.

        Raises:
            RunnerError: the call may or may not have been made.
        """


def refused(text: str) -> JSONObject:
    """Return the outcome of a call that was not made, or is not known to have been made."""
    return {"refused": text}


class GateNode:
    """The node of the graph: `callers` make the calls of this process's runs, by run id."""

    kind = "gate"

    def __init__(self, gates: Gates) -> None:
        self._gates = gates
        self.callers: dict[str, CallMaker] = {}

    def execute(self, visit: Visit) -> Outcome:
        """Ask, or make the call that was approved."""
        past = visit.document or {"questions": [], "begun": False}
        questions = Questions(self.kind, visit.address, visit.answers, past["questions"])
        try:
            outcome = self._outcome(visit, questions, begun=past["begun"])
        except (InterruptExpired, InterruptWithdrawn, UsageError) as error:
            outcome = refused(f"The call was not made: {error}")
        except RunnerError:
            raise
        except Exception as error:  # noqa: BLE001 - a policy raises anything
            return Failed.of(error)
        if isinstance(outcome, Interrupt):
            return Interrupted([outcome], self._saved(questions))
        return Succeeded(*packed(outcome))

    def _outcome(
        self, visit: Visit, questions: Questions, *, begun: bool
    ) -> Interrupt | JSONObject:
        tool, args = visit.task["tool"], visit.task["args"]
        caller = self.callers[visit.address.run_id]
        try:
            schema, may_repeat = caller.tool(tool)
        except RunnerError as error:
            if not begun:
                return refused(f"{error} The call was not made.")
            schema, may_repeat = None, False
        if begun and not may_repeat:
            return refused(
                f"The call of {tool} was approved and begun, and then the gate stopped. It may or may not "
                "have been made, and isn't made again. Look at its effect before you do anything else."
            )
        gate = CallGate(visit, questions, self._gates)
        call = FrameworkCall("1", tool, args, schema, caller.decisions)
        match gate.ask(call, None):
            case Interrupt() as question:
                return question
            case str(problem):
                return refused(problem)
            case CallState(question=asked, approval=approval, args=decided) if approval:
                if not approval.approved:
                    reason = (approval.response or {}).get("rejected") or "no reason was given"
                    people = asked.responder or "Nobody"
                    return refused(
                        f"{people} rejected the call of {tool}, so it was not made: {reason}"
                    )
                args = decided
        visit.check()
        visit.check_effect(tool)
        gate.begin(tool, args, schema, "1")
        visit.save(self._saved(questions, begun=True))
        try:
            return caller.make(tool, args, visit.address.run_id)
        except RunnerError as error:
            return refused(
                f"{error} The call may or may not have been made, and is not repeated."
            )

    def _saved(self, questions: Questions, *, begun: bool = False) -> Saved:
        return Saved({"questions": questions.document(), "begun": begun})


class Calls:
    """The calls of one process, with the policy that says which of them need approval."""

    def __init__(
        self,
        settings: Settings,
        gates: Gates,
        place: str,
        remembered: float | None = REMEMBERED,
    ) -> None:
        """Use the store of the settings; `place` names the server that the calls are for.

        `remembered` is for how many seconds after its end an outcome is told to another process; None
        tells it to nobody else.
        """
        self._gates, self._place, self._remembered = gates, place, remembered
        self._node, registry = GateNode(gates), Registry()
        builder = GraphBuilder()
        builder.add_node(self._node, NODE)
        graph = builder.build()
        registry.add(GRAPH, lambda: graph)
        self.client = Client(store=open_store(settings, push=False), registry=registry)
        self._shared = Shared(settings)
        self._attached: dict[str, tuple[str, int]] = {}
        self._taken: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def has_rules(self, tool: str) -> bool:
        """Return whether calls of a tool may need approval."""
        return policies.of_tool(self._gates, tool) is not None

    def is_free(self, tool: str, args: Any, schema: JSON) -> tuple[bool, Any]:
        """Return whether a call needs no approval, and its arguments with the defaults of the schema.

        Raises:
            UsageError: the arguments don't fit the schema. Any error of the policy.
        """
        args = args if schema is None else whole_call(tool, args, schema)
        gate = policies.of_tool(self._gates, tool)
        return policies.rule_of(gate, args, CallContext(tool, "", NODE, 0)) is None, args

    def attach(
        self, requester: Principal, tool: str, args: Any, name: str, caller: CallMaker
    ) -> str:
        """Return the run of a call: an open one of the same call, its untold outcome, or a new one.

        `name` tells calls with the same arguments apart, if the client names its calls.
        """
        text = digests.canonical([requester.key, self._place, tool, args, name], "the call")
        key, number = hashlib.sha256(text).hexdigest(), 0
        with self._lock:
            while True:
                if (key, number) not in self._taken:
                    run = self.client.start(
                        GRAPH,
                        {"tool": tool, "args": args},
                        idempotency_key=f"gate:{key}:{number}",
                        requester=requester,
                        tags={"tool": tool[:100], "place": self._place[:100]},
                    )
                    if not self._is_over(run.id):
                        self._taken.add((key, number))
                        self._attached[run.id] = key, number
                        self._node.callers[run.id] = caller
                        return run.id
                number += 1

    def _is_over(self, run_id: str) -> bool:
        store = self.client.engine.store
        record = store.peek(run_id)
        if record is None or not record.is_final:
            return False
        if self._remembered is None:
            return True
        ended_at = read_run(store, run_id).ended_at
        return ended_at < (time.time() - self._remembered) * 1000 or any(
            event.data == TOLD for event in all_events(store, run_id)
        )

    def tell(self, run_id: str) -> None:
        """Record that the client has got the outcome of a call: no process tells it again."""
        self._node.callers.pop(run_id, None)
        self.client.engine.store.do(EmitEvent(run_id, "progress", NODE, 1, TOLD))

    def detach(self, run_id: str, *, told: bool) -> None:
        """Let go of a call whose client waits no more; only an outcome that it got isn't told again."""
        call = self._attached.pop(run_id)
        if not told:
            self._taken.discard(call)

    def resume(self, run_id: str, caller: CallMaker) -> bool:
        """Continue a call by its run's id, perhaps of an earlier process; False if it isn't one here."""
        snapshot = self.client.engine.store.read(run_id)
        if snapshot is None or snapshot.tags.get("place") != self._place[:100]:
            return False
        self._node.callers[run_id] = caller
        return snapshot.record.graph_id == GRAPH

    def outcome(self, run_id: str) -> JSONObject | None:
        """Make the call if it is approved now; return its outcome, None as long as it has none."""
        engine = self.client.engine
        record = engine.store.peek(run_id)
        if record is None:
            return refused(f"Run {run_id} isn't stored any more.")
        if record.status is Status.EXECUTING:
            ((node, _, _),) = engine.store.fetch(run_id, [NODE])
            if node.status is Status.READY:
                engine.deliver(run_id, NODE, node.visit, node.attempt)
                record = engine.store.peek(run_id) or record
        if record.status in {Status.EXECUTING, Status.INTERRUPTED}:
            return None
        self._shared.drop_doorbells(GRAPH)
        result = self.client.run(run_id).result()
        if result.status is Status.COMPLETED:
            output: JSONObject = result.results[NODE].output
            return output
        error = result.results[NODE].error if NODE in result.results else None
        reason = error.message if error else result.reason
        return refused(
            f"Run {run_id} of the call is {result.status}: {reason or 'see its page'}. If the call was "
            "approved, look at its effect before you do anything else."
        )


def waiting_text(calls: Calls, run_id: str) -> str:
    """Return the text for a model whose call waits for people."""
    page = Settings().page
    lines = [
        f"It waits for approval: {question.id} {page(f'/q/{question.id}')}".strip()
        for question in calls.client.interrupts(run=run_id)
    ]
    state = (
        f"The call was not made. {' '.join(lines)}" if lines else "The call has not ended yet."
    )
    return (
        f"{state} Make the same call again, with exactly the same arguments, to wait for the decision and to "
        "get the outcome: people are not asked twice."
    )


# Policies: a Python file, or YAML.


def read_policy(path: str) -> Gates:
    """Read the policy of a file: `approval` of a Python module, or YAML.

    Raises:
        DefinitionError: it can't be read.
    """
    try:
        if path.endswith((".yaml", ".yml")):
            return _yaml_policy(path)
        spec = importlib.util.spec_from_file_location("gate_policy", path)
        if spec is None or spec.loader is None:
            raise DefinitionError("it is neither a Python file nor YAML.")  # noqa: TRY301 - as below
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return policies.by_tool(module.approval, f"policy {path}")
    except Exception as error:
        raise DefinitionError(f"the policy {path} can't be read: {error!r}") from error


def _yaml_policy(path: str) -> Policy:
    with needs_extra("gate", "policies in YAML"):
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - a policy in Python doesn't need it

    text = Path(path).read_text(encoding="utf-8")
    entries = [_PolicyEntry(**entry) for entry in yaml.safe_load(text)["calls"]]

    def rule(args: Mapping[str, Any], call: CallContext) -> Rule | None:
        """Return the rule of the first entry that fits; a call that none fits is for anyone to approve."""
        for entry in entries:
            if entry.fits(call.tool, args):
                return entry.rule
        return Rule(because="no entry of the policy fits this call")

    source = digests.digest("policy-source", {"name": path, "source": text})
    return Policy(rule, Path(path).name, source, takes_context=True)


class _PolicyEntry:
    """An entry of a policy in YAML: the tools and bounds of calls that pass, or that need a rule."""

    def __init__(self, tools: Any, rule: Any, bounds: Any = None) -> None:
        self._tools = [tools] if isinstance(tools, str) else list(tools)
        self._bounds = {"properties": bounds or {}, "required": sorted(bounds or {})}
        where, problem = violation(self._bounds, {})
        if where is None and problem:
            raise DefinitionError(f"the bounds {bounds} aren't JSON Schemas: {problem}.")
        self.rule = None if rule == "pass" else Rule(**rule)

    def fits(self, tool: str, args: Mapping[str, Any]) -> bool:
        """Return whether a call has one of the tools, and arguments within the bounds."""
        if not any(fnmatchcase(tool, pattern) for pattern in self._tools):
            return False
        return not violation(self._bounds, dict(args))[1]
