"""The context of the commands of one call: common options, and the settings and store behind them."""

from __future__ import annotations

import functools
import getpass
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import click

from runner.cli.arguments import add_options, flag, full_interrupt_id, full_run_id, option
from runner.cli.output import Output
from runner.store.addresses import without_password

if TYPE_CHECKING:
    from runner.client import Client
    from runner.definition.registry import Registry
    from runner.operations.installation import Installation
    from runner.settings import Settings
    from runner.store.interface import Store


FLAGS = ("redis_url", "namespace", "graphs")
"""Settings that options, or the app of `celery runner`, can set."""


@dataclass
class CommandContext:
    """The values of the common options. The store is opened by the first command that needs it.

    `program` is this program as it was called, with the store's option but no password.
    """

    as_json: bool = False
    redis_url: str | None = None
    namespace: str | None = None
    graphs: str | None = None
    debug: bool = False
    program: str = "runner"

    @cached_property
    def output(self) -> Output:
        """The command's stdout and stderr."""
        return Output(as_json=self.as_json, program=self.program)

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

    def load_graphs(self) -> Registry:
        """Import the modules of RUNNER_GRAPHS, from the current folder as a worker does; return their graphs.

        Raises:
            DefinitionError: a module can't be imported.
        """
        from runner.definition.registry import load, registry

        import_from_here()
        load(self.settings.graphs)
        return registry

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
        values = context.ensure_object(CommandContext)
        setattr(values, parameter.name, value)
        if parameter.name == "redis_url":
            with suppress(ValueError):  # the settings refuse a malformed one
                values.program += f" --redis-url {shlex.quote(without_password(str(value)))}"


_stored: dict[str, Any] = {"expose_value": False, "callback": _store_option}

common_options = add_options(
    flag("--debug", "After an error, also print its traceback.", **_stored),
    option(
        "--graphs MODULES",
        "Python modules that register your graphs, separated by commas (default: RUNNER_GRAPHS).",
        **_stored,
    ),
    option(
        "--redis-url URL",
        "Address of the store (default: RUNNER_REDIS_URL, or redis://127.0.0.1:6379/0).",
        **_stored,
    ),
    flag("--json", "as_json", "Write JSON, for programs.", **_stored),
)
"""The options that every command and group has."""


def group(function: Callable[[], None]) -> click.Group:
    """Make a group of commands, with the common options."""
    return click.group()(common_options(function))


pass_context = click.make_pass_decorator(CommandContext, ensure=True)


def command(
    parent: click.Group | None = None, name: str | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command, of a group if one is given, with the common options.

    It gets the CommandContext as its first argument. A unique prefix of a run's or question's id is enough:
    the command gets the whole id.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        own_options = function.__dict__.pop("__click_params__", [])

        @pass_context
        @functools.wraps(function)
        def call(context: CommandContext, *arguments: Any, **values: Any) -> Any:
            for key, full_id in (("run_id", full_run_id), ("interrupt_id", full_interrupt_id)):
                if values.get(key):
                    values[key] = full_id(context.client, values[key])
            return function(context, *arguments, **values)

        vars(common_options(call))["__click_params__"] += own_options
        return (parent or click).command(name, **settings)(call)

    return make
