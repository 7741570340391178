from __future__ import annotations

import re

import redis


def test_metrics_are_prometheus_text(cli, redis_url):
    """Every line is a comment or a number with few labels, and each number has its help."""
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("runner:dead", {"reason": "no JSON"})
    lines = cli("metrics", url=redis_url).stdout.splitlines()
    numbers = [line for line in lines if not line.startswith("#")]

    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[a-z_]+"\})? [0-9.e+]+', line) for line in numbers)
    assert 'runner_dead_letters{kind="message"} 1' in numbers
    assert 'runner_runs{status="executing"} 0' in numbers
    assert "runner_workers 0" in numbers
    assert len({line.split()[2] for line in lines if line.startswith("# HELP")}) == 9


def test_metrics_count_what_waits(cli, waiting):
    """An open question and its run are counted, and the worker is."""
    shown = dict(line.rsplit(" ", 1) for line in cli("metrics").stdout.splitlines() if line[0] != "#")

    assert float(shown["runner_questions_open"]) >= 1
    assert float(shown['runner_runs{status="interrupted"}']) >= 1
    assert float(shown["runner_workers"]) == 1
    assert float(shown["runner_slots"]) == 8
