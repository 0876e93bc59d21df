"""`mulligan completion SHELL`."""

from __future__ import annotations

import click

INSTALL = {
    "bash": 'eval "$(mulligan completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(mulligan completion zsh)"    # in ~/.zshrc',
    "fish": "mulligan completion fish > ~/.config/fish/completions/mulligan.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options, kinds, queues and ids."""
    from click.shell_completion import get_completion_class

    from mulligan.cli import cli

    maker = get_completion_class(shell)
    if maker is not None:
        click.echo(maker(cli, {}, "mulligan", "_MULLIGAN_COMPLETE").source())
    click.echo(f"to have it always: {INSTALL[shell]}", err=True)
