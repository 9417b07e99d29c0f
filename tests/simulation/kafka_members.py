"""A simulated stock client with ``group.protocol=consumer`` (KIP-848), like librdkafka, the Java client or franz-go.

It joins with epoch 0 and sends heartbeats. To reach its assignment, it stops partitions, commits their offsets, and
then starts others from the stored offsets. A heartbeat with its owned partitions acknowledges the result. The first
heartbeat after a failure has all fields. A fenced client drops all partitions and joins again under its member id.
Sometimes, its application then commits earlier records with the earlier epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.channel.operations import Offsets
from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.heartbeat_hold import spins_beyond_interval, waits_beyond_interval
from kafka_coord.frontends.kafka.group import NOTHING_FETCHED
from kafka_coord.frontends.kafka.managed.classic import PROTOCOL as CLASSIC
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE, LEAVE_FOR_NOW, ConsumerHeartbeat
from kafka_coord.frontends.kafka.managed.member import MemberCommit
from kafka_coord.frontends.kafka.managed.topics import UNCHANGED, ManagedTopics
from kafka_coord.model import NO_OFFSET, CommittedOffset, StartPoint, TopicPartition
from tests.simulation.applications import SimulatedFetchers
from tests.simulation.group_kind import GROUP, PATTERN
from tests.simulation.kafka_front import Ask
from tests.simulation.scheduler import Scheduler
from tests.simulation.sockets import ProtocolBroken, Wire

Id = tuple[bytes, int]
"""A partition by topic id."""

AUTO_COMMIT_S = 1.0
_AGAIN_S = 0.3
_TIMEOUT_S = 2.0
"""The timeout of all requests except heartbeats."""
_SHORTEST_TIMEOUT_S = 1.0
"""The shortest timeout of librdkafka's heartbeats."""
_LONG_TIMEOUT_S = 10.0
"""The timeout of the heartbeats of the Java client and franz-go."""

