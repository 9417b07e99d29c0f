"""Kafka members on a membership machine, in stories: without a clock, sockets or ZooKeeper."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from kafka_coord.channel.messages import Code
from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import Joined, Synced
from kafka_coord.frontends.kafka.managed.classic import COOPERATIVE, Beat, ClassicJoin, ClassicLeave, ClassicSync
from kafka_coord.frontends.kafka.managed.heartbeat_hold import NOT_HELD_S
from kafka_coord.frontends.kafka.managed.heartbeats import (
    JOIN,
    LEAVE,
    LEAVE_FOR_NOW,
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from kafka_coord.frontends.kafka.managed.member import MemberCommit, MemberRequest
from kafka_coord.frontends.kafka.managed.members import KafkaMembers
from kafka_coord.frontends.kafka.managed.terms import Served
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.members.machine import instructions, stimuli
from kafka_coord.frontends.members.machine.stimuli import MemberId, RegistrationOptions
from kafka_coord.frontends.members.registering import Refusal
from kafka_coord.model import (
    CommandId,
    CommittedOffset,
    PartitionSet,
    StartFetcher,
    StartPoint,
    StopFetcher,
    TopicPartition,
)
from kafka_coord.model.assignment import CommandType
from kafka_coord.wire.consumer_protocol import assignment
from tests.frontends.machine.house import House
from tests.stories import Stage

SESSION_S, REBALANCE_S = 45.0, 60.0
GROUP, TOPIC, ID = "delays", "flights", b"flights-id"
_EPOCHS = {"join": JOIN, "leave": LEAVE, "leave-for-now": LEAVE_FOR_NOW}


class Managed(Stage):
    """The members of a group. Their registrations succeed at once. The methods below are the commands of stories; a
    partition is a number, or ``fares-0`` in another topic. A request that is not answered at once ``waits``."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House()
        self.identities: dict[str, bytes] = {TOPIC: ID}
        self.topic_ids: dict[str, bytes] = {}
        """The topic ids in the ledger of each member, by topic."""
        self.members = KafkaMembers(self.house.machine, self.identities.get, session_timeout_s=SESSION_S)
        self.taken: set[str] = set()
        self._groups = set[str]()
        self.stores: list[instructions.WriteMember] = []
        self.shares: dict[str, PartitionSet] = {}
        self._outstanding: tuple[CommandId, ...] = ()
        self._newest: int | None = 5
        """These two are the commands and the generation in ZooKeeper of a member of an earlier term."""
        self._tokens, self._incarnations = itertools.count(1), itertools.count(500)
        self._asking: dict[object, str] = {}
        """The unanswered requests: the name of each one's client."""
        self._last: dict[str, int] = {}
        """The last request of each client."""
        self._asked = 0

    def does(self, command: str) -> list[str]:
        self._asked = 0
        happened = super().does(command)
        return [*happened, "waits"] if self._asked in self._asking else happened

    def _pump(self) -> None:
        """Passes instructions and answers on until none are left."""
        while True:
            for one in (found := self.house.taken(object)):
                if isinstance(one, get_args(instructions.ToClient)):
                    Served._pass_to_members(self, one, self.topic_ids)  # type: ignore[arg-type]
                elif isinstance(one, instructions.WriteRegistration) and one.wanted.consumer in self.taken:
                    refusal = Refusal(Code.DUPLICATE_CONSUMER, "another consumer is using it")
                    self.house.tell(stimuli.RegistrationFailed(one.wanted, refusal))
                elif isinstance(one, instructions.WriteRegistration):
                    member = MemberId(GROUP, one.wanted.consumer, next(self._incarnations))
                    self.house.tell(stimuli.RegistrationWritten(one.wanted, member))
                elif isinstance(one, instructions.ReadMember):
                    self.house.tell(self._read(one.member))
                elif isinstance(one, instructions.WriteMember):
                    self.stores.append(one)
                    self.said.append(_written(one))
            arrived, answers = self.members.take()
            self.house.tell(*arrived)
            self.said += [_answer(self._asking.pop(answer.token), answer) for answer in answers]
            if not arrived and not found:
                return

    def _ask(self, who: str, request: MemberRequest | MemberCommit, how: Iterable[str] = ()) -> None:
        """``how`` may say ``unwritten``: ZooKeeper does not accept what a commit or a SyncGroup writes, or ``unread``:
        the machine does not get the request yet."""
        self._asking[request.token] = who
        if isinstance(request, MemberCommit):
            self.members.commit(request, self.house.now)
        else:
            self.members.arrived(request, self.house.now)
        if "unread" not in how:
            self._pump()
        while self.stores and "unwritten" not in how and isinstance(request, MemberCommit | ClassicSync):
            self.stored()

    def _from(self, who: str, instance: str) -> tuple[int, tuple[str, str], str, bool]:
        """The first fields of a request."""
        self._asked = self._last[who] = next(self._tokens)
        return self._asked, (GROUP, instance or who), who, bool(instance)

    def _read(self, member: MemberId) -> stimuli.MemberRead:
        return stimuli.MemberRead(member, partitions("0,1"), self._outstanding, "", self._newest)

    def _read_target(self) -> None:
        for group in self.members.groups_joining():
            self.members.target_read(group, self.shares)
        self._pump()

    def _id(self, consumer: str) -> MemberId:
        return self.house.machine.members[GROUP, consumer].id

    # --- requests of clients -----------------------------------------------------------------------------------------

    def beats(self, who: str, epoch: str, *how: str, owned: str | None = None, instance: str = "", **more: str) -> None:
        """A heartbeat of a KIP-848 member. ``whole``: with its subscription. ``new``: the client has no id yet."""
        number = _EPOCHS[epoch] if epoch in _EPOCHS else int(epoch)
        names = frozenset({TOPIC}) if number == JOIN or "whole" in how else None
        reports = None if owned is None and number != JOIN else by_id(partitions(owned or ""))
        topics, software = ManagedTopics(names, more.get("regex")), _software(more.get("software", ""))
        said = *self._from(who, instance), number, reports, topics
        beat = ConsumerHeartbeat(*said, software=software, is_new="new" in how)
        self._ask(who, beat, how)

    def joins(self, who: str, *how: str, owned: str = "", instance: str = "", **more: str) -> None:
        """A JoinGroup of a classic client. ``new``: the client has no member id yet."""
        topics = ManagedTopics(frozenset(more.get("topics", TOPIC).split(",")))
        what = more.get("assignor", COOPERATIVE), topics, partitions(owned), SESSION_S, REBALANCE_S, b""
        self._ask(who, ClassicJoin(*self._from(who, instance), *what, is_new="new" in how))
        self._read_target()

    def syncs(self, who: str, generation: str, *how: str, instance: str = "") -> None:
        self._ask(who, ClassicSync(*self._from(who, instance), int(generation)), how)

    def pings(self, who: str, generation: str, software: str = "java", instance: str = "") -> None:
        """A Heartbeat of a classic client."""
        self._ask(who, Beat(*self._from(who, instance), int(generation), _software(software)))

    def leaves(self, who: str, instance: str = "") -> None:
        self._ask(who, ClassicLeave(*self._from(who, instance)))

    def commits(self, who: str, epoch: str, offset: str, *how: str, partition: str = "0", **more: str) -> None:
        offsets = dict.fromkeys(partitions(partition), int(offset))
        said = CommittedOffset(int(offset), int(more.get("leader", -1)), more.get("metadata", ""))
        details = dict.fromkeys(offsets, said) if more.keys() & {"leader", "metadata"} else {}
        by = self._from(who, more.get("instance", ""))
        self._ask(who, MemberCommit(*by, int(epoch), int(more.get("on", 0)), offsets, details), how)

    def interrupted(self, who: str, *, by: str = "") -> None:
        """The client has sent another request after its last one, or after the one that is named."""
        self.members.interrupted(GROUP, who, by or self._last[who], self.house.now)
        self._pump()

    def gone(self, who: str, *how: str, late: str = "0") -> None:
        """The connection of the client's last request is lost, and that is noticed late."""
        at = self.house.now + float(late)
        self.members.gone(GROUP, who, self._last[who], at, by_client="by-client" in how)
        self._pump()

    # --- the coordinator and ZooKeeper -------------------------------------------------------------------------------

    def start(self, consumer: str, generation: str, which: str, *how: str) -> None:
        member = self._id(consumer)
        points = {one: StartPoint(0, later="later" in how) for one in partitions(which)}
        self.house.send(member, StartFetcher(int(generation), 1, member.incarnation, points, "test"))
        self._pump()

    def stop(self, consumer: str, generation: str, which: str) -> None:
        member, stopped = self._id(consumer), PartitionSet.of(partitions(which))
        self.house.send(member, StopFetcher(int(generation), 1, member.incarnation, stopped, "test"))
        self._pump()

    def target(self, **shares: str) -> None:
        """Sets the group's target, which the members read while one of them waits for its share."""
        self.shares = {consumer: PartitionSet.of(partitions(which)) for consumer, which in shares.items()}
        self._read_target()

    def stored(self, *how: str) -> None:
        """ZooKeeper accepts all writes, or has ``failed``."""
        written, self.stores = self.stores, []
        for store in written:
            self.house.written(store, stimuli.Trouble.FAILED if "failed" in how else None)
        self._pump()

    def deleted(self, consumer: str) -> None:
        """The registration is deleted. A member that is read at that time is told of both at once."""
        self.house.tell(*self.members.take()[0])
        read = [self._read(one.member) for one in self.house.taken(instructions.ReadMember)]
        self.house.tell(*read, stimuli.RegistrationDeleted(self._id(consumer)))
        self._pump()

    def ids(self, **ids: str) -> None:
        """Topics have other ids from now on, or none."""
        self.identities.update({topic: id_.encode() for topic, id_ in ids.items()})
        for topic in [topic for topic, id_ in ids.items() if not id_]:
            del self.identities[topic]

    def ledger(self, **ids: str) -> None:
        """The ids of topics in the members' ledgers."""
        self.topic_ids = {topic: id_.encode() for topic, id_ in ids.items()}

    def earlier(self, *consumers: str, protocol: str = "consumer", key: str = "") -> None:
        """The term finds members of an earlier one, with partitions 0 and 1 and generation 5."""
        for name in consumers:
            options = RegistrationOptions(SESSION_S, False, key or name, protocol)
            self.house.tell(stimuli.MemberFound(MemberId(GROUP, name, 7), options))

    def name(self, consumer: str, *how: str) -> None:
        """``taken``: a consumer of this project, which is no member of the machine, has the name. ``free``: it left."""
        (self.taken.add if "taken" in how else self.taken.discard)(consumer)

    def outstanding(self, kind: str) -> None:
        self._outstanding = (self.house.command_id(CommandType(f"{kind}-fetcher")),)

    def unreadable(self, what: str) -> None:
        assert what == "generation"
        self._newest = None

    def ends(self, what: str) -> None:
        assert what == "term"
        self.members.end()
        self._pump()

    # --- time --------------------------------------------------------------------------------------------------------

    def wait(self, seconds: str) -> None:
        end = self.house.now + float(seconds)
        while self.house.now < end:
            self.house.now = min(end, self.house.now + 0.25)
            self.house.step()
            self.members.tick(self.house.now)
            self._pump()

    def suspended(self, seconds: str, *how: str) -> None:
        """The instance does nothing for a while. If it ``wakes``, its timers are due."""
        self.house.now += float(seconds)
        if "wakes" in how:
            self.members.tick(self.house.now)
            self._pump()

    # --- questions ---------------------------------------------------------------------------------------------------

    def leader(self, what: str) -> None:
        assert what == "epochs"
        known = sorted(self.members.leader_epochs(GROUP).items())
        self.said += [f"{_number(at)}: {one.leader_epoch} at {one.offset}" for at, one in known] or ["none"]

    def heard(self) -> None:
        left = self.members.left_ms(self.house.now).items()
        self.said += [f"{name} {'heard' if ms is None else f'{ms} ms'}" for (_, name), ms in sorted(left)]

    def doubtful(self) -> None:
        self.said += sorted(self.members.doubtful)

    def due(self) -> None:
        self.said.append(f"in {self.members.due() - self.house.now:.2f} s")

    # --- beginnings, of which nothing is said ------------------------------------------------------------------------

    def holds(self, who: str, which: str, software: str = "") -> None:
        """A KIP-848 client joins and owns these partitions, with epoch 3."""
        self.beats(who, "join", software=software)
        self.target(**{who: which})
        self.start(who, "3", which)
        self.beats(who, "3", "whole", owned=which)
        self._begun()

    def has(self, who: str, which: str, assignor: str = COOPERATIVE, instance: str = "") -> None:
        """A classic client joins and gets these partitions, with generation 3."""
        self.joins(who, "new", assignor=assignor, instance=instance)
        self.start(instance or who, "3", which)
        self.syncs(who, "3", instance=instance)
        self._begun()

    def _begun(self) -> None:
        self.stored()
        assert any("acknowledges start" in one for one in self.said)
        self.said.clear()
        self._asked = 0


