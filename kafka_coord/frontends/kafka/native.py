"""Native groups: the brokers coordinate them, and the instances pass their requests through (ADR 59). Also finds out
which kind a group without a record is of.

A request about native groups alone goes to the broker as it came, on the client's own connection. Only what names
several groups, or has a version that the broker does not know, is taken apart here.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.metadata import CONSUMER
from kafka_coord.errors import BrokerError, MalformedValue, StoreError
from kafka_coord.frontends.kafka import answers
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.group import LOOKS, GroupError, Listed, Loading, Why
from kafka_coord.frontends.kafka.instances import Address, Instances, Node
from kafka_coord.frontends.kafka.kinds import FROZEN_S, Kinds
from kafka_coord.frontends.kafka.routing import LOCAL, Patch
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.kafka.connection import BrokerConnection, NoCommonVersion, Versions, of_group, only
from kafka_coord.kafka.coordinators import Moving, unless_moving
from kafka_coord.model import GroupKind
from kafka_coord.wire.frames import answer_start
from kafka_coord.wire.messages import Record, message
from kafka_coord.zk.kinds import Acknowledged, Recorded, Seen

log = logging.getLogger(__name__)

FOR_BROKERS = "kafka-coord-native"
"""The client id with which an instance asks another one for the group that the broker beside it coordinates, whatever
its recorded kind."""
_VERSIONS = {name: (versions.first, versions.last) for name, versions in LOCAL.values()}
_LISTS = {
    "ConsumerGroupDescribe": ("group_ids", "groups"),
    "DeleteGroups": ("groups_names", "results"),
    "DescribeGroups": ("groups", "groups"),
    "OffsetFetch": ("groups", "groups"),
}
"""The fields of requests that name several groups, and those of their responses."""
_FETCH_OF_SEVERAL = 8
_FIND_COORDINATOR = 1
"""A version that all brokers since 0.11 support."""
_JOIN_WITH_THROTTLE, _THROTTLE = 2, 4
"""The first version of JoinGroup whose response begins with a throttle time, and its length in bytes."""
_LOOKS, _LOOK_AGAIN_S = 20, 0.1
_IN_FLIGHT_CHECK_S = 0.005
_IDLE_S = 1.0
_MOST_KNOWN = 100_000
_DEAD = "Dead"
_ABSENT = frozenset({Error.GROUP_ID_NOT_FOUND, Error.UNSUPPORTED_VERSION})


@dataclass(slots=True)
class PassedOn:
    """A request that the broker is to answer. Call :meth:`end` when it has, or when it never will. If there is a
    ``change``, it returns the response that the client gets."""

    in_flight: Counter[str]
    group: str
    change: Patch | None = None

    def end(self) -> None:
        self.in_flight[self.group] -= 1
        if not self.in_flight[self.group]:
            del self.in_flight[self.group]


class NativeGroups:
    """The groups that the brokers coordinate. Use only on the event loop. ``connect`` connects to another instance, as
    :data:`FOR_BROKERS`."""

    type = ""
    """In ListGroups, they have the types that the brokers say."""

    def __init__(
        self, instances: Instances, kinds: Kinds, connect: Callable[[Address], BrokerConnection] | None = None
    ) -> None:
        self._instances, self.kinds, self._connect = instances, kinds, connect
        self._connections: dict[Address, BrokerConnection] = {}
        self._in_flight: Counter[str] = Counter()
        """The requests that this instance has passed on and the broker has not answered, by group."""
        self._timeouts: dict[tuple[int, str], tuple[int, int]] = {}
        self._seen: dict[str, dict[str, Seen]] = {}
        """What requests that were passed on said of members, by group and member id."""
        self._asking: Counter[Address] = Counter()
        self._used_at: dict[Address, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        kinds.on_freeze = self._frozen

    def group(self, name: str, check: Callable[[], None]) -> NoReturn:
        """Makes the client look up its coordinator again: this instance found out only now that the group is
        native."""
        del name, check
        raise GroupError(Error.NOT_COORDINATOR)

    async def listed(self, names: Sequence[str], *, with_states: bool) -> list[Listed]:
        """The broker lists them itself (:meth:`listed_by_broker`)."""
        del names, with_states
        return []

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for connection in self._connections.values():
            connection.close()

    # --- passing through ---------------------------------------------------------------------------------------------

    def is_meant(self, call: Call, group: str) -> bool:
        """Returns whether the request means the group that the brokers coordinate."""
        return call.client_id == FOR_BROKERS or self.kinds.are(GroupKind.NATIVE, group)

    async def passes(self, name: str, call: Call) -> PassedOn | None:
        """Returns a token if the whole request goes to the broker as it came, else ``None``."""
        groups = _groups_of(name, call)
        for one in groups:
            await self.kinds.wait_known(one)
        if not groups or not all(self.is_meant(call, one) for one in groups) or name == "DeleteGroups":
            return None
        if await self._newest(name) < call.version or self._is_frozen(name, call):
            return None
        if call.client_id != FOR_BROKERS and hasattr(call.request, "group_id"):
            self._note(name, call)
            return self._begun(
                call.request.group_id,
                partial(joined, self.kinds, call.request.group_id) if name == "JoinGroup" else None,
            )
        return PassedOn(Counter(), "")

    def _begun(self, group: str, change: Patch | None = None) -> PassedOn:
        self._in_flight[group] += 1
        return PassedOn(self._in_flight, group, change)

    def _is_frozen(self, name: str, call: Call) -> bool:
        """Returns whether the request must wait until a take-over of its group has ended."""
        group = getattr(call.request, "group_id", None)
        return (
            group is not None
            and name != "OffsetFetch"
            and call.client_id != FOR_BROKERS
            and self.kinds.is_frozen(group)
        )

    def _note(self, name: str, call: Call) -> None:
        """Notes what a member says: a take-over must know its generation and its timeouts."""
        request, group = call.request, call.request.group_id
        connection = call.client.number, group
        if name == "JoinGroup":
            rebalance_ms = request.rebalance_timeout_ms if call.version >= 1 else request.session_timeout_ms
            _remember(self._timeouts, connection, (request.session_timeout_ms, rebalance_ms))
        generation = getattr(request, "generation_id", getattr(request, "generation_id_or_member_epoch", -1))
        generation = getattr(request, "member_epoch", generation)
        member_id = getattr(request, "member_id", "")
        if member_id and generation >= 0:
            members = self._seen.get(group, {})
            known = members.get(member_id, Seen())
            timeouts = self._timeouts.get(connection, (known.session_ms, known.rebalance_ms))
            members[member_id] = Seen(generation, *timeouts)
            _remember(self._seen, group, members)

    def _frozen(self, partition: int, found: Recorded) -> None:
        """Acknowledges that groups of the partition are frozen, once nothing is in flight that was passed on before."""
        task = asyncio.create_task(self._acknowledge(partition, found))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _acknowledge(self, partition: int, found: Recorded) -> None:
        moving = [name for name, one in found.groups.items() if one.moving]
        late = asyncio.get_running_loop().time() + FROZEN_S
        while any(self._in_flight[name] for name in moving):
            if asyncio.get_running_loop().time() >= late:
                return
            await asyncio.sleep(_IN_FLIGHT_CHECK_S)
        heard = Acknowledged(found.version, {name: dict(self._seen.get(name, {})) for name in moving})
        try:
            await self.kinds.acknowledge(partition, self._instances.broker_id, heard)
        except StoreError as error:
            log.info("cannot acknowledge that groups are taken over: %s", error)

    async def answered(self, name: str, call: Call, ours: Callable[[Call], Awaitable[Any]]) -> Any:
        """Answers a request of which the broker answers a part, in the name of the client. ``ours`` answers the rest.
        Raises :class:`GroupError`, and :class:`OSError` as a request to the broker does."""
        request, lists = call.request, _list_of(name, call)
        groups = _groups_of(name, call)
        if not any(self.is_meant(call, one) for one in groups):
            return await ours(call)
        if self._is_frozen(name, call):
            raise Loading
        if lists is None:
            passed = self._begun(groups[0])
            try:
                return await self._ask(name, call, request)
            finally:
                passed.end()
        asked, told = lists
        sides: dict[bool, list[Any]] = {True: [], False: []}
        for group, element in zip(groups, getattr(request, asked), strict=True):
            sides[self.is_meant(call, group)].append(element)
        theirs = await self._ask(name, call, _with(request, asked, sides[True]))
        if sides[False]:
            mine = await ours(Call(call.header, _with(request, asked, sides[False]), call.client))
            setattr(theirs, told, (*getattr(mine, told), *getattr(theirs, told)))
        if name == "DeleteGroups":
            for one in theirs.results:
                if not one.error_code and call.client_id != FOR_BROKERS:
                    await self.kinds.forget(one.group_id)
        return theirs

    async def _newest(self, name: str) -> int:
        """Returns the newest version of a request that the broker and this instance support, or -1 if there is none.
        Raises :class:`BrokerError`."""
        try:
            return await self._instances.newest_version(name, _VERSIONS[name])
        except NoCommonVersion:
            return -1

    async def _ask(self, name: str, call: Call, request: Any) -> Any:
        version = min(await self._newest(name), call.version)
        if version < 0:
            if name == "ConsumerGroupDescribe":
                return message("ConsumerGroupDescribeResponse")(groups=[_not_found(one) for one in request.group_ids])
            raise GroupError(Error.UNSUPPORTED_VERSION, "the brokers do not support this protocol")
        if name == "OffsetFetch" and version < _FETCH_OF_SEVERAL <= call.version:
            return await self._fetched_one_by_one(call, version, request)
        return await call.client.ask_broker(name, version, request)

    async def _fetched_one_by_one(self, call: Call, version: int, request: Any) -> Any:
        """Asks brokers before 3.0, which answer about one group at a time."""
        asking, telling = message("OffsetFetchRequest"), message("OffsetFetchResponse")
        of_topic, of_group_ = asking.struct("OffsetFetchRequestTopic"), telling.struct("OffsetFetchResponseGroup")
        groups = []
        for one in request.groups:
            topics = one.topics and [of_topic(name=t.name, partition_indexes=t.partition_indexes) for t in one.topics]
            asked = asking(group_id=one.group_id, topics=topics, require_stable=request.require_stable)
            told = await call.client.ask_broker("OffsetFetch", version, asked)
            groups.append(of_group_(group_id=one.group_id, error_code=told.error_code, topics=told.topics))
        return telling(groups=groups)

    async def coordinator_of(self, call: Call, key: str, key_type: int) -> tuple[int, Node]:
        """Asks the broker, as the client, who coordinates a group or a transaction, and returns the error and the
        instance beside the coordinator."""
        request = message("FindCoordinatorRequest")(key=key, key_type=key_type)
        response = await call.client.ask_broker("FindCoordinator", _FIND_COORDINATOR, request)
        node = self._instances.node(response.node_id, response.host, response.port)
        if response.error_code or node is None:
            return response.error_code or Error.COORDINATOR_NOT_AVAILABLE, answers.NOWHERE
        return Error.NONE, node

    async def listed_by_broker(self, call: Call, known: set[str]) -> tuple[int, list[Listed]]:
        """Returns the groups that the broker coordinates, except those that are recorded as coordinated by the
        instances, or that are ``known`` to be. Asks as the client, which sees only what it may describe."""
        version = min(await self._newest("ListGroups"), call.version)
        told = await call.client.ask_broker("ListGroups", version, call.request)
        rows = [
            Listed(one.group_id, one.protocol_type, one.group_state, one.group_type.lower())
            for one in told.groups
            if one.group_id not in known and self.kinds.may_be_native(one.group_id)
        ]
        return told.error_code, rows

    # --- looking for them --------------------------------------------------------------------------------------------

    async def supports(self, name: str) -> bool:
        """Returns whether the broker supports a request. Raises :class:`GroupError` if it cannot be asked."""
        try:
            return await self._newest(name) >= 0
        except BrokerError:
            raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None

    async def exists(self, group: str) -> bool:
        """Returns whether the brokers coordinate the group, or hold offsets of it. Asks as this instance. Raises
        :class:`GroupError` if that cannot be found out."""
        reason = ""
        for _ in range(_LOOKS):
            try:
                node = await self._instances.native_coordinator(group)
                return node is not None and await self._exists_at(node, group)
            except Moving as moving:
                reason = str(moving)
                await asyncio.sleep(_LOOK_AGAIN_S)
            except BrokerError as error:
                reason = str(error)
                break
        log.warning("cannot find out whether the brokers coordinate group=%s: %s; the client must retry", group, reason)
        raise GroupError(Error.COORDINATOR_NOT_AVAILABLE)

    async def _exists_at(self, node: Node, group: str) -> bool:
        request = message("DescribeGroupsRequest")(groups=(group,))
        found = of_group((await self.ask(node, "DescribeGroups", 0, request)).groups, group)
        _check(found.error_code, "DESCRIBE")
        if not found.error_code and found.group_state != _DEAD:
            return True
        if await self._newest("ConsumerGroupDescribe") < 0:
            return False
        request = message("ConsumerGroupDescribeRequest")(group_ids=(group,))
        found = only((await self.ask(node, "ConsumerGroupDescribe", 0, request)).groups, "groups")
        _check(found.error_code, "DESCRIBE")
        return found.error_code not in _ABSENT

    async def ask(self, node: Node, name: str, version: int | Versions, value: Any) -> Any:
        """Asks the brokers' own coordinator beside the instance at ``node``. Raises :class:`BrokerError`."""
        address, loop = node[1:], asyncio.get_running_loop()
        if address not in self._connections:
            self._connections[address] = self.connection(node)
        self._asking[address] += 1
        try:
            return await self._connections[address].ask(name, version, value)
        finally:
            self._asking[address] -= 1
            self._used_at[address] = loop.time()
            loop.call_later(_IDLE_S, self._end_idle, address)

    def _end_idle(self, address: Address) -> None:
        """Closes a connection that nobody has used for a while: it counts among another instance's clients."""
        is_idle = asyncio.get_running_loop().time() >= self._used_at[address] + _IDLE_S - _IN_FLIGHT_CHECK_S
        if is_idle and not self._asking[address] and address in self._connections:
            self._connections.pop(address).close()

    def connection(self, node: Node) -> BrokerConnection:
        """Returns a new connection to the brokers' own coordinator beside the instance at ``node``."""
        if node[0] == self._instances.broker_id or self._connect is None:
            return self._instances.to_broker()
        return self._connect(node[1:])


