"""An endpoint for a webhook: `python -m examples.notify slack`, or `mail`; --port names its port (8100).

WEBHOOK_SECRET is the `secret` of the new webhook, RUNNER_PAGES the address of the server's pages.
Slack needs SLACK_URL, a channel's incoming webhook; mail needs MAIL_HOST (host:port), MAIL_FROM and MAIL_TO.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any

from examples.notify import mail, slack
from examples.notify.endpoint import handler_for

Tell = Callable[[Mapping[str, Any]], None]


def by_slack(values: Mapping[str, str]) -> Tell:
    """Return what posts notices to a channel."""
    return partial(slack.post, pages=values["RUNNER_PAGES"], url=values["SLACK_URL"])


def by_mail(values: Mapping[str, str]) -> Tell:
    """Return what sends notices by e-mail."""
    host, _, port = values["MAIL_HOST"].partition(":")
    pages, addresses = values["RUNNER_PAGES"], (values["MAIL_FROM"], values["MAIL_TO"])

    def tell(notice: Mapping[str, Any]) -> None:
        if notice["question"]:  # it names those to whom it goes
            mail.send(mail.message(notice, pages, *addresses), host, int(port or 25))

    return tell


def main() -> int:
    """Serve until the process is stopped; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.notify", description=__doc__)
    parser.add_argument("by", choices=["slack", "mail"])
    parser.add_argument("--port", type=int, default=8100)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    try:
        tell = {"slack": by_slack, "mail": by_mail}[options.by](os.environ)
        handler = handler_for(os.environ["WEBHOOK_SECRET"], tell)
    except KeyError as error:
        sys.stderr.write(f"Set {error.args[0]}.\n")
        return 2
    server = ThreadingHTTPServer(("127.0.0.1", options.port), handler)
    print(f"notices are taken at http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
