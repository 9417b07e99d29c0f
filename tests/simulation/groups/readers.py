"""Consumers that read partitions from the committed offsets on, and the judge of what they read."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE
from kafka_coord.wire.consumer_protocol import assignment
from kafka_coord.wire.messages import message
from tests.simulation.groups.clients import (
    REBALANCE_MS,
    RESTS_S,
    SESSION_MS,
    TOPIC,
    VERSIONS,
    Client,
    Elsewhere,
    Moved,
    Rejoin,
)
from tests.simulation.groups.judge import Commit

if TYPE_CHECKING:
    from tests.simulation.groups.instances import Instance
    from tests.simulation.groups.line import Line
    from tests.simulation.groups.moves import MoveHistory

SHARED = range(4)
"""The partitions that the readers share."""
_SURE_S = min(SESSION_MS, REBALANCE_MS) / 1000 - 0.5
"""How long after a heartbeat no coordinator may take a member's partitions away without telling it, in seconds."""
_OUT = frozenset({
    Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION, Error.FENCED_INSTANCE_ID, Error.FENCED_MEMBER_EPOCH,
})  # fmt: skip
_BEAT = "ConsumerGroupHeartbeat"
_FATAL = frozenset({
    Error.GROUP_ID_NOT_FOUND, Error.INVALID_REQUEST, Error.UNSUPPORTED_VERSION, Error.INCONSISTENT_GROUP_PROTOCOL,
})  # fmt: skip
"""What Kafka's clients of KIP-848 give up for."""


class ReadJudge:
    """Knows each acknowledged commit, who reads which partition, and how far anybody has read it."""

    def __init__(self, history: MoveHistory) -> None:
        self._history, self.broken = history, ""
        self.committed: Counter[int] = Counter()
        """The newest commit of each partition that its reader knows to be stored."""
        self.read: Counter[int] = Counter()

    def breaks(self, what: str) -> None:
        self.broken = self.broken or f"{self._history.world.now - 1_000:.3f}: {what}"

    def found(self, partition: int, offset: int, least: int, where: str) -> None:
        """Checks an offset that is found while ``least`` is known to be committed."""
        if offset < least:
            self.breaks(f"partition {partition}: {where} {offset}, although {least} was acknowledged")
        if offset > self.read[partition]:
            self.breaks(f"partition {partition}: {where} {offset}, and nobody has read beyond {self.read[partition]}")

    def handed_out(self, reader: Reader, partitions: Collection[int]) -> None:
        for other in self._history.readers:
            both = set(partitions) & {*other.positions, *other.wanted} if other.holds_on else set()
            if both and other is not reader:
                self.breaks(f"{reader.name} was given {sorted(both)}, which {other.name} reads")


class Reader(Client):
    """A client that reads its partitions. It stops before it joins again, and only looks up its coordinator if that has
    moved. A ``plain`` one asks the brokers, without an instance; one with a partition of its ``own`` is no member. It
    takes ``rests_s`` before it joins the next time."""

    history: MoveHistory  # type: ignore[assignment]
    request_s = 5.0

    def __init__(self, history: MoveHistory, name: str, *, plain: bool = False, own: int | None = None) -> None:
        self.plain, self.own, self.is_leaving = plain, own, False
        self.committed_at, self.rests_s = -math.inf, 0.0
        super().__init__(history, name)  # type: ignore[arg-type]
        self.is_cooperative = False

    def start(self) -> None:
        self.is_member, self.heard_at = False, -math.inf
        self.server: Instance | None = None
        self.lines: dict[Instance, Line] = {}
        """Its connections."""
        self._stop_reading()
        super().start()

    def _stop_reading(self) -> None:
        self.positions: dict[int, int] = {}
        self.wanted: Collection[int] = () if self.own is None else (self.own,)
        """The partitions that it was given, and whose offsets it does not know yet."""

    @property
    def holds_on(self) -> bool:
        """Whether it reads, and its coordinator must know that."""
        is_alive = not (self.process.killed or self.process.frozen)
        return is_alive and self.is_member and self.world.now < self.heard_at + _SURE_S

    def disconnect(self) -> None:
        for server, line in self.lines.items():
            server.process.call_soon(line.lost)
        self.server, self.lines = None, {}

    def _look_up(self, why: Elsewhere) -> None:
        """Asks another time who its coordinator is. Its connections stay, as those of Kafka's clients do, unless they
        have failed."""
        if not isinstance(why, Moved):
            self.disconnect()
        self.server = None

    # --- its life ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                if not self.is_member and self.own is None:
                    await self._join()
                if self.wanted:
                    await self._begin()
                await self._do_something()
            except Elsewhere as why:
                self._look_up(why)
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))
            except Rejoin:
                self._stop_reading()
                self.is_member = False
                await asyncio.sleep(self.rng.uniform(0.0, 0.05))

    async def _join(self) -> None:
        if self.rests_s:
            await asyncio.sleep(self.rests_s)
            self.rests_s = 0.0
        await super()._join()
        told = assignment(self.assigned)
        self.wanted = [one for topic in told.assigned_partitions for one in topic.partitions] if told else ()
        self.is_member = True
        self.history.judge.handed_out(self, self.wanted)

    def _shares(self, members: Sequence[str]) -> Mapping[str, Sequence[int]]:
        return {one: SHARED[at :: len(members)] for at, one in enumerate(sorted(members))}

    async def _begin(self) -> None:
        found = await self._fetched()
        self.positions, self.wanted = {one: max(found[one], 0) for one in self.wanted}, ()

    async def _do_something(self) -> None:
        if self.is_leaving:
            self.is_leaving = False
            await self._leave()
        if self.own is None:
            await super()._do_something()
        else:
            await asyncio.sleep(self.rng.uniform(0.0, RESTS_S) * self.history.pace)
            await (self._commit() if self.rng.random() < 0.7 else self._look())

    async def _commit(self) -> None:
        if not self.positions:
            self._beat()
            return
        judge, partition = self.history.judge, self.rng.choice(list(self.positions))
        value = self.positions[partition] = self.positions[partition] + self.rng.randint(1, 3)
        judge.read[partition] = max(judge.read[partition], value)
        fields = self._commit_fields(Commit((self.group, partition), value, self.member_id, self.generation))
        if self.own is not None:
            fields |= {"member_id": "", "generation_id_or_member_epoch": -1}
        error = (await self._ask("OffsetCommit", **fields)).topics[0].partitions[0].error_code
        if error == Error.NONE:
            judge.committed[partition] = max(judge.committed[partition], value)
            self.committed_at = self.world.now
        self._check(error)

    async def _look(self) -> None:
        await self._fetched()

    async def _fetched(self) -> dict[int, int]:
        form = message("OffsetFetchRequest").struct("OffsetFetchRequestTopic")
        topic, least = form(name=TOPIC, partition_indexes=tuple(SHARED)), dict(self.history.judge.committed)
        answer = await self._ask("OffsetFetch", topics=(topic,))
        self._check(answer.error_code)
        found = {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}
        for partition, offset in found.items():
            self.history.judge.found(partition, offset, least.get(partition, -1), f"{self.name} was told")
        return found

    async def _leave(self) -> None:
        self._stop_reading()
        self.is_member = False
        await super()._leave()

    def _check(self, error: int) -> None:
        if error in _OUT and self.own is None:
            self.history.thrown_out(self, Error(error))
        if error == Error.INCONSISTENT_GROUP_PROTOCOL:  # fatal to Kafka's clients
            self.history.given_up(self)
        super()._check(error)

    def _assignment_check(self) -> Any:
        """What it is told is checked where it hears of it."""

    async def _ask(self, name: str, **more: Any) -> Any:
        asked_at = self.world.now
        if name == "JoinGroup":
            more["rebalance_timeout_ms"] = self.history.rebalance_ms
        found = await super()._ask(name, **more)
        if name in {"Heartbeat", "SyncGroup", _BEAT} and found.error_code == Error.NONE:
            self.heard_at = asked_at
        return found


