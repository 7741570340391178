"""Calls that need approval, each a durable run of one graph that ends with the call, made at most once.

The graph's only node is executed by the process that can make the call: it asks people, judges their
decision directly before the effect, and records the use of the decision and the beginning of the call
before it makes it. No worker serves the graph's queue, so this process drops the
queue's doorbells; a worker or keeper of the store handles expiries, and the lease of a process that was
killed.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import runpy
import threading
import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from runner import GraphBuilder
from runner.approvals import digests, policies
from runner.approvals.grants import numeric
from runner.approvals.policies import CallContext, Gates, Policy
from runner.approvals.rules import Auth, Grants, Principal, Requester, Rule
from runner.client import Client
from runner.definition.registry import Registry
from runner.errors import (
    ApprovalMismatch,
    DefinitionError,
    InterruptExpired,
    InterruptWithdrawn,
    RetryAfter,
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
from runner.operations.backlog import GATE
from runner.operations.exports import all_events
from runner.operations.views import read_run
from runner.records import codec
from runner.records.checkpoints import Saved
from runner.records.codec import JSON, JSONMapping, JSONObject
from runner.records.executors import Visit
from runner.records.interrupts import Interrupt
from runner.records.outcomes import Failed, Interrupted, Outcome, Succeeded
from runner.records.run import Status
from runner.records.validation import check_keywords, violation
from runner.settings import Settings
from runner.store.requests import EmitEvent
from runner.store.shared import Shared, open_store

NODE = "call"

REMEMBERED = 3600.0
"""Seconds after its end in which the same call gets an outcome that no client has received."""

TOLD: JSONObject = {"fraction": 1.0, "note": "the client has got the outcome"}
"""The data of the event of a run whose outcome a client has."""


class CallMaker(Protocol):
    """Makes calls that were approved; its methods block."""

    decisions: tuple[str, ...]

    def tool(self, name: str) -> tuple[JSON, bool]:
        """Return the present schema of a tool's arguments, and whether a call may be repeated.

        Raises:
            RunnerError: the tool isn't there, or can't be looked up.
        """

    def make(self, name: str, args: JSON) -> JSONObject:
        """Make a call and return its outcome: a `result` or an `error`.

        Raises:
            RunnerError: the call may or may not have been made.
        """


def refused(text: str) -> JSONObject:
    """Return the outcome of a call that was not made, or is not known to have been made."""
    return {"refused": text}


class GateNode:
    """The node of the graph, which makes the calls of one process."""

    kind = "gate"

    def __init__(self, gates: Gates, caller: CallMaker) -> None:
        self._gates, self._caller = gates, caller

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
        tool = visit.task["tool"]
        args = visit.task["args"]
        try:
            schema, may_repeat = self._caller.tool(tool)
        except RunnerError as error:
            if not begun:
                raise RetryAfter(0, reason=str(error)) from error
            schema, may_repeat = None, False
        if begun and not may_repeat:
            return refused(
                f"The call of {tool} was approved and begun, and then the gate stopped. It may or may not "
                "have been made, and isn't made again. Look at its effect before you do anything else."
            )
        gate = CallGate(visit, questions, self._gates)
        if not gate.is_for(tool):
            return refused(f"The policy has no rule for {tool} any more: make the call again.")
        state = gate.ask(FrameworkCall("1", tool, args, schema, self._caller.decisions), None)
        if isinstance(state, str):
            return refused(state)
        if isinstance(state, Interrupt):
            return state
        if state and state.approval:
            if not state.approval.approved:
                reason = (state.approval.response or {}).get(
                    "rejected"
                ) or "no reason was given"
                people = state.question.responder or "Nobody"
                return refused(
                    f"{people} rejected the call of {tool}, so it was not made: {reason}"
                )
            args = state.args
        visit.check()
        visit.check_effect(tool)
        try:
            gate.begin(tool, args, schema, "1")
        except ApprovalMismatch as error:
            # It has just become too old: the next visit asks again, or is held if it finds another fault.
            raise RetryAfter(0, reason="The approval is too old.") from error
        visit.save(self._saved(questions, begun=True))
        try:
            return self._caller.make(tool, args)
        except RunnerError as error:
            return refused(
                f"{error} The call may or may not have been made, and is not repeated."
            )

    def _saved(self, questions: Questions, *, begun: bool = False) -> Saved:
        return Saved({"questions": questions.document(), "begun": begun})


class Calls:
    """The calls of one process; policies get it as the `CallSource` of calls without a run."""

    graph_id = GATE

    def __init__(self, gates: Gates, place: str, caller: CallMaker) -> None:
        """Let `caller` make the calls; `place` names the server that they are for."""
        settings = Settings()
        self._gates = gates
        self._place = place
        self._principal = Principal(getpass.getuser())
        registry = Registry()
        builder = GraphBuilder()
        builder.add_node(GateNode(gates, caller), NODE)
        graph = builder.build()
        registry.add(GATE, lambda: graph)
        self.client = Client(store=open_store(settings, push=False), registry=registry)
        self._shared = Shared(settings)
        self._lock = threading.Lock()
        self.claims: dict[str, Callable[[], bool]] = {}

    def requester(self) -> Requester:
        """Return the user of this process, an identity without proof."""
        return Requester(self._principal.key)

    def tags(self) -> Mapping[str, str]:
        """Return no tags."""
        return {}

    def attach(
        self, tool: str, args: Any, schema: JSON, is_left: Callable[[], bool] = bool
    ) -> tuple[str | None, Any]:
        """Return a call's run, None if it needs no approval; and its arguments with the schema's defaults.

        The run is an open one of the same call, one whose outcome no client has had, or a new one. It is in
        `claims` until a client has its outcome or stops waiting; other calls may take it once `is_left`
        returns true.

        Raises:
            UsageError: the arguments don't fit the schema. Any error of the policy.
        """
        args = whole_call(tool, args, schema)
        context = CallContext(tool, "", NODE, 0, self)
        if policies.rule_of(policies.of_tool(self._gates, tool), args, context) is None:
            return None, args
        task = {"tool": tool, "args": args, "place": self._place}
        number = 0
        key = hashlib.sha256(
            digests.canonical([self._principal.key, task], "the call")
        ).hexdigest()
        with self._lock:
            while True:
                run = self.client.start(
                    GATE,
                    task,
                    idempotency_key=f"gate:{key}:{number}",
                    requester=self._principal,
                )
                if self.claims.get(run.id, lambda: True)() and not self._is_over(run.id):
                    self.claims[run.id] = is_left
                    return run.id, args
                number += 1

    def _is_over(self, run_id: str) -> bool:
        store = self.client.engine.store
        record = store.peek(run_id)
        if record is None or not record.is_final:
            return False
        ended_at = read_run(store, run_id).ended_at
        return ended_at < (time.time() - REMEMBERED) * 1000 or any(
            event.data == TOLD for event in all_events(store, run_id)
        )

    def tell(self, run_id: str) -> None:
        """Record that the client has the outcome of a call: no process sends it again."""
        self.client.engine.store.do(EmitEvent(run_id, "progress", NODE, 1, TOLD))
        self.claims.pop(run_id, None)

    def is_here(self, run_id: str) -> bool:
        """Return whether a run is a call of this server, perhaps begun by an earlier process."""
        snapshot = self.client.engine.store.read(run_id)
        return (
            snapshot is not None
            and snapshot.record.graph_id == GATE
            and codec.unpack(snapshot.task)["place"] == self._place
        )

    def outcome(self, run_id: str) -> JSONObject | None:
        """Make the call if it is approved now; return its outcome, None as long as it has none.

        Raises:
            UsageError: the server can't make it now. The call stays as it is, with its approval.
        """
        engine = self.client.engine
        record = engine.store.peek(run_id)
        if record is None:
            return refused(f"Run {run_id} isn't stored any more.")
        if record.status is Status.EXECUTING:
            ((node, _, _),) = engine.store.fetch(run_id, [NODE])
            if node.status is Status.RETRYING:
                engine.sweep()
            if node.status in {Status.READY, Status.RETRYING}:
                raised = engine.deliver(run_id, NODE, node.visit, node.attempt).raised
                if isinstance(raised, RetryAfter):
                    raise UsageError(
                        f"{raised.reason} The call was not made. Make the same call again: an "
                        "approval that still holds counts, and people are not asked twice."
                    )
                record = engine.store.peek(run_id) or record
        if record.status in {Status.EXECUTING, Status.INTERRUPTED}:
            return None
        self._shared.drop_doorbells(GATE)
        view = read_run(engine.store, run_id)
        if view.status == Status.COMPLETED:
            output: JSONObject = view.output
            return output
        reasons = [node.error.summary for node in view.nodes if node.error]
        return refused(
            f"Run {run_id} of the call is {view.status}: {view.reason or reasons or 'see its page'}. If the "
            "call was approved, look at its effect before you do anything else."
        )

    def waiting_text(self, run_id: str) -> str:
        """Return the text for a model whose call waits for people."""
        page = Settings().page
        questions = [
            f"It waits for approval: {question.id} {page(f'/q/{question.id}')}".strip()
            for question in self.client.interrupts(run=run_id)
        ]
        state = (
            ["The call was not made.", *questions]
            if questions
            else ["The call has not ended yet."]
        )
        return (
            f"{' '.join(state)} Make the same call again, with exactly the same arguments, to wait for the "
            "decision and to get the outcome: people are not asked twice."
        )


# Policies: a Python file, or YAML.


def own_output() -> int:
    """Return the standard output for this program alone: a policy's prints go to the standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def read_policy(path: str) -> Gates:
    """Read the policy of a file: `approval` of a Python module, or YAML.

    Raises:
        DefinitionError: it can't be read.
    """
    try:
        if path.endswith((".yaml", ".yml")):
            return _yaml_policy(path)
        return policies.by_tool(
            runpy.run_path(path, run_name="gate_policy")["approval"], f"policy {path}"
        )
    except Exception as error:
        raise DefinitionError(f"the policy {path} can't be read: {error!r}") from error


