"""Observes groups by reading everything about them, as frozen values, in one or two multi-reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from kafka_coord.channel.operations import decode_command
from kafka_coord.coordinator.deadlines import DeadlineInputs, deadlines, slow_commands
from kafka_coord.coordinator.memory import Decoded, GroupMemory
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import MalformedValue, NoAuth, StoreError
from kafka_coord.model import (
    Assignment,
    Channel,
    Command,
    GroupSettings,
    Ledger,
    Member,
    Observation,
    Pause,
    Request,
    TopicInfo,
    Unreadable,
    Zxids,
    history_from_json,
    parse_command_id,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import RULE, is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, ReadResult, Store

T = TypeVar("T")

_READS_WHOLE, _READS_EACH, _READS_ZXIDS = 7, 3, 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of reading a group: the observation for ``plan``, and further values for the executor. ``missing`` are
    the group's persistent parents that a write must create first. ``history`` is the znode of its decisions, and
    ``zxids`` identify the state that was seen, or an earlier state. These two are set only on request (see
    :class:`GroupQuery`).
    """

    observation: Observation
    missing: frozenset[str]
    history: Node | None = None
    zxids: Zxids | None = None


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """A group to read, with the values already known. ``with_history`` also reads the group's past decisions, to which
    the next one is appended. ``with_zxids`` also reads the zxids of the group's state."""

    memory: GroupMemory
    topics: Mapping[str, TopicInfo]
    requests: Sequence[Request]
    with_history: bool = False
    with_zxids: bool = False


def unchanged(store: Store, at_rest: Sequence[tuple[str, Zxids]]) -> list[bool]:
    """Whether each group is still in the state in which it was found at rest, with no pause set. Needs six small reads
    per group, even for a large group. Raises :class:`StoreUnavailable`."""
    reads: list[Read] = [GetData(layout.PAUSED)]
    for group, _ in at_rest:
        reads += (*_reads_of_zxids(group), GetData(layout.group(group)), GetData(layout.assignment(group)))
        reads.append(GetData(layout.paused(group)))
    paused_everywhere, *answers = read_each(store, reads)
    found = []
    for number, (_, zxids) in enumerate(at_rest):
        ids, owners, channel, group_node, target, paused = answers[6 * number : 6 * (number + 1)]
        now = _zxids(group_node, ids, owners, channel, target)
        unchanged_since = now is not None and zxids.hold(now.ids, now)
        found.append(unchanged_since and paused is None and paused_everywhere is None)
    return found


def _reads_of_zxids(group: str) -> list[Read]:
    """Returns reads of the znodes whose children matter, because a listing of the children does not contain the
    zxid."""
    return [GetData(layout.ids(group)), GetData(layout.owners(group)), GetData(layout.channels(group))]


def _zxids(
    group: ReadResult | Unreadable,
    ids: ReadResult | Unreadable,
    owners: ReadResult | Unreadable,
    channel: ReadResult | Unreadable,
    assignment: ReadResult | Unreadable,
) -> Zxids | None:
    """Returns the zxids, or ``None`` if the ACL of any of these znodes forbids reading it."""
    if any(isinstance(found, Unreadable) for found in (group, ids, owners, channel, assignment)):
        return None
    return Zxids(
        group=group.stat.mzxid if isinstance(group, Node) else 0,
        ids=ids.stat.pzxid if isinstance(ids, Node) else 0,
        owners=owners.stat.pzxid if isinstance(owners, Node) else 0,
        channel=channel.stat.pzxid if isinstance(channel, Node) else 0,
        assignment=assignment.stat.mzxid if isinstance(assignment, Node) else 0,
    )


