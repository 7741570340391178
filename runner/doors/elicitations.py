"""Questions as MCP elicitations: forms or links to their pages, whichever a client can show."""

from __future__ import annotations

from runner.doors import flat_forms
from runner.doors.flat_forms import decision_of
from runner.doors.questions import message, page_message, page_of
from runner.errors import needs_extra
from runner.immutable import immutable
from runner.operations.questions import QuestionView
from runner.records.codec import JSONMapping, JSONObject
from runner.records.interrupts import Decision, Receipt

with needs_extra("server", "the MCP server"):
    from runner.server.access import Person

with needs_extra("mcp", "the MCP server"):
    import mcp_types as types


@immutable
class Caller:
    """A caller, the address where they open pages, and the elicitations their client can show."""

    person: Person
    address: str
    forms: bool = False
    links: bool = False

    def page(self, question_id: str) -> str:
        """Return the address of a question's page, or "" if no address is known."""
        return page_of(self.address, question_id)


@immutable
class Elicitation:
    """A question to a client, as a form or a link to its page."""

    question: QuestionView
    request: JSONObject

    def decision(self, response: types.ElicitResult) -> Decision | Receipt | None:
        """Return a person's decision, None if they made none, or the receipt of an unusable one."""
        if self.request["mode"] == "url" or response.action == "cancel":
            return None
        if response.action == "accept":
            return decision_of(self.question, response.content or {})
        if "reject" not in (self.question.rule or {}).get("decisions", ()):
            return None  # a question that no one can reject stays open
        return decision_of(self.question, {"decision": "reject", "reason": "declined"})


def request_of(params: JSONMapping) -> JSONObject:
    """Wrap an elicitation's parameters in a request for a client."""
    return {"method": "elicitation/create", "params": params}


def elicitation_of(caller: Caller, question: QuestionView) -> Elicitation | None:
    """Return a question as a form or a link for a client; None if it can show neither."""
    form, text, page = flat_forms.form(question), message(question), caller.page(question.id)
    if form is not None and caller.forms:
        text += f"\n\nMore: {page}" if page else ""
        return Elicitation(question, {"mode": "form", "message": text, "requestedSchema": form})
    if not (page and caller.links):
        return None
    return Elicitation(
        question, {"mode": "url", "message": page_message(question), "url": page}
    )
