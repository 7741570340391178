"""`python -m runner.cli` is the same as the `runner` command."""

from runner.cli import main

main()
