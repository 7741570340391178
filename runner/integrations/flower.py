"""A configuration file for Flower: its address `/graph/TASK` leads to the page of a task's run.

`celery --app … flower --conf=$(python -m runner.integrations.flower)`. Flower has no plugins: this
adds a handler to the list in its `urls` module before Flower builds its application from it. That
list is internal to Flower, and works in 2.0 to 2.2; tests/server/test_run_page.py follows a link
through the real Flower.
"""

from __future__ import annotations

from urllib.parse import quote

from runner.errors import needs_extra
from runner.settings import Settings

with needs_extra("flower", "links from Flower to the pages"):
    from flower import urls
    from tornado.web import HTTPError, RequestHandler


class RunPage(RequestHandler):
    """Redirects to a run's page, with the task's node beside it."""

    def get(self, task_id: str) -> None:
        run_id, _, node_part = task_id.partition(".")
        node = node_part.rpartition(".")[0].rpartition(".")[0]
        page = Settings().page(f"/runs/{quote(run_id, safe='')}?node={quote(node)}#node")
        if not (page and node):
            raise HTTPError(404, "set RUNNER_SERVER_URL, and name a task of a node")
        self.redirect(page)


if __name__ == "__main__":
    print(__file__)  # noqa: T201 - for --conf
else:
    urls.handlers.insert(
        len(urls.handlers) - 1, (r"/graph/(.*)", RunPage)
    )  # before the catch-all handler