def _yaml_policy(path: str) -> Policy:
    with needs_extra("gate", "policies in YAML"):
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - a policy in Python doesn't need it

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Refuses a key that is there twice: YAML would ignore the first."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - as declared
            names = [key.value for key, _ in node.value]
            if twice := {name for name in names if names.count(name) > 1}:
                raise DefinitionError(f"written twice: {', '.join(sorted(twice))}.")
            return super().construct_mapping(node, deep)

    text = Path(path).read_text(encoding="utf-8")
    match yaml.load(text, Loader):  # noqa: S506 - a safe one
        case {"calls": list(calls), **others} if not others:
            entries = [_entry(**entry) for entry in calls]
        case _:
            raise DefinitionError("it must have `calls`, a list of entries, and nothing else.")

    def rule(args: JSONMapping, call: CallContext) -> Rule | None:
        """Return the rule of the first entry that fits; a call that none fits needs anyone's approval."""
        for tools, bounds, rule in entries:
            if (
                any(fnmatchcase(call.tool, pattern) for pattern in tools)
                and not violation(bounds, dict(args))[1]
            ):
                return rule
        return Rule(because="no entry of the policy fits this call")

    return Policy(
        rule,
        Path(path).name,
        digests.digest("policy-source", {"name": path, "source": text}),
        takes_context=True,
    )


def _entry(
    tools: Any, rule: Any, bounds: JSONMapping | None = None
) -> tuple[list[str], JSONObject, Rule | None]:
    """Return an entry's patterns of names, the schema of its arguments, and its rule."""
    bounds = bounds or {}
    schema = {"properties": bounds, "required": sorted(bounds)}
    check_keywords(schema, f"bounds {bounds}")
    loose = [name for name in bounds if not bounds[name].keys() & {"type", "enum", "const"}]
    if loose:  # {maximum: 5} fits the text "100"
        raise DefinitionError(f"the bounds of {loose} need a type, enum or const.")
    names = [tools] if isinstance(tools, str) else list(tools)
    patterns = [name.replace("[", "[[]") for name in names]  # only * and ? are special
    return patterns, numeric(schema), None if rule == "pass" else _rule(rule)


def _rule(fields: JSONMapping) -> Rule:
    auth = Auth(**fields.get("auth") or {})
    stages = [_rule(stage) for stage in fields.get("stages") or ()]
    grants = Grants(**fields["grants"] or {}) if "grants" in fields else None
    return Rule(**{**fields, "auth": auth, "stages": stages, "grants": grants})
