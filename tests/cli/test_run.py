from __future__ import annotations

import json

import pytest

from runner import Client


def test_run_writes_the_id_alone(cli):
    """A script can keep what `runner run` writes: it is the run's id and nothing else."""
    started = cli("run", "shop-tell", "--input", '"hello"')

    run_id = started.stdout.strip()

    assert (started.exit_code, started.stderr) == (0, "")
    assert cli("runs", "show", run_id).stdout.startswith(f"run\t{run_id}\tshop-tell\t")


def test_run_json_has_the_documented_keys(cli):
    """The document of a start names the run, its graph and how it stands."""
    started = json.loads(cli("run", "shop-tell", "--json", "--input", "1").stdout)

    assert set(started) == {"run_id", "graph", "status"}
    assert started["graph"] == "shop-tell"


def test_waiting_for_a_run_that_completes_ends_with_0(cli):
    """`--wait` looks on to the end: events on stderr, the result on stdout."""
    done = cli("run", "shop-tell", "--input", "1", "--wait")

    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].startswith("node\ttell\tcompleted\t1\t1\t")
    kinds = [line.split("\t")[1] for line in done.stderr.splitlines()]
    assert kinds[-1] == "run.ended"
    assert "node.completed" in kinds


def test_waiting_for_a_run_that_fails_ends_with_1(cli):
    """A failed run shows in the exit code, and its error in the line of the node."""
    done = cli("run", "shop-fail", "--input", "7", "--wait")

    assert done.exit_code == 1
    assert "ValueError: order 7 is not there" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_waiting_for_a_run_that_needs_a_person_ends_with_3(cli):
    """Once only people can go on, `--wait` ends, and says how to answer."""
    done = cli("run", "shop-refund", "--input", "1042", "--wait")

    lines = [line.split("\t") for line in done.stdout.splitlines()]

    assert done.exit_code == 3
    assert lines[0][3] == "interrupted"
    assert lines[-1][0] == "interrupt"
    assert lines[-1][2:] == ["approve", "shop_refund", "ana,ben", '{"order": 1042, "amount": 120}']
    assert f"runner interrupts respond {lines[-1][1]}" in done.stderr


def test_a_run_that_takes_too_long_ends_with_8_and_goes_on(cli, shop_url):
    """`--timeout` ends the looking, not the run."""
    done = cli("run", "shop-endless", "--wait", "--timeout", "0.3")

    run = Client(redis_url=shop_url).run(done.stderr.splitlines()[0].split("\t")[1])

    assert done.exit_code == 8
    assert "it goes on" in done.stderr
    assert run.status == "executing"
    run.cancel("the test is over")
    assert run.wait(timeout=20).status == "cancelled"


def test_a_cancelled_run_ends_with_1(cli, shop_url):
    """Cancelled is not done: a script that waited must notice."""
    key = "cancelled-once"
    run_id = cli("run", "shop-endless", "--idempotency-key", key).stdout.strip()
    Client(redis_url=shop_url).run(run_id).cancel("the test is over")

    assert cli("run", "shop-endless", "--idempotency-key", key, "--wait").exit_code == 1


def test_the_same_idempotency_key_starts_one_run(cli):
    """A start that is repeated gives the first run again."""
    first, second = (
        cli("run", "shop-tell", "--input", "1", "--idempotency-key", "one").stdout for _ in range(2)
    )

    assert first == second


def test_input_comes_from_a_file_or_from_standard_input(cli, tmp_path):
    """`@file` and `-` are other ways to give the same JSON."""
    (tmp_path / "order.json").write_text('{"order": 7}')

    from_file = cli("run", "shop-tell", "--json", "--wait", "--input", f"@{tmp_path / 'order.json'}")
    from_stdin = cli("run", "shop-tell", "--json", "--wait", "--input", "-", stdin='{"order": 7}')

    assert json.loads(from_file.stdout)["task"] == {"order": 7}
    assert json.loads(from_stdin.stdout)["task"] == {"order": 7}


def test_tags_are_kept_with_the_run(cli):
    """What `--tag` says shows in the listing."""
    run_id = cli("run", "shop-tell", "--tag", "team=shop", "--tag", "why=a=b").stdout.strip()

    listed = [line for line in cli("runs", "list").stdout.splitlines() if line.startswith(run_id)]

    assert listed[0].split("\t")[-1] == "team=shop why=a=b"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "nope"], 4, "'nope'"),
        (["run", "shop-tell", "--input", "yes"], 2, """Hint: Text needs its own quotes: --input '"yes"'."""),
        (["run", "shop-tell", "--input", '{"a": 1, "a": 2}'], 2, "same key twice"),
        (["run", "shop-tell", "--input", "@/nowhere.json"], 2, "can't be read"),
        (["run", "shop-tell", "--tag", "team"], 2, "Write --tag key=value."),
        (["run", "shop-tell", "--timeout", "3"], 2, "give both"),
        (["run"], 2, "Missing argument 'GRAPH'"),
        (["rnu"], 2, "'run'"),
        (["runs", "show", "nope"], 4, "no run 'nope'"),
        (["interrupts", "show", "nope"], 4, "'nope'"),
    ],
)
def test_a_mistake_is_one_line_and_a_hint(cli, arguments, code, said):
    """Whatever is wrong: one line, at most one hint, a code that tells mistakes apart, no traceback."""
    done = cli(*arguments)

    assert done.exit_code == code
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_store_that_is_not_there_ends_with_7(cli):
    """Without a store nothing is started, and the line says which address was tried."""
    done = cli("runs", "list", url="redis://127.0.0.1:1/0")

    assert done.exit_code == 7
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_debug_shows_where_an_error_came_from(cli):
    """With `--debug`, before or after the command, the traceback comes first."""
    for arguments in (["--debug", "runs", "show", "nope"], ["runs", "show", "nope", "--debug"]):
        assert "Traceback" in cli(*arguments).stderr


def test_a_setting_that_makes_no_sense_is_a_usage_error(cli, monkeypatch):
    """A bad value in the environment is named, in one line."""
    monkeypatch.setenv("RUNNER_RETENTION", "soon")

    done = cli("runs", "list")

    assert done.exit_code == 2
    assert "RUNNER_RETENTION" in done.stderr
    assert "soon" in done.stderr
