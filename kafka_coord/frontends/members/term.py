"""One term of office: the socket consumers of an elected instance, from its election until it steps down."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable
from functools import partial

from kafka_coord.channel.messages import Code, MessageType, Ping, Registered, Resume, write_command
from kafka_coord.channel.operations import Registration, decode_command, eviction_op, in_order
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.coordinator.idle import settled_as_of
from kafka_coord.errors import MalformedValue, MembershipLost, NoNode
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.members import Connection, Obeying, SocketMember
from kafka_coord.frontends.members.registering import Registering, read_member, register_all
from kafka_coord.frontends.members.writes import Outcome, Write, Writer
from kafka_coord.frontends.socket.options import GatewayOptions
from kafka_coord.frontends.socket.statistics import Statistics
from kafka_coord.model import (
    Command,
    CommandId,
    Ledger,
    StartFetcher,
    StopFetcher,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.election import Leadership
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, Store
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

_TOLD_ONE_BY_ONE = 10
_LONGEST_LOOK_S = 0.5
"""From the beginning of one step to that of the next. What it takes longer, the gateway stood still."""
MAX_UNANSWERED_PINGS = 3
"""One that does not answer is not sent more: its session timeout is running."""


class Term:
    """Members, their timers, commands on the way to them and their offsets on the way to ZooKeeper. One thread."""

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        options: GatewayOptions,
        wake: Callable[[], None],
        statistics: Statistics,
    ) -> None:
        self.leadership = leadership
        self.store = FencedStore(store, leadership.fence)
        self.members: dict[tuple[str, str], SocketMember] = {}
        self.registering: list[Registering] = []
        self.resuming: list[tuple[Connection, int, SocketMember]] = []
        self._options = options
        self._statistics = statistics
        self._writer = Writer(self.store)
        self._watches = Watches(store, wake)
        self._pings: list[tuple[float, int, SocketMember]] = []
        self._deadlines: list[tuple[float, int, SocketMember]] = []
        self._order = itertools.count()
        self._happened: list[tuple[str, SocketMember, str]] = []
        self._offering: dict[SocketMember, None] = {}
        self._offers_due = float("inf")
        self._obedient: dict[SocketMember, None] = {}
        self._stood_still_s = 0.0
        self._led = True
        self._stepped_at = store.clock.monotonic()

    # --- beginning and end -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Finds the socket consumers of earlier coordinators, and gives each its whole session timeout again. Raises
        :class:`StoreUnavailable`: begin again."""
        names = [name for name in self.store.children(layout.GROUPS) if is_legal(name)]
        found = self.store.read_many(
            [read for name in names for read in (GetData(layout.settled(name)), GetData(layout.ids(name)))]
        )
        names = [  # of a group with socket consumers it is never written down that it is at rest
            name
            for number, name in enumerate(names)
            if settled_as_of(layout.settled(name), *found[2 * number : 2 * number + 2]) is None
        ]
        listings = self.store.read_many([GetChildren(layout.ids(name)) for name in names])
        consumers = [
            (group, consumer)
            for group, listing in zip(names, listings, strict=True)
            for consumer in (listing if isinstance(listing, tuple) else ())
            if is_legal(consumer)
        ]
        reads: list[Read] = [GetData(layout.registration(*consumer)) for consumer in consumers]
        nodes = self.store.read_many([*reads, *(GetData(layout.channel(*consumer)) for consumer in consumers)])
        now = self.now()
        for (group, consumer), node, channel in zip(consumers, nodes, nodes[len(consumers) :], strict=False):
            member = read_member(self.store, group, consumer, node, channel)
            if member is not None:
                self._admit(member, now)
        if self.members:
            log.info("waiting for socket consumers epoch=%d consumers=%d", self.leadership.epoch, len(self.members))

    def close(self) -> None:
        self._watches.close()

    def _admit(self, member: SocketMember, now: float) -> None:
        before = self.members.get(member.key)
        if before is not None:
            self._forget(before)
        self.members[member.key] = member
        member.deadline = now + member.session_timeout_s
        heapq.heappush(self._deadlines, (member.deadline, next(self._order), member))
        self._watches.gone([member.registration.path], partial(self._gone, member))

    def _forget(self, member: SocketMember) -> None:
        """It is no member any more, for whatever reason; its connection goes on without one. Who has registered under
        its name since keeps what is watched for it."""
        if self.members.get(member.key) is member:
            del self.members[member.key]
            self._watches.drop(member.registration.path)
            self._watches.drop(layout.channel(*member.key))
        self._offering.pop(member, None)
        self._obedient.pop(member, None)
        if member.connection is not None:
            member.connection.member = None
            member.connection = None

    def end(self, member: SocketMember, code: Code, message: str) -> None:
        """Tells a consumer that it is a member no longer, and closes its connection."""
        connection = member.connection
        self._forget(member)
        if connection is not None:
            hang_up(connection, code, message)

    # --- registering -------------------------------------------------------------------------------------------------

    def registered(self, connection: Connection, request: int, one: Registering, registration: Registration) -> None:
        """The connection is a member's from here on."""
        now = self.now()
        timeout_ms = one.register.member.session_timeout_ms or 0
        member = SocketMember(
            registration=registration,
            channel=ConsumerChannel(self.store, one.group, one.consumer),
            session_timeout_s=timeout_ms / 1000,
            auto_commit=one.register.auto_commit,
            resume_key=one.register.resume_key,
            deadline=0.0,
        )
        before = self.members.get(member.key)
        if before is not None:
            self.end(before, Code.MEMBERSHIP_LOST, "it has registered again on another connection")
        self._admit(member, now)
        self._statistics.registered += 1
        self._happened.append(("registered", member, connection.peer.address))
        if connection.ended:
            return  # it went away meanwhile: the member's session timeout runs
        self._attach(member, connection)
        connection.send(
            connection.conversation.answer(
                request,
                Registered(
                    consumer=one.consumer,
                    incarnation=registration.incarnation,
                    session_timeout_ms=timeout_ms,
                    ping_interval_ms=int(member.ping_interval_s * 1000),
                    epoch=self.leadership.epoch,
                ).to_json(),
            )
        )

    def _attach(self, member: SocketMember, connection: Connection) -> None:
        """From here on it is spoken to over this connection."""
        connection.member, member.connection = member, connection
        member.heard = member.done = member.pings = member.pending_ping = 0
        member.pinged.clear()
        member.confirming.clear()
        member.obeying = None
        self._watches.drop(layout.channel(*member.key))
        self._watches.children(layout.channel(*member.key), partial(self._commands, member))
        self._ping_at(member, self.now() + member.ping_interval_s)

    # --- resuming ----------------------------------------------------------------------------------------------------

    def resumable(self, resume: Resume) -> SocketMember | None:
        """The member that may go on where it was; ``None`` where whoever asks is not that one, or is one no more."""
        member = self.members.get((resume.group, resume.consumer))
        if member is None or member.registration.incarnation != resume.incarnation:
            return None
        return member if resume.resume_key and member.resume_key == resume.resume_key else None

    def _resume_all(self) -> None:
        """Those that came back with their membership: what they hold is read, and what is still asked of them. Not
        before what they have settled is written: it would be asked for once more."""
        here = [one for one in self.resuming if not one[0].ended]
        wanted = [one for one in here if not one[2].unwritten]
        waiting = [one for one in here if one[2].unwritten]
        if not wanted:
            self.resuming = waiting
            return
        reads: list[Read] = []
        for _, _, member in wanted:
            reads.append(GetData(layout.ledger(*member.key)))
            reads.append(GetChildren(layout.channel(*member.key)))
        answers = self.store.read_many(reads)
        self.resuming = waiting
        for number, (connection, request, member) in enumerate(wanted):
            ledger, listing = answers[2 * number : 2 * number + 2]
            connection.registering = False
            if self.members.get(member.key) is not member or not isinstance(listing, tuple):
                connection.send(
                    connection.conversation.refuse(request, Code.UNKNOWN_MEMBERSHIP, "it is a member no longer")
                )
                continue
            if isinstance(ledger, Node):
                try:
                    found = _ledger(layout.ledger(*member.key), ledger)
                except MalformedValue:
                    found = None  # the coordinator reports it; nothing can be committed until it is settled
                member.held = (
                    set(found.held)
                    if found is not None and found.incarnation == member.registration.incarnation
                    else set()
                )
            before = member.connection
            if before is not None:
                before.member = None
                hang_up(before, Code.MEMBERSHIP_LOST, "it goes on over another connection")
            self._attach(member, connection)
            self._statistics.resumed += 1
            outstanding = [command.name for command in in_order(listing)[0]]
            connection.send(connection.conversation.answer(request, {"outstanding": outstanding}))
            self._happened.append(("resumed", member, connection.peer.address))

    # --- what comes from a member ------------------------------------------------------------------------------------

    def heard_of(self, member: SocketMember) -> None:
        """Something came from it: its session timeout begins again."""
        member.deadline = self.now() + member.session_timeout_s

    def ping_answered(self, member: SocketMember, request: int, offsets: dict[TopicPartition, int]) -> None:
        member.pings -= 1
        sent = member.pinged.pop(request, None)
        if sent is not None:
            self._statistics.answered(self.now() - sent)
        if member.auto_commit:
            offsets = {tp: offset for tp, offset in offsets.items() if tp in member.held}
            member.pending.update(offsets)
        confirms = request in member.confirming
        member.confirming.discard(request)
        if not member.pending and not member.unwritten:
            member.heard = request
            if not confirms:
                self._confirm(member)
            return
        member.pending_ping = request
        if confirms:
            return  # what little it brought is written with the next
        self._offering[member] = None
        self._offers_due = min(self._offers_due, self.now() + self._options.commit_interval_ms / 1000)

    def obeyed(self, member: SocketMember, request: int, offsets: dict[TopicPartition, int]) -> None:
        """It answered a command: the acknowledgement is written with what is known of its offsets."""
        obeying = member.obeying
        if obeying is None or obeying.request != request or obeying.answered:
            return
        obeying.answered = True
        partitions = set(obeying.command.partitions)
        if isinstance(obeying.command, StartFetcher):
            member.held |= partitions
        settled = {tp: member.pending.pop(tp) for tp in partitions & member.pending.keys()}
        settled |= {tp: offset for tp, offset in offsets.items() if tp in member.held}
        if isinstance(obeying.command, StopFetcher):
            member.held -= partitions
        self._write(
            Write(
                member,
                settled,
                partial(self._acknowledged, member, member.connection, obeying),
                acknowledges=obeying.command_id,
            )
        )

    def _acknowledged(
        self, member: SocketMember, connection: Connection | None, obeying: Obeying, outcome: Outcome
    ) -> None:
        if member.obeying is obeying:
            member.obeying = None
        if not self._written(member, outcome):
            return
        if not isinstance(outcome, frozenset):
            member.queue.appendleft(obeying.command_id)  # sent again after the next ping, and then answered as before
            return
        if connection is not None and member.connection is connection:
            member.done = obeying.request
            self._ping(member, connection)
        self._obedient[member] = None

    def commit(self, member: SocketMember, offsets: dict[TopicPartition, int], then: Callable[[Outcome], None]) -> None:
        """Writes what it is allowed to; ``then`` hears the outcome if it is still a member."""
        wanted = {tp: offset for tp, offset in offsets.items() if tp in member.held}
        for tp in wanted:
            member.pending.pop(tp, None)
        self._write(Write(member, wanted, partial(self._committed, member, then)))

    def _committed(self, member: SocketMember, then: Callable[[Outcome], None], outcome: Outcome) -> None:
        if self._written(member, outcome):
            then(outcome)

    def leave(
        self,
        member: SocketMember,
        offsets: dict[TopicPartition, int],
        then: Callable[[Outcome], None],
        *,
        for_good: bool = False,
    ) -> None:
        """Its registration ends, with its last offsets; ``for_good``: and no place is kept for it."""
        also = (eviction_op(*member.key, int(self.store.clock.time() * 1000)),) if for_good else ()
        last = member.pending | {tp: offset for tp, offset in offsets.items() if tp in member.held}
        member.pending = {}
        self._write(Write(member, last, partial(self._left, member, then), leaves=True, also=also))

    def _left(self, member: SocketMember, then: Callable[[Outcome], None], outcome: Outcome) -> None:
        if self._written(member, outcome):
            log.info("left socket consumer=%s group=%s", member.registration.consumer, member.registration.group)
            then(outcome)
            self._forget(member)

    def _write(self, write: Write) -> None:
        write.member.unwritten += 1
        self._writer.add(write)

    def _written(self, member: SocketMember, outcome: Outcome) -> bool:
        """Whether it is still a member after a write."""
        member.unwritten -= 1
        if isinstance(outcome, MembershipLost | NoNode):
            self.end(member, Code.MEMBERSHIP_LOST, "its registration is gone: it was evicted, or took too long")
            return False
        if not isinstance(outcome, frozenset):
            log.warning(
                "could not write for socket consumer=%s group=%s reason=%s",
                member.registration.consumer,
                member.registration.group,
                outcome,
            )
        return self.members.get(member.key) is member

    # --- what goes to a member ---------------------------------------------------------------------------------------

    def _gone(self, member: SocketMember, _path: str) -> None:
        if self.members.get(member.key) is member:
            self.end(member, Code.MEMBERSHIP_LOST, "its registration was deleted: evicted by the coordinator")

    def _commands(self, member: SocketMember, names: tuple[str, ...] | None) -> None:
        commands, strays = in_order(names or ())
        obeying = member.obeying.command_id if member.obeying is not None else None
        member.queue.clear()
        member.queue.extend(command for command in commands if command != obeying)
        for name in strays:
            self._complain(member, f"{name} in its channel is no command")
        if member.queue:
            self._obedient[member] = None

    def _complain(self, member: SocketMember, what: str) -> None:
        if member.blocked != what:
            member.blocked = what
            log.error("socket consumer=%s group=%s: %s", member.registration.consumer, member.registration.group, what)

    def _send_commands(self) -> None:
        """Reads the next command of everybody who has one and obeys none, and sends it."""
        ready = [
            member
            for member in self._obedient
            if member.queue and member.obeying is None and member.connection is not None
        ]
        self._obedient.clear()
        if not ready:
            return
        paths = [layout.command(*member.key, member.queue[0].name) for member in ready]
        try:
            nodes = self.store.read_many([GetData(path) for path in paths])
        except BaseException:
            self._obedient.update(dict.fromkeys(ready))
            raise
        for member, path, node in zip(ready, paths, nodes, strict=True):
            command_id = member.queue.popleft()
            if not isinstance(node, Node):  # taken back, or acknowledged by somebody
                self._obedient[member] = None
                continue
            try:
                command = decode_command(node.data, path)
            except MalformedValue as error:
                self._complain(member, f"{command_id.name} cannot be obeyed, nor what follows it: {error.reason}")
                continue
            self._send_command(member, command_id, command)

    def _send_command(self, member: SocketMember, command_id: CommandId, command: Command) -> None:
        connection = member.connection
        if connection is None:
            return
        if command.incarnation < member.registration.incarnation:
            self._obedient[member] = None
            try:
                self.store.delete(layout.command(*member.key, command_id.name))
            except NoNode:
                return
            log.info("dropped command=%s reason='for incarnation %d'", command_id.name, command.incarnation)
            return
        if command.incarnation > member.registration.incarnation:
            self.end(member, Code.MEMBERSHIP_LOST, "another consumer has registered under its name since")
            return
        kind = MessageType.START_FETCHER if isinstance(command, StartFetcher) else MessageType.STOP_FETCHER
        request, frame = connection.conversation.ask(kind, write_command(command_id.name, command))
        member.obeying = Obeying(request, command_id, command)
        if isinstance(command, StartFetcher):
            member.stored.update(tp for tp, point in command.starts.items() if point.offset >= 0)
        connection.send(frame)

    def _confirm(self, member: SocketMember) -> None:
        """Says at once what was heard, not only a ping interval later: that long would its proof be older otherwise."""
        if member.connection is not None and member.pings < MAX_UNANSWERED_PINGS:
            member.confirming.add(self._ping(member, member.connection))

    def _ping(self, member: SocketMember, connection: Connection) -> int:
        member.pings += 1
        number, frame = connection.conversation.ask(MessageType.PING, Ping(member.heard, member.done).to_json())
        member.pinged[number] = self.now()
        connection.send(frame)
        return number

    def _ping_at(self, member: SocketMember, due: float) -> None:
        member.ping_due = due
        heapq.heappush(self._pings, (due, next(self._order), member))

    # --- time --------------------------------------------------------------------------------------------------------

    def step(self, *, leads: bool) -> float:
        """Carries on with everything; the monotonic time at which to come again. Raises :class:`Fenced` and
        :class:`StoreUnavailable`. While it is not certain that this instance leads, nobody is pinged or expired."""
        now = self.store.clock.monotonic()
        # What was sent while nobody looked may not have been read yet: that time counts for nobody's absence.
        longest = _LONGEST_LOOK_S if self._led else 0.0
        self._stood_still_s += max(0.0, now - self._stepped_at - longest)
        self._stepped_at, self._led = now, leads
        if not leads:
            return now + 0.1
        self._step(self.now())
        return min(
            now + _LONGEST_LOOK_S / 2,
            self._stood_still_s
            + min(
                self._pings[0][0] if self._pings else float("inf"),
                self._deadlines[0][0] if self._deadlines else float("inf"),
                self._offers_due,
            ),
            now if self._obedient or self.resuming else float("inf"),
        )

    def now(self) -> float:
        """Monotonic seconds in which this gateway looked after its members: all their timers are in these. They stand
        still while the gateway does, whatever keeps it: a frozen process, a slow ZooKeeper in the middle of a step."""
        return self.store.clock.monotonic() - self._stood_still_s

    def _step(self, now: float) -> None:
        self._register_all()
        self._resume_all()
        self._watches.step()
        self._send_commands()
        if now >= self._offers_due:
            self._write_offers()
        self._expire(now)
        self._writer.flush()
        self._ping_all(now)
        self._say_what_happened()

    def _say_what_happened(self) -> None:
        """A line for each, or one for all where they are many: nobody reads thousands of lines, and they take as long
        as much of what they are about."""
        happened, self._happened = self._happened, []
        for what in dict.fromkeys(what for what, _, _ in happened):
            those = [(member.registration, address) for one, member, address in happened if one == what]
            if len(those) > _TOLD_ONE_BY_ONE:
                groups = len({registration.group for registration, _ in those})
                log.info("%s socket consumers=%d of groups=%d", what, len(those), groups)
                continue
            for one, address in those:
                log.info(
                    "%s socket consumer=%s group=%s incarnation=%d address=%s",
                    *(what, one.consumer, one.group, one.incarnation, address),
                )

    def _register_all(self) -> None:
        try:
            register_all(self.store, self.registering)
        finally:
            self.registering = [one for one in self.registering if not one.told]

    def _write_offers(self) -> None:
        offering, self._offering, self._offers_due = self._offering, {}, float("inf")
        for member in offering:
            pending, member.pending = member.pending, {}
            offered = partial(self._offered, member, member.connection, member.pending_ping, pending)
            self._write(Write(member, pending, offered))

    def _offered(
        self,
        member: SocketMember,
        connection: Connection | None,
        ping: int,
        offsets: dict[TopicPartition, int],
        outcome: Outcome,
    ) -> None:
        if not self._written(member, outcome):
            return
        if not isinstance(outcome, frozenset):
            # Written with those of the next ping, but for what is another's by now or is written later all the same.
            later = {tp for write in self._writer.queued(member) for tp in write.offsets}
            again = {tp: offset for tp, offset in offsets.items() if tp in member.held - later}
            member.pending = again | member.pending
        elif member.connection is connection:
            member.heard = max(member.heard, ping)
            self._confirm(member)

    def _due(self, timers: list[tuple[float, int, SocketMember]], now: float) -> Iterable[SocketMember]:
        while timers and timers[0][0] <= now:
            yield heapq.heappop(timers)[2]

    def _ping_all(self, now: float) -> None:
        for member in self._due(self._pings, now):
            connection = member.connection
            if connection is None or self.members.get(member.key) is not member:
                continue
            if member.pings < MAX_UNANSWERED_PINGS:
                self._ping(member, connection)
            if member.queue:
                self._obedient[member] = None
            self._ping_at(member, max(now, member.ping_due + member.ping_interval_s))

    def _expire(self, now: float) -> None:
        for member in self._due(self._deadlines, now):
            if self.members.get(member.key) is not member:
                continue
            if now < member.deadline:
                heapq.heappush(self._deadlines, (member.deadline, next(self._order), member))
                continue
            log.warning(
                "expired socket consumer=%s group=%s: nothing heard of it for %.1f s",
                member.registration.consumer,
                member.registration.group,
                member.session_timeout_s,
            )
            last, member.pending = member.pending, {}
            self._write(Write(member, last, partial(self._expired, member), leaves=True))

    def _expired(self, member: SocketMember, outcome: Outcome) -> None:
        if self._written(member, outcome):
            self._statistics.expired += 1
            self.end(member, Code.MEMBERSHIP_LOST, "nothing was heard of it within its session timeout")


def hang_up(connection: Connection, code: str, message: str, request: int = 0, **more: object) -> None:
    """Says why, and closes."""
    connection.ended = True
    connection.send(connection.conversation.refuse(request, code, message, more))
    connection.peer.close()


def _ledger(path: str, node: Node) -> Ledger:
    return Ledger.from_json(fields.load(node.data, path), path.rpartition("/")[2], node.stat.version, path)