def observe(
    store: Store, queries: Sequence[GroupQuery], *, epoch: int, options: CoordinatorOptions
) -> list[Snapshot | StoreError | None]:
    """Reads several groups together. One request is enough if each group has the same consumers as at the last pass.
    Otherwise, there are two. Returns ``None`` for a group that does not exist, and the error for a group that cannot be
    read. Raises :class:`StoreUnavailable` if nothing could be read.

    Malformed znodes are listed in ``observation.unreadable`` and otherwise treated as absent. The reads need not be one
    consistent snapshot of ZooKeeper. Only the coordinator writes ledgers, targets and commands. If a consumer
    registers, acknowledges or vanishes between two reads, that event causes another pass.
    """
    readers = [_SnapshotReader(store, query, epoch, options) for query in queries]
    _ask(store, readers, [one.whole() for one in readers])
    _ask(store, readers, [one.each() for one in readers])
    _ask(store, readers, [one.commands() for one in readers])
    return [one.found() for one in readers]


def _ask(store: Store, readers: Sequence[_SnapshotReader], reads: Sequence[Sequence[Read]]) -> None:
    """Sends all reads at once and hands each reader its answers."""
    answers = read_each(store, [read for some in reads for read in some])
    first = 0
    for one, some in zip(readers, reads, strict=True):
        one.answers = answers[first : first + len(some)]
        first += len(some)


