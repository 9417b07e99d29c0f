"""Completes names in a shell: groups, members, topics, assignors, instances and requests; and ``kafka-coord
completion``, which prints a shell's script."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from kafka_coord.cli.connection import current_settings, open_store
from kafka_coord.zk import layout

if TYPE_CHECKING:
    from kafka_coord.groups.instances import AskedInstances

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_PATIENCE_S = 1.0
"""How long, in seconds, completion waits for ZooKeeper or an instance after the user presses Tab."""
Names = Callable[["AskedInstances", click.Context], Iterable[str]]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


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


def _below(path: str) -> Names:
    return lambda instances, _: instances.store.children(path)


managed_groups, topics = _below(layout.GROUPS), _below(layout.BROKER_TOPICS)
running_instances, requests = _below(layout.COORDINATORS), _below(layout.REQUESTS)


def all_groups(instances: AskedInstances, _: click.Context) -> Iterable[str]:
    from kafka_coord.groups.client_assigned import list_client_groups

    clients = list_client_groups(instances).groups
    return {*instances.store.children(layout.GROUPS), *(one.group for one in clients)}


def members(instances: AskedInstances, ctx: click.Context) -> Iterable[str]:
    """Returns the members of the group that the command line names."""
    from kafka_coord.groups.client_assigned import read_client_group

    group = ctx.params.get("group") or ""
    if instances.store.exists(layout.ids(group)) is not None:
        return instances.store.children(layout.ids(group))
    return [one.consumer for one in read_client_group(instances, group).members]


def assignors(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from kafka_coord.coordinator.assignors import load_assignors

    return sorted(name for name in (*load_assignors(), "default") if name.startswith(incomplete))


def offering(names: Names) -> Complete:
    """Returns a ``shell_complete`` function for a click parameter. It offers no names if ZooKeeper or the instances are
    slow or cannot be reached."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        logging.getLogger().addHandler(logging.NullHandler())
        try:
            with ctx.scope(cleanup=False):
                settings = current_settings()
            quick = replace(settings.zookeeper, connect_timeout_ms=round(_PATIENCE_S * 1000))
            with open_store(replace(settings, zookeeper=quick)) as store:
                from kafka_coord.groups.instances import AskedInstances

                instances = AskedInstances(store, settings.kafka.properties, _PATIENCE_S)
                return sorted(name for name in names(instances, ctx) if name.startswith(incomplete))
        except Exception:  # noqa: BLE001 - the shell would print any error into the line being typed
            return []

    return complete
