"""Simulated Kafka clients: they join, sync, send heartbeats, commit, fetch offsets, leave, vanish and come back."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.grouplog.topics import assigned_topics
from kafka_coord.wire.consumer_protocol import encoded_subscription
from kafka_coord.wire.frames import RequestHeader, answer_start, request_frame
from kafka_coord.wire.messages import message
from tests.simulation.groups.judge import Commit
from tests.simulation.groups.loop import Process

if TYPE_CHECKING:
    from tests.simulation.groups.history import GroupHistory

GROUP, ALONE = "g", "5"
"""Both groups are in one partition of the log. The second group has no members."""
TOPIC, PARTITIONS = "t", 2
SESSION_MS, REBALANCE_MS, REQUEST_S = 6_000, 5_000, 4.0
RESTS_S = 0.5
"""The longest pause of a client between two actions, at the usual pace."""
BEATS_S = 1.5
"""In the calm period, a member sends heartbeats at least this often, as Kafka's clients do. A commit does not tell the
member about a rebalance, and a rebalance removes members that do not join within :data:`REBALANCE_MS`."""
VERSIONS = {"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "LeaveGroup": 3, "OffsetCommit": 7, "OffsetFetch": 5}
_AGAIN = {Error.COORDINATOR_LOAD_IN_PROGRESS, Error.COORDINATOR_NOT_AVAILABLE, Error.NOT_COORDINATOR}


def _assignment(told: str, partitions: Sequence[int]) -> bytes:
    form = message("ConsumerProtocolAssignment")
    part = form.struct("TopicPartition")(topic=TOPIC, partitions=tuple(partitions))
    return bytes(form.encode(form(assigned_partitions=(part,), user_data=told.encode()), 0, bytearray(2)))


def _subscription(*, owns: bool) -> bytes:
    """Encodes the subscription of a client that owns all partitions of the topic, or none."""
    if not owns:
        return encoded_subscription(TOPIC)
    form = message("ConsumerProtocolSubscription")
    owned = form.struct("TopicPartition")(topic=TOPIC, partitions=tuple(range(PARTITIONS)))
    return bytes(form.encode(form(topics=(TOPIC,), owned_partitions=(owned,)), 1, bytearray((0, 1))))


def _joining(member_id: str, *, owns: bool = False) -> dict[str, Any]:
    form = message("JoinGroupRequest").struct("JoinGroupRequestProtocol")
    return {
        "member_id": member_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": (form(name="range", metadata=_subscription(owns=owns)),),
    }


def _syncing(member_id: str, generation: int, shares: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The fields of a sync of a leader that assigns these partitions to the members, or of another member if there are
    none."""
    form = message("SyncGroupRequest").struct("SyncGroupRequestAssignment")
    told = tuple(
        form(member_id=one, assignment=_assignment(f"{generation}:{one}", share)) for one, share in shares.items()
    )
    return {"member_id": member_id, "generation_id": generation, "assignments": told}


def _leaving(member_id: str, instance_id: str | None) -> dict[str, Any]:
    form = message("LeaveGroupRequest").struct("MemberIdentity")
    return {"members": (form(member_id=member_id, group_instance_id=instance_id),)}


class Elsewhere(Exception):
    """There is no answer, or another instance is the coordinator."""


class Moved(Elsewhere):
    """The answer says that another instance is the coordinator, or that this one is not ready."""


class Rejoin(Exception):
    """The group rebalances, or no longer knows the member."""


