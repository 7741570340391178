"""Transitions by plans: the scheduler decides in Python, one script applies.

What is not planned yet returns None, and the store takes the general script; both work on the same records.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from runner.definition.model import InEdge, Topology, index_of, map_of, shape_name
from runner.records.events import EventKind
from runner.records.interrupts import Answer, Interrupt, address_of, first_reminder
from runner.records.listings import outermost
from runner.records.run import Status
from runner.scheduler import plan as plans
from runner.scheduler.changes import SetTimer, TimerKind
from runner.scheduler.plan import Plan, Refusal, plannable, scopes
from runner.store import encoding, event_payloads
from runner.store.encoding import doorbells_of, dump, load, topology_of
from runner.store.interface import Claim, Reply, Settlement, Token
from runner.store.redis.connection import Argument
from runner.store.redis.plans import (
    Known,
    arguments,
    claim_fields,
    fence_step,
    known_topology,
    loop_text,
    node_text,
)
from runner.store.redis.script_values import _decided, question_arguments

if TYPE_CHECKING:
    from runner.store.redis.store import RedisStore

TRIES = 50
"""How often a plan is made again because something has changed meanwhile."""

REMEMBERED = 20_000
"""Runs of which this process remembers the graph."""

EXPRESSIONS = {
    "id": "id",
    "correlation_id": "id",
    "root_id": "ARGV[2]",
    "parent_id": "ARGV[4]",
    "delivery_tag": "id .. '@' .. moment",
    "queue": "plain(queue)",
    "shadow": "plain(ARGV[3] .. '/' .. name)",
    "priority": "priority",
    "argsrepr": "'visit=' .. visit .. ' attempt=' .. attempt",
}


def message_code(template: str, places: Sequence[str]) -> str:
    """Write the function `message` of a script, with the template as a constant."""
    values = ", ".join(EXPRESSIONS[place] for place in places)
    return (
        "local function plain(text) return text:find('[%c\"\\\\]') and cjson.encode(text):sub(2, -2) or text end\n"
        f"local TEMPLATE = [==[{template}]==]\n"
        "local function message(id, name, visit, attempt, queue, priority, moment)\n"
        f"id = plain(id)\nreturn TEMPLATE:format({values})\nend\n"
    )


@lru_cache(maxsize=8)
def _constants(lease_ms: int, most: int) -> str:
    return f"local LEASE, MOST = {lease_ms}, {most}\n"


class _Staying(threading.local):
    left = 0


STAYING = _Staying()
"""How many more nodes this thread may go on with by itself: see `Engine.deliver`."""


def _alone(topology: Topology, node: str, edges: str) -> bool:
    """Whether what follows a node has no other source: then its inputs are known without reading."""
    targets = topology.outgoing[node]
    if len(targets) != 1:
        return False
    shape = topology.nodes[targets[0].target]
    return len(topology.incoming[targets[0].target]) == 1 and not (shape.limits or shape.map)


class Planned:
    """Makes plans for one store, and has them applied."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._shapes: dict[str, Topology] = {}
        self._graphs: dict[str, tuple[str, str, tuple[bytes, bytes] | None]] = {}
        self._lease = f"local LEASE = {store.lease_ms}\n"
        self._head = "local message = false\n"
        self._suffixes: Mapping[int, str] = {}
        self._looked = 0.0
        self._looked_at = threading.local()
        self._plain: dict[tuple[int, str, str], Any] = {}
        self.conflicts = 0
        self.applied = 0

    def _constants(self) -> str:
        return _constants(self._store.lease_ms, self._store.max_run)

    # What is known of graphs and runs

    def publish(self, topologies: Sequence[Topology]) -> None:
        """Remember the shapes that this process has made itself."""
        for topology in topologies:
            self._shapes.setdefault(topology.fingerprint, known_topology(topology))

    def _topology(self, graph_id: str, fingerprint: str) -> Topology | None:
        if fingerprint not in self._shapes:
            fields = self._store._queries.shape(fingerprint)
            if not fields:
                return None
            self._shapes[fingerprint] = known_topology(topology_of(graph_id, fingerprint, fields))
        return self._shapes[fingerprint]

    def _remember(self, run_id: str, of: bytes) -> tuple[str, str, tuple[bytes, bytes] | None]:
        """Remember a run's graph; its task and state, which never change, are remembered by the first claim."""
        fingerprint, _, graph_id = of.decode().split(" ", 2)
        if len(self._graphs) > REMEMBERED:
            self._graphs.clear()
        known = self._graphs.get(run_id)
        found = self._graphs[run_id] = fingerprint, graph_id, known[2] if known else None
        return found

    def _can_ring(self) -> bool:
        """Whether doorbells can be pushed, or need not be: without a template the general scripts wake a sweep."""
        if not self._store._push or self._suffixes:
            return True
        now = time.monotonic()
        if now - self._looked < 1 and self._looked:
            return False
        self._looked = now
        fields = self._store._redis.client.hgetall(self._store._keys.doorbell)
        if not fields:
            return False
        said = {name.decode(): value.decode() for name, value in fields.items()}
        self._head = message_code(said.pop("template"), said.pop("places").split())
        self._suffixes = {int(priority): suffix for priority, suffix in said.items()}
        return True

    # Applying

    def _apply(self, verb: str, plan: Plan, known: Known, **more: Any) -> list[Any]:
        store = self._store
        now: Argument = store.clock() if store.clock else ""
        reply = store._retried(
            verb,
            "apply",
            now,
            *arguments(plan, known, suffixes=self._suffixes, lease_ms=store.lease_ms, **more),
            head=self._constants() + self._head,
        )
        if reply[0] == b"changed":
            self.conflicts += 1
        else:
            self.applied += 1
        return reply

    def _reply(self, run_id: str, plan: Plan, reply: list[Any]) -> Reply:
        if isinstance(reply[0], bytes):
            return Reply(reply[0].decode())
        if reply[0] and os.environ.get("SPIKE_PLANS") == "1":
            # Tests that call the store without an engine: the steps that follow are taken here.
            bells, todo = doorbells_of(reply), list(reply[0])
            while todo:
                step = self.follow(run_id, todo.pop(0).decode())
                bells += step.doorbells
                todo += [what.encode() for _, what in step.follow]
            return Reply(plan.word, bells)
        return Reply(plan.word, doorbells_of(reply), follow=[(run_id, what.decode()) for what in reply[0]])

    def _learn(self, plan: Plan, known: Known) -> None:
        """Remember for a step that follows what this plan has written: then it need not be read."""
        topology = known.topology
        for name, record in plan.nodes.items():
            known.raw[f"n:{name}"] = node_text(record, topology.nodes[shape_name(name)].scope).encode()
        for number, loop in plan.loops.items():
            known.raw[f"l:{number}"] = loop_text(loop)
        self._looked_at.followed = known

    @staticmethod
    def _changed(plan: Plan, known: Known, reply: list[Any]) -> bool:
        """Learn what there is now; False where a plan can't be made of it."""
        _, run, _, lock, *values = reply
        if lock:
            return False
        stopping = run.rpartition(b" ")[2].decode()
        known.stopping = "" if stopping == "-" else stopping
        known.fresh = True
        fields = [f"n:{node}" for node in plan.guards] + [f"l:{loop}" for loop in plan.loop_guards]
        for name, value in zip(fields, [*values, *[None] * len(fields)], strict=False):
            if value is None:
                known.raw.pop(name, None)
            else:
                known.raw[name] = value
        return True

    def _refreshed(self, known: Known, node: str) -> bool:
        """Read again what a refusal was made of, unless it was read for this request; False where it was."""
        if known.fresh:
            return False
        read = self._read(known.run_id, [f"n:{node}", *known.raw])
        if read is not None:
            known.raw, known.stopping = read.raw, read.stopping
        known.fresh = True
        return read is not None

    def _read(self, run_id: str, fields: Sequence[str]) -> Known | None:
        """Read what a plan needs, where no claim has seen it."""
        store = self._store
        return self._of(
            run_id,
            fields,
            store._redis.call("HMGET", store._keys.run(run_id), "run", "of", "root", *fields),
        )

    def _of(self, run_id: str, fields: Sequence[str], found: Sequence[Any]) -> Known | None:
        run, of, root, *values = found
        if run is None:
            return None
        fingerprint, graph_id, _ = self._remember(run_id, of)
        topology = self._topology(graph_id, fingerprint)
        if topology is None or of.split(b" ", 2)[1] != b"-":
            return None
        stopping = run.rpartition(b" ")[2].decode()
        raw = {name: value for name, value in zip(fields, values, strict=True) if value is not None}
        return Known(run_id, graph_id, topology, raw, root.decode(), "" if stopping == "-" else stopping)

    # Claim

    def claim(self, run_id: str, node: str, visit: int, attempt: int, nonce: str) -> Claim | None:
        """Claim a visit; None where the general script must decide."""
        store = self._store
        now: Argument = store.clock() if store.clock else ""
        for _ in range(2):
            hint = self._graphs.get(run_id)
            topology = self._shapes.get(hint[0]) if hint else None
            fields: tuple[str, ...] = ("task", "given")
            if topology is not None and hint is not None:
                shape = topology.nodes.get(shape_name(node))
                if shape is None or shape.limits:
                    return None
                if node.endswith("]") and not (topology.nodes[map_of(node)].map):
                    return None
                fields = claim_fields(topology, node) + (() if hint[2] else fields)
            item = f"{map_of(node)}.{visit}.{index_of(node)}" if node.endswith("]") else ""
            reply = store._retried(
                "claim",
                "seize",
                now,
                run_id,
                node,
                visit,
                attempt,
                nonce,
                fence_step(nonce),
                topology.fingerprint if topology else "",
                item,
                *fields,
                head=self._lease,
            )
            if reply[0] != b"shape":
                break
            found = self._remember(run_id, reply[1])
            if self._topology(found[1], found[0]) is None:
                return None
        if topology is None or hint is None or reply[0] in (b"other", b"shape"):
            return None
        return self._claimed(run_id, node, topology, hint, fields, reply)

    def _claimed(
        self, run_id: str, node: str, topology: Topology, hint: Any, fields: Sequence[str], reply: list[Any]
    ) -> Claim:
        text, *values = reply
        asked = values[len(fields) :]
        own, _ = encoding.node_record(text)
        raw = {name: value for name, value in zip(fields, values, strict=False) if value is not None}
        graph_id = hint[1]
        if hint[2] is None:
            hint = self._graphs[run_id] = (*hint[:2], (raw["task"], raw["given"]))
        task, given = hint[2]
        inputs = self._inputs(run_id, topology, node, own, raw)
        seen = Known(
            run_id,
            graph_id,
            topology,
            {name: value for name, value in raw.items() if name.startswith("l:")},
            run_id,
        )
        around = topology.nodes[shape_name(node)].loops
        if around and (header := f"n:{topology.loops[around[0]].header}") in raw:
            seen.raw[header] = raw[header]
        seen.raw[f"n:{node}"] = text
        seen.records[text] = own
        item, q, questions, decisions, kept = asked or (None,) * 5
        if q is not None:
            seen.raw[f"q:{node}"] = q
        document, own_task, messages = kept or (None, None, [])
        seen.kept = len(document or b""), [len(message) for message in messages]
        outputs = [output for _, _, output in inputs]
        task_, given_, *large = self._store._large.get([item or own_task or task, given, *outputs])
        return Claim(
            token=Token(run_id, node, own.visit, own.fence, seen),
            graph_id=graph_id,
            fingerprint=topology.fingerprint,
            current=topology.fingerprint,
            signature=topology.nodes[shape_name(node)].signature,
            record=own,
            task=load(task_),
            given=load(given_),
            inputs=[
                (source, number, load(output))
                for (source, number, _), output in zip(inputs, large, strict=True)
            ],
            answers=_decided(questions, decisions) if q is not None else [],
            document=load(document) if document else None,
            messages=[load(message) for message in messages],
            map=encoding.map_of_visit(raw.get(f"m:{node}"), own.visit),
        )

    def _inputs(
        self, run_id: str, topology: Topology, node: str, own: Any, raw: Mapping[str, bytes]
    ) -> list[tuple[str, int, bytes]]:
        """Find the outputs that reach a visit, in edge order; those of later visits are read apart."""
        incoming = topology.incoming[shape_name(node)]
        if not incoming:
            return []
        if topology.loops:
            visits = plans.live_inputs(Known(run_id, "", topology, dict(raw)).view(), node, own)
        else:
            visits = _forward_inputs(incoming, raw)
        missing = [f"o:{source}.{visit}" for source, visit in visits if visit != 1]
        more: dict[str, bytes | None] = {}
        if missing:
            values = self._store._redis.call("HMGET", self._store._keys.run(run_id), *missing)
            more = dict(zip(missing, values, strict=True))
        return [
            (
                source,
                visit,
                (raw.get(f"o:{source}.1") if visit == 1 else more[f"o:{source}.{visit}"]) or b"null",
            )
            for source, visit in visits
        ]

    # Settle

    def settle(self, token: Token, settlement: Settlement, nonce: str) -> Reply | None:
        """Complete a visit; None where the general script must decide."""
        seen = token.seen
        if (
            not isinstance(seen, Known)
            or settlement.status is not Status.COMPLETED
            or settlement.session
            or settlement.insist
            or not plannable(seen.topology, token.node)
            or not self._can_ring()
        ):
            return None
        if settlement.reads and any(
            seen.topology.nodes[name].loops for name, _, _ in settlement.reads if name in seen.topology.nodes
        ):
            return None
        if settlement.saved and seen.kept is None:
            return None
        store = self._store
        keeps, more = _keep(seen, token.node, settlement.saved)
        at, item = f"{token.node}.{token.visit}", token.node.endswith("]")
        output = store._written(token, settlement.output)
        entry = store._written(token, settlement.entry)
        short = output if len(output) <= event_payloads.SHORT and not output.startswith(b"@") else b""
        if not (settlement.reads or keeps or item or seen.topology.loops):
            plain = self._settle_plain(token, seen, settlement.edges, nonce, (output, entry, short))
            if plain is not None:
                return plain
        seen.fresh = False
        for _ in range(TRIES):
            view = seen.view()
            record = view.node(token.node)
            if record.questions or view.stopping:
                return None
            plan = plans.settle(
                view,
                token.node,
                token.visit,
                token.fence,
                nonce=nonce,
                edges=settlement.edges,
                reads=settlement.reads,
            )
            if isinstance(plan, Refusal):
                if self._refreshed(seen, node=token.node):
                    continue
                return Reply(plan.word)
            reply = self._apply(
                "settle",
                plan,
                seen,
                bytes_more=len(output) + len(entry) + more,
                commands=keeps,
                rung_by=dump(f"{token.run_id}.{token.node}.{token.visit}.{record.attempt}").decode(),
                puts=[
                    *_marked(token.node, keeps),
                    (f"o:{at}", output),
                    *([(f"x:{at}", b"0 " + entry)] if item else []),
                ],
                results=[] if item else [(f"x:{at}", entry)],
                data=lambda event: short if event.kind is EventKind.NODE_COMPLETED else b"",
            )
            if reply[0] == b"other":
                return None
            if reply[0] != b"changed":
                if reply[0]:
                    self._learn(plan, seen)
                return self._reply(token.run_id, plan, reply)
            before = dict(seen.raw)
            if not self._changed(plan, seen, reply):
                return None
            if settlement.reads and before == seen.raw and not seen.stopping:
                return Reply("changed")
        return None

    def _settle_plain(
        self, token: Token, seen: Known, edges: str, nonce: str, data: tuple[bytes, bytes, bytes]
    ) -> Reply | None:
        """Settle with the arguments of the last such plan: most differ only in the node's own record.

        None where that does not hold, or something has changed.
        """
        node, (output, entry, short) = token.node, data
        raw = seen.raw[f"n:{node}"]
        status, visit, attempt, fence, stamp, bits, _, rest = raw.split(b" ", 7)
        if rest or status != b"running" or bits != b"-" or stamp != b"0" or seen.stopping:
            return None
        if int(visit) != token.visit or int(fence) != token.fence:
            return None
        key = id(seen.topology), node, edges
        shape = self._plain.get(key)
        text = f"completed {token.visit} {attempt.decode()} {token.fence} 0 {edges or '-'} {nonce} "
        if shape is None:
            shape = self._plain[key] = self._plain_shape(token, seen, edges, nonce, text)
        if not shape:
            return None
        pre, mid = shape
        at, run_id, store = f"{node}.{token.visit}", token.run_id, self._store
        stays = STAYING.left > 0 and "1" in edges and _alone(seen.topology, node, edges)
        rung_by = (
            f'"{run_id}.{at}.{attempt.decode()}"'
            if node.isascii()
            else dump(f"{run_id}.{at}.{attempt.decode()}")
        )
        reply = store._retried(
            "settle",
            "apply",
            store.clock() if store.clock else "",
            run_id,
            seen.graph_id,
            rung_by,
            len(output) + len(entry),
            *pre[:2],
            f"{fence_step(nonce + 'm')} {nonce}m" if stays else "",
            *pre[2:],
            raw,
            *mid,
            f"n:{node}",
            text,
            f"o:{at}",
            output,
            f"x:{at}",
            entry,
            f"node|{run_id}|{node}",
            "node.completed",
            f"\n{token.visit}\n{node}\n",
            short,
            head=self._constants() + self._head,
        )
        if reply[0] == b"changed":
            return None
        if len(reply) == 3 and isinstance(reply[1], bytes):
            return Reply("settled", stays=self._stays(seen, reply[1].decode(), reply[2]))
        return self._reply(run_id, Plan("settled"), reply)

    @staticmethod
    def _stays(seen: Known, node: str, record: bytes) -> Token:
        """Make the token of a node that was claimed with the settle before it."""
        own, _ = encoding.node_record(record)
        known = Known(seen.run_id, seen.graph_id, seen.topology, {f"n:{node}": record}, seen.root)
        known.records[record], known.kept = own, (0, [])
        return Token(seen.run_id, node, own.visit, own.fence, known)

    def _plain_shape(
        self, token: Token, seen: Known, edges: str, nonce: str, text: str
    ) -> tuple[list[Argument], list[Argument]] | tuple[()]:
        """Find what the arguments of such plans share: before and after the node's own record."""
        plan = plans.settle(seen.view(), token.node, token.visit, token.fence, nonce=nonce, edges=edges)
        if isinstance(plan, Refusal) or list(plan.nodes) != [token.node] or plan.guards != [token.node]:
            return ()
        if node_text(plan.nodes[token.node], -1) != text or len(plan.events) != 1:
            return ()
        found = list(arguments(plan, seen, suffixes=self._suffixes, puts=[("o", b"")], results=[("x", b"")]))
        arrivals = len(plan.arrivals) + sum(
            len(scopes(seen.topology, arrival.node)) - 1 for arrival in plan.arrivals.values()
        )
        own = 7 + 1 + 2 * arrivals
        return found[4:6] + found[7:own], found[own + 1 : -10]

    # Questions

    def ask(self, verb: str, token: Token, interrupts: Sequence[Interrupt], saved: Any) -> Reply | None:
        """Ask, and for the verb "park" also wait; None where the general script must decide."""
        seen = token.seen
        if not isinstance(seen, Known):
            return None
        reply = None
        if not seen.asked_elsewhere and not (saved and seen.kept is None):
            reply = self._ask(verb, token, seen, interrupts, saved)
        if reply is None:
            seen.asked_elsewhere, seen.kept = True, None
        elif saved:
            self.keep(token, saved)
        return reply

    @staticmethod
    def keep(token: Token, saved: Any) -> None:
        """Note what a node keeps, which only its own worker changes."""
        seen = token.seen
        if saved and isinstance(seen, Known) and seen.kept is not None:
            _, sizes = seen.kept
            messages = [len(dump(message)) for message in saved.messages]
            seen.kept = len(dump(saved.document)), [*sizes[: saved.keep], *messages]

    def _ask(
        self, verb: str, token: Token, seen: Known, interrupts: Sequence[Interrupt], saved: Any
    ) -> Reply | None:
        keeps, more = _keep(seen, token.node, saved)
        node, store = token.node, self._store
        if node.endswith("]") or not plannable(seen.topology, node) or not self._can_ring():
            return None
        by_id = {interrupt.id: interrupt for interrupt in interrupts}
        seen.fresh = False
        for _ in range(TRIES):
            view = seen.view()
            if view.stopping:
                return None
            transition = plans.park if verb == "park" else plans.ask
            plan = transition(view, node, token.visit, token.fence, list(by_id))
            if plan is None:
                return None
            if isinstance(plan, Refusal):
                if self._refreshed(seen, node=node):
                    continue
                return Reply(plan.word)
            asked: list[Any] = load(seen.raw.get(f"q:{node}", b"[0]"))
            asked = asked if asked[0] == token.visit else [token.visit]
            new = [by_id[interrupt] for interrupt in plan.absent]
            if any(question not in asked for question in view.node(node).questions):
                return None
            q = dump([*asked, *plan.absent])
            puts: list[tuple[str, Argument]] = [(f"q:{node}", q)] if new else []
            puts += _marked(node, keeps)
            commands: list[Sequence[Argument]] = [*keeps]
            payloads: dict[str, bytes] = {}
            size = more
            values = question_arguments(new, store._written, token)[1:]
            for place, question in enumerate(new):
                _, lifetime, text, listings, payload, by_time = values[6 * place : 6 * place + 6]
                payloads[question.id] = payload
                size += len(text) + len(by_time)
                if by_time:
                    puts.append((f"w:{question.id}", by_time))
                    if delay := first_reminder(question):
                        plan.timers.append(SetTimer(TimerKind.REMIND, question.id, delay))
                if lifetime:
                    plan.timers.append(SetTimer(TimerKind.EXPIRE, question.id, lifetime))
                commands += _open(seen, question, place + 1, lifetime, text, load(listings))
            reply = self._apply(
                verb,
                plan,
                seen,
                bytes_more=size,
                puts=puts,
                commands=commands,
                data=lambda event: payloads.get(event.detail, b""),  # noqa: B023 - used at once
            )
            if reply[0] != b"changed":
                if not isinstance(reply[0], bytes):
                    seen.raw[f"q:{node}"] = q
                    seen.raw[f"n:{node}"] = node_text(
                        plan.nodes[node], seen.topology.nodes[shape_name(node)].scope
                    ).encode()
                return self._reply(token.run_id, plan, reply)
            before = dict(seen.raw)
            if not self._changed(plan, seen, reply) or (before == seen.raw and not seen.stopping):
                return None  # one was asked before
        return None

    def answer(
        self, answers: Sequence[Answer], nonce: str, questions: Sequence[Interrupt | None]
    ) -> Reply | None:
        """Apply judged answers to questions of one visit; None where the general script must decide."""
        addresses = {
            (a.run_id, a.node_id, a.visit) for each in answers if (a := address_of(each.interrupt_id))
        }
        if len(addresses) != 1 or not self._can_ring():
            return None
        ((run_id, node, visit),) = addresses
        by_id = {question.id: question for question in questions if question is not None}
        asked = [by_id[each.interrupt_id] for each in answers]
        known, judged = self._looked_at.__dict__.pop("known", {}).get((run_id, node), (None, {}))
        if any(judged.get(each.id) != each.asked_at for each in asked):
            return None  # the node was not read together with the questions that were judged
        ends = [
            each.asked_at + max(1, round(each.expires_in * 1000))
            for each in asked
            if each.expires_in is not None
        ]
        if known is None or node.endswith("]") or not plannable(known.topology, node):
            return None
        plan = plans.answer(known.view(), node, visit, [each.id for each in asked], min(ends, default=0))
        if isinstance(plan, Refusal):
            return None
        timed = {each.id for each in asked if each.expires_in is not None or first_reminder(each)}
        plan.timers = [timer for timer in plan.timers if timer.key in timed or timer.kind is TimerKind.NODE]
        size, commands, payloads = 0, [], {}
        for place, answer in enumerate(answers):
            decision = dump(
                {
                    "response": answer.response,
                    "responder": answer.responder,
                    "idempotency_key": answer.idempotency_key,
                }
            )
            size += len(decision)
            payloads[answer.interrupt_id] = dump(event_payloads.answer(answer))
            commands += _close(known, asked[place], place + 1, decision, nonce)
        reply = self._apply(
            "answer",
            plan,
            known,
            bytes_more=f"+{size}",
            commands=commands,
            data=lambda event: payloads.get(event.detail, b""),
        )
        return None if reply[0] in (b"changed", b"gone") else self._reply(run_id, plan, reply)

    def interrupts(self, ids: Sequence[str]) -> list[Interrupt | None]:
        """Read questions, and with them the nodes that asked: an answer that follows needs those."""
        return self.questions(ids)[0]

    def questions(self, ids: Sequence[str]) -> tuple[list[Interrupt | None], dict[str, str], int]:
        """Do as `Queries.questions`, and read the nodes with them."""
        nodes = {(a.run_id, a.node_id) for each in ids if (a := address_of(each))}
        found, winners, now, more = self._store._queries.questions(
            ids, [(run_id, ("run", "of", "root", f"n:{node}")) for run_id, node in nodes]
        )
        judged = {each.id: each.asked_at for each in found if each is not None}
        known = {}
        for (run_id, node), values in zip(nodes, more, strict=True):
            seen = self._of(run_id, [f"n:{node}"], values)
            if seen is not None:
                known[run_id, node] = seen, judged
        self._looked_at.known = known
        return found, winners, now

    # Follow-ups

    def follow(self, run_id: str, what: str) -> Reply:
        """Take a step that follows from another."""
        kind, _, rest = what.partition(" ")
        if kind in ("end", "map"):
            return encoding.reply_of(self._store._call("follow", run_id, what))
        self._can_ring()
        known: Known | None = self._looked_at.__dict__.pop("followed", None)
        if kind != "turn" or known is None or known.run_id != run_id:
            known = self._read(run_id, self._follow_fields(run_id, kind, rest))
        for _ in range(TRIES):
            if known is None:
                break
            view = known.view()
            if view.stopping:
                plan = plans.nothing(view, what)
            elif kind == "dead":
                plan = plans.dead(view, rest)
            else:
                plan = plans.turn(view, int(rest.split(" ")[0]))
            if isinstance(plan, Refusal) or plan.follow_up != what:
                fresh = self._read(run_id, self._follow_fields(run_id, kind, rest))
                if fresh is None or fresh.raw == known.raw:
                    return Reply("stale")
                known = fresh
                continue
            reply = self._apply("follow", plan, known)
            if reply[0] != b"changed":
                return self._reply(run_id, plan, reply)
            if not self._changed(plan, known, reply):
                known = self._read(run_id, self._follow_fields(run_id, kind, rest))
        return Reply("stale")

    def _follow_fields(self, run_id: str, kind: str, rest: str) -> list[str]:
        hint = self._graphs.get(run_id)
        if hint is None:
            of = self._store._redis.call("HGET", self._store._keys.run(run_id), "of")
            if of is None:
                return []
            hint = self._remember(run_id, of)
        topology = self._topology(hint[1], hint[0])
        if topology is None:
            return []
        loops = [f"l:{number}" for number in range(len(topology.loops))]
        if kind == "dead":
            return [f"n:{rest}", *loops]
        header = topology.loops[int(rest.split(" ", maxsplit=1)[0])].header
        return [f"n:{header}", *loops]


