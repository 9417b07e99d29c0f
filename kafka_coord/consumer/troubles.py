"""What a member tells once: the held partitions that a consumer cannot read or start now (no leader, no right, no
answer), and what it named that does not exist (topics, a match of its pattern, a coordinator, or an assignor).

Each is tried again until it can be read. It is told once when this begins, and once when it ends.

Without these lines, a typo in a topic's name looks like a topic without records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient

from kafka_coord.errors import BrokerError, MalformedValue, StoreError
from kafka_coord.kafka.librdkafka import LogOffsets
from kafka_coord.model import PartitionSet, Subscription, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.sequences import grouped
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, SessionState, Stat, Store

log = logging.getLogger(__name__)

_AGAIN_S = 0.2
_LONGEST_AGAIN_S = 1.0
_ALONE_AT_ONCE = 32
"""How many partitions are asked for in requests of their own at a time. librdkafka fails a whole request if one of its
partitions has no leader, so a partition whose request failed is asked for alone."""
_RIGHTS_S = 1.0
_UNKNOWN_RIGHTS_S = 60.0
"""How long, in seconds, a refusal lasts if the broker does not tell the client's rights (Kafka before 2.3)."""

TroubleCallback = Callable[[Mapping[TopicPartition, str]], Any]


class Troubles:
    """``wake`` wakes the connector. ``readable`` is called with the partitions of a topic that the consumer may read
    again. ``on_change`` receives all partitions in trouble, on the connector's thread, whenever they change."""

    def __init__(
        self,
        offsets: LogOffsets,
        *,
        wake: Callable[[], None],
        readable: Callable[[TopicPartition], None],
        on_change: TroubleCallback | None = None,
    ) -> None:
        self._offsets = offsets
        self._wake = wake
        self._readable = readable
        self._on_change = on_change
        self._lock = threading.Lock()
        self._starting: dict[TopicPartition, None] = {}
        self._listed: dict[TopicPartition, int] = {}
        self._reasons: dict[TopicPartition, str] = {}
        self._refused: dict[str, tuple[str, float]] = {}
        self._doubtful: set[str] = set()
        """The topics of which librdkafka only says that they have no leader. It says the same of a topic that it may
        not describe, if a request for ends has no other topic. Their rights are asked for before they are told."""
        self._told: dict[TopicPartition, str] = {}
        self._asked: dict[TopicPartition, Future[Any]] = {}
        self._alone: dict[TopicPartition, None] = {}
        self._ask_at = 0.0
        self._delay_s = _AGAIN_S
        self._rights: dict[str, Future[Any]] = {}
        self._rights_at = 0.0

    # --- safe to call from any thread --------------------------------------------------------------------------------

    @property
    def current(self) -> dict[TopicPartition, str]:
        """The partitions in trouble, each with the reason. Those of a topic that the consumer is not allowed to read
        stay until it is, also after the coordinator has given them to others."""
        with self._lock:
            return dict(self._reasons)

    @property
    def refused(self) -> dict[str, str]:
        """The topics that the consumer is not allowed to read, each with the reason."""
        with self._lock:
            return {topic: reason for topic, (reason, _) in self._refused.items()}

    def begin(self, partition: TopicPartition, error: KafkaError) -> None:
        """Records that the partition cannot be read, because of ``error``."""
        with self._lock:
            self._begin(partition, error)
        self._wake()

    def _begin(self, partition: TopicPartition, error: KafkaError) -> None:
        reason = _reason(error)
        self._reasons.setdefault(partition, reason)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._refused.setdefault(partition.topic, (reason, time.monotonic()))
        elif error.code() == KafkaError._NOENT:
            self._doubtful.add(partition.topic)

    # --- on the connector's thread -----------------------------------------------------------------------------------

    def start_at_end(self, partition: TopicPartition) -> None:
        """Starts listing the end of a partition that starts there."""
        with self._lock:
            self._starting[partition] = None

    def starting(self) -> dict[TopicPartition, str]:
        """Returns the partitions that start at an end and have no position yet, each with the reason ("" if none is
        known)."""
        with self._lock:
            return {partition: self._reasons.get(partition, "") for partition in self._starting}

    def listed(self) -> dict[TopicPartition, int]:
        """Returns the ends that have been listed for partitions in :meth:`starting`."""
        with self._lock:
            return dict(self._listed)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets partitions that have a position now, or are not held any more."""
        with self._lock:
            for partition in partitions:
                for known in (self._starting, self._listed, self._asked, self._alone):
                    known.pop(partition, None)
                if partition.topic not in self._refused:
                    self._reasons.pop(partition, None)

    def step(self) -> None:
        """Takes the brokers' answers, and asks again without waiting. Tells what has begun or ended since."""
        now = time.monotonic()
        with self._lock:
            for partition in [p for p, future in self._asked.items() if future.done()]:
                self._take_end(partition, self._asked.pop(partition))
            missing = (self._starting.keys() - self._listed.keys()) | self._reasons.keys()
            missing = {p for p in missing - self._asked.keys() if p.topic not in self._refused}
            if not missing:
                self._delay_s = _AGAIN_S
            elif now >= self._ask_at:
                self._ask_ends(missing, now)
        readable = self._take_rights(now)
        for partition in readable:
            self._readable(partition)
        self._tell()

    def _take_end(self, partition: TopicPartition, future: Future[Any]) -> None:
        try:
            end = int(future.result().offset)
        except KafkaException as failure:
            self._alone[partition] = None
            self._begin(partition, failure.args[0])
            return
        self._alone.pop(partition, None)
        if partition.topic not in self._refused:
            self._reasons.pop(partition, None)
        if partition in self._starting:
            self._listed.setdefault(partition, end)

    def _ask_ends(self, missing: set[TopicPartition], now: float) -> None:
        self._ask_at = now + self._delay_s
        self._delay_s = min(2 * self._delay_s, _LONGEST_AGAIN_S)
        alone = [partition for partition in self._alone if partition in missing][:_ALONE_AT_ONCE]
        for partition in alone:  # the others come first next time
            del self._alone[partition]
            self._alone[partition] = None
        together = [partition for partition in missing if partition not in self._alone]
        for request in ([together] if together else []) + [[partition] for partition in alone]:
            try:
                futures = self._offsets.ask_ends(request)
            except BrokerError as error:  # no broker is known yet
                for partition in request:
                    self._reasons.setdefault(partition, str(error))
                continue
            self._asked |= futures
            for future in futures.values():
                future.add_done_callback(lambda _: self._wake())

    def _take_rights(self, now: float) -> list[TopicPartition]:
        """Returns the partitions in trouble whose topics the consumer may read again."""
        with self._lock:
            answered = {topic: future for topic, future in self._rights.items() if future.done()}
            for topic in answered:
                del self._rights[topic]
                self._doubtful.discard(topic)
            allowed = []
            for topic, future in answered.items():
                if topic not in self._refused:
                    self._refuse_if_forbidden(topic, future, now)
                elif self._may_read(topic, future, now):
                    allowed.append(topic)
            readable = [partition for partition in self._reasons if partition.topic in allowed]
            for topic in allowed:
                self._refused.pop(topic, None)
            for partition in readable:
                del self._reasons[partition]
            wanted = [topic for topic in self._refused.keys() | self._doubtful if topic not in self._rights]
            if wanted and now >= self._rights_at:
                self._rights_at = now + _RIGHTS_S
                self._rights |= self._offsets.ask_rights(wanted)
        return readable

    def _refuse_if_forbidden(self, topic: str, future: Future[Any], now: float) -> None:
        """Refuses a doubtful topic if the brokers do not let the client describe it."""
        error = future.exception()
        if not isinstance(error, KafkaException) or error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return
        reason = _reason(error.args[0])
        self._refused[topic] = reason, now
        self._reasons |= {partition: reason for partition in self._reasons if partition.topic == topic}

    def _may_read(self, topic: str, future: Future[Any], now: float) -> bool:
        _, since = self._refused.get(topic, ("", now))
        long_ago = now >= since + _UNKNOWN_RIGHTS_S
        try:
            rights = future.result().authorized_operations
        except KafkaException as error:
            code = error.args[0].code()
            return code == KafkaError.UNKNOWN_TOPIC_OR_PART or (long_ago and code == KafkaError._UNSUPPORTED_FEATURE)
        return AclOperation.READ in rights if rights is not None else long_ago

    def _tell(self) -> None:
        with self._lock:
            current = {
                partition: reason
                for partition, reason in self._reasons.items()
                if partition in self._told or partition.topic not in self._doubtful
            }
        told, self._told = self._told, current
        if told.keys() == current.keys():
            return
        for reason, partitions in grouped(current.keys() - told.keys(), current.__getitem__).items():
            log.warning(
                "cannot read partitions=%s reason=%r; holding them without reading, and trying again",
                *(PartitionSet.of(partitions), reason),
                extra={"event": "consumer_unresolved"},
            )
        for reason, partitions in grouped(told.keys() - current.keys(), told.__getitem__).items():
            log.warning(
                "resolved partitions=%s, which could not be read, or released them reason=%r",
                *(PartitionSet.of(partitions), reason),
                extra={"event": "consumer_resolved"},
            )
        if self._on_change is not None:
            try:
                self._on_change(current)
            except Exception:
                log.exception("on_unresolved raised an exception; continuing")


