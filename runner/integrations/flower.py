"""A configuration file for Flower: the page of a node's task links the page of its run.

`celery --app … flower --conf=$(python -m runner.integrations.flower)`. Flower has no plugins: this
puts a handler in front of those in its `urls` module before Flower builds its application from them.
That list is internal to Flower, and works in 2.0 to 2.2; tests/celery/test_flower.py looks at the
pages of the real Flower.
"""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

from runner.errors import needs_extra
from runner.settings import Settings

with needs_extra("flower", "links from Flower to the pages"):
    from flower import urls
    from flower.views.tasks import TaskView


def page_of(task_id: str) -> str:
    """Return the address of a run's page with a task's node; "" if the task isn't a node's."""
    run_id, _, node_part = task_id.removesuffix(".task").partition(".")
    node = node_part.rpartition(".")[0].rpartition(".")[0]
    return (
        Settings().page(f"/runs/{quote(run_id, safe='')}?node={quote(node)}#node")
        if node
        else ""
    )


class TaskPage(TaskView):  # type: ignore[misc] # Flower has no types
    """Flower's page of a task, with the link before the task's id."""

    def finish(self, chunk: Any = None) -> Any:
        """Send the page."""
        if isinstance(chunk, bytes) and (page := page_of(self.path_args[0])):
            link = f'<p><a href="{escape(page)}">The run and this node in runner</a></p>'
            mark = b'<p id="taskid"'
            chunk = chunk.replace(mark, link.encode() + mark, 1)
        return super().finish(chunk)


if __name__ == "__main__":
    print(__file__)  # noqa: T201 - for --conf
else:
    urls.handlers.insert(0, (r"/task/(.+)", TaskPage))
