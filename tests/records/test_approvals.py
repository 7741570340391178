"""Rules of approvals: who may decide, and what votes come to."""

from __future__ import annotations

import enum
import itertools
import json
import unicodedata
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.approvals.rules import (
    DECISIONS,
    MAX_EDITS,
    MAX_EFFECTS,
    Auth,
    Grants,
    Principal,
    Rule,
    Vote,
    Voter,
    forbidden,
    plain_name,
    selector,
    weight_of,
)
from runner.approvals.titles import filled
from runner.errors import UsageError
from tests.records.counting import counts, recount

ANA, BEN, CAT = (Principal(name) for name in ("ana", "ben", "cat"))
PEOPLE = ("ana", "ben", "cat")


def vote(who: str, decision: str = "approve", effect: str = "A", weight: int = 1) -> Vote:
    return Vote(Principal(who).key, decision, effect, weight)


def words(rule: Rule, *votes: Vote) -> list[str]:
    """What each vote got, one after the other."""
    return [count.word for count in counts(rule, votes)]


# Principals and selectors


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("ana", "human:|ana"),
        ("human:|ana", "human:|ana"),
        ("agent:https://login.example|bot 7", "agent:https://login.example|bot 7"),
        ("service:ci|x|y", "service:ci|x|y"),
    ],
)
def test_a_principal_is_read_as_it_is_written(text, key):
    """A plain name is another principal than the one of a login with that name."""
    assert Principal.read(text).key == key
    assert Principal.read(key) == Principal.read(text)


def test_a_refusal_says_where_groups_come_from():
    """Of somebody who has signed, the key or the login says them; at level 0 the directory does."""
    rule = Rule(eligible=["group:finance"])
    assert "the key or the login" in forbidden(rule, Voter(ANA, level=1))
    assert "the key or the login" not in forbidden(rule, Voter(ANA))


def test_a_refusal_by_groups_names_the_directory_where_none_is_known():
    """Who has no group at a rule of groups reads which setting knows them; at a rule of names no one does."""
    rule = Rule(eligible=["group:finance"])
    assert "RUNNER_DIRECTORY" in forbidden(rule, Voter(ANA))
    assert "RUNNER_DIRECTORY" not in forbidden(rule, Voter(ANA, frozenset({"sales"})))
    assert "RUNNER_DIRECTORY" not in forbidden(Rule(eligible=["ben"]), Voter(ANA))


def test_one_person_is_one_whatever_the_spelling():
    """How an accent is written and spaces around a name make nobody another; another issuer does."""
    composed, decomposed = "Jos\u00e9", "Jose\u0301"
    assert (
        Principal(decomposed).key == Principal(composed).key == Principal.read(decomposed).key
    )
    assert Principal.read("ana\u00a0b").key == Principal("ana  b").key
    assert Principal.read(" ana ").key == Principal("ana ").key == "human:|ana"
    assert Principal("ana", "https://login.example").key != Principal("ana").key


@pytest.mark.parametrize("text", ["an\u200ba", "ana\ufe0f", "\u3164", "a\u202ena", " "])
def test_a_name_with_what_nobody_sees_is_refused(text):
    """Two names that look the same are never two people; the controls are names of many languages."""
    with pytest.raises(UsageError):
        Principal.read(text)
    for name in ("Zoë Müller", "Łukasz", "佐藤 花子", "محمد", "O'Brien-Ng"):
        assert Principal.read(name).sub == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize("text", ["", "human:iss|", "robot:iss|x", "iss|x", "human:iss|\ud800"])
def test_a_text_that_names_nobody_is_refused(text):
    """Better no principal than another one."""
    with pytest.raises(UsageError):
        Principal.read(text)


def test_a_plain_name_selects_that_person_alone():
    """`eligible=["ana"]` means the human of that name for whom nobody vouches."""
    assert selector("ana") == "user:human:|ana"
    assert selector("user:ana") == "user:human:|ana"
    rule = Rule(eligible=["ana"])
    assert not forbidden(rule, Voter(ANA))
    assert forbidden(rule, Voter(Principal("ana", "https://login.example")))


