"""Rules that depend on the call: a function of the arguments returns the rule of each call, or None.

A policy is asked when a call begins, and again directly before its effect: see `gate.py`. The rule
that it returned is frozen into the question, with the policy's name and a hash of its source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from runner.approvals import digests, titles
from runner.approvals.rules import KINDS, Requester, Rule
from runner.errors import DefinitionError, UsageError
from runner.immutable import immutable
from runner.records.codec import JSONMapping, without_none

ApprovalPolicy: TypeAlias = Callable[..., Rule | None]
"""A function of the validated arguments, and of a `CallContext` if it takes two."""

ToolApprovals: TypeAlias = Mapping[str, Rule | ApprovalPolicy] | Rule | ApprovalPolicy | None
"""The `approval=` of something with several tools: one for all of them, or by name."""

Gates: TypeAlias = "Mapping[str, Rule | Policy] | Rule | Policy | None"
"""Rules and policies of several tools: one for all of them, or by name."""


class CallSource(Protocol):
    """The run in which a call begins, with the facts that a policy may ask for."""

    graph_id: str

    def requester(self) -> Requester:
        """Return who asked for the run, and at which level that is proven."""

    def tags(self) -> Mapping[str, str]:
        """Return the tags of the run."""


@immutable
class CallContext:
    """The call that a policy returns a rule for.

    `tool` is the name of the tool, or of the node for a node's approval. `run_id`, `node_id` and
    `visit` say where the call begins. An agent that is called directly has no run: `run_id` is the
    id of its invocation, and nobody asked for it.
    """

    tool: str
    run_id: str
    node_id: str
    visit: int
    source: CallSource | None = None

    @property
    def graph(self) -> str:
        """The graph's name; for a nested graph, its path."""
        return self.source.graph_id if self.source else ""

    @property
    def requester(self) -> Requester:
        """Who asked for the run; read from the store."""
        return self.source.requester() if self.source else Requester()

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags of the run, as the store has them; no signature covers them."""
        return self.source.tags() if self.source else {}


@immutable
class Policy:
    """A function that returns the rule of a call, or None if the call needs no approval."""

    function: ApprovalPolicy
    name: str
    code: str
    takes_context: bool

    def rule(self, args: JSONMapping, context: CallContext) -> Rule | None:
        """Return the rule of a call.

        Raises:
            UsageError: the function returned something else. Any error that the function raises.
        """
        rule = self.function(args, context) if self.takes_context else self.function(args)
        if rule is None:
            return None
        if not isinstance(rule, Rule):
            raise UsageError(
                f"the approval policy {self.name} returned {rule!r:.80}; it must return a Rule, or None if "
                "the call needs no approval. The call was not made."
            )
        return replace(rule, policy={"name": self.name, "hash": self.code})


def checked(
    approval: object, subject: str, names: Collection[str] | None = None
) -> Rule | Policy | None:
    """Return the rule or policy given as `approval=` of a tool or node.

    `names` are the arguments that the title of a rule may name.

    Raises:
        DefinitionError: it is neither a rule nor a function of the arguments and a context, or it
            is a rule whose title names something else.
    """
    if approval is None or isinstance(approval, Policy):
        return approval
    if isinstance(approval, Rule):
        try:
            if names is not None:
                titles.check_names(approval.title, names, subject)
        except UsageError as error:
            raise DefinitionError(str(error)) from None
        return approval
    problem = "must be a Rule, or a function of the arguments that returns a Rule or None"
    if not callable(approval) or isinstance(approval, type):
        raise DefinitionError(f"approval of {subject} {problem}, not {approval!r:.80}.")
    if inspect.iscoroutinefunction(approval):
        raise DefinitionError(f"approval of {subject} must not be async: it {problem}.")
    try:
        signature = inspect.signature(approval)
    except (TypeError, ValueError):
        signature = inspect.Signature()
    numbers = [number for number in (1, 2) if _takes(signature, number)]
    if not numbers:
        raise DefinitionError(
            f"approval of {subject} is called as f(args), or as f(args, call) with a CallContext, and takes "
            f"{signature}."
        )
    return Policy(approval, *_named(approval), numbers[0] == 2)


def _takes(signature: inspect.Signature, number: int) -> bool:
    try:
        signature.bind(*range(number))
    except TypeError:
        return False
    return True


def by_tool(approval: object, subject: str) -> Gates:
    """Return the `approval=` of something with several tools: one for all of them, or by their names.

    Raises:
        DefinitionError: see `checked`.
    """
    if not isinstance(approval, Mapping):
        return checked(approval, subject)
    return without_none(
        {name: checked(each, f"{name!r} of {subject}") for name, each in approval.items()}
    )


def of_tool(gates: Gates, tool: str) -> Rule | Policy | None:
    """Return the rule or the policy of one tool."""
    return gates.get(tool) if isinstance(gates, Mapping) else gates


def rule_of(
    approval: Rule | Policy | None, args: JSONMapping, context: CallContext
) -> Rule | None:
    """Return the rule of a call; None if it needs no approval. See `Policy.rule` for errors."""
    return approval.rule(args, context) if isinstance(approval, Policy) else approval


def without_edits(rule: Rule) -> Rule:
    """Return a rule for something that nobody can edit.

    Raises:
        UsageError: the rule allows only edits.
    """
    decisions = [decision for decision in rule.decisions if decision != "edit"]
    if not decisions:
        raise UsageError("its rule allows only edits, and a node's input has none.")
    return replace(rule, decisions=decisions)


def _named(function: ApprovalPolicy) -> tuple[str, str]:
    """Return a function's name, and a hash of its source: people see which version returned a rule."""
    code: Any = function
    if not hasattr(function, "__qualname__"):
        code = getattr(function, "func", type(function))
    name = f"{code.__module__}:{code.__qualname__}"
    try:
        text = inspect.getsource(code)
    except (OSError, TypeError):
        text = getattr(getattr(code, "__code__", None), "co_code", b"").hex()
    return name, digests.digest("policy-source", {"name": name, "source": text})


