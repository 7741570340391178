"""The search of the site: newcomers' words find the page that helps, by the program of the site itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("site_search.mjs")
NODE = shutil.which("node") or str(Path(sys.executable).with_name("node"))

EXPECTED = {
    "getting started": "first-project",
    "quickstart": "first-project",
    "start a run": "first-project",
    "retry a node": "retry",
    "retry with backoff": "retry",
    "retry failed run": "retry-and-fork",
    "cancel a run": "cancel",
    "stop a run": "cancel",
    "timeout": "timeouts",
    "progress bar": "progress",
    "large results": "large-values",
    "payload too large": "large-values",
    "run hangs": "why-it-waits",
    "my run is stuck": "why-it-waits",
    "node is waiting": "why-it-waits",
    "run never starts": "why-it-waits",
    "human in the loop": "ask-people",
    "answer a question": "which-door",
    "question expires": "ask-people",
    "two approvers": "approvals",
    "celery chord": "from-celery-canvas",
    "parallel map": "nested-graphs",
    "conditional edge": "conditions",
    "rate limit": "limits",
    "cron": "schedules",
    "redis password": "deploy",
    "idempotency key": "../tour",
    "streaming tokens": "streaming",
    "LeaseLost": "../reference/errors",
    "environment variables": "../reference/cli",
}
"""A page of how-to for each query."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the pages that each query finds in a site built from these docs."""
    site = tmp_path_factory.mktemp("site")
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(mkdocs, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    done = subprocess.run(
        [NODE, str(PROGRAM), str(site)],
        input=json.dumps(list(EXPECTED)),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("query", EXPECTED)
def test_the_first_three_results_have_the_page_that_helps(found, query):
    """Who does not know the library's words yet finds its guides."""
    page = f"how-to/{EXPECTED[query]}/".replace("how-to/../", "")

    assert page in found[query][:3]
