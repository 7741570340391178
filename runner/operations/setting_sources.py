"""Where settings come from, and names there that are no settings."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from runner.settings import SECRETS, Settings

PREFIX = "RUNNER_"


def unknown_settings() -> list[str]:
    """List the names that look like settings and are not, with what was probably meant."""
    setting_names = [*Settings.model_fields, *(f"{name}_file" for name in SECRETS)]
    problems = []
    for source, names in sources().items():
        for name in sorted(set(names) - set(setting_names)):
            similar = difflib.get_close_matches(name, setting_names, 1)
            advice = f"; did you mean {PREFIX}{similar[0].upper()}?" if similar else ""
            problems.append(f"{PREFIX}{name.upper()} ({source}) is not a setting{advice}")
    return problems


def sources() -> dict[str, Mapping[str, Any]]:
    """Return the names and values of each source but the flags, the strongest first."""
    return {
        "environment": _prefixed(os.environ),
        ".env": _dotenv(),
        "pyproject.toml": _pyproject(),
    }


def _prefixed(variables: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in variables.items()
        if name.upper().startswith(PREFIX)
    }


def _dotenv() -> dict[str, Any]:
    return _prefixed(dotenv_values(".env")) if Path(".env").is_file() else {}


def _pyproject() -> dict[str, Any]:
    try:
        content = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}
    section = content.get("tool", {}).get("runner", {})
    return section if isinstance(section, dict) else {}
