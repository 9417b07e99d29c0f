"""Connects the member state machine to ZooKeeper for one term of this instance, and logs member events, combining many
of the same kind into one line.

Each step passes the clients' input to the machine, but only while it is certain that this instance leads, so a deposed
instance never answers clients as if it were the coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kafka_coord.channel.operations import Registration, eviction_op, in_order, look_op
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.classic_groups.sessions import LONGEST_STEP_S
from kafka_coord.coordinator.image import Holding, list_registered, read_commands, read_holdings, read_registrations
from kafka_coord.coordinator.tolerant_reads import Answer
from kafka_coord.errors import MalformedValue, NoNode, StoreError
from kafka_coord.frontends.members.fenced_store import FencedStore, isolated
from kafka_coord.frontends.members.machine import MembershipMachine, instructions, stimuli
from kafka_coord.frontends.members.machine.instructions import MemberEvent, ReportEvent
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions, Stimulus
from kafka_coord.frontends.members.registering import GATEWAY, Refusal, Registering, register_all
from kafka_coord.frontends.members.writes import MemberZnodes, Write, Writer
from kafka_coord.model import CommandId, CommandType, Ledger, StartFetcher, TopicPartition, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, Node, Op, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

_TOLD_ONE_BY_ONE = 10
"""How many events of one kind are logged individually in each step. Writing thousands of lines would take too long."""

_TROUBLES = {
    MemberEvent.STUCK: (logging.ERROR, "cannot send the next command to"),
    MemberEvent.NOT_RESUMED: (logging.ERROR, "cannot resume yet"),
    MemberEvent.NOT_WRITTEN: (logging.WARNING, "could not write for"),
}
"""The events that are logged immediately, each with its log level and a description of the problem."""


class EventLog:
    """Collects the events of a step. ``address`` returns the client's address for a connection. ``kind`` says whether
    the members are socket or Kafka consumers."""

    def __init__(self, address: Callable[[int | None], str], kind: str) -> None:
        self._address, self._kind = address, kind
        self._happened: list[tuple[ReportEvent, str]] = []

    def note(self, report: ReportEvent) -> None:
        if report.event not in _TROUBLES:
            self._happened.append((report, self._address(report.connection)))
            return
        group, consumer, _ = report.member
        level, problem = _TROUBLES[report.event]
        log.log(
            level,
            "%s consumer=%s group=%s reason=%s",
            problem,
            consumer,
            group,
            report.detail,
            extra={"event": "member_trouble"},
        )

    def write(self) -> None:
        happened, self._happened = self._happened, []
        for what in dict.fromkeys(report.event for report, _ in happened):
            those = [(one.member, address, one.detail) for one, address in happened if one.event is what]
            if len(those) > _TOLD_ONE_BY_ONE:
                groups = len({member.group for member, _, _ in those})
                log.info(
                    "%s %s consumers=%d of groups=%d",
                    *(what, self._kind, len(those), groups),
                    extra={"event": "members", "what": what},
                )
                continue
            for member, address, by in those:
                log.info(
                    "%s %s consumer=%s group=%s incarnation=%d address=%s%s",
                    *(what, self._kind, member.consumer, member.group, member.incarnation, address),
                    f" by={by!r}" if by else "",
                    extra={"event": "member", "what": what},
                )


_AGAIN_S = 0.1
_FIND_AGAIN_S = 5.0
"""How long to wait before rereading a group with an unreadable registration, in seconds. By then, an operator may have
repaired it."""


@dataclass(frozen=True, slots=True)
class TermScope:
    """Defines which members a term serves: those that use one of ``protocols`` (``None`` is the socket protocol), in
    groups for which ``includes`` returns true. Every write begins with ``fence``, which fails once another instance
    serves the members. ``number`` identifies the term in the log."""

    fence: Check
    number: int
    protocols: tuple[str | None, ...] = (None,)
    includes: Callable[[str], bool] = lambda _group: True

    @property
    def kind(self) -> str:
        """What kind of members the term serves, for log lines."""
        return "socket" if None in self.protocols else "Kafka"


class Term:
    """The members that an instance serves during one term. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        scope: TermScope,
        wake: Callable[[], None],
        send: Callable[[instructions.ToClient], None],
        report: Callable[[instructions.ReportEvent], None] = lambda _event: None,
        address: Callable[[int | None], str] = lambda _connection: "-",
        *,
        offers_every_s: float = 0.1,
        session_left_s: Callable[[Registration, RegistrationOptions], float | None] = lambda _member, _options: None,
    ) -> None:
        """``send`` sends an instruction to a client, and ``report`` counts an event. Neither may raise. ``address``
        returns the client's address for a connection, for log lines. The term calls ``wake``, possibly on
        another thread, when there is work. ``session_left_s`` returns for how many seconds the term waits for a member
        of an earlier term, given its registration and options (``None``: for a full session timeout)."""
        self.scope = scope
        self.store = FencedStore(store, scope.fence)
        self.machine = MembershipMachine(store.clock.monotonic(), offers_every_s=offers_every_s)
        self._session_left_s = session_left_s
        self._send, self._report, self._event_log = send, report, EventLog(address, scope.kind)
        self._arrived: list[Stimulus] = []
        self._znodes: dict[MemberId, MemberZnodes] = {}
        self._writer = Writer(self.store, self._handle)
        self._watches = Watches(store, wake)
        self._registering: list[Registering] = []
        self._unread_groups: dict[str, str] = {}
        self._sought: set[str] = set()
        self._find_due = 0.0
        self._members_to_read: dict[MemberId, None] = {}
        self._commands_to_read: dict[MemberId, CommandId] = {}
        self._commands_to_drop: dict[tuple[MemberId, CommandId], None] = {}

    def begin(self) -> tuple[str, ...]:
        """Finds the members of earlier terms and gives each of them time to return. Returns the names of all groups.
        If it raises :class:`StoreUnavailable`, it must be called again."""
        scope = self.scope
        groups: tuple[str, ...] = ()
        with suppress(NoNode):  # there is no group yet
            groups = self.store.children(layout.GROUPS)
        self._find([name for name in groups if is_legal(name) and scope.includes(name)])
        if self.machine.members:
            log.info(
                "waiting for members of earlier terms to return kind=%s epoch=%d consumers=%d",
                *(scope.kind, scope.number, len(self.machine.members)),
            )
        return groups

    def _find(self, groups: Iterable[str]) -> None:
        members, unread = find_members(self.store, groups, self.scope.protocols)
        for group in unread.keys() - self._unread_groups.keys():
            kind = self.scope.kind
            log.warning("cannot read the %s consumers of group=%s: %s; retrying", kind, group, unread[group])
        self._unread_groups = unread
        self._find_due = self.store.clock.monotonic() + _FIND_AGAIN_S
        for registration, options in members:
            known = self.machine.members.get((registration.group, registration.consumer))
            if known is not None and known.id.incarnation != registration.incarnation:
                self._handle(stimuli.RegistrationDeleted(known.id))  # its watch is late
                known = None
            if known is None:
                left_s = self._session_left_s(registration, options)
                self._handle(stimuli.MemberFound(self._track(registration), options, left_s))

    def look(self, group: str) -> None:
        """Makes the next step find members of the group that were registered by somebody else."""
        self._sought.add(group)

    def is_sought(self, group: str) -> bool:
        """Returns whether the group may have members that :meth:`look` has yet to find."""
        return group in self._sought

    def close(self) -> None:
        self._watches.close()

    def _track(self, registration: Registration) -> MemberId:
        member = MemberId(registration.group, registration.consumer, registration.incarnation)
        channel = ConsumerChannel(self.store, registration.group, registration.consumer)
        self._znodes[member] = MemberZnodes(registration, channel)
        return member

    # --- stimuli and instructions ------------------------------------------------------------------------------------

    def arrived(self, stimulus: Stimulus) -> None:
        """Queues a client's input for the next step."""
        self._arrived.append(stimulus)

    def has_room(self, group: str, consumer: str, most: int) -> bool:
        """Returns whether the consumer may register without exceeding the limit of ``most`` members."""
        machine = self.machine
        asking = sum(isinstance(stimulus, stimuli.RegistrationWanted) for stimulus in self._arrived)
        return (group, consumer) in machine.members or len(machine.members) + len(machine.registering) + asking < most

    def _handle(self, *arrived: Stimulus) -> None:
        for stimulus in arrived:
            for instruction in self._asked_of(stimulus):
                self._carry_out(instruction)

    def _asked_of(self, stimulus: Stimulus) -> Sequence[instructions.Instruction]:
        now = self.store.clock.monotonic()
        try:
            return self.machine.handle(now, stimulus)
        except AssertionError:  # tests assert the machine's invariants
            raise
        except Exception:
            connection = getattr(stimulus, "connection", None)
            if connection is None:
                raise
            # if a client's request exposes a bug, only that client is dismissed
            log.exception("failed to handle a client's request: %r (this is a bug)", stimulus)
            dismissed = instructions.Dismiss(
                connection, "the coordinator failed to handle this request (this is a bug); register again"
            )
            return [dismissed, *self.machine.handle(now, stimuli.Disconnected(connection))]

    def _carry_out(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.ReportEvent():
                self._report(instruction)
                self._event_log.note(instruction)
            case instructions.WriteMember():
                self._write(instruction)
            case instructions.ReadCommand(member, command_id):
                self._commands_to_read[member] = command_id
            case instructions.ReadMember(member):
                self._members_to_read[member] = None
            case instructions.WriteRegistration(wanted):
                self._registering.append(Registering(wanted, self._registered))
            case instructions.WatchRegistration(member):
                self._watches.gone([self._znodes[member].registration.path], partial(self._gone, member))
            case instructions.WatchCommands(member):
                path = layout.channel(member.group, member.consumer)
                self._watches.drop(path)
                self._watches.children(path, partial(self._listed, member))
            case instructions.DropCommand(member, command_id):
                self._commands_to_drop[member, command_id] = None
            case instructions.Forget(member):
                self._forget(member)
            case instructions.Deliver(member=member, command=command):
                if isinstance(command, StartFetcher):
                    existing = {tp for tp, point in command.starts.items() if point.offset >= 0}
                    self._znodes[member].existing_offsets |= existing
                self._send(instruction)
            case _:
                self._send(instruction)

    def _forget(self, member: MemberId) -> None:
        znodes = self._znodes.pop(member)
        self._watches.drop(znodes.registration.path)
        self._watches.drop(layout.channel(member.group, member.consumer))
        self._members_to_read.pop(member, None)
        self._commands_to_read.pop(member, None)

    def _write(self, wanted: instructions.WriteMember) -> None:
        member = wanted.member
        now_ms = int(self.store.clock.time() * 1000)
        also: tuple[Op, ...] = ()
        if wanted.for_good:
            also = (eviction_op(member.group, member.consumer, now_ms),)
        elif wanted.subscription is not None:
            also = (look_op(member.group, member.consumer, now_ms),)
        is_alone = wanted.subscription is not None or wanted.unresolved is not None
        self._writer.add(Write(self._znodes[member], wanted, also, is_alone))

    def _gone(self, member: MemberId, _path: str) -> None:
        self._handle(stimuli.RegistrationDeleted(member))

    def _listed(self, member: MemberId, names: tuple[str, ...] | None) -> None:
        commands, strays = in_order(names or ())
        if strays:
            log.error(
                "found a foreign znode in the channel of consumer=%s group=%s: %s",
                member.consumer,
                member.group,
                strays[0],
            )
        self._handle(stimuli.CommandsListed(member, commands))

    # --- step --------------------------------------------------------------------------------------------------------

    def step(self, *, leads: bool) -> float:
        """Does all work that is due, but sends nothing to clients while it is uncertain whether this instance leads.
        Returns the monotonic time of the next step. Raises :class:`Fenced` and :class:`StoreUnavailable`."""
        began_at = self.store.clock.monotonic()
        self._handle(stimuli.StepBegan(leads))
        if not leads:
            return began_at + _AGAIN_S
        arrived, self._arrived = self._arrived, []
        self._handle(*arrived, stimuli.TimersDue())
        if self._sought or (self._unread_groups and began_at >= self._find_due):
            self._find(self._unread_groups.keys() | self._sought)
            self._sought.clear()
        self._register()
        isolated(list(self._members_to_read), self._read_members, self._member_unread)
        self._watches.step()
        isolated(list(self._commands_to_read.items()), self._read_commands, self._command_unread)
        isolated(list(self._commands_to_drop), self._drop_commands, self._command_undropped)
        self._writer.flush()
        self._event_log.write()
        if self._arrived or self._commands_to_read or self._members_to_read:
            return began_at
        return min(began_at + LONGEST_STEP_S / 2, self.machine.due())

    def _register(self) -> None:
        try:
            register_all(self.store, self._registering)
        finally:
            self._registering = [one for one in self._registering if not one.finished]

    def _registered(self, one: Registering, outcome: Registration | Refusal) -> None:
        if isinstance(outcome, Registration):
            self._handle(stimuli.RegistrationWritten(one.wanted, self._track(outcome)))
        else:
            self._handle(stimuli.RegistrationFailed(one.wanted, outcome))

    def _read_members(self, members: Sequence[MemberId]) -> None:
        holdings = read_holdings(self.store, [(member.group, member.consumer) for member in members])
        starting = self._read_starts(members, holdings)
        for member, (ledger, commands, fault) in zip(members, holdings, strict=True):
            self._members_to_read.pop(member, None)
            held: frozenset[TopicPartition] | None = None
            generation: int | None = None
            if ledger is not None:
                stops = any(one.type is CommandType.STOP_FETCHER for one in commands or ())
                held, generation = _in_ledger(member, ledger, stops=stops)
                held -= starting.get(member, frozenset())
            elif not fault:
                generation = 0
            self._handle(stimuli.MemberRead(member, held, commands, fault if commands is not None else "", generation))

    def _read_starts(
        self, members: Sequence[MemberId], holdings: Sequence[Holding]
    ) -> dict[MemberId, frozenset[TopicPartition]]:
        """Returns the partitions in each member's unacknowledged start-fetchers. The member has not consumed anything
        from these partitions yet."""
        starts = [
            (member, command)
            for member, holding in zip(members, holdings, strict=True)
            for command in holding.commands or ()
            if command.type is CommandType.START_FETCHER
        ]
        found = read_commands(self.store, [(member.group, member.consumer, command) for member, command in starts])
        starting: dict[MemberId, frozenset[TopicPartition]] = {}
        for (member, _), outstanding in zip(starts, found, strict=True):
            # what cannot be decoded is reported once the command's turn comes
            if outstanding is not None and outstanding.command is not None:
                partitions = set(outstanding.command.partitions)
                starting[member] = starting.get(member, frozenset()) | partitions
        return starting

    def _member_unread(self, member: MemberId, error: StoreError) -> None:
        self._members_to_read.pop(member, None)
        self._handle(stimuli.MemberRead(member, None, None, str(error)))

    def _read_commands(self, commands: Sequence[tuple[MemberId, CommandId]]) -> None:
        found = read_commands(self.store, [(member.group, member.consumer, one) for member, one in commands])
        for (member, command_id), outstanding in zip(commands, found, strict=True):
            if self._commands_to_read.get(member) == command_id:
                del self._commands_to_read[member]
            command, fault = (outstanding.command, outstanding.fault) if outstanding is not None else (None, None)
            why = f"{command_id.name}: {fault.reason}" if fault is not None else ""
            self._handle(stimuli.CommandRead(member, command_id, command, why))

    def _command_unread(self, wanted: tuple[MemberId, CommandId], error: StoreError) -> None:
        self._commands_to_read.pop(wanted[0], None)
        self._handle(stimuli.CommandRead(*wanted, None, f"{wanted[1].name}: {error}"))

    def _drop_commands(self, commands: Sequence[tuple[MemberId, CommandId]]) -> None:
        for member, command_id in commands:
            with suppress(NoNode):
                self.store.delete(layout.command(member.group, member.consumer, command_id.name))
                log.info(
                    "dropped a command that is not for the registered incarnation command=%s incarnation=%d",
                    command_id.name,
                    member.incarnation,
                )
            self._commands_to_drop.pop((member, command_id), None)

    def _command_undropped(self, command: tuple[MemberId, CommandId], error: StoreError) -> None:
        log.warning("could not drop command=%s of consumer=%s: %s", command[1].name, command[0].consumer, error)
        del self._commands_to_drop[command]


def _in_ledger(member: MemberId, ledger: Ledger, *, stops: bool) -> tuple[frozenset[TopicPartition], int]:
    """Returns the partitions that the member may commit according to its ledger, and the ledger's generation. Stopping
    partitions count only until the stop is acknowledged, because the next owner may then get them immediately."""
    if ledger.incarnation != member.incarnation:
        return frozenset(), 0
    return frozenset(ledger.held if stops else ledger.owned), ledger.generation


FoundMember = tuple[Registration, RegistrationOptions]


def find_members(
    store: Store, groups: Iterable[str], protocols: Container[str | None]
) -> tuple[list[FoundMember], dict[str, str]]:
    """Returns the members of the given groups that use one of ``protocols`` (``None`` is the socket protocol), and the
    groups that could not be read completely, each with the reason. Raises :class:`StoreUnavailable`."""
    listings = list_registered(store, groups)  # without groups at rest: they have no members without a session
    consumers = [
        (group, name) for group, names in listings.items() if not isinstance(names, Unreadable) for name in names
    ]
    unread = {group: f"{bad.path}: {bad.reason}" for group, bad in listings.items() if isinstance(bad, Unreadable)}
    members = []
    found = read_registrations(store, consumers)
    for (group, consumer), (node, channel) in zip(consumers, found, strict=True):
        try:
            member = _member(group, consumer, protocols, node, channel)
        except MalformedValue as error:
            unread[group] = str(error)
        else:
            members += [member] if member is not None else []
    return members, unread


def _member(
    group: str, consumer: str, protocols: Container[str | None], node: Answer, channel: Answer
) -> FoundMember | None:
    """Returns the member, or ``None`` if it is gone, has its own ZooKeeper session or uses none of ``protocols``.
    Raises :class:`MalformedValue` if the member cannot be read."""
    for read in (node, channel):
        if isinstance(read, Unreadable):
            raise MalformedValue(read.path, read.reason)
    if not isinstance(node, Node) or not isinstance(channel, Node) or node.stat.ephemeral_owner != 0:
        return None
    path = layout.registration(group, consumer)
    value = fields.load(node.data, path)
    protocol = value.get("protocol")
    if GATEWAY not in value or protocol not in protocols:
        return None
    timeout_ms = fields.number(value, "session_timeout_ms", path, at_least=1)
    auto_commit, resume_key = value.get("auto_commit") is not False, fields.plain(value.get("resume_key", ""))
    registration = Registration(group, consumer, node.stat.czxid, channel.stat.version, 0)
    return registration, RegistrationOptions(timeout_ms / 1000, auto_commit, resume_key, protocol)
