"""Says once, at WARNING, what a member named that does not exist: topics, a match of its pattern, a coordinator, or an
assignor.

Without these lines, a typo in a topic's name looks like a topic without records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafka_coord.errors import MalformedValue, StoreError
from kafka_coord.model import Subscription
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import GetChildren, GetData, Node, SessionState, Stat, Store

log = logging.getLogger(__name__)

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
    """A :class:`~kafka_coord.consumer.absences.Look` at the brokers. The topics are those that the client may describe.
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
