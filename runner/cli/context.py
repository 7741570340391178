"""The context of the commands of one call: common options, and the settings and store behind them."""

from __future__ import annotations

import functools
import getpass
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import click

from runner.cli.arguments import add_options, full_interrupt_id, full_run_id
from runner.cli.output import Output

if TYPE_CHECKING:
    from runner.client import Client
    from runner.operations.installation import Installation
    from runner.settings import Settings
    from runner.store.interface import Store


FLAGS = ("redis_url", "namespace", "graphs")
"""Settings that options, or the app of `celery runner`, can set."""


@dataclass
class CommandContext:
    """The values of the common options. The store is opened by the first command that needs it."""

    as_json: bool = False
    redis_url: str | None = None
    namespace: str | None = None
    graphs: str | None = None
    debug: bool = False

    @cached_property
    def output(self) -> Output:
        """The command's stdout and stderr."""
        return Output(as_json=self.as_json)

    @property
    def flags(self) -> dict[str, Any]:
        """The settings that options have set."""
        return {name: value for name in FLAGS if (value := getattr(self, name)) is not None}

    @cached_property
    def settings(self) -> Settings:
        """The settings: flags first, then the environment and the files."""
        from runner.settings import Settings

        return Settings(**self.flags)

    @cached_property
    def installation(self) -> Installation:
        """The store, with the parts that people manage."""
        from runner.operations.installation import Installation

        return Installation(self.settings)

    @cached_property
    def client(self) -> Client:
        """The client of the store. Graphs are imported only with --graphs, because that may take long."""
        from runner.client import Client

        if self.graphs:
            self.load_graphs()
        import_from_here()  # the module of RUNNER_DIRECTORY may be here
        return Client(store=self.installation.store)

    @property
    def store(self) -> Store:
        """The store itself, for operations that a client doesn't offer."""
        return self.client.engine.store

    @property
    def user(self) -> str:
        """The login name of the command's user; "" if the system has none."""
        try:
            return getpass.getuser()
        except (OSError, KeyError):
            return ""

    def load_graphs(self) -> None:
        """Import the modules of RUNNER_GRAPHS, from the current folder as a worker does.

        Raises:
            DefinitionError: a module can't be imported.
        """
        from runner.definition.registry import load

        import_from_here()
        load(self.settings.graphs)

    def become(self, *command: str) -> NoReturn:
        """Replace this process with a Python module; it gets the flags as environment variables."""
        os.environ.update(self.environment())
        os.execv(sys.executable, [sys.executable, "-m", *command])  # noqa: S606 - a list, and no shell

    def environment(self) -> dict[str, str]:
        """Return the flags as environment variables, for the programs that this one starts."""
        return {f"RUNNER_{name}".upper(): value for name, value in self.flags.items()}


def import_from_here() -> None:
    """Make modules of the current folder importable, as a worker does."""
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds texts
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above


def _store_option(context: click.Context, parameter: click.Parameter, value: object) -> None:
    # The same option may stand before the command and after it; the later one counts.
    if value and parameter.name:
        setattr(context.ensure_object(CommandContext), parameter.name, value)


_stored: dict[str, Any] = {"expose_value": False, "callback": _store_option}

common_options = add_options(
    click.option(
        "--debug", is_flag=True, help="After an error, also print its traceback.", **_stored
    ),
    click.option(
        "--graphs",
        metavar="MODULES",
        help="Python modules that register your graphs, separated by commas (default: RUNNER_GRAPHS).",
        **_stored,
    ),
    click.option(
        "--redis-url",
        metavar="URL",
        help="Address of the store (default: RUNNER_REDIS_URL, or redis://127.0.0.1:6379/0).",
        **_stored,
    ),
    click.option(
        "--json", "as_json", is_flag=True, help="Write JSON, for programs.", **_stored
    ),
)
"""The options that every command and group has."""


pass_context = click.make_pass_decorator(CommandContext, ensure=True)


def with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to a command, and pass it the CommandContext as its first argument.

    A unique prefix of a run's or question's id is enough: the command gets the whole id.
    """

    @functools.wraps(function)
    def call(context: CommandContext, *arguments: Any, **values: Any) -> Any:
        for name, full_id in (("run_id", full_run_id), ("interrupt_id", full_interrupt_id)):
            if values.get(name):
                values[name] = full_id(context.client, values[name])
        return function(context, *arguments, **values)

    return common_options(pass_context(call))
