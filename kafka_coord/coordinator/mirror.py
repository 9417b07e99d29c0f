"""Decides what the mirror of a cluster's metadata holds: answers of brokers in, writes out (ADR 56). Pure.

**Hidden is not gone.** A topic that is missing from an answer may be one that this client may not describe, or one that
a broker has not heard of yet. Nothing is removed for that. It makes the topic *doubted*, and doubted topics are asked
for by id, at every broker. A topic is gone once

- every broker that answered for :data:`GONE_AFTER_S` did not know its id, and two at least where there are two;
- each of these answers counts only if that broker knows another topic, in the same answer: one of the mirror, or one
  that has the name of a topic of the mirror;
- not more than half of the topics, and at least :data:`MANY`, would go at once.

For one id the number of partitions never falls, and an id that was replaced or is gone never comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice

from kafka_coord.errors import MalformedValue
from kafka_coord.model import Broker, is_topic_id
from kafka_coord.model import json_fields as fields
from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer, NamedBroker
from kafka_coord.model.names import is_legal
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, Op, SetData

GONE_AFTER_S = 10.0
AWAY_AFTER_S = 30.0
"""How long answers must leave a broker out before it counts as away, in seconds."""
DESCRIBED_EVERY_S = 30.0
"""How often brokers are asked for their listeners, in seconds."""
FRESH_S = 5.0
"""How long an answer counts as what a broker says now, in seconds."""
MOST_WITNESSES = 5
MANY = 10
_MOST_PLAIN = 8
MOST_RETIRED = 1_000
"""How many ids of earlier topics are remembered."""


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A topic in the mirror. ``czxid`` is that of Kafka's own znode if there was one: what was stored before the change
    of source is compared with it."""

    topic_id: str
    replicas: Mapping[int, tuple[int, ...]]
    czxid: int | None = None
    leaders: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def with_answer(self, answered: AnsweredTopic, *, led: bool) -> MirroredTopic:
        """Returns the topic with what is new in an answer, or itself if nothing is."""
        if self.replicas == answered.replicas and not led:
            return self
        replicas = {**self.replicas, **answered.replicas}
        leaders = dict(self.leaders)
        for partition, found in answered.leaders.items() if led else ():
            if found[1] >= leaders.get(partition, (-1, -1))[1]:
                leaders[partition] = found
        if (replicas, leaders) == (self.replicas, self.leaders):
            return self
        return replace(self, replicas=replicas, leaders=leaders)

    def to_bytes(self) -> bytes:
        """Returns the value in Kafka's format 3."""
        partitions = {str(number): list(brokers) for number, brokers in sorted(self.replicas.items())}
        value: dict[str, object] = {"version": 3, "topic_id": self.topic_id, "partitions": partitions}
        value |= {"adding_replicas": {}, "removing_replicas": {}}
        return fields.dump(value if self.czxid is None else value | {"czxid": self.czxid})

    @classmethod
    def from_znode(cls, name: str, data: bytes, czxid: int | None = None) -> MirroredTopic:
        """Decodes a topic's znode, the mirror's or Kafka's own; of the latter, ``czxid`` is given. Raises
        :class:`MalformedValue`, also for a topic without an id."""
        where = layout.broker_topic(name)
        value = fields.load_object(data, where)
        topic_id = fields.text(value, "topic_id", where)
        if not is_topic_id(topic_id):
            raise MalformedValue(where, "field 'topic_id' is not a topic's id")
        replicas = {
            int(number): tuple(one for one in brokers if isinstance(one, int))
            for number, brokers in fields.mapping(value, "partitions", where).items()
            if number.isdecimal() and isinstance(brokers, list)
        }
        written = value.get("czxid")
        return cls(topic_id, replicas, czxid if czxid is not None else written if isinstance(written, int) else None)


