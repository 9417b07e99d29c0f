"""Handles administrative requests about managed groups: shows and deletes groups, and changes their offsets.

:class:`Administration` reads from ZooKeeper, but asks the elected coordinator for every change, as this project's own
commands do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from kafka_coord.channel.offset_details import Owner, identity_reads, owners_of_offsets, write_details
from kafka_coord.channel.operations import Registration, recording
from kafka_coord.channel.zookeeper import ensure_group
from kafka_coord.classic_groups.errors import Error
from kafka_coord.coordinator.image import Image, Wanted, read_images
from kafka_coord.coordinator.start_offsets import remembered
from kafka_coord.errors import MalformedValue, MultiFailed, NodeExists, NoNode, StoreError
from kafka_coord.frontends.kafka.managed.member import MemberRequest
from kafka_coord.frontends.kafka.managed.terms import PROTOCOLS, ManagedTerms
from kafka_coord.frontends.kafka.managed.topics import TopicIds
from kafka_coord.frontends.kafka.managed.views import GroupView, KnownMember, State, state_of, topics_of
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.machine.stimuli import RegistrationOptions, RegistrationWanted
from kafka_coord.frontends.members.registering import Refusal, Registering, register_all
from kafka_coord.frontends.members.term import find_members
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import (
    Cause,
    CommittedOffset,
    Decision,
    Ledger,
    Member,
    PartitionSet,
    Request,
    RequestType,
    Subscription,
    TopicPartition,
    history_to_json,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import CONVERSION, offsets_change
from kafka_coord.model.sequences import parts
from kafka_coord.zk import layout
from kafka_coord.zk.fencing import write_fenced
from kafka_coord.zk.store import Check, Create, Delete, GetData, Node, Op, SetData, Store

log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long a tool waits for the coordinator's response, in seconds."""
_LOOK_AGAIN_S = 1.0
"""The interval, in seconds, at which the request is read again in case its watch does not fire."""
_AT_ONCE = 200
"""The maximum number of groups in one read. Small, because other requests have to wait for the read."""
_OFFSETS_AT_ONCE = 2_000
"""The maximum number of offsets in one request. The coordinator writes them in a single multi."""
_DONE, _SILENT = "done", "no response from the elected coordinator"
_ATTEMPTS, _AGAIN_S = 30, 1.0