def partitions(numbers: str) -> frozenset[TopicPartition]:
    found = (one.rpartition("-") for one in numbers.split(",") if one)
    return frozenset(TopicPartition(topic or TOPIC, int(number)) for topic, _, number in found)


def _software(name: str) -> str:
    return {"java": "apache-kafka-java", "librdkafka": "librdkafka 2.8"}.get(name, name)


def by_id(which: Iterable[TopicPartition]) -> frozenset[tuple[bytes, int]]:
    return frozenset((f"{one.topic}-id".encode(), one.partition) for one in which)


def _number(one: TopicPartition) -> str:
    return str(one.partition) if one.topic == TOPIC else str(one)


def _numbers(which: Iterable[TopicPartition]) -> str:
    return f"[{','.join(_number(one) for one in sorted(which))}]"


def _offsets(offsets: Mapping[TopicPartition, int]) -> list[str]:
    return [f"{_number(at)}={offset}" for at, offset in sorted(offsets.items())]


def _written(store: instructions.WriteMember) -> str:
    details = (
        f"{_number(at)}: {one.leader_epoch} {one.metadata}".rstrip() for at, one in sorted(store.details.items())
    )
    parts = [
        *([f"acknowledges {store.acknowledges.type.partition('-')[0]}"] if store.acknowledges else []),
        *([f"leaves{' for good' * store.for_good} ({store.departure})"] if store.leaves else []),
        *([f"subscribes {store.subscription}"] if store.subscription else []),
        *_offsets(store.offsets),
        *(f"with {one}" for one in details),
    ]
    return f"{store.member.consumer} writes: {', '.join(parts) or 'nothing'}"


