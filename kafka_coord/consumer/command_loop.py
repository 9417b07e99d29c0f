"""Carries out the commands in a consumer's channel in order, one at a time, with the stream's fetchers (librdkafka in
production, a model in simulations), acknowledges them, and counts.

A partition without a position is held, but not fetched. The group remembers that its end is awaited, so whoever lists
that end first (the member, or the elected instance with its own rights) stores it, and a later owner starts there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kafka_coord.channel.operations import MemberChannel, Offsets, Registration, in_order
from kafka_coord.consumer.settings import PartitionCallback
from kafka_coord.errors import MalformedValue, MembershipLost, StoreError, StoreUnavailable
from kafka_coord.model import NO_OFFSET, Command, CommandId, StartFetcher, StartPoint, StopFetcher, TopicPartition
from kafka_coord.zk.store import WatchEvent, WatchType

log = logging.getLogger(__name__)

_RETRY_S = 0.25


class Fetchers(Protocol):
    """The fetchers of one consumer. No method blocks. The connector's thread calls all methods."""

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        """Take over partitions without fetching them yet. Partitions that are already held stay unchanged."""

    def unresolved(self) -> Mapping[TopicPartition, str]:
        """Return the held partitions that start at an end that is not known yet, each with the reason, which is "" as
        long as none is known. Request the missing ends, and wake the connector once one is known or refused."""

    def listed_ends(self) -> Offsets:
        """Return the ends that were listed for unresolved partitions and are not resolved yet."""

    def resolve(self, offsets: Offsets) -> None:
        """Start unresolved partitions at ``offsets``, which the group has stored. :meth:`begin` must follow."""

    def refused(self) -> Mapping[str, str]:
        """Return the topics that the member is not allowed to read, each with the reason."""

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch the given partitions and hand out their records."""

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop returning records of the given partitions."""

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether the application has records of the given partitions in hand. If so, wake the connector once
        the application has finished them."""

    def held_partitions(self) -> Iterable[TopicPartition]:
        """Return all held partitions."""

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Forget the given partitions, which are stopped, and return the offsets that must still be committed for
        them."""

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        """Return the offsets to commit now for the given partitions, or for all held partitions."""

    def admissible(self, offsets: Offsets) -> Offsets:
        """Return the part of ``offsets`` that may be stored. Each partition must be held. An offset may be lower than
        the stored one only if the application requested that."""

    def stored(self, offsets: Offsets) -> None:
        """Record that ``offsets`` are committed."""

    def abandon(self) -> Iterable[TopicPartition]:
        """Release all partitions at once and return those that were held."""

    def orphans_in_hand(self) -> bool:
        """Return whether the application is still working on records of a lost incarnation. If so, wake the connector
        once the application has finished them."""


LOOK_S = 1.0
"""How often, in seconds, the member looks whether the elected instance has listed an end."""


class UnresolvedPartitions:
    """The unresolved partitions and refused topics of one member. For the connector's thread."""

    def __init__(self, channel: MemberChannel, fetchers: Fetchers) -> None:
        self._channel = channel
        self._fetchers = fetchers
        self._awaited: dict[TopicPartition, str] = {}
        """The partitions whose ends the group is known to await, with the recorded reasons."""
        self._refused: Mapping[str, str] | None = {}
        """The refused topics that are recorded, or ``None`` until what was sent last has been answered."""
        self._look_at = 0.0
        self._complaint = ""

    def reset(self) -> None:
        """Forgets what was recorded for an incarnation that has ended."""
        self._awaited.clear()
        self._refused = {}

    def await_ends(self, registration: Registration) -> None:
        """Records for the group which ends are awaited. Raises :class:`StoreUnavailable` and
        :class:`MembershipLost`."""
        unresolved = self._fetchers.unresolved()
        self._awaited = {tp: reason for tp, reason in self._awaited.items() if tp in unresolved}
        new = {tp: reason for tp, reason in unresolved.items() if self._awaited.get(tp) != reason}
        if not new:
            return
        try:
            self._channel.await_ends(registration, new)
        except (MembershipLost, StoreUnavailable):
            raise
        except StoreError as error:
            self._complain(f"could not record the awaited ends of {len(new)} partitions: {error}")
        self._awaited |= new

    def keep_ends(self, registration: Registration) -> None:
        """Stores the listed ends as the group's offsets, or takes over the offsets that it has. Raises
        :class:`StoreUnavailable` and :class:`MembershipLost`."""
        ends = self._fetchers.listed_ends()
        if ends:
            self._start_at(self._channel.keep_ends(registration, ends))

    def step(self, registration: Registration, now: float) -> float:
        """Does what is due. Returns the (monotonic) time for the next call. Raises :class:`MembershipLost`."""
        try:
            self._step(registration, now)
        except MembershipLost:
            raise
        except StoreUnavailable as error:
            log.debug("got no response about unresolved partitions: %s", error)
            return now + _RETRY_S
        except (StoreError, MalformedValue) as error:
            self._complain(f"could not record what is unresolved: {error}")
        busy = self._awaited or self._refused != {} or self._fetchers.refused() or self._fetchers.unresolved()
        return now + _RETRY_S if busy else float("inf")

    def _step(self, registration: Registration, now: float) -> None:
        refused = dict(self._fetchers.refused())
        if refused != self._refused:
            self._refused = None
            self._channel.refuse(registration, refused)
            self._refused = refused
        self.keep_ends(registration)
        self.await_ends(registration)
        if not self._awaited:
            self._look_at = now + LOOK_S
        elif now >= self._look_at:
            self._look_at = now + LOOK_S
            stored = self._committed(list(self._awaited))
            self._start_at({tp: offset for tp, offset in stored.items() if offset is not None})

    def _committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        """Returns the stored offsets. Whoever has written one that cannot be decoded must not delay the others."""
        try:
            return self._channel.committed(partitions)
        except MalformedValue as error:
            if len(partitions) == 1:
                self._complain(f"holding {partitions[0]} without reading until its offset is repaired: {error}")
                return {}
        half = len(partitions) // 2
        return {**self._committed(partitions[:half]), **self._committed(partitions[half:])}

    def _start_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        if not offsets:
            return
        self._fetchers.resolve(offsets)
        self._fetchers.begin(offsets)
        self._channel.started_at(offsets)

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("%s", complaint)
        self._complaint = complaint


