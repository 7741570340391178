"""The contract of limits: places that only executions have, and times at which they may begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.definition.model import MapSpec, Topology
from runner.limits.limit import Limit, name_of
from runner.limits.setting import LimitPause, LimitSetting
from runner.records.codec import JSON
from runner.records.run import Status
from runner.store.interface import Settlement, Store
from runner.store.requests import (
    ChangeLimit,
    ClaimVisit,
    ExpandMap,
    SettleVisit,
)
from tests.contract.store.manual_worker import rung, shape, word_of
from tests.contract.store.stories import Story, stories, tell

ONE = Limit("one", concurrency=1)


SLOW = Limit("slow", rate=2, per=10)


def crowd(*limits: Limit, names: str = "a b c", name: str = "g") -> Topology:
    """Build a graph of nodes that start at once and share some limits."""
    nodes = names.split()
    return shape(names, entries=nodes, name=name, limits=dict.fromkeys(nodes, limits))


LEFT, RIGHT = Limit("l", concurrency=1), Limit("r", concurrency=1)

BOTH = shape("a b c", limits={"a": [LEFT], "b": [RIGHT], "c": [LEFT, RIGHT]})

STORIES = {
    "who waits for a person has no place, and must find one again": (
        crowd(ONE),
        """
        claim a
        claim b = limited
        park a
        rings = b.1.1
        claim b
        answer a
        claim a = limited
        settle b
        rings = a.1.1
        claim a
        """,
    ),
    "a node that finds no place has one event of that, however often it is refused": (
        crowd(ONE),
        """
        claim a
        claim b = limited
        claim b = limited
        claim b = limited
        count node.limited b = 1
        """,
    ),
    "a node between two attempts has no place": (
        crowd(ONE),
        """
        claim a
        claim b = limited
        retry a 5000
        rings = b.1.1
        """,
    ),
    "a node that is held has no place": (
        crowd(ONE),
        """
        claim a
        claim b = limited
        hold_visit a
        rings = b.1.1
        """,
    ),
    "a node whose work another system does has no place": (
        crowd(ONE),
        """
        claim a
        claim b = limited
        hand a
        rings = b.1.1
        """,
    ),
    "a node that lacks one of two places does not keep the other one from others": (
        BOTH,
        """
        claim a
        claim b
        claim c = limited
        settle a
        rings = c.1.1
        claim c = limited
        settle b
        rings = c.1.1
        claim c
        """,
    ),
    "executions of a rate begin one after another, each at its own time, and are not judged again": (
        crowd(SLOW),
        """
        claim a
        claim b = limited
        delay = 5000
        claim c = limited
        delay = 10000
        stands = executing: a running, b retrying, c retrying
        sweep 5 = b.1.1
        claim b
        sweep 5 = c.1.1
        claim c
        """,
    ),
    "an execution under several rates begins when all allow it": (
        crowd(SLOW, Limit("slower", rate=1, per=60)),
        """
        claim a
        claim b = limited
        delay = 60000
        """,
    ),
    "a node that begins a child run returns its place to the next in line, before the child has one": (
        crowd(ONE),
        """
        claim a
        claim b = limited
        begin a
        rings = b.1.1 x.1.1
        """,
    ),
    "the place of a lost worker is free with its lease; the lost node asks for one again": (
        crowd(ONE),
        """
        claim a
        wait 29
        claim b = limited
        sweep 1 = a.1.2 b.1.1 c.1.1
        claim a.1.2 = limited
        claim b
        """,
    ),
    "no run is passed over for a node of a cancelled one: its place goes to the next run": (
        crowd(ONE, names="a"),
        """
        another two
        another three
        claim a
        claim two/a = limited
        claim three/a = limited
        cancel two/
        settle a
        begins = three/
        """,
    ),
    "a place that is kept for a node goes to the next one when its run is cancelled": (
        crowd(ONE, names="a"),
        """
        another two
        another three
        claim a
        claim two/a = limited
        claim three/a = limited
        settle a
        begins = two/
        cancel two/
        begins = three/
        """,
    ),
}


def set_limit(store: Store, key: str, change: Callable[[LimitSetting], LimitSetting]) -> None:
    """Change what is set of a limit, named by one of its keys."""
    store.do(ChangeLimit(name_of(key), change, "limit.set", f"limit:{key}"))


class LimitSettingsContract:
    """Numbers and pauses that are set while runs go on."""

    @pytest.mark.scripts
    def test_a_number_that_is_set_wins_until_it_is_reset(self, worker, store):
        """The next claim and the next free slots count by what is set of a limit, then by the code again."""
        run_id = worker.start(crowd(Limit("two", concurrency=2), names="a b c d"))
        set_limit(store, "two", lambda setting: replace(setting, concurrency=1))
        token = worker.token(run_id, "a")
        for node in "bcd":
            worker.limited(run_id, node)
        assert worker.end(token) == ["b.1.1"]
        token = worker.token(run_id, "b")

        set_limit(store, "two", lambda setting: LimitSetting(setting.id))
        assert worker.end(token) == ["c.1.1", "d.1.1"]
        worker.claim(run_id, "c")
        worker.claim(run_id, "d")

    def test_slots_bind_no_limit_that_has_a_rate_alone(self, worker, store):
        """Two graphs may declare one name differently: slots count where the code has some."""
        run_id = worker.start(crowd(Limit("one", rate=1)))
        set_limit(store, "one", lambda setting: replace(setting, concurrency=1))
        for node in "ab":
            worker.claim(run_id, node)
            worker.clock.advance(1)

    @pytest.mark.scripts
    @pytest.mark.parametrize("by", ["all", "tag:tenant"])
    def test_the_first_of_two_declarations_holds(self, worker, store, by):
        """Slots and rate are the first's, at claims and offers, while graphs differ; control: its own."""
        limit = Limit("two", concurrency=2, rate=1000, by=by)
        start = limit.shape("", "").start
        run_id = worker.start(crowd(limit, names="a b c d"))
        older = [(start, 1, 7_000), limit.shape("", "").numbers]
        set_limit(store, "two", lambda setting: setting.declare(older))
        token = worker.token(run_id, "a")
        assert worker.limited(run_id, "b").delay_ms == 7_000
        for node in "bcd":
            worker.clock.advance(7)
            worker.sweep()
            worker.limited(run_id, node)
        assert worker.end(token) == ["b.1.1"]
        token = worker.token(run_id, "b")

        set_limit(store, "two", lambda setting: setting.declare(older[1:]))
        assert worker.end(token) == ["c.1.1", "d.1.1"]

    def test_slots_that_are_added_are_taken(self, worker, store):
        """Where more may run by a change, those that wait are rung by the next sweep."""
        run_id = worker.start(crowd(ONE))
        worker.claim(run_id, "a")
        worker.limited(run_id, "b")
        worker.sweep()
        set_limit(store, "one", lambda setting: replace(setting, concurrency=2))
        assert "b.1.1" in worker.sweep()
        worker.claim(run_id, "b")
        worker.limited(run_id, "c")

    def test_a_rate_that_is_set_wins(self, worker, store):
        """The next execution reserves the time of the rate that is set; control: that of the code."""
        for name, per in (("code", 100), ("set", 7)):
            run_id = worker.start(crowd(Limit(name, rate=1, per=100), name=name))
            if name == "set":
                set_limit(store, name, lambda setting: replace(setting, interval=7_000))
            worker.claim(run_id, "a")
            assert worker.limited(run_id, "b").delay_ms == per * 1000

    @pytest.mark.parametrize("ends", [True, False])
    def test_nothing_starts_under_a_paused_limit(self, worker, store, *, ends):
        """Its nodes stay ready until the pause ends, by itself or by hand; then each is rung for."""
        run_id, token = worker.begin(crowd(ONE))
        until = worker.clock() + 200_000 if ends else 0
        set_limit(store, "one", lambda setting: setting.pause(LimitPause("one", until)))
        worker.end(token)
        for node in "bcb":
            worker.limited(run_id, node)
        assert worker.kinds(run_id).count("node.limited b") == 1
        assert worker.sweep(after=199) == []
        worker.limited(run_id, "c")

        if not ends:
            set_limit(store, "one", lambda setting: setting.resume("one"))
        assert set(worker.sweep(after=1)) == {"b.1.1", "c.1.1"}
        worker.claim(run_id, "b")
        worker.limited(run_id, "c")

    def test_one_key_is_paused_alone(self, worker, store):
        """Runs with another value of the tag go on; a pause of the key ends alone, or with the limit's."""
        limit, runs = Limit("two", concurrency=2, by="tag:tenant"), {}
        for tenant in ("x", "y"):
            runs[tenant] = worker.start(crowd(limit), tags={"tenant": tenant})
        key = "two:tag:tenant:x"
        set_limit(store, key, lambda setting: setting.pause(LimitPause(key, 0)))
        worker.limited(runs["x"], "a")
        worker.claim(runs["y"], "a")

        set_limit(store, key, lambda setting: setting.pause(LimitPause("two", 0)))
        set_limit(store, key, lambda setting: setting.resume(key))
        for run_id in runs.values():
            worker.limited(run_id, "b")
        set_limit(store, key, lambda setting: setting.resume("two"))
        for run_id in runs.values():
            worker.claim(run_id, "b")

    @pytest.mark.scripts
    def test_a_paused_key_keeps_no_slot_from_others(self, worker, store):
        """Rung for a slot of another limit, its nodes pass it on; after the pause they have their order."""
        by_tenant, runs = Limit("tenant", concurrency=9, by="tag:t"), {}
        busy = worker.token(worker.start(crowd(ONE, name="busy")), "a")
        for node in ("x1", "x2", "y1", "x3"):
            graph = crowd(ONE, by_tenant, names=node, name=node)
            runs[node] = worker.start(graph, tags={"t": node[0]})
            worker.limited(runs[node], node)
            worker.clock.advance(1)
        key = "tenant:tag:t:x"
        set_limit(store, key, lambda setting: setting.pause(LimitPause(key, 0)))

        assert worker.end(busy) == ["x1.1.1"]
        assert rung(worker.limited(runs["x1"], "x1")) == ["x2.1.1"]
        assert rung(worker.limited(runs["x2"], "x2")) == ["y1.1.1"]
        token = worker.token(runs["y1"], "y1")

        set_limit(store, key, lambda setting: setting.resume(key))
        for node in ("x2", "x1"):
            worker.limited(runs[node], node)
        assert worker.end(token) == ["x1.1.1"]
        assert worker.end(worker.token(runs["x1"], "x1")) == ["x2.1.1"]


