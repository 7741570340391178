"""`python -m runner.cli` is the same as the `runner` command, which may not be on the PATH."""

from runner.cli import main

main("python -m runner.cli")
