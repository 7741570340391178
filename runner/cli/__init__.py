"""The `runner` command: every module here imports its heavy parts where they are used, for quick help."""

from __future__ import annotations


def main() -> None:
    """Run the command line and leave with its exit code; see `runner.cli.exits` for the codes."""
    from runner.cli.program import runner

    runner.main(prog_name="runner")