class _SnapshotReader:
    """Reads one group in steps: :meth:`whole`, :meth:`each` and :meth:`commands` return the reads to send, and
    :meth:`found` returns the snapshot."""

    def __init__(self, store: Store, query: GroupQuery, epoch: int, options: CoordinatorOptions) -> None:
        self._store, self._query, self._epoch, self._options = store, query, epoch, options
        self._reading = _Decoding(query.memory.decoded)
        self._problem: StoreError | None = None
        self._whole: Sequence[ReadResult | Unreadable] = ()
        self._names: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] = ((), (), ())
        self._history: ReadResult | Unreadable = None
        self._listed: Sequence[ReadResult | Unreadable] = ()
        self._asked: Sequence[str] = ()
        self._each: dict[str, Sequence[ReadResult | Unreadable]] = {}
        """The registration, ledger and commands of each consumer, all from the same request."""
        self._slow: Sequence[str] = ()
        """The paths of the commands to read."""
        self.answers: Sequence[ReadResult | Unreadable] = ()

    def whole(self) -> list[Read]:
        """Returns the first reads: the group, and the consumers that it had at the last pass."""
        group = self._query.memory.group
        self._asked = self._query.memory.decoded.consumers
        return [
            *(_reads_of_zxids(group) if self._query.with_zxids else ()),  # before the znodes whose state they identify
            GetData(layout.group(group)),
            GetChildren(layout.ids(group)),
            GetChildren(layout.owners(group)),
            GetChildren(layout.channels(group)),
            GetData(layout.assignment(group)),
            GetData(layout.paused(group)),
            GetData(layout.PAUSED),
            *self._reads(self._asked),
            *([GetData(layout.history(group))] if self._query.with_history else []),
        ]

    def each(self) -> list[Read]:
        """Returns the reads that follow from the results of :meth:`whole`: all other consumers."""
        count = _READS_ZXIDS if self._query.with_zxids else 0
        self._listed, answers = self.answers[:count], self.answers[count:]
        self._whole = answers[:_READS_WHOLE]
        self._take(answers[_READS_WHOLE:])
        self._history = self.answers[-1] if self._query.with_history else None
        group_node, ids, owners, channels, *_ = self._whole
        self._asked = ()
        if group_node is None:
            return []
        group, reading = self._query.memory.group, self._reading
        try:
            consumers = reading.names(layout.ids(group), ids)
            ledgered = reading.names(layout.owners(group), owners)
            channelled = reading.names(layout.channels(group), channels)
        except StoreError as error:
            self._problem = error
            return []
        self._names = consumers, ledgered, channelled
        present = dict.fromkeys((*consumers, *ledgered, *channelled))
        self._query.memory.decoded.consumers = tuple(present)
        self._asked = [c for c in present if c not in self._each]
        return self._reads(self._asked)

    def _reads(self, consumers: Iterable[str]) -> list[Read]:
        group = self._query.memory.group
        reads: list[Read] = []
        for c in consumers:
            reads += (
                GetData(layout.registration(group, c)),
                GetData(layout.ledger(group, c)),
                GetChildren(layout.channel(group, c)),
            )
        return reads

    def _take(self, answers: Sequence[ReadResult | Unreadable]) -> None:
        for number, consumer in enumerate(self._asked):
            self._each[consumer] = answers[_READS_EACH * number : _READS_EACH * (number + 1)]

    def commands(self) -> list[Read]:
        """Returns the last reads, from the results of :meth:`each`: commands that consumers are slow to acknowledge.
        Such a command may be unreadable, and an unreadable command is never acknowledged."""
        self._take(self.answers)
        memory = self._query.memory
        slow = slow_commands(memory.timers, self._store.clock.monotonic())
        listed = {c: each[2] for c, each in self._each.items() if isinstance(each[2], tuple)}
        self._slow = [layout.command(memory.group, c, name) for c, name in slow if name in listed.get(c, ())]
        return [GetData(path) for path in self._slow]

    def found(self) -> Snapshot | StoreError | None:
        """Returns the snapshot, from the results of :meth:`commands`."""
        if self._problem is not None:
            return self._problem
        if self._whole[0] is None:
            return None
        try:
            return self._snapshot()
        except StoreError as error:
            return error

    def _snapshot(self) -> Snapshot:
        reading, group = self._reading, self._query.memory.group
        group_node, ids, owners, channels, assignment, paused, paused_everywhere = self._whole
        consumers, ledgered, channelled = self._names
        each = self._each
        members = reading.decode_each(
            consumers, [each[c][0] for c in consumers], lambda c: layout.registration(group, c), decode_member
        )
        ledgers = reading.decode_each(
            ledgered, [each[c][1] for c in ledgered], lambda c: layout.ledger(group, c), _decode_ledger
        )
        listings = {c: reading.listing(layout.channel(group, c), each[c][2]) for c in channelled}
        seen_channels = {c: _channel(listing) for c, listing in listings.items() if isinstance(listing, tuple)}
        settings = reading.decode(layout.group(group), group_node, _decode_settings)
        target = reading.decode(layout.assignment(group), assignment, _decode_assignment)
        pause = reading.decode(layout.PAUSED, paused_everywhere, _decode_pause, empty=Pause()) or reading.decode(
            layout.paused(group), paused, _decode_pause, empty=Pause()
        )
        for path, command in zip(self._slow, self.answers, strict=True):
            reading.decode(path, command, _decode_command)
        self._query.memory.decoded.replace(reading.values)
        # a member that vanished between the two reads is gone, possibly in grace, and not merely unreadable
        registered = frozenset(c for c in consumers if each[c][0] is not None)
        clock = self._store.clock
        due = deadlines(
            DeadlineInputs(members, registered, ledgers, seen_channels, target, settings),
            self._query.memory.timers,
            self._options,
            clock.monotonic(),
            clock.time() * 1000,
        )
        observation = Observation(
            group=group,
            epoch=self._epoch,
            members=members,
            ledgers=ledgers,
            channels=seen_channels,
            assignment=target,
            topics=self._query.topics,
            settings=settings or GroupSettings(),
            pause=pause,
            requests=tuple(self._query.requests),
            in_grace=due.in_grace,
            overdue=due.overdue,
            retired=due.retired,
            retention_passed=due.retention_passed,
            generation_floor=_highest_decided(self._store, group) if target is None else 0,
            unreadable=tuple(reading.unreadable),
        )
        parents = {layout.owners(group): owners, layout.channels(group): channels, layout.ids(group): ids}
        absent = {path for path, listing in parents.items() if listing is None}
        absent |= {layout.channel(group, c) for c in members if c not in seen_channels}
        history = self._history if isinstance(self._history, Node) else None
        return Snapshot(observation, frozenset(absent), history, self._as_of())

    def _as_of(self) -> Zxids | None:
        if not self._listed:
            return None
        ids, owners, channel = self._listed
        return _zxids(self._whole[0], ids, owners, channel, self._whole[4])


