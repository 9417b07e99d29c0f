"""Writes a group's state to a real ZooKeeper, as the coordinator and consumers would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.dev.cluster.kafka_znodes import topic_value
from kafka_coord.model import (
    NODE_PREFIX,
    Assignment,
    Command,
    CoordinatorInfo,
    GroupSettings,
    Ledger,
    Member,
    PartitionSet,
    Subscription,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.session import KazooStore, connect


@contextmanager
def opened(zk_hosts: str) -> Iterator[KazooStore]:
    """Opens a session of the test. Registrations made in it end with it."""
    store = connect(zk_hosts, session_timeout_ms=10_000)
    try:
        yield store
    finally:
        store.close()


@dataclass(slots=True)
class Tree:
    """Writes the znodes that a test needs. ``incarnations`` holds each member's incarnation, by (group, consumer)."""

    store: KazooStore
    incarnations: dict[tuple[str, str], int] = field(default_factory=dict)

    def put(self, path: str, data: bytes = b"") -> None:
        """Creates or overwrites a persistent znode and its parents."""
        self.store.ensure_path(path)
        self.store.set(path, data)

    def value(self, path: str, value: Mapping[str, Any]) -> None:
        self.put(path, fields.dump(value))

    def topic(self, name: str, partitions: int, topic_id: str = "") -> None:
        self.put(layout.broker_topic(name), topic_value(partitions, topic_id=topic_id))

    def coordinator(self, broker_id: int = 1, epoch: int = 7) -> None:
        info = CoordinatorInfo(broker_id, epoch, "1732060800000", {"http": "127.0.0.1:8080"})
        for path in (layout.COORDINATORS, layout.REQUESTS, layout.GROUPS):
            self.store.ensure_path(path)
        self.put(layout.COORDINATOR_EPOCH, b"%d" % epoch)
        self.store.create(layout.COORDINATOR, fields.dump(info.to_json()), ephemeral=True)
        self.store.create(layout.instance(broker_id), fields.dump(info.to_json()), ephemeral=True)

    def group(self, name: str, settings: GroupSettings | None = None) -> None:
        self.put(layout.group(name), fields.dump(settings.to_json()) if settings else b"")
        for path in (layout.ids(name), layout.owners(name), layout.channels(name), layout.offsets(name)):
            self.store.ensure_path(path)

    def member(self, group: str, consumer: str, topic: str = "flights", **more: Any) -> int:
        """Registers a consumer in the test's session, and returns its incarnation."""
        member = Member(consumer, 0, Subscription.to([topic]), timestamp="1732060800000", **more)
        path = layout.registration(group, consumer)
        self.store.create(path, fields.dump(member.to_json()), ephemeral=True)
        self.store.ensure_path(layout.channel(group, consumer))
        self.incarnations[group, consumer] = self.store.get(path).stat.czxid
        return self.incarnations[group, consumer]

    def ledger(self, group: str, consumer: str, owned: str = "", stopping: str = "", topic: str = "flights") -> None:
        ledger = Ledger(
            consumer,
            self.incarnations.get((group, consumer), 1),
            owned=PartitionSet.from_json({topic: owned}, "test"),
            stopping=PartitionSet.from_json({topic: stopping}, "test"),
            generation=1,
        )
        self.value(layout.ledger(group, consumer), ledger.to_json())

    def target(self, group: str, members: Mapping[str, str], topic: str = "flights", generation: int = 3) -> None:
        assignment = Assignment(
            generation=generation,
            epoch=7,
            inputs="digest",
            assignor="sticky",
            reason="member c2 joined",
            members={c: PartitionSet.from_json({topic: p}, "test") for c, p in members.items()},
            timestamp_ms=1_732_060_800_000,
        )
        self.value(layout.assignment(group), assignment.to_json())

    def command(self, group: str, consumer: str, command: Command) -> str:
        prefix = f"{layout.channel(group, consumer)}/{NODE_PREFIX[command.type]}"
        return self.store.create(prefix, fields.dump(command.to_json()), sequence=True).rpartition("/")[2]

    def offset(self, group: str, topic: str, partition: int, offset: int | bytes) -> None:
        self.put(layout.offset(group, topic, partition), offset if isinstance(offset, bytes) else b"%d" % offset)
