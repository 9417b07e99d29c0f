"""Managed groups: the elected coordinator assigns their partitions, and ZooKeeper keeps their state.

:class:`ManagedGroup` turns the requests of stock clients, of either protocol, into requests of members
(:mod:`~kafka_coord.frontends.kafka.managed.terms`), and those of tools into requests to the elected coordinator.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from msgspec import structs

from kafka_coord.channel.messages import Register
from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import NO_MEMBER, Join, Joined, Synced
from kafka_coord.classic_groups.machine import NO_LIMIT, GroupLimits
from kafka_coord.classic_groups.metadata import CONSUMER, GroupMetadata
from kafka_coord.errors import InvalidPattern, StoreError
from kafka_coord.frontends.kafka.client_assigned import ToolCommits
from kafka_coord.frontends.kafka.group import (
    Assignments,
    By,
    Commit,
    ConsumerBeat,
    Described,
    Fetched,
    GroupError,
    Listed,
    Partition,
    PartitionErrors,
    Who,
    refuse,
    take_out_large,
    take_out_negative,
)
from kafka_coord.frontends.kafka.managed import classic, heartbeats
from kafka_coord.frontends.kafka.managed.administration import Administration, Admitted
from kafka_coord.frontends.kafka.managed.heartbeats import JOIN, ConsumerHeartbeat, HeartbeatAnswer
from kafka_coord.frontends.kafka.managed.member import MemberCommit
from kafka_coord.frontends.kafka.managed.members import consumer_name
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.frontends.kafka.managed.topics import ManagedTopics
from kafka_coord.frontends.kafka.managed.views import ASSIGNORS, GroupView, described_as_classic
from kafka_coord.frontends.members.registering import Refusal, registration_value, too_large
from kafka_coord.grouplog.manager import GroupMetadataManager, Offsets
from kafka_coord.model import CommittedOffset, Member, PartitionSet, TopicPartition
from kafka_coord.model.names import is_legal
from kafka_coord.wire.consumer_protocol import assignment, subscription

log = logging.getLogger(__name__)

_SEEN_WITHIN_S, _SEEN_CHECK_S, _ADMITTED_CHECK_S = 3.0, 0.1, 0.01
"""How long a commit waits until the mirror has its topic, and how often it looks, in seconds."""


class ManagedGroups:
    """The managed groups that this instance serves. ``broker_id`` identifies this instance, and ``manager`` proves that
    it still serves them. ``limits`` apply to classic clients."""

    type = CONSUMER
    """The groups' type in ListGroups."""

    def __init__(
        self,
        terms: ManagedTerms,
        administration: Administration,
        manager: GroupMetadataManager,
        broker_id: int,
        limits: GroupLimits,
    ) -> None:
        self.terms, self.administration, self.manager = terms, administration, manager
        self.broker_id, self.limits = broker_id, limits
        self.groups, self.knows, self.members = terms.groups, terms.knows, terms.members
        self.tool_commits = ToolCommits()
        self.group = partial(ManagedGroup, self)

    async def is_gone(self, name: str) -> bool:
        return self.knows(name) and name not in self.groups

    async def listed(self, names: Sequence[str], *, with_states: bool) -> list[Listed]:
        """Returns the groups as ListGroups shows them. Reads their states only if asked to."""
        states = await self.administration.states(names) if with_states and names else {}
        return [Listed(name, CONSUMER, states.get(name, ""), self.type) for name in names]

    async def stored(self, name: str) -> tuple[Error, Offsets]:
        """Returns all stored offsets of the group, and an error if any cannot be read."""
        error, fetched = await self.terms.fetch(name, None, None)
        return Error.UNKNOWN_SERVER_ERROR if fetched.damaged else error, fetched.offsets

    def registered(self, name: str, member: Member, member_id: str, client: _Client) -> bytes:
        """Returns the value of the registration of a client that becomes a member, including what is known about the
        client. Raises :class:`CannotBeMember`."""
        member = structs.replace(
            member,
            client=client.id or None,
            host=client.host,
            software=client.software or None,
            process=process_of(member_id),
        )
        register = Register(name, member, auto_commit=False, resume_key=member_id)
        now_ms, nonce = time.time_ns() // 1_000_000, secrets.token_hex(8)
        value = registration_value(register, self.broker_id, client.address, now_ms, nonce)
        refusal = too_large(value)
        if isinstance(refusal, Refusal):
            raise CannotBeMember(refusal.message)
        return value

    def admitted(self, name: str, group: GroupMetadata) -> list[Admitted]:
        """Returns what makes the members of a client-assigned group members of the managed group of this name. Raises
        :class:`CannotBeMember`."""
        asked = ManagedGroup(self, name, lambda: None)
        members = []
        for one in group.members.values():
            offers = group.protocol_type or "", one.protocols
            times = one.session_timeout_s, one.rebalance_timeout_s
            join = Join(
                None, one.member_id, one.instance_id, one.client_id, one.client_host, *times, *offers, one.member_id
            )
            host = one.client_host.removeprefix("/")
            try:
                request = asked.registering(join, one.member_id, _Client(one.client_id, host, "", host))(None)
            except CannotBeMember as reason:
                raise CannotBeMember(f"member {one.name}: {reason}") from None
            found = assignment(one.assignment)
            held = found.assigned_partitions if found is not None else ()
            owned = PartitionSet.of(TopicPartition(part.topic, number) for part in held for number in part.partitions)
            former = request.key, one.member_id, request.is_static, request.session_timeout_s, request.registration
            members.append(Admitted(*former, owned, process_of(one.member_id), classic.Beat))
        return members

    def admitted_consumer(self, name: str, one: Any, rebalance_timeout_ms: int) -> Admitted:
        """Returns what makes a KIP-848 member of the brokers' group, as they describe it, a member of the managed group
        of this name. Raises :class:`GroupError`."""
        topics = ManagedTopics(frozenset(one.subscribed_topic_names), one.subscribed_topic_regex or None)
        who, host = Who(one.member_id, one.instance_id), one.client_host.removeprefix("/")
        told = ConsumerBeat(who, topics, None, None, one.rack_id, rebalance_timeout_ms, "")
        asked, consumer = ManagedGroup(self, name, lambda: None), consumer_name(one.instance_id or one.member_id)
        registration = asked.registration(told, _legal_topics(topics), consumer, _Client(one.client_id, host, "", host))
        former = (name, consumer), one.member_id, one.instance_id is not None
        held, process = PartitionSet.of(partitions_of(one.assignment)), process_of(one.member_id)
        return Admitted(*former, self.terms.session_timeout_s, registration, held, process, ConsumerHeartbeat)

    async def resume(self, name: str, members: Sequence[Admitted], generation: int) -> None:
        """Returns once the members that were admitted can act as if they had always been members of this group. Gives
        up after a while: then they join again."""
        self.groups.add(name)
        self.terms.look(name)
        consumers = {one.key[1] for one in members}
        with suppress(TimeoutError):
            async with asyncio.timeout(_SEEN_WITHIN_S):
                await self.administration.look(name)
                while not consumers.issubset(await self.terms.members(name) or ()):
                    await asyncio.sleep(_ADMITTED_CHECK_S)
                await asyncio.gather(
                    *(self.terms.take(name, one.member_id, partial(one.beat, generation), None) for one in members)
                )