class KindFinder:
    """Finds out which kind a group without a record is of. ``matches_managed`` returns whether a group's name matches
    the setting ``managed_groups``, and ``left_to_brokers`` whether a new group with this name is native."""

    def __init__(
        self,
        manager: GroupMetadataManager,
        managed: Collection[str],
        native: NativeGroups,
        matches_managed: Callable[[str], bool],
        left_to_brokers: Callable[[str], bool],
    ) -> None:
        self._manager, self._managed, self._native = manager, managed, native
        self._matches_managed, self._left_to_brokers = matches_managed, left_to_brokers

    async def first_contact(self, name: str, why: Why) -> GroupKind:
        """Returns what a group without a record is in one of the stores, native if the brokers know it, and otherwise
        what a new group becomes. Records that if the group exists, or will by this request. Raises
        :class:`GroupError`."""
        kind = self.stored(name)
        if kind is None and await self._native.exists(name):
            kind = GroupKind.NATIVE
        if kind is None and not why.creates:
            return self._new(name, why)
        if kind is None and self._left_to_brokers(name):
            is_theirs = not why.is_kip_848 or await self._native.supports("ConsumerGroupHeartbeat")
            kind = GroupKind.NATIVE if is_theirs else None
        try:
            return await self._native.kinds.record_first(name, kind or self._new(name, why))
        except (StoreError, MalformedValue) as error:
            log.info("cannot record the kind of group=%s: %s; the client must retry", name, error)
            raise GroupError(Error.COORDINATOR_NOT_AVAILABLE) from None

    def _new(self, name: str, why: Why) -> GroupKind:
        is_managed = why.is_kip_848 or (why.protocol_type == CONSUMER and self._matches_managed(name))
        return GroupKind.MANAGED if is_managed else GroupKind.CLIENT_ASSIGNED

    def stored(self, name: str) -> GroupKind | None:
        """Returns the kind of a group by where it is stored. One with members in the log is not managed."""
        if name in self._managed and not self._has_members(name):
            return GroupKind.MANAGED
        return GroupKind.CLIENT_ASSIGNED if self._manager.has(name) else None

    def is_or_becomes_managed(self, name: str, kind: GroupKind, why: Why) -> bool:
        """Returns whether the newcomer finds a managed group: the group is one, or is client-assigned without members,
        and the newcomer needs a managed one."""
        becomes = kind is GroupKind.CLIENT_ASSIGNED and not self._has_members(name)
        return GroupKind.MANAGED in {kind, self._new(name, why) if becomes else None}

    def _has_members(self, name: str) -> bool:
        machine = self._manager.group(name)
        return machine is not None and machine.metadata.has_members

    async def found(self, name: str) -> GroupKind | None:
        """Returns the kind of a group that this instance coordinates, or ``None`` if there is no such group. Raises
        :class:`GroupError`."""
        if self._native.kinds.of(name) is None:
            await self.first_contact(name, LOOKS)
        return self._native.kinds.of(name)


