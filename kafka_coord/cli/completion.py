"""``kafka-coord completion``: prints the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kafka_coord.errors import SettingsError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  kafka-coord completion bash > ~/.local/share/bash-completion/completions/kafka-coord
    zsh:   kafka-coord completion zsh > ~/.zfunc/_kafka-coord
    fish:  kafka-coord completion fish > ~/.config/fish/completions/kafka-coord.fish
    """
    completer = get_completion_class(shell)
    if completer is None:
        raise SettingsError(f"completion is not available for {shell}")
    root = click.get_current_context().find_root()
    click.echo(completer(root.command, {}, "kafka-coord", "_KAFKA_COORD_COMPLETE").source())