class ConsumerReader(Reader):
    """A reader that uses KIP-848. It gives partitions up before its next heartbeat says so, and keeps its member id
    when it joins again, as Kafka's clients do."""

    versions = VERSIONS | {_BEAT: 1, "OffsetCommit": 9}
    _told: set[int]
    """What its last heartbeat has said that it owns."""

    def start(self) -> None:
        self._is_whole = True
        super().start()
        self.member_id, self.generation = f"{self.name}-{self.history.fresh()}", JOIN

    async def _live(self) -> None:
        while True:
            try:
                await self._beat_once()
                if self.wanted:
                    await self._begin()
                await self._act()
            except Elsewhere as why:
                self._is_whole = True
                self._look_up(why)
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))
            except Rejoin:
                self._stop_reading()
                self.is_member, self.generation, self._is_whole = False, JOIN, True
                await asyncio.sleep(self.rng.uniform(0.0, 0.05))

    async def _beat_once(self) -> None:
        form = message(f"{_BEAT}Request")
        fields: dict[str, Any] = {"member_id": self.member_id, "member_epoch": self.generation}
        owned = {*self.positions, *self.wanted}
        if self._is_whole or owned != self._told:
            part = form.struct("TopicPartitions")(topic_id=self._topic_id, partitions=tuple(sorted(owned)))
            fields["topic_partitions"] = (part,) if owned else ()
        if self._is_whole:
            fields |= {"rebalance_timeout_ms": self.history.rebalance_ms, "subscribed_topic_names": (TOPIC,)}
        self._told = owned
        answer = await self._ask(_BEAT, **fields)
        self._check(answer.error_code)
        self.is_member, self._is_whole, self.generation = True, False, answer.member_epoch
        if answer.assignment is not None:
            self._assigned(answer.assignment.topic_partitions)

    def _assigned(self, parts: Sequence[Any]) -> None:
        told = {number for one in parts for number in one.partitions}
        for one in parts:
            self._topic_id = one.topic_id
        self.positions = {one: at for one, at in self.positions.items() if one in told}
        self.wanted = told - self.positions.keys()
        self.history.judge.handed_out(self, told)

    async def _begin(self) -> None:
        before = self.positions
        await super()._begin()
        self.positions = before | self.positions

    async def _act(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, RESTS_S) * self.history.pace)
        for _ in range(self.rng.randint(0, 2)):
            if self.positions:
                await self._commit()
        drawn = self.rng.random()
        if drawn < 0.3:
            await self._look()
        elif drawn < 0.32 and not self.history.calm:
            await self._leave()

    async def _leave(self) -> None:
        self._stop_reading()
        self.is_member = False
        self.history.left.add(self.member_id)
        await self._ask(_BEAT, member_id=self.member_id, member_epoch=LEAVE)
        await asyncio.sleep(self.rng.uniform(0.0, 5.0))
        self.member_id = f"{self.name}-{self.history.fresh()}"
        raise Rejoin

    def _stop_reading(self) -> None:
        super()._stop_reading()
        self._told, self._topic_id = set(), bytes(16)

    def _check(self, error: int) -> None:
        if error in _FATAL:
            self.history.judge.breaks(f"{self.name} was told {Error(error).name}, and ends")
        if error == Error.STALE_MEMBER_EPOCH:  # the next heartbeat tells it the new one
            return
        if error == Error.UNKNOWN_MEMBER_ID:
            self.history.thrown_out(self, Error(error))
            raise Rejoin
        super()._check(error)
