"""The image of a managed group: what its znodes say, without any decision. Only this module knows which znodes make up
a group and how they are read. A pass hands in what it remembers (:class:`Known`); all other readers do not.

A group's offsets and its history are not part of the image.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from kafka_coord.channel.operations import decode_command, in_order
from kafka_coord.coordinator.tolerant_reads import Answer, Decoding, read_each
from kafka_coord.errors import MalformedValue, NoAuth
from kafka_coord.model import (
    Assignment,
    Channel,
    Command,
    CommandId,
    Departure,
    GroupSettings,
    Holds,
    Ledger,
    Member,
    Observation,
    Pause,
    Settled,
    TopicInfo,
    TopicPartition,
    Unreadable,
    Zxids,
)
from kafka_coord.model.member import Refusals, awaited_partition, read_reason
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, Stat, Store

log = logging.getLogger(__name__)

T = TypeVar("T")
Answers = Sequence[Answer]

_READS_WHOLE, _READS_EACH, _READS_ZXIDS = 8, 3, 3


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier read of a group found, which makes the next one cheaper. ``consumers`` are those it saw: the next
    read asks for their znodes in the same request that lists who is there now. ``decoded`` maps the path of each
    decoded znode to the zxid of its last write (mzxid) and its value: only what was written since is decoded again."""

    consumers: tuple[str, ...] = ()
    decoded: Mapping[str, tuple[int, object]] = field(default_factory=dict)

    @property
    def members(self) -> list[Member]:
        return [value for _, value in self.decoded.values() if isinstance(value, Member)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A group to read. ``slow`` are outstanding commands of ``known`` consumers, as consumer and name, that are decoded
    to see whether anyone can. ``history`` and ``zxids`` also ask for the history znode, and for the zxids of the
    group's state. ``reasons`` asks why partitions are still waiting for the end they start at."""

    group: str
    known: Known = field(default_factory=Known)
    slow: Sequence[tuple[str, str]] = ()
    history: bool = False
    zxids: bool = False
    reasons: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """What a group's znodes say. All maps are keyed by consumer name unless stated otherwise.

    ``registered`` are the consumers that have a registration, readable or not. ``settings`` is ``None`` if unreadable.
    ``pause`` is the group's own; ``paused_everywhere`` is that of all groups, read only on request. ``departures`` says
    how those members of the target went that are no longer registered. ``awaited`` contains the partitions that start
    at an end which nobody has listed yet, each with the reason ("" if none is known). ``unreadable`` are all znodes
    that could not be read or decoded; they count as absent. ``hidden`` is the first of them that is a listing, without
    which nothing can be decided. ``missing`` are the persistent parents that do not exist. ``zxids`` were read before
    everything else, so the image shows the state that they identify, or a later one. ``known`` is for the next read.
    """

    group: str
    members: Mapping[str, Member]
    registered: frozenset[str]
    ledgers: Mapping[str, Ledger]
    channels: Mapping[str, Channel]
    assignment: Assignment | None
    settings: GroupSettings | None
    pause: Pause | None
    paused_everywhere: Pause | None
    holds: Holds | None
    departures: Mapping[str, Departure]
    refusals: Mapping[str, Refusals]
    awaited: Mapping[TopicPartition, str]
    unreadable: tuple[Unreadable, ...]
    hidden: Unreadable | None
    missing: frozenset[str]
    history: Node | None
    zxids: Zxids | None
    known: Known
    _target: Answer
    _each: Mapping[str, Answers]

    @property
    def registrations(self) -> dict[str, Stat]:
        """The stats of the registrations, decodable or not, except those that an ACL forbids reading."""
        nodes = {c: self._each[c][0] for c in self.registered}
        return {c: node.stat for c, node in sorted(nodes.items()) if isinstance(node, Node)}

    @property
    def decided_ms(self) -> int:
        """When the target or one of the ledgers was last written (ms since 1970)."""
        nodes = (self._target, *(ledger for _, ledger, _ in self._each.values()))
        return max((node.stat.mtime_ms for node in nodes if isinstance(node, Node)), default=0)

    def require_listings(self) -> None:
        """Raises :class:`NoAuth` if a listing is hidden."""
        if self.hidden is not None:
            path = self.hidden.path
            raise NoAuth(f"cannot list the children of {path}: {self.hidden.reason}", path)

    def observation(self, epoch: int, topics: Mapping[str, TopicInfo]) -> Observation:
        """Returns the image as the planner sees it. ``epoch`` is the coordinator's, and ``topics`` are Kafka's. What
        deadlines and operators ask for is not part of it."""
        return Observation(
            group=self.group,
            epoch=epoch,
            members=self.members,
            ledgers=self.ledgers,
            channels=self.channels,
            assignment=self.assignment,
            topics=topics,
            settings=self.settings or GroupSettings(),
            pause=self.paused_everywhere or self.pause,
            departures=self.departures,
            holds=self.holds,
            unreadable=self.unreadable,
            refusals=self.refusals,
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The result of reading a group: the observation for ``plan``, and the image it was made from, which has what else
    the executor needs."""

    observation: Observation
    image: Image


def read_images(store: Store, wanted: Iterable[Wanted], *, everywhere: bool = False) -> dict[str, Image]:
    """Reads several groups together, and leaves out those that do not exist. ``everywhere`` also asks for the pause of
    all groups. One request is enough if each group has the consumers that are known; otherwise, a second one reads what
    the first has listed. Raises :class:`StoreUnavailable` if nothing could be read.

    The reads need not form one consistent snapshot of ZooKeeper: only the coordinator writes ledgers, targets and
    commands, and if a consumer registers, acknowledges or vanishes between two reads, that event causes another pass.
    """
    groups = {one.group: _read_group(one) for one in wanted}
    pending = {name: next(group) for name, group in groups.items()}
    first: list[Read] = [GetData(layout.PAUSED)] if everywhere and groups else []
    answers = iter(read_each(store, [*first, *(read for reads in pending.values() for read in reads)]))
    paused = next(answers) if first else None
    images: dict[str, Image] = {}
    while pending:
        due, pending = pending, {}
        for name, reads in due.items():
            try:
                pending[name] = groups[name].send((paused, [*islice(answers, len(reads))]))
            except StopIteration as done:
                if done.value is not None:
                    images[name] = done.value
        answers = iter(read_each(store, [read for reads in pending.values() for read in reads]))
    return images


def _read_group(wanted: Wanted) -> Generator[list[Read], tuple[Answer, Answers], Image | None]:
    """Reads one group, as a generator that yields reads and is sent the pause of all groups and the results. Returns
    ``None`` if the group does not exist. Reads the group and the known consumers, then everything else."""
    group, known, reading = wanted.group, wanted.known, Decoding(wanted.known.decoded)
    everywhere, answers = yield [
        *(_reads_of_zxids(group) if wanted.zxids else ()),  # read before the znodes whose state they identify
        GetData(layout.group(group)),
        GetChildren(layout.ids(group)),
        GetChildren(layout.owners(group)),
        GetChildren(layout.channels(group)),
        GetData(layout.assignment(group)),
        GetData(layout.paused(group)),
        GetData(layout.held(group)),
        GetChildren(layout.unresolved(group)),
        *_reads_of_consumers(group, known.consumers),
        *([GetData(layout.history(group))] if wanted.history else []),
    ]
    zxids_at = _READS_ZXIDS if wanted.zxids else 0
    each_at = zxids_at + _READS_WHOLE
    group_node, ids, owners, channels, target_node, paused, held, listed = answers[zxids_at:each_at]
    if group_node is None:
        return None
    history = answers[-1] if wanted.history else None
    each = _by_consumer(known.consumers, answers[each_at:])
    consumers = reading.names(layout.ids(group), ids)
    ledgered = reading.names(layout.owners(group), owners)
    channelled = reading.names(layout.channels(group), channels)
    everyone = tuple(dict.fromkeys((*consumers, *ledgered, *channelled)))
    others = [c for c in everyone if c not in each]
    target = reading.decode(layout.assignment(group), target_node, decode_assignment)
    departed = sorted(target.members.keys() - set(consumers)) if target is not None else []
    slow = [
        layout.command(group, c, name)
        for c, name in wanted.slow
        if c in each and isinstance(outstanding := each[c][2], tuple) and name in outstanding
    ]
    unresolved = [name for name in reading.children(listed) if wanted.reasons or is_legal(name)]
    _, further = yield [
        *_reads_of_consumers(group, others),
        *(GetData(layout.channel(group, c)) for c in departed),
        *(GetData(path) for path in slow),
        *(GetData(f"{layout.unresolved(group)}/{name}") for name in unresolved),
    ]
    rest = iter(further[_READS_EACH * len(others) :])
    farewells, commands, notes = ([*islice(rest, len(part))] for part in (departed, slow, unresolved))
    each |= _by_consumer(others, further)

    registrations = {c: each[c][0] for c in consumers}
    members = reading.decode_each(registrations, partial(layout.registration, group), decode_member)
    ledgers = reading.decode_each({c: each[c][1] for c in ledgered}, partial(layout.ledger, group), decode_ledger)
    listings = {c: reading.listing(each[c][2]) for c in channelled}
    seen_channels = {c: Channel(*in_order(listing)) for c, listing in listings.items() if listing is not None}
    settings = reading.decode(layout.group(group), group_node, decode_settings)
    paused_everywhere = reading.decode(layout.PAUSED, everywhere, _decode_pause, empty=Pause())
    pause = reading.decode(layout.paused(group), paused, _decode_pause, empty=Pause())
    for path, command in zip(slow, commands, strict=True):
        reading.decode(path, command, _decode_command)
    departures = {
        c: _departure(reading, group, c, found, ledgers.get(c)) for c, found in zip(departed, farewells, strict=True)
    }
    noted = dict(zip(unresolved, notes, strict=True))
    refusals = reading.decode_each(
        {name: node for name, node in noted.items() if is_legal(name)},
        partial(layout.refusals, group),
        _decode_refusals,
    )
    parents = {layout.owners(group): owners, layout.channels(group): channels, layout.ids(group): ids}
    absent = {path for path, listing in parents.items() if listing is None}
    absent |= {layout.channel(group, c) for c in members if c not in seen_channels}
    return Image(
        group=group,
        members=members,
        # a member that vanished between the two reads counts as gone (perhaps in grace), not as unreadable
        registered=frozenset(c for c, node in registrations.items() if node is not None),
        ledgers=ledgers,
        channels=seen_channels,
        assignment=target,
        settings=settings,
        pause=pause,
        paused_everywhere=paused_everywhere,
        holds=reading.decode(layout.held(group), held, _decode_holds),
        departures=departures,
        refusals=refusals,
        awaited={
            partition: read_reason(node.data)
            for name, node in noted.items()
            if isinstance(node, Node) and (partition := awaited_partition(name)) is not None
        },
        unreadable=tuple(reading.unreadable),
        hidden=reading.hidden[0] if reading.hidden else None,
        missing=frozenset(absent),
        history=history if isinstance(history, Node) else None,
        zxids=_zxids(group_node, answers[0], answers[1], answers[2], target_node) if wanted.zxids else None,
        known=Known(everyone, reading.values),
        _target=target_node,
        _each=each,
    )


def _departure(reading: Decoding, group: str, consumer: str, farewell: Answer, ledger: Ledger | None) -> Departure:
    """Returns how a member went whose registration is gone. ZooKeeper does not say how long its session timeout was.
    That is known from the registration if it has been read before (it stays known until the target is replaced), or
    else from the ledger."""
    where = layout.registration(group, consumer)
    timeout_ms = ledger.session_timeout_ms if ledger is not None else 0
    if where in reading.known:
        reading.values[where] = _, last = reading.known[where]
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


# --- groups at rest ------------------------------------------------------------------------------------------------


class Rest(NamedTuple):
    """What shows whether a group is at rest: its znode, its target, its own pause, and the zxids of its state, which
    are ``None`` if an ACL forbids reading any of them."""

    node: Answer
    target: Answer
    paused: Answer
    zxids: Zxids | None

    def decode(self, group: str) -> tuple[Assignment | None, GroupSettings]:
        """Returns the target and the settings. Raises :class:`MalformedValue`."""
        target = decode_assignment(layout.assignment(group), self.target) if isinstance(self.target, Node) else None
        settings = decode_settings(layout.group(group), self.node) if isinstance(self.node, Node) else GroupSettings()
        return target, settings


def unchanged(store: Store, at_rest: Sequence[tuple[str, Zxids]]) -> list[bool]:
    """Returns, for each group, whether it is unpaused and has not changed since it was found at rest. This takes six
    small reads per group, however large the group is. Raises :class:`StoreUnavailable`."""
    reads = [read for group, _ in at_rest for read in _reads_of_rest(group)]
    paused_everywhere, *answers = read_each(store, [GetData(layout.PAUSED), *reads])
    now = _rests(answers)
    return [
        found.zxids is not None
        and zxids.hold(found.zxids.ids, found.zxids)
        and found.paused is None
        and paused_everywhere is None
        for (_, zxids), found in zip(at_rest, now, strict=True)
    ]


def read_rests(store: Store, groups: Sequence[str]) -> list[tuple[Rest, Answer]]:
    """Returns what shows whether each group is at rest, and its at-rest record. Raises :class:`StoreError`."""
    reads = [read for group in groups for read in _reads_of_rest(group)]
    answers = read_each(store, [*reads, *(GetData(layout.settled(group)) for group in groups)])
    return list(zip(_rests(answers[: len(reads)]), answers[len(reads) :], strict=True))


def reads_of_settled(groups: Iterable[str]) -> list[Read]:
    """Returns the two reads for each group that :func:`settled_in` needs."""
    return [GetData(path(group)) for group in groups for path in (layout.settled, layout.ids)]


def settled_in(groups: Iterable[str], answers: Answers) -> dict[str, Settled | None]:
    """Returns each group's at-rest record, or ``None`` if there is none or a member has registered or left since."""
    pairs = zip(groups, answers[::2], answers[1::2], strict=True)
    return {group: _settled_as_of(group, record, ids) for group, record, ids in pairs}


def _settled_as_of(group: str, record: Answer, ids: Answer) -> Settled | None:
    settled = decode_settled(group, record) if isinstance(ids, Node) else None
    as_of = ids.stat.pzxid if isinstance(ids, Node) else 0
    return settled if settled is not None and settled.zxids.hold(as_of) else None


def decode_settled(group: str, record: Answer) -> Settled | None:
    """Decodes a group's at-rest record. Returns ``None`` if the record is missing or unreadable; the next write
    replaces an unreadable one."""
    if not isinstance(record, Node):
        return None
    where = layout.settled(group)
    try:
        return Settled.from_bytes(record.data, where)
    except MalformedValue as error:
        log.warning("ignoring unreadable path=%s reason=%s", where, error.reason)
        return None


_READS_REST = 6


def _reads_of_rest(group: str) -> list[Read]:
    return [GetData(path(group)) for path in (layout.group, layout.assignment, layout.paused)] + _reads_of_zxids(group)


def _rests(answers: Answers) -> list[Rest]:
    each = (answers[at : at + _READS_REST] for at in range(0, len(answers), _READS_REST))
    return [
        Rest(node, target, paused, _zxids(node, ids, owners, channel, target))
        for node, target, paused, ids, owners, channel in each
    ]


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


# --- parts of many groups --------------------------------------------------------------------------------------------

Consumer = tuple[str, str]
"""A group and a consumer."""


def read_targets(store: Store, groups: Sequence[str]) -> dict[str, Assignment | None]:
    """Returns each group's target, or ``None`` if it has none that can be read. Raises :class:`StoreError`."""
    paths, reading = {group: layout.assignment(group) for group in groups}, Decoding()
    found = dict(zip(groups, read_each(store, [GetData(path) for path in paths.values()]), strict=True))
    return {group: reading.decode(path, found[group], decode_assignment) for group, path in paths.items()}


def reads_of_registrations(consumers: Iterable[Consumer]) -> list[Read]:
    return [GetData(layout.registration(*consumer)) for consumer in consumers]


def known_in(group: str, nodes: Mapping[str, Answer]) -> Known:
    """Returns what the registrations of all consumers of a group tell."""
    reading = Decoding()
    reading.decode_each(nodes, partial(layout.registration, group), decode_member)
    return Known(tuple(nodes), reading.values)


def read_registrations(store: Store, consumers: Sequence[Consumer]) -> list[tuple[Answer, Answer]]:
    """Returns each consumer's registration, and the znode of its channel. Raises :class:`StoreError`."""
    channels = [GetData(layout.channel(*consumer)) for consumer in consumers]
    answers = read_each(store, [*reads_of_registrations(consumers), *channels])
    return list(zip(answers[: len(consumers)], answers[len(consumers) :], strict=True))


def list_registered(store: Store, groups: Iterable[str]) -> dict[str, tuple[str, ...] | Unreadable]:
    """Returns who is registered in each group, legal names only. Leaves out the groups that are recorded as at rest.
    Raises :class:`StoreUnavailable`."""
    groups = list(groups)
    settled = settled_in(groups, read_each(store, reads_of_settled(groups)))
    awake = [group for group in groups if settled[group] is None]
    listings = read_each(store, [GetChildren(layout.ids(group)) for group in awake])
    return {
        group: found if isinstance(found, Unreadable) else tuple(filter(is_legal, Decoding().children(found)))
        for group, found in zip(awake, listings, strict=True)
    }


class Holding(NamedTuple):
    """What one consumer holds and has been told: its ledger, and the outstanding commands in order. Each is ``None`` if
    its znode does not exist. ``fault`` says why the ledger cannot be decoded."""

    ledger: Ledger | None
    commands: tuple[CommandId, ...] | None
    fault: str = ""


def read_holdings(store: Store, consumers: Sequence[Consumer]) -> list[Holding]:
    """Returns what each consumer holds. Raises :class:`StoreError`, also if an ACL forbids one of the reads."""
    reads: list[Read] = []
    for consumer in consumers:
        reads += GetData(layout.ledger(*consumer)), GetChildren(layout.channel(*consumer))
    answers = store.read_many(reads)
    holdings = []
    for consumer, node, listing in zip(consumers, answers[::2], answers[1::2], strict=True):
        ledger, fault = None, ""
        try:
            ledger = decode_ledger(layout.ledger(*consumer), node) if isinstance(node, Node) else None
        except MalformedValue as error:
            fault = str(error)
        holdings.append(Holding(ledger, in_order(listing)[0] if isinstance(listing, tuple) else None, fault))
    return holdings


class SentCommand(NamedTuple):
    """A command that has not been acknowledged, and when it was written (ms since 1970, ZooKeeper's clock). The command
    is ``None`` if it cannot be decoded (``fault``)."""

    command: Command | None
    since_ms: int
    fault: MalformedValue | None = None


def read_commands(store: Store, commands: Sequence[tuple[str, str, CommandId]]) -> list[SentCommand | None]:
    """Reads commands of consumers (group, consumer, command). The result is ``None`` for a command that has been
    acknowledged. Raises :class:`StoreError`, also if an ACL forbids one of the reads."""
    paths = [layout.command(group, consumer, command.name) for group, consumer, command in commands]
    nodes = store.read_many([GetData(path) for path in paths]) if paths else ()
    found: list[SentCommand | None] = []
    for path, node in zip(paths, nodes, strict=True):
        if not isinstance(node, Node):
            found.append(None)
            continue
        try:
            found.append(SentCommand(decode_command(node.data, path), node.stat.ctime_ms))
        except MalformedValue as error:
            found.append(SentCommand(None, node.stat.ctime_ms, error))
    return found


# --- decoding ------------------------------------------------------------------------------------------------------


def decode_member(where: str, node: Node) -> Member:
    return Member.from_bytes(node.data, where, consumer=where.rpartition("/")[2], incarnation=node.stat.czxid)


def decode_ledger(where: str, node: Node) -> Ledger:
    return Ledger.from_bytes(node.data, where, consumer=where.rpartition("/")[2], znode_version=node.stat.version)


def decode_assignment(where: str, node: Node) -> Assignment:
    return Assignment.from_bytes(node.data, where, znode_version=node.stat.version)


def decode_settings(where: str, node: Node) -> GroupSettings:
    return GroupSettings.from_bytes(node.data, where) if node.data else GroupSettings()


def _decode_holds(where: str, node: Node) -> Holds:
    return Holds.from_bytes(node.data, where, znode_version=node.stat.version)


def _decode_pause(where: str, node: Node) -> Pause:
    return Pause.from_bytes(node.data, where)


def _decode_command(where: str, node: Node) -> Command:
    return decode_command(node.data, where)


def _decode_refusals(where: str, node: Node) -> Refusals:
    return Refusals.from_bytes(node.data, where)
