"""Completes a release in `dist` from the archives that `make dist` has built, and publishes nothing.

It adds the chart, the context of the image, and an unsigned statement of provenance with the digest of each
file. The version is that of pyproject.toml everywhere, also in the chart. With REF_NAME=v0.1.0, as the
release workflow sets it, the tag must name this version, and the changelog its date.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CHART = ROOT / "docs" / "kubernetes"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def check_version(ref_name: str, changelog: str) -> None:
    """Compare the version with the tag and the changelog.

    Raises:
        SystemExit: they differ.
    """
    heading = re.search(rf"^## {re.escape(VERSION)} \((.+)\)$", changelog, re.MULTILINE)
    if heading is None:
        sys.exit(f"CHANGELOG.md has no section of {VERSION}, the version in pyproject.toml.")
    if ref_name and ref_name != f"v{VERSION}":
        sys.exit(f"The tag {ref_name} is not v{VERSION}, the version in pyproject.toml.")
    if ref_name and heading[1] == "unreleased":
        sys.exit(f"CHANGELOG.md calls {VERSION} unreleased: write the date of the release.")


def pack_chart() -> None:
    """Package the chart under the version of pyproject.toml."""
    helm = Path(sys.executable).parent / "helm"
    versions = ["--version", VERSION, "--app-version", VERSION]
    run(str(helm), "package", str(CHART), *versions, "--destination", str(DIST))
    (DIST / f"celery-graph-runner-{VERSION}.tgz").rename(DIST / f"chart-{VERSION}.tgz")


def pack_image() -> None:
    """Write the context of the image: what the Dockerfile copies, of the files that git has.

    Raises:
        SystemExit: the steps of the Dockerfile that need no registry fail on it.
    """
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    names = [name for line in copied for name in line.split()]
    files = run("git", "-C", str(ROOT), "ls-files", "-z", "--", "Dockerfile", *names).split(
        "\0"
    )
    context = DIST / f"image-context-{VERSION}.tar.gz"
    with tarfile.open(context, "w:gz") as archive:
        for name in filter(None, files):
            archive.add(ROOT / name, name)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(context) as archive:
            archive.extractall(folder, filter="data")
        missing = [name for name in names if not (Path(folder) / name).exists()]
        if missing:
            sys.exit(f"The Dockerfile copies {', '.join(missing)}, which git doesn't have.")
        # `pip wheel` of the Dockerfile, by the same build backend.
        run(
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            f"{folder}/dist",
            folder,
        )
        (wheel,) = Path(folder, "dist").glob("*.whl")
        if digest(wheel) != digest(DIST / wheel.name):
            sys.exit(f"{wheel.name} of the image differs from that of dist.")


def write_provenance() -> None:
    """Write what was built, from which commit and by what: an in-toto statement, which CI signs."""
    commit = run("git", "-C", str(ROOT), "rev-parse", "HEAD").strip()
    source = os.environ.get("REPOSITORY_URL") or "unpublished"
    subjects = [
        {"name": path.name, "digest": {"sha256": digest(path)}}
        for path in sorted(DIST.iterdir())
    ]
    definition = {
        "buildType": "make release-dry",
        "externalParameters": {"version": VERSION},
        "resolvedDependencies": [{"uri": f"git+{source}", "digest": {"gitCommit": commit}}],
    }
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": definition,
            "runDetails": {"builder": {"id": os.environ.get("BUILDER_ID", "local")}},
        },
    }
    (DIST / "provenance.json").write_text(json.dumps(statement, indent=2) + "\n")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*command: str) -> str:
    """Run a command and return its output.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:3])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    check_version(os.environ.get("REF_NAME", ""), (ROOT / "CHANGELOG.md").read_text())
    (DIST / "provenance.json").unlink(missing_ok=True)
    pack_chart()
    pack_image()
    write_provenance()
    for each in sorted(DIST.iterdir()):
        print(f"{each.stat().st_size:9}  {each.name}")
