"""Runs seeded histories in which a group of KIP-848 members is taken over into a managed group, and given back, under
faults. The instances, their terms of managed groups and the elected coordinator are the real ones."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import Group as Machine
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.frontends.kafka import answers
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN
from kafka_coord.frontends.kafka.moving import CONSUMER_TYPE, MoveRefused
from kafka_coord.frontends.kafka.native import FENCE, PassedOn
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.grouplog.records import topic_id_bytes
from kafka_coord.model import GroupKind, Request, RequestType
from kafka_coord.wire.frames import RequestHeader, answer_frame, read_header, request_frame
from kafka_coord.wire.messages import message
from kafka_coord.zk import layout
from tests.simulation.groups.brokers_consumers import BrokersConsumers, Member, Refused
from tests.simulation.groups.clients import GROUP
from tests.simulation.groups.conversions import Elected, ManagedFront
from tests.simulation.groups.history import BROKERS
from tests.simulation.groups.instances import Instance
from tests.simulation.groups.judge import InvariantBroken
from tests.simulation.groups.line import Line
from tests.simulation.groups.loop import Process
from tests.simulation.groups.moves import FAULTS as OF_MOVES
from tests.simulation.groups.moves import HERE, Broker, Front, MissingHistory, MoveHistory, played
from tests.simulation.groups.readers import SHARED, ConsumerReader

FAULTS = OF_MOVES - {"stranger"}
"""Nothing keeps a client behind the brokers' plain listener out of the group while the fence enters it."""
_APPENDS_S = 0.02
_BEATS = (68).to_bytes(2, "big")
_ALL = 4
"""The members and the fence, while a history's own group is being fenced."""


class ConsumersBroker(Broker):
    """A broker that knows KIP-848."""

    def __init__(self, history: ConsumerMoveHistory, broker: int) -> None:
        self.history, self._in_turn = history, asyncio.Lock()
        super().__init__(history, broker)

    async def answer(self, frame: bytes, line: Line) -> bytes | PassedOn:
        name, _ = LOCAL[int.from_bytes(frame[:2], "big")]
        form, version = message(f"{name}Request"), int.from_bytes(frame[2:4], "big")
        header, at = read_header(frame, flexible=version in form.flexible)
        request = form.decode(frame, version, at)
        is_new = name in {"ConsumerGroupDescribe", "ConsumerGroupHeartbeat"}
        if HERE not in self.manager.terms:
            if not is_new:
                return await super().answer(frame, line)
            leads = self.history.offsets_log.leader == self.broker
            found = _refused(name, Error.COORDINATOR_LOAD_IN_PROGRESS if leads else Error.NOT_COORDINATOR, request)
        else:
            async with self._in_turn:
                await self._become_classic()
                try:
                    found = self._handled(name, request, header)
                except Refused as refused:
                    found = _refused(name, refused.error, request)
                await self._become_classic()
        if found is None or isinstance(found, bytes):
            return await super().answer(found or frame, line)
        await asyncio.sleep(self.world.rng.uniform(0.001, _APPENDS_S))
        return answer_frame(header, message(f"{name}Response"), found)

    def _handled(self, name: str, request: Any, header: RequestHeader) -> Any:
        """Returns the answer, or ``None`` or another frame if the coordinator of classic groups answers."""
        group, client_id = self.history.consumers, header.client_id or ""
        classic = self.manager.group(GROUP)
        if classic is not None and classic.metadata.members:
            group.is_there = False
        match name:
            case "ConsumerGroupHeartbeat":
                if not group.is_there and (request.member_epoch != JOIN or (classic and classic.metadata.members)):
                    raise Refused(Error.GROUP_ID_NOT_FOUND)
                group.is_there = True
                return group.beat(request, client_id)
            case "ConsumerGroupDescribe":
                if not group.is_there:
                    raise Refused(Error.GROUP_ID_NOT_FOUND)
                return message("ConsumerGroupDescribeResponse")(groups=(group.described(),))
            case "JoinGroup" if group.is_there and not group.members:
                group.is_there = False
        if not group.is_there:
            return None
        match name:
            case "DescribeGroups":
                form = message("DescribeGroupsResponse")
                return form(groups=(form.struct("DescribedGroup")(group_id=GROUP, group_state=ClassicState.DEAD),))
            case "JoinGroup":
                return group.join(request, client_id)
            case "SyncGroup":
                group.classic(request.member_id)
                return message("SyncGroupResponse")(protocol_type=CONSUMER_TYPE, protocol_name=request.protocol_name)
            case "Heartbeat":
                group.classic(request.member_id)
                return message("HeartbeatResponse")()
            case "LeaveGroup":
                return group.leave(request.members)
            case "OffsetCommit" if group.members or request.member_id:
                group.check_commit(request.member_id, request.generation_id_or_member_epoch)
                request.member_id, request.group_instance_id, request.generation_id_or_member_epoch = "", None, -1
                return request_frame(header, message("OffsetCommitRequest"), request)[4:]
        return None

    async def _become_classic(self) -> None:
        """Makes the group a classic one once one classic member alone is left in it."""
        group = self.history.consumers
        alone = group.alone()
        if not group.is_there or alone is None or self.manager.add_group(GROUP) is None:
            return
        now = self.manager.now(GROUP)
        state = GROUP, ClassicState.STABLE, self.manager.now_ms(), group.epoch
        made = GroupMetadata(*state, protocol_name=alone.protocols[0])
        made.add(_classic(alone, now), CONSUMER_TYPE)
        if await self.manager.store_group(made, dict.fromkeys(made.members, b"")) is Error.NONE:
            self.manager.states[HERE].groups[GROUP] = Machine(made, self.manager.limits)
            group.ends()


