"""A release, built to its end: `make release-dry`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ADDRESS = "https://git.example/team/runner"
ADDRESSES = {"REPOSITORY_URL": ADDRESS, "SITE_URL": "https://docs.example/"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A clone with one commit of this tree, where nothing else is."""
    if not (ROOT / ".git").exists():
        pytest.skip("only git knows the files of a release")
    folder = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    identity = [
        "-c",
        "user.name=Ann",
        "-c",
        "user.email=ann@example.com",
        "-c",
        "commit.gpgsign=false",
    ]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "Release"]):
        subprocess.run(["git", "-C", folder, *command], check=True)
    return folder


def completes(tree, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run what `make release-dry` runs after `make dist`."""
    return subprocess.run(
        [sys.executable, tree / ".ci" / "release.py"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ADDRESSES, **environment},
    )


@contextmanager
def changed(path: Path, text: str):
    """Give a file another text for a while."""
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


@pytest.fixture(scope="module")
def dist(tree):
    """The files of a release, without the SBOM, whose program a package index has."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", tree],
        check=True,
        capture_output=True,
        env={**os.environ, **ADDRESSES},
    )
    done = completes(tree)
    assert done.returncode == 0, done.stderr
    return tree / "dist"


def test_every_part_of_a_release_has_the_version_and_the_addresses(dist):
    """Wheel, chart and the context of the image, which has all that the Dockerfile copies, and no more."""
    (wheel,) = dist.glob("*.whl")
    metadata = (
        zipfile.ZipFile(wheel)
        .read(f"celery_graph_runner-{VERSION}.dist-info/METADATA")
        .decode()
    )
    with tarfile.open(dist / f"chart-{VERSION}.tgz") as archive:
        chart = yaml.safe_load(archive.extractfile("celery-graph-runner/Chart.yaml").read())
    with tarfile.open(dist / f"image-context-{VERSION}.tar.gz") as archive:
        folders = {name.split("/")[0] for name in archive.getnames()}

    assert f"Project-URL: Source, {ADDRESS}\n" in metadata
    assert "Project-URL: Documentation, https://docs.example/\n" in metadata
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    assert {"Dockerfile", "LICENSE", "runner", "tasks", "examples"} <= folders
    assert not {"tests", "docs", ".git", "dist"} & folders


def test_the_provenance_has_the_digest_of_each_file(tree, dist):
    """And the commit from which they were built."""
    assert completes(tree).returncode == 0
    statement = json.loads((dist / "provenance.json").read_text())
    commit = subprocess.run(
        ["git", "-C", tree, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()

    assert {each["name"]: each["digest"]["sha256"] for each in statement["subject"]} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in dist.iterdir()
        if path.name != "provenance.json"
    }
    (source,) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": f"git+{ADDRESS}", "digest": {"gitCommit": commit}}


def test_a_tag_of_another_version_or_without_a_date_is_refused(tree, dist):
    """A release can't have two versions, and its changelog says when it was."""
    other = completes(tree, REF_NAME="v9.9.9")
    assert (other.returncode, "v9.9.9 is not" in other.stderr) == (1, True)

    changelog = (tree / "CHANGELOG.md").read_text()
    heading = re.compile(rf"(?<=^## {re.escape(VERSION)} \()[^)]+", re.MULTILINE)
    for date, problem in (("unreleased", "unreleased: write the date"), ("2026-12-01", "")):
        with changed(tree / "CHANGELOG.md", heading.sub(date, changelog)):
            done = completes(tree, REF_NAME=f"v{VERSION}")
        assert (done.returncode, problem in done.stderr) == (int(bool(problem)), True), (
            done.stderr
        )


def test_an_image_that_lacks_a_file_is_refused(tree, dist):
    """The control of the context: the Dockerfile copies what git doesn't have."""
    dockerfile = (tree / "Dockerfile").read_text()
    with changed(
        tree / "Dockerfile", dockerfile.replace("COPY runner runner", "COPY runner lost lost")
    ):
        done = completes(tree)

    assert (done.returncode, "copies lost" in done.stderr) == (1, True)
