"""The sources of settings, and names there that aren't settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values

from runner.records.validation import similar
from runner.settings import SECRETS, Settings

PREFIX = "RUNNER_"


def unknown_settings() -> list[str]:
    """List the names that look like settings and are not, with the probably intended name."""
    setting_names = [*Settings.model_fields, *(f"{name}_file" for name in SECRETS)]
    variables = [f"{PREFIX}{name.upper()}" for name in setting_names]
    problems = []
    for source, names in sources().items():
        for name in sorted(set(names) - set(setting_names)):
            variable = f"{PREFIX}{name.upper()}"
            advice = similar(variable, variables)
            problems.append(f"{variable} ({source}) is not a setting{advice and '.'}{advice}")
    return problems


def sources() -> dict[str, Mapping[str, Any]]:
    """Return the names and values of each source except the flags, the strongest first."""
    return {
        "environment": _prefixed(os.environ),
        ".env": _prefixed(dotenv_values(".env")),
        "pyproject.toml": _pyproject(),
    }


def _prefixed(variables: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in variables.items()
        if name.upper().startswith(PREFIX)
    }


def _pyproject() -> dict[str, Any]:
    try:
        content = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return {}
    section = content.get("tool", {}).get("runner", {})
    return section if isinstance(section, dict) else {}