class Administration:
    """Answers administrative requests. Use only on the event loop; it accesses ZooKeeper on other threads."""

    def __init__(self, store: Store, terms: ManagedTerms) -> None:
        self._store, self._terms = store, terms
        self._wanted: list[str] = []
        """The groups that have been asked about since the last read began."""
        self._viewing: asyncio.Task[dict[str, GroupView]] | None = None

    async def states(self, groups: Sequence[str]) -> dict[str, State]:
        """Returns the states of the groups that exist and can be read."""
        states: dict[str, State] = {}
        for part in parts(groups, _AT_ONCE):
            try:
                images = await asyncio.to_thread(self._images, part)
            except StoreError as error:
                log.warning("cannot read managed groups: %s", error)
                break
            states |= {group: state_of(image) for group, image in images.items() if image.hidden is None}
        return states

    async def subscribed(self, group: str, topics: Iterable[str]) -> frozenset[str]:
        """Returns which of the topics the group's members subscribe to. Raises :class:`StoreError`."""
        image = (await asyncio.to_thread(self._images, (group,))).get(group)
        if image is None:
            return frozenset()
        image.require_listings()
        wanted = [one.subscription for one in image.members.values()]
        return frozenset(topic for topic in topics if any(one.wants(topic) for one in wanted))

    async def view(self, group: str) -> GroupView:
        """Reads one group. Groups that are asked about in the same step are read together."""
        if self._viewing is None or not self._wanted:
            self._viewing = asyncio.create_task(self._view_wanted())
        self._wanted.append(group)
        return (await asyncio.shield(self._viewing))[group]

    async def _view_wanted(self) -> dict[str, GroupView]:
        wanted, self._wanted = self._wanted, []
        found: dict[str, GroupView] = {}
        for part in parts(wanted, _AT_ONCE):
            found |= await asyncio.to_thread(self._views, part)
        return found

    def _views(self, groups: Sequence[str]) -> dict[str, GroupView]:
        ids = TopicIds(self._store)
        try:
            images = self._images(groups)
            ids.learn(set().union(*map(topics_of, images.values())))
        except StoreError as error:
            log.warning("cannot read managed groups: %s", error)
            return {group: GroupView(group, Error.COORDINATOR_NOT_AVAILABLE) for group in groups}
        return {group: self._view(group, images.get(group), ids) for group in groups}

    def _images(self, groups: Iterable[str]) -> dict[str, Image]:
        return read_images(self._store, map(Wanted, groups))

    def _view(self, group: str, seen: Image | None, ids: TopicIds) -> GroupView:
        if seen is not None and seen.hidden is not None:
            log.warning("cannot read group=%s: %s: %s", group, seen.hidden.path, seen.hidden.reason)
            return GroupView(group, Error.COORDINATOR_NOT_AVAILABLE)
        heard_of = self._terms.heard_of(group)
        served = {one.key[1]: KnownMember(one.member_id, one.epoch, one.is_static) for one in heard_of}
        return GroupView(group, Error.NONE, seen, served, ids)

    async def adopt(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], why: str, term: int, *, keeps: bool
    ) -> Error:
        """Creates the group with the given offsets, provided that ``term`` is still current. With ``keeps``, existing
        offsets are kept. ``why`` becomes the first entry in the group's history."""
        fence = Check(layout.log_partition(partition_of(group)), term)
        try:
            missing = await asyncio.to_thread(
                begin_adoption, self._store, group, list(offsets), why, fence, keeps=keeps
            )
        except StoreError as error:
            log.warning("cannot take over group=%s: %s", group, error)
            return Error.COORDINATOR_NOT_AVAILABLE
        self._terms.groups.add(group)
        chosen = {tp: offsets[tp] for tp in missing}
        refused, _ = await self.set_offsets(group, chosen, CONVERSION, why, fence=fence)
        return refused

    async def admit(
        self, group: str, members: Sequence[Admitted], generation: int, topic_ids: Mapping[str, str], term: int
    ) -> None:
        """Makes the members of a client-assigned group members of the managed group that it is to be, with what they
        hold. Until the group is recorded as managed, nobody acts on that: see the coordinator's reading of records.
        Raises :class:`StoreError`."""
        fence = Check(layout.log_partition(partition_of(group)), term)
        writing = asyncio.create_task(
            asyncio.to_thread(write_members, self._store, group, members, generation, topic_ids, fence)
        )
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # nobody can stop the thread, and what it writes must be removed
            raise

    async def clear(self, group: str, why: str, by: str, term: int) -> Error:
        """Removes what a conversion has left of a group that is not managed, unless consumers wait for it to be."""
        fence = Check(layout.log_partition(partition_of(group)), term)
        try:
            if await asyncio.to_thread(self._store.exists, layout.group(group)) is None:
                return Error.NONE
            await self.withdraw(group, term)
            if (await self.registered(group)).protocols:
                return Error.NONE
            why_not = await self._removed(group, why, by, fence)
        except StoreError as error:
            why_not = str(error)
        if not why_not:
            return Error.NONE
        log.info("cannot remove what is left of group=%s: %s", group, why_not)
        return Error.COORDINATOR_NOT_AVAILABLE

    async def withdraw(self, group: str, term: int) -> None:
        """Undoes :meth:`admit`. Raises :class:`StoreError`."""
        fence = Check(layout.log_partition(partition_of(group)), term)
        await asyncio.to_thread(remove_members, self._store, group, fence)

    async def look(self, group: str) -> None:
        """Has the coordinator look at the group, whose consumers may have waited for its conversion."""
        await self._submit(Request(RequestType.LOOK, group))

    async def registered(self, group: str) -> RegisteredMembers:
        """Returns the group's members, whatever protocol they use. Raises :class:`StoreError`."""
        return await asyncio.to_thread(read_registered, self._store, group)

    async def topics_that_exist(self, group: str, topics: Iterable[str]) -> frozenset[str]:
        """See :func:`topics_that_exist`."""
        return await asyncio.to_thread(topics_that_exist, self._store, group, topics)

    async def delete(self, group: str, by: str) -> Error:
        """Deletes the group on behalf of a client. The history records who asked, as ``by``."""
        error, _ = await self._ask(Request(RequestType.DELETE_GROUP, group, by=by), Error.NON_EMPTY_GROUP)
        if error is Error.NONE:
            self._terms.groups.discard(group)
        return error

    async def _removed(self, group: str, reason: str, by: str, fence: Check) -> str:
        """Deletes what is left of a group that is not managed any more, provided that it has no members. Returns the
        reason if this fails, else ``""``. Raises :class:`StoreError`."""
        answered = await self._answer(Request(RequestType.DELETE_GROUP, group, reason=reason, by=by), fence)
        if answered is None:
            return _SILENT
        if answered.result != _DONE:
            return answered.message
        self._terms.groups.discard(group)
        return ""

    async def answer_conversion(self, asked: Request, term: int, result: str, message: str) -> None:
        """Answers an operator's request. Gives up if ZooKeeper remains unreachable for half a minute."""
        for _ in range(_ATTEMPTS):
            try:
                await asyncio.to_thread(self._terms.conversions.answer, asked, term, result, message)
            except StoreError as error:
                log.warning("cannot answer a request yet path=%s: %s", layout.request(asked.request_id), error)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def set_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        by: str,
        reason: str = "",
        before: Mapping[TopicPartition, int] | None = None,
        *,
        is_recorded: bool = True,
        fence: Check | None = None,
    ) -> tuple[Error, frozenset[TopicPartition]]:
        """Sets the offsets of partitions that no member holds, by several requests if there are many. Returns also the
        partitions that do not exist, as far as the coordinator knows: the others' offsets are set. With
        ``is_recorded``, the group's history records ``by``, ``reason`` and, if the offsets ``before`` are given, the
        change. No request is sent once the ``fence`` fails."""
        gone = frozenset[TopicPartition]()
        waiting = list(parts(sorted(offsets), _OFFSETS_AT_ONCE))
        while waiting:
            some = waiting.pop(0)
            values = {tp: offsets[tp].offset for tp in some}
            change = offsets_change(before, values) if before is not None else ""
            request = Request(RequestType.RESET_OFFSETS, group, offsets=values, reason=reason, by=by, change=change)
            request = request if is_recorded else replace(request, unrecorded=True)
            error, missing = await self._ask(request, Error.UNKNOWN_MEMBER_ID, fence)
            if missing:
                gone |= missing
                waiting[:0] = [others] if (others := [tp for tp in some if tp not in missing]) else []
            elif error is not Error.NONE:
                return error, gone
        details = {tp: one for tp, one in offsets.items() if tp not in gone and not one.is_bare}
        if details:
            try:
                await asyncio.to_thread(write_details, self._store, group, details)
            except StoreError as failed:
                log.warning("could not write the offset details group=%s: %s", group, failed)
        return Error.NONE, gone

    async def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition], by: str, before: Mapping[TopicPartition, int]
    ) -> Error:
        """Deletes the offsets of partitions that no member holds. The group's history records ``by`` and the change
        from the offsets ``before``."""
        chosen = PartitionSet.of(partitions)
        change = offsets_change(before, dict.fromkeys(chosen))
        request = Request(RequestType.DELETE_OFFSETS, group, partitions=chosen, by=by, change=change)
        error, _ = await self._ask(request, Error.GROUP_SUBSCRIBED_TO_TOPIC)
        return error

    async def record(self, kind: str, group: str, by: str, change: str = "") -> None:
        """Asks the coordinator to record in the cluster's history what ``by`` has done to a client-assigned group."""
        await self._submit(recording(kind, group, by=by, change=change))

    async def _submit(self, request: Request) -> None:
        """Sends the coordinator a request without waiting for the response."""
        request = replace(request, timestamp_ms=time.time_ns() // 1_000_000)
        try:
            await asyncio.to_thread(self._store.create, layout.REQUEST_PREFIX, request.to_bytes(), sequence=True)
        except StoreError as error:
            log.warning("cannot send %s of group=%s by %s: %s", request.type, request.group, request.by, error)

    async def _ask(
        self, request: Request, refused: Error, fence: Check | None = None
    ) -> tuple[Error, frozenset[TopicPartition]]:
        """Sends a request to the coordinator. Returns ``refused`` if the coordinator refuses it, with the partitions
        that a refused reset names as missing."""
        try:
            answered = await self._answer(request, fence)
        except StoreError as error:
            log.warning("cannot send the coordinator a %s request group=%s: %s", request.type, request.group, error)
            return Error.COORDINATOR_NOT_AVAILABLE, frozenset()
        if answered is None:
            log.warning("the coordinator did not respond to a %s request group=%s", request.type, request.group)
            return Error.COORDINATOR_NOT_AVAILABLE, frozenset()
        log.info("%s group=%s result=%s: %s", request.type, request.group, answered.result, answered.message)
        if answered.result == _DONE:
            return Error.NONE, frozenset()
        return refused, frozenset(answered.partitions) if request.type is RequestType.RESET_OFFSETS else frozenset()

    async def _answer(self, request: Request, fence: Check | None = None) -> Request | None:
        """Sends the request and waits for the response. Returns the answered request, or ``None`` if it is not answered
        in time or is withdrawn. Deletes the request in any case. Raises :class:`StoreError`. The coordinator carries
        requests out in their order, so behind a ``fence`` none of an earlier term follows one of a later term."""
        store, loop, changed = self._store, asyncio.get_running_loop(), asyncio.Event()

        def noted(_event: object) -> None:
            with suppress(RuntimeError):  # the loop may have ended
                loop.call_soon_threadsafe(changed.set)

        data = fields.dump(replace(request, timestamp_ms=time.time_ns() // 1_000_000).to_json())
        sends = store if fence is None else FencedStore(store, fence)
        path = await asyncio.to_thread(sends.create, layout.REQUEST_PREFIX, data, sequence=True)
        deadline = loop.time() + ANSWER_S
        try:
            while (left_s := deadline - loop.time()) > 0:
                changed.clear()
                node = await asyncio.to_thread(store.get, path, noted)
                with suppress(MalformedValue):
                    answered = Request.from_bytes(node.data, path)
                    if answered.answered:
                        return answered
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(_LOOK_AGAIN_S, left_s))
        except NoNode:  # the request was withdrawn
            return None
        finally:
            with suppress(StoreError):
                await asyncio.to_thread(store.delete, path)
        return None


def begin_adoption(
    store: Store, group: str, partitions: Sequence[TopicPartition], reason: str, fence: Check, *, keeps: bool
) -> frozenset[TopicPartition]:
    """Creates the group if it does not exist, with ``reason`` as the first entry in its history. Returns the partitions
    whose topics exist, without those that have a stored offset if that ``keeps`` its value. Raises :class:`Fenced` and
    :class:`StoreError`.

    The group has read the topics of its offsets, and nobody knows how many partitions they had then. So it remembers
    them, and partitions without an offset count as ones that came later (ADR 41)."""
    ensure_group(store, group)
    topics = sorted({tp.topic for tp in partitions})
    paths = [layout.broker_topic(topic) for topic in topics]
    paths += [layout.offset(group, tp.topic, tp.partition) for tp in partitions]
    stats = store.exists_many(paths)
    existing = {topic for topic, stat in zip(topics, stats, strict=False) if stat is not None}
    stored = zip(partitions, stats[len(topics) :], strict=True)
    missing = frozenset(tp for tp, stat in stored if not (stat and keeps) and tp.topic in existing)
    now_ms = round(store.clock.time() * 1000)
    entry = Decision(0, 0, reason, "", now_ms, 0, len(missing), 0, settled_ms=0, causes=(Cause.TAKEN_OVER,))
    try:
        write_fenced(store, fence, [(Create(layout.history(group), fields.dump(history_to_json((entry,)))),)])
    except MultiFailed as error:
        if not isinstance(error.cause, NodeExists):
            raise
    (node,) = store.read_many([GetData(layout.offsets(group))])
    known = remembered(group, node)
    now = known.with_also([Subscription.to(topics)]) if known is not None and topics else known
    if now is not None and now != known:
        path, data = layout.offsets(group), now.to_bytes()
        op = SetData(path, data, node.stat.version) if isinstance(node, Node) else Create(path, data)
        write_fenced(store, fence, [(op,)])
    return missing


class Admitted(NamedTuple):
    """A member of another kind of group that becomes a member of a managed one: how its client would register, what
    it holds, its process, and the ``form`` of the heartbeat with which its client goes on."""

    key: tuple[str, str]
    member_id: str
    is_static: bool
    session_timeout_s: float
    registration: bytes
    held: PartitionSet
    process: str
    form: Callable[[object, tuple[str, str], str, bool, int], MemberRequest]

    def beat(self, generation: int, token: object) -> MemberRequest:
        return self.form(token, self.key, self.member_id, self.is_static, generation)


def write_members(
    store: Store, group: str, members: Sequence[Admitted], generation: int, topic_ids: Mapping[str, str], fence: Check
) -> None:
    """Registers the members, with ledgers of what they hold. Raises :class:`StoreError`."""
    remove_members(store, group, fence)
    outcomes: dict[str, Registration | Refusal] = {}

    def note(one: Registering, outcome: Registration | Refusal) -> None:
        outcomes[one.consumer] = outcome

    wanted = [
        RegistrationWanted(0, None, *one.key, RegistrationOptions(one.session_timeout_s), one.registration)
        for one in members
    ]
    register_all(FencedStore(store, fence), [Registering(one, note) for one in wanted])
    store.ensure_path(layout.owners(group))
    units: list[tuple[Op, ...]] = []
    for one in members:
        consumer = one.key[1]
        outcome, path = outcomes[consumer], layout.ledger(group, consumer)
        if isinstance(outcome, Refusal):
            raise StoreError(outcome.message, path)
        ledger = Ledger(
            consumer,
            outcome.incarnation,
            one.held,
            generation=generation,
            topic_ids={topic: topic_ids[topic] for topic in one.held.topics if topic_ids.get(topic)},
            session_timeout_ms=round(one.session_timeout_s * 1000),
            process=one.process,
        )
        units.append((Create(path, ledger.to_bytes()),))
    write_fenced(store, fence, units)


def remove_members(store: Store, group: str, fence: Check) -> None:
    """Removes the stock clients from a group that is not managed: a conversion that failed has left them. Raises
    :class:`StoreError`."""
    left, unread = find_members(store, [group], PROTOCOLS)
    if unread:
        raise StoreError(next(iter(unread.values())), layout.ids(group))
    for one in (registration for registration, _ in left):
        paths = [one.path, layout.channel(group, one.consumer), layout.ledger(group, one.consumer)]
        found = store.exists_many(paths)
        there = [path for path, stat in zip(paths, found, strict=True) if stat is not None]
        write_fenced(store, fence, [tuple(map(Delete, there))])


class RegisteredMembers(NamedTuple):
    """The members of a group. ``members`` are those that can be read. ``protocols`` maps each member to its protocol,
    or to ``None`` if the member is not a stock client or cannot be read. ``target`` and ``history`` are the versions of
    the group's target and history, and ``ledgers`` the consumers that have one. ``is_decided`` says whether a
    coordinator is elected, and has decided who of the members gets what."""

    members: Mapping[str, Member]
    protocols: Mapping[str, str | None]
    target: int | None
    history: int | None
    ledgers: Collection[str]
    is_decided: bool

    def leaving(self, group: str) -> list[Op]:
        """Returns what ends the group as a managed one, unless others have registered since, or the coordinator has
        decided anything, or carried out an operator's request."""
        ops: list[Op] = [Delete(layout.registration(group, one)) for one in self.protocols]
        target = [] if self.target is None else [Delete(layout.assignment(group), self.target)]
        decided = [] if self.history is None else [Check(layout.history(group), self.history)]
        places = [Delete(layout.ledger(group, one)) for one in sorted(self.ledgers)]
        return [*ops, *places, Delete(layout.ids(group)), *target, *decided]


def read_registered(store: Store, group: str) -> RegisteredMembers:
    """Reads the group's members from ZooKeeper. Raises :class:`StoreError`."""
    image = read_images(store, [Wanted(group, history=True)]).get(group)
    is_elected = store.exists(layout.COORDINATOR) is not None
    if image is None:
        return RegisteredMembers({}, {}, None, None, (), is_elected)
    image.require_listings()
    members = {name: image.members.get(name) for name in sorted(image.registered)}
    protocols = {name: member.protocol if member is not None else None for name, member in members.items()}
    target = image.assignment.znode_version if image.assignment is not None else None
    history = image.history.stat.version if image.history is not None else None
    is_decided = is_elected and (target is not None or not members)
    return RegisteredMembers(image.members, protocols, target, history, image.ledgers.keys(), is_decided)


def topics_that_exist(store: Store, group: str, topics: Iterable[str]) -> frozenset[str]:
    """Returns the topics that exist, except those that have been deleted and recreated since the group's offsets were
    stored, because the offsets do not belong to the new topic. Raises :class:`StoreError`."""
    names = sorted(set(topics))
    stored = store.read_many(identity_reads(group, names)) if names else ()
    owners = owners_of_offsets(store, dict(zip(names, stored, strict=True)))
    return frozenset(name for name, owner in owners.items() if owner is Owner.PRESENT)
