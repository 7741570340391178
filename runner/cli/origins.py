"""Where each setting comes from, and which names of settings nobody knows."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.cli.session import Session

PREFIX = "RUNNER_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as it counts now; `origin` is flag, environment, .env, pyproject.toml or default."""

    name: str
    value: Any
    origin: str


def origins(session: Session) -> list[Setting]:
    """List all settings with where each comes from."""
    given = {name: True for name in ("redis_url", "graphs") if getattr(session, name) is not None}
    places: dict[str, Mapping[str, Any]] = {"flag": given, **_places()}

    def origin(name: str) -> str:
        return next((place for place, known in places.items() if name in known), "default")

    settings = session.settings
    return [
        Setting(f"{PREFIX}{name}".upper(), getattr(settings, name), origin(name))
        for name in type(settings).model_fields
    ]


def unknown() -> list[str]:
    """Say which names look like settings and are none, with what was probably meant."""
    from runner.settings import Settings

    known = list(Settings.model_fields)
    found = []
    for place, given in _places().items():
        for name in sorted(set(given) - set(known)):
            near = difflib.get_close_matches(name, known, 1)
            meant = f"; {PREFIX}{near[0].upper()}?" if near else ""
            found.append(f"{PREFIX}{name.upper()} ({place}) is no setting{meant}")
    return found


def _places() -> dict[str, Mapping[str, Any]]:
    return {"environment": _ours(os.environ), ".env": _dotenv(), "pyproject.toml": _pyproject()}


def _ours(given: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        name[len(PREFIX) :].lower(): value for name, value in given.items() if name.upper().startswith(PREFIX)
    }


def _dotenv() -> dict[str, Any]:
    from dotenv import dotenv_values

    return _ours(dotenv_values(".env")) if Path(".env").is_file() else {}


def _pyproject() -> dict[str, Any]:
    try:
        told = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}
    section = told.get("tool", {}).get("runner", {})
    return section if isinstance(section, dict) else {}
