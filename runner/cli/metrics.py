"""`runner metrics`: numbers for Prometheus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from runner.cli.session import Session, pass_session, shared

if TYPE_CHECKING:
    from runner.store.gauges import Gauge


@click.command()
@shared
@pass_session
def metrics(session: Session) -> None:
    """Write numbers about runs, questions and workers for Prometheus.

    Prometheus is a widely used monitoring program. The format is its text format; the numbers are the
    store's, so one program asks for all workers. A program like the node exporter can read them from a
    file:

    \b
      runner metrics > runner.prom.new && mv runner.prom.new runner.prom
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from runner.store.gauges import gauges

    found = gauges(session.settings.redis_url)
    if session.output.as_json:
        shown = [{"name": each.name, "labels": dict(each.labels), "value": each.value} for each in found]
        session.output.data({"metrics": shown})
        return
    told: set[str] = set()
    for each in found:
        if each.name not in told:
            click.echo(f"# HELP {each.name} {each.help}\n# TYPE {each.name} gauge")
        told.add(each.name)
        click.echo(f"{each.name}{_labels(each)} {each.value:g}")


def _labels(gauge: Gauge) -> str:
    shown = ",".join(f"{name}={json.dumps(value)}" for name, value in gauge.labels.items())
    return f"{{{shown}}}" if shown else ""
