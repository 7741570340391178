"""A store's numbers for Prometheus, and the names of the numbers that processes add to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from runner.immutable import immutable

NODE = "runner_node_seconds"
QUEUE_WAIT = "runner_queue_wait_seconds"
ANSWER = "runner_answer_seconds"
SPENT = "runner_spent_total"
VOTES = "runner_votes_total"
DROPPED = "runner_dead_letters_dropped_total"
FORGOTTEN = "runner_limit_keys_forgotten_total"
STARTED = "runner_runs_started_total"


@immutable
class Metric:
    """One number; its labels have few values and never name a run.

    `family` is the histogram that it belongs to; a number without a family is a gauge.
    """

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    family: str = ""