@pytest.mark.parametrize(
    "sub", ["ana", "auth0|17", "human:bank|ana", "service:api-key|bot", "robot:x|y", "a:b"]
)
def test_nobodys_plain_name_is_that_of_another(sub):
    """Who may choose a name chooses no other principal by it."""
    chosen = Principal(sub)
    with suppress(UsageError):  # some plain names are none that a program reads
        assert Principal.read(plain_name(chosen.key)) == chosen
    assert plain_name(Principal("bot", "api-key", "service").key) == "service:api-key|bot"


@pytest.mark.parametrize(
    "options",
    [
        {"eligible": []},
        {"eligible": "ana"},
        {"eligible": ["ana"], "need": 2},
        {"eligible": ["ana", "user:ana"], "need": 3},
        {"eligible": ["requester"]},
        {"eligible": ["team:x"]},
        {"need": 0},
        {"need": True},
        {"need": 1.0},
        {"weights": {"ana": 0}},
        {"veto": 0},
        {"veto": "most"},
        {"stages": [Rule(stages=[Rule()])]},
        {"decisions": []},
        {"decisions": ["maybe"]},
        {"edit": "reset"},
        {"delegate": "all"},
        {"auth": Auth(level=4)},
        {"kinds": ["people"]},
        {"kinds": "human"},
        {"kinds": ["human"], "agents": True},
        {"eligible": ["ana", "ben"], "exclude": ["ben"], "need": 2},
        {"eligible": ["user:service:ci|bot"]},
        {"eligible": ["ana"], "kinds": ["service"]},
        {"stages": [Rule(eligible=["ana"])], "exclude": ["ana"]},
        {"stages": [Rule(eligible=["ana"])], "kinds": ["service"]},
        {"auth": Auth(3, acr="gold")},
        {"stages": [Rule(auth=Auth(2, acr="gold"))], "auth": Auth(3)},
        {"title": "Pay {amount.__class__}"},
        {"title": "Pay {amount!r}"},
        {"title": "Pay {amount:>9999999}"},
        {"title": "Pay {amount"},
        {"title": "Pay\n{amount}"},
        {"title": "Pay \u202e{amount}"},
        {"title": "x" * 201},
        {"stages": [Rule(title="Pay")]},
        {"stages": [Rule()], "need": 2},
        {"stages": [Rule()], "eligible": ["group:finance"]},
        {"stages": [Rule()], "weights": {"role:cfo": 2}},
        {"stages": [Rule()], "veto": None},
        {"stages": [Rule(escalate=[(3600, ["role:lead"])])]},
        {"stages": [Rule(delegate="group")]},
        {"stages": [Rule(edit="keeps")]},
        {"stages": [Rule(use_within=60)]},
        {"stages": [Rule(), Rule(calendar="office")]},
        {"agents": "no"},
        {"escalate": [(60, ["rol:lead"])]},
        {"stages": [Rule(eligible=["ana"]), Rule(eligible=["ana"])]},
        {"stages": [Rule(eligible=["ana", "ben"], need=2), Rule(eligible=["ana", "ben"])]},
        {"decisions": None},
        {"grants": Grants({"amount": {"maximum": 50}})},
        {"grants": Grants({"properties": {"amount": {"maximun": 50}}})},
        {"grants": {"uses": 3}},
        {"auth": {"level": 2}},
        {"stages": [{"eligible": ["ana"]}]},
        {"stages": [Rule(), Rule(decisions=["respond"])], "decisions": ["approve", "reject"]},
        {"escalate": [(60, "ben")]},
        {"escalate": (60, ["ben"])},
        {"weights": ["ana"]},
        {"veto": [1]},
        {"escalate": [(60, ["requester"])]},
        {"because": ["large"]},
        {"calendar": 5},
        {"calendar": None},
        {"auth": Auth(level=True)},
        {"auth": Auth(level=1.0)},
        {"auth": Auth(acr=5)},
        {"auth": Auth(acr="")},
        {"grants": Grants(uses=1.5)},
        {"grants": Grants(uses=0)},
        {"grants": False},
    ],
    ids=repr,
)
def test_a_rule_by_which_nobody_could_decide_is_refused(options):
    """A mistake in a rule is found where it is declared, not when the money is to go."""
    with pytest.raises(UsageError):
        Rule(**options)