def _answer(who: str, answer: Any) -> str:
    name = (who or "an operator") if getattr(answer, "member_id", who) == who else f"{who} as {answer.member_id}"
    if answer.error is not Error.NONE:
        return f"{name}: {answer.error.name}"
    match answer:
        case HeartbeatAnswer():
            gets = ""
            if answer.assignment is not None:
                gets = f" {_numbers(answer.assignment)}"
                if answer.ids != by_id(answer.assignment):
                    gets += f" as {', '.join(f'{id_.decode()} {number}' for id_, number in sorted(answer.ids))}"
            due = "" if answer.interval_s == NOT_HELD_S else f", next in {answer.interval_s:.2f} s"
            return f"{name}: {answer.epoch}{gets}{due}"
        case Joined():
            leads = (
                f", under {answer.leader_id} with {len(answer.members)}" if answer.leader_id or answer.members else ""
            )
            return f"{name}: {answer.generation_id} {answer.protocol_name}{leads}"
        case Synced():
            topics = assignment(answer.assignment).assigned_partitions
            return f"{name}: {_numbers(TopicPartition(one.topic, p) for one in topics for p in one.partitions)}"
        case _:
            gone = f" without {', '.join(sorted(topics))}" if (topics := getattr(answer, "topics", ())) else ""
            return f"{name}: ok{gone}"
