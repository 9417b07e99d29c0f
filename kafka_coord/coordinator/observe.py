"""Observes groups: reads everything about them into frozen values, usually in one or two multi-reads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar, cast

from kafka_coord.channel.operations import decode_command, in_order
from kafka_coord.coordinator.deadlines import DeadlineInputs, deadlines, slow_commands
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.coordinator.tolerant_reads import Answer, read_each
from kafka_coord.errors import MalformedValue, NoAuth, StoreError
from kafka_coord.model import (
    Assignment,
    Channel,
    Command,
    Decision,
    Departure,
    GroupSettings,
    Ledger,
    Member,
    Observation,
    Pause,
    Request,
    TopicInfo,
    Unreadable,
    Zxids,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.model.names import RULE, is_legal
from kafka_coord.model.retention import Retention
from kafka_coord.model.unresolved import Refusals
from kafka_coord.zk import layout
from kafka_coord.zk.retention import decode_retention
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, Store

T = TypeVar("T")
Answers = Sequence[Answer]

_READS_WHOLE, _READS_EACH, _READS_ZXIDS = 8, 3, 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of reading a group: the observation for ``plan``, and what else the executor needs. ``missing``
    contains the group's persistent parents that a write must create first. ``history`` is the group's history znode.
    ``zxids`` were read before everything else, so the observed state is the one that they identify or a later one.
    ``history`` and ``zxids`` are read only on request (see :class:`GroupQuery`)."""

    observation: Observation
    missing: frozenset[str]
    history: Node | None = None
    zxids: Zxids | None = None


@dataclass(frozen=True, slots=True)
class GroupQuery:
    """A group to read, and what is already known about it. ``with_history`` also requests the group's past decisions,
    because the next decision is appended to them. ``with_zxids`` also requests the zxids of the group's state."""

    memory: GroupMemory
    topics: Mapping[str, TopicInfo]
    requests: Sequence[Request]
    with_history: bool = False
    with_zxids: bool = False


def unchanged(store: Store, at_rest: Sequence[tuple[str, Zxids]]) -> list[bool]:
    """Returns, for each group, whether it is unpaused and has not changed since it was found at rest. This takes six
    small reads per group, however large the group is. Raises :class:`StoreUnavailable`."""
    reads: list[Read] = [GetData(layout.PAUSED)]
    for group, _ in at_rest:
        reads += (*_reads_of_zxids(group), GetData(layout.group(group)), GetData(layout.assignment(group)))
        reads.append(GetData(layout.paused(group)))
    paused_everywhere, *answers = read_each(store, reads)
    results = []
    for number, (_, zxids) in enumerate(at_rest):
        ids, owners, channel, group_node, target, paused = answers[6 * number : 6 * (number + 1)]
        now = _zxids(group_node, ids, owners, channel, target)
        unchanged_since = now is not None and zxids.hold(now.ids, now)
        results.append(unchanged_since and paused is None and paused_everywhere is None)
    return results


def _reads_of_zxids(group: str) -> list[Read]:
    """Returns reads of the znodes whose children matter. Unlike a listing, reading the znode itself returns the zxid
    of the last change to the children."""
    return [GetData(layout.ids(group)), GetData(layout.owners(group)), GetData(layout.channels(group))]


def _zxids(group: Answer, ids: Answer, owners: Answer, channel: Answer, assignment: Answer) -> Zxids | None:
    """Returns the zxids of a group's state, or ``None`` if an ACL forbids reading any of the znodes."""
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
    """Reads several groups together. One request is enough if each group has the same consumers as in the last pass;
    otherwise, a second request reads the new consumers. If consumers are slow to acknowledge commands, a further
    request reads those commands. Returns ``None`` for a group that does not exist, and the error for a group that
    cannot be read. Raises :class:`StoreUnavailable` if nothing could be read.

    Malformed znodes are listed in ``observation.unreadable`` and otherwise treated as absent. The reads need not form
    one consistent snapshot of ZooKeeper: only the coordinator writes ledgers, targets and commands, and if a consumer
    registers, acknowledges or vanishes between two reads, that event causes another pass.
    """
    groups = [_read_group(store, query, epoch, options) for query in queries]
    results: list[Snapshot | StoreError | None] = [None] * len(queries)
    pending = {number: next(group) for number, group in enumerate(groups)}
    while pending:
        answers = iter(read_each(store, [read for reads in pending.values() for read in reads]))
        due, pending = pending, {}
        for number, reads in due.items():
            try:
                pending[number] = groups[number].send([*islice(answers, len(reads))])
            except StopIteration as done:
                results[number] = done.value
            except StoreError as error:
                results[number] = error
    return results


