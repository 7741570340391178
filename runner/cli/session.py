"""What every command of one call shares: the options that all have, and what they lead to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.cli.output import Output

if TYPE_CHECKING:
    from runner.client import Client
    from runner.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Session:
    """The options that every command has; the store is opened when a command needs it."""

    as_json: bool = False
    redis_url: str | None = None
    graphs: str | None = None
    debug: bool = False

    @cached_property
    def output(self) -> Output:
        """Where the command writes."""
        return Output(as_json=self.as_json)

    @cached_property
    def settings(self) -> Settings:
        """The settings: flags first, then the environment and the files."""
        from runner.settings import Settings

        given: dict[str, Any] = {"redis_url": self.redis_url, "graphs": self.graphs}
        return Settings(**{name: value for name, value in given.items() if value is not None})

    @cached_property
    def client(self) -> Client:
        """The way to the store. Graphs are imported only when --graphs asks for it: that may take long."""
        from runner.client import Client

        if self.graphs:
            self.load_graphs()
        return Client(redis_url=self.settings.redis_url, broker_url=self.settings.broker_url)

    def load_graphs(self) -> None:
        """Import the modules of RUNNER_GRAPHS, from the current folder as a worker does.

        Raises:
            DefinitionError: one can't be imported.
        """
        from runner.registry import load

        if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds texts
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
        load(self.settings.graphs)

    def environment(self) -> dict[str, str]:
        """Name the flags as the environment does, for programs that this one starts."""
        given = {"RUNNER_REDIS_URL": self.redis_url, "RUNNER_GRAPHS": self.graphs}
        return {name: value for name, value in given.items() if value is not None}


pass_session = click.make_pass_decorator(Session, ensure=True)


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    # The same option may stand before the command and after it; the later one counts.
    if value and parameter.name:
        setattr(context.ensure_object(Session), parameter.name, value)


def shared(command: Command) -> Command:
    """Give a command the options that all commands have."""
    kept: dict[str, Any] = {"expose_value": False, "callback": _keep}
    for option in (
        click.option("--debug", is_flag=True, help="After an error, show where it came from.", **kept),
        click.option(
            "--graphs",
            metavar="MODULES",
            help="Python modules that have your graphs, separated by commas; else RUNNER_GRAPHS.",
            **kept,
        ),
        click.option(
            "--redis-url",
            metavar="URL",
            help="Address of the store; else RUNNER_REDIS_URL, else redis://127.0.0.1:6379/0.",
            **kept,
        ),
        click.option("--json", "as_json", is_flag=True, help="Write JSON, for programs.", **kept),
    ):
        command = option(command)
    return command
