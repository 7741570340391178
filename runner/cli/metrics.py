"""`runner metrics`: numbers for Prometheus."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from runner.cli.context import CommandContext, with_context

if TYPE_CHECKING:
    from runner.store.redis.server_info import Metric


@click.command()
@with_context
def metrics(context: CommandContext) -> None:
    """Write metrics of runs, questions and workers for Prometheus.

    The format is the text format of Prometheus, a widely used monitoring program. The numbers are read
    from the store, so one process reports for all workers. A textfile collector such as that of the
    node exporter can read them from a file:

    \b
      runner metrics > runner.prom.new && mv runner.prom.new runner.prom
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from runner.store.redis.server_info import read_metrics

    numbers = read_metrics(context.settings.redis_url)
    if context.output.as_json:
        context.output.data({"metrics": numbers})
        return
    described: set[str] = set()
    for metric in numbers:
        family, kind = (metric.family, "histogram") if metric.family else (metric.name, "gauge")
        if family not in described:
            click.echo(f"# HELP {family} {metric.help}\n# TYPE {family} {kind}")
        described.add(family)
        click.echo(f"{metric.name}{_labels(metric)} {metric.value:g}")


def _labels(metric: Metric) -> str:
    labels = ",".join(f"{name}={json.dumps(value)}" for name, value in metric.labels.items())
    return f"{{{labels}}}" if labels else ""