def _read_group(
    store: Store, query: GroupQuery, epoch: int, options: CoordinatorOptions
) -> Generator[list[Read], Answers, Snapshot | None]:
    """Reads one group, as a generator that yields reads and is sent their results. Returns ``None`` if the group does
    not exist. Reads the group and the consumers that it had in the last pass, then all other consumers, and finally any
    commands that consumers are slow to acknowledge, in case those are unreadable."""
    memory, group, reading = query.memory, query.memory.group, _Decoding(query.memory.decoded)
    answers = yield [
        *(_reads_of_zxids(group) if query.with_zxids else ()),  # read before the znodes whose state they identify
        GetData(layout.group(group)),
        GetChildren(layout.ids(group)),
        GetChildren(layout.owners(group)),
        GetChildren(layout.channels(group)),
        GetData(layout.assignment(group)),
        GetData(layout.paused(group)),
        GetData(layout.PAUSED),
        GetChildren(layout.unresolved(group)),
        *_reads_of_consumers(group, memory.consumers),
        *([GetData(layout.history(group))] if query.with_history else []),
    ]
    zxids_at = _READS_ZXIDS if query.with_zxids else 0
    each_at = zxids_at + _READS_WHOLE
    group_node, ids, owners, channels, assignment, paused, paused_everywhere, unresolved = answers[zxids_at:each_at]
    if group_node is None:
        return None
    history = answers[-1] if query.with_history else None
    each = _by_consumer(memory.consumers, answers[each_at:])
    consumers = reading.names(layout.ids(group), ids)
    ledgered = reading.names(layout.owners(group), owners)
    channelled = reading.names(layout.channels(group), channels)
    memory.consumers = tuple(dict.fromkeys((*consumers, *ledgered, *channelled)))
    others = [c for c in memory.consumers if c not in each]
    target = reading.decode(layout.assignment(group), assignment, decode_assignment)
    departed = sorted(target.members.keys() - set(consumers)) if target is not None else []
    further = yield [*_reads_of_consumers(group, others), *(GetData(layout.channel(group, c)) for c in departed)]
    farewells = further[len(further) - len(departed) :]
    each |= _by_consumer(others, further)

    slow = [
        layout.command(group, c, name)
        for c, name in slow_commands(memory.timers, store.clock.monotonic())
        if c in each and isinstance(listing := each[c][2], tuple) and name in listing
    ]
    refusing = [name for name in reading.children(unresolved) if is_legal(name)]
    may_be_empty = not consumers and not ledgered
    last = yield [
        *(GetData(path) for path in (*slow, *(layout.refusals(group, name) for name in refusing))),
        *([GetData(layout.RETENTION)] if may_be_empty else []),
    ]
    commands, refusals = last[: len(slow)], dict(zip(refusing, last[len(slow) :], strict=False))
    retention = retention_in(last[len(slow) + len(refusing) :])
    registrations = {c: each[c][0] for c in consumers}
    members = reading.decode_each(registrations, partial(layout.registration, group), decode_member)
    ledgers = reading.decode_each({c: each[c][1] for c in ledgered}, partial(layout.ledger, group), decode_ledger)
    listings = {c: reading.listing(layout.channel(group, c), each[c][2]) for c in channelled}
    seen_channels = {c: Channel(*in_order(listing)) for c, listing in listings.items() if listing is not None}
    settings = reading.decode(layout.group(group), group_node, _decode_settings)
    pause = reading.decode(layout.PAUSED, paused_everywhere, _decode_pause, empty=Pause()) or reading.decode(
        layout.paused(group), paused, _decode_pause, empty=Pause()
    )
    for path, command in zip(slow, commands, strict=True):
        reading.decode(path, command, _decode_command)
    departures = {
        c: _departure(memory, reading, c, found, ledgers.get(c)) for c, found in zip(departed, farewells, strict=True)
    }
    refused = reading.decode_each(refusals, partial(layout.refusals, group), _decode_refusals)
    memory.decoded = reading.values
    # a member that vanished between the two reads counts as gone (perhaps in grace), not as unreadable
    registered = frozenset(c for c, node in registrations.items() if node is not None)
    due = deadlines(
        DeadlineInputs(members, registered, ledgers, seen_channels, target, settings, retention),
        memory.timers,
        options,
        store.clock.monotonic(),
        store.clock.time() * 1000,
    )
    nothing_kept, memory.nothing_kept = memory.nothing_kept, False
    observation = Observation(
        group=group,
        epoch=epoch,
        members=members,
        ledgers=ledgers,
        channels=seen_channels,
        assignment=target,
        topics=query.topics,
        settings=settings or GroupSettings(),
        pause=pause,
        requests=tuple(query.requests),
        in_grace=due.in_grace,
        overdue=due.overdue,
        retired=due.retired,
        retention_passed=due.retention_passed,
        departures=departures,
        nothing_kept=nothing_kept,
        # if the stored target was lost, the next generation must be higher than all earlier ones
        generation_floor=max((d.generation for d in past_decisions(store, group)), default=0) if target is None else 0,
        unreadable=tuple(reading.unreadable),
        refusals=refused,
    )
    parents = {layout.owners(group): owners, layout.channels(group): channels, layout.ids(group): ids}
    absent = {path for path, listing in parents.items() if listing is None}
    absent |= {layout.channel(group, c) for c in members if c not in seen_channels}
    as_of = None
    if query.with_zxids:
        as_of = _zxids(group_node, answers[0], answers[1], answers[2], assignment)
    return Snapshot(observation, frozenset(absent), history if isinstance(history, Node) else None, as_of)


