"""Reads the outstanding commands: those that consumers have not acknowledged yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka_coord.channel.operations import decode_command
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Command, CommandId, PartitionSet, Unreadable
from kafka_coord.monitor.snapshot import GroupSnapshot
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetData, Node, Store


@dataclass(frozen=True, slots=True)
class WaitingCommand:
    """An unacknowledged command. ``since_ms`` is the time when it was written (ms since 1970, ZooKeeper's clock).

    ``for_live`` is false if the command is not for the registered incarnation. The consumer will drop such a command.
    ``command`` is ``None`` if its znode cannot be decoded.
    """

    group: str
    consumer: str
    id: CommandId
    since_ms: int
    for_live: bool
    command: Command | None

    @property
    def partitions(self) -> PartitionSet:
        return self.command.partitions if self.command else PartitionSet()

    def age_ms(self, now_ms: int) -> int:
        """Returns how long the command has been outstanding. The result is never negative, even if the clocks
        differ."""
        return max(0, now_ms - self.since_ms)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The outstanding commands, sorted by group, then by consumer, then in order of execution."""

    commands: tuple[WaitingCommand, ...]
    unreadable: tuple[Unreadable, ...] = ()


def read_waiting(store: Store, snapshots: Mapping[str, GroupSnapshot]) -> Waiting:
    """Reads every outstanding command of the groups in one round trip."""
    listed = [
        (group, consumer, command)
        for group, snapshot in sorted(snapshots.items())
        for consumer, commands in sorted(snapshot.pending.items())
        for command in commands
    ]
    nodes = store.read_many([GetData(layout.command(group, c, one.name)) for group, c, one in listed]) if listed else ()
    waiting, unreadable = [], []
    for (group, consumer, command_id), node in zip(listed, nodes, strict=True):
        if not isinstance(node, Node):
            continue  # acknowledged since the listing
        path = layout.command(group, consumer, command_id.name)
        command = None
        try:
            command = decode_command(node.data, path)
        except MalformedValue as error:
            unreadable.append(Unreadable(error.where, error.reason))
        member = snapshots[group].observation.members.get(consumer)
        live = member is not None and command is not None and command.incarnation == member.incarnation
        waiting.append(WaitingCommand(group, consumer, command_id, node.stat.ctime_ms, live, command))
    return Waiting(tuple(waiting), tuple(unreadable))
