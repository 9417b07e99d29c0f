"""``kafka-coord groups``: shows and operates groups."""

from __future__ import annotations

import click

from kafka_coord.cli.main import LazyCommands

_COMMANDS = {
    "list": ("kafka_coord.cli.groups.show:list_command", "List all groups with their state."),
    "describe": ("kafka_coord.cli.groups.show:describe", "Show groups: state, members, offsets and lag."),
    "match": ("kafka_coord.cli.groups.show:match", "Show which topics a pattern matches."),
    "history": ("kafka_coord.cli.groups.show:history", "Show the latest decisions and operator actions."),
    "log": ("kafka_coord.cli.groups.log:log", "Show the records of client-assigned groups."),
    "rebalance": ("kafka_coord.cli.groups.operate:rebalance", "Decide a new target now."),
    "evict": ("kafka_coord.cli.groups.operate:evict", "Delete consumers' registrations."),
    "pause": ("kafka_coord.cli.groups.operate:pause", "Pause rebalances of a group, or of all groups."),
    "resume": ("kafka_coord.cli.groups.operate:resume", "Allow rebalances again."),
    "settings": ("kafka_coord.cli.groups.operate:settings", "Show or change a group's settings."),
    "reset-offsets": ("kafka_coord.cli.groups.reset:reset_offsets", "Set committed offsets by a rule."),
    "convert": ("kafka_coord.cli.groups.operate:convert", "Make a group managed, or client-assigned."),
    "take-over": ("kafka_coord.cli.groups.operate:take_over", "Take native groups over while they run."),
    "give-back": ("kafka_coord.cli.groups.operate:give_back", "Give groups back to the brokers while they run."),
    "import": ("kafka_coord.cli.groups.copying:import_command", "Copy committed offsets from the brokers' own groups."),
    "export": ("kafka_coord.cli.groups.copying:export_command", "Copy committed offsets to the brokers' own groups."),
    "delete-offsets": ("kafka_coord.cli.groups.operate:delete_offsets", "Delete committed offsets."),
    "delete": ("kafka_coord.cli.groups.operate:delete", "Remove groups with their offsets, history and settings."),
}


class _Verbs(LazyCommands):
    """The commands in :data:`_COMMANDS`, and one for each other verb on groups."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from kafka_coord.groups.verbs import VERBS

        return list(dict.fromkeys([*super().list_commands(ctx), *VERBS]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        from kafka_coord.cli.groups.operate import command_of
        from kafka_coord.groups.verbs import VERBS

        return command_of(cmd_name, VERBS[cmd_name]) if cmd_name in VERBS else None


@click.group(cls=_Verbs, lazy=_COMMANDS)
def groups() -> None:
    """List, describe and operate consumer groups.

    \b
    kafka-coord groups list
    kafka-coord groups describe delays --offsets -o json
    kafka-coord groups pause delays --reason "moving disks" --wait
    kafka-coord groups reset-offsets delays --topic flights --to-earliest --execute
    """
