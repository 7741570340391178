"""Goes on with a stored node in a process of its own: run by the contract, not by people.

Arguments are the file and the name of a contract's subclass; stdin has the scenario and the text.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from operator import attrgetter
from typing import Any

from runner.testing.adapters.stored_node import StoredNode


def loaded(file: str, name: str) -> Any:
    """Import a file and return what has that name in it."""
    spec = importlib.util.spec_from_file_location("contract_elsewhere", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} can't be imported.")
    module = sys.modules["contract_elsewhere"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return attrgetter(name)(module)


def main() -> None:
    """Execute once and print what is then stored."""
    contract = loaded(sys.argv[1], sys.argv[2])()
    work = json.load(sys.stdin)
    node = StoredNode(getattr(contract, work["scenario"]))
    node.text = work["text"]
    node.execute()
    print(json.dumps({"text": node.text}))  # noqa: T201 - this is how the other process hears of it


if __name__ == "__main__":
    main()
