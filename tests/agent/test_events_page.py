"""The page about events says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from runner import hooks

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "events.md"
PARENTS = {"HookEvent", "AgentEvent", "GraphEvent"}


def test_the_tables_list_every_event_with_its_writable_attributes_and_direction() -> None:
    """Each event has one row; what the row calls writable or reversed is so."""
    rows = re.findall(r"^\| `(\w+Event)` (↩ )?\|([^|]*)\|([^|]*)\|", PAGE.read_text("utf-8"), re.MULTILINE)
    events = {
        name: kind for name, kind in vars(hooks).items() if name.endswith("Event") and name not in PARENTS
    }
    assert sorted(name for name, *_ in rows) == sorted(events)
    for name, arrow, _, writable in rows:
        assert set(re.findall(r"`(\w+)`", writable)) == events[name].writable, name
        assert bool(arrow) == events[name].reverse, name


def test_the_example_of_the_page_runs() -> None:
    """The provider on the page can be registered."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)  # noqa: S102 - the page's own example
    registry = hooks.HookRegistry([names["Review"]()])
    assert len(registry.callbacks_for(hooks.AfterToolCallEvent)) == 1
