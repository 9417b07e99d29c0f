"""Sends the same requests to Kafka's own group coordinator and to this project's, and compares the answers.

A *play* is a coroutine that sends requests through a :class:`Side`. It runs once for each side, each time with its own
group. The answers are recorded with comparable member ids, group ids and times.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.wire.consumer_protocol import encoded_subscription
from kafka_coord.wire.messages import Record, message

SUBSCRIPTION = encoded_subscription("groups")
INCOMPARABLE = {"throttle_time_ms", "heartbeat_interval_ms", "node_id", "host", "port", "error_message", "client_host"}
"""Fields that naturally differ."""


@dataclass
class Side:
    """One side of a play: its coordinator, the name of its group, and the recorded answers."""

    bootstrap: tuple[str, int]
    group: str
    topic: str
    heard: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    open: list[BrokerConnection] = field(default_factory=list)
    coordinator: tuple[str, int] | None = None
    held: list[asyncio.Task[Any]] = field(default_factory=list)
    """Requests whose answers are not awaited."""

    async def find(self) -> None:
        asking = self.connect(*self.bootstrap)
        for _ in range(100):
            found = await asking.ask(
                "FindCoordinator", 1, message("FindCoordinatorRequest")(key=self.group, key_type=0)
            )
            if not found.error_code:
                self.coordinator = found.host, found.port
                looked = await self.ask("DescribeGroups", 0, quiet=True, groups=(self.group,))
                if not looked.groups[0].error_code:  # the coordinator may still have to load its groups
                    return
            await asyncio.sleep(0.1)
        raise AssertionError(f"no coordinator: error {found.error_code}")

    def connect(self, host: str = "", port: int = 0) -> BrokerConnection:
        """Opens a connection, by default to the coordinator."""
        where = (host, port) if host else self.coordinator
        assert where is not None
        made = BrokerConnection(*where)
        self.open.append(made)
        return made

    async def ask(
        self, name: str, version: int, on: BrokerConnection | None = None, quiet: bool = False, **fields: Any
    ) -> Any:
        """Sends a request, and returns the answer. Records the answer unless ``quiet``. Each request has its own
        connection unless ``on`` is given."""
        form = message(f"{name}Request")
        answer = await (on or self.connect()).ask(name, version, form(**fields), timeout_s=60.0)
        if not quiet:
            self.heard.append(f"{name} {version}: {self.plain(answer)}")
        return answer

    def plain(self, value: Any) -> str:
        """The text of an answer. Values that naturally differ are left out or made comparable."""
        if isinstance(value, Record):
            shown = []
            for name in value._fields:
                if name in INCOMPARABLE:
                    continue
                shown.append(f"{name}={self.plain(getattr(value, name))}")
            return f"{type(value).__name__}({', '.join(shown)})"
        if isinstance(value, tuple):
            return f"({', '.join(sorted(self.plain(one) for one in value))})"
        if isinstance(value, str):
            return repr(self.names.get(value, value.replace(self.group, "GROUP").replace(self.topic, "TOPIC")))
        return repr(value)

    def name(self, member_id: str, name: str) -> str:
        """Makes recorded answers show this member id as ``name``."""
        if member_id:
            self.names[member_id] = name
        return member_id

    async def join(self, name: str, version: int = 5, member_id: str = "", quiet: bool = False, **fields: Any) -> Any:
        """Joins with the id that the coordinator gives, if it requires one (KIP-394)."""
        given = {
            "group_id": self.group, "session_timeout_ms": 10_000, "protocol_type": "consumer",
            "protocols": self.protocols("range"), "member_id": member_id,
        } | ({"rebalance_timeout_ms": 3_000} if version >= 1 else {}) | fields  # fmt: skip
        answer = await self.ask("JoinGroup", version, quiet=True, **given)
        self.name(answer.member_id, name)
        if answer.error_code == 79 and not member_id:
            if not quiet:
                self.heard.append(f"JoinGroup {version}: {self.plain(answer)}")
            answer = await self.ask("JoinGroup", version, quiet=True, **{**given, "member_id": answer.member_id})
        if not quiet:
            self.heard.append(f"JoinGroup {version}: {self.plain(answer)}")
        return answer

    def protocols(self, *names: str, metadata: bytes = SUBSCRIPTION) -> tuple[Any, ...]:
        one = message("JoinGroupRequest").struct("JoinGroupRequestProtocol")
        return tuple(one(name=name, metadata=metadata) for name in names)

    async def sync(self, joined: Any, version: int = 3, quiet: bool = False, assign: bool = True, **fields: Any) -> Any:
        """Sends a SyncGroup. A leader's assignments are the members' names, so that they are equal on both sides."""
        one = message("SyncGroupRequest").struct("SyncGroupRequestAssignment")
        assignments = tuple(
            one(member_id=m.member_id, assignment=f"for {self.names.get(m.member_id)}".encode()) for m in joined.members
        )
        given = {
            "group_id": self.group, "generation_id": joined.generation_id, "member_id": joined.member_id,
            "assignments": assignments if assign else (),
        } | ({"protocol_type": "consumer", "protocol_name": joined.protocol_name} if version >= 5 else {})  # fmt: skip
        return await self.ask("SyncGroup", version, quiet=quiet, **{**given, **fields})

    async def stable(self, *names: str, **fields: Any) -> list[Any]:
        """Makes a stable group of these members. The first is the leader."""
        first = await self.join(names[0], quiet=True, **fields)
        await self.sync(first, quiet=True)
        joined = [first]
        for name in names[1:]:
            again = [asyncio.create_task(self._rejoin(one, quiet=True, **fields)) for one in joined]
            new = await self.join(name, quiet=True, **fields)
            joined = [*[await one for one in again], new]
            await asyncio.gather(*(self.sync(one, quiet=True) for one in joined))
        return joined

    async def _rejoin(self, joined: Any, **fields: Any) -> Any:
        for _ in range(200):
            beat = await self.heartbeat(joined, quiet=True)
            if beat.error_code == 27:
                break
            await asyncio.sleep(0.02)
        return await self.join(self.names[joined.member_id], member_id=joined.member_id, **fields)

    async def heartbeat(self, joined: Any, version: int = 3, **fields: Any) -> Any:
        given = {"group_id": self.group, "generation_id": joined.generation_id, "member_id": joined.member_id}
        return await self.ask("Heartbeat", version, **{**given, **fields})

    async def commit(
        self, joined: Any = None, version: int = 7, offset: int = 5, partition: int = 0, **fields: Any
    ) -> Any:
        form = message("OffsetCommitRequest")
        of_part, metadata = form.struct("OffsetCommitRequestPartition"), fields.pop("metadata", "")
        parts = tuple(
            of_part(partition_index=number, committed_offset=offset, committed_metadata=metadata)
            for number in fields.pop("partitions", (partition,))
        )
        topic = form.struct("OffsetCommitRequestTopic")(name=fields.pop("topic", self.topic), partitions=parts)
        given = {"group_id": self.group, "topics": (topic,)}
        if joined is not None and version >= 1:
            given |= {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}
        return await self.ask("OffsetCommit", version, **{**given, **fields})

    async def offsets(
        self, version: int = 7, partitions: tuple[int, ...] | None = (0, 1), member: Any = None, **fields: Any
    ) -> Any:
        """Fetches committed offsets. If ``member`` is given, the request names it and its epoch (from version 9 on)."""
        form, topic = message("OffsetFetchRequest"), fields.pop("topic", self.topic)
        if version >= 8:
            wanted = form.struct("OffsetFetchRequestTopics")(name=topic, partition_indexes=partitions or ())
            who = {} if member is None else {"member_id": member.member_id, "member_epoch": member.generation_id}
            asked = form.struct("OffsetFetchRequestGroup")(
                group_id=self.group, topics=None if partitions is None else (wanted,), **who
            )
            return await self.ask("OffsetFetch", version, groups=(asked,), **fields)
        wanted = form.struct("OffsetFetchRequestTopic")(name=topic, partition_indexes=partitions or ())
        given = {"group_id": self.group, "topics": None if partitions is None else (wanted,)}
        return await self.ask("OffsetFetch", version, **{**given, **fields})

    async def leave(self, joined: Any, version: int = 1, **fields: Any) -> Any:
        if version >= 3:
            one = message("LeaveGroupRequest").struct("MemberIdentity")
            member = one(member_id=joined.member_id, group_instance_id=fields.pop("instance", None))
            return await self.ask("LeaveGroup", version, **{"group_id": self.group, "members": (member,), **fields})
        return await self.ask(
            "LeaveGroup", version, **{"group_id": self.group, "member_id": joined.member_id, **fields}
        )

    async def describe(self, version: int = 4) -> Any:
        return await self.ask("DescribeGroups", version, groups=(self.group,))


Play = Callable[[Any], Awaitable[Any]]


async def both(
    play: Play,
    kafka: tuple[str, int],
    ours: tuple[str, int],
    name: str,
    topic: str,
    kind: type[Side] = Side,
    at_once: asyncio.Semaphore | None = None,
) -> tuple[Any, Any]:
    """Runs the play on Kafka's side and on this project's, each in a group of its own, and returns both sides.
    ``at_once`` limits how many plays run at the same time."""

    async def run(side: Side) -> Side:
        async with at_once or contextlib.nullcontext():
            try:
                await side.find()
                await play(side)
            finally:
                for connection in side.open:
                    connection.close()
                await asyncio.gather(*side.held, return_exceptions=True)
            return side

    return tuple(await asyncio.gather(run(kind(kafka, f"{name}-at-kafka", topic)), run(kind(ours, name, topic))))