@dataclass(slots=True)
class ConsumerStats:
    """A consumer's counters since its creation. The connector's thread updates one instance, which any thread may read;
    its ``records`` stays 0. The application receives copies in which ``records`` is filled in."""

    records: int = 0
    registrations: int = 0
    starts: int = 0
    stops: int = 0
    dropped_commands: int = 0
    """The number of commands dropped because they were for an earlier incarnation."""
    malformed_commands: int = 0
    """The number of znodes in the channel that are not readable commands."""
    commits: int = 0
    waits: int = 0
    """How many times the consumer had to wait, because ZooKeeper or the coordinator did not answer."""
    unresolved: Mapping[TopicPartition, str] = field(default_factory=dict)
    """The held partitions that cannot be read now (no leader, no right, no answer), each with the reason."""
    losses: int = 0
    """How many times the membership was lost."""
    last_loss: str = ""
    """Why the membership was last lost, or "" if it never was."""


_LOOK_INTERVAL_S = 3.0
"""How often, in seconds, the loop lists the channel even without an event. A lost watch delays a command by at most
this long."""
_LOOKS_PER_TIMEOUT = 3
"""How often the loop lists the channel within the group's rebalance timeout, at least."""


@dataclass(slots=True)
class _Current:
    """The command being carried out, and its progress, which is recorded so that no callback runs twice even if the
    store fails repeatedly."""

    command_id: CommandId
    command: Command
    told: bool = False
    released: Offsets | None = None


