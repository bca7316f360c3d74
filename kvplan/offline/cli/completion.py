"""``kvplan completion``: the script that completes commands, options and models in a shell."""

from __future__ import annotations

import click

from kvplan.offline.cli.failures import FITS

EPILOG = """\b
Examples:
  eval "$(kvplan completion bash)"       # in ~/.bashrc
  eval "$(kvplan completion zsh)"        # in ~/.zshrc
  kvplan completion fish > ~/.config/fish/completions/kvplan.fish
"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    from kvplan.offline.cli.app import app

    completion = get_completion_class(shell)
    if completion is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(completion(app, {}, "kvplan", "_KVPLAN_COMPLETE").source())
    return FITS
