from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.definition.policies import RetryPolicy
from runner.errors import DefinitionError
from runner.records import failures

ERROR = failures.record(ValueError("no"))


@pytest.mark.parametrize(
    ("attempt", "seconds"),
    [(1, 2.0), (2, 4.0), (3, 8.0), (4, 10.0), (5, 10.0), (6, None), (9, None)],
)
def test_the_wait_doubles_up_to_its_limit_and_ends(attempt, seconds):
    """Each retry waits twice as long as the one before, at most `max_backoff`, until attempts are used up."""
    policy = RetryPolicy(max_attempts=6, backoff=2, jitter=0, max_backoff=10)

    assert policy.delay(attempt, ERROR, 0.3) == seconds


@given(
    st.integers(1, 10_000),
    st.floats(0, 1e6),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1e6),
)
def test_a_wait_is_never_longer_than_its_limit(attempt, backoff, jitter, random, limit):
    """Whatever the numbers, a delay lies between the share that is certain and the limit."""
    policy = RetryPolicy(max_attempts=10_001, backoff=backoff, jitter=jitter, max_backoff=limit)

    delay = policy.delay(attempt, ERROR, random)

    full = min(limit, backoff * 2.0 ** min(attempt - 1, 32))
    assert full * (1 - jitter) * 0.999 <= delay <= full * 1.001


def test_one_attempt_means_no_retry():
    """`max_attempts` counts the first attempt."""
    assert RetryPolicy(max_attempts=1).delay(1, ERROR, 0) is None


def test_only_listed_types_are_retried():
    """An error is retried when it or one of its bases is listed, known by name across processes."""
    policy = RetryPolicy(retry_on=(LookupError, TimeoutError))

    assert policy.covers(failures.record(KeyError("a")))
    assert policy.covers(failures.record(TimeoutError()))
    assert not policy.covers(ERROR)
    assert policy.delay(1, ERROR, 0) is None
    assert not RetryPolicy().covers(failures.record(SystemExit(1)))


def test_one_type_may_be_given_alone():
    """A single class is a list of one."""
    assert RetryPolicy(retry_on=KeyError).retry_on == (KeyError,)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"backoff": -1},
        {"backoff": float("nan")},
        {"backoff": "1"},
        {"jitter": 1.1},
        {"jitter": -0.1},
        {"max_backoff": -1},
        {"max_backoff": float("nan")},
        {"max_backoff": float("inf")},
        {"retry_on": ("ValueError",)},
        {"retry_on": (int,)},
        {"retry_on": 3},
    ],
)
def test_a_policy_that_could_never_work_is_refused_where_it_is_written(wrong):
    """A wrong number or type in a policy is an error when the graph is defined."""
    with pytest.raises(DefinitionError, match="RetryPolicy needs"):
        RetryPolicy(**wrong)
