"""An integration whose framework is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[{package!r}] = None
import runner.integrations.{module}
"""


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("strands", "strands", "strands"), ("pydantic_ai", "pydantic_ai", "pydantic-ai")],
)
def test_the_error_names_the_extra(module, package, extra):
    """Without the framework the import fails with the command that installs it."""
    program = PROGRAM.format(package=package, module=module)

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert f"pip install 'celery-graph-runner[{extra}]'" in ended.stderr
