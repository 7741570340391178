"""Many answers to the same questions in the same moment, by every door, and the time that runs out."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from functools import partial

import pytest
import redis
from celery import Celery

from runner.records.interrupts import Decision
from runner.settings import as_broker
from runner.store.interface import Reply
from runner.store.redis.scripts import Scripts, script
from runner.store.redis.store import RedisStore
from runner.store.requests import AnswerQuestions, AskQuestions, ParkVisit
from tests.chaos.histories import Try, faults
from tests.contract.store.manual_worker import ManualWorker, shape
from tests.waiting import wait_until

PEOPLE = 50
NO_CHECK = (
    ("if changed then return {'changed'", "if false then return {'changed'"),
    (
        "run.text = table.concat({",
        "a, w = math.max(0, a), math.max(0, w)\nrun.text = table.concat({",
    ),
)
"""The script `commit` without its look at what has changed since: whoever comes last wins.

Then counters would fall below 0, which no script can read.
"""


class UncheckedScripts(Scripts):
    """Scripts of which one was changed."""

    def __init__(
        self, store: RedisStore, name: str, changes: tuple[tuple[str, str], ...]
    ) -> None:
        super().__init__(store._redis, store._keys.prefix)
        text = script(name).text.decode()
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        self._changed, self._text = name, text

    def run(self, name, *arguments, **options):
        if name != self._changed:
            return super().run(name, *arguments, **options)
        return self._redis.call("EVAL", self._text, "1", self._prefix, *arguments)


@pytest.fixture
def store(databases):
    """A store on a real server, with leases that outlast the test."""
    site = next(databases)
    store = RedisStore(site.url, lease=60, push=False)
    yield store
    store.close()
    site.end()


def together(*tasks):
    """Run all tasks in threads of their own, from one moment on."""
    failures, gate = [], threading.Barrier(len(tasks))

    def run(task):
        gate.wait(60)
        try:
            task()
        except Exception as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []


class Race:
    """People and time at the same questions of one store."""

    def __init__(self, store: RedisStore, count: int) -> None:
        self.store, self.worker, self.tries, self.bells = store, ManualWorker(store), [], []
        graph, draw = shape("a"), random.Random(count)  # noqa: S311 - no secret
        self.questions = []
        for number in range(count):
            # Every fourth waits for ever, the others for about as long as the race takes.
            ends = {} if number % 4 == 0 else {"expires_in": draw.uniform(0.05, 0.02 * count)}
            self.questions += self.worker.park(self.worker.start(graph), "a", **ends)

    def person(self, who: str):
        """Answer all questions, one after the other."""
        for question in self.questions:
            sent = time.monotonic()
            reply = self.store.do(
                AnswerQuestions([Decision(question.id, who, who)], f"{who}-{question.id}")
            )
            receipts = reply.receipts
            receipt = receipts[0]
            self.tries.append(
                Try(
                    question.id,
                    who,
                    sent,
                    time.monotonic(),
                    str(receipt.status),
                    receipt.detail,
                )
            )
            self.note(reply)

    def time(self, stop: threading.Event):
        """Sweep until everybody has answered, and once more."""
        while True:
            last = stop.is_set()
            self.note(self.store.sweep(10))
            if last:
                return

    def note(self, reply: Reply):
        self.bells += [bell.run_id for bell in reply.doorbells]

    def run(self):
        """Let everybody begin at once; give what can't be explained."""
        stop, left = threading.Event(), itertools.count(1)

        def person(who):
            self.person(who)
            if next(left) == PEOPLE:
                stop.set()

        people = [lambda who=f"person{number}": person(who) for number in range(PEOPLE)]
        together(*people, lambda: self.time(stop), lambda: self.time(stop))
        while (reply := self.store.sweep()).count != 0:  # on a slow machine much is still due
            self.note(reply)
        return list(self.unexplained())

    def unexplained(self):
        by_question = {question.id: [] for question in self.questions}
        for attempt in self.tries:
            by_question[attempt.question].append(attempt)
        for question in self.questions:
            tries = by_question[question.id]
            (stands,) = self.store.interrupts([question.id])
            assert len(tries) == PEOPLE
            yield from faults(tries, str(stands.status), stands.responder)
            if self.bells.count(question.run_id) != 1:
                yield f"its node was rung {self.bells.count(question.run_id)} times"
            (learnt,) = self.worker.claim(question.run_id, "a").answers
            if (learnt.status, learnt.response) != (stands.status, stands.response):
                yield "its node learns something else"


