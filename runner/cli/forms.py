"""The forms of small answers that commands write with `--json`; the greater ones are in `documents`.

Their keys only ever grow, too. They are here for the JSON Schemas, which a test holds against what
the commands write.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from runner.cli.documents import FindingDocument


class CheckForm(TypedDict):
    """One thing that `runner doctor` looked at; `fix` is empty where all is well."""

    result: Literal["pass", "warn", "fail"]
    name: str
    found: str
    fix: str


class GaugeForm(TypedDict):
    """One number of `runner metrics`."""

    name: str
    labels: dict[str, str]
    value: float


class HeldForm(TypedDict):
    """A node that a deploy would set aside; `status` is where it stands in its run."""

    run_id: str
    graph: str
    node: str
    visit: int
    status: str
    reason: str


class CheckedForm(TypedDict):
    """What `runner graphs check` found; `held` is there with --against-waiting."""

    findings: list[FindingDocument]
    held: NotRequired[list[HeldForm]]


class SettingForm(TypedDict):
    """One setting that counts, and where it comes from."""

    name: str
    value: Any
    origin: str


class WrittenForm(TypedDict):
    """A project that was written: its folder, its name, and the files in it."""

    folder: str
    name: str
    files: list[str]


class ReadyForm(TypedDict):
    """A store and a worker that are ready."""

    redis_url: str
    worker_pid: int


class CompletionForm(TypedDict):
    """What a shell reads to finish our commands."""

    shell: Literal["bash", "fish", "zsh"]
    script: str


class VersionForm(TypedDict):
    """What is installed."""

    version: str
    python: str
    celery: str
    kombu: str
    redis: str


class StartedForm(TypedDict):
    """A run that was started."""

    run_id: str
    graph: str
    status: str


class StandingForm(TypedDict):
    """A run and its status."""

    run_id: str
    status: str


class RemovedForm(TypedDict):
    """A run that is gone."""

    run_id: str
    status: Literal["removed"]


class RetriedForm(TypedDict):
    """A run that goes on, and the nodes that run again."""

    run_id: str
    nodes: list[str]


class FateForm(TypedDict):
    """What becomes of a node of a run that is moved; `unused` are questions whose answers don't apply."""

    graph: str
    node: str
    today: str
    becomes: str
    reason: str
    unused: list[str]


class MigratedForm(TypedDict):
    """A run that was moved to today's graph, or the reason why it was not."""

    run_id: str
    moved: bool
    error: str
    nodes: list[FateForm]


class WithdrawnForm(TypedDict):
    """A question that was taken back."""

    interrupt_id: str
    status: Literal["withdrawn"]


class ReplayedForm(TypedDict):
    """A dead letter and where it went: a place in a stream, or the run of a node."""

    id: str
    sent: str


class DroppedForm(TypedDict):
    """A dead letter, and whether it was there."""

    id: str
    status: Literal["dropped", "unknown"]