@dataclass(eq=False)
class CommandLoop:
    """Carries out one consumer's commands. The connector's thread calls it while the consumer is registered."""

    _channel: MemberChannel
    _fetchers: Fetchers
    _counters: ConsumerStats
    _wake: Callable[[], None]
    _on_start: PartitionCallback | None
    _on_stop: PartitionCallback | None
    _queue: deque[CommandId] = field(default_factory=deque)
    _arrived: deque[CommandId] = field(default_factory=deque)
    """The commands that have arrived since the channel was last listed. Any thread may append to the queue."""
    _current: _Current | None = None
    _reported: set[str] = field(default_factory=set)
    _changed: bool = True
    look_due: float = 0.0
    listed_at: float | None = None
    """The (monotonic) time at which the channel was last listed, before the request was sent, or ``None`` if this
    incarnation has not listed it yet."""

    other_assignor: str = field(default="", init=False)
    """The assignor that the group uses, according to the last start, if this consumer requested another."""

    def __post_init__(self) -> None:
        self.unresolved = UnresolvedPartitions(self._channel, self._fetchers)

    def reset(self) -> None:
        """Forgets the commands of an incarnation that has ended."""
        self._queue.clear()
        self._arrived.clear()
        self._current = None
        self._reported.clear()
        self._changed = True
        self.listed_at = None
        self.unresolved.reset()

    @property
    def busy(self) -> bool:
        """Whether a command is being carried out."""
        return self._current is not None

    def look_again(self) -> None:
        """Makes the next step list the channel."""
        self._changed = True

    def step(self, registration: Registration, now: float) -> float:
        """Carries out as many commands as it can without waiting. Returns the latest time for the next call; an event
        may wake the connector earlier. Raises :class:`MembershipLost` if the membership or the channel is gone, and
        the store's errors.
        """
        if self._changed or now >= self.look_due:
            self.list_commands(now)
        while self._next() is not None:
            if not self._obey_next(registration, self._queue[0]):
                # The fetchers wake the connector when the command can continue. The retry guards against a lost
                # wake-up.
                return now + _RETRY_S
            self._queue.popleft()
        return self.look_due

    def _next(self) -> CommandId | None:
        while self._arrived:
            command_id = self._arrived.popleft()
            if command_id not in self._queue:
                self._queue.append(command_id)
        return self._queue[0] if self._queue else None

    def list_commands(self, now: float) -> None:
        """Lists the channel. Raises :class:`MembershipLost` if it is gone, and the store's errors."""
        self._changed = False
        self._arrived.clear()  # the listing below contains the commands that have arrived
        try:
            commands, strays = self._channel.outstanding(self._on_event)
        except BaseException:
            self._changed = True
            raise
        self.listed_at = now
        self.look_due = now + min(_LOOK_INTERVAL_S, self._channel.rebalance_timeout_s / _LOOKS_PER_TIMEOUT)
        self._queue = deque(commands)
        if self._current is not None and self._current.command_id not in commands:
            # Someone deleted the command. The coordinator treats that as an acknowledgement, so finish the command.
            self._queue.appendleft(self._current.command_id)
        for name in strays:
            self._report(name, "this is not the name of a command; leaving it alone")

    def _on_event(self, event: WatchEvent) -> None:
        name = event.path.rpartition("/")[2]
        commands = in_order((name,))[0] if event.type is WatchType.CREATED else ()
        if commands:
            self._arrived.extend(commands)
        else:
            self._changed = True
        self._wake()

    def _report(self, name: str, what: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            self._counters.malformed_commands += 1
            log.error("bad znode in the channel consumer=%s znode=%s: %s", self._channel.consumer, name, what)

    def _obey_next(self, registration: Registration, command_id: CommandId) -> bool:
        """Carries out the command if possible. Returns true once the command has been carried out or dropped, or is
        gone."""
        if self._current is None or self._current.command_id != command_id:
            try:
                command = self._channel.read(command_id)
            except MalformedValue as error:
                self._report(command_id.name, f"it blocks all later commands: {error.reason}")
                return False
            if command is None:
                return True
            if command.incarnation > registration.incarnation:
                # Deleting the command would acknowledge it on behalf of the consumer that has taken over the name.
                raise MembershipLost(
                    f"{command_id.name} is for incarnation {command.incarnation}, but another consumer has since"
                    f" registered as {registration.consumer!r}"
                )
            if command.incarnation < registration.incarnation:
                self._channel.drop(command_id)
                self._counters.dropped_commands += 1
                log.info(
                    "dropped a command for an earlier registration command=%s incarnation=%d",
                    command_id.name,
                    command.incarnation,
                )
                return True
            self._current = _Current(command_id, command)
        if isinstance(self._current.command, StopFetcher):
            return self._stop(registration, self._current, self._current.command)
        return self._start(registration, self._current, self._current.command)

    def _stop(self, registration: Registration, current: _Current, command: StopFetcher) -> bool:
        if current.released is None:
            self._fetchers.stop(command.partitions)
            if self._fetchers.in_hand(command.partitions):
                return False
            self.unresolved.keep_ends(registration)
            if not current.told:
                current.told = True
                tell(self._on_stop, frozenset(command.partitions), "on_stop")
            current.released = self._fetchers.release(command.partitions)
        self._acknowledge(registration, current, current.released)
        self._counters.stops += 1
        return True

    def _start(self, registration: Registration, current: _Current, command: StartFetcher) -> bool:
        if not current.told:
            self.other_assignor = command.assignor
            self._fetchers.hold(command.starts)
            self._channel.started_at({tp: point.offset for tp, point in command.starts.items()})
            # A partition whose end is not known yet delays neither the acknowledgement nor other partitions.
            self.unresolved.await_ends(registration)
            current.told = True
            tell(self._on_start, frozenset(command.starts), "on_start")
            self._fetchers.begin(tp for tp, point in command.starts.items() if point.offset != NO_OFFSET)
        offsets = self._fetchers.uncommitted(command.partitions)
        self._acknowledge(registration, current, offsets)
        self._fetchers.stored(offsets)
        waiting = self._fetchers.unresolved()
        self._fetchers.begin(
            tp for tp, point in command.starts.items() if point.offset == NO_OFFSET and tp not in waiting
        )
        self._counters.starts += 1
        return True

    def _acknowledge(self, registration: Registration, current: _Current, offsets: Offsets) -> None:
        self._channel.acknowledge(registration, current.command_id, offsets)
        self._current = None
        log.info(
            "carried out command=%s generation=%d partitions=%d offsets=%d",
            current.command_id.name,
            current.command.generation,
            len(current.command.partitions),
            len(offsets),
            extra={"event": "consumer_carried_out", "consumer": registration.consumer, "group": registration.group},
        )


def tell(callback: PartitionCallback | None, partitions: frozenset[TopicPartition], name: str) -> None:
    """Calls the application's callback. Only logs its exceptions, so that they do not delay a handover."""
    if callback is None:
        return
    try:
        callback(partitions)
    except Exception:
        log.exception("%s raised an exception; continuing", name)
