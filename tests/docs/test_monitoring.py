"""The dashboard and the alert rules: they can be loaded, and ask for what `runner metrics` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from runner import Fairness
from runner.cli.program import runner
from runner.limits.concurrency import Admission, Concurrency
from runner.limits.fairness import LEAST_WINDOW
from runner.limits.setting import LimitPause
from runner.operations.installation import Installation
from runner.settings import Settings
from runner.store.redis.measurements import BOUNDS, dropped, increments, spending, vote
from runner.store.redis.server_info import STATUSES
from runner.store.redis.store import RedisStore
from runner.store.requests import ChangeLimit, ShareSlots
from runner.testing import ManualClock
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.graphs import Bench, ident, wired

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
METRIC = re.compile(r"\brunner_[a-z_]+")
LABELS = {"graph": "shop", "outcome": "completed"}


@pytest.fixture
def written(redis_url):
    """The names of all that `runner metrics` writes."""
    store = RedisStore(redis_url, push=False)
    Bench(wired({"a": ident}).build(), lambda _: store).start()
    for name in BOUNDS:
        store.measure(increments(name, 1, **LABELS))
    store.do(ShareSlots({"g": LEAST_WINDOW}))
    worker = ManualWorker(store, ManualClock())
    for _ in range(LEAST_WINDOW + 1):
        worker.start(shape("a", fairness=Fairness("tag:tenant")))
    store.measure({**spending("tokens", 1, "shop"), **vote("approve"), **dropped(1)})
    one = Admission(concurrency=Concurrency(1))
    for _ in range(2):
        worker.start(shape("a", name="sync", admission=one))
    pause = LimitPause("model", 0)
    store.do(
        ChangeLimit(
            "model", lambda setting: setting.pause(pause), "limit.paused", "limit:model"
        )
    )
    return {metric.name for metric in Installation(Settings(redis_url=redis_url)).metrics()}


@pytest.fixture(scope="module")
def dashboard():
    return json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def rules():
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def balanced(expression: str) -> bool:
    return all(
        expression.count(left) == expression.count(right) for left, right in ("()", "[]", "{}")
    )


def test_the_dashboard_shows_every_metric_and_no_other(dashboard, written):
    """Each panel asks for what is written, and nothing that is written is left out."""
    expressions = [
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    ]
    used = {name for expression in expressions for name in METRIC.findall(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in written}

    assert used <= written
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in used} == families
    assert all(map(balanced, expressions))


def test_the_dashboard_can_be_imported(dashboard):
    """It has an id, its panels have different ones and don't overlap, and their source is the variable."""
    panels = dashboard["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}

    assert dashboard["uid"]
    assert dashboard["schemaVersion"] >= 36
    assert len({panel["id"] for panel in panels}) == len(places) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert {item["name"] for item in dashboard["templating"]["list"]} == {"datasource", "graph"}


@pytest.mark.full
def test_every_alert_asks_for_what_is_written_and_says_what_to_do(rules, written):
    """An alert has an expression on known metrics, a severity, what happened and what to do."""
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        names = set(METRIC.findall(rule["expr"]))
        assert names, rule
        assert names <= written, rule
        assert balanced(rule["expr"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert {"summary", "action"} <= rule["annotations"].keys()
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))


def test_the_labels_of_the_rules_exist(rules, dashboard):
    """A misspelt status or outcome would never alert."""
    text = json.dumps([rules, dashboard])
    statuses = set(re.findall(r'status=\\?\\?"(\w+)', text))

    assert statuses <= set(map(str, STATUSES))
    assert statuses


def test_the_commands_of_the_rules_exist(rules):
    """What an alert says to run is a command."""
    for rule in rules:
        for command in re.findall(r"`runner ([a-z ]+)", rule["annotations"]["action"]):
            group = runner
            for word in command.split():
                assert word in group.commands, command
                group = group.commands[word]
