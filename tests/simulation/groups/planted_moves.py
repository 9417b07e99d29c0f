"""Deliberate defects of moves. The simulator must find each of them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from kafka_coord.frontends.kafka import client_assigned, groups, moving
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups
from kafka_coord.frontends.kafka.moving import CONSUMER_TYPE, Fence, Moves, Namesake
from kafka_coord.frontends.kafka.native import Back, Kinds, NativeGroups
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.kafka.coordinators import by_topic
from tests.simulation.groups.planted import Patch, patched

Patches = tuple[Patch, ...]


def _offsets_read_early() -> Patches:
    settled, copied = Moves._settled, Moves._copied

    async def settle(self: Any, name: str, may_manage: Any) -> Any:
        found = await settled(self, name, may_manage)
        self.read_early = await self._offsets(found.node, name)
        return found

    async def copy(self: Any, name: str, namesake: Any) -> int:
        async def offsets(_node: object, _name: str) -> Any:
            return self.read_early

        self._offsets = offsets
        try:
            return await copied(self, name, namesake)
        finally:
            del self._offsets

    return (Moves, "_settled", settle), (Moves, "_copied", copy)


def _no_fence() -> Patches:
    async def entered(self: Any, name: str, _namesake: Any) -> Any:
        return await self._new_fence(name)

    return (Moves, "_entered", entered), (Namesake, "is_closed", property(lambda _self: True))


def _nothing_held_up() -> Patches:
    """The brokers begin a generation as soon as the members have left, with whoever has come beside the fence."""

    async def hold(*_arguments: Any) -> str:
        return ""

    return ((Fence, "hold", hold),)


def _fence_leaves() -> Patches:
    async def kept(self: Any, name: str, fence: Any) -> None:
        if fence is not None:
            node = await self._instances.native_coordinator(name)
            await self._native.leave(node, name, fence.leaving)

    return ((Moves, "_kept", kept),)


def _nobody_waited_for() -> Patches:
    async def acknowledged(self: Any, name: str, _version: int, _late: float) -> Any:
        known: dict[str, Any] = {}
        for front in self._instances._registry.alive.values():
            known |= front.coordinator.native._seen.get(name, {})
        return known

    return ((Moves, "_acknowledged", acknowledged),)


def _any_generation() -> Patches:
    async def is_newest(*_arguments: Any) -> bool:
        return True

    return ((Moves, "_is_newest", is_newest),)


def _passes_on_while_frozen() -> Patches:
    return ((NativeGroups, "_is_frozen", lambda *_: False), (Kinds, "thawed", _at_once))


async def _at_once(*_arguments: Any) -> None: ...


def _in_flight_not_counted() -> Patches:
    original = NativeGroups._begun

    def begun(self: Any, name: str, call: Any, groups: Any, ours: Any) -> Any:
        passed = original(self, name, call, groups, ours)
        apart = replace(passed, in_flight=Counter(passed.groups))
        passed.end()
        return apart

    return ((NativeGroups, "_begun", begun),)


def _forgotten() -> Patches:
    original = Kinds.unsettled

    def unsettled(self: Any, partition: int) -> Any:
        return {name: one for name, one in original(self, partition).items() if not one.moving}

    return ((Kinds, "unsettled", unsettled),)


def _undone_once() -> Patches:
    async def resolved(_self: Any, _name: str, _move: str) -> None: ...

    return ((Moves, "_resolved", resolved),)


def _undone_without_waiting() -> Patches:
    """An undone take-over does not wait for the members that the fence has thrown out."""

    async def remembered(self: Any, name: str, namesake: Any, known: Any) -> None:
        await self._removed(name)
        self.to_remember = namesake, known

    async def copied(self: Any, name: str, namesake: Any) -> int:
        await original(self, name, *self.to_remember)
        return await copies(self, name, namesake)

    original, copies = Moves._remembered, Moves._copied
    return (Moves, "_remembered", remembered), (Moves, "_copied", copied)


def _first_gets_everything() -> Patches:
    return ((moving, "_longest_s", lambda _group: 0.0),)


def _counted_by_client_id() -> Patches:
    """Members that have come back are told from newcomers by their client ids alone."""

    async def known_of(self: Any, _group: str) -> Back:
        return Back(self.everybody, frozenset(), self.everybody)

    original = Moves._released

    async def released(self: Any, name: str) -> None:
        self._kinds.everybody = frozenset(self._group(name).members)
        await original(self, name)

    return (Kinds, "known_of", known_of), (Moves, "_released", released)


def _writes_not_awaited() -> Patches:
    return ((GroupMetadataManager, "is_writing", lambda *_: False),)


def _sessions_end_while_frozen() -> Patches:
    return ((ClientAssignedGroups, "frozen", lambda *_: nullcontext()),)


def _given_away() -> Patches:
    async def gives(_self: Any, _group: str, _member_id: str) -> bool:
        return True

    return ((NativeGroups, "_gives", gives),)


def _in_flight_given_away() -> Patches:
    return (*_in_flight_not_counted(), *_given_away())


def _joined_again_with_any_epoch() -> Patches:
    """Whoever sends a heartbeat counts as a member that has joined again, and holds nothing."""
    original = NativeGroups._gives_up

    async def joins(self: Any, name: str, call: Any) -> None:
        request = copy.copy(call.request)
        if name == "ConsumerGroupHeartbeat":
            request.member_epoch = 0
        await original(self, name, Call(call.header, request, call.client))

    return ((NativeGroups, "_gives_up", joins),)


def _marks_end_with_each_other() -> Patches:
    @contextmanager
    def mark(marks: Counter[str], name: str) -> Iterator[None]:
        marks[name] = 1
        try:
            yield
        finally:
            marks.pop(name, None)

    return (groups, "marked", mark), (client_assigned, "marked", mark)


def _given_back_twice() -> Patches:
    def record_of(self: Any, name: str, _kind: Any) -> Any:
        return self._kinds.record_of(name)

    return ((Moves, "_record_of", record_of),)


def _told_as_ever() -> Patches:
    return ((NativeGroups, "_other_answer", _at_once),)


def _offsets_deleted() -> Patches:
    """A give-back removes offsets by OffsetDelete, while the fence's protocol allows that."""
    original = Fence.commit

    async def commit(self: Any, offsets: Any) -> None:
        gone = [where for where, one in offsets.items() if one.offset < 0]
        if gone:
            await self.join(CONSUMER_TYPE, ["range"])
            form = by_topic("OffsetDeleteRequest", self.group, dict.fromkeys(gone, 0), lambda _: {})
            await self._connection.ask("OffsetDelete", 0, form)
            await self.join(CONSUMER_TYPE)
        await original(self, {where: one for where, one in offsets.items() if where not in gone})

    return ((Fence, "commit", commit),)


