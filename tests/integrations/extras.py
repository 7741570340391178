"""Tests of an extra are skipped, and say so, where it isn't installed; on CI that is a failure."""

from __future__ import annotations

import importlib

from runner.testing.plugin import absent


def need(module: str, extra: str) -> None:
    """Skip the test module that calls this, unless the extra is installed."""
    try:
        importlib.import_module(module)
    except ImportError as missing:
        absent(
            f"the extra `{extra}` is not installed: pip install 'celery-graph-runner[{extra}]' ({missing})"
        )