def _marked(node: str, keeps: Sequence[object]) -> list[tuple[str, Argument]]:
    return [(f"k:{node}", 1)] if keeps else []


def _keep(known: Known, node: str, saved: Any) -> tuple[list[Sequence[Argument]], int]:
    """Write what a node keeps: the commands, and how many bytes more it is."""
    if not saved or known.kept is None:
        return [], 0
    had, sizes = known.kept
    count, document = min(len(sizes), saved.keep), dump(saved.document)
    more, key = len(document) - had - sum(sizes[count:]), f"r:{known.run_id}"
    messages: list[Argument] = []
    for message in saved.messages:
        count += 1
        text = dump(message)
        more += len(text)
        messages += (f"{count}.{node}", text)
    commands: list[Sequence[Argument]] = [("HSET", f"{key}:s", node, document)]
    commands.append(("HSET", f"{key}:m", f"#{node}", count, *messages))
    if count < len(sizes):
        commands.append(
            ("HDEL", f"{key}:m", *(f"{place}.{node}" for place in range(count + 1, len(sizes) + 1)))
        )
    return commands, more


def _forward_inputs(incoming: Sequence[InEdge], raw: Mapping[str, bytes]) -> list[tuple[str, int]]:
    """Do as `live_inputs` where there are no loops, without reading whole records."""
    sources: dict[tuple[str, int], None] = {}
    for edge in incoming:
        text = raw.get(f"n:{edge.source}")
        if text is not None:
            _, visit, _, _, _, edges, _ = text.split(b" ", 6)
            if edges[edge.position : edge.position + 1] == b"1":
                sources[edge.source, int(visit)] = None
    return list(sources)