SCRIPTS = {
    "a kept place lapses after a lease, and every waiting node is rung again": (
        crowd(ONE),
        """
        claim a
        claim b = limited
        wait 0.01
        claim c = limited
        settle a
        rings = b.1.1
        sweep 30 = b.1.1 c.1.1
        claim c
        claim b = limited
        """,
    ),
    "a rate that was not used is not saved up": (
        crowd(SLOW),
        """
        wait 60
        claim a
        claim b = limited
        delay = 5000
        """,
    ),
}
"""Stories of scripts, and of verbs that partitions route."""


class LimitContract:
    """Concurrency and rates."""

    @stories(STORIES)
    def test_a_limit_holds_as_its_story_says(self, worker, graph, story):
        """Who has a place, and who waits for what."""
        tell(Story(worker, graph), story)

    @pytest.mark.routed
    @pytest.mark.scripts
    @stories(SCRIPTS)
    def test_a_limit_holds_in_scripts_as_its_story_says(self, worker, graph, story):
        """Kept places, and rates after a rest."""
        tell(Story(worker, graph), story)

    @pytest.mark.scripts
    def test_a_place_goes_to_the_one_that_waits_longest(self, worker):
        """A node without a place stays ready; each place that becomes free rings the first in the queue."""
        run_id = worker.start(crowd(ONE))
        first = worker.claim(run_id, "b")
        worker.limited(run_id, "c")
        worker.clock.advance(1)
        worker.limited(run_id, "a")
        assert worker.statuses(run_id) == "executing: a ready, b running, c ready"

        assert worker.end(first.token) == ["c.1.1"]
        worker.limited(run_id, "a")
        assert worker.end(worker.token(run_id, "c")) == ["a.1.1"]
        assert worker.end(worker.token(run_id, "a")) == []

    def test_limits_are_shared_as_they_say(self, worker):
        """A limit counts together what has the same graph, node or value of a tag."""
        places = {
            "graph": ("g.a g.b", "h.a"),
            "node": ("g.a", "g.b h.a"),
            "tag:tenant": ("g.a g.b h.a", ""),
        }
        for by, (together, apart) in places.items():
            limit = Limit(by.replace(":", " "), concurrency=1, by=by)
            runs = {
                name: worker.start(crowd(limit, names="a b", name=name), tags={"tenant": "x"})
                for name in "gh"
            }
            first = worker.claim(runs["g"], "a")
            words = {
                where: word_of(
                    worker.store.do(ClaimVisit(runs[where[0]], where[2], 1, 1, worker.nonce()))
                )
                for where in [*together.split()[1:], *apart.split()]
            }
            assert words == dict.fromkeys(together.split()[1:], "limited") | dict.fromkeys(
                apart.split(), "claimed"
            )
            worker.end(first.token)

    def test_a_value_of_the_input_has_places_of_its_own(self, worker):
        """Runs whose tasks have another value at the path do not wait; those with the same value do."""
        limit = Limit("customer", concurrency=1, by="input:customer.id")
        one, same, other = (
            worker.start(crowd(limit, names="a"), task={"customer": {"id": number}})
            for number in (7, "7", 8)
        )
        first = worker.claim(one, "a")
        worker.claim(other, "a")
        worker.limited(same, "a")

        settlement = Settlement(Status.COMPLETED, "", None, {"v": 1})
        reply = worker.store.do(SettleVisit(first.token, settlement, worker.nonce()))
        assert [bell.run_id for bell in reply.doorbells] == [same]
        worker.claim(same, "a")

    @pytest.mark.full
    @pytest.mark.parametrize("more", [0, 600])
    def test_the_items_of_a_map_are_counted_by_their_own_values(self, worker, more):
        """An item waits for those that have its value, and not for the others of its map."""
        limit = Limit("item", concurrency=1, by="input:id")
        run_id, token = worker.begin(
            shape("m", maps={"m": MapSpec("function")}, limits={"m": [limit]}), node="m"
        )
        items: list[JSON] = [{"id": "x"}, {"id": "x"}, {"id": "y"}, *[{"id": "z"}] * more]
        assert worker.store.do(ExpandMap(token, items)).word == "expanded"
        worker.claim(run_id, "m[0]")
        worker.claim(run_id, "m[2]")

        worker.limited(run_id, "m[1]")

    def test_a_node_without_the_value_waits_for_none(self, worker):
        """A worker gets it at once, since it fails it; a value that is no key counts as a missing one."""
        limit = Limit("customer", concurrency=1, by="input:customer.id")
        for task in (
            {"customer": "x"},
            {"customer": {"id": True}},
            {"customer": {"id": "x" * 201}},
        ):
            for _ in range(2):
                worker.claim(worker.start(crowd(limit, names="a"), task=task), "a")

    def test_a_repeated_claim_is_refused_once(self, worker, store):
        """A claim delivered twice takes one slot of the rate."""
        run_id = worker.start(crowd(SLOW))
        worker.claim(run_id, "a")
        words = [word_of(store.do(ClaimVisit(run_id, "b", 1, 1, "same"))) for _ in range(2)]

        assert words == ["limited", "limited"]
        assert worker.limited(run_id, "c").delay_ms == 10_000