def partitions_of(assignment: Any) -> list[TopicPartition]:
    """Returns the partitions of an assignment of a KIP-848 member, which the brokers describe in any order, sorted."""
    return sorted(
        TopicPartition(one.topic_name, number) for one in assignment.topic_partitions for number in one.partitions
    )


def process_of(member_id: str) -> str:
    """Returns what identifies a client's process. The id itself is what lets it act."""
    return hashlib.sha256(member_id.encode()).hexdigest()[:32]


class _Client(NamedTuple):
    id: str
    host: str
    software: str
    address: str

    @classmethod
    def of(cls, by: By) -> _Client:
        return cls(by.client_id, by.client.host, by.client.software, by.client.address)


class CannotBeMember(Exception):
    """A classic client cannot become a member of a managed group."""


class ManagedGroup:
    """One managed group. ``check`` raises an error if this instance does not serve it any more, or serves it as another
    kind."""

    __slots__ = ("_check", "_groups", "_terms", "name")

    def __init__(self, groups: ManagedGroups, name: str, check: Callable[[], None]) -> None:
        self.name, self._groups, self._terms, self._check = name, groups, groups.terms, check

    # --- members of the classic protocol -----------------------------------------------------------------------------

    async def join(self, join: Join, by: By) -> Joined:
        limits = self._groups.limits
        if not limits.min_session_timeout_s <= join.session_timeout_s <= limits.max_session_timeout_s:
            raise GroupError(Error.INVALID_SESSION_TIMEOUT)
        member_id = join.member_id or join.fresh_id
        await self._require_room(consumer_name(join.instance_id or member_id), limits.max_size)
        if join.member_id and join.instance_id is None and not is_legal(consumer_name(member_id)):
            return Joined(None, Error.UNKNOWN_MEMBER_ID, NO_MEMBER)  # a broker's longer id: the client asks for another
        try:
            request = self.registering(join, member_id, _Client.of(by))
        except CannotBeMember as reason:
            log.warning(
                "refused a classic client group=%s client=%r address=%s reason=%s",
                *(self.name, by.client_id, by.client.address, reason),
            )
            raise GroupError(Error.INCONSISTENT_GROUP_PROTOCOL) from None
        if not join.member_id and join.must_know_id:
            return Joined(None, Error.MEMBER_ID_REQUIRED, member_id)
        joined: Joined = await self._terms.take(self.name, member_id, request, by.client, by.sender)
        return joined

    async def _require_room(self, consumer: str, most: int) -> None:
        """Refuses one more client in a group that has ``most`` of them already. This project's own consumers do not
        count."""
        if most >= NO_LIMIT:
            return
        members = await self._terms.members(self.name) or ()
        if len(members) >= most and consumer not in members:
            raise GroupError(Error.GROUP_MAX_SIZE_REACHED)

    def registering(self, join: Join, member_id: str, client: _Client) -> Callable[[object], classic.ClassicJoin]:
        """Returns a function that creates the request from a token. Raises :class:`CannotBeMember`."""
        offered = {one.name: one.metadata for one in join.protocols}
        assignor = next((name for name in offered if name in classic.ASSIGNORS), None)
        if join.protocol_type != CONSUMER or assignor is None:
            kind, names = join.protocol_type[:80], ", ".join(sorted(offered))[:200]
            raise CannotBeMember(
                f"it offers protocols {names!r} of type {kind!r}; a managed group needs type 'consumer' and one of"
                f" {', '.join(classic.ASSIGNORS)}"
            )
        subscribed = subscription(offered[assignor])
        if subscribed is None:
            raise CannotBeMember(f"its subscription for {assignor} cannot be read")
        is_static = join.instance_id is not None
        key = self.name, consumer_name(member_id if join.instance_id is None else join.instance_id)
        if not is_legal(key[1]):
            raise CannotBeMember(f"{key[1][:80]!r} is not a legal member id in a managed group")
        topics = ManagedTopics(frozenset(filter(is_legal, subscribed.topics)))
        session_ms, rebalance_s = round(join.session_timeout_s * 1000), max(0.0, join.rebalance_timeout_s)
        member = Member(
            key[1],
            0,
            topics.subscription(),
            rack=getattr(subscribed, "rack_id", None) or None,
            session_timeout_ms=session_ms,
            rejoin_grace_ms=session_ms if is_static else 0,
            protocol=classic.PROTOCOL,
            rebalance_timeout_ms=round(rebalance_s * 1000),
        )
        owned = frozenset(
            TopicPartition(one.topic, number) for one in subscribed.owned_partitions for number in one.partitions
        )
        return partial(
            classic.ClassicJoin,
            key=key,
            member_id=member_id,
            is_static=is_static,
            is_new=not join.member_id,
            assignor=assignor,
            topics=topics,
            owned=owned if assignor == classic.COOPERATIVE else frozenset(),
            session_timeout_s=join.session_timeout_s,
            rebalance_timeout_s=rebalance_s,
            registration=self._groups.registered(self.name, member, member_id, client),
            generation=subscribed.generation_id,
            offers=join.protocols,
            instance_id=join.instance_id,
        )

    async def sync(self, who: Who, assignments: Assignments, by: By) -> Synced:
        is_ours = assignments.protocol_type in {None, CONSUMER}
        member, assignor = self._member(who), assignments.protocol_name if is_ours else ""  # no member's assignor
        synced: Synced = await self._terms.take(
            self.name,
            who.member_id,
            lambda token: classic.ClassicSync(token, *member, who.generation_id, assignor),
            by.client,
        )
        return synced

    async def heartbeat(self, who: Who, software: str, by: By) -> None:
        member = self._member(who)
        answer = await self._terms.take(
            self.name,
            who.member_id,
            lambda token: classic.Beat(token, *member, who.generation_id, software),
            by.client,
        )
        refuse(answer.error)

    async def leave(self, leaving: Sequence[tuple[str, str | None]], by: By) -> Sequence[Error]:
        return await asyncio.gather(*(self._leave_one(Who(*one), by) for one in leaving))

    async def _leave_one(self, who: Who, by: By) -> Error:
        if not who.member_id and who.instance_id is None:
            return Error.UNKNOWN_MEMBER_ID
        try:
            member = self._member(who)
        except GroupError as refusal:
            return refusal.error
        answer = await self._terms.take(
            self.name, who.member_id, lambda token: classic.ClassicLeave(token, *member), by.client, by.sender
        )
        error: Error = answer.error
        return error

    def _member(self, who: Who) -> tuple[tuple[str, str], str, bool]:
        """Returns the member's key, its id, and whether it is static. Raises :class:`GroupError` if the instance id is
        that of no member, whoever sends it: only a dynamic member's name is its id."""
        is_static = who.instance_id is not None
        name = consumer_name(who.member_id if who.instance_id is None else who.instance_id)
        if is_static and name in {"", consumer_name(who.member_id)}:
            raise GroupError(Error.UNKNOWN_MEMBER_ID)
        return (self.name, name), who.member_id, is_static

    # --- members of KIP-848 ------------------------------------------------------------------------------------------

    async def consumer_heartbeat(self, beat: ConsumerBeat, by: By) -> HeartbeatAnswer:
        member_id, instance_id, epoch = beat.who
        consumer = consumer_name(instance_id or member_id)
        if not is_legal(self.name):
            raise GroupError(Error.INVALID_GROUP_ID, f"{self.name[:80]!r} is not a legal name for a managed group")
        if not is_legal(consumer):
            raise GroupError(Error.INVALID_REQUEST, f"{consumer[:80]!r} is not a legal member id in a managed group")
        topics = _legal_topics(beat.topics)
        request = partial(
            ConsumerHeartbeat,
            key=(self.name, consumer),
            member_id=member_id,
            epoch=epoch,
            owned=beat.owned,
            topics=topics,
            registration=self.registration(beat, topics, consumer, _Client.of(by)),
            is_static=instance_id is not None,
            software=beat.software,
            is_new=beat.is_new,
        )
        if epoch == JOIN:
            await self._require_room(consumer, self._groups.limits.consumer_max_size)
        sender = by.sender if epoch <= JOIN else ""
        answer: HeartbeatAnswer = await self._terms.take(self.name, member_id, request, by.client, sender)
        if answer.error is not Error.NONE:
            raise GroupError(answer.error, answer.message)
        return answer

    def registration(self, beat: ConsumerBeat, topics: ManagedTopics, consumer: str, client: _Client) -> bytes:
        """Returns the registration of a member that says its subscription, and nothing for any other."""
        session_timeout_ms = round(self._terms.session_timeout_s * 1000)
        if not topics.is_told:
            return b""
        try:
            member = Member(
                consumer,
                0,
                topics.subscription(),
                assignor=None if beat.assignor is None else ASSIGNORS[beat.assignor],
                rack=beat.rack or None,
                session_timeout_ms=session_timeout_ms,
                rejoin_grace_ms=0 if beat.who.instance_id is None else session_timeout_ms,
                protocol=heartbeats.PROTOCOL,
                rebalance_timeout_ms=max(0, beat.rebalance_timeout_ms),
            )
            return self._groups.registered(self.name, member, beat.who.member_id, client)
        except (InvalidPattern, CannotBeMember) as error:
            raise GroupError(Error.INVALID_REQUEST, str(error)) from None

    # --- offsets -----------------------------------------------------------------------------------------------------

    async def commit(self, commit: Commit, by: By) -> PartitionErrors:
        offsets = dict(commit.offsets)
        errors: dict[Partition, Error] = take_out_large(offsets, self._groups.limits.offset_metadata_chars)
        errors |= take_out_negative(offsets)
        by_partition = {TopicPartition(*where): one for where, one in offsets.items()}
        who = commit.who
        if who.generation_id < 0 and not who.member_id:
            return errors | await self._gone(await self._commit_of_tool(by_partition, by) if offsets else ())
        if self._terms.protocol_of(self.name, who.member_id) == heartbeats.PROTOCOL:
            if not commit.knows_epochs:
                raise GroupError(Error.UNSUPPORTED_VERSION)
            who = who._replace(instance_id=None)  # as in Kafka, the id and the epoch say enough
        member, connection = self._member(who), by.client.number
        values = {tp: one.offset for tp, one in by_partition.items()}
        details = {tp: one for tp, one in by_partition.items() if not one.is_bare}
        committed = await self._terms.commit(
            self.name,
            lambda token: MemberCommit(token, *member, who.generation_id, connection, values, details),
        )
        gone = await self._gone([where for where in offsets if where[0] in committed.topics])
        if committed.error is not Error.NONE:
            return dict.fromkeys(commit.offsets, committed.error) | gone
        return errors | gone

    async def _gone(self, refused: Collection[Partition]) -> dict[Partition, Error]:
        """Returns the errors of partitions whose offsets have no znode: they are gone, or the elected coordinator has
        not seen them yet."""
        unseen = await self._groups.manager.topics.unseen(refused)
        return {
            where: Error.COORDINATOR_NOT_AVAILABLE if where in unseen else Error.UNKNOWN_TOPIC_OR_PARTITION
            for where in refused
        }

    async def _commit_of_tool(
        self, offsets: Mapping[TopicPartition, CommittedOffset], by: By
    ) -> frozenset[TopicPartition]:
        """Commits offsets that no member sent. Returns the partitions that do not exist. Refuses all while the group
        has members, as Kafka does. A tool that commits all the time, as MirrorMaker does, does not fill the group's
        history."""
        administration, commits = self._groups.administration, self._groups.tool_commits
        try:
            members = (await administration.registered(self.name)).protocols
        except StoreError as error:
            log.warning("cannot read the members of group=%s: %s", self.name, error)
            raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None
        if members:
            raise GroupError(Error.UNKNOWN_MEMBER_ID)
        late = time.monotonic() + _SEEN_WITHIN_S
        while await self._groups.manager.topics.unseen(offsets):  # librdkafka does not always repeat such a commit
            if time.monotonic() > late:
                raise GroupError(Error.COORDINATOR_NOT_AVAILABLE)
            await asyncio.sleep(_SEEN_CHECK_S)
        before = await self._offsets_before()
        changes = [(before.get(tp), one.offset) for tp, one in offsets.items()]
        is_news = commits.is_news_of_managed(by, self.name, changes, time.monotonic())
        refused, gone = await administration.set_offsets(
            self.name, offsets, by.sender, before=before, is_recorded=is_news
        )
        refuse(refused)
        return gone

    async def _offsets_before(self) -> Mapping[TopicPartition, int]:
        """Returns the group's offsets, for the history. Returns none if they cannot be read."""
        _, stored = await self._groups.stored(self.name)
        return {TopicPartition(*where): one.offset for where, one in stored.items()}

    async def fetch_offsets(self, partitions: Collection[Partition] | None, member: tuple[str, int] | None) -> Fetched:
        wanted = None if partitions is None else [TopicPartition(*where) for where in partitions]
        error, fetched = await self._terms.fetch(self.name, wanted, member)
        await self._prove()
        refuse(error)
        return fetched

    async def _prove(self) -> None:
        refuse(await self._groups.manager.prove(self.name))
        self._check()

    async def delete_offsets(self, partitions: Sequence[Partition], by: By) -> PartitionErrors:
        subscribed = await self._subscribed({topic for topic, _ in partitions})
        errors = {where: Error.GROUP_SUBSCRIBED_TO_TOPIC for where in partitions if where[0] in subscribed}
        chosen = [where for where in partitions if where not in errors]
        if chosen:
            error = await self._groups.administration.delete_offsets(
                self.name, [TopicPartition(*where) for where in chosen], by.sender, await self._offsets_before()
            )
            errors |= dict.fromkeys(chosen, error)
        return errors

    async def _subscribed(self, topics: Iterable[str]) -> frozenset[str]:
        try:
            return await self._groups.administration.subscribed(self.name, topics)
        except StoreError as failed:
            log.warning("cannot read the members of group=%s: %s", self.name, failed)
            raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None

    # --- the whole group ---------------------------------------------------------------------------------------------

    async def describe(self) -> Described:
        return described_as_classic(await self._view())

    async def describe_consumers(self) -> GroupView:
        return await self._view()

    async def _view(self) -> GroupView:
        await self._prove()
        view = await self._groups.administration.view(self.name)
        refuse(view.error)
        return view

    async def delete(self, by: By) -> None:
        refuse(await self._groups.administration.delete(self.name, by.sender))


def _legal_topics(topics: ManagedTopics) -> ManagedTopics:
    """Returns the subscription without illegal topic names. Raises :class:`GroupError` if its regular expression is
    invalid."""
    if topics.regex:
        try:
            ManagedTopics(regex=topics.regex).subscription()
        except InvalidPattern as error:
            raise GroupError(Error.INVALID_REGULAR_EXPRESSION, str(error)) from None
    return topics if topics.names is None else topics._replace(names=frozenset(filter(is_legal, topics.names)))