def _highest_decided(store: Store, group: str) -> int:
    """Returns the highest generation in the history. If the stored target was lost, the next generation must be
    higher."""
    path = layout.history(group)
    (node,) = read_each(store, [GetData(path)])
    if not isinstance(node, Node):
        return 0
    try:
        return max((d.generation for d in history_from_json(fields.load(node.data, path), path)), default=0)
    except MalformedValue:
        return 0  # the write that replaces the history reports this


class _Decoding:
    """Decodes the results of reads, and collects those that cannot be decoded."""

    def __init__(self, decoded: Decoded) -> None:
        self._decoded = decoded
        self.values: dict[str, tuple[int, object]] = {}
        self.unreadable: list[Unreadable] = []

    def listing(self, parent: str, found: ReadResult | Unreadable) -> tuple[str, ...] | None:
        """Returns the children. Raises :class:`NoAuth` if they cannot be listed, because every decision needs them."""
        if isinstance(found, Unreadable):
            raise NoAuth(f"cannot list the children of {parent}: {found.reason}", parent)
        return found if isinstance(found, tuple) else None

    def names(self, parent: str, found: ReadResult | Unreadable) -> tuple[str, ...]:
        listing = self.listing(parent, found) or ()
        for name in listing:
            if not is_legal(name):
                reason = f"the name {name[:80]!r} is not legal: use {RULE}"
                self.unreadable.append(Unreadable(f"{parent}/{name}", reason))
        return tuple(name for name in listing if is_legal(name))

    def decode(
        self, where: str, found: ReadResult | Unreadable, decoder: Callable[[str, Node], T], empty: T | None = None
    ) -> T | None:
        """Decodes a znode. Returns ``None`` if the znode does not exist, and ``empty`` if it is empty or unreadable."""
        if isinstance(found, Unreadable):
            self.unreadable.append(found)
            return empty
        if not isinstance(found, Node):
            return None
        if not found.data and empty is not None:
            return empty
        value = cast("T | None", self._decoded.get(where, found))  # each path has one kind of value and one decoder
        try:
            value = decoder(where, found) if value is None else value
        except MalformedValue as error:
            self.unreadable.append(Unreadable(error.where, error.reason, found.stat.czxid))
            return empty
        self.values[where] = found.stat.mzxid, value
        return value

    def decode_each(
        self,
        consumers: Sequence[str],
        found: Sequence[ReadResult | Unreadable],
        where: Callable[[str], str],
        decoder: Callable[[str, Node], T],
    ) -> dict[str, T]:
        decoded = {}
        for consumer, node in zip(consumers, found, strict=True):
            value = self.decode(where(consumer), node, decoder)
            if value is not None:
                decoded[consumer] = value
        return decoded


def decode_member(where: str, node: Node) -> Member:
    return Member.from_json(fields.load(node.data, where), where.rpartition("/")[2], node.stat.czxid, where)


def _decode_ledger(where: str, node: Node) -> Ledger:
    return Ledger.from_json(fields.load(node.data, where), where.rpartition("/")[2], node.stat.version, where)


def _decode_assignment(where: str, node: Node) -> Assignment:
    return Assignment.from_json(fields.load(node.data, where), node.stat.version, where)


def _decode_settings(where: str, node: Node) -> GroupSettings:
    return GroupSettings.from_json(fields.load(node.data, where), where) if node.data else GroupSettings()


def _decode_pause(where: str, node: Node) -> Pause:
    return Pause.from_json(fields.load(node.data, where), where)


def _decode_command(where: str, node: Node) -> Command:
    return decode_command(node.data, where)


def _channel(listing: tuple[str, ...]) -> Channel:
    parsed = [(name, parse_command_id(name)) for name in listing]
    return Channel(
        commands=tuple(sorted(command for _, command in parsed if command is not None)),
        strays=tuple(name for name, command in parsed if command is None),
    )
