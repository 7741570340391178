"""What the project claims to need, and what is installed to develop it."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = (ROOT / "requirements" / "dev.txt").read_text()
PINNED = re.compile(r"^([\w.-]+)==(\S+)", re.MULTILINE)
LINE = re.compile(r"[\w.-]+==\S+( ; .+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
STARTER = ROOT / "runner" / "cli" / "starter" / "docker-compose.yml.txt"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_the_pinned_versions_are_ones_that_the_project_allows():
    """Each dependency and extra, but for a huge one, has its version in requirements/dev.txt."""
    pinned = {canonicalize_name(name): version for name, version in PINNED.findall(PINS)}
    extras = [
        lines
        for name, lines in PROJECT["optional-dependencies"].items()
        if name != "claude-agent"
    ]
    needed = [
        Requirement(line) for lines in (PROJECT["dependencies"], *extras) for line in lines
    ]

    missing = [
        str(each)
        for each in needed
        if each.name != PROJECT["name"]
        and not each.specifier.contains(
            pinned.get(canonicalize_name(each.name), "0"), prereleases=True
        )
    ]

    assert missing == []


@pytest.mark.full
def test_what_pinned_versions_need_is_pinned():
    """All that a pinned version depends on is pinned, for `make` installs no dependencies but those."""
    pinned = {canonicalize_name(name): version for name, version in PINNED.findall(PINS)}
    environment = {
        canonicalize_name(each.name): each.requires or ()
        for each in metadata.distributions()
        if pinned.get(canonicalize_name(each.name)) == each.version
    }

    missing = [
        f"{name} needs {need}"
        for name, needs in environment.items()
        for need in map(Requirement, needs)
        if (need.marker is None or need.marker.evaluate({"extra": ""}))
        and not need.specifier.contains(
            pinned.get(canonicalize_name(need.name), "0"), prereleases=True
        )
    ]

    assert environment
    assert missing == []


def test_pinned_versions_have_hashes_and_no_addresses():
    """Requirements name versions and hashes, and no package index, which each machine has its own."""
    for path in (ROOT / "requirements").glob("*.txt"):
        pins = path.read_text()

        assert [line for line in pins.splitlines() if not LINE.fullmatch(line)] == []
        assert pins.count("==") <= pins.count("--hash=")


@pytest.mark.parametrize("name", ["image", "run"])
def test_what_users_install_is_what_is_tested(name):
    """The image and `make run` install a part of requirements/dev.txt, which the tests run with."""
    tested = set(PINNED.findall(PINS))
    installed = PINNED.findall((ROOT / "requirements" / f"{name}.txt").read_text())

    assert 0 < len(installed) < len(tested) / 2
    assert set(installed) <= tested


def test_each_python_that_is_claimed_is_tested():
    """The classifiers, the requirement, CI and the workflow name the same versions of Python."""
    classified = [each.rsplit(" ", 1)[1] for each in PROJECT["classifiers"] if ":: 3." in each]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())

    assert classified == PYTHONS
    assert PROJECT["requires-python"] == ">=3.11,<3.15"
    assert (
        f"for python in {' '.join(reversed(PYTHONS))}; do" in (ROOT / ".ci" / "run").read_text()
    )
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS


def unpinned(text):
    """Return what a workflow, an image or a compose file uses by a name that can be moved."""
    actions = [
        action
        for action in re.findall(r"uses: (\S+)", text)
        if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)
    ]
    images = re.findall(r"(?:FROM|image:) ([\w./-]+:\S+)", text)
    return actions + [
        image for image in images if not re.search(r"@sha256:[0-9a-f]{64}$", image)
    ]


def test_actions_and_images_can_not_be_exchanged():
    """Actions are named by commit, images by digest; the control has neither."""
    files = [*WORKFLOWS, ROOT / "Dockerfile", ROOT / "docker-compose.yml", STARTER]

    assert {path.name: unpinned(path.read_text()) for path in files} == {
        path.name: [] for path in files
    }
    assert unpinned("uses: actions/checkout@v4\nFROM python:3.12-slim\nimage: redis:7") == [
        "actions/checkout@v4",
        "python:3.12-slim",
        "redis:7",
    ]


def test_only_the_job_that_publishes_may_write():
    """Code of dependencies runs with a token that reads; what has more rights runs none of it."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]

    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in build
    assert publish["needs"] == "build"
    programs = {step["run"].split()[0] for step in publish["steps"] if "run" in step}
    assert programs == {"docker", "gh", "helm"}
    assert not [step for step in publish["steps"] if "docker run" in step.get("run", "")]
    attested = " ".join(step.get("uses", "") for step in publish["steps"])
    assert "attest-build-provenance" in attested
    assert "attest-sbom" in attested


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_there_are(path):
    """A workflow is YAML with jobs whose steps call targets of the Makefile."""
    targets = set(
        re.findall(r"^([\w-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    matrices = [job["strategy"]["matrix"] for job in jobs if "strategy" in job]
    called = [step["run"].split() for job in jobs for step in job["steps"] if "run" in step]
    made = {
        word
        for words in called
        if words[0] == "make"
        for word in words[1:]
        if re.fullmatch(r"[\w-]+", word)
    }
    made |= {
        word for each in matrices for row in each["include"] for word in row["target"].split()
    }

    assert made
    assert made <= targets - {"help"}