def test_a_rule_takes_enumerations_for_texts_and_numbers():
    """Programs name their reasons, levels and calendars by them."""
    text, level = enum.StrEnum("Text", "banking"), enum.IntEnum("Level", {"login": 2})
    rule = Rule(
        because=text.banking, calendar=text.banking, auth=Auth(level.login, acr=text.banking)
    )

    assert Rule.thawed(rule.frozen()).calendar == "banking"


@pytest.mark.parametrize("wrong", ["900", True, -1, float("nan"), float("inf"), [900]])
def test_a_part_of_a_rule_without_a_number_is_refused(wrong):
    """Before anybody votes or grants by it."""
    for options in (
        {"auth": Auth(level=2, max_age=wrong)},
        {"grants": Grants(uses=wrong)},
        {"grants": Grants(sums={"amount": wrong})},
        {"grants": Grants(lifetime=wrong)},
        {"use_within": wrong},
        {"escalate": [(wrong, ["ben"])]},
    ):
        with pytest.raises(UsageError, match="must be 0 or more"):
            Rule(**options)


def test_a_stored_rule_is_read_that_would_be_refused_now():
    """Earlier versions ignored settings beside stages; one such question must not stop a list."""
    (stage,) = Rule(stages=[Rule()]).frozen()["stages"]
    stored = {
        **Rule(stages=[Rule()]).frozen(),
        "need": 2,
        "stages": [{**stage, "edit": "keeps"}],
    }
    assert Rule.thawed(stored).frozen() == stored
    stored["auth"]["max_age"] = "900"
    stored["escalate"] = [["60", ["requester"]]]
    assert Rule.thawed(stored).frozen() == stored
    with pytest.raises(UsageError, match="need: each stage of a rule has its own"):
        Rule(need=2, stages=[Rule()])
    with pytest.raises(UsageError, match="edit: a stage has none of its own"):
        Rule(stages=[Rule(edit="keeps")])


def test_a_rule_is_read_as_it_was_frozen():
    """What is stored with a question, and hashed, is the whole rule."""
    rule = Rule(
        exclude=["requester", "answered:look_up"],
        auth=Auth(2, 900, "gold"),
        decisions=["approve", "reject"],
        escalate=[(3600, ["role:lead"])],
        calendar="office",
        stages=[
            Rule(["group:finance", "ana"], 2, {"role:cfo": 2}, "majority"),
            Rule(eligible=["role:cfo"], auth=Auth(1)),
        ],
        title="Pay {amount} to {name}",
    )

    assert Rule.thawed(rule.frozen()).frozen() == rule.frozen()
    for name in rule.frozen():
        assert {**rule.frozen(), name: None} != rule.frozen() or name == "calendar"
        broken = dict(rule.frozen())
        del broken[name]
        if name in {"auth", "stages", "escalate", "eligible", "exclude", "decisions"}:
            with pytest.raises(UsageError):
                Rule.thawed(broken)
    with pytest.raises(UsageError):
        Rule.thawed({**rule.frozen(), "more": 1})


@pytest.mark.parametrize(
    ("template", "amount", "title"),
    [
        ("{amount:money}", 48000.0, "48,000.00 EUR"),
        ("{amount:money}", "13899.15", "13,899.15 EUR"),
        ("{amount:,.2f}", 4800, "4,800.00"),
        ("{amount:.2f}", 99.999, "99.999"),
        ("{amount:money}", 999.999, "999.999 EUR"),
        ("{amount:,}", 48000, "48,000"),
        ("{amount}", 48000.0, "48000.0"),
        ("{amount:money}", "all of it", '"all of it"'),
        ("{amount:money}", True, "true"),
        ("{amount:,.2f}", 1e300, "1e+300"),
    ],
)
def test_a_title_writes_amounts_with_groups_and_never_rounds_them(template, amount, title):
    """Control: a value that is no number is written as without a format."""
    Rule(eligible=["ana"], title=template)
    assert filled(template, {"amount": amount, "currency": "EUR"}) == title


