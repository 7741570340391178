"""`runner api`: requests of the HTTP API, answered in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.cli.arguments import by_option, option, read_json
from runner.cli.context import CommandContext, command, import_from_here
from runner.cli.exits import CommandError, Exit
from runner.cli.output import visible
from runner.errors import UsageError, needs_extra
from runner.records.codec import JSONObject

if TYPE_CHECKING:
    from httpx import Response

CODES = {
    403: Exit.NOT_ALLOWED,
    404: Exit.NOT_FOUND,
    409: Exit.CONFLICT,
    412: Exit.CONFLICT,
    429: Exit.CONFLICT,
    503: Exit.UNREACHABLE,
}
"""Exit codes by status, as other commands have them for the same errors."""


@command()
@click.argument(
    "method",
    metavar="METHOD",
    type=click.Choice(["GET", "POST", "PUT", "DELETE"], case_sensitive=False),
)
@click.argument("path")
@option("--data JSON", "The body: JSON, @file, or - for standard input (default: none).")
@option(
    "--header NAME VALUE",
    "headers",
    "A header of the request, such as If-Match; may be repeated.",
    type=(str, str),
    multiple=True,
)
@by_option
def api(
    context: CommandContext,
    *,
    method: str,
    path: str,
    data: str | None,
    headers: tuple[tuple[str, str], ...],
    by: str,
) -> None:
    """Send a request to the HTTP API, and write its answer.

    No server has to run: the command answers the request itself, on the store of the settings. The user who
    runs it, or `--by`, is the caller, with all roles. `runner api GET /openapi.json` describes the API. The
    extra `server` is needed: pip install 'celery-graph-runner[server]'.

    The answer is JSON: indented on a terminal, one line without one. A list has `items`, and `next` for
    `?cursor=`. A refused request is an error on stderr, with the place in the body. /v1/events never ends:
    follow a run by `runner runs watch`.

    \b
    Examples:
      runner api GET '/v1/runs?limit=5'
      runner api POST /v1/schedules --data '{"id": "poll", "graph": "inbox", "interval": 300}'
      runner api POST /v1/schedules/poll:pause
      runner api DELETE /v1/webhooks/chat
      runner api POST /v1/questions/ID:delegate --by ana --data '{"to": "ben"}'
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    import asyncio

    request: JSONObject = {"headers": dict(headers)}
    if data is not None:
        request["json"] = read_json(data, "--data")
    response = asyncio.run(_answer(context, method, path, request, by))
    media_type = response.headers.get("content-type", "").partition(";")[0]
    is_json = bool(response.content) and media_type.endswith("json")
    if response.is_error:
        status = response.status_code
        problem = response.json() if is_json else {"detail": response.text}
        raise CommandError(
            CODES.get(status, Exit.USAGE if status < 500 else Exit.INTERNAL_ERROR),
            f"{problem.get('title', status)}: {problem['detail']}",
        )
    if not is_json:
        click.echo(visible(response.text), nl=False)
    elif context.output.is_terminal:
        context.output.data(response.json())
    else:
        context.output.event(response.json())


async def _answer(
    context: CommandContext, method: str, path: str, request: JSONObject, by: str
) -> Response:
    with needs_extra("server", "the HTTP API and the pages"):
        import httpx

    from runner.approvals.rules import Principal
    from runner.server import Person, create_app
    from runner.server.access import GRANTS

    import_from_here()
    person = Person(Principal.read(by or "operator"), frozenset(GRANTS))
    app = create_app(context.settings, lambda _: person)
    app.state.services.workers.now()  # a store that is away is the error of other commands, too
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        try:
            return await client.request(method, path, **request)
        except httpx.InvalidURL as error:
            raise UsageError(f"the path {path!r} can't be used: {error}") from error
