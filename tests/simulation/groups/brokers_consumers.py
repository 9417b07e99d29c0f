"""The group of KIP-848 members that the simulated brokers coordinate, after Kafka's ``GroupMetadataManager`` and
``CurrentAssignmentBuilder``. A classic member may be among them, as the fence is."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, LEAVE_FOR_NOW
from kafka_coord.wire.messages import message
from tests.simulation.groups.clients import GROUP, SESSION_MS, TOPIC
from tests.simulation.groups.loop import World

CLASSIC, CONSUMER = 0, 1
"""The types of members in ConsumerGroupDescribe."""


@dataclass(slots=True, eq=False)
class Member:
    """One member. It may still read what ``revoked`` contains, until it says that it does not."""

    member_id: str
    client_id: str
    instance_id: str | None
    kind: int = CONSUMER
    protocols: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = -1
    rebalance_s: float = 0.0
    session_s: float = SESSION_MS / 1000
    subscribes: bool = False
    assigned: set[int] = field(default_factory=set)
    revoked: set[int] = field(default_factory=set)
    heard_at: float = 0.0
    revoked_at: float = math.inf

    @property
    def holds(self) -> set[int]:
        return self.assigned | self.revoked


class Refused(Exception):
    """The broker answers with an error."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.name)
        self.error = error


