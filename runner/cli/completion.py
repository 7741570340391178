"""`runner completion`: let the shell finish the names of commands and options."""

from __future__ import annotations

import click

from runner.cli.session import Session, pass_session, shared

LINES = {
    "bash": 'eval "$(runner completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(runner completion zsh)"  # in ~/.zshrc',
    "fish": "runner completion fish > ~/.config/fish/completions/runner.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(LINES)))
@shared
@click.pass_context
@pass_session
def completion(session: Session, context: click.Context, shell: str) -> None:
    """Write the script that lets your shell complete commands by Tab.

    \b
    For bash, in ~/.bashrc:  eval "$(runner completion bash)"
    For zsh, in ~/.zshrc:    eval "$(runner completion zsh)"
    For fish, once:          runner completion fish > ~/.config/fish/completions/runner.fish
    """  # noqa: D301 - click reads the backspace: leave this paragraph as it is
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}.")
    script = found(context.find_root().command, {}, "runner", "_RUNNER_COMPLETE").source()
    if session.output.as_json:
        session.output.data({"shell": shell, "script": script})
        return
    click.echo(script)
    if session.output.is_terminal:
        session.output.note(f"Use it like this: {LINES[shell]}")
