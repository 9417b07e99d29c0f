"""Writes the history of a group by hand. The history is lawful until a test writes a violation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from msgspec import structs

from kafka_coord.channel.operations import Registration, command_op, decode_command
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.model import (
    NO_OFFSET,
    Assignment,
    Command,
    CoordinatorInfo,
    Ledger,
    Member,
    PartitionSet,
    Request,
    RequestType,
    StartFetcher,
    StartPoint,
    StopFetcher,
    Subscription,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import Check, Create, Delete, Op, SessionState, SetData, Store
from tests.waiting import eventually

GROUP = "delays"
TOPIC = "flights"
Written = Mapping[str, Mapping[str, str]]
"""The partitions by consumer and topic."""


def make_root(server: str, chroot: str) -> str:
    """Creates the znode ``chroot``, and returns it."""
    store = connect(server)
    try:
        store.create(chroot)
    finally:
        store.close()
    return chroot


class Scribe:
    """The sessions of the coordinator, the consumers and all other writers, below a ``chroot``."""

    def __init__(self, server: str, chroot: str, open_store: Callable[[], Store] | None = None) -> None:
        self.chroot = chroot
        self._open = open_store or partial(connect, f"{server}{chroot}", session_timeout_ms=30_000)
        self._stores: list[Store] = []
        self.somebody = self.session()
        self.leader = self.session()
        self.epoch = 0
        self.stores: dict[str, Store] = {}
        self.channels: dict[str, ConsumerChannel] = {}
        self.registrations: dict[str, Registration] = {}
        self.somebody.ensure_path(layout.GROUPS)
        self.somebody.ensure_path(layout.owners(GROUP))
        self.somebody.ensure_path(layout.REQUESTS)
        self.somebody.create(layout.COORDINATOR_EPOCH, b"0")

    def __enter__(self) -> Scribe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for store in self._stores:
            store.close()

    def session(self) -> Store:
        self._stores.append(self._open())
        return self._stores[-1]

    def await_connections(self) -> None:
        """Waits until all sessions are connected again after a restart of the server. A handshake without an answer is
        repeated after 30 s."""
        eventually(lambda: all(store.session.state is SessionState.CONNECTED for store in self._stores), within_s=60)

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def elect(self, epoch: int, store: Store | None = None) -> None:
        """Makes ``store`` the coordinator with this ``epoch``."""
        self.leader = store or self.leader
        self.epoch = epoch
        info = CoordinatorInfo(1, epoch, "1", {})
        self.leader.multi(
            [
                Create(layout.COORDINATOR, fields.dump(info.to_json()), ephemeral=True),
                SetData(layout.COORDINATOR_EPOCH, str(epoch).encode()),
            ]
        )

    def depose(self) -> None:
        self.leader.delete(layout.COORDINATOR)

    def fence(self) -> Check:
        return Check(layout.COORDINATOR_EPOCH, self.leader.get(layout.COORDINATOR_EPOCH).stat.version)

    def write(self, *ops: Op, store: Store | None = None, fence: Check | None = None) -> None:
        """Writes as the coordinator, with one multi that begins with the fence."""
        (store or self.leader).multi([fence or self.fence(), *ops])

    def assign(self, generation: int, members: Written) -> None:
        """Writes the first target, and the ledgers and commands that start its partitions. No offset is stored."""
        self.write(self.target(generation, members))
        for consumer, partitions in members.items():
            self.start(consumer, partitions, generation, NO_OFFSET)

    def target(self, generation: int, members: Written, epoch: int | None = None) -> Op:
        made = Assignment(
            generation,
            self.epoch if epoch is None else epoch,
            "inputs",
            "sticky",
            f"reason {generation}",
            {consumer: PartitionSet.from_json(dict(found), consumer) for consumer, found in members.items()},
        )
        path, data = layout.assignment(GROUP), fields.dump(made.to_json())
        return SetData(path, data) if self.leader.exists(path) else Create(path, data)

    def ledger(
        self,
        consumer: str,
        owned: Mapping[str, str],
        stopping: Mapping[str, str] | None = None,
        **fields_of: Any,
    ) -> Op:
        made = Ledger(
            consumer,
            self.registrations[consumer].incarnation,
            PartitionSet.from_json(dict(owned), consumer),
            PartitionSet.from_json(dict(stopping or {}), consumer),
            **fields_of,
        )
        path, data = layout.ledger(GROUP, consumer), fields.dump(made.to_json())
        return SetData(path, data) if self.leader.exists(path) else Create(path, data)

    def start(self, consumer: str, partitions: Mapping[str, str], generation: int, offset: int = 100) -> None:
        self.write(self.ledger(consumer, partitions), self.starting(consumer, partitions, generation, offset))

    def start_again(self, consumer: str, owned: Mapping[str, str], started: Mapping[str, str], generation: int) -> None:
        """Starts a partition that the consumer already owns."""
        self.write(self.ledger(consumer, owned), self.starting(consumer, started, generation))

    def stop(self, consumer: str, owned: Mapping[str, str], stopped: Mapping[str, str], generation: int) -> None:
        """Stops partitions. ``owned`` are the partitions that the consumer keeps."""
        self.write(self.ledger(consumer, owned, stopped), self.stopping(consumer, stopped, generation))

    def forget(self, consumer: str) -> None:
        """Removes the ledger of a consumer that has left."""
        self.write(Delete(layout.ledger(GROUP, consumer)))

    def ask(self, kind: RequestType, **fields_of: Any) -> Request:
        """Writes an operator's request."""
        request = Request(kind, GROUP, **fields_of)
        path = self.somebody.create(layout.REQUEST_PREFIX, fields.dump(request.to_json()), sequence=True)
        return structs.replace(request, request_id=path.rpartition("/")[2])

    def answer(self, request: Request) -> Op:
        done = structs.replace(request, result="done", message="as asked")
        return SetData(layout.request(request.request_id), fields.dump(done.to_json()))

    def starting(
        self, consumer: str, partitions: Mapping[str, str], generation: int, offset: int = 100, epoch: int | None = None
    ) -> Op:
        starts = {tp: StartPoint(offset) for tp in PartitionSet.from_json(dict(partitions), consumer)}
        incarnation = self.registrations[consumer].incarnation
        command: Command = StartFetcher(
            generation, self.epoch if epoch is None else epoch, incarnation, starts, f"reason {generation}"
        )
        return command_op(GROUP, consumer, command)

    def stopping(self, consumer: str, partitions: Mapping[str, str], generation: int) -> Op:
        stops = PartitionSet.from_json(dict(partitions), consumer)
        incarnation = self.registrations[consumer].incarnation
        return command_op(
            GROUP, consumer, StopFetcher(generation, self.epoch, incarnation, stops, f"reason {generation}")
        )

    # --- consumers ---------------------------------------------------------------------------------------------------

    def join(self, consumer: str, topic: str = TOPIC, **fields_of: Any) -> None:
        """Registers a new incarnation in its own session."""
        store = self.session()
        channel = ConsumerChannel(store, GROUP, consumer)
        member = Member(consumer, 0, Subscription.to([topic]), timestamp="1", **fields_of)
        found = channel.register(fields.dump(member.to_json()))
        assert isinstance(found, Registration)
        self.stores[consumer], self.channels[consumer], self.registrations[consumer] = store, channel, found

    def end(self, consumer: str) -> None:
        """Ends the consumer's session, which deletes its registration immediately, or after the session timeout if the
        close is lost."""
        self.stores[consumer].close()
        eventually(lambda: self.leader.exists(layout.registration(GROUP, consumer)) is None, within_s=60)

    def outstanding(self, consumer: str) -> list[str]:
        """Returns the paths of the consumer's commands, in order."""
        return [layout.command(GROUP, consumer, found.name) for found in self.channels[consumer].outstanding()[0]]

    def obey(self, consumer: str, offsets: Mapping[int, int] | None = None) -> None:
        """Acknowledges the next command, with these offsets by partition."""
        first = self.channels[consumer].outstanding()[0][0]
        settled = {TopicPartition(TOPIC, partition): offset for partition, offset in (offsets or {}).items()}
        path = layout.command(GROUP, consumer, first.name)
        decode_command(self.stores[consumer].get(path).data, path)
        if settled and not self.leader.exists(layout.topic_offsets(GROUP, TOPIC)):
            self.write(*self.parents())
        self.channels[consumer].acknowledge(self.registrations[consumer], first, settled)

    def parents(self) -> list[Op]:
        return [Create(layout.offsets(GROUP)), Create(layout.topic_offsets(GROUP, TOPIC), b"czxid")]

    def commit(self, consumer: str, offsets: Mapping[int, int]) -> None:
        settled = {TopicPartition(TOPIC, partition): offset for partition, offset in offsets.items()}
        self.channels[consumer].commit(self.registrations[consumer], settled)

    def own_fence(self, consumer: str) -> tuple[Check, Check]:
        return self.registrations[consumer].fence()