@pytest.mark.parametrize(
    ("value", "title"),
    [
        ("DE89", "To DE89."),
        (48000, "To 48000."),
        (True, "To true."),
        ("Ana Miller", 'To "Ana Miller".'),
        ("", 'To "".'),
        ("{other}", "To {other}."),
        ('x"', r'To "x\"".'),
        ("a\u202eb", r"To a\u202eb."),
        ("a\nb", r'To "a\nb".'),
        (["a", 1], 'To ["a", 1].'),
        ("x" * 81, f"To {'x' * 80}…."),
        (None, "To null."),
    ],
)
def test_a_title_shows_a_value_as_one_line(value, title):
    """Nothing in an argument is evaluated or hidden, and a text with spaces is seen as one value."""
    assert filled("To {name}.", {"name": value, "other": "no"}) == title


# Who may vote


@pytest.mark.parametrize(
    ("voter", "reason"),
    [
        (Voter(ANA), "not one of those"),
        (Voter(ANA, groups=frozenset({"finance"})), ""),
        (Voter(ANA, roles=frozenset({"finance"})), "not one of those"),
        (Voter(BEN, groups=frozenset({"finance"})), "who asked for this"),
        (Voter(CAT, groups=frozenset({"finance"})), "who answered 'look_up'"),
        (Voter(Principal("bot", kind="agent"), groups=frozenset({"finance"})), "agents don't"),
        (Voter(ANA, groups=frozenset({"finance", "interns"})), "excluded"),
    ],
)
def test_who_may_vote(voter, reason):
    """Strangers, the requester, who answered before, agents and the excluded do not decide."""
    rule = Rule(
        eligible=["group:finance"], exclude=["requester", "answered:look_up", "group:interns"]
    )

    refused = forbidden(
        rule, voter, requesters=[BEN.key], answered_by={"look_up": frozenset({CAT.key})}
    )
    assert refused.startswith(reason)
    assert bool(refused) is bool(reason)


IDP = "https://idp.example"


@pytest.mark.full
@pytest.mark.parametrize("how", ["requester", "answered", "exclude"])
@pytest.mark.parametrize(
    ("excluded", "voter", "issuer", "is_excluded"),
    [
        ("ana", f"human:{IDP}|ana", "", True),
        (f"human:{IDP}|ana", "ana", "", True),
        ("ana", f"agent:{IDP}|ana", "", True),
        ("service:|bot", f"service:{IDP}|bot", "", True),
        (f"human:{IDP}|ana", f"human:{IDP}|ana", "", True),
        (f"human:{IDP}|ana", "human:other|ana", "", False),
        ("ana", f"human:{IDP}|ben", "", False),
        ("ana", f"human:{IDP}|ana", IDP, True),
        (f"human:{IDP}|ana", "ana", IDP, True),
        ("ana", "human:other|ana", IDP, False),
        ("ana", f"agent:{IDP}|ana", IDP, False),
    ],
)
def test_an_exclusion_by_a_name_alone_fails_closed(how, excluded, voter, issuer, is_excluded):
    """A name without an issuer is every principal of that name, or that of the issuer which is set."""
    excluded_key = Principal.read(excluded).key
    people = {
        "answered_by": {"look_up": frozenset({excluded_key})},
        "requesters": [excluded_key],
    }
    form = {"requester": "requester", "answered": "answered:look_up"}.get(
        how, f"user:{excluded}"
    )
    rule = Rule(exclude=[form], kinds=["human", "service", "agent"])

    refused = forbidden(rule, Voter(Principal.read(voter)), plain_issuer=issuer, **people)
    assert bool(refused) is is_excluded


def test_a_name_alone_makes_no_one_else_eligible():
    """Who may decide is named exactly: a login of the same name is not the one that a rule names."""
    rule = Rule(eligible=["ana"])
    assert forbidden(rule, Voter(Principal("ana", IDP)), plain_issuer=IDP)
    assert not forbidden(rule, Voter(ANA))