def _departure(
    memory: GroupMemory, reading: _Decoding, consumer: str, farewell: Answer, ledger: Ledger | None
) -> Departure:
    """Returns how a member went whose registration is gone. ZooKeeper does not say how long its session timeout was.
    That is known from the registration if it has been read before (it stays in memory until the target is replaced),
    or else from the ledger."""
    where = layout.registration(memory.group, consumer)
    timeout_ms = ledger.session_timeout_ms if ledger is not None else 0
    if where in memory.decoded:
        reading.values[where] = _, last = memory.decoded[where]
        timeout_ms = (last.session_timeout_ms or timeout_ms) if isinstance(last, Member) else timeout_ms
    return Departure.read(farewell.data if isinstance(farewell, Node) else b"", where, timeout_ms)


def _reads_of_consumers(group: str, consumers: Iterable[str]) -> list[Read]:
    reads: list[Read] = []
    for c in consumers:
        reads += GetData(layout.registration(group, c)), GetData(layout.ledger(group, c))
        reads.append(GetChildren(layout.channel(group, c)))
    return reads


def _by_consumer(consumers: Iterable[str], answers: Answers) -> dict[str, Answers]:
    """Returns the registration, ledger and commands of each consumer, all from the same request."""
    return {c: answers[_READS_EACH * number : _READS_EACH * (number + 1)] for number, c in enumerate(consumers)}


def past_decisions(store: Store, group: str) -> tuple[Decision, ...]:
    """Reads the group's past decisions. Returns an empty tuple if they are unreadable."""
    path = layout.history(group)
    (node,) = read_each(store, [GetData(path)])
    try:
        return Trail.from_json(fields.load(node.data, path), path).decisions if isinstance(node, Node) else ()
    except MalformedValue:
        return ()  # reported when the history is replaced


