"""A simulated classic client in a managed group, eager or cooperative, as librdkafka and the Java client behave.

It joins, syncs and sends heartbeats. Before it joins again, an eager client commits and stops all its partitions. A
cooperative client joins with its partitions, stops those that its new share lacks, and joins again. A client that loses
its membership drops all partitions, and joins as a new member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.classic import COOPERATIVE, Beat, ClassicJoin, ClassicLeave, ClassicSync
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.model import TopicPartition
from kafka_coord.wire.consumer_protocol import assignment
from tests.simulation.applications import SimulatedFetchers
from tests.simulation.group_kind import GROUP, OTHER_TOPIC, TOPIC
from tests.simulation.kafka_members import Id, Identity, KafkaMember, Surroundings, _Sent
from tests.simulation.scheduler import Scheduler
from tests.simulation.sockets import ProtocolBroken

BEATS_EVERY_S = 1.0
_REBALANCE_S = 20.0
_AGAIN_S = 0.3
_SYNC_S = 8.0
_FENCED = frozenset({Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.FENCED_INSTANCE_ID})
_MOVED = frozenset({Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE, Error.COORDINATOR_LOAD_IN_PROGRESS})


class ClassicMember(KafkaMember):
    """``epoch`` is the generation, or :data:`JOIN` while the client is not a member. ``asking`` is the outstanding
    JoinGroup or SyncGroup request."""

    all_topics = ManagedTopics(frozenset({TOPIC, OTHER_TOPIC}), "")
    starts_when_told = True

    def __init__(
        self,
        identity: Identity,
        fetchers: SimulatedFetchers,
        scheduler: Scheduler,
        around: Surroundings,
        *,
        assignor: str,
        session_timeout_s: float,
    ) -> None:
        super().__init__(identity, fetchers, scheduler, around)
        self.assignor, self._session_timeout_s = assignor, session_timeout_s
        self._asking: _Sent | None = None
        self._must_join, self._rejoins = True, False
        self._resend: tuple[float, int] | None = None
        """When to repeat a heartbeat, and with which generation. librdkafka repeats it in any case."""

    @property
    def takes_all(self) -> bool:
        return OTHER_TOPIC in (self.topics.names or ())

    @property
    def _is_eager(self) -> bool:
        return self.assignor != COOPERATIVE

    def subscribe(self, topics: ManagedTopics) -> None:
        self.topics, self._topics_due, self._beat_due = topics, True, self._now
        self.wake()

    def _topic(self, one: Id) -> tuple[str, int] | None:
        name = one[0].decode()
        found = self._around.named(name)
        return None if found is None else (name, found)

    # --- membership --------------------------------------------------------------------------------------------------

    def _due(self) -> float:
        found = super()._due()
        return found if self._resend is None else min(found, max(self._now, self._resend[0]))

    def _beat_if_due(self) -> None:
        self._ack_due = False
        if self._resend is not None and self._now >= self._resend[0]:
            _, generation = self._resend
            self._resend = None
            self._beat(generation)
        if self._asking is None and self._topics_due:
            self._must_join = True
        if self._asking is not None:
            self._beat_due = max(self._beat_due, self._now + _AGAIN_S)
        elif self._must_join and self._now >= self._beat_due:
            if self._revoking or (self._is_eager and self.owned):
                self._beat_due = self._now + 0.05
                if not self._revoking:
                    self._target, self._revoking = None, frozenset(self.owned)
                    self._fetchers.stop(self.owned.values())
                    self.wake()
            else:
                self._join()
        elif not self._must_join and self._beating is None and self._now >= self._beat_due:
            self._beat(self.epoch)

    def _key(self) -> tuple[tuple[str, str], str, bool]:
        identity = self.identity
        return (GROUP, identity.consumer), identity.member_id, bool(identity.instance_id)

    def _ask_for(self, make: Callable[[object], Any], take: Any, within_s: float) -> _Sent | None:
        async def ask(terms: Any, caller: Any, _broker_id: int) -> Any:
            return await terms.take(GROUP, self.identity.member_id, make, caller)

        return self._send(ask, take, within_s)

    def _join(self) -> None:
        self._must_join, self._topics_due, self._target = False, False, None
        owned = frozenset() if self._is_eager else frozenset(self.owned.values())
        is_new, topics, names = self.epoch == JOIN and self._key()[2], self.topics, self._key()
        generation = self.epoch if self.epoch != JOIN else -1

        async def ask(terms: Any, caller: Any, broker_id: int) -> Any:
            value = self._around.registration(broker_id, topics)
            self._values.append(value)

            def join(token: object) -> ClassicJoin:
                return ClassicJoin(
                    token,
                    *names,
                    is_new=is_new,
                    assignor=self.assignor,
                    topics=topics,
                    owned=owned,
                    session_timeout_s=self._session_timeout_s,
                    rebalance_timeout_s=_REBALANCE_S,
                    registration=value,
                    generation=generation,
                )

            return await terms.take(GROUP, self.identity.member_id, join, caller)

        self._say(f"joins with generation {generation} owning {sorted(map(str, owned))}")
        self._asking = self._send(ask, self._joined, _REBALANCE_S)
        self._must_join = self._asking is None

    def _joined(self, sent: _Sent, answer: Any) -> None:
        self._asking = None
        if sent.round != self._round:
            self._must_join = True
        elif answer.error is Error.NONE:
            incarnation = self._around.incarnation(self._values)
            if self.epoch == JOIN or incarnation not in {None, self.incarnation}:  # the former membership had ended
                self.incarnation = incarnation
                self._around.occurs(f"joined as a classic client, {self.assignor}")
                self._first_epoch = answer.generation_id
            self.epoch = answer.generation_id
            names, generation = self._key(), self.epoch
            self._asking = self._ask_for(
                lambda token: ClassicSync(token, *names, generation, self.assignor), self._synced, _SYNC_S
            )
            self._must_join = self._asking is None
        else:
            self._refused("join", answer.error)

    def _synced(self, sent: _Sent, answer: Any) -> None:
        self._asking = None
        if sent.round != self._round:
            self._must_join = True
        elif answer.error is Error.NONE:
            topics = assignment(answer.assignment).assigned_partitions
            share = [TopicPartition(one.topic, number) for one in topics for number in one.partitions]
            self._say(f"is given {sorted(map(str, share))}")
            self._target = frozenset((tp.topic.encode(), tp.partition) for tp in share)
            self._rejoins = not self.owned.keys() <= self._target
            self._beat_due = self._now + BEATS_EVERY_S
            self.wake()
        else:
            self._refused("sync", answer.error)

    def _beat(self, epoch: int) -> None:
        names, software = self._key(), self.identity.software
        if epoch > JOIN:
            self._beat_due = self._now + BEATS_EVERY_S
            self._beating = self._ask_for(
                lambda token: Beat(token, *names, epoch, software), self._heard, self._session_timeout_s
            )
        elif epoch == LEAVE:
            self._beating = self._ask_for(lambda token: ClassicLeave(token, *names), self._left, _SYNC_S)
        else:  # a static client only closes its connection
            self._ended()

    def _heard(self, sent: _Sent, answer: Any) -> None:
        if answer.error is Error.COORDINATOR_LOAD_IN_PROGRESS and self.identity.software:
            self._around.occurs("heartbeat of a classic client sent again")
            self._resend = self._now + 0.1, sent.epoch
            return
        if self._beating is sent:
            self._beating = None
        self._beat_due = max(self._beat_due, self._now + BEATS_EVERY_S)
        if sent.round != self._round:
            return
        if answer.error is not Error.NONE and (
            answer.error is not Error.ILLEGAL_GENERATION or sent.epoch == self.epoch
        ):
            self._refused("heartbeat", answer.error)

    def _refused(self, what: str, error: Error) -> None:
        self._around.occurs(f"{what} of a classic client answered {error.name}")
        self._say(f"is answered {error.name}")
        if error in _MOVED:
            self._must_join = self._must_join or what != "heartbeat"
            self._find_again(error)
        elif error in _FENCED:
            self._lose()
        elif error is Error.REBALANCE_IN_PROGRESS:
            self._must_join, self._beat_due = True, self._now + self._scheduler.rng.random() * 0.2
        else:
            raise ProtocolBroken(f"{self.identity.consumer} was answered {error.name} to its {what}")

    def _disconnected(self) -> None:
        self._resend = None
        if self._asking is not None:
            self._asking, self._must_join = None, True
        super()._disconnected()

    def _lose(self) -> None:
        super()._lose()
        self._must_join, self._rejoins = self._asking is None, False

    # --- the assignment ----------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        super()._reconcile()
        if self._rejoins and not self._revoking:
            self._rejoins, self._must_join = False, True
            self._beat_due = self._now

    def _committed(self, sent: _Sent, answer: Any) -> None:
        if sent.round != self._round or answer.error not in {Error.REBALANCE_IN_PROGRESS, Error.ILLEGAL_GENERATION}:
            super()._committed(sent, answer)
            return
        self._committing = None
        self._around.occurs(f"commit of a classic client answered {answer.error.name}")
        self._again_at = self._now + _AGAIN_S
        if answer.error is Error.ILLEGAL_GENERATION and sent.epoch == self.epoch:
            self._lose()
        elif self._revoking:  # its records since the last commit are read again
            self._around.lost(self._fetchers.abandon())
            self.owned, self._revoking = {}, frozenset()

    def _ended(self) -> None:
        super()._ended()
        self._must_join = False
