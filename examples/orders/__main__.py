"""Bill the orders of a file on a real worker: `python -m examples.orders [FILE]`."""

from __future__ import annotations

import sys

from examples.orders.graph import FILE
from examples.workers import client_with_worker


def main(file: str = str(FILE)) -> None:
    """Run to the question, answer it, and print the bill."""
    with client_with_worker("examples.orders.graph") as client:
        run = client.start("orders", file)
        waiting = run.wait(30)
        done = [
            name
            for name in waiting.results
            if name.endswith("]") and waiting.results[name].output
        ]
        print(f"checked: {', '.join(sorted(done))}")
        for question in waiting.interrupts:
            print(f"{question.node_id} asks: {question.reason}")
            print(
                f"answered with quantity 9: {client.respond(question.id, {'quantity': 9}).status}"
            )
        print(f"bill: {run.wait(30).results['bill'].output}")


if __name__ == "__main__":
    main(*sys.argv[1:])
