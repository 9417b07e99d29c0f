"""Deliberate defects of groups and terms. The simulator must find each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import Group
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.grouplog import manager, term
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.grouplog.records import Claim, claim_record, keep_alive_record
from kafka_coord.grouplog.term import LogTerm, producer_of
from kafka_coord.grouplog.topics import Topics

Patch = tuple[Any, str, Any]


def _nonce_not_compared() -> Patch:
    async def claim(self: Any) -> int:
        offset: int = await self._produce_next([claim_record(Claim(self.term, self._instance, "same"))])
        self._next_offset = offset + 1
        return offset

    return LogTerm, "claim", claim


def _base_offset_not_compared() -> Patch:
    original = LogTerm._produce_next

    async def produce(self: Any, records: Any) -> int:
        offset = await original(self, records)
        if self._writer is not None:
            self._next_offset = offset
        return offset

    return LogTerm, "_produce_next", produce


def _error_answered_by_trying_again() -> Patch:
    original = LogTerm._append_batch

    async def append(self: Any, records: Any) -> None:
        try:
            await original(self, records)
        except BrokerError:
            self._broker.closed = False
            self._next_offset = await self._produce_next(records) + len(records)

    return LogTerm, "_append_batch", append


def _older_terms_loaded() -> Patch:
    async def load(self: Any, claimed_at: int) -> Any:
        async for batch in self._reader.batches(await self._reader.first_offset(), claimed_at):
            for record in batch.records:
                if record.offset < claimed_at:
                    yield record

    return LogTerm, "load", load


def _answered_before_it_is_written() -> Patch:
    original = LogTerm.append

    def append(self: Any, records: Any, apply: Any = lambda: None) -> Any:
        original(self, records, apply)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    return LogTerm, "append", append


def _serves_after_its_term() -> Patch:
    return GroupMetadataManager, "_term_ended", lambda _self, _partition, _broker, _reason: None


def _generation_not_compared() -> Patch:
    original = Group._check_current

    def check(self: Any, member_id: str, instance_id: str | None, _generation: int) -> Error:
        return original(self, member_id, instance_id, self.metadata.generation_id)

    return Group, "_check_current", check


def _static_member_not_fenced() -> Patch:
    original = Group.may_commit

    def may_commit(
        self: Any, member_id: str, instance_id: str | None, generation_id: int, now: float, connection: int
    ) -> Error:
        error = original(self, member_id, instance_id, generation_id, now, connection)
        known = generation_id == self.metadata.generation_id and instance_id is not None
        return Error.NONE if known and error is Error.FENCED_INSTANCE_ID else error

    return Group, "may_commit", may_commit


def _one_epoch_for_all_terms() -> Patch:
    return term, "producer_of", lambda partition, _number: producer_of(partition, 0)


def _sequence_used_again() -> Patch:
    async def produce(self: Any, records: Any) -> int:
        self._sequence = 0 if self._writer is None else 1
        return int(await self._produce(records, producer_of(self.partition, self.term), self._sequence))

    return LogTerm, "_produce_next", produce


def _newer_term_does_not_wait() -> Patch:
    async def outlast(self: Any, _answered_at: float) -> None:
        return

    return LogTerm, "outlast", outlast


def _read_without_proof() -> Patch:
    async def prove(self: Any) -> None:
        return

    return LogTerm, "prove", prove


def _term_ends_without_telling_who_waits() -> Patch:
    original = LogTerm.end

    def end(self: Any, reason: str) -> None:
        self._under_way = []
        original(self, reason)

    return LogTerm, "end", end


def _expires_what_is_being_written() -> Patch:
    return GroupMetadataManager, "delete_expired_consumer_offsets", _expire_carelessly


async def _expire_carelessly(self: Any, retention_ms: int) -> int:
    for group_id in list(self.groups_cache):
        known = dict(self.offsets_cache.get(group_id, {}))
        await self.delete_offsets(group_id, [at for at, one in known.items() if one.committed_at_ms])
    return retention_ms


def _earlier_producer_not_ended() -> Patch:
    original = LogTerm._produce

    async def produce(self: Any, records: Any, producer: tuple[int, int], sequence: int) -> int:
        if records == [keep_alive_record()] and producer[0] != producer_of(self.partition, self.term)[0]:
            return 0
        return await original(self, records, producer, sequence)

    return LogTerm, "_produce", produce


def _told_before_it_is_stored() -> Patch:
    original = GroupMetadataManager.store_group

    async def store(self: Any, group: Any, assignments: Any) -> Error:
        asyncio.get_running_loop().create_task(original(self, group, assignments))
        return Error.NONE

    return GroupMetadataManager, "store_group", store


def _nothing_loaded() -> Patch:
    async def load(_term: Any, _claimed_at: int) -> Any:
        return manager._Loaded()

    return manager, "_load", load


def _hold_outlasts(cause: Error) -> Patch:
    original = Group._answer_beat

    def answer(self: Any, member: Any, error: Error) -> None:
        if error is not cause:
            original(self, member, error)

    return Group, "_answer_beat", answer


def _hold_outlasts_its_connection() -> Patch:
    return Group, "_gone", lambda _self, _gone: None


def _offsets_keyed_by_name_alone() -> Patch:
    return Topics, "belongs", lambda _self, _topic, _identity: True


def _hidden_offsets_deleted() -> Patch:
    def forgets(self: Any, topic: str, identity: str, _now_ms: float) -> bool:
        return not self.belongs(topic, identity)

    return Topics, "forgets", forgets


def _commit_under_the_old_id_taken() -> Patch:
    return GroupCoordinator, "_given", lambda _self, _request: {}


PLANTED: dict[str, Callable[[], Patch]] = {
    "the claim's nonce is not compared": _nonce_not_compared,
    "the base offset is not compared": _base_offset_not_compared,
    "a failed write is repeated": _error_answered_by_trying_again,
    "batches of older terms are loaded": _older_terms_loaded,
    "answered before it is written": _answered_before_it_is_written,
    "groups are served after the term": _serves_after_its_term,
    "generations are not compared": _generation_not_compared,
    "a static member that was replaced is not fenced": _static_member_not_fenced,
    "all terms have one epoch": _one_epoch_for_all_terms,
    "a sequence number is used again": _sequence_used_again,
    "a newer term does not wait": _newer_term_does_not_wait,
    "memory is read without a check of the term": _read_without_proof,
    "a term ends and does not tell who waits": _term_ends_without_telling_who_waits,
    "offsets expire while members use them": _expires_what_is_being_written,
    "the terms of an earlier producer id are not ended": _earlier_producer_not_ended,
    "members are told what is not stored": _told_before_it_is_stored,
    "nothing is loaded": _nothing_loaded,
    "a heartbeat is held through a rebalance": partial(_hold_outlasts, Error.REBALANCE_IN_PROGRESS),
    "a heartbeat is held for a member that was removed": partial(_hold_outlasts, Error.UNKNOWN_MEMBER_ID),
    "a heartbeat is held for a connection that was lost": _hold_outlasts_its_connection,
    "offsets are keyed by the topic's name alone": _offsets_keyed_by_name_alone,
    "the offsets of a hidden topic are deleted": _hidden_offsets_deleted,
    "a commit under the old id is taken": _commit_under_the_old_id_taken,
}

TELLING = {
    "the claim's nonce is not compared": frozenset({"znode", "move", "twin", "kill"}),
    "the base offset is not compared": frozenset({"forget", "away", "delay"}),
    "batches of older terms are loaded": frozenset({"forget", "away"}),
    "a newer term does not wait": frozenset({"twin"}),
    "generations are not compared": frozenset({"delay", "client-freeze"}),
    "a term ends and does not tell who waits": frozenset({"move", "delay"}),
    "a static member that was replaced is not fenced": frozenset({"client-kill", "delay"}),
    "a heartbeat is held for a member that was removed": frozenset({"lazy", "delay"}),
    "offsets are keyed by the topic's name alone": frozenset({"topics"}),
    "the offsets of a hidden topic are deleted": frozenset({"topics"}),
    "a commit under the old id is taken": frozenset({"topics"}),
}
"""The faults that reveal a defect soon. Other faults would hide it."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plants the defect until the end of the block."""
    where, attribute, defect = PLANTED[name]()
    before = where.__dict__[attribute]
    setattr(where, attribute, defect)
    try:
        yield
    finally:
        setattr(where, attribute, before)
