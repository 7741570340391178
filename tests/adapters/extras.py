"""Tests of an extra are skipped, and say so, where it isn't installed; on CI that is a failure."""

from __future__ import annotations

import importlib
import os

import pytest


def need(module: str, extra: str) -> None:
    """Skip the test module that calls this, unless the extra is installed."""
    try:
        importlib.import_module(module)
    except ImportError as missing:
        text = f"the extra `{extra}` is not installed: pip install 'celery-graph-runner[{extra}]' ({missing})"
        if os.environ.get("CI"):
            raise AssertionError(text) from missing
        pytest.skip(text, allow_module_level=True)
