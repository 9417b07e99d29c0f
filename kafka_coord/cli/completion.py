"""``kafka-coord completion``: prints the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  kafka-coord completion bash > ~/.local/share/bash-completion/completions/kafka-coord
    zsh:   kafka-coord completion zsh > ~/.zfunc/_kafka-coord
    fish:  kafka-coord completion fish > ~/.config/fish/completions/kafka-coord.fish
    """
    root = click.get_current_context().find_root()
    click.echo(_SHELLS[shell](root.command, {}, "kafka-coord", "_KAFKA_COORD_COMPLETE").source())
