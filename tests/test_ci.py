"""`.ci/run`, with programs that do nothing, so that only its own order and its end are tried."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAKE = """#!/bin/sh
case "$*" in
  *--last-failed*) ;;
  "test-slow"*) [ -z "${FAILS:-}" ] || exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("fails", "known", "code"), [("", "", 0), ("1", "", 0), ("1", "a::b\n", 1)]
)
def test_ci_fails_for_a_failure_alone(fails, known, code, tmp_path):
    """It passes when nothing failed, or a test failed for the first time; its end always says the seconds."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / ".ci/flaky.txt").write_text(known)
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    nothing = [
        "git",
        "apt-get",
        "npm",
        "uv",
        "rabbitmq-server",
        "faketime",
        "openssl",
        "redis-server",
    ]
    for name in [
        *nothing,
        "chromium",
        "node",
        "nginx",
        "caddy",
        "python3.14",
        "../.venv/bin/python",
    ]:
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin/make").write_text(MAKE)
    (tmp_path / "bin/make").chmod(0o755)
    failed = tmp_path / ".pytest_cache/v/cache/lastfailed"
    failed.parent.mkdir(parents=True)
    failed.write_text('{"a::b": true}')

    ended = subprocess.run(
        [tmp_path / ".ci/run"],
        env=os.environ
        | {"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}", "FAILS": fails},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Seconds, and what passed:" in ended.stdout
    assert ("failed once: make test-slow" in ended.stdout) == bool(fails)
