"""Rules of approvals: who may decide a question, how many, and how sure it must be who they are."""

from runner.definition.calendars import add_calendar
from runner.execution.decision_keys import SigningKey
from runner.operations.directory import Directory
from runner.records.approvals import DAY, HOUR, Approval, Auth, Principal, Rule
from runner.records.calendars import Calendar
from runner.records.digests import Action
from runner.records.messages import operation_body, start_body, vote_body

__all__ = [
    "DAY",
    "HOUR",
    "Action",
    "Approval",
    "Auth",
    "Calendar",
    "Directory",
    "Principal",
    "Rule",
    "SigningKey",
    "add_calendar",
    "operation_body",
    "start_body",
    "vote_body",
]
