"""The port to whoever knows the groups: found by name, asked at the door, never silent when it fails."""

from __future__ import annotations

import pytest

from runner.approvals.directory import looked_up
from runner.approvals.rules import Principal, Rule, Voter, forbidden
from runner.errors import DirectoryError, StoreError, UsageError

FINANCE = Rule(eligible=["group:finance", "role:cfo"])


class People:
    def groups(self, principal):
        return {
            "ana": ["finance"],
            "text": "finance",
            "away": 1 / 0 if principal.sub == "away" else (),
        }.get(principal.sub, ())

    def roles(self, principal):
        return {"eva"} & {principal.sub} and {"cfo"}


people = People()


class Silent:
    pass


silent = Silent()

HERE = f"{__name__}:people"


def voter(name):
    return Voter(Principal(name))


def test_what_the_directory_has_decides_who_may_vote():
    """Groups and roles of the directory are those of the voter; without one nobody is in a group."""
    may = {
        name: not forbidden(FINANCE, looked_up(voter(name), HERE))
        for name in ("ana", "eva", "ben")
    }

    assert may == {"ana": True, "eva": True, "ben": False}
    assert forbidden(FINANCE, looked_up(voter("ana"), ""))


def test_what_a_login_said_stays():
    """The claims of a token and the directory add up."""
    claimed = Voter(Principal("eva"), frozenset({"board"}), frozenset({"chair"}))

    assert looked_up(claimed, HERE).selectors >= {"group:board", "role:chair", "role:cfo"}


def test_a_directory_that_fails_is_an_outage():
    """A vote is neither counted nor refused for good while nobody can say who votes: the door tries again."""
    with pytest.raises(DirectoryError, match="away") as raised:
        looked_up(voter("away"), HERE)

    assert isinstance(raised.value, StoreError)
    assert raised.value.passing


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.no_such:people", "No module"),
        (f"{__name__}:nobody", "nobody"),
        (f"{__name__}", "module:object"),
        (f"{__name__}:silent", "groups"),
        (f"{__name__}:People", "has no groups"),
    ],
)
def test_a_name_that_is_no_directory_is_one_clear_line(name, words):
    """It says the setting, and what is wrong."""
    with pytest.raises(UsageError, match=words) as raised:
        looked_up(voter("ana"), name)

    assert str(raised.value).startswith("RUNNER_DIRECTORY=")


def test_one_text_is_no_list_of_groups():
    """Its letters would be."""
    with pytest.raises(UsageError, match="list of names"):
        looked_up(voter("text"), HERE)