def _classic(one: Member, now: float) -> MemberMetadata:
    who = one.member_id, one.instance_id, one.client_id, "/h", one.session_s, one.rebalance_s
    protocols = tuple(Protocol(name, b"") for name in one.protocols)
    return MemberMetadata(*who, protocols, b"", expires_at=now + one.session_s, is_new=False)


def _refused(name: str, error: Error, request: Any) -> Any:
    form = message(f"{name}Response")
    if name == "ConsumerGroupDescribe":
        return form(groups=(form.struct("DescribedGroup")(group_id=GROUP, error_code=error),))
    if name == "OffsetCommit":
        return answers.per_partition(name, request.topics, error)
    return form(error_code=error)


class ConsumerMoveHistory(MoveHistory):
    """``fronts`` serve managed groups, too."""

    front = ManagedFront
    broker = ConsumersBroker
    reader = ConsumerReader
    fronts: dict[int, ManagedFront]  # type: ignore[assignment]
    converting = None
    turmoil_s, calm_s = 12.0, 14.0

    def __init__(self, seed: int, faults: frozenset[str] = FAULTS) -> None:
        super().__init__(seed, faults)
        self.consumers = BrokersConsumers(self.world, SHARED, lambda: topic_id_bytes(self.topic.identity))
        self.elected = Elected(self)
        self.pace = 0.5 if seed % 2 else 2.0

    def _begin(self) -> None:
        self.readers += [self.reader(self, name) for name in ("a", "b", "c")[: self.rng.randint(1, 3)]]

    async def _ask_to_move(self, front: Front, verb: str) -> str:
        to = GroupKind.MANAGED if verb == "take_over" else GroupKind.NATIVE
        asked = Request(RequestType.CONVERT_GROUP, GROUP, to=to, by="alice")
        told = await front.coordinator.conversions.converted(asked)
        if told is None or told.result != "done":
            raise MoveRefused("its partition is coordinated elsewhere" if told is None else told.message)
        return told.message

    def _took_over(self, front: Front, began: float) -> None:
        """What its members may be told is judged by what they read."""

    # --- faults ------------------------------------------------------------------------------------------------------

    def _die(self, process: Process) -> None:
        super()._die(process)
        for front in self.fronts.values():
            front.store.dead = front.process.killed

    def _deafen(self, front: Front, for_s: float) -> None:
        super()._deafen(front, for_s)
        self._reconnect()

    def _hears(self, front: Front) -> None:
        super()._hears(front)
        self._reconnect()

    def _zookeeper(self) -> None:
        super()._zookeeper()
        self._reconnect()

    def _zookeeper_answers(self) -> None:
        super()._zookeeper_answers()
        self._reconnect()

    def _reconnect(self) -> None:
        for front in self.fronts.values():
            if front.deaf or self.net.without_zookeeper:
                front.store.disconnect()
            else:
                front.store.connect(front.store.replica)

    def _offsets_move_to(self, broker: int) -> None:
        super()._offsets_move_to(broker)
        self.consumers.loaded()

    def _broker_kill(self) -> None:
        super()._broker_kill()
        self.consumers.loaded()

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        super()._end_all()
        self._reconnect()

    def _at_rest(self) -> None:
        record = self.record()
        is_native = record is not None and record.kind is GroupKind.NATIVE
        fences = [one for one in self.consumers.members.values() if one.instance_id == FENCE]
        if fences:
            raise InvariantBroken("the fence is among KIP-848 members")
        if is_native and self.server_store.exists(layout.group(GROUP)):
            raise InvariantBroken("the group is native, and ZooKeeper has it still")
        for failure in self.elected.process.failures():
            raise InvariantBroken(failure)
        super()._at_rest()


