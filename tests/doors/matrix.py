"""Who asks by which door it is answered: the list that the test runs, and that the docs show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Asker:
    """A graph of `askers.py`: its name in the docs, the answer (None approves a call), the run's output."""

    title: str
    response: Any
    output: str


ASKERS = {
    "function": Asker("a function", None, "function is paid"),
    "login": Asker("a function, of people who have logged in (level 2)", None, "login is paid"),
    "agent": Asker("a tool of `Agent`", None, "agent is paid"),
    "strands": Asker("a tool of Strands Agents", "yes", "strands is paid"),
    "pydantic_ai": Asker("a tool of Pydantic AI", True, "pay is pydantic_ai is paid"),
    "langgraph": Asker("`interrupt` of LangGraph", "yes", "langgraph is paid"),
    "langchain": Asker("the middleware of LangChain", None, "paid"),
    "openai_agents": Asker("a tool of the OpenAI Agents SDK", None, "openai_agents is paid"),
    "mcp_server": Asker("an MCP server", {"day": "Friday"}, "4 guests: accept Friday"),
    "mcp_task": Asker(
        "a task of an MCP server",
        {"day": "Friday"},
        'fish {"day": {"action": "accept", "content": {"day": "Friday"}}}',
    ),
}

DOORS = {
    "page": "[page](../how-to/server.md#the-pages)",
    "api": "[HTTP API](../how-to/server.md)",
    "command": "[command](cli.md)",
    "stream": "[stream](messages/README.md)",
    "task": "[Celery task](messages/README.md#from-a-celery-program)",
    "mcp": "[MCP](../how-to/mcp.md)",
    "agui": "[AG-UI](../how-to/ag-ui.md)",
    "slack": "[Slack](../how-to/slack.md)",
    "mail": "[e-mail](../how-to/email.md)",
}

NO_KEY = "needs a key that signs for whoever decides, such as the server's"
LOGIN = "shows a link: the login is the page's"
NESTED = "shows a link: the answer may be an object with objects inside"

ELSEWHERE = {
    ("login", "command"): NO_KEY,
    ("login", "stream"): NO_KEY,
    ("login", "task"): NO_KEY,
    ("login", "mcp"): LOGIN,
    ("login", "agui"): LOGIN,
    ("login", "slack"): LOGIN,
    ("login", "mail"): LOGIN,
    ("pydantic_ai", "mcp"): NESTED,
    ("pydantic_ai", "slack"): NESTED,
    ("pydantic_ai", "mail"): NESTED,
}
"""Where a door does not decide, and why: these are answered on the page."""


def page() -> str:
    """Write the table, with a number for each reason."""
    reasons = [*dict.fromkeys(ELSEWHERE.values())]

    def cell(asker: str, door: str) -> str:
        reason = ELSEWHERE.get((asker, door))
        return "yes" if reason is None else f"page ({reasons.index(reason) + 1})"

    alike: dict[tuple[str, ...], list[str]] = {}
    for name, kind in ASKERS.items():
        alike.setdefault(tuple(cell(name, door) for door in DOORS), []).append(kind.title)
    rows = [["", *DOORS.values()], ["---"] * (len(DOORS) + 1)]
    rows += [["; ".join(titles), *cells] for cells, titles in alike.items()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{HEAD}\n{table}\n\n" + "\n".join(
        f"{number}. {reason[0].upper()}{reason[1:]}."
        for number, reason in enumerate(reasons, 1)
    )


HEAD = """# Asked anywhere, answered anywhere

Who asks is in the rows, the [door](../how-to/which-door.md) of the answer in the columns. A test runs each
pair: the worker that asked is ended with `kill -9`, the person answers at the door, and another worker
continues. The answer counts once, the call is made once, and the digest shown at the door is the question's.
`docs/generate.py` writes this page from the test's list.
"""
