"""Writes what was measured into docs/ideas/benchmarks.md, between its markers: `python -m bench.report`.

The figures are those in build/bench, where `make bench` and `make bench-peers` leave them; a part that was
not measured keeps what stands on the page.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import approvals, budgets, results
from bench.__main__ import PARTS
from bench.grid import Grid
from bench.peers import __main__ as peers

PAGE = Path("docs/ideas/benchmarks.md")
ALL: dict[str, ModuleType] = {**PARTS, "peers": peers, "approvals": approvals}
POOLS = ("threads", "solo", "prefork", "")


def _block(part: str, measured: results.Results) -> str:
    """Write the tables of a part, each pool's with where and when it was measured."""
    documents = [measured[part, pool] for pool in POOLS if (part, pool) in measured]
    pieces = []
    for document in documents:
        grids: list[Grid] = ALL[part].grids(document["pool"], document["figures"])
        pieces += [grid.markdown() for grid in grids]
    if documents:
        pieces.append(_where(documents[-1]["machine"]))
    return "\n\n".join(pieces)


def _where(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"*{machine['at']} UTC at {machine['commit']}: {machine['cores']} cores ({machine['processor']}), "
        f"load {machine['load']} before; Python {machine['python']}, {machine['server']}, {versions}.*"
    )


def render(page: str, measured: results.Results, extra: str = "") -> str:
    """Return the page with its blocks written anew; `extra` stands below the first table."""
    blocks = {part: _block(part, measured) for part in ALL}
    if measured:
        blocks["budgets"] = budgets.grid(measured).markdown() + (
            f"\n\n{extra}" if extra else ""
        )
    for part, block in blocks.items():
        if block:
            marked = re.compile(rf"(<!-- figures: {part} -->\n).*?(<!-- end -->)", re.DOTALL)
            page = marked.sub(
                lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", page
            )
    return page


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--remark", default="", help="a sentence below the first table, such as what else ran"
    )
    chosen = parser.parse_args()
    PAGE.write_text(render(PAGE.read_text(), results.read(), chosen.remark))


if __name__ == "__main__":
    main()
