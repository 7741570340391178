"""A notice of what has happened to a run or a question, for other systems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.approvals.titles import filled


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice; `entry` is its place in the stream, `at` milliseconds, `question` as it was asked.

    `reminded` counts the reminders of a question, this one included; 0 where it is none. `data` is what
    a person did to a question with a rule.
    """

    entry: str
    id: str
    kind: str
    run_id: str
    node: str
    visit: int
    detail: str
    at: int
    question: Any = None
    reminded: int = 0
    data: Any = None

    def message(self) -> dict[str, Any]:
        """Return it as the JSON message that other systems get."""
        details = {
            name: getattr(self, name)
            for name in ("id", "kind", "run_id", "node", "visit", "detail")
        }
        count = {"reminded": self.reminded} if self.reminded else {}
        data = {} if self.data is None else {"data": self.data}
        question = self.question
        if template := ((question or {}).get("rule") or {}).get("title"):
            args = (question.get("action") or {}).get("args", {})
            question = {**question, "title": filled(template, args)}
        return {"v": 1, **details, "at": self.at, "question": question, **count, **data}
