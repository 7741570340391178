"""Rules in words: what a person reads who decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.approvals import DAY, HOUR, Auth, Rule
from runner.approvals.rule_text import in_words

LOGIN = "human:https://login.example|ben"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(eligible=["ana"]), ["one of ana", "not programs", "one rejection ends it"]),
        (
            Rule(eligible=["group:finance"], need=2, exclude=["requester"]),
            [
                "two of group finance",
                "not ben of https://login.example who asked for it nor programs",
                "one rejection ends it",
                "an edit resets earlier votes",
            ],
        ),
        (
            Rule(
                eligible=["group:finance", "role:lead"],
                need=3,
                weights={"role:lead": 2},
                veto="majority",
                edit="keeps",
                agents=True,
                exclude=["answered:look_up"],
                delegate="group",
            ),
            [
                "three of group finance or role lead (role lead counts 2)",
                "not who answered look_up nor services",
                "as many rejections end it",
                "may be delegated within the group",
            ],
        ),
        (
            Rule(
                stages=[
                    Rule(eligible=["ana", "ben"]),
                    Rule(eligible=["role:cfo"], auth=Auth(level=3)),
                ]
            ),
            [
                "one of ana or ben, then one of role cfo, each who signs with a key of their own",
                "not programs",
                "one rejection ends it",
            ],
        ),
        (
            Rule(stages=[Rule(), Rule(kinds=["human", "service"])]),
            [
                "one of anyone, not services, then one of anyone",
                "not agents",
                "one rejection ends it",
            ],
        ),
        (
            Rule(need=2, kinds=["human"], edit="keeps"),
            ["two of anyone", "not programs", "one rejection ends it"],
        ),
        (
            Rule(
                agents=True,
                auth=Auth(level=2, max_age=900),
                veto=None,
                decisions=["approve", "reject"],
                escalate=[(4 * HOUR, ["role:lead"]), (DAY, ["role:cfo"])],
                calendar="office",
            ),
            [
                "one of anyone, each who has logged in, at most 15 minutes ago",
                "not services",
                "rejections are only counted",
                "decisions: approve, reject",
                "after 4 hours of calendar office also role lead",
                "after 1 day of calendar office also role cfo",
            ],
        ),
    ],
)
def test_a_rule_reads_as_a_sentence(rule, words):
    """What it needs, who is excluded, what ends it, and when others may decide."""
    assert in_words(rule, LOGIN).split("; ") == words


@given(
    st.builds(
        Rule,
        eligible=st.lists(
            st.sampled_from(["anyone", "group:a", "role:b"]), min_size=1, max_size=3
        ),
        need=st.integers(1, 1000),
        veto=st.sampled_from([1, 2, "majority", None]),
        agents=st.booleans(),
        exclude=st.lists(
            st.sampled_from(["requester", "ana", "group:a", "answered:n"]), max_size=2
        ),
    )
)
def test_every_rule_has_words_for_its_number(rule):
    """Whatever is declared can be read, and no part is left empty."""
    words = in_words(rule)

    assert "of" in words
    assert "; ;" not in words
    assert not words.endswith(("; ", "not "))