@dataclass(frozen=True, slots=True)
class MirroredBroker:
    """A broker in the mirror. ``endpoints`` maps each listener's name to its protocol, host and port. Their order is
    the broker's own, because clients use the first listener that speaks their protocol: the one for instances, which
    does not name the broker, may be second."""

    endpoints: Mapping[str, tuple[str, str, int]]
    rack: str | None = None
    is_away: bool = False

    def address(self, listener: str, protocol: str) -> tuple[str, int] | None:
        """Returns where the broker can be asked: on the listener, or without a name on the first that speaks the
        protocol."""
        for name, (spoken, host, port) in self.endpoints.items():
            if not self.is_away and (name == listener if listener else spoken == protocol):
                return host, port
        return None

    def to_bytes(self) -> bytes:
        """Returns the value in Kafka's format 5."""
        shown = {
            name: f"{name}://{f'[{host}]' if ':' in host else host}:{port}"
            for name, (_, host, port) in self.endpoints.items()
        }
        _, host, port = next(iter(self.endpoints.values()), ("", "", -1))
        value: dict[str, object] = {
            "version": 5,
            "host": host,
            "port": port,
            "jmx_port": -1,
            "timestamp": "0",
            "endpoints": list(shown.values()),
            "listener_security_protocol_map": {name: one[0] for name, one in self.endpoints.items()},
            "features": {},
        }
        also = {name: one for name, one in (("rack", self.rack), ("away", self.is_away or None)) if one is not None}
        return fields.dump(value | also)

    @classmethod
    def from_znode(cls, broker_id: int, data: bytes) -> MirroredBroker:
        """Decodes a broker's znode, the mirror's or Kafka's own. Raises :class:`MalformedValue`."""
        where = layout.broker(broker_id)
        value = fields.load_object(data, where)
        return replace(cls.of(Broker.from_json(value, broker_id, where)), is_away=value.get("away") is True)

    @classmethod
    def of(cls, broker: Broker) -> MirroredBroker:
        endpoints = {}
        for one in broker.listeners:
            host, _, port = one.address.rpartition(":")
            endpoints[one.name] = one.protocol, host.strip("[]"), int(port)
        return cls(endpoints, broker.rack)


@dataclass(slots=True)
class _Doubt:
    """Answers that do not know a topic's id. ``since`` is the first of an unbroken series, and ``said`` maps each
    broker to its last one."""

    since: float
    said: dict[int, float] = field(default_factory=dict)


def read_retired(data: bytes) -> tuple[str, ...]:
    """Decodes the ids of earlier topics, which are the data of the topics' parent."""
    try:
        found = fields.load_object(data, layout.MIRRORED_TOPICS).get("retired")
    except MalformedValue:
        return ()
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()


