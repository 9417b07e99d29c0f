"""Keeps the mirror of Kafka's metadata during one term of the elected coordinator, and decides when the cluster's
metadata is read from it (ADR 56). It judges the signs of a migration: no other instance does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Protocol

from msgspec import structs

from kafka_coord.coordinator.execute import EVERY_S, Executor, TermThread
from kafka_coord.coordinator.mirror import (
    DESCRIBED_EVERY_S,
    Mirror,
    MirroredBroker,
    MirroredTopic,
    changes,
    read_retired,
)
from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import (
    BrokerError,
    Fenced,
    KafkaCoordError,
    MalformedValue,
    MultiFailed,
    RequestRefused,
    SettingsError,
    StoreError,
    StoreUnavailable,
    UnknownVersion,
)
from kafka_coord.model import Broker
from kafka_coord.model import json_fields as fields
from kafka_coord.model.broker import NOT_AUTHORIZED, BrokerAnswer
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import Migration, broker_number, numbers
from kafka_coord.zk.fencing import MAX_BYTES
from kafka_coord.zk.layout import Root
from kafka_coord.zk.root import (
    ClusterRecord,
    MirrorTrouble,
    Source,
    change_op,
    read_cluster_record,
    read_mirror_trouble,
)
from kafka_coord.zk.store import Create, Delete, GetChildren, GetData, Node, Op, SetData, Store, op_size
from kafka_coord.zk.watches import Watches

log = logging.getLogger(__name__)

ALL_EVERY_S = 5.0
"""How often all topics are asked for, and subscribed topics every :data:`EVERY_S`, in seconds."""
LOOKS_AFTER_S = (0.02, 0.05, 0.1, 0.3)
"""After a signal that topics have changed, when to look again, in seconds: a broker may hear of it late."""
_RESTS = 9
"""How many times as long as a look took the next one waits at least, up to :data:`EVERY_S`: signals must not take more
than a tenth of a core."""
FEW_TOPICS = 500
"""Up to this many topics, all of them are asked for each time."""
OLD_S = 30.0
"""How old the mirror may become before that is recorded, in seconds."""
_TOLD_BYTES = 800_000
"""How much of a znode the names of held topics may take."""

Address = tuple[str, int]


class Asker(Protocol):
    """Asks brokers; see :class:`kafka_coord.kafka.metadata.MetadataAsker`."""

    protocol: str
    unheard: Mapping[int, str]

    def listing(self, listener: str, addresses: Sequence[Address], names: Collection[str] | None) -> BrokerAnswer: ...

    def by_id(
        self, wanted: Mapping[str, str], witnesses: Mapping[str, str], answer: BrokerAnswer
    ) -> list[BrokerAnswer]: ...

    def described(self, answer: BrokerAnswer) -> list[Broker]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class MetadataOptions:
    """Where the metadata comes from: ``setting`` is ``auto``, ``zookeeper`` or ``brokers``. ``bootstrap`` maps names of
    listeners to addresses; the empty name stands for the listener that this instance itself uses. ``led`` is the topic
    whose leaders others look up in ZooKeeper. ``asker`` makes what asks, and raises :class:`SettingsError`."""

    asker: Callable[[], Asker]
    setting: str = "auto"
    bootstrap: Mapping[str, Sequence[Address]] | None = None
    led: str = ""


class MetadataMirror:
    """Asks and writes during one term. One thread calls :meth:`step`. ``subscribed`` returns the topics to ask for
    every second."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        options: MetadataOptions,
        subscribed: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._store, self._executor, self._options, self._subscribed = store, executor, options, subscribed
        self._asker: Asker | None = None
        self._mirror: Mirror | None = None
        self._record: ClusterRecord | None = None
        self._written: dict[str, bytes] = {}
        self._asked_all_at = self._asked_absent_at = self._not_before = self._copied_at = self._described_at = float(
            "-inf"
        )
        self._described: Set[int] = frozenset()
        """The brokers that were asked for their listeners."""
        self._unheard: Mapping[int, str] = {}
        """Those that answered neither the last time nor the time before, and why."""
        self._began_at = store.clock.monotonic()
        self._complaint = ""
        self._troubled_at: float | None = None
        self._told: MirrorTrouble | None = None
        """What ``/consumers/cluster/trouble`` holds."""
        self._knows_told = False
        self._seen: dict[str, Node | None] = {}
        self._settings: frozenset[str] = frozenset()
        """``serve.metadata`` of all running instances, if this one has set it."""
        self._too_large: dict[str, int] = {}
        """The topics whose znode would be larger than ZooKeeper takes, and how large, in bytes."""
        self._refused: set[str] = set()
        """Topics that groups name, that are not in the mirror, and that this instance may not describe."""
        self._hurry: tuple[float, ...] = ()
        """When to look again after a signal, unless the looks before have found a change."""
        self._let_go: frozenset[str] = frozenset()
        self.thread = TermThread("metadata-mirror", self.turn, self._end)
        self._watches = Watches(store, self.thread.wake)
        for path in (layout.CLUSTER, layout.CONTROLLER, layout.MIGRATION, layout.KAFKAS_ROOT, layout.CHANGED):
            self._watches.data(path, partial(self._see, path))
        if options.setting != "auto":
            self._watches.children(layout.COORDINATORS, self._on_instances)

    def age_s(self) -> float | None:
        """Returns how long ago the brokers last told all topics, or ``None`` if the metadata is Kafka's own. Safe to
        call from any thread."""
        mirror = self._mirror
        if mirror is None:
            return None
        return self._store.clock.monotonic() - (self._began_at if mirror.heard_at is None else mirror.heard_at)

    def let_go(self, held: MirrorTrouble) -> None:
        """Lets the topics go that are held, unless a broker knows them again. Safe to call from any thread."""
        self._let_go = frozenset(held.held)
        self.thread.wake()

    def turn(self) -> float:
        """Like :meth:`step`, but complains of failures."""
        try:
            return self.step()
        except Fenced:
            raise
        except KafkaCoordError as error:
            self._complain(str(error))
            self._mirror, self._knows_told = None, False  # what was written is uncertain, so read it again
            return EVERY_S
        except Exception:
            self._mirror, self._knows_told = None, False
            raise

    def _end(self) -> None:
        self._watches.close()
        if self._asker is not None:
            self._asker.close()

    # --- what ZooKeeper says -----------------------------------------------------------------------------------------

    def _see(self, path: str, node: Node | None) -> None:
        if path == layout.CHANGED and path in self._seen and node is not None:
            self._hurry = LOOKS_AFTER_S
        self._seen[path] = node

    def _on_instances(self, names: tuple[str, ...] | None) -> None:
        nodes = self._store.read_many([GetData(layout.instance(number)) for number in numbers(names)])
        found = (_value(node.data).get("metadata", "auto") for node in nodes if isinstance(node, Node))
        self._settings = frozenset(map(str, found))

    def step(self) -> float:
        """Asks once, and writes what has changed. Returns how many seconds to wait until the next step. Raises
        :class:`Fenced` once another instance is elected."""
        self._watches.step()
        if self.thread.closed:
            return EVERY_S
        if not self._watches.told_all():
            raise StoreUnavailable("could not read where the metadata comes from", layout.CLUSTER)
        began = self._store.clock.monotonic()
        if began < self._not_before:
            return self._not_before - began
        node = self._seen[layout.CLUSTER]
        if node is None:
            raise StoreError(f"{layout.CLUSTER} is gone", layout.CLUSTER)
        record = self._record = self._readable(node)
        if record.source is Source.BROKERS:
            pause_s = self._keep()
            now = self._store.clock.monotonic()
            self._not_before = now + min(_RESTS * (now - began), EVERY_S)
            return pause_s
        self._mirror = None
        why = self._sign(record)
        problem = ""
        if why:
            try:
                self._change(record, why)
            except (BrokerError, SettingsError) as error:
                problem = f"cannot take the metadata from the brokers, although {why}: {error}"
                self._complain(problem)
        self._tell_trouble(problem)
        return EVERY_S

    def _readable(self, node: Node) -> ClusterRecord:
        """Returns the record of the tree. Writes it again if somebody has damaged it since it was read: until then,
        nobody can read brokers and topics."""
        try:
            return ClusterRecord.from_znode(node.data)
        except MalformedValue as damage:
            if self._record is None or isinstance(damage, UnknownVersion):
                raise
            self._executor.write([(SetData(layout.CLUSTER, self._record.to_bytes(), node.stat.version),)])
            log.warning("the record of the tree was damaged, and is written again: %s", damage)
            return self._record

    def _sign(self, record: ClusterRecord) -> str:
        """Returns why the brokers are to be asked from now on, or "" if they are not."""
        setting = self._options.setting
        if self._settings - {setting}:
            setting = "auto"  # the instances do not agree, which is a finding of doctor's
        if setting == "zookeeper":
            return ""
        phase = Migration.of(self._seen[layout.CONTROLLER], self._seen[layout.MIGRATION])
        if phase is Migration.RUNNING:
            return "a KRaft controller is active"
        if record.by:
            return ""  # an operator went back, so only an active KRaft controller leads here again
        if setting == "brokers":
            return "serve.metadata is brokers"
        if phase is Migration.PREPARED:
            return f"{layout.MIGRATION} exists"
        return "Kafka has no znodes here" if self._seen[layout.KAFKAS_ROOT] is None and self._options.bootstrap else ""

    # --- one round ---------------------------------------------------------------------------------------------------

    def _change(self, record: ClusterRecord, why: str) -> None:
        """Fills the mirror, then makes everybody read it."""
        mirror = self._read_mirror()
        own = self._read_kafkas_own()
        answer = self._ask_all(mirror, [*own.brokers.values()])
        if not answer.has_ids:
            raise BrokerError(
                "they are older than Kafka 2.8, which gives topics ids, so a topic made anew could not be told from the"
                " old one"
            )
        mirror.copy_live(own.brokers)
        mirror.begin(own.topics)
        mirror.hear(answer, self._store.clock.monotonic())
        self._mirror = mirror
        self._write(mirror)
        since = round(self._store.clock.time() * 1000)
        kafka = record.kafka or answer.cluster_id
        changed = {"source": Source.BROKERS, "since_ms": since, "by": why, "kafka": kafka}
        self._executor.write([(change_op(self._store, lambda before: structs.replace(before, **changed)),)])
        self._record = structs.replace(record, **changed)
        log.warning(
            "the metadata comes from the brokers from now on topics=%d brokers=%d: %s",
            *(len(mirror.topics), len(mirror.brokers), why),
            extra={"event": "metadata_source"},
        )

    def _keep(self) -> float:
        """Returns how many seconds to wait until the next round."""
        mirror = self._mirror
        if mirror is None:
            mirror = self._mirror = self._read_mirror()
        hurry, self._hurry = self._hurry, ()
        is_due = self._store.clock.monotonic() - self._asked_all_at >= ALL_EVERY_S
        try:
            if is_due or hurry or len(mirror.topics) <= FEW_TOPICS:
                answer = self._ask_all(mirror, ())
            else:
                answer = self._ask(mirror, (), "", self._subscribed())
        except BrokerError as error:
            self._tell_trouble(f"no broker tells its metadata: {error}", mirror.held)
            return EVERY_S
        mirror.hear(answer, self._store.clock.monotonic())
        self._ask_about_absent(mirror)
        wanted = mirror.to_ask()
        if wanted:
            for one in self._asking().by_id(wanted, mirror.witnesses(), answer):
                mirror.hear(one, self._store.clock.monotonic())
        let_go = self._let_go
        mirror.settle(self._store.clock.monotonic(), let_go)
        if self._let_go is let_go and not mirror.held:
            self._let_go = frozenset()
        changed = self._write(mirror)
        self._tell_trouble(mirror.why_held() or self._lacking() or self._hidden() or self._unreachable(), mirror.held)
        if not hurry or changed:
            return EVERY_S
        self._hurry = hurry[1:]
        return hurry[0]

    def _lacking(self) -> str:
        if not self._too_large:
            return ""
        name, size = next(iter(self._too_large.items()))
        return (
            f"topics with too many partitions for a znode stay as they were: {name} ({size:,} bytes, at most"
            f" {MAX_BYTES:,}) and {len(self._too_large) - 1} others"
        )

    def _ask_about_absent(self, mirror: Mirror) -> None:
        """Asks by name for the topics that groups name and brokers do not list, because only then do brokers tell which
        of them this instance may not describe."""
        names, now = {*self._subscribed()} - mirror.topics.keys(), self._store.clock.monotonic()
        if not names:
            self._refused = set()
        elif now - self._asked_absent_at >= ALL_EVERY_S:
            self._asked_absent_at = now
            with suppress(BrokerError):
                topics = self._ask(mirror, (), "", names).topics
                self._refused = {topic.name for topic in topics if topic.error == NOT_AUTHORIZED}

    def _hidden(self) -> str:
        mirror = self._mirror or Mirror()
        hidden = sorted(mirror.hidden & mirror.topics.keys() | self._refused - mirror.topics.keys())
        if not hidden:
            return ""
        return f"the brokers hide {len(hidden)} topics from this instance, or they are being deleted: {hidden[0]}, …"

    def _unreachable(self) -> str:
        if not self._unheard:
            return ""
        broker, why = min(self._unheard.items())
        return f"this instance cannot reach {len(self._unheard)} brokers that others name: broker {broker} ({why}), …"

    def _tell_trouble(self, trouble: str, held: tuple[str, ...] = ()) -> None:
        """Records what lasts, so that ``doctor`` finds it, and removes it once it is over."""
        if not self._knows_told:
            self._told, self._knows_told = read_mirror_trouble(self._store), True
        now = self._store.clock.monotonic()
        self._troubled_at = (now if self._troubled_at is None else self._troubled_at) if trouble else None
        lasts_s = now - (self._troubled_at or now)
        held, told = _that_fit(held), self._told
        is_told = told is not None and told.held == held if trouble else told is None
        if is_told:
            return
        if trouble and not held and lasts_s < OLD_S:
            return
        path = layout.MIRROR_TROUBLE
        value = MirrorTrouble(trouble, round((self._store.clock.time() - lasts_s) * 1000), held)
        exists = self._store.exists(path) is not None
        if trouble:
            op = SetData(path, value.to_bytes()) if exists else Create(path, value.to_bytes())
            self._executor.write([(op,)])
            self._complain(trouble)
        elif exists:
            self._executor.write([(Delete(path),)])
        self._told = value if trouble else None

    # --- asking ------------------------------------------------------------------------------------------------------

    def _asking(self) -> Asker:
        if self._asker is None:
            self._asker = self._options.asker()
        return self._asker

    def _ask_all(self, mirror: Mirror, own: Sequence[MirroredBroker]) -> BrokerAnswer:
        """Asks for all topics, and from time to time for the brokers' addresses on their other listeners: in their
        settings, and where ``bootstrap`` says."""
        answer = self._ask(mirror, own, "", None)
        self._asked_all_at = now = self._store.clock.monotonic()
        if now - self._copied_at >= ALL_EVERY_S:
            self._copied_at = now
            mirror.copy_live(self._read_live())
        if now - self._described_at >= DESCRIBED_EVERY_S or answer.brokers.keys() - self._described:
            self._described_at, self._described = now, answer.brokers.keys()
            before = self._asking().unheard
            mirror.hear_described(self._asking().described(answer), self._store.clock.monotonic())
            self._unheard = {one: why for one, why in self._asking().unheard.items() if one in before}
        for listener in (name for name in self._options.bootstrap or {} if name not in {"", answer.listener}):
            try:
                mirror.hear(self._ask(mirror, own, listener, ()), self._store.clock.monotonic())
            except BrokerError as error:
                self._complain(f"no broker tells its addresses on listener {listener}: {error}")
        return answer

    def _ask(
        self, mirror: Mirror, own: Sequence[MirroredBroker], listener: str, names: Collection[str] | None
    ) -> BrokerAnswer:
        asker = self._asking()
        given = (self._options.bootstrap or {}).get(listener, ())
        known = [at for broker in (*mirror.brokers.values(), *own) if (at := broker.address(listener, asker.protocol))]
        addresses = list(dict.fromkeys((*given, *known)))
        if not addresses:
            raise BrokerError("no address of a broker is known: set --bootstrap")
        answer = asker.listing(listener, addresses, names)
        ours = self._record.kafka if self._record is not None else None
        if None not in {ours, answer.cluster_id} and answer.cluster_id != ours:
            raise BrokerError(
                f"they belong to cluster {answer.cluster_id}, but this tree, to cluster {ours}: correct --bootstrap"
            )
        return answer

    # --- reading and writing -----------------------------------------------------------------------------------------

    def _read_mirror(self) -> Mirror:
        """Reads what an earlier term has written."""
        single = (layout.MIRRORED_TOPICS, layout.MIRRORED_BROKERS, layout.CHANGED)
        parent, *_ = found = self._store.read_many([GetData(path) for path in single])
        brokers, topics = self._store.read_many([GetChildren(path) for path in Root.MIRROR.value])
        self._written = {path: node.data for path, node in zip(single, found, strict=True) if isinstance(node, Node)}
        led = self._options.led
        partitions = f"{layout.MIRRORED_TOPICS}/{led}/partitions"
        (numbers,) = self._store.read_many([GetChildren(partitions)]) if led else (None,)
        paths = [f"{layout.MIRRORED_BROKERS}/{name}" for name in (brokers if isinstance(brokers, tuple) else ())]
        paths += [f"{layout.MIRRORED_TOPICS}/{name}" for name in (topics if isinstance(topics, tuple) else ())]
        if isinstance(numbers, tuple):
            paths.append(partitions)
            paths += [path for one in numbers for path in (f"{partitions}/{one}", f"{partitions}/{one}/state")]
        nodes = read_each(self._store, [GetData(path) for path in paths])
        self._written |= {path: node.data for path, node in zip(paths, nodes, strict=True) if isinstance(node, Node)}
        leaders = {
            int(path.split("/")[-2]): (value.get("leader", -1), value.get("leader_epoch", -1))
            for path, data in self._written.items()
            if path.endswith("/state") and path.startswith(f"{partitions}/")
            for value in [_value(data)]
        }
        return Mirror(
            {
                name: replace(one, leaders=leaders) if name == led else one
                for name, one in _topics(self._written, layout.MIRRORED_TOPICS).items()
            },
            _brokers(self._written, layout.MIRRORED_BROKERS),
            read_retired(parent.data) if isinstance(parent, Node) else (),
            protocol=self._asking().protocol,
            led=led,
        )

    def _read_kafkas_own(self) -> Mirror:
        """Reads Kafka's own znodes. Raises :class:`MalformedValue` for a topic that cannot be read: it is not gone, and
        the broker that is asked may not know it yet."""
        topics = layout.kafkas_own(layout.BROKER_TOPICS)
        found = self._read_below(topics)
        own = _topics({path: node.data for path, node in found.items()}, topics)
        for path in sorted(found.keys() - {f"{topics}/{name}" for name in own}):
            raise MalformedValue(path.removeprefix(layout.KAFKAS_OWN), "is unreadable; repair or delete it")
        return Mirror(
            {name: replace(one, czxid=one.czxid or found[f"{topics}/{name}"].stat.czxid) for name, one in own.items()},
            self._read_live(),
        )

    def _read_live(self) -> dict[int, MirroredBroker]:
        """Reads the brokers that are registered in ZooKeeper, which none in KRaft mode is."""
        ids = layout.kafkas_own(layout.BROKER_IDS)
        return _brokers({path: node.data for path, node in self._read_below(ids).items()}, ids)

    def _read_below(self, parent: str) -> dict[str, Node]:
        (names,) = self._store.read_many([GetChildren(parent)])
        paths = [f"{parent}/{name}" for name in (names if isinstance(names, tuple) else ())]
        nodes = read_each(self._store, [GetData(path) for path in paths])
        return {path: node for path, node in zip(paths, nodes, strict=True) if isinstance(node, Node)}

    def _write(self, mirror: Mirror) -> bool:
        """Writes what has changed. Returns whether a topic has."""
        if not mirror.is_changed:
            return False
        wanted = mirror.znodes()
        units = self._small(changes(self._written, wanted), wanted)
        if not units:
            mirror.is_changed = False
            return False
        try:
            self._executor.write(units)
        except MultiFailed:
            self._mirror = None
            raise
        self._written, mirror.is_changed = wanted, False
        log.info("mirrored the brokers' metadata changes=%d topics=%d", len(units), len(mirror.topics))
        return any(op.path.startswith(layout.MIRRORED_TOPICS) for op in units[-1])

    def _small(self, units: Sequence[Sequence[Op]], wanted: dict[str, bytes]) -> list[Sequence[Op]]:
        """Returns the units that fit in a request. What is in the others stays as it was, in ``wanted`` too, so that
        one topic does not stop the mirror of all."""
        found: list[Sequence[Op]] = []
        self._too_large = {}
        for unit in units:
            size = sum(op_size(op, acl=self._store.acl_bytes) for op in unit)
            if size <= MAX_BYTES:
                found.append(unit)
                continue
            self._too_large[unit[0].path.rpartition("/")[2]] = size
            for path in {op.path for op in unit}:
                wanted.pop(path, None)
                if path in self._written:
                    wanted[path] = self._written[path]
        return found

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("the mirror of the metadata: %s", complaint, extra={"event": "mirror"})
        self._complaint = complaint


