"""Injects faults into a simulated cluster: into processes and topics, and as operators' actions."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from kafka_coord.consumer.connector import Connector
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Create, Delete, SetData
from tests.simulation.group_kind import GROUP, OTHER_TOPIC, TOPIC
from tests.simulation.kafka_members import KafkaMember
from tests.simulation.process import Process
from tests.simulation.unreadable import Vandal

if TYPE_CHECKING:
    from tests.simulation.cluster import SimulatedCluster


SILENCE = "silence"
"""A kind of fault: ZooKeeper answers nobody for a while."""
MARKERS = "markers"
"""Not a fault. With it, some offsets of the logs hold no record, as after transactions and compaction."""
NO_LEADER = "no leader"
"""A kind of fault: a partition has no leader for a while, so nobody can read it, list its end or append to it."""
FORBIDDEN = "forbidden"
"""A kind of fault: a consumer, or every consumer, may not read a topic for a while."""
CUT_LOG = "cut log"
"""A kind of fault: a new leader of a partition has not got the newest records, as after an unclean election."""
RETENTION = "retention"
"""A kind of fault: the oldest records of a partition are deleted, also those that the group has not read."""
SEEK = "seek"
"""A kind of fault: the application of a consumer goes back some records."""
DEAD_MEMBER = "dead member"
"""A kind of fault, after all others: a socket consumer with a long session dies, and coordinators take turns, each for
less than its session."""
HARMLESS = frozenset({MARKERS, NO_LEADER, FORBIDDEN, RETENTION, CUT_LOG, SEEK, "grow"})
"""Kinds that keep no process from doing its work in time."""
LATE = "late"
"""Not a fault. With it, some groups wait for their topic, which is created after their members have joined."""
POLLS = "polls"
"""A kind of fault: the cluster migrates to KRaft. From some moment on, the metadata comes from brokers that are asked,
some of which lag, know nothing or do not answer; later, Kafka's own znodes stay as they are."""
OF_SOME_HISTORIES = frozenset({SILENCE, MARKERS, LATE, NO_LEADER, FORBIDDEN, RETENTION, CUT_LOG, SEEK, DEAD_MEMBER})
"""Some histories have them, whatever else they have. They are drawn apart, so that they starve no other kind."""

FAULTS = OF_SOME_HISTORIES | frozenset(
    {
        *("cut", "lost", "freeze", "kill", "close", "expire"),
        *("grow", "topic", "pause", "pause-group", "evict", "rebalance", "resign", "reset", "depose"),
    }
)


MOVE = "move"
"""A kind of fault: the leadership of the groups log moves. In histories with this kind, some members are Kafka clients,
which the leader's instance serves."""
SUBSCRIBE = "subscribe"
KAFKA_FAULTS = FAULTS | {MOVE, SUBSCRIBE}
CLASSIC = "classic"
"""Not a fault. With it, some of the Kafka clients may be classic ones."""
CLASSIC_FAULTS = KAFKA_FAULTS | {CLASSIC}
SOCKETS = "sockets"
"""Not a fault. With it, all members use sockets, and answer a stop without waiting for the reply to their commit."""
FROM_THE_END = "from the end"
"""Not a fault. With it, a partition without a stored offset is read from its end."""
OFTEN = "often"
"""Not a fault. With it, faults are several times as frequent."""
ENCORES = "encores"
"""Not a fault. With it, many more pairs of events follow, each after the group has come to rest."""
NO_FAULTS = frozenset({CLASSIC, SOCKETS, FROM_THE_END, OFTEN, ENCORES})
UNREADABLE = "unreadable"
"""A kind of fault: a znode is overwritten with unreadable bytes, and repaired later."""
ALL_FAULTS = CLASSIC_FAULTS | {UNREADABLE, POLLS}