def joined(kinds: Kinds, group: str, frame: bytes, version: int) -> bytes:
    """Returns a broker's response to a JoinGroup as the client gets it: if the fence may have refused the client, it
    looks up its coordinator again. A client gives up when it hears that its protocols do not fit."""
    at = answer_start(message("JoinGroupResponse"), version) + (_THROTTLE if version >= _JOIN_WITH_THROTTLE else 0)
    fits = int.from_bytes(frame[at : at + 2], "big") != Error.INCONSISTENT_GROUP_PROTOCOL
    if fits or kinds.is_surely_native(group):
        return frame
    return frame[:at] + Error.COORDINATOR_NOT_AVAILABLE.to_bytes(2, "big") + frame[at + 2 :]


def _remember(known: dict[Any, Any], key: object, value: object) -> None:
    known.pop(key, None)
    known[key] = value
    if len(known) > _MOST_KNOWN:
        del known[next(iter(known))]


def _check(code: int, right: str) -> None:
    if unless_moving(code) == Error.GROUP_AUTHORIZATION_FAILED:
        raise BrokerError(f"{named(code)}; give the instances' user {right} on all groups")


def _list_of(name: str, call: Call) -> tuple[str, str] | None:
    return None if name == "OffsetFetch" and call.version < _FETCH_OF_SEVERAL else _LISTS.get(name)


def _groups_of(name: str, call: Call) -> Sequence[str]:
    """Returns the names of the groups that the request is about. FindCoordinator and ListGroups are answered by their
    own handlers."""
    lists = _list_of(name, call)
    if lists is not None:
        return [getattr(one, "group_id", one) for one in getattr(call.request, lists[0])]
    group = getattr(call.request, "group_id", None)
    return () if group is None else (group,)


def _with(request: Record, field: str, value: Sequence[Any]) -> Record:
    made = copy.copy(request)
    setattr(made, field, value)
    return made


def _not_found(group: str) -> Any:
    one = message("ConsumerGroupDescribeResponse").struct("DescribedGroup")
    return one(error_code=Error.GROUP_ID_NOT_FOUND, error_message=f"Group {group} not found.", group_id=group)
