"""SQS as the broker, Redis as the store: the same promises, on a server that speaks SQS (Moto)."""

from __future__ import annotations

import socket
import sys

import pytest
from celery import Celery
from kombu.asynchronous import Hub, set_event_loop
from kombu.asynchronous.http import Request
from kombu.asynchronous.http.curl import CurlClient

from runner import Status
from runner.dev.supervised_process import SupervisedProcess
from runner.errors import UsageError
from tests.celery.workers import MARGIN, RECOVERY
from tests.ports import free_port
from tests.waiting import wait_until

pytest.importorskip("botocore")
pytest.importorskip("pycurl")

from runner.celery.sqs import SqsConnection, check_queues

WITHIN = RECOVERY + MARGIN


class Server:
    """One server, which forgets its queues when it ends."""

    def __init__(self, folder) -> None:
        pytest.importorskip("moto.server")
        self.port, self._log = free_port(), folder / "moto.log"
        self.url = f"sqs://key:secret@127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "--port", str(self.port)]
        self._process = SupervisedProcess(command, log=self._log)
        wait_until(self._listens, "Moto listens", seconds=60)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self) -> None:
        self._process.kill()
        self._process.end()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("sqs"))
    yield server
    server.end()


@pytest.fixture(scope="module")
def site(databases, server):
    """Workers whose broker is SQS; tests may kill them."""
    site = next(databases)
    yield site
    site.end()


@pytest.fixture
def ready(site, server):
    """Two workers that accept work."""
    site.ready(2, RUNNER_BROKER_URL=server.url, RUNNER_GRAPHS="tests.celery.sqs_graphs")
    return site


@pytest.mark.slow
def test_graphs_of_many_queues_run_over_sqs(ready):
    """Twelve runs, each by a queue of its own, end side by side, and a question is answered."""
    runs = [ready.client.start(f"diamond{number}", "go") for number in range(12)]
    asking = ready.client.start("question", "go")

    assert [run.wait(60).status for run in runs] == [Status.COMPLETED] * 12
    (question,) = asking.wait(60).interrupts
    ready.client.respond(question.id, "yes")
    assert asking.wait(60).results["b"].output == "yes"


@pytest.mark.slow
def test_a_run_goes_on_after_its_worker_was_killed_over_sqs(ready):
    """The lease counts, not the visibility timeout of half an hour: another worker runs the node again."""
    run = ready.client.start("gated", "go")
    worker = ready.starter(run)

    worker.kill()
    ready.open_gate(run)

    assert run.wait(WITHIN).results["b"].output == 2


@pytest.mark.slow
def test_workers_outlive_their_sqs(ready, server):
    """Where kombu ends or stops polling, they poll again, and create the queues that SQS has lost."""
    for worker in ready.workers:
        assert "queue.unread" not in worker.output()
    server.end()
    run = ready.client.start("diamond3", "go")
    for worker in ready.workers:
        wait_until(lambda each=worker: "queue.unread" in each.output(), "a poll has failed")
    assert run.status is Status.EXECUTING

    server.start()

    assert run.wait(60).status is Status.COMPLETED
    assert ready.client.start("diamond4", "go").wait(60).status is Status.COMPLETED
    assert all(worker.alive for worker in ready.workers)


def test_a_worker_polls_many_queues_at_a_time():
    """No queue waits for the ten seconds of another one's poll; control: of kombu's 20, ten would wait."""

    def waiting(client):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for _ in range(20):
                client.add_request(Request(f"http://127.0.0.1:{silent.getsockname()[1]}"))
            client.close()
        return len(client._pending)

    hub = set_event_loop(Hub())
    try:
        assert waiting(CurlClient(hub, max_clients=10)) == 10
        assert waiting(SqsConnection(None)._httpclient) == 0
    finally:
        hub.close()


@pytest.mark.full
@pytest.mark.parametrize(
    ("priorities", "says"),
    [
        ({"runner/at once": {5}}, "'runner_at once' on SQS, which isn't a valid name there"),
        ({f"runner/{'q' * 74}": {5}}, "at most 80"),
        ({"runner/q.fifo": {5}}, "which isn't a valid name there"),
        ({"runner/a.b": {5}, "runner/a-b": {5}}, "as 'runner/a-b' is"),
        ({"runner/a": {5, 0}}, "priorities, which SQS does not have"),
    ],
)
def test_what_sqs_can_not_do_is_refused(priorities, says):
    """A name that SQS does not have, one for two queues, and priorities; other queues are accepted."""
    app = Celery(broker="sqs://", set_as_current=False)
    check_queues(app, {f"runner/{'q' * 73}": {5}, "runner/a.b": {5}, "runner/a": {5}})

    with pytest.raises(UsageError) as refused:
        check_queues(app, priorities)

    assert says in str(refused.value)