class _Decoding:
    """Decodes the results of reads and collects those that cannot be decoded."""

    def __init__(self, decoded: Mapping[str, tuple[int, object]]) -> None:
        self._decoded = decoded
        self.values: dict[str, tuple[int, object]] = {}
        self.unreadable: list[Unreadable] = []

    def listing(self, parent: str, found: Answer) -> tuple[str, ...] | None:
        """Returns the children of ``parent``. Every decision needs them, so this raises :class:`NoAuth` if they cannot
        be listed."""
        if isinstance(found, Unreadable):
            raise NoAuth(f"cannot list the children of {parent}: {found.reason}", parent)
        return found if isinstance(found, tuple) else None

    def children(self, found: Answer) -> tuple[str, ...]:
        """Returns the children of a parent that may be missing or unreadable, because no decision needs it."""
        if isinstance(found, Unreadable):
            self.unreadable.append(found)
        return found if isinstance(found, tuple) else ()

    def names(self, parent: str, found: Answer) -> tuple[str, ...]:
        listing = self.listing(parent, found) or ()
        for name in listing:
            if not is_legal(name):
                reason = f"the name {name[:80]!r} is not legal: use {RULE}"
                self.unreadable.append(Unreadable(f"{parent}/{name}", reason))
        return tuple(name for name in listing if is_legal(name))

    def decode(self, where: str, found: Answer, decoder: Callable[[str, Node], T], empty: T | None = None) -> T | None:
        """Decodes a znode. Returns ``None`` if the znode does not exist, and ``empty`` if it is empty or unreadable."""
        if isinstance(found, Unreadable):
            self.unreadable.append(found)
            return empty
        if not isinstance(found, Node):
            return None
        if not found.data and empty is not None:
            return empty
        mzxid, cached = self._decoded.get(where, (-1, None))
        try:
            # the cast is safe, because each path has only one decoder
            value = cast("T", cached) if mzxid == found.stat.mzxid else decoder(where, found)
        except MalformedValue as error:
            self.unreadable.append(Unreadable(error.where, error.reason, found.stat.czxid))
            return empty
        self.values[where] = found.stat.mzxid, value
        return value

    def decode_each(
        self, found: Mapping[str, Answer], where: Callable[[str], str], decoder: Callable[[str, Node], T]
    ) -> dict[str, T]:
        decoded = {consumer: self.decode(where(consumer), node, decoder) for consumer, node in found.items()}
        return {consumer: value for consumer, value in decoded.items() if value is not None}


def decode_member(where: str, node: Node) -> Member:
    return Member.from_json(fields.load(node.data, where), where.rpartition("/")[2], node.stat.czxid, where)


def decode_ledger(where: str, node: Node) -> Ledger:
    return Ledger.from_json(fields.load(node.data, where), where.rpartition("/")[2], node.stat.version, where)


def decode_assignment(where: str, node: Node) -> Assignment:
    return Assignment.from_json(fields.load(node.data, where), node.stat.version, where)


def _decode_settings(where: str, node: Node) -> GroupSettings:
    return GroupSettings.from_json(fields.load(node.data, where), where) if node.data else GroupSettings()


def retention_in(found: Answers) -> Retention | None:
    """Returns the brokers' retention, which is only read if the group may be empty, or ``None`` if it cannot be
    read."""
    node = found[0] if found else None
    if isinstance(node, Node):
        with suppress(MalformedValue):
            return decode_retention(layout.RETENTION, node)
    return Retention() if node is None else None


def _decode_pause(where: str, node: Node) -> Pause:
    return Pause.from_json(fields.load(node.data, where), where)


def _decode_command(where: str, node: Node) -> Command:
    return decode_command(node.data, where)


def _decode_refusals(where: str, node: Node) -> Refusals:
    return Refusals.from_json(fields.load(node.data, where), where)