class BrokersConsumers:
    """All that is written is durable. ``topic_id`` returns the topic's id."""

    def __init__(self, world: World, partitions: Collection[int], topic_id: Callable[[], bytes]) -> None:
        self._world, self._partitions, self._topic_id = world, sorted(partitions), topic_id
        self.is_there = False
        """Whether the group exists. Otherwise, it is a classic one, or none."""
        self.members: dict[str, Member] = {}
        self.epoch = self.target_epoch = 0
        self.targets: dict[str, set[int]] = {}
        self._ids = iter(range(1 << 30))

    # --- KIP-848 members ---------------------------------------------------------------------------------------------

    def beat(self, request: Any, client_id: str) -> Any:
        """Answers a ConsumerGroupHeartbeat. Raises :class:`Refused`."""
        self.expire()
        form = message("ConsumerGroupHeartbeatResponse")
        if request.member_epoch < JOIN:
            self._leave(request)
            return form(member_id=request.member_id, member_epoch=request.member_epoch)
        owned = request.topic_partitions
        holds = None if owned is None else {number for one in owned for number in one.partitions}
        member, before = self._beating(request, client_id, holds)
        if request.rebalance_timeout_ms >= 0:
            member.rebalance_s = request.rebalance_timeout_ms / 1000
        if request.subscribed_topic_names is not None and member.subscribes != bool(request.subscribed_topic_names):
            member.subscribes = bool(request.subscribed_topic_names)
            self.epoch += 1
        self._assign()
        self._reconcile(member, holds)
        member.heard_at = self._world.now
        is_whole = request.member_epoch == JOIN or (owned is not None and request.subscribed_topic_names is not None)
        told = None
        if is_whole or member.assigned != before:
            part = form.struct("TopicPartitions")(topic_id=self._topic_id(), partitions=tuple(sorted(member.assigned)))
            told = form.struct("Assignment")(topic_partitions=(part,) if member.assigned else ())
        return form(member_id=member.member_id, member_epoch=member.epoch, assignment=told)

    def _beating(self, request: Any, client_id: str, holds: set[int] | None) -> tuple[Member, set[int]]:
        """Returns the member, and what it was assigned before."""
        member_id, epoch = request.member_id, request.member_epoch
        member = self.members.get(member_id)
        if member is None:
            if epoch != JOIN:
                raise Refused(Error.UNKNOWN_MEMBER_ID)
            member = self.members[member_id] = Member(member_id, client_id, request.instance_id)
            if request.instance_id is not None:
                self._replace(member)
        elif epoch != member.epoch:
            is_late = epoch == member.previous_epoch and holds is not None and holds <= member.assigned
            if not is_late:
                raise Refused(Error.FENCED_MEMBER_EPOCH)
        return member, set(member.assigned)

    def _replace(self, member: Member) -> None:
        """Gives a static member the place of the one before it, which must have left for a while."""
        former = next(
            (one for one in self.members.values() if one.instance_id == member.instance_id and one is not member), None
        )
        if former is None:
            return
        if former.epoch != LEAVE_FOR_NOW:
            del self.members[member.member_id]
            raise Refused(Error.UNRELEASED_INSTANCE_ID)
        del self.members[former.member_id]
        member.assigned, member.subscribes = former.assigned, former.subscribes
        self.targets[member.member_id] = self.targets.pop(former.member_id, set())

    def _leave(self, request: Any) -> None:
        member = self.members.get(request.member_id)
        if member is None or member.instance_id != request.instance_id:
            raise Refused(Error.UNKNOWN_MEMBER_ID)
        if request.member_epoch == LEAVE_FOR_NOW:
            member.epoch, member.revoked = LEAVE_FOR_NOW, set()
        else:
            self.remove(member)

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        self.epoch += 1

    def alone(self) -> Member | None:
        """Returns the classic member that is the only one."""
        (one, *others) = self.members.values() or (None,)
        return one if one is not None and one.kind == CLASSIC and not others else None

    def ends(self) -> None:
        """The group becomes a classic one."""
        self.members.clear()
        self.targets.clear()
        self.is_there, self.epoch, self.target_epoch = False, 0, 0

    def expire(self) -> None:
        """Removes who was not heard, or has not given up in time."""
        for member in list(self.members.values()):
            is_silent = self._world.now > member.heard_at + member.session_s and member.heard_at > 0
            if is_silent or self._world.now > member.revoked_at + member.rebalance_s:
                self.remove(member)

    def loaded(self) -> None:
        """Another broker coordinates the group from now on. It waits for everybody as long as their sessions."""
        for member in self.members.values():
            member.heard_at = self._world.now

    def _assign(self) -> None:
        """Assigns all partitions anew if the group has changed. Each stays where it is if that is fair."""
        if self.epoch == self.target_epoch:
            return
        self.target_epoch = self.epoch
        sharing = sorted(one.member_id for one in self.members.values() if one.subscribes)
        self.targets = {one: set() for one in self.members}
        most = math.ceil(len(self._partitions) / len(sharing)) if sharing else 0
        left = list(self._partitions) if sharing else []
        for member_id in sharing:
            stays = [one for one in left if one in self.members[member_id].holds][:most]
            self.targets[member_id].update(stays)
            left = [one for one in left if one not in stays]
        for one in left:
            self.targets[min(sharing, key=lambda member_id: len(self.targets[member_id]))].add(one)

    def _reconcile(self, member: Member, holds: set[int] | None) -> None:
        target = self.targets.get(member.member_id, set())
        if member.epoch == self.target_epoch and not member.revoked and member.assigned == target:
            return
        if member.revoked:
            if holds is None or holds & member.revoked:
                return
            member.revoked, member.revoked_at = set(), math.inf
        revoked = member.assigned - target
        if revoked and (holds is None or holds & revoked):
            member.assigned, member.revoked = member.assigned & target, revoked
            member.revoked_at = self._world.now
            return
        of_others = set().union(*(one.holds for one in self.members.values() if one is not member))
        member.assigned = target - of_others
        if member.epoch != self.target_epoch:
            member.previous_epoch, member.epoch = member.epoch, self.target_epoch

    def check_commit(self, member_id: str, epoch: int) -> None:
        """Raises :class:`Refused` unless a member with this epoch may commit."""
        member = self.members.get(member_id)
        if member is None:
            raise Refused(Error.UNKNOWN_MEMBER_ID)
        if epoch != member.epoch:
            raise Refused(Error.STALE_MEMBER_EPOCH)

    # --- classic members ---------------------------------------------------------------------------------------------

    def join(self, request: Any, client_id: str) -> Any:
        self.expire()
        former = next((one for one in self.members.values() if one.instance_id == request.group_instance_id), None)
        if former is not None and request.member_id not in {"", former.member_id}:
            raise Refused(Error.FENCED_INSTANCE_ID)
        if former is None and request.member_id:
            raise Refused(Error.UNKNOWN_MEMBER_ID)
        if former is not None and not request.member_id:
            del self.members[former.member_id]
            former = None
        if not any(one.metadata for one in request.protocols):
            raise Refused(Error.INCONSISTENT_GROUP_PROTOCOL)
        if former is None:
            member_id = request.member_id or f"{client_id}-{next(self._ids)}"
            former = self.members[member_id] = Member(member_id, client_id, request.group_instance_id, CLASSIC)
        self._assign()
        former.protocols = tuple(one.name for one in request.protocols)
        former.session_s, former.heard_at = request.session_timeout_ms / 1000, self._world.now
        self._reconcile(former, set())
        name = request.protocols[0].name
        return message("JoinGroupResponse")(
            member_id=former.member_id, generation_id=former.epoch, protocol_type="consumer", protocol_name=name
        )

    def classic(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None or member.kind != CLASSIC:
            raise Refused(Error.UNKNOWN_MEMBER_ID)
        member.heard_at = self._world.now
        return member

    def leave(self, who: Iterable[Any]) -> Any:
        form, left = message("LeaveGroupResponse"), []
        for one in who:
            found = [
                known
                for known in self.members.values()
                if known.kind == CLASSIC
                and (known.instance_id == one.group_instance_id or not one.group_instance_id)
                and one.member_id in {"", known.member_id}
            ]
            for member in found:
                self.remove(member)
            error = Error.NONE if found else Error.UNKNOWN_MEMBER_ID
            left.append(
                form.struct("MemberResponse")(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=error
                )
            )
        return form(members=tuple(left))

    # --- descriptions ------------------------------------------------------------------------------------------------

    def described(self) -> Any:
        self.expire()
        form = message("ConsumerGroupDescribeResponse")

        def assigned(partitions: Collection[int], *, reverse: bool = False) -> Any:
            of_topic, numbers = form.struct("TopicPartitions"), tuple(sorted(partitions, reverse=reverse))
            part = of_topic(topic_id=self._topic_id(), topic_name=TOPIC, partitions=numbers)
            return form.struct("Assignment")(topic_partitions=(part,) if partitions else ())

        members = tuple(
            form.struct("Member")(
                member_id=one.member_id,
                instance_id=one.instance_id,
                member_epoch=one.epoch,
                client_id=one.client_id,
                client_host="/h",
                subscribed_topic_names=(TOPIC,) if one.subscribes else (),
                assignment=assigned(one.assigned),
                # the same in any other order, because the broker has sets
                target_assignment=assigned(self.targets.get(one.member_id, ()), reverse=True),
                member_type=one.kind,
            )
            for one in self.members.values()
        )
        return form.struct("DescribedGroup")(
            group_id=GROUP,
            group_state=self._state(),
            group_epoch=self.epoch,
            assignment_epoch=self.target_epoch,
            assignor_name="uniform",
            members=members,
        )

    def _state(self) -> str:
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled: Mapping[str, bool] = {
            one.member_id: one.epoch == self.target_epoch and not one.revoked and one.assigned == self.targets.get(key)
            for key, one in self.members.items()
        }
        return "Stable" if all(settled.values()) else "Reconciling"
