"""Whatever happens to graphs with maps, the stores do what the slow and obvious model says.

The machine is that of graphs without maps. Some nodes are maps here; a claim of one may be expanded
into items, which are claimed, asked, lost and ended like other nodes.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from runner.definition.model import MapSpec, index_of, item_id, map_of
from runner.store.requests import CancelRun, ExpandMap
from tests.properties.machines import play
from tests.properties.reference_maps import ENDED, MapWorld
from tests.properties.test_graph_against_model import (
    Against,
    AgainstRedis,
    Bell,
    definitions,
    key,
)

EXAMPLES = hypothesis.settings.default.max_examples
WINDOWS = st.sampled_from([None, 1, 1, 2, 3])
MAPS = st.builds(MapSpec, st.just("function"), st.none(), WINDOWS, st.booleans())
COUNTS = st.sampled_from([0, 1, 2, 3, 3, 4, 5])
DEEDS = st.sampled_from(
    ["end", "end", "end", "fail", "fail", "ask", "delegate", "retry", "keep"]
)
LATE_DEEDS = st.sampled_from(["end", "fail", "ask", "delegate", "retry"])
"""What items do whose map has stopped."""
MANY_DEEDS = st.lists(DEEDS, min_size=1, max_size=5)


@st.composite
def mapped(draw, name):
    """Draw a graph, and make maps of some of its nodes: of those that are ready first, in any case."""
    definition = draw(definitions(name))
    nodes = {
        node: replace(
            spec, map=draw(MAPS if node in definition.entries else MAPS | MAPS | st.none())
        )
        for node, spec in definition.nodes.items()
    }
    return replace(definition, nodes=nodes)


class AgainstMaps(Against):
    """Does to maps and their items, too, what can be done, and compares."""

    world = MapWorld

    @initialize(
        first=mapped("first"),
        second=mapped("second"),
        data=st.data(),
        count=COUNTS | st.just(3),
        begins=st.sampled_from(["", "work", "fail", "fail", "pass"]),
    )
    def publish(self, first, second, data, count, begins):
        """Begin with a map that is at work, for only few steps of any that are drawn lead to one."""
        self.publish_both(first, second)
        for bell in [bell for bell in self.bells if self.spec(bell)]:
            self.expand_with(self.take(bell), count)
        if begins == "work":
            self.work_through_a_list(data, data.draw(MANY_DEEDS))
        elif begins == "fail":
            again = data.draw(st.booleans())
            self.fail_beside_others(
                data, data.draw(LATE_DEEDS), again, data.draw(COUNTS | st.none())
            )
        elif begins == "pass":
            self.pass_the_bound(data)

    @rule(data=st.data(), count=COUNTS | st.none())
    def expand(self, data, count):
        if claims := [claim for claim in self.claims if self.spec(claim.token)]:
            self.expand_with(self.pick(data, claims), count)

    @rule(data=st.data(), count=COUNTS)
    def claim_and_expand(self, data, count):
        if claim := self.take_a_map(data):
            self.expand_with(claim, count)

    @rule(data=st.data(), count=COUNTS, lasts=st.sampled_from([None, 20.0]))
    def ask_and_expand(self, data, count, lasts):
        """A map that has a question open waits for its items all the same."""
        if claim := self.take_a_map(data):
            self.ask(claim, "ask", "x", lasts, self.ending(data, claim) if lasts else "")
            self.expand_with(claim, count)
            self.pass_time(lasts or 0)

    @rule(data=st.data(), count=COUNTS, rarely=st.sampled_from([False, False, True]))
    def expand_while_the_run_stops(self, data, count, rarely):
        if rarely and (claim := self.take_a_map(data)):
            run_id = claim.token.run_id
            assert self.store.do(CancelRun(run_id, "enough")).word == self.model.cancel(
                run_id, "enough"
            )
            self.expand_with(claim, count)

    @rule(data=st.data())
    def try_a_map_again(self, data):
        if claim := self.take_a_map(data):
            self.retry_with(claim, 0, counts=True)
            self.pass_time(1)

    @rule(data=st.data(), deeds=MANY_DEEDS)
    def work_through_a_list(self, data, deeds):
        """Workers take the items of one map that are ready, and do something with each."""
        run_id, items = self.ready_list(data)
        for item, deed in zip(items, deeds, strict=False):
            # What was done with the items before may have cancelled this one.
            if item.status == "ready":
                self.do(self.take_visit(run_id, item), deed)

    @rule(data=st.data())
    def pass_the_bound(self, data):
        """An item asks, another one takes its place, and the first is answered: both are at work, and end."""
        run_id, items = self.ready_list(data)
        if items:
            self.do(self.take_visit(run_id, items[0]), "ask")
            self.respond([question.id for question in items[0].open()])
            self.work_through_a_list(data, ["end"] * 5)

    @rule(data=st.data(), later=LATE_DEEDS, again=st.booleans(), count=COUNTS | st.none())
    def fail_beside_others(self, data, later, again, count):
        """An item fails while one waits and others run; these go on, and the map is perhaps tried again."""
        run_id, items = self.ready_list(data)
        if not items:
            return
        claims = [self.take_visit(run_id, item) for item in items[:4]]
        for claim in claims[:-1][:1]:
            self.do(claim, "ask")
        self.do(claims[-1], "fail")
        for claim in claims[1:-1]:
            self.do(claim, later)
            if again:
                self.do(claim, "end")
        owner = self.model.runs[run_id].visits[items[0].owner, items[0].number]
        if again and owner.status == "ready":
            self.retry_with(self.take_visit(run_id, owner), 0, counts=True)
            self.pass_time(1)
            # Its worker goes on with the list that is there, or it has a second one.
            if owner.status == "ready":
                self.expand_with(self.take_visit(run_id, owner), count)

    def ready_list(self, data):
        """Choose a map with items that a worker could take, if there is one: its run, and those in order."""
        ready = self.ready_items()
        if not ready:
            return "", []
        chosen = data.draw(
            st.sampled_from(sorted({(run_id, item.owner) for run_id, item in ready}))
        )
        return chosen[0], [item for run_id, item in ready if (run_id, item.owner) == chosen]

    def take_visit(self, run_id, visit):
        """Claim a visit in the attempt that it is in."""
        return self.take(Bell(run_id, visit.node, visit.number, visit.attempt))

    def ready_items(self):
        """List the items that a worker could take."""
        return [
            (run.id, visit)
            for run in self.model.runs.values()
            for visit in run.open()
            if visit.is_item and visit.status == "ready"
        ]

    def do(self, claim, deed):
        """Do with a claimed item what may be done with any node."""
        match deed:
            case "end" | "fail":
                self.settle_with(claim, 511, deed == "fail")
            case "ask":
                self.ask(claim, "park", "x", None, "")
            case "delegate" if len(self.model.runs) < 6:
                self.begin(1, claim)
            case "retry":
                self.retry_with(claim, 700, counts=True)

    def settle_with(self, claim, bits, fails):
        """A worker that completes a map has expanded it, unless its list is empty."""
        token = claim.token
        has_list = (token.run_id, token.node, token.visit) in self.model.lists
        if fails or has_list or bits % 5 == 0 or self.spec(token) is None:
            super().settle_with(claim, bits, fails)
        else:
            self.expand_with(claim, bits % 5)

    def take_a_map(self, data):
        """Claim a map, if one may be ready."""
        bells = [bell for bell in self.bells if self.spec(bell)]
        return self.take(self.pick(data, bells)) if bells else None

    def spec(self, at):
        """Say what the graph says of a map; None for items and other nodes."""
        return self.model.spec(self.model.runs[at.run_id], at.node)

    def expand_with(self, claim, count):
        # Every list is another one, so that a second list of a visit would show.
        values = (
            None if count is None else [f"{self.nonce()} {place}" for place in range(count)]
        )
        reply = self.store.do(ExpandMap(claim.token, values))
        assert reply.word == self.model.expand(key(claim), values)
        self.bells += reply.doorbells

    def take(self, bell):
        """A claim tells an item what it is, and a map what became of its items, in their order."""
        claim = super().take(bell)
        if claim is None:
            return None
        run = self.model.runs[bell.run_id]
        visit = run.visits[bell.node, bell.visit]
        items = self.model.list_of(run, visit)
        if visit.is_item:
            assert claim.task == items.values[index_of(bell.node)]
        elif items is None:
            assert claim.map is None
        else:
            self.compare_items(claim, items, self.model.items(run, visit))
        return claim

    def compare_items(self, claim, values, items):
        """Compare what a map reads when all of its items have ended."""
        token = claim.token
        ended = all(item.status in ENDED for item in items) and (
            values.stopped or values.begun == len(values.values)
        )
        assert (claim.map.total, claim.map.stopped) == (len(values.values), values.stopped)
        assert claim.map.has_ended is ended
        names = [item_id(token.node, place) for place in range(len(items))]
        assert names == [item.node for item in items]
        fetched = self.store.fetch(token.run_id, names)
        assert [str(record.status) for record, _, _ in fetched] == [
            item.status for item in items
        ]
        assert [output for _, output, _ in fetched] == [
            f"{item.node}{item.number}" if item.status == "completed" else None
            for item in items
        ]

    def others(self, token):
        """An item that waits gives its place away, so its map and its siblings may stand elsewhere."""
        owner, records = map_of(token.node), super().others(token)
        return {
            name: record
            for name, record in records.items()
            if not owner or owner not in {name, map_of(name)}
        }


class AgainstMapsInRedis(AgainstMaps, AgainstRedis):
    """The same on a real Redis."""


@pytest.mark.full
def test_memory_does_with_maps_what_the_model_says():
    """Items begin in order, within their bound, and end, wait and stop as the model says."""
    play(AgainstMaps, EXAMPLES // 4)


@pytest.mark.full
def test_redis_does_with_maps_what_the_model_says(store_server):
    """So they do on a real Redis."""
    play(AgainstMapsInRedis, EXAMPLES // 10, url=store_server.url)
