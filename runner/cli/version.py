"""`runner version`: what is installed."""

from __future__ import annotations

import platform

import click

from runner.cli.session import Session, pass_session, shared

DISTRIBUTION = "celery-graph-runner"
BESIDE = ("celery", "kombu", "redis")


@click.command()
@shared
@pass_session
def version(session: Session) -> None:
    """Show what is installed."""
    from importlib import metadata

    found = {"version": metadata.version(DISTRIBUTION), "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in BESIDE}
    if session.output.as_json:
        session.output.data(found)
    else:
        session.output.lines([(DISTRIBUTION, found.pop("version")), *found.items()])
