"""Requests of operators' tools about managed groups: show and delete groups, and change their offsets.

Reads go to ZooKeeper. Changes are requests to the elected coordinator, like those of this project's own commands.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import MalformedValue, NoNode, StoreError
from kafka_coord.frontends.kafka.managed.adopting import begin_adoption
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.frontends.kafka.managed.topic_ids import TopicIds
from kafka_coord.frontends.kafka.managed.views import GroupView, KnownMember, State, read_groups, state_of, topics_of
from kafka_coord.model import Observation, PartitionSet, Request, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Seconds that a tool waits for the coordinator's answer."""
_LOOK_AGAIN_S = 0.05
_AT_ONCE = 200
"""Groups in one read, for which others wait."""
_OFFSETS_AT_ONCE = 2_000
"""The coordinator writes each request as one multi."""
_DONE = "done"


class Administration:
    """One event loop; other threads ask ZooKeeper."""

    def __init__(self, store: Store, terms: ManagedTerms) -> None:
        self._store, self._terms = store, terms

    async def states(self, groups: Sequence[str]) -> dict[str, State]:
        """The groups that exist and can be read."""
        found: dict[str, State] = {}
        for part in _parts(groups):
            try:
                seen = await asyncio.to_thread(read_groups, self._store, part)
            except StoreError as error:
                log.warning("cannot read managed groups: %s", error)
                break
            found |= {group: state_of(one) for group, one in seen.items() if isinstance(one, Observation)}
        return found

    async def views(self, groups: Sequence[str]) -> dict[str, GroupView]:
        found: dict[str, GroupView] = {}
        for part in _parts(groups):
            found |= await asyncio.to_thread(self._views, part)
        return found

    def _views(self, groups: Sequence[str]) -> dict[str, GroupView]:
        ids = TopicIds(self._store)
        try:
            seen = read_groups(self._store, groups)
            ids.learn(set().union(*(topics_of(one) for one in seen.values() if isinstance(one, Observation))))
        except StoreError as error:
            log.warning("cannot read managed groups: %s", error)
            return {group: GroupView(group, Error.COORDINATOR_NOT_AVAILABLE) for group in groups}
        return {group: self._view(group, one, ids) for group, one in seen.items()}

    def _view(self, group: str, seen: Observation | StoreError | None, ids: TopicIds) -> GroupView:
        if isinstance(seen, StoreError):
            log.warning("cannot read group=%s: %s", group, seen)
            return GroupView(group, Error.COORDINATOR_NOT_AVAILABLE)
        heard_of = self._terms.heard_of(group)
        served = {one.key[1]: KnownMember(one.member_id, one.epoch, one.is_static) for one in heard_of}
        return GroupView(group, Error.NONE, seen, served, ids)

    # --- changes -----------------------------------------------------------------------------------------------------

    async def adopt(self, group: str, offsets: Mapping[TopicPartition, int]) -> Error:
        """Creates the group with these offsets. Existing offsets stay unchanged."""
        try:
            missing = await asyncio.to_thread(begin_adoption, self._store, group, offsets)
        except StoreError as error:
            log.warning("cannot take over group=%s: %s", group, error)
            return Error.COORDINATOR_NOT_AVAILABLE
        self._terms.made(group)
        partitions = sorted(missing)
        for at in range(0, len(partitions), _OFFSETS_AT_ONCE):
            part = {tp: missing[tp] for tp in partitions[at : at + _OFFSETS_AT_ONCE]}
            refusal = await self.set_offsets(group, part)
            if refusal is not Error.NONE:
                return refusal
        return Error.NONE

    async def delete(self, group: str) -> Error:
        return await self._ask(Request(RequestType.DELETE_GROUP, group), Error.NON_EMPTY_GROUP)

    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> Error:
        """Sets offsets of partitions that no member holds."""
        return await self._ask(Request(RequestType.RESET_OFFSETS, group, offsets=offsets), Error.UNKNOWN_MEMBER_ID)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> Error:
        """Deletes offsets of partitions that no member holds."""
        request = Request(RequestType.DELETE_OFFSETS, group, partitions=PartitionSet.of(partitions))
        return await self._ask(request, Error.GROUP_SUBSCRIBED_TO_TOPIC)

    async def _ask(self, request: Request, refused: Error) -> Error:
        """``refused`` is the error if the coordinator refuses."""
        request = replace(request, by="a Kafka client", timestamp_ms=time.time_ns() // 1_000_000)
        try:
            answered = await self._answer(request)
        except StoreError as error:
            log.warning("cannot ask the coordinator to %s group=%s: %s", request.type, request.group, error)
            return Error.COORDINATOR_NOT_AVAILABLE
        if answered is None:
            log.warning("no answer from the coordinator to %s group=%s", request.type, request.group)
            return Error.COORDINATOR_NOT_AVAILABLE
        log.info("%s group=%s result=%s: %s", request.type, request.group, answered.result, answered.message)
        return Error.NONE if answered.result == _DONE else refused

    async def _answer(self, request: Request) -> Request | None:
        """The answered request; ``None`` if there is no answer in time: then the request is withdrawn. Raises
        :class:`StoreError`."""
        store, loop = self._store, asyncio.get_running_loop()
        data = fields.dump(request.to_json())
        path = await asyncio.to_thread(store.create, layout.REQUEST_PREFIX, data, sequence=True)
        deadline = loop.time() + ANSWER_S
        try:
            while loop.time() < deadline:
                found = await asyncio.to_thread(store.get, path)
                with suppress(MalformedValue):
                    answered = Request.from_json(fields.load(found.data, path), path.rpartition("/")[2], path)
                    if answered.answered:
                        return answered
                await asyncio.sleep(_LOOK_AGAIN_S)
        except NoNode:  # somebody withdrew it
            return None
        finally:
            with suppress(StoreError):
                await asyncio.to_thread(store.delete, path)
        return None


def _parts(groups: Sequence[str]) -> Iterator[Sequence[str]]:
    return (groups[at : at + _AT_ONCE] for at in range(0, len(groups), _AT_ONCE))