class MissingConsumers(MissingHistory, ConsumerMoveHistory):
    """As :class:`MissingHistory`, with KIP-848 members."""


class UnheardHistory(ConsumerMoveHistory):
    """The group is taken over while its own coordinator is beside an instance that has no session: nobody waits until
    that has heard of the move. With ``in_flight``, it has one, but what one of its clients sends now arrives only while
    the fence enters."""

    def __init__(self, seed: int, *, in_flight: bool = False) -> None:
        super().__init__(seed, frozenset())
        self.is_native_first, self._in_flight, self._is_held = True, in_flight, False
        self.pace, self.calm = 0.5, True

    async def at_broker(self, front: Instance, broker: int, frame: bytes) -> bytes:
        last = self.readers[-1].member_id.encode() if self.readers else b""
        is_last = frame[:2] == _BEATS and last in frame and FENCE.encode() not in frame
        while is_last and self._is_held and not (self._is_fenced() and len(self.consumers.members) < _ALL):
            await asyncio.sleep(0.002)
        return await super().at_broker(front, broker, frame)

    def _begin(self) -> None:
        self.readers += [self.reader(self, name) for name in ("a", "b", "c")]

    def _is_fenced(self) -> bool:
        return any(one.instance_id == FENCE for one in self.consumers.members.values())

    def run(self) -> None:
        self._run(self.world.now + 4.0)
        broker = next(one for one in BROKERS if one not in {self.log.leader, self.offsets_log.leader})
        if not self._in_flight:
            self._deafen(self.fronts[broker], 60.0)
            self.registry.end(self.fronts[broker])
        self._offsets_move_to(broker)
        self._run(self.world.now + 2.0)
        self._is_held = self._in_flight
        self._run(self.world.now + self._in_flight)
        mover = self.fronts[self.log.leader]
        mover.process.start(lambda: self._moved(mover))
        while not (self.moved or self._is_fenced()):
            self._run(self.world.now + 0.01)
        self.slow, self._is_held = 1.0, self._is_held and not self.moved
        self._run(self.world.now + 8.0)


def play(seed: int, faults: frozenset[str] = FAULTS) -> tuple[str, ConsumerMoveHistory]:
    """Returns the violation ("" if there is none) and the history."""
    return played(ConsumerMoveHistory(seed, faults))
