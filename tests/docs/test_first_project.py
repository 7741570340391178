from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.docs.terminals import replay

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "first-project.md"


@pytest.mark.slow
def test_the_first_project_goes_as_its_page_shows(store_server, tmp_path):
    """From an empty folder to an answered question: the commands of the page, in real terminals."""
    known = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        # For a checkout that was installed before there was a plugin; elsewhere pytest knows it anyway.
        "PYTEST_PLUGINS": "runner.testing.plugin",
        "LOGNAME": "maria",
    }
    typed = replay(PAGE, tmp_path, known)

    assert typed[0] == "runner init refunds"
    assert typed[-1] == "^C"
    assert len(typed) == 16
