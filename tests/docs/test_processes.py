from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import yaml

from runner.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compose():
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


@pytest.fixture
def procfile():
    lines = (ROOT / "Procfile").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def test_procfile_and_compose_start_the_same_programs(compose, procfile):
    """Whoever moves from one to the other gets the same processes, by the same commands."""
    programs = {
        name: service["command"] for name, service in compose["services"].items() if "build" in service
    }

    assert programs == procfile


def test_every_process_names_the_app_by_attribute(procfile):
    """Celery would guess otherwise, and may guess wrong."""
    assert all(" --app tasks.app:app " in command for command in procfile.values())


def test_compose_sets_only_settings_that_exist(compose):
    """A variable of the compose file is one that the program reads."""
    known = {f"RUNNER_{name}".upper() for name in Settings.model_fields}
    used = {name for service in compose["services"].values() for name in service.get("environment", {})}

    assert used <= known
    assert "RUNNER_REDIS_URL" in used


def test_the_store_of_compose_forgets_nothing(compose):
    """Runs that wait for people outlive a restart, and are never thrown away for space."""
    redis = compose["services"]["redis"]

    assert "--appendonly yes" in redis["command"]
    assert "--maxmemory-policy noeviction" in redis["command"]
    assert redis["volumes"] == ["redis-data:/data"]


def test_flower_is_installed_with_its_extra():
    """The command of the flower process exists where the extra is installed."""
    commands = importlib.metadata.entry_points(group="celery.commands")

    assert "flower" in {command.name for command in commands}
