"""Approval rules: who may decide a question, how many must, and how their identity is proven."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.lazy_names import lazy_names

if TYPE_CHECKING:
    from runner.approvals.absences import absence_body
    from runner.approvals.calendars import Calendar, add_calendar
    from runner.approvals.decision_keys import SigningKey
    from runner.approvals.digests import Action
    from runner.approvals.directory import Directory
    from runner.approvals.policies import CallContext
    from runner.approvals.rules import DAY, HOUR, Approval, Auth, Grants, Principal, Rule
    from runner.records.messages import operation_body, start_body, vote_body

__all__ = [
    "DAY",
    "HOUR",
    "Action",
    "Approval",
    "Auth",
    "Calendar",
    "CallContext",
    "Directory",
    "Grants",
    "Principal",
    "Rule",
    "SigningKey",
    "absence_body",
    "add_calendar",
    "operation_body",
    "start_body",
    "vote_body",
]

__getattr__ = lazy_names(
    __name__,
    {
        "runner.approvals.absences": ("absence_body",),
        "runner.approvals.calendars": ("Calendar", "add_calendar"),
        "runner.approvals.decision_keys": ("SigningKey",),
        "runner.approvals.digests": ("Action",),
        "runner.approvals.directory": ("Directory",),
        "runner.approvals.policies": ("CallContext",),
        "runner.approvals.rules": (
            "DAY",
            "HOUR",
            "Approval",
            "Auth",
            "Grants",
            "Principal",
            "Rule",
        ),
        "runner.records.messages": ("operation_body", "start_body", "vote_body"),
    },
)
