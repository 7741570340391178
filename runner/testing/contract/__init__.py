"""What every store must do: a test suite to run over one of your own.

Subclass `StoreContract` in a test module and give it a store that reads the `clock`:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, clock):
            return MyStore(clock=clock, lease=30)

Every test uses the store's public methods only. A lease must be 30 seconds.
"""

# ruff: noqa: E402 - pytest must know the tests before they are imported, or it can't show what was compared
from __future__ import annotations

import pytest

PARTS = (
    "asking",
    "batching",
    "children",
    "ending",
    "expiring",
    "handing",
    "leaving",
    "late",
    "limiting",
    "listing",
    "mapping",
    "forking",
    "reading",
    "remembering",
    "removing",
    "reopening",
    "running",
    "sizing",
    "starting",
    "stopping",
    "timing",
    "withdrawing",
    "worker",
)
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))

from runner.ports import Store
from runner.testing.clock import ManualClock
from runner.testing.contract.asking import AskingContract
from runner.testing.contract.batching import BatchingContract
from runner.testing.contract.children import ChildContract
from runner.testing.contract.ending import EndingContract
from runner.testing.contract.expiring import ExpiringContract
from runner.testing.contract.forking import ForkingContract
from runner.testing.contract.handing import HandContract
from runner.testing.contract.late import LateContract
from runner.testing.contract.leaving import LeavingContract
from runner.testing.contract.limiting import LimitContract
from runner.testing.contract.listing import ListingContract
from runner.testing.contract.mapping import MapContract
from runner.testing.contract.reading import ReadingContract
from runner.testing.contract.remembering import RememberingContract
from runner.testing.contract.removing import RemovingContract
from runner.testing.contract.reopening import ReopeningContract
from runner.testing.contract.running import RunningContract
from runner.testing.contract.sizing import SizingContract
from runner.testing.contract.starting import StartingContract
from runner.testing.contract.stopping import StoppingContract
from runner.testing.contract.timing import TimingContract
from runner.testing.contract.withdrawing import WithdrawingContract
from runner.testing.contract.worker import Worker

__all__ = ["StoreContract", "Worker"]


class StoreContract(
    StartingContract,
    RunningContract,
    AskingContract,
    BatchingContract,
    TimingContract,
    StoppingContract,
    ChildContract,
    EndingContract,
    ExpiringContract,
    MapContract,
    LateContract,
    LimitContract,
    HandContract,
    LeavingContract,
    ReadingContract,
    ListingContract,
    RememberingContract,
    RemovingContract,
    ReopeningContract,
    ForkingContract,
    SizingContract,
    WithdrawingContract,
):
    """The promises of `runner.ports.Store`, one test each."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The clock that the store must read."""
        return ManualClock()

    @pytest.fixture
    def store(self, clock: ManualClock) -> Store:
        """The store under test: override this."""
        raise NotImplementedError("a contract needs a fixture `store` that gives the store under test.")

    @pytest.fixture
    def worker(self, store: Store) -> Worker:
        """An engine's calls, made by hand."""
        return Worker(store)