@pytest.mark.parametrize(
    ("voter", "reason"),
    [
        (Voter(ANA, level=1, login_age=10, acr="gold"), "level 2"),
        (Voter(ANA, level=2, login_age=901, acr="gold"), "at most 900 s old"),
        (Voter(ANA, level=2, acr="gold"), "at most 900 s old"),
        (Voter(ANA, level=2, login_age=10), "class 'gold'"),
        (Voter(ANA, level=3, login_age=900, acr="gold"), ""),
    ],
)
def test_how_sure_a_vote_must_be(voter, reason):
    """Level, age and class of the login are each needed; a higher level is enough for a lower one."""
    refused = forbidden(Rule(auth=Auth(2, 900, "gold")), voter)
    assert reason in refused
    assert bool(refused) is bool(reason)


def test_an_agent_needs_both_the_rule_and_the_stage():
    """A stage can't let agents in where the rule does not, nor the rule where the stage does not."""
    agent = Voter(Principal("bot", kind="agent"))
    for whole, stage in itertools.product([False, True], repeat=2):
        rule = Rule(agents=whole, stages=[Rule(agents=stage)])
        assert bool(forbidden(rule, agent)) is not (whole and stage)


@pytest.mark.parametrize("kind", ["service", "agent"])
def test_two_people_are_not_a_person_and_a_program(kind):
    """A rule for people counts no service or agent, in a stage or behind an escalation; others may."""
    program = Voter(Principal("bot", kind=kind), groups=frozenset({"finance"}))
    people = Rule(eligible=["group:finance"], need=2, kinds=["human"])
    stages = Rule(stages=[people], kinds=["human", "service", "agent"])
    for declared in (people, stages, Rule(stages=[replace(people, kinds=())], kinds=["human"])):
        rule = Rule.thawed(json.loads(json.dumps(declared.frozen())))
        assert forbidden(rule, program) == f"{kind}s don't decide this"
        assert forbidden(rule, program, escalated_selectors=["anyone"])
        assert not forbidden(rule, replace(program, principal=ANA))
    for rule in (replace(people, kinds=[kind]), replace(people, kinds=["human", kind])):
        assert not forbidden(rule, program)
    assert forbidden(replace(people, kinds=()), program), "people are the default"
    assert bool(forbidden(replace(people, kinds=(), agents=True), program)) is (
        kind == "service"
    )


def test_escalation_adds_those_who_may_decide():
    """Before it they are strangers; the first ones stay eligible."""
    rule = Rule(eligible=["ana"], escalate=[(60, ["role:lead"])])
    lead = Voter(BEN, roles=frozenset({"lead"}))

    assert forbidden(rule, lead)
    assert not forbidden(rule, lead, escalated_selectors=["role:lead"])
    assert not forbidden(rule, Voter(ANA), escalated_selectors=["role:lead"])


def test_a_vote_weighs_the_most_of_its_weights():
    """Several roles don't add up."""
    rule = Rule(need=3, weights={"role:cfo": 3, "role:lead": 2})

    assert weight_of(rule, ["anyone"]) == 1
    assert weight_of(rule, ["role:lead", "role:cfo"]) == 3


# What votes come to


@pytest.mark.parametrize(
    ("veto", "rejections", "word"),
    [
        (1, 1, "accepted"),
        (2, 1, "counted"),
        (2, 2, "accepted"),
        ("majority", 2, "counted"),
        ("majority", 3, "accepted"),
    ],
)
def test_a_veto_ends_it(veto, rejections, word):
    """So many rejections reject, whatever approvals there are."""
    rule = Rule(need=3, veto=veto)
    count = recount(
        rule, [vote("x"), *(vote(f"r{number}", "reject") for number in range(rejections))]
    )

    assert count.word == word
    assert count.decision == ("reject" if word == "accepted" else None)


def test_without_a_veto_rejections_only_count():
    """`veto=None`: the quorum alone decides."""
    rule = Rule(need=1, veto=None)
    assert (
        words(rule, *(vote(f"r{number}", "reject") for number in range(9)), vote("ana"))[-1]
        == "accepted"
    )


