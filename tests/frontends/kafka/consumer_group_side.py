"""A side whose group has KIP-848 members. Records answers field by field, so that each difference can be named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.wire.messages import Record, message
from tests.frontends.kafka.side_by_side import INCOMPARABLE, Side

_EPOCHS = {"member_epoch", "group_epoch", "assignment_epoch", "generation_id"}
_WITHIN_S = 30.0
_MAY_COME_LATER = {"assignment", "member_epoch", "generation_id"}
Partitions = frozenset[tuple[bytes, int]]


@dataclass
class Beating:
    """A member, as its client knows it."""

    member_id: str
    epoch: int = 0
    instance_id: str | None = None
    owned: Partitions = frozenset()

    @property
    def generation_id(self) -> int:
        """The epoch, under the name of its field in requests for both kinds of groups."""
        return self.epoch

    protocol_name = "range"
    members = ()


@dataclass
class ConsumerGroupSide(Side):
    """Records the answer to each request that has a ``case``. ``ids`` are the topics' ids by name. Epochs are recorded
    relative to ``newest``, the newest epoch that a member of the group has received."""

    answers: dict[str, dict[str, str]] = field(default_factory=dict)
    ids: dict[str, bytes] = field(default_factory=dict)
    newest: int = 0

    async def find(self) -> None:
        await super().find()
        found = await self.connect().ask("Metadata", 12, message("MetadataRequest")(topics=None))
        self.ids = {one.name: one.topic_id for one in found.topics}

    async def ask(
        self,
        name: str,
        version: int,
        on: BrokerConnection | None = None,
        quiet: bool = True,
        case: str = "",
        at_once: bool = True,
        **fields: Any,
    ) -> Any:
        """Sends a request, and returns the answer. If ``at_once``, this answer must show all effects of the request;
        otherwise later answers may. Like every client, repeats the request while the group is being loaded."""
        async with asyncio.timeout(_WITHIN_S):
            answer = await super().ask(name, version, on, quiet=True, **fields)
            while getattr(answer, "error_code", 0) == Error.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0.1)
                answer = await super().ask(name, version, on, quiet=True, **fields)
        if case:
            assert case not in self.answers, f"{case!r} has two answers"
            told = dict(self._flat(answer))
            self.answers[case] = {
                path: of for path, of in told.items() if at_once or path.partition(".")[0] not in _MAY_COME_LATER
            }
        return answer

    def _flat(self, value: Any, path: str = "", name: str = "") -> Iterator[tuple[str, str]]:
        """The fields of an answer by path, in a comparable form. Its first field identifies an element of an array."""
        if isinstance(value, Record):
            for one in value._fields:
                if one not in INCOMPARABLE:
                    yield from self._flat(getattr(value, one), f"{path}.{one}".lstrip("."), one)
        elif isinstance(value, tuple) and value and isinstance(value[0], Record):
            seen: set[str] = set()
            for one in value:
                which = self._shown(getattr(one, one._fields[0]), one._fields[0]) if len(value) > 1 else ""
                while which in seen:
                    which += " again"
                seen.add(which)
                yield from self._flat(one, f"{path}[{which}]" if which else path)
        else:
            yield path, self._shown(value, name)

    def _shown(self, value: Any, name: str) -> str:
        if name == "error_code":
            return Error(value).name
        if name in _EPOCHS and value > 0:
            return "newest" if value == self.newest else "newer" if value > self.newest else "older"
        if name == "topic_id":
            return next((one.replace(self.topic, "TOPIC") for one, is_id in self.ids.items() if is_id == value), "?")
        if name in {"member_id", "leader"} and value not in self.names and len(value or "") > 20:
            return "generated"
        return self.plain(value)

    # --- members -----------------------------------------------------------------------------------------------------

    async def beat(self, who: Beating, case: str = "", version: int = 1, at_once: bool = True, **fields: Any) -> Any:
        """Sends a heartbeat. If the answer has no error, ``who`` adopts its values, as a client does."""
        given = {"group_id": self.group, "member_id": who.member_id, "member_epoch": who.epoch} | fields
        answer = await self.ask("ConsumerGroupHeartbeat", version, case=case, at_once=at_once, **given)
        if not answer.error_code:
            who.member_id, who.epoch = answer.member_id or who.member_id, answer.member_epoch
            self.newest = max(self.newest, who.epoch)
            if answer.assignment is not None:
                parts = answer.assignment.topic_partitions
                who.owned = frozenset((one.topic_id, number) for one in parts for number in one.partitions)
        return answer

    def whole(self, **fields: Any) -> dict[str, Any]:
        """All fields of a joining heartbeat."""
        return {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": (self.topic,),
            "topic_partitions": (),
        } | fields

    async def begin(self, member_id: str, case: str = "", instance_id: str | None = None, **fields: Any) -> Beating:
        """Makes a member join, and returns it."""
        who = Beating(self.name(member_id, member_id), instance_id=instance_id)
        await self.beat(who, case, at_once=False, **self.whole(instance_id=instance_id, **fields))
        return who

    def partitions(self, owned: Partitions) -> tuple[Any, ...]:
        one = message("ConsumerGroupHeartbeatRequest").struct("TopicPartitions")
        topics = sorted({topic for topic, _ in owned})
        return tuple(one(topic_id=id_, partitions=tuple(sorted(n for of, n in owned if of == id_))) for id_ in topics)

    async def settle(self, *members: Beating, count: int = 2) -> None:
        """Lets the clients follow their assignments until they own ``count`` partitions and the group is stable."""
        async with asyncio.timeout(_WITHIN_S):
            while True:
                told = [await self.beat(one, topic_partitions=self.partitions(one.owned)) for one in members]
                assert not any(one.error_code for one in told), told
                quiet = all(one.assignment is None for one in told) and sum(len(one.owned) for one in members) == count
                if quiet and await self.state() == "Stable":
                    return
                await asyncio.sleep(0.01)

    async def state(self) -> str:
        return str((await self.look()).groups[0].group_state)

    async def ended(self, who: Beating, **fields: Any) -> Beating:
        """The member leaves with a heartbeat of these fields. Returns its former state, once the group has changed."""
        before = replace(who)
        await self.beat(who, **fields)
        async with asyncio.timeout(_WITHIN_S):
            while (await self.look()).groups[0].group_epoch == self.newest:
                await asyncio.sleep(0.01)
        return before

    async def member(self, member_id: str, **fields: Any) -> Beating:
        """Makes the group's only member, which owns both partitions."""
        who = await self.begin(member_id, **fields)
        await self.settle(who)
        return who

    # --- requests of tools -------------------------------------------------------------------------------------------

    async def look(self, case: str = "", version: int = 1) -> Any:
        return await self.ask("ConsumerGroupDescribe", version, case=case, group_ids=(self.group,))

    async def listed(self, case: str, version: int = 5, **fields: Any) -> None:
        """Records this group's row in the answer to ListGroups."""
        found = await self.ask("ListGroups", version, **fields)
        rows = tuple(one for one in found.groups if one.group_id == self.group)
        self.answers[case] = dict(self._flat(rows, "groups"))