def wants_no_more(rule_now: Rule, met: Rule) -> bool:
    """Return whether a decision by the rule `met` satisfies `rule_now`: in who, how many and how sure.

    Title, reason and policy don't matter. Any other difference must leave the votes already given
    just as valid; a difference that can't be compared that way counts as wanting more.
    """
    if len(rule_now.steps) != len(met.steps) or bool(rule_now.stages) != bool(met.stages):
        return False
    return _covers(rule_now, met) and all(map(_covers, rule_now.steps, met.steps))


def _covers(rule_now: Rule, met: Rule) -> bool:
    now = rule_now.frozen()
    had = met.frozen()
    return (
        ({*had["eligible"]} <= {*now["eligible"]} or "anyone" in now["eligible"])
        and {*now["exclude"]} <= {*had["exclude"]}
        and rule_now.need <= met.need
        and now["weights"] == had["weights"]
        and rule_now.veto in {None, met.veto}
        and _kinds(met) <= _kinds(rule_now)
        and _is_as_sure(rule_now, met)
        and set(met.decisions) <= set(rule_now.decisions)
        and rule_now.edit == met.edit
        and met.delegate >= rule_now.delegate  # as texts, "anyone" < "group" < "none"
        and (
            not met.escalate
            or (had["escalate"], met.calendar) == (now["escalate"], rule_now.calendar)
        )
        and rule_now.use_within >= met.use_within
    )


def _kinds(rule: Rule) -> set[str]:
    return set(filter(rule.counts, KINDS))


def _is_as_sure(rule_now: Rule, met: Rule) -> bool:
    auth = rule_now.auth
    had = met.auth
    return (
        auth.level <= had.level
        and (auth.max_age is None or (had.max_age is not None and had.max_age <= auth.max_age))
        and auth.acr in {None, had.acr}
    )