class Mirror:
    """The mirror of one cluster. ``led`` is the topic whose leaders are mirrored too. Times are monotonic seconds."""

    def __init__(
        self,
        topics: Mapping[str, MirroredTopic] | None = None,
        brokers: Mapping[int, MirroredBroker] | None = None,
        retired: Iterable[str] = (),
        *,
        protocol: str = "PLAINTEXT",
        led: str = "",
    ) -> None:
        self.retired = dict.fromkeys(retired)
        self.topics = {name: one for name, one in (topics or {}).items() if one.topic_id not in self.retired}
        self.brokers = dict(brokers or {})
        self.hidden: set[str] = set()
        """The topics of the mirror that the last answers do not show."""
        self.held: tuple[str, ...] = ()
        """The topics that seem to be gone and stay, because too many would go at once."""
        self.heard_at: float | None = None
        """When a broker last told all topics."""
        self.is_changed = True
        """Whether :meth:`znodes` may return something new. The owner resets it after it has written them."""
        self._plain: list[BrokerAnswer] = []
        """Answers that told exactly what the mirror holds, since it last changed."""
        self._protocol, self._led = protocol, led
        self._doubts: dict[str, _Doubt] = {}
        self._suspected: set[str] = set()
        self._others: dict[str, tuple[AnsweredTopic, float]] = {}
        """Topics that have the name of another in the mirror, and when they were last seen."""
        self._unnamed_since: dict[int, float] = {}
        self._named_at: dict[int, float] = {}
        self._heard_on: dict[str, float] = {}
        """When a broker last answered on each listener."""
        self._told_on: dict[str, float] = {}
        """When a broker last told its address on each listener."""
        self._listeners: frozenset[str] = frozenset()
        self._encoded: dict[str, tuple[MirroredTopic, dict[str, bytes]]] = {}

    # --- answers in --------------------------------------------------------------------------------------------------

    def hear(self, answer: BrokerAnswer, now: float) -> None:
        """Takes an answer."""
        self._hear_brokers(answer, now)
        if any(answer is one for one in self._plain):
            self.heard_at, self.hidden = now, set()
            self._doubts.clear()
            self._suspected.clear()
            return
        for topic in answer.topics:
            self._hear_topic(topic, now)
        if answer.is_whole:
            self.heard_at = now
            shown = {topic.topic_id for topic in answer.topics if not topic.error}
            self.hidden = {name for name, one in self.topics.items() if one.topic_id not in shown}
            self._suspected |= {self.topics[name].topic_id for name in self.hidden}
            if not self.hidden and not self._others:
                self._plain = [*self._plain[-_MOST_PLAIN:], answer]
        self._hear_ids(answer, now)

    def begin(self, topics: Mapping[str, MirroredTopic]) -> None:
        """Begins with the topics that everybody has read so far, and forgets others: they are of an earlier migration,
        which was rolled back, or of a beginning that was cut off."""
        self.topics = dict(topics)
        for one in topics.values():
            self.retired.pop(one.topic_id, None)
        self.touch()

    def touch(self) -> None:
        """To be called after a change of :attr:`topics`."""
        self.is_changed = True
        self._plain.clear()

    def _hear_brokers(self, answer: BrokerAnswer, now: float) -> None:
        for broker_id, named in answer.brokers.items():
            before = self.brokers.get(broker_id) or MirroredBroker({})
            listener = answer.listener or self._listener_at(named, broker_id)
            protocol = before.endpoints.get(listener, (self._protocol, "", 0))[0]
            endpoints = {**before.endpoints, listener: (protocol, named.host, named.port)}
            after = MirroredBroker(endpoints, named.rack or before.rack)
            if self.brokers.get(broker_id) != after:
                self.brokers[broker_id] = after
                self.is_changed = True
            self._unnamed_since.pop(broker_id, None)
            self._named_at[broker_id] = self._heard_on[listener] = now
        for broker_id in self.brokers.keys() - answer.brokers.keys():
            if not answer.listener or answer.listener in self.brokers[broker_id].endpoints:
                self._unnamed_since.setdefault(broker_id, now)

    def hear_described(self, described: Iterable[Broker], now: float) -> None:
        """Takes what brokers tell of their listeners in their settings."""
        brokers = {one.broker_id: MirroredBroker.of(one) for one in described}
        self._told_on |= {name: now for one in brokers.values() for name in one.endpoints}
        self._copy(brokers, self._heard_on.keys())

    def copy_live(self, registered: Mapping[int, MirroredBroker]) -> None:
        """Copies the endpoints of brokers registered in ZooKeeper, for the listeners of which no broker tells."""
        self._copy(registered, self._heard_on.keys() | self._told_on.keys())

    def _copy(self, described: Mapping[int, MirroredBroker], known_better: Set[str]) -> None:
        for broker_id, broker in described.items():
            known = self.brokers.get(broker_id, MirroredBroker({}, broker.rack))
            addresses = {one[1:] for one in broker.endpoints.values()}
            kept = {
                name: one
                for name, one in known.endpoints.items()
                if name in known_better and (name in broker.endpoints or one[1:] not in addresses)
            }  # a listener that was heard before its name was known is here under its own name
            after = replace(known, endpoints={**broker.endpoints, **kept})
            if after != known:
                self.brokers[broker_id] = after
                self.is_changed = True

    def _listener_at(self, named: NamedBroker, broker_id: int) -> str:
        """Returns the name of the listener with this address, which the protocol names if nothing else does."""
        known = self.brokers.get(broker_id)
        for name, (_, host, port) in known.endpoints.items() if known is not None else ():
            if (host, port) == (named.host, named.port):
                return name
        if known is None:  # its listener is probably called like that of the other brokers
            for other in self.brokers.values():
                for name, (protocol, _, port) in other.endpoints.items():
                    if protocol == self._protocol and port == named.port:
                        return name
        return self._protocol

    def _hear_topic(self, topic: AnsweredTopic, now: float) -> None:
        mirrored = self.topics.get(topic.name)
        if topic.error or not is_topic_id(topic.topic_id) or not is_legal(topic.name) or not topic.replicas:
            return
        if topic.topic_id in self.retired:
            return
        led = topic.name == self._led
        if mirrored is None:
            self.topics[topic.name] = MirroredTopic(topic.topic_id, {}).with_answer(topic, led=led)
            self.touch()
        elif mirrored.topic_id == topic.topic_id:
            after = mirrored.with_answer(topic, led=led)
            if after is not mirrored:
                self.topics[topic.name] = after
                self.touch()
        else:
            self._others[topic.name] = topic, now
            self._suspected.add(mirrored.topic_id)
            return
        self._exists(topic.topic_id)
        self.hidden.discard(topic.name)

    def _hear_ids(self, answer: BrokerAnswer, now: float) -> None:
        mirrored = {one.topic_id for one in self.topics.values()}
        for topic_id in answer.known:
            self._exists(topic_id)
        knows = answer.known | {one.topic_id for one in answer.topics if not one.error}
        witnesses = mirrored | {one.topic_id for one, _ in self._others.values()}
        for topic_id in answer.unknown & mirrored:
            if answer.teller is None or not (knows & witnesses) - {topic_id}:
                continue  # after a power loss, brokers without a controller know no topic at all
            doubt = self._doubts.get(topic_id)
            if doubt is None or now - max(doubt.said.values()) > FRESH_S:
                doubt = self._doubts[topic_id] = _Doubt(now)
            doubt.said[answer.teller] = now

    def _exists(self, topic_id: str) -> None:
        self._doubts.pop(topic_id, None)
        self._suspected.discard(topic_id)

    def to_ask(self) -> dict[str, str]:
        """Returns the ids to ask every broker for, with their names."""
        return {one.topic_id: name for name, one in self.topics.items() if one.topic_id in self._suspected}

    def witnesses(self) -> dict[str, str]:
        """Returns ids to ask for besides, with their names: topics that a broker which knows anything knows."""
        others = {one.topic_id: name for name, (one, _) in self._others.items()}
        doubted = self._suspected
        found = {one.topic_id: name for name, one in self.topics.items() if one.topic_id not in doubted} | others
        return dict(islice(found.items(), MOST_WITNESSES))

    # --- time passes -------------------------------------------------------------------------------------------------

    def settle(self, now: float, let_go: Collection[str] = ()) -> None:
        """Lets go of what is gone, after the answers of one round. Nothing holds back the topics in ``let_go``."""
        topics = self.topics.items() if self._doubts else ()
        going = {name for name, one in topics if self._is_gone(name, one.topic_id, now)}
        removed = {name for name in going if name not in self._others}
        is_too_much = len(removed) >= MANY and 2 * len(removed) > len(self.topics)
        self.held = tuple(sorted(removed.difference(let_go))) if is_too_much else ()
        for name in going.difference(self.held):
            self._retire(name, now)
        self._others = {name: one for name, one in self._others.items() if now - one[1] <= FRESH_S}
        self._settle_brokers(now)
        heard, told = self._heard_on.items(), self._told_on.items()
        listeners = {name for name, at in heard if now - at <= AWAY_AFTER_S}
        listeners |= {name for name, at in told if now - at <= DESCRIBED_EVERY_S + AWAY_AFTER_S}
        self.is_changed = self.is_changed or listeners != self._listeners
        self._listeners = frozenset(listeners)

    def why_held(self) -> str:
        if not self.held:
            return ""
        return (
            f"{len(self.held)} of {len(self.topics)} topics seem to be gone at once, so all of them stay:"
            f" {', '.join(self.held[:3])}, …"
        )

    def _is_gone(self, name: str, topic_id: str, now: float) -> bool:
        doubt = self._doubts.get(topic_id)
        if doubt is None:
            return False
        live = {one for one, at in self._named_at.items() if now - at <= FRESH_S}
        say = {broker for broker, at in doubt.said.items() if now - at <= FRESH_S}
        if len(say) < min(2, len(live)) or not say:
            return False
        return now - doubt.since >= GONE_AFTER_S or (name in self._others and live <= say)

    def _retire(self, name: str, now: float) -> None:
        self.touch()
        gone = self.topics.pop(name)
        self._exists(gone.topic_id)
        self.hidden.discard(name)
        self.retired[gone.topic_id] = None
        for oldest in list(self.retired)[: max(0, len(self.retired) - MOST_RETIRED)]:
            del self.retired[oldest]
        other, _ = self._others.pop(name, (None, now))
        if other is not None and other.topic_id not in self.retired:
            self.topics[name] = MirroredTopic(other.topic_id, {}).with_answer(other, led=name == self._led)

    def _settle_brokers(self, now: float) -> None:
        if not self._unnamed_since:
            return
        held = {broker for topic in self.topics.values() for brokers in topic.replicas.values() for broker in brokers}
        for broker_id, since in list(self._unnamed_since.items()):
            if now - since < AWAY_AFTER_S:
                continue
            self.is_changed = self.is_changed or broker_id not in held or not self.brokers[broker_id].is_away
            if broker_id in held:
                self.brokers[broker_id] = replace(self.brokers[broker_id], is_away=True)
            else:
                del self.brokers[broker_id], self._unnamed_since[broker_id]
                self._named_at.pop(broker_id, None)

    # --- writes out --------------------------------------------------------------------------------------------------

    def znodes(self) -> dict[str, bytes]:
        """Returns everything that the mirror consists of."""
        listeners = fields.dump({"version": 1, "listeners": sorted(self._listeners)})
        found = {layout.CHANGED: b"", layout.MIRRORED_BROKERS: listeners, layout.MIRRORED_TOPICS: self._retired_bytes()}
        for broker_id, broker in self.brokers.items():
            found[f"{layout.MIRRORED_BROKERS}/{broker_id}"] = broker.to_bytes()
        self._encoded = {name: self._encoded_topic(name, topic) for name, topic in self.topics.items()}
        for _, of_topic in self._encoded.values():
            found.update(of_topic)
        return found

    def _encoded_topic(self, name: str, topic: MirroredTopic) -> tuple[MirroredTopic, dict[str, bytes]]:
        known = self._encoded.get(name)
        if known is not None and known[0] is topic:
            return known
        path = f"{layout.MIRRORED_TOPICS}/{name}"
        found = {path: topic.to_bytes()}
        if topic.leaders:
            found[f"{path}/partitions"] = b""
        for partition, (leader, epoch) in topic.leaders.items():
            found[f"{path}/partitions/{partition}"] = b""
            state = {"version": 1, "leader": leader, "leader_epoch": epoch}
            found[f"{path}/partitions/{partition}/state"] = fields.dump(state)
        return topic, found

    def _retired_bytes(self) -> bytes:
        return fields.dump({"version": 1, "retired": list(self.retired)}) if self.retired else b""