def test_a_history_that_no_order_explains_is_found():
    """The judge of the tests below sees each kind of fault."""
    good = [
        Try("q", "ann", 0, 2, "accepted"),
        Try("q", "bob", 1, 3, "duplicate", "already answered by ann"),
    ]
    assert list(faults(good, "answered", "ann")) == []
    assert list(faults([Try("q", "ann", 0, 1, "expired")], "expired", None)) == []
    bad = {
        "were accepted": [good[0], Try("q", "bob", 0, 1, "accepted")],
        "not who won": [good[0], Try("q", "bob", 1, 3, "duplicate", "already answered by eve")],
        "before the winner": [
            good[0],
            Try("q", "bob", -2, -1, "duplicate", "already answered by ann"),
        ],
        "was told rejected": [good[0], Try("q", "bob", 0, 1, "rejected")],
        "is stored": [Try("q", "eve", 0, 2, "accepted")],
        "answers were accepted": [
            Try("q", "bob", 0, 1, "duplicate", "already answered by ann")
        ],
    }
    for reason, history in bad.items():
        assert reason in " ".join(faults(history, "answered", "ann"))


@pytest.mark.parametrize(
    "count",
    [pytest.param(20, marks=pytest.mark.sample), 200],
    ids=["a few questions", "two hundred"],
)
def test_of_fifty_answers_at_once_one_is_accepted(store, count):
    """Fifty people and the clock race: one of them wins each question, all learn who, one wake-up follows."""
    race = Race(store, count)

    assert race.run() == []

    stands = {
        str(interrupt.status)
        for interrupt in store.interrupts([question.id for question in race.questions])
    }
    assert stands <= {"answered", "expired"}
    assert "answered" in stands


def test_without_the_check_in_the_script_several_are_accepted(store):
    """The control: where a script doesn't look whether a question is open, the race has several winners."""
    races = (Race(store, 10) for _ in range(20))
    scripts, unchecked = store._scripts, UncheckedScripts(store, "commit", NO_CHECK)

    def unexplained(race):
        store._scripts = unchecked
        faults = " ".join(race.run())
        store._scripts = scripts
        return faults

    assert any("answers were accepted" in unexplained(race) for race in races)


def last_answers(store, rounds):
    """Answer the two questions of a node in the same moment; give how often each round woke the node."""
    worker, graph, woken = ManualWorker(store), shape("a"), []
    for _ in range(rounds):
        questions = worker.park(worker.start(graph), "a", "x", "y")
        bells = []

        def answer(question, bells=bells):
            bells.extend(
                store.do(
                    AnswerQuestions([Decision(question.id, 1, "ann")], question.id)
                ).doorbells
            )

        together(*(partial(answer, question) for question in questions))
        woken.append(len(bells))
    return woken


def test_two_last_answers_in_one_moment_wake_their_node_once(store):
    """Each of two answers sees the other one open, and yet somebody wakes the node: no wake-up is lost."""
    assert last_answers(store, 100) == [1] * 100


def pauses(store, rounds):
    """Answer a question in the moment in which its node stops to wait; give how often that woke it."""
    worker, graph, woken = ManualWorker(store), shape("a"), []
    for _ in range(rounds):
        token = worker.claim(worker.start(graph), "a").token
        question = worker.question(token)
        store.do(AskQuestions(token, [question], None))
        words, bells = [], []

        def park(token=token, question=question, words=words, bells=bells):
            reply = store.do(ParkVisit(token, [question], None))
            words.append(reply.word)
            bells.extend(reply.doorbells)

        def answer(question=question, bells=bells):
            bells.extend(
                store.do(AnswerQuestions([Decision(question.id, 1, "ann")], "n")).doorbells
            )

        together(park, answer)
        woken.append(len(bells))
    return woken


