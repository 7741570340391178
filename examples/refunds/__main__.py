"""Three refunds on a real worker: a small one, one that both desks agree to, one that finance refuses.

`python -m examples.refunds`
"""

from __future__ import annotations

from examples.workers import client_with_worker
from runner import Client

ANSWERS = {
    "small": {},
    "agreed": {"support": {"agree": True}, "finance": {"agree": True}},
    "refused": {
        "support": {"agree": True},
        "finance": {"agree": False, "comment": "paid back in May"},
    },
}
ORDERS = {"small": "A-17", "agreed": "B-42", "refused": "B-42"}


def settle(client: Client, case: str) -> str:
    """Start a refund, answer the question of each desk, and return the letter."""
    run = client.start("refunds", f"Please refund order {ORDERS[case]}")
    for question in run.wait(30).interrupts:
        receipt = client.respond(
            question.id, ANSWERS[case][question.name], responder=question.name
        )
        print(
            f"  {question.name} is asked about {question.reason}, and its answer is {receipt.status}"
        )
    outputs = {name: node.output for name, node in run.wait(30).results.items()}
    return str(outputs.get("letter") or outputs.get("apology"))


def main() -> None:
    """Run the three refunds."""
    with client_with_worker("examples.refunds.graph") as client:
        for case in ANSWERS:
            print(f"{case}: {ORDERS[case]}")
            print(f"  {settle(client, case)}")


if __name__ == "__main__":
    main()