_FENCED = frozenset({Error.FENCED_MEMBER_EPOCH, Error.UNKNOWN_MEMBER_ID})
_MOVED = frozenset({Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE, Error.COORDINATOR_LOAD_IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of the client. ``instance_id`` is empty for a member that is not static."""

    member_id: str
    instance_id: str
    software: str
    topics: ManagedTopics

    @property
    def consumer(self) -> str:
        """The member's name in the engine."""
        return self.instance_id or self.member_id


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The part of the cluster that a client needs."""

    dial: Callable[[], Wire | None]
    """Connects to the coordinator. Returns ``None`` if there is no answer."""
    topic: Callable[[bytes], tuple[str, int] | None]
    """Returns the topic's name and its identity (the czxid of its znode), if the topic exists."""
    named: Callable[[str], int | None]
    """Returns the identity of the topic with this name, if it exists."""
    registration: Callable[[int, ManagedTopics], bytes]
    """Returns the value of a new registration for these topics, as a broker's instance writes it."""
    incarnation: Callable[[Iterable[bytes]], int | None]
    """Returns the incarnation that is registered with one of these values."""
    registered: Callable[[], str | None]
    """Returns the protocol of the member that is registered under the client's name, if there is one."""
    lost: Callable[[Iterable[TopicPartition]], None]
    """Records lost partitions, whose records may be read again."""
    leaves: Callable[[Mapping[TopicPartition, int]], None]
    """Records a leave, with the offset up to which the application has finished for each held partition."""
    occurs: Callable[[str], None]
    says: Callable[[str], None]
    """Adds a line to the history's story."""


@dataclass(eq=False, slots=True)
class _Sent:
    """An outstanding request. ``round`` is the number of memberships that the client had lost before it."""

    sent_at: float
    gives_up_at: float
    take: Callable[[_Sent, Any], None]
    round: int
    epoch: int = 0
    offsets: Offsets = field(default_factory=dict)


class KafkaMember:
    """``run`` is an actor's body. The cluster calls the other methods on every consumer."""

    def __init__(
        self, identity: Identity, fetchers: SimulatedFetchers, scheduler: Scheduler, around: Surroundings
    ) -> None:
        self.identity, self._fetchers, self._scheduler, self._around = identity, fetchers, scheduler, around
        self.wire: Wire | None = None
        self.topics = identity.topics
        self.incarnation: int | None = None
        self.epoch = JOIN
        self.owned: dict[Id, TopicPartition] = {}
        self.told: dict[TopicPartition, int] = {}
        """The identity of the topic to which a partition belongs."""
        self.done = False
        self.closing_by: float | None = None
        self._acks_between = scheduler.rng.random() < 0.5
        self._target: frozenset[Id] | None = None
        self._revoking: frozenset[Id] = frozenset()
        self._values: list[bytes] = []
        """The registration values of all joins. An abandoned join may have registered the member, and a fence may keep
        this registration."""
        self._round = 0
        self._full = True
        self._topics_due = False
        self._ack_due = False
        self._told_s = _SHORTEST_TIMEOUT_S
        self._beat_due = self._commit_due = self._again_at = 0.0
        self._is_urgent = False
        """Whether a commit cannot wait until it is due."""
        self._sent: dict[int, _Sent] = {}
        self._numbers = 0
        self._beating = self._committing = self._fetching = None  # type: _Sent | None
        self._leaving = False
        self._switches = False
        """Whether it has asked to take the place of a classic member."""
        self._first_epoch = JOIN
        self._stale: tuple[int, Offsets] = (JOIN, {})
        """The epoch and the offsets from before it was fenced, which the application has not committed yet."""
        self._awake = True

    # --- what the cluster asks ---------------------------------------------------------------------------------------

    all_topics = ManagedTopics(frozenset(), PATTERN)

    @property
    def starts_when_told(self) -> bool:
        """Whether the instance acknowledges a start before the client starts the partitions, as it does with the first
        part of a share for which a join waits."""
        return spins_beyond_interval(self.identity.software) and self.epoch == self._first_epoch

    @property
    def takes_all(self) -> bool:
        """Whether it subscribes to all topics."""
        return bool(self.topics.regex)

    def may_hand_out(self) -> bool:
        """Tells whether the client hands out records. It does so until it learns that its membership has ended."""
        return self.epoch != JOIN and not self.done

    def close(self, timeout_s: float) -> None:
        if self.closing_by is None:
            self.closing_by = self._now + timeout_s
            self.wake()

    def subscribe(self, topics: ManagedTopics) -> None:
        """Changes its subscription to these topics, as the same member."""
        self.topics, self._topics_due = topics, True
        self.wake()

    def wake(self) -> None:
        self._awake = True

    def topic_of(self, partition: TopicPartition) -> int | None:
        return self.told.get(partition)

    def _say(self, sentence: str) -> None:
        self._around.says(f"{self.identity.consumer} {sentence}")

    @property
    def _now(self) -> float:
        return self._scheduler.clock.now

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self.done:
            self._awake = False
            self._read()
            self._reconcile()
            if self.closing_by is not None:
                self._leave(self.closing_by)
            if not self.done:
                self._send_what_is_due()
                self._scheduler.sleep(self._due(), self._is_awake)
        if self.wire is not None:
            self.wire.hang_up()

    def _is_awake(self) -> bool:
        return self._awake or (self.wire is not None and self.wire.to_read_below())

    def _due(self) -> float:
        moments = [sent.gives_up_at for sent in self._sent.values()]
        if self.closing_by is not None:
            moments.append(max(self.closing_by, self._now + 0.1))
        if self._beating is None:
            moments.append(self._beat_due)
        if self.epoch != JOIN and self._committing is None:
            moments.append(self._again_at if self._is_urgent else self._commit_due)
        if self._again_at > self._now:
            moments.append(self._again_at)
        return max(self._now, min(moments))

    def _connected(self) -> Wire | None:
        if self.wire is None:
            self.wire = self._around.dial()
            if self.wire is None:
                self._try_again()
        return self.wire

    def _disconnected(self) -> None:
        """Forgets the outstanding requests, because they get no answer. The next heartbeat has all fields."""
        if self.wire is not None:
            self.wire.hang_up()
        self.wire = None
        self._say("has lost its connection")
        self._sent.clear()
        self._beating = self._committing = self._fetching = None
        self._try_again()

    def _try_again(self) -> None:
        self._full = True
        self._beat_due = self._again_at = self._now + self._scheduler.rng.random() * _AGAIN_S
        self._commit_due = max(self._commit_due, self._again_at)

    def _read(self) -> None:
        wire = self.wire
        if wire is None:
            return
        while wire.down and self.wire is wire:
            number, answer = wire.down.popleft()
            sent = self._sent.pop(number, None)
            if sent is not None:
                sent.take(sent, answer)
        if self.wire is wire:
            late = any(self._now >= sent.gives_up_at for sent in self._sent.values())
            if wire.hung_up or (wire.down_ended and not wire.down) or late:
                self._disconnected()

    def _send(self, ask: Ask, take: Callable[[_Sent, Any], None], within_s: float) -> _Sent | None:
        wire = self._connected()
        if wire is None:
            return None
        self._numbers += 1
        sent = _Sent(self._now, self._now + within_s, take, self._round, self.epoch)
        self._sent[self._numbers] = sent
        try:
            wire.say_up((self._numbers, ask))
        except OSError:
            self._disconnected()
            return None
        return sent

    def _send_what_is_due(self) -> None:
        if not self._leaving:
            self._beat_if_due()
        self._commit_if_due()

    def _beat_if_due(self) -> None:
        if self._beating is None and (self._ack_due or self._topics_due or self._now >= self._beat_due):
            self._beat(self.epoch)

    def _commit_if_due(self) -> None:
        is_due = self._now >= (self._again_at if self._is_urgent else self._commit_due)
        if self._committing is None and self.epoch != JOIN and not self._leaving and is_due:
            self._commit_due, self._is_urgent = self._now + AUTO_COMMIT_S, False
            epoch, offsets = self._stale
            self._stale = JOIN, {}
            if offsets and epoch < self._first_epoch:  # otherwise, its partitions have had no other owner since then
                self._commit(offsets, epoch, self._committed_late)
            else:
                self._commit(self._fetchers.uncommitted(), self.epoch, self._committed)

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def _beat(self, epoch: int) -> None:
        identity, full = self.identity, self._full or epoch == JOIN
        instance_id = identity.instance_id if full or epoch < JOIN else ""
        owned = frozenset(self.owned) if full or self._ack_due else None
        wanted = self.topics if full or self._topics_due else UNCHANGED

        async def ask(terms: Any, caller: Any, broker_id: int) -> Any:
            value = b""
            if epoch == JOIN:
                value = self._around.registration(broker_id, self.topics)
                self._values.append(value)

            def beat(token: object) -> ConsumerHeartbeat:
                return ConsumerHeartbeat(
                    token,
                    (GROUP, instance_id or identity.member_id),
                    identity.member_id,
                    bool(instance_id),
                    epoch,
                    owned,
                    wanted,
                    value,
                    software=identity.software,
                )

            return await terms.take(GROUP, identity.member_id, beat, caller)

        self._switches = self._switches or (epoch == JOIN and self._around.registered() == CLASSIC)
        polls_long = waits_beyond_interval(identity.software)
        within_s = _LONG_TIMEOUT_S if polls_long else max(_SHORTEST_TIMEOUT_S, self._told_s)
        self._ack_due = self._topics_due = False
        owns = "" if owned is None else f" owning {sorted(map(str, self.owned.values()))}"
        self._say(f"beats with epoch {epoch}{owns}")
        self._beating = self._send(ask, self._heard_beat, within_s)

    def _heard_beat(self, sent: _Sent, beaten: Any) -> None:
        if self._beating is sent:
            self._beating = None
        if sent.round != self._round:
            return
        assignment = getattr(beaten, "assignment", None)
        if beaten.error is not Error.NONE or assignment is not None:
            news = sorted(map(str, assignment)) if assignment is not None else ""
            self._say(f"is answered {beaten.error.name} {news}")
        if beaten.error in _MOVED:
            self._find_again(beaten.error)
        elif beaten.error in _FENCED:
            self._around.occurs(f"heartbeat answered {beaten.error.name}")
            self._lose()
        elif beaten.error is Error.UNRELEASED_INSTANCE_ID:
            if self._around.registered() == CLASSIC:
                raise ProtocolBroken(f"{self.identity.consumer} cannot take the place of a classic member: {beaten}")
            self._around.occurs("instance id not released")
            self._beat_due = self._now + 1.0
        elif beaten.error is not Error.NONE:
            raise ProtocolBroken(f"{self.identity.consumer} was answered {beaten}")
        elif sent.epoch == JOIN:
            self.incarnation = self._around.incarnation(self._values)
            if self._switches:
                self._around.occurs("took the place of a classic member")
            self._around.occurs("registered as a Kafka client")
            self._first_epoch = beaten.epoch
            self._told(sent, beaten)
        else:
            if self._full:
                self._around.occurs("heard of after a failure")
            self._told(sent, beaten)

    def _told(self, sent: _Sent, beaten: Any) -> None:
        self.epoch, self._full, self._told_s = beaten.epoch, False, beaten.interval_s
        self._beat_due = sent.sent_at + beaten.interval_s
        if beaten.assignment is not None:
            self._target = beaten.ids

    def _find_again(self, error: Error) -> None:
        if error is Error.NOT_COORDINATOR:
            self._disconnected()
        self._try_again()

    def _lose(self) -> None:
        """Drops all partitions after the end of its membership, and joins again."""
        self._round += 1
        if self._scheduler.rng.random() < 0.5:
            read = {tp: one.consumed for tp, one in self._fetchers.holdings.items() if one.consumed >= 0}
            self._stale = self.epoch, read
        self._around.lost(self._fetchers.abandon())
        self.owned, self._revoking, self._target = {}, frozenset(), None
        self.epoch, self.incarnation = JOIN, None
        self._full, self._ack_due, self._beat_due = True, False, self._now

    # --- the assignment ----------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        if self._revoking and not self._revoked():
            return
        if self._target is None:
            return
        too_many = self.owned.keys() - self._target
        if too_many:
            self._revoking = frozenset(too_many)
            self._fetchers.stop(self.owned[one] for one in sorted(too_many))
            self._reconcile()
            return
        wanted = {
            one: tp for one in sorted(self._target - self.owned.keys()) if (tp := self._resolved(one)) is not None
        }
        if wanted and self.closing_by is None:
            self._fetch(wanted)
        elif len(self._target) > len(self.owned) + len(wanted) and not wanted:
            pass  # for topics that it does not know, the client requests metadata again
        else:
            self._target = None

    def _revoked(self) -> bool:
        """Gives up partitions once the application has finished them and their offsets are stored."""
        partitions = [self.owned[one] for one in sorted(self._revoking)]
        if self._fetchers.in_hand(partitions):
            return False
        if self._fetchers.uncommitted(partitions):
            self._is_urgent = self._committing is None
            return False
        self._fetchers.release(partitions)
        for one in self._revoking:
            del self.owned[one]
        self._revoking = frozenset()
        more = self._target is not None and not self._target <= self.owned.keys()
        self._ack_due = self._ack_due or self._acks_between or not more
        return True

    def _topic(self, one: Id) -> tuple[str, int] | None:
        """Returns the name and identity of the partition's topic, if it exists."""
        return self._around.topic(one[0])

    def _resolved(self, one: Id) -> TopicPartition | None:
        found = self._topic(one)
        return TopicPartition(found[0], one[1]) if found is not None else None

    def _fetch(self, wanted: Mapping[Id, TopicPartition]) -> None:
        if self._fetching is not None or self._now < self._again_at:
            return
        partitions, member = list(wanted.values()), (self.identity.member_id, self.epoch)

        async def ask(terms: Any, _caller: Any, _broker_id: int) -> Any:
            return await terms.fetch(GROUP, partitions, member)

        self._fetching = self._send(ask, lambda sent, answer: self._fetched(sent, answer, wanted), _TIMEOUT_S)

    def _fetched(self, sent: _Sent, answer: Any, wanted: Mapping[Id, TopicPartition]) -> None:
        self._fetching = None
        if sent.round != self._round:
            return
        error, found = answer if isinstance(answer, tuple) else (answer.error, NOTHING_FETCHED)
        if found.damaged:
            error = Error.UNKNOWN_SERVER_ERROR
        if error is not Error.NONE:
            self._around.occurs(f"offsets not fetched: {error.name}")
            self._again_at = self._now + _AGAIN_S
            if error in _MOVED:
                self._find_again(error)
            return
        for one, partition in wanted.items():
            if self._target is None or one not in self._target:
                continue
            stored = found.offsets.get(partition)
            offset = stored.offset if stored is not None else None
            if stored is not None and not stored.is_bare and stored != _committed(stored.offset):
                raise ProtocolBroken(f"{partition} has the details of another offset: {stored}")
            topic = self._topic(one)
            self.told[partition] = topic[1] if topic is not None else 0
            self._fetchers.hold({partition: StartPoint(NO_OFFSET if offset is None else offset)})
            self._fetchers.begin([partition])
            self.owned[one] = partition
        self._ack_due = True

    # --- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, offsets: Offsets, epoch: int, take: Callable[[_Sent, Any], None]) -> None:
        if not offsets:
            return
        identity = self.identity
        details = {tp: _committed(offset) for tp, offset in offsets.items()}

        async def ask(terms: Any, caller: Any, _broker_id: int) -> Any:
            who = (GROUP, identity.consumer), identity.member_id, bool(identity.instance_id)
            return await terms.commit(
                GROUP, lambda token: MemberCommit(token, *who, epoch, caller.number, offsets, details)
            )

        self._committing = self._send(ask, take, _TIMEOUT_S)
        if self._committing is not None:
            self._committing.offsets, self._committing.epoch = offsets, epoch

    def _committed(self, sent: _Sent, answer: Any) -> None:
        self._committing = None
        if sent.round != self._round:
            return
        self._say(f"has committed { ({str(tp): at for tp, at in sent.offsets.items()}) }: {answer.error.name}")
        if answer.error is Error.NONE:
            self._fetchers.stored(sent.offsets)
        elif answer.error in _MOVED:
            self._find_again(answer.error)
        elif answer.error in _FENCED:
            self._around.occurs("commit of an unknown member")
            self._lose()
        elif answer.error is Error.STALE_MEMBER_EPOCH:
            self._around.occurs("commit with a stale epoch")
            self._again_at = self._now + _AGAIN_S
        else:
            raise ProtocolBroken(f"{self.identity.consumer} was answered {answer}")

    def _committed_late(self, sent: _Sent, answer: Any) -> None:
        self._committing = None
        self._around.occurs(f"commit of an earlier epoch answered {answer.error.name}")
        if answer.error is Error.NONE:
            raise ProtocolBroken(
                f"{self.identity.consumer} committed with epoch {sent.epoch} of before it joined again"
            )

    # --- the end -----------------------------------------------------------------------------------------------------

    def _leave(self, by: float) -> None:
        """Commits once the application has finished all records, and then leaves."""
        if self.epoch == JOIN or self._now >= by:
            self._ended()
            return
        partitions = list(self.owned.values())
        self._fetchers.stop(partitions)
        if self._fetchers.in_hand(partitions) or self._committing is not None:
            return
        if not self._leaving and self._fetchers.uncommitted(partitions):
            self._is_urgent = True
        elif not self._leaving or (self._beating is None and self._now >= self._again_at):
            self._leaving = True
            self._around.leaves({tp: self._fetchers.holdings[tp].consumed for tp in partitions})
            self._beat(LEAVE_FOR_NOW if self.identity.instance_id else LEAVE)
            if self._beating is not None:
                self._beating.take = self._left

    def _left(self, _sent: _Sent, answer: Any) -> None:
        beaten = answer[0] if isinstance(answer, tuple) else answer
        self._beating = None
        if beaten.error in _MOVED:
            self._find_again(beaten.error)
        else:
            self._ended()

    def _ended(self) -> None:
        self.done, self.epoch = True, JOIN
        self._fetchers.abandon()


def _committed(offset: int) -> CommittedOffset:
    """Returns the offset with its details, which are the same from every member."""
    return CommittedOffset(offset, offset % 5, f"at {offset}" if offset % 3 == 0 else "")