def _reason(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"


FIRST_AGAIN_S = 5.0
"""How long a new finding must last before it is said, in seconds. An election takes less."""
RETRY_S = 1.0
_ASK_S = 10.0
AGAIN_S = 30.0
"""How long to wait, in seconds, before the next look."""


@dataclass(frozen=True, slots=True)
class Present:
    """What exists. ``topics`` contains at least those existing topics that the subscription covers. ``elected`` is
    whether a coordinator is, or ``None`` if that is said elsewhere. ``assignor`` is the one that the group uses, or ""
    if that is unknown."""

    topics: frozenset[str]
    elected: bool | None
    assignor: str = ""


class Look(Protocol):
    """Finds out what exists, given the subscription and those of its topics that are known to exist."""

    def __call__(self, subscription: Subscription, known: frozenset[str]) -> Present | None:
        """Returns ``None`` while the answer is unknown; the caller then asks again. Raises :class:`StoreError`."""


def look_in_zookeeper(store: Store, group: str) -> Look:
    """Returns a look into ZooKeeper, where Kafka's topics are, the coordinator is elected, and the group's target says
    which assignor made it."""

    def look(subscription: Subscription, known: frozenset[str]) -> Present | None:
        if store.session.state is not SessionState.CONNECTED:
            return None
        named = () if subscription.is_wildcard else tuple(sorted(subscription.topics.keys() - known))
        stats = store.exists_many([layout.COORDINATOR, *(layout.broker_topic(topic) for topic in named)])
        found = {topic for topic, stat in zip(named, stats[1:], strict=True) if isinstance(stat, Stat)}
        if subscription.is_wildcard and not known:
            found = set(_listed(store))
        return Present(known | found, isinstance(stats[0], Stat), _assignor(store, group))

    return look


def _listed(store: Store) -> tuple[str, ...]:
    (names,) = store.read_many([GetChildren(layout.BROKER_TOPICS)])
    return names if isinstance(names, tuple) else ()


def _assignor(store: Store, group: str) -> str:
    path = layout.assignment(group)
    (node,) = store.read_many([GetData(path)])
    if not isinstance(node, Node):
        return ""
    try:
        return fields.text(fields.load(node.data, path), "assignor", path, "")
    except MalformedValue:
        return ""


def missing_topics(subscription: Subscription, topics: frozenset[str]) -> tuple[str, ...]:
    """Returns what the subscription names and ``topics`` does not contain: names of topics, sorted, or the pattern if
    it covers none of them."""
    if not subscription.is_wildcard:
        return tuple(sorted(subscription.topics.keys() - topics))
    return () if any(map(subscription.wants, topics)) else (subscription.pattern,)


class Absences:
    """Looks from time to time whether what the member needs exists, and says once what does not. What has come into
    being, and is gone again, is said again. ``known`` returns the topics of which the member holds partitions."""

    def __init__(
        self,
        group: str,
        consumer: str,
        look: Look,
        *,
        subscription: Callable[[], Subscription],
        known: Callable[[], frozenset[str]],
        assignor: str | None = None,
        told: Callable[[], str] = lambda: "",
    ) -> None:
        """``assignor`` is the one that the member requests, if any. ``told`` returns the one that its last command
        named, for members that cannot look at the group's target."""
        self._who = f"consumer={consumer} group={group}"
        self._group = group
        self._look = look
        self._subscription = subscription
        self._known = known
        self._assignor = assignor
        self._told = told
        self._seen_other = ""
        self._due = 0.0
        self._unelected = False
        self._said: dict[str, frozenset[str]] = {}

    def step(self, now: float) -> float:
        """Looks if a look is due. Returns the (monotonic) time of the next one."""
        if now >= self._due:
            self._due = now + self._next(self._subscription())
        return self._due

    def _next(self, subscription: Subscription) -> float:
        try:
            present = self._look(subscription, self._known())
        except StoreError as error:
            log.debug("could not look for topics %s: %s", self._who, error)
            return RETRY_S
        if present is None:
            return RETRY_S
        self._say_missing(subscription, frozenset(missing_topics(subscription, present.topics)))
        is_other_new = self._say_other_assignor(present.assignor or self._told())
        if present.elected is not False:
            self._unelected = False
            self._is_new("coordinator", frozenset())
        elif not self._unelected:
            self._unelected = True
            return FIRST_AGAIN_S
        elif self._is_new("coordinator", frozenset({""})):
            log.warning(
                "no coordinator is elected %s: no partitions are assigned until one is. Check that 'kafka-coord serve' "
                "runs, with the same zookeeper.hosts and chroot",
                self._who,
                extra={"event": "no_coordinator", "group": self._group},
            )
        return FIRST_AGAIN_S if is_other_new else AGAIN_S

    def _say_other_assignor(self, used: str) -> bool:
        """Says that the group uses another assignor than the requested one, once two looks have found it. Returns
        whether this was the first."""
        other = used if self._assignor not in {None, used} else ""
        seen, self._seen_other = self._seen_other, other
        if other and other != seen:
            return True
        if self._is_new("assignor", frozenset({other} if other else ())):
            log.warning(
                "the group uses the assignor %s, not %s %s: the coordinator has no assignor of that name, or the"
                " group's settings or other members name another",
                other,
                self._assignor,
                self._who,
                extra={"event": "other_assignor", "group": self._group},
            )
        return False

    def _say_missing(self, subscription: Subscription, missing: frozenset[str]) -> None:
        new = self._is_new("topics", missing)
        if not new:
            return
        if subscription.is_wildcard:
            what = f"no topic exists that is among the {subscription}"
        else:
            what = f"topics do not exist (yet): {', '.join(sorted(new)[:20])}{', …' if len(new) > 20 else ''}"
        log.warning(
            "%s %s: nothing is read from them until they are created",
            what,
            self._who,
            extra={"event": "topics_missing", "group": self._group},
        )

    def _is_new(self, kind: str, absent: frozenset[str]) -> frozenset[str]:
        """Returns what of ``absent`` has not been said since it was last there."""
        before, self._said[kind] = self._said.get(kind, frozenset()), absent
        return absent - before


class TopicListing:
    """A :class:`~kafka_coord.consumer.troubles.Look` at the brokers. The topics are those that the client may describe.
    ``admin`` returns the client, or ``None`` until a broker is known. ``wake`` is called when the answer has come."""

    def __init__(self, admin: Callable[[], AdminClient | None], wake: Callable[[], None]) -> None:
        self._admin = admin
        self._wake = wake
        self._asking: threading.Thread | None = None
        self._topics: frozenset[str] | None = None

    def __call__(self, subscription: Subscription, known: frozenset[str]) -> Present | None:
        if not missing_topics(subscription, known):
            return Present(known, None)
        topics, self._topics = self._topics, None
        if topics is not None:
            return Present(topics | known, None)
        admin = self._admin()
        if admin is not None and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(admin,), name="kafka-coord-topics", daemon=True)
            self._asking.start()
        return None

    def _ask(self, admin: AdminClient) -> None:
        try:  # without a name, which might create the topic
            self._topics = frozenset(admin.list_topics(timeout=_ASK_S).topics)
        except KafkaException as error:
            log.debug("could not list the topics: %s", error)
        self._wake()