def changes(written: Mapping[str, bytes], wanted: Mapping[str, bytes]) -> list[Sequence[Op]]:
    """Returns the writes that make ``written`` into ``wanted``: one unit for each broker and topic, which take effect
    completely or not at all, and before them one for the parents. A topic with another id gets a new znode."""
    differ = {path for path in written.keys() | wanted.keys() if written.get(path) != wanted.get(path)}
    remade = {path for path in differ & written.keys() & wanted.keys() if _is_another(written[path], wanted[path])}
    if remade:  # what is below such a topic goes with it, although it may be the same
        differ |= {path for path in written.keys() | wanted.keys() if _unit(path) in remade}
    units: dict[str, list[Op]] = {}
    for path in sorted(differ, reverse=True):
        if path in written and (path not in wanted or _unit(path) in remade):
            units.setdefault(_unit(path), []).append(Delete(path))
    for path in sorted(differ):
        if path in wanted and (path not in written or _unit(path) in remade):
            units.setdefault(_unit(path), []).append(Create(path, wanted[path]))
        elif path in wanted:
            units.setdefault(_unit(path), []).append(SetData(path, wanted[path]))
    parents = (layout.CHANGED, layout.MIRRORED_BROKERS, layout.MIRRORED_TOPICS)
    return [units[one] for one in sorted(units, key=lambda unit: (unit not in parents, unit))]


def _unit(path: str) -> str:
    """Returns the znode of the broker or topic that the path belongs to."""
    return "/".join(path.split("/")[:5])


def _is_another(before: bytes, after: bytes) -> bool:
    if before == after:
        return False
    try:
        ids = [fields.load_object(data, "").get("topic_id") for data in (before, after)]
    except MalformedValue:
        return False
    return ids[0] != ids[1]
