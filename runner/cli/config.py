"""`runner config`: the effective settings, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.cli.arguments import flag
from runner.cli.context import CommandContext, command, group
from runner.immutable import immutable
from runner.store.addresses import without_password


@immutable
class Setting:
    """An effective setting; `origin` is flag, environment, .env, pyproject.toml or default."""

    name: str
    value: Any
    origin: str


@group
def config() -> None:
    """Show the settings and where each comes from."""


@command(config)
@flag("--origin", "with_origin", "Also show where each setting comes from.")
def show(context: CommandContext, *, with_origin: bool) -> None:
    """Show every effective setting, without passwords and secrets.

    The first of these that has a setting wins: a flag such as --redis-url, an environment variable such
    as RUNNER_REDIS_URL, the file .env of the current folder, [tool.runner] in its pyproject.toml, the
    default. Without a terminal: name, value and, with --origin, the source, separated by tabs.
    """
    from runner.operations.setting_sources import unknown_settings

    settings = effective_settings(context)
    columns = 3 if with_origin else 2
    rows = [
        (
            setting.name,
            ",".join(map(str, setting.value))
            if isinstance(setting.value, list)
            else str(setting.value),
            setting.origin,
        )[:columns]
        for setting in settings
    ]
    context.output.listing({"settings": settings}, ("NAME", "VALUE", "ORIGIN")[:columns], rows)
    for line in unknown_settings():
        context.output.note(f"Warning: {line}")


def effective_settings(context: CommandContext) -> list[Setting]:
    """List all settings with their origin, without passwords and secrets."""
    from runner.operations.setting_sources import PREFIX
    from runner.operations.setting_sources import sources as setting_sources

    sources: dict[str, Mapping[str, Any]] = {"flag": context.flags, **setting_sources()}
    variables = sources["environment"]
    sources["environment"] = {
        **variables,
        **{name.removesuffix("_file"): "" for name in variables},
    }
    values = {
        name: getattr(context.settings, name) for name in type(context.settings).model_fields
    }
    return [
        Setting(
            name=f"{PREFIX}{name}".upper(),
            value=_without_secret(name, value),
            origin=next(
                (source for source, names in sources.items() if name in names), "default"
            ),
        )
        for name, value in values.items()
    ]


def _without_secret(name: str, value: Any) -> Any:
    if name.endswith("_secret") or name in {"mcp_keys", "slack_token"}:
        return value and "***"
    if isinstance(value, list):
        return [_without_secret(name, entry) for entry in value]
    return without_password(value) if isinstance(value, str) and "://" in value else value