def no_way_back(store: Store) -> str:
    """Returns why brokers and topics cannot be read from Kafka's own znodes, or "" if they can."""
    controller, ids = store.read_many([GetData(layout.CONTROLLER), GetChildren(layout.kafkas_own(layout.BROKER_IDS))])
    if Migration.of(controller, None) is Migration.RUNNING:
        return "a KRaft controller is active, so Kafka's own znodes will be out of date once the migration is finalised"
    if not ids:
        return f"no broker is registered below Kafka's own {layout.BROKER_IDS}"
    record = read_cluster_record(store)
    if record is None or record.source is Source.ZOOKEEPER:
        return "brokers and topics are read from Kafka's own znodes already"
    return ""


def read_held(store: Store, unchanged_since: int) -> MirrorTrouble:
    """Returns what the mirror holds back, if it is still what it was at the zxid ``unchanged_since``. Raises
    :class:`RequestRefused`."""
    trouble = read_mirror_trouble(store)
    if trouble is None or not trouble.held:
        raise RequestRefused("the mirror holds no topic back")
    if trouble.zxid != unchanged_since:
        raise RequestRefused(f"the mirror holds others back now: {', '.join(trouble.held[:3])}, …")
    return trouble


def way_back_op(store: Store, by: str) -> Op:
    """Returns the write after which everybody reads Kafka's own znodes. Only the elected coordinator writes it."""
    changed = {"source": Source.ZOOKEEPER, "since_ms": round(store.clock.time() * 1000), "by": by or "an operator"}
    return change_op(store, lambda before: structs.replace(before, **changed))


def _that_fit(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the first names, as many as fit in a znode; the others are told of once these are let go."""
    sizes = accumulate(len(name) + len('"",') for name in names)
    return names[: sum(size <= _TOLD_BYTES for size in sizes)]


def _value(data: bytes) -> fields.Json:
    try:
        return fields.load_object(data, "")
    except MalformedValue:
        return {}


def _topics(data: Mapping[str, bytes], parent: str) -> dict[str, MirroredTopic]:
    found = {}
    for path, one in data.items():
        name = path.removeprefix(f"{parent}/")
        if name != path and "/" not in name:
            try:
                found[name] = MirroredTopic.from_znode(name, one)
            except MalformedValue as error:
                log.warning("left a topic out of the mirror: %s", error)
    return found


def _brokers(data: Mapping[str, bytes], parent: str) -> dict[int, MirroredBroker]:
    found = {}
    for path, one in data.items():
        number = broker_number(path.removeprefix(f"{parent}/"))
        if number is not None:
            try:
                found[number] = MirroredBroker.from_znode(number, one)
            except MalformedValue as error:
                log.warning("left a broker out of the mirror: %s", error)
    return found