def test_stages_are_met_one_after_the_other():
    """A stage opens the next; only the last vote is accepted; nobody votes in two."""
    rule = Rule(stages=[Rule(need=2), Rule(need=1)])

    assert words(rule, vote("ana"), vote("ben"), vote("ana"), vote("cat")) == [
        "counted",
        "counted",
        "duplicate",
        "accepted",
    ]


def test_a_later_stage_can_not_decide_another_value():
    """An edit there begins again with the first stage; where edits void nothing, it is refused."""
    stages = [Rule(), Rule()]
    votes = [vote("ana"), vote("ben", "edit", "B"), vote("cat", effect="B")]

    assert words(Rule(stages=stages), *votes) == ["counted", "counted", "accepted"]
    assert words(Rule(stages=stages, edit="keeps"), *votes) == [
        "counted",
        "forbidden",
        "forbidden",
    ]
    assert recount(Rule(stages=stages), votes).effect == "B"


def test_edits_are_bounded():
    """More different values than a person can compare are refused."""
    rule = Rule(need=2, edit="keeps")
    votes = [vote(f"p{number}", "edit", f"E{number}") for number in range(MAX_EFFECTS + 1)]

    assert words(rule, *votes)[-1] == "forbidden"
    outbid = [vote("ana", "edit", f"E{number}") for number in range(MAX_EDITS + 1)]
    assert words(Rule(need=2), *outbid)[-2:] == ["counted", "forbidden"]


def test_only_decisions_of_the_rule_are_taken():
    """A question that may be approved or rejected can't be edited."""
    rule = Rule(decisions=["approve", "reject"])
    assert words(rule, vote("ana", "edit", "B"), vote("ana", "respond", "B"), vote("ana")) == [
        "forbidden",
        "forbidden",
        "accepted",
    ]


# Every sequence of votes of three people, against another way to say the same


VOTES = [
    Vote(Principal(who).key, decision, effect)
    for who in PEOPLE
    for decision, effect in (("approve", "A"), ("approve", "B"), ("edit", "B"), ("reject", ""))
]

RULES = [
    Rule(need=need, veto=veto, edit=edit)
    for need in (2, 3)
    for veto in (1, 2, "majority", None)
    for edit in ("resets", "keeps")
]


def expected(rule: Rule, votes: tuple[Vote, ...]) -> tuple[str | None, str]:
    """What a sequence decides, by looking at all votes since the last edit each time: no running tally."""
    valid: list[Vote] = []
    for entry in votes:
        if entry.decision == "edit" and rule.edit == "resets":
            valid = []
        elif any(earlier.principal == entry.principal for earlier in valid):
            continue
        valid.append(entry)
        approving = {
            v.principal for v in valid if v.decision != "reject" and v.effect == entry.effect
        }
        rejecting = {v.principal for v in valid if v.decision == "reject"}
        if entry.decision != "reject" and len(approving) >= rule.need:
            return entry.decision, entry.effect
        ends = rule.need if rule.veto == "majority" else rule.veto
        if entry.decision == "reject" and ends is not None and len(rejecting) >= ends:
            return "reject", ""
    return None, ""


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.need}-{rule.veto}-{rule.edit}")
def test_every_sequence_of_four_votes_decides_as_it_should(rule):
    """All sequences of four votes of three people, ana's first, compared with a count from scratch."""
    for votes in itertools.product(VOTES[:4], VOTES, VOTES, VOTES):
        count = recount(rule, votes)
        assert (count.decision, count.effect) == expected(rule, votes), votes


@given(st.lists(st.sampled_from(VOTES), max_size=12), st.sampled_from(RULES))
def test_a_decision_is_that_of_the_votes_before_it(votes, rule):
    """Votes that come later change nothing, and no vote decides alone what needs two."""
    count = recount(rule, votes)
    assert count.decision is None or count.decision in DECISIONS
    if count.decision not in {None, "reject"}:
        assert (
            len({entry.principal for entry in votes if entry.effect == count.effect})
            >= rule.need
        )
    assert (
        recount(rule, [*votes, vote("dan", "reject")]).decision == count.decision
        or count.decision is None
    )
