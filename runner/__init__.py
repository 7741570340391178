"""Agent graphs and approval flows on the queue that teams already run."""

from runner.builder import GraphBuilder
from runner.client import Client, Run
from runner.functions import NodeContext
from runner.interrupts import Interrupt, Receipt
from runner.local import Graph
from runner.registry import graph
from runner.results import GraphResult, NodeResult
from runner.retries import RetryPolicy
from runner.run import Status

__all__ = [
    "Client",
    "Graph",
    "GraphBuilder",
    "GraphResult",
    "Interrupt",
    "NodeContext",
    "NodeResult",
    "Receipt",
    "RetryPolicy",
    "Run",
    "Status",
    "graph",
]