class Client:
    """A client with one name, as successive processes."""

    request_s = REQUEST_S
    """How long it waits for an answer."""
    versions = VERSIONS

    def __init__(self, history: GroupHistory, name: str) -> None:
        self.history, self.name = history, name
        self.world, self.rng = history.world, history.world.rng
        self.instance_id = name if name.startswith("static") else None
        self.client_id = name
        self.group = ALONE if name.startswith("alone") else GROUP
        self.is_lazy = False
        self.is_cooperative = random.Random(f"cooperative {history.seed} {name}").random() < 0.5
        """Whether the client keeps its partitions when it joins again."""
        self._numbers = itertools.count(1)
        self.commits: list[Commit] = []
        self.start()

    def start(self) -> None:
        self.process = Process(self.world, self.name)
        self.member_id, self.generation = "", -1
        self._owes_commit, self._beat_at = False, 0.0
        self._reads = ""
        """The identity of the topic that the client began to read when it was given its partitions."""
        self._owns = False
        """Whether a cooperative client has partitions."""
        self.assigned = b""
        self._beating: asyncio.Task[Error] | None = None
        self._beats_again = False
        self.process.start(self._alone if self.group == ALONE else self._live)

    # --- its life ----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self._join()
                while True:
                    await self._do_something()
            except Elsewhere:
                await asyncio.sleep(self.rng.uniform(0.05, 0.4))
            except Rejoin:
                await asyncio.sleep(self.rng.uniform(0.0, 0.05))

    async def _alone(self) -> None:
        while True:
            try:
                await (self._commit() if self._commits_now(0.6, self.rng.random()) else self._look())
            except (Elsewhere, Rejoin):
                await asyncio.sleep(self.rng.uniform(0.05, 0.4))
            await asyncio.sleep(self.rng.uniform(0.0, 0.3) * self.history.pace)

    def _commits_now(self, share: float, drawn: float) -> bool:
        """Tells at random whether to commit now. In the calm period, at most one other action precedes a commit."""
        commits = drawn < share or (self.history.calm and self._owes_commit)
        self._owes_commit = not commits
        return commits

    async def _do_something(self) -> None:
        rest_s = self.rng.uniform(0.0, RESTS_S) * self.history.pace
        if self._beating is None:
            await asyncio.sleep(rest_s)
        else:
            await asyncio.wait({self._beating}, timeout=rest_s)
            if self._beating.done():
                answered, self._beating = self._beating, None
                self._check(answered.result())
        drawn = self.rng.random()
        if self.history.calm and self.world.now - self._beat_at > BEATS_S:
            self._beat()
        elif self._commits_now(0.5, drawn):
            await self._commit()
        elif drawn < 0.7:
            await self._look()
        elif drawn < 0.72 and not self.history.calm:
            await self._leave()
        else:
            self._beat()

    def _beat(self) -> None:
        """Does other things until the answer arrives. Any other request of the client triggers the answer."""
        if self._beating is None and not self._beats_again:
            self._beat_at = self.world.now
            self._beating = self.process.create_task(self._answered_beat())

    async def _answered_beat(self) -> Error:
        """Repeats a heartbeat in any case, and sends no other heartbeat until then, like librdkafka."""
        who: dict[str, Any] = {"member_id": self.member_id, "generation_id": self.generation}
        try:
            while (
                error := Error((await self._ask("Heartbeat", **who)).error_code)
            ) is Error.COORDINATOR_LOAD_IN_PROGRESS:
                self._beats_again = True
                await asyncio.sleep(0.1)
        except Elsewhere:
            error = Error.NOT_COORDINATOR
        finally:
            self._beats_again = False
        return error

    async def _join(self) -> None:
        self._beating = None  # its answer no longer matters
        answer = await self._ask("JoinGroup", **_joining(self.member_id, owns=self._owns))
        if answer.error_code == Error.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            raise Rejoin
        self._check(answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        leads = answer.leader == self.member_id
        if leads and (self.is_lazy or self.rng.random() < 0.03):
            late = self.world.now + self.rng.uniform(2.0, 12.0)
            while self.world.now < late and not self.history.calm:
                await asyncio.sleep(0.1)
        shares = self._shares([one.member_id for one in (answer.members if leads else ())])
        answer = await self._ask(
            "SyncGroup", check=self._assignment_check(), **_syncing(self.member_id, self.generation, shares)
        )
        self._check(answer.error_code)
        self.assigned = answer.assignment
        is_given = TOPIC in assigned_topics([answer.assignment])
        if is_given and not self._owns:
            self._reads = self.history.topic.identity
        gives_up, self._owns = self._owns and not is_given, self.is_cooperative and is_given
        if gives_up:
            await self._commit()
            raise Rejoin

    def _shares(self, members: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Returns which partitions it assigns to whom as the leader: everybody gets all, which Kafka allows."""
        return dict.fromkeys(members, range(PARTITIONS))

    def _assignment_check(self) -> Callable[[Any], None]:
        who = self.member_id, self.generation

        def check(answer: Any) -> None:
            if answer.error_code == Error.NONE:
                self.history.judge.synced(*who, answer.assignment)

        return check

    def _promised(self, answer: Any, one: Commit) -> None:
        if answer.topics[0].partitions[0].error_code == Error.NONE:
            self.history.judge.promise(one)

    def committing(self, partition: int) -> Commit:
        """Notes a commit that is about to be sent."""
        one = self.history.judge.committing(self.group, partition, self.member_id, self.generation, self._reads)
        self.commits.append(one)
        return one

    def _commit_fields(self, one: Commit) -> dict[str, Any]:
        form = message("OffsetCommitRequest")
        part = form.struct("OffsetCommitRequestPartition")(partition_index=one.key[1], committed_offset=one.value)
        topic = form.struct("OffsetCommitRequestTopic")(name=TOPIC, partitions=(part,))
        alone = self.group == ALONE
        return {
            "member_id": "" if alone else self.member_id,
            "generation_id_or_member_epoch": -1 if alone else self.generation,
            "topics": (topic,),
        }

    def commit_frame(self, one: Commit) -> bytes:
        return self._frame("OffsetCommit", **self._commit_fields(one))

    async def _commit(self) -> None:
        one = self.committing(self.rng.randrange(PARTITIONS))
        answer = await self._ask(
            "OffsetCommit", check=lambda told: self._promised(told, one), **self._commit_fields(one)
        )
        error = answer.topics[0].partitions[0].error_code
        if error == Error.NONE:
            one.acknowledged_at = self.world.now
        self._check(error)

    async def _look(self) -> None:
        form = message("OffsetFetchRequest").struct("OffsetFetchRequestTopic")
        topic = form(name=TOPIC, partition_indexes=tuple(range(PARTITIONS)))
        began = self.world.now
        answer = await self._ask("OffsetFetch", topics=(topic,))
        self._check(answer.error_code)
        for part in answer.topics[0].partitions:
            self.history.judge.fetched(self.group, part.partition_index, part.committed_offset, began)

    def leave_frame(self, member_id: str, instance_id: str | None, group: str = GROUP) -> bytes:
        return self._frame("LeaveGroup", group_id=group, **_leaving(member_id, instance_id))

    def sync_frame(self, group: str, member_id: str, generation: int) -> bytes:
        """Returns the sync of another client, which leads another group and is its only member."""
        return self._frame("SyncGroup", group_id=group, **_syncing(member_id, generation, self._shares([member_id])))

    def join_frame(self, group: str, member_id: str) -> bytes:
        """Returns the join of another client, in another group."""
        return self._frame("JoinGroup", group_id=group, group_instance_id=None, **_joining(member_id))

    async def _leave(self) -> None:
        self.history.left.add(self.member_id)
        await self._ask("LeaveGroup", **_leaving(self.member_id, self.instance_id))
        self.member_id, self._owns = "", False
        await asyncio.sleep(self.rng.uniform(0.0, 5.0))
        raise Rejoin

    def _check(self, error: int) -> None:
        if error == Error.NONE:
            return
        if error in _AGAIN:
            raise Moved
        if error in {Error.UNKNOWN_MEMBER_ID, Error.FENCED_INSTANCE_ID}:
            self.member_id, self._owns = "", False
        raise Rejoin

    # --- requests ----------------------------------------------------------------------------------------------------

    def _frame(self, name: str, **fields: Any) -> bytes:
        request = message(f"{name}Request")
        if name not in {"LeaveGroup", "OffsetFetch"}:
            is_beat = name == "ConsumerGroupHeartbeat"
            fields.setdefault("instance_id" if is_beat else "group_instance_id", self.instance_id)
        header = RequestHeader(request.api_key or 0, self.versions[name], next(self._numbers), self.client_id)
        return request_frame(header, request, request(**{"group_id": self.group} | fields))[4:]

    @classmethod
    def read(cls, name: str, found: bytes) -> Any:
        """Returns the answer to a request of that name."""
        answer, version = message(f"{name}Response"), cls.versions[name]
        return answer.decode(found, version, 4 + answer_start(answer, version))

    async def _ask(self, name: str, *, check: Callable[[Any], None] | None = None, **fields: Any) -> Any:
        """Asks the presumed coordinator. Raises :class:`Elsewhere`."""
        frame = self._frame(name, **fields)
        told: asyncio.Future[bytes] = self.process.create_future()

        def read(found: bytes) -> Any:
            return self.read(name, found)

        self.history.deliver(self, frame, told, lambda found: check(read(found)) if check is not None else None)
        limit_s = REBALANCE_MS / 1000 + 10.0 if name == "JoinGroup" else self.request_s
        try:
            async with asyncio.timeout(limit_s):
                found = await told
        except TimeoutError:
            raise Elsewhere from None
        return read(found)
