"""A notice of an event of a run or a question, for other systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from runner.approvals.titles import filled
from runner.immutable import immutable
from runner.records.codec import JSONMapping, JSONObject


@immutable
class Notice:
    """One notice; `entry` is its place in the stream, `at` is in ms, `question` is as it was asked.

    If the notice is a reminder, `reminded` counts the question's reminders including this one, else
    it is 0. `data` describes a person's action on a question with a rule.
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

    def message(self) -> JSONObject:
        """Return the JSON message that other systems get."""
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


def completed(
    message: JSONMapping,
    tags: Callable[[str], Mapping[str, str]],
    page: Callable[[str], str],
) -> JSONObject:
    """Add the run's tags and page address, which the stream lacks, to a message that is sent.

    `tags` reads the tags of a run, and `page` makes a page's address from its path, or returns "".
    """
    run_id = message.get("run_id")
    if not run_id:
        return dict(message)
    is_question = message["kind"].startswith("interrupt.")
    url = page(
        f"/q/{quote(message['detail'], safe='')}" if is_question else f"/runs/{quote(run_id)}"
    )
    return {**message, "tags": dict(tags(run_id)), **({"url": url} if url else {})}
