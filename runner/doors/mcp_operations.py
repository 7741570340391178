"""The MCP server's tools beside the graphs' tools: routes of the API, with their permissions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any

from runner.approvals.rules import DECISIONS, SERVICE
from runner.doors.questions import permit
from runner.errors import needs_extra
from runner.immutable import immutable
from runner.records.codec import JSONMapping, JSONObject
from runner.records.run import FINAL, Status, outermost
from runner.records.validation import MAX_REASON, MAX_TEXT, violation

with needs_extra("server", "the MCP server"):
    from fastapi import Response

    from runner.server.access import Permission, Person
    from runner.server.answers import seen_document
    from runner.server.api import graphs, questions, runs
    from runner.server.api.documents import checked_cursor
    from runner.server.problems import Problem
    from runner.server.services import Services


@immutable
class ApiTool:
    """A tool beside the graphs' tools: it calls a route of the API, with the route's permission."""

    description: str
    permission: Permission
    call: Callable[..., Any]
    required: JSONMapping = field(default_factory=dict)
    optional: JSONMapping = field(default_factory=dict)
    writes: bool = False

    @property
    def form(self) -> JSONObject:
        """The schema of the arguments."""
        return {
            "type": "object",
            "properties": {**self.required, **self.optional},
            "required": [*self.required],
            "additionalProperties": False,
        }


def _cancel(person: Person, services: Services, run_id: str, reason: str = "") -> Any:
    return runs.cancel(run_id, person, services, runs.Reason(reason=reason))


def _vote(
    person: Person, services: Services, question_id: str, digest: str, **decision: Any
) -> Any:
    # A model calls the tool, whatever the login, so the vote never counts as a person's.
    agent = replace(person.principal, kind="agent")
    person = replace(
        person, principal=agent, level=min(person.level, SERVICE), login_at=None, acr=None
    )
    return questions.vote(
        question_id, questions.VoteRequest(**decision), person, services, digest
    )


TEXT = {"type": "string", "maxLength": MAX_TEXT}

LONG_TEXT = {"type": "string", "maxLength": MAX_REASON}

RUN_STATUSES = (Status.EXECUTING, Status.INTERRUPTED, Status.NEEDS_MIGRATION, *sorted(FINAL))

LISTED = {
    "graph": TEXT,
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "cursor": {**TEXT, "description": "`next` of the page before"},
}

OPERATIONS = {
    "graphs_list": ApiTool("List the graphs that workers have.", "see", graphs.list_graphs),
    "runs_list": ApiTool(
        "List runs, newest first.",
        "see",
        runs.list_runs,
        optional={**LISTED, "status": {"enum": [str(status) for status in RUN_STATUSES]}},
    ),
    "runs_show": ApiTool(
        "Show a run: its nodes, its open questions and its output.",
        "see",
        lambda _, services, run_id: runs.shown_run(services, run_id),
        {"run_id": TEXT},
    ),
    "questions_list": ApiTool(
        "List open questions, oldest first; with `mine` only the caller's.",
        "see",
        questions.list_questions,
        optional={**LISTED, "run": TEXT, "mine": {"type": "boolean"}},
    ),
    "questions_show": ApiTool(
        "Show a question with its votes, and the digest to give in a vote.",
        "see",
        partial(questions.show, response=Response()),
        {"question_id": TEXT},
    ),
    "runs_cancel": ApiTool(
        "Stop a run.", "operate", _cancel, {"run_id": TEXT}, {"reason": LONG_TEXT}, writes=True
    ),
    "questions_vote": ApiTool(
        "Vote on a question as an agent; a rule for people doesn't count the vote.",
        "decide",
        _vote,
        {"question_id": TEXT, "digest": TEXT, "decision": {"enum": [*DECISIONS]}},
        {"response": {}, "variant": TEXT, "comment": LONG_TEXT},
        writes=True,
    ),
}


def operate(services: Services, person: Person, operation: ApiTool, values: JSONMapping) -> Any:
    """Call a tool with the caller's roles for the graph of the run or question, if it names one."""
    check(operation.form, values)
    checked_cursor(values.get("cursor"))
    if "limit" in values:  # 20.0 is an integer in JSON
        values = {**values, "limit": int(values["limit"])}
    if named := values.get("run_id") or values.get("question_id"):
        person = permit(person, operation.permission, services.graph_of(named))
    elif operation.call is not graphs.list_graphs:  # it leaves out other people's graphs itself
        person = permit(person, operation.permission, outermost(values.get("graph", "")))
    return seen_document(person, operation.call(person, services=services, **values))


def check(form: JSONMapping, values: JSONMapping) -> None:
    """Raise a `Problem` if arguments don't fit a form."""
    path, fault = violation(form, dict(values))
    if fault:
        raise Problem(422, f"arguments{''.join(f'[{key!r}]' for key in path or ())}: {fault}")