def _listings(known: Known, question: Interrupt, more: Sequence[str]) -> list[str]:
    return [*more, f"g:{outermost(known.graph_id)}", f"r:{known.root}"]


def _open(
    known: Known, question: Interrupt, event: int, lifetime: int, text: bytes, listings: list[str]
) -> Sequence[Sequence[Argument]]:
    """Write a question, its listings and its notice; `event` is which of the plan's events asks it."""
    key, listings = f"r:{known.run_id}:i", _listings(known, question, listings)
    expires = b"\1n%d\1" % lifetime if lifetime else b"0"
    return [
        ("HSET", key, question.id, b"\1\1e%d\1 \1n0\1 %s %s" % (event, expires, text)),
        ("ZADD", "open", "\1\1n0\1", question.id),
        *(("ZADD", f"open:{name}", "\1\1n0\1", question.id) for name in listings),
        ("HSET", "listed:open", question.id, dump(listings)),
        _notice(known, EventKind.INTERRUPT_ASKED, question, event, text),
    ]


def _close(
    known: Known, question: Interrupt, event: int, decision: bytes, nonce: str
) -> Sequence[Sequence[Argument]]:
    """Write an answer and its notice, and take the question out of its listings."""
    names = [f"n:{question.name}", *(f"a:{person}" for person in dict.fromkeys(question.assignees))]
    return [
        ("HSET", f"r:{known.run_id}:d", question.id, b"\1answered \1n0\1 %s %s" % (nonce.encode(), decision)),
        ("ZREM", "open", question.id),
        *(("ZREM", f"open:{name}", question.id) for name in _listings(known, question, names)),
        ("HDEL", "listed:open", question.id),
        _notice(known, EventKind.INTERRUPT_ANSWERED, question, event, b""),
    ]


def _notice(
    known: Known, kind: EventKind, question: Interrupt, event: int, text: bytes
) -> Sequence[Argument]:
    fields: list[Argument] = ["id", f"\1{known.run_id}:\1e{event}\1", "kind", kind, "run_id", known.run_id]
    fields += ["node", question.node_id, "visit", question.visit, "detail", question.id, "at", "\1\1n0\1"]
    fields += ["question", text, "withdrawal", "", "reminded", 0]
    return ["XADD", "notices", "MAXLEN", "~", 100000, "*", *fields]
