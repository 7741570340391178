"""`runner api`: what the HTTP API answers, with the exit codes of the other commands."""

from __future__ import annotations

import json
import sys

import pytest


@pytest.fixture
def request_(cli, monkeypatch):
    """Send a request on the shop's store; return the exit code, and the answer or the error."""
    monkeypatch.setenv("RUNNER_WEBHOOK_ALLOW", "127.0.0.0/8")
    monkeypatch.setenv("LOGNAME", "ana")

    def send(method, path, body=None):
        done = cli("api", method, path, *([] if body is None else ["--data", json.dumps(body)]))
        return done.exit_code, json.loads(done.stdout or "null") or done.stderr

    return send


def test_a_body_that_is_refused_names_the_field(request_, cli):
    """With the exit code of wrong usage, and nothing is made."""
    code, error = request_("POST", "/v1/webhooks", {"url": 3})

    assert (code, "Unprocessable" in error, "/body/url: " in error) == (2, True, True)
    assert request_("POST", "/v1/webhooks", {"url": "https://10.0.0.1/"})[0] == 2
    assert (
        "--data is not valid JSON" in cli("api", "POST", "/v1/webhooks", "--data", "{").stderr
    )
    assert request_("GET", "/v1/webhooks")[1]["items"] == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("path", "code"), [("/v1/nothing", 4), ("/schedule", 4), ("/v1/\n", 2), ("/v1/runs", 0)]
)
def test_a_path_that_is_not_there_is_not_found(request_, path, code):
    """The answer is that of the API."""
    assert request_("GET", path)[0] == code


def test_the_body_is_read_from_a_file_or_standard_input(cli, call, shop_url, tmp_path):
    """As those of other commands."""
    (tmp_path / "body.json").write_text('{"graph": "nowhere"}')
    for text in (f"@{tmp_path}/body.json", "-"):
        done = call(
            *("api", "POST", "/v1/runs", "--data", text),
            url=shop_url,
            stdin='{"graph": "nowhere"}',
        )
        assert (done.exit_code, "nowhere" in done.stderr) == (4, True)


def test_what_is_no_json_is_written_as_text(cli):
    """Metrics are lines."""
    assert "\nrunner_runs{" in cli("api", "GET", "/metrics").stdout


def test_a_store_that_is_away_is_unreachable(call):
    """As with every other command."""
    done = call("api", "GET", "/v1/runs", url="redis://127.0.0.1:1/0")
    assert (done.exit_code, "could not be reached" in done.stderr) == (7, True)


def test_without_the_extra_the_error_names_it(cli, monkeypatch):
    """A command that lacks a package says how to install it."""
    monkeypatch.setitem(sys.modules, "httpx", None)

    done = cli("api", "GET", "/v1/runs")

    assert (done.exit_code, "pip install 'celery-graph-runner[server]'" in done.stderr) == (
        2,
        True,
    )


@pytest.mark.full
def test_the_caller_and_headers_can_be_given(cli, waiting):
    """`--by` is the caller, and `--header` is sent: the API takes a vote with If-Match only."""
    _, question = waiting
    digest = json.loads(cli("api", "GET", f"/v1/questions/{question}").stdout)["digest"]
    body = json.dumps({"decision": "respond", "response": {"decision": "approve"}})
    vote = ("api", "POST", f"/v1/questions/{question}/votes", "--data", body, "--by", "ben")

    assert json.loads(cli("api", "GET", "/v1/me", "--by", "ben").stdout)["name"] == "ben"
    assert "If-Match" in cli(*vote).stderr
    done = cli(*vote, "--header", "If-Match", f'"{digest}"')
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["status"] == "accepted"