def _lost_with_the_znode() -> Patches:
    written = Kinds._written

    async def forgetful(self: Any, partition: int, write: Callable[..., Any], *arguments: Any) -> Any:
        return await written(self, partition, lambda *given, known: write(*given, known={}), *arguments)

    return ((Kinds, "_written", forgetful),)


PLANTED: dict[str, Callable[[], Patches]] = {
    "offsets are read before the freeze": _offsets_read_early,
    "no fence joins": _no_fence,
    "a generation begins while the fence enters": _nothing_held_up,
    "the fence leaves once the group is taken over": _fence_leaves,
    "an instance that has not heard is not waited for": _nobody_waited_for,
    "members are of the newest generation that is known": _any_generation,
    "an instance acknowledges and passes requests on": _passes_on_while_frozen,
    "an acknowledgement does not wait for what is in flight": _in_flight_not_counted,
    "a move that an earlier term has begun is forgotten": _forgotten,
    "a move that cannot be undone is left as it is": _undone_once,
    "an undone take-over does not wait for its members": _undone_without_waiting,
    "the first to return gets everything": _first_gets_everything,
    "a newcomer is taken for a member that has not come back": _counted_by_client_id,
    "a give-back does not wait for commits": _writes_not_awaited,
    "sessions end while nobody can be heard": _sessions_end_while_frozen,
    "what ends one change of a group ends them all": _marks_end_with_each_other,
    "a group that is given back is given back again": _given_back_twice,
    "an instance tells offsets that were committed before a take-over it has not heard of": _told_as_ever,
    "a give-back removes offsets by requests that nobody refuses": _offsets_deleted,
    "who writes records after somebody has deleted them forgets what they were": _lost_with_the_znode,
}

TELLING = {
    "no fence joins": frozenset({"stranger"}),
    "the fence leaves once the group is taken over": frozenset({"stranger"}),
    "an acknowledgement does not wait for what is in flight": frozenset({"slow"}),
    "a move that an earlier term has begun is forgotten": frozenset({"kill"}),
    "a move that cannot be undone is left as it is": frozenset({"zookeeper"}),
    "a give-back does not wait for commits": frozenset({"slow"}),
    "a newcomer is taken for a member that has not come back": frozenset({"namesake"}),
    "an undone take-over does not wait for its members": frozenset({"slow"}),
    "a group that is given back is given back again": frozenset({"slow"}),
    "an instance tells offsets that were committed before a take-over it has not heard of": frozenset({"unheard"}),
}
"""The faults that reveal a defect soon. Others would hide it, and the rest is found without any."""


OF_CONSUMERS: dict[str, Callable[[], Patches]] = {
    "what the broker gives away while the fence enters is passed on": _given_away,
    "an answer in flight gives partitions away after the freeze": _in_flight_given_away,
    "an old epoch counts as having joined again": _joined_again_with_any_epoch,
    "ids count as given up before they are": _counted_by_client_id,
    "the first to return gets everything": _first_gets_everything,
    "offsets are read before the freeze": _offsets_read_early,
}
"""Those of moves with KIP-848 members."""


@contextmanager
def planted(name: str, defects: Mapping[str, Callable[[], Patches]] = PLANTED) -> Iterator[None]:
    """Plants the defect until the end of the block."""
    with ExitStack() as stack:
        for patch in defects[name]():
            stack.enter_context(patched(patch))
        yield