def test_an_answer_in_the_moment_of_the_pause_wakes_the_node(store):
    """An answer may come just before its node waits, or just after: the node goes on either way, once."""
    assert pauses(store, 100) == [1] * 100


def test_without_the_look_at_what_came_meanwhile_wake_ups_are_lost(store):
    """The control: where nobody looks for answers that come meanwhile, some nodes wait for ever."""
    store._scripts = UncheckedScripts(store, "commit", NO_CHECK)

    assert any(0 in pauses(store, 20) for _ in range(50))


COUNT, CLIENTS, MESSAGES, TASKS = 30, 6, 10, 4
"""Questions, and for each the answers by Python, by the stream and by Celery tasks."""
REPLIES = "runner:replies:race"


@pytest.fixture
def site(databases):
    """A site with one worker that asks."""
    site = next(databases)
    site.add(RUNNER_GRAPHS="tests.chaos.racing_graphs", RUNNER_EARLY_ANSWER="60")
    site.workers[0].wait_ready()
    yield site
    site.end()


class Doors:
    """The same questions, answered by every door."""

    def __init__(self, site, questions) -> None:
        self.site, self.questions, self.tries = site, questions, []
        self.stranger = Celery("stranger", broker=as_broker(site.url), set_as_current=False)

    def client(self, who):
        for question in self.questions:
            receipt = self.site.client.respond(question, who, responder=who)
            self.tries.append((question, who, str(receipt.status), receipt.detail))

    def messages(self, who):
        with redis.Redis.from_url(self.site.url) as door:
            for question in self.questions:
                door.xadd(
                    "runner:responses",
                    {"body": json.dumps({"v": 1, **self.message(question, who)})},
                )

    def tasks(self, who):
        for question in self.questions:
            self.stranger.send_task(
                "runner.respond", kwargs=self.message(question, who), queue="runner"
            )

    def message(self, question, who):
        key = f"{question} {who}"
        return {
            "interrupt_id": question,
            "response": who,
            "responder": who,
            "idempotency_key": key,
            "reply_to": REPLIES,
        }

    def all_at_once(self):
        together(
            *(partial(self.client, f"client{number}") for number in range(CLIENTS)),
            *(partial(self.messages, f"sender{number}") for number in range(MESSAGES)),
            *(partial(self.tasks, f"task{number}") for number in range(TASKS)),
        )
        self.stranger.close()

    def receipts(self):
        """Wait for all receipts: question, status and detail of each."""
        wanted = COUNT * (MESSAGES + TASKS)
        wait_until(
            lambda: self.site.redis.xlen(REPLIES) == wanted,
            "everybody has a receipt",
            seconds=150,
        )
        entries = [json.loads(fields[b"body"]) for _, fields in self.site.redis.xrange(REPLIES)]
        return [
            (receipt["interrupt_id"], receipt["status"], receipt["detail"])
            for receipt in entries
        ]


def test_every_door_and_the_clock_agree_on_one_answer(site):
    """Clients, the stream, Celery tasks and the sweep race: all get receipts that name one winner."""
    runs = [site.client.start("race", 1 + number / 10) for number in range(COUNT)]
    wait_until(lambda: all(asked_by(run) for run in runs), "every run has asked", seconds=150)
    asked = {asked_by(run)[0]: run for run in runs}
    doors = Doors(site, list(asked))

    doors.all_at_once()
    received = doors.receipts() + [
        (question, *attempt) for question, _, *attempt in doors.tries
    ]

    for question, run in asked.items():
        result, stands = run.wait(60).results["ask"].output, site.client.interrupt(question)
        receipts = [tuple(message[1:]) for message in received if message[0] == question]
        assert len(receipts) == CLIENTS + MESSAGES + TASKS
        assert receipts.count(("accepted", "")) == (1 if stands.responder else 0)
        assert result == (stands.responder or "silence")
        lost = (
            f"already answered by {result}"
            if stands.responder
            else "the time to answer is over"
        )
        assert {detail for status, detail in receipts if status != "accepted"} == {lost}
        kinds = [event.kind for event in run.events()]
        assert (kinds.count("node.started"), kinds.count("node.resumed")) == (2, 1)


def asked_by(run):
    return [event.detail for event in run.events() if event.kind == "interrupt.asked"]