class FaultInjector:
    """Injects faults into ``cluster``, one at a time. The cluster decides when."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.vandal = Vandal(self)

    def inject(self) -> None:
        kind = self.cluster.rng.choice(self.cluster.kinds)
        process = self.cluster.processes[self.cluster.rng.choice(sorted(self.cluster.processes))]
        for_s = self.cluster.rng.random() * self.cluster.rng.choice((0.1, 1.0, 8.0))
        if self.cluster.is_spared() or (kind in {"cut", "freeze", "kill", "close"} and not process.alive):
            return
        if kind not in {"lost", "kill"}:
            self.cluster.say(f"fault: {kind} {process.name}")
        self.cluster.occurred[kind] += 1
        strike: dict[str, Callable[[], object]] = {
            "cut": lambda: self.cluster.launcher.cut(process),
            "kill": lambda: self.cluster.launcher.kill(process),
            "freeze": lambda: self._freeze(process, for_s),
            "expire": lambda: self._expire(process),
            "close": lambda: self.close(process),
            "grow": self.grow,
            "topic": self._delete_or_create_topic,
            "pause": lambda: self._pause(for_s),
            "pause-group": lambda: self._pause_group(for_s),
            "reset": lambda: self._ask_for_reset(for_s),
            "evict": lambda: self.ask(Request(RequestType.EVICT, GROUP, process.consumer)),
            "rebalance": lambda: self.ask(Request(RequestType.REBALANCE, GROUP)),
            "resign": lambda: self._ask_to_resign(process),
            "depose": self._depose,
            UNREADABLE: lambda: self.vandal.strike(for_s),
            MOVE: self._move,
            SUBSCRIBE: lambda: self._subscribe(process),
            "lost": lambda: None,  # the message is lost later, on its way
        }
        strike[kind]()

    def silence(self, for_s: float, *, sessions_survive: bool) -> None:
        """ZooKeeper answers nobody for ``for_s``. If sessions survive, as they do when another leader takes over, they
        get a new timeout at the end. Otherwise those that have been silent for too long expire at the end."""
        self.cluster.occurred[SILENCE] += 1
        self.cluster.say(f"fault: ZooKeeper answers nobody for {for_s:.1f} s, sessions survive: {sessions_survive}")
        until = self.cluster.silent_until = self.cluster.clock.now + for_s
        for session in self.cluster.server.sessions.values():
            session.heard_at = max(session.heard_at, until if sessions_survive else until - session.timeout_s)
        for process in self.cluster.processes.values():
            if process.alive and process.store.remote is not None:
                process.store.disconnect()
                self.cluster.later(0.0, partial(self.cluster.launcher.reconnect, process))

    def lose_leader(self, partition: TopicPartition, for_s: float | None) -> None:
        """The partition has no leader for ``for_s``, or until the group has come to rest without it."""
        log = self.cluster.log
        self.cluster.occurred[NO_LEADER] += 1
        self.cluster.say(f"fault: {partition} has no leader")
        log.leaderless.add(partition)
        if for_s is not None:
            self.cluster.later(for_s, partial(self._led_again, partition))

    def _led_again(self, partition: TopicPartition) -> None:
        self.cluster.log.leaderless.discard(partition)
        self.cluster.checker.led_since[partition] = self.cluster.clock.now

    def forbid(self, topic: str, consumers: Iterable[str], for_s: float) -> None:
        refused = {(consumer, topic) for consumer in consumers}
        self.cluster.occurred[FORBIDDEN] += 1
        self.cluster.say(f"fault: {topic} is forbidden to {sorted(consumer for consumer, _ in refused)}")
        self.cluster.log.forbidden |= refused
        self.cluster.later(for_s, partial(self.cluster.log.forbidden.difference_update, refused))

    def delete_records(self, partition: TopicPartition, kept: int) -> None:
        """Retention deletes all records but the last few."""
        log = self.cluster.log
        end = log.ends[partition]
        self.cluster.occurred[RETENTION] += 1
        self.cluster.say(f"fault: {partition} begins at {end - kept}, and ends at {end}")
        log.delete_records(partition, end - kept)

    def cut_log(self, partition: TopicPartition, at: int) -> None:
        """The new leader of the partition does not have the offsets from ``at`` on."""
        cluster = self.cluster
        cluster.occurred[CUT_LOG] += 1
        cluster.say(f"fault: {partition} is cut at {at}, and ended at {cluster.log.ends[partition]}")
        cluster.checker.log_was_cut(GROUP, partition, at)
        cluster.log.cut(partition, at)
        for process in cluster.processes.values():
            if process.fetchers is not None:
                process.fetchers.log_was_cut(partition)

    def seek(self, process: Process, partition: TopicPartition, by: int) -> None:
        to = process.fetchers.seek_back(partition, by) if process.fetchers is not None else None
        if to is not None:
            self.cluster.occurred[SEEK] += 1
            self.cluster.say(f"fault: {process.name} seeks back to {to} in {partition}")
            self.cluster.checker.sought(GROUP, process.name, partition, to)

    def close(self, process: Process) -> None:
        if process.connector is not None:
            process.closing = True
            process.connector.close(3.0)

    def _move(self) -> None:
        self.cluster.log_leader = self.cluster.rng.choice(self.cluster.instances())

    def _subscribe(self, process: Process) -> None:
        """A consumer subscribes to all topics, or to one. A Kafka client changes its subscription, and other consumers
        register again."""
        member = process.connector
        if isinstance(member, KafkaMember) and process.alive:
            by_name = ManagedTopics(frozenset({TOPIC}), "")
            member.subscribe(by_name if member.takes_all else member.all_topics)
        elif isinstance(member, Connector) and process.alive:
            self.cluster.occurred["subscribed anew"] += 1
            process.by_pattern = not process.by_pattern
            process.subscribed_anew = member.registration is not None  # otherwise, it has just lost its membership
            member.register_again()

    def _depose(self) -> None:
        """The znode of the elected instance is deleted, but its session survives. Another instance is elected at the
        same time."""
        if layout.COORDINATOR in self.cluster.server.tree.nodes:
            self.cluster.write(Delete(layout.COORDINATOR))

    def _freeze(self, process: Process, for_s: float) -> None:
        process.frozen = True
        self.cluster.later(for_s, lambda: self.cluster.launcher.thaw(process))

    def grow(self) -> None:
        if not self.cluster.partitions:
            return
        topic = self.cluster.rng.choice(tuple(self.cluster.partitions))
        self.cluster.partitions[topic] += 1
        self.cluster.write_topic(SetData, topic)

    def _pause(self, for_s: float) -> None:
        nodes = self.cluster.server.tree.nodes
        if layout.PAUSED not in nodes and layout.CONSUMERS in nodes:
            self.cluster.write(Create(layout.PAUSED, b"{}"))
            self.cluster.later(for_s, self._lift)

    def _expire(self, process: Process) -> None:
        """The server ends the session early, because of an administrator or a fast clock."""
        session = process.store.remote
        if (
            session is not None
            and not session.ended
            and self.cluster.server.sessions.pop(session.session_id, None) is not None
        ):
            self.cluster.doomed.add(session.session_id)
            self.cluster.server.end_session(session, self.cluster.ms())

    def _delete_or_create_topic(self) -> None:
        if OTHER_TOPIC in self.cluster.partitions:
            self.cluster.occurred["topic deleted"] += 1
            del self.cluster.partitions[OTHER_TOPIC]
            self.cluster.topic_ids.pop(OTHER_TOPIC, None)
            self.cluster.log.delete(OTHER_TOPIC)
            self.cluster.checker.topic_gone(OTHER_TOPIC)
            self.cluster.write(Delete(layout.broker_topic(OTHER_TOPIC)))
            if self.cluster.rng.random() < 0.5:
                return
        self.create_topic(OTHER_TOPIC, self.cluster.rng.randint(1, 4))

    def create_topic(self, topic: str, partitions: int) -> None:
        self.cluster.occurred["topic created"] += 1
        self.cluster.partitions[topic] = partitions
        if self.cluster.kind.kafka != "none" or self.cluster.brokers is not None:
            made = f"{topic} {self.cluster.occurred['topic created']}".encode().ljust(16)
            self.cluster.topic_ids[topic] = base64.urlsafe_b64encode(made).decode().rstrip("=")
        self.cluster.write_topic(Create, topic)
        czxid = self.cluster.server.tree.nodes[layout.broker_topic(topic)].czxid
        self.cluster.log.topics[topic] = czxid
        self.cluster.checker.czxids[self.cluster.topic_ids.get(topic, str(czxid))] = czxid

    def _pause_group(self, for_s: float) -> None:
        path = layout.paused(GROUP)
        if layout.group(GROUP) in self.cluster.server.tree.nodes and path not in self.cluster.server.tree.nodes:
            self.cluster.write(Create(path, b"{}"))
            self.cluster.later(for_s, self._lift_group)

    def _lift_group(self) -> None:
        if layout.paused(GROUP) in self.cluster.server.tree.nodes:
            self.cluster.write(Delete(layout.paused(GROUP)))
            self.ask(Request(RequestType.LOOK, GROUP))  # as the command that ends the pause does

    def _ask_for_reset(self, for_s: float) -> None:
        """An operator stops the consumers and resets the offsets. The request is refused if a consumer is still
        registered."""
        for process in self.cluster.processes.values():
            if process.alive:
                self.close(process)
        offsets = {
            partition: self.cluster.rng.randint(0, end)
            for partition, end in self.cluster.log.ends.items()
            if partition.topic == TOPIC and self.cluster.rng.random() < 0.7
        }
        if offsets:
            request = Request(RequestType.RESET_OFFSETS, GROUP, offsets=offsets)
            self.cluster.later(for_s, lambda: self.ask(request))

    def _ask_to_resign(self, process: Process) -> None:
        """For any instance to follow, or for ``process``, if it is one."""
        kind, _, number = process.name.partition("-")
        self.ask(Request(RequestType.RESIGN, successor=int(number) if kind == "serve" else None))

    def ask(self, request: Request) -> None:
        if layout.REQUESTS not in self.cluster.server.tree.nodes:
            return  # no instance answers before the first one has started
        self.cluster.write(Create(layout.REQUEST_PREFIX, fields.dump(request.to_json()), sequence=True))

    def _lift(self) -> None:
        if layout.PAUSED in self.cluster.server.tree.nodes:
            self.cluster.write(Delete(layout.PAUSED))

    def end_all(self) -> None:
        self.cluster.say("the faults stop")
        self.cluster.calm = True
        self.cluster.look_at_all()
        self._lift()
        self._lift_group()
        self.cluster.log.forbidden.clear()
        for process in self.cluster.processes.values():
            self.cluster.launcher.thaw(process)
