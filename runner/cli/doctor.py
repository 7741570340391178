"""`runner doctor`: checks of store, broker, workers and settings, with the fix for each problem."""

from __future__ import annotations

from runner.cli.context import CommandContext, command
from runner.cli.exits import Exit


@command()
def doctor(context: CommandContext) -> int:
    """Check store, broker, workers and settings, and suggest fixes.

    Each line has PASS, WARN or FAIL, the name of the check, details and the fix. Without a terminal the
    cells are separated by tabs.

    Exit codes: 0 no problems, or only warnings; 1 a check failed; 7 the store can't be reached.
    """
    from runner.operations.doctor import FAIL, examine, read_facts

    checks = examine(read_facts(context.settings))
    rows = [(check.result.upper(), check.name, check.detail, check.fix) for check in checks]
    context.output.listing({"checks": checks}, ("", "CHECK", "DETAIL", "FIX"), rows)
    return Exit.RUN_FAILED if any(check.result == FAIL for check in checks) else Exit.DONE
