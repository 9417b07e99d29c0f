"""Deliberate defects of groups and terms. The simulator must find each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.machine import Group
from kafka_coord.classic_groups.metadata import ClassicState
from kafka_coord.classic_groups.sessions import Sessions
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroup
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.frontends.kafka.instances import Instances
from kafka_coord.grouplog import manager, term
from kafka_coord.grouplog.manager import GroupMetadataManager, partition_of
from kafka_coord.grouplog.records import Claim, claim_record, keep_alive_record
from kafka_coord.grouplog.term import PROOF_S, REFUSALS, AppendRefused, LogLoad, LogTerm, producer_of
from kafka_coord.grouplog.topics import LogTopics
from tests.simulation.groups.log import NOT_ENOUGH_AFTER_APPEND, TIMED_OUT

Patch = tuple[Any, str, Any]


def _nonce_not_compared() -> Patch:
    async def claim(self: Any, _newest: int) -> int:
        offset: int = await self._produce_next([claim_record(Claim(self.term, self._instance, "same", "t1", 1))])
        self._next_offset = offset + 1
        return offset

    return LogTerm, "claim", claim


def _base_offset_not_compared() -> Patch:
    original = LogTerm._produce_next

    async def produce(self: Any, records: Any) -> int:
        offset = await original(self, records)
        if self._writing is not None:
            self._next_offset = offset
        return offset

    return LogTerm, "_produce_next", produce


def _error_answered_by_trying_again() -> Patch:
    original = LogTerm._append_batch

    async def append(self: Any, records: Any) -> None:
        try:
            await original(self, records)
        except BrokerError:
            self._next_offset = await self._produce_next(records) + len(records)

    return LogTerm, "_append_batch", append


def _older_terms_loaded() -> Patch:
    def passed(self: Any, of_term: int) -> bool:
        self.newest = max(self.newest, of_term)
        return False

    return LogLoad, "passes_over", passed


def _answered_before_it_is_written() -> Patch:
    original = LogTerm.append

    def append(self: Any, records: Any, apply: Any = lambda: None) -> Any:
        original(self, records, apply)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    return LogTerm, "append", append


def _serves_after_its_term() -> Patch:
    return GroupMetadataManager, "_term_ended", lambda _self, *_ended: None


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
        self._sequence = 0 if self._writing is None else 1
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

    def end(self: Any, reason: str, *, planned: bool = False) -> None:
        self._under_way = []
        original(self, reason, planned=planned)

    return LogTerm, "end", end


def _expires_what_is_being_written() -> Patch:
    return GroupMetadataManager, "delete_expired_consumer_offsets", _expire_carelessly


async def _expire_carelessly(self: Any, _retention: Any) -> int:
    for group_id in self.groups():
        known = dict(self.offsets(group_id))
        await self.delete_offsets(group_id, [at for at, one in known.items() if one.committed_at_ms])
    return 0


def _earlier_producer_not_ended() -> Patch:
    original = LogTerm._produce

    async def produce(self: Any, records: Any, producer: tuple[int, int], sequence: int) -> int:
        if records == [keep_alive_record()] and producer[0] != producer_of(self.partition, self.term)[0]:
            return 0
        return await original(self, records, producer, sequence)

    return LogTerm, "_produce", produce


def _told_before_it_is_stored() -> Patch:
    original = GroupMetadataManager.store_group

    async def store(self: Any, group: Any, assignments: Any, topic_ids: Any) -> Error:
        asyncio.get_running_loop().create_task(original(self, group, assignments, topic_ids))
        return Error.NONE

    return GroupMetadataManager, "store_group", store


def _nothing_loaded() -> Patch:
    async def load(load: Any, end: int | None, _state: Any) -> None:
        async for _ in load.up_to(end):
            pass

    return manager, "_load", load


def _hold_outlasts(cause: Error) -> Patch:
    original = Group._answer_beat

    def answer(self: Any, member: Any, error: Error) -> None:
        if error is not cause:
            original(self, member, error)

    return Group, "_answer_beat", answer


def _hold_outlasts_its_connection() -> Patch:
    return Group, "_gone", lambda _self, _gone: None


def _appended_counts_as_refused() -> Patch:
    return term, "REFUSALS", REFUSALS | {NOT_ENOUGH_AFTER_APPEND, TIMED_OUT}


def _refused_commit_stays_in_memory() -> Patch:
    store = GroupMetadataManager.store_offsets

    async def store_offsets(self: Any, group_id: str, offsets: Any) -> Error:
        error = await store(self, group_id, offsets)
        if error is Error.COORDINATOR_NOT_AVAILABLE:
            self.states[partition_of(group_id)].offsets.setdefault(group_id, {}).update(offsets)
        return error

    return GroupMetadataManager, "store_offsets", store_offsets


def _refused_assignment_is_handed_out() -> Patch:
    original = GroupMetadataManager.store_group

    async def store(self: Any, group: Any, assignments: Any, topic_ids: Any) -> Error:
        error = await original(self, group, assignments, topic_ids)
        return Error.NONE if error is Error.COORDINATOR_NOT_AVAILABLE else error

    return GroupMetadataManager, "store_group", store


def _heartbeats_without_proof() -> Patch:
    async def vouch(_self: Any, _group_id: str) -> Error:
        return Error.NONE

    return GroupMetadataManager, "vouch", vouch


def _refusal_counts_as_proof() -> Patch:
    async def prove(self: Any) -> None:
        if not self.ended and self._loop.time() >= self.proven_at + PROOF_S:
            with suppress(AppendRefused):
                await self.append([keep_alive_record()])

    return LogTerm, "prove", prove


def _refused_deletion_leaves_the_group_dead() -> Patch:
    original = GroupMetadataManager.delete_group

    async def delete(self: Any, group_id: str) -> Error:
        group = self.group(group_id)
        error = await original(self, group_id)
        if error is not Error.NONE and group is not None:
            group.metadata.state = ClassicState.DEAD
        return error

    return GroupMetadataManager, "delete_group", delete


def _names_the_dead() -> Patch:
    def node(self: Any, broker_id: int, host: str, port: int) -> Any:
        return None if broker_id == self.broker_id and self.is_stopping else (broker_id, host, port)

    return Instances, "node", node


def _stops_at_once() -> Patch:
    async def stop(self: Any) -> None:
        self._instances.is_stopping = True

    return GroupCoordinator, "stop", stop


def _offsets_keyed_by_name_alone() -> Patch:
    return LogTopics, "belongs", lambda _self, _topic, _identity: True


def _hidden_offsets_deleted() -> Patch:
    return manager, "is_gone_long_enough", lambda _since_ms, _now_ms: True


def _commit_under_the_old_id_taken() -> Patch:
    return ClientAssignedGroup, "_given", lambda _self, _commit: {}


def _earlier_partitions_kept() -> Patch:
    return ClientAssignedGroup, "_withhold", lambda _self, assignments, _topic_ids: dict(assignments)


def _hidden_topics_have_no_id() -> Patch:
    original = ClientAssignedGroup._topic_ids

    async def topic_ids(self: Any, assignments: Any) -> dict[str, str]:
        found = await original(self, assignments)
        return {topic: identity for topic, identity in found.items() if self._manager.topics.identity(topic)}

    return ClientAssignedGroup, "_topic_ids", topic_ids


def _unheard_members_get_full_sessions() -> Patch:
    def left_s(_self: Any, _group: str, _member_id: str, session_timeout_s: float, _least_s: float) -> float:
        return session_timeout_s

    return Sessions, "left_s", left_s


def _vanished_newcomer_waited_for() -> Patch:
    def complete(self: Any, now: float) -> None:
        group = self.metadata
        waits = self._initial or group.pending or not group.has_all_joined
        if group.state is ClassicState.PREPARING_REBALANCE and not waits:
            self._complete_join(now)

    return Group, "_complete_join_if_all_joined", complete


def _closed_connection_ends_the_term() -> Patch:
    async def send(self: Any, request: Any) -> Any:
        return await self._broker.ask("Produce", 3, request, reopens=self._next_offset < 0)

    return LogTerm, "_send", send


def _removed_before_it_is_empty() -> Patch:
    return GroupMetadataManager, "_emptiness", lambda _self, _group_id: iter(())


def _sessions_run_in_outages() -> Patch:
    return LogTerm, "now", lambda self: self._loop.time()


def _older_tree_claims() -> Patch:
    return LogLoad, "check", lambda _self, _own, _term=None: None


def _skipped_ids_not_fenced() -> Patch:
    original = LogTerm.claim

    async def claim(self: Any, _newest: int) -> int:
        return await original(self)

    return LogTerm, "claim", claim


def _term_guessed() -> Patch:
    def passed(self: Any, of_term: int) -> bool:
        before, self.guessed_from = getattr(self, "guessed_from", -1), of_term
        return of_term < before

    return LogLoad, "passes_over", passed


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
    "sequence numbers are used again although the broker has the batch": _appended_counts_as_refused,
    "a refused commit stays in memory": _refused_commit_stays_in_memory,
    "a refused assignment is handed out": _refused_assignment_is_handed_out,
    "heartbeats are answered without a proof while writes are refused": _heartbeats_without_proof,
    "a refusal counts as a proof": _refusal_counts_as_proof,
    "a group whose deletion was refused stays dead": _refused_deletion_leaves_the_group_dead,
    "a dead instance is named after its session ended": _names_the_dead,
    "a planned stop does not answer what is in flight": _stops_at_once,
    "offsets are keyed by the topic's name alone": _offsets_keyed_by_name_alone,
    "the offsets of a hidden topic are deleted": _hidden_offsets_deleted,
    "a commit under the old id is taken": _commit_under_the_old_id_taken,
    "a cooperative member keeps the partitions of an earlier topic": _earlier_partitions_kept,
    "a generation whose topic was hidden knows no id": _hidden_topics_have_no_id,
    "members that were not heard get full sessions": _unheard_members_get_full_sessions,
    "a newcomer that has vanished holds up the first join": _vanished_newcomer_waited_for,
    "a group is removed before the log says that it is empty": _removed_before_it_is_empty,
    "a closed connection ends the term": _closed_connection_ends_the_term,
    "sessions run while nobody is answered": _sessions_run_in_outages,
    "an instance of an older tree claims": _older_tree_claims,
    "producer ids that a claim skips are not fenced": _skipped_ids_not_fenced,
    "the number of a term is guessed from its znode": _term_guessed,
}

TELLING = {
    "the claim's nonce is not compared": frozenset({"znode", "move", "twin", "kill"}),
    "the base offset is not compared": frozenset({"forget", "away", "delay"}),
    "batches of older terms are loaded": frozenset({"forget", "away"}),
    "a newer term does not wait": frozenset({"twin"}),
    "generations are not compared": frozenset({"delay", "client-freeze"}),
    "a term ends and does not tell who waits": frozenset({"move", "delay"}),
    "a static member that was replaced is not fenced": frozenset({"return"}),
    "a heartbeat is held for a member that was removed": frozenset({"evict"}),
    "a heartbeat is held for a connection that was lost": frozenset({"client-kill"}),
    "sequence numbers are used again although the broker has the batch": frozenset({"unclear", "replicas"}),
    "a refused commit stays in memory": frozenset({"deny", "replicas"}),
    "a refused assignment is handed out": frozenset({"deny", "replicas", "client-kill"}),
    "heartbeats are answered without a proof while writes are refused": frozenset({"deny", "zookeeper"}),
    "a refusal counts as a proof": frozenset({"deny", "twin", "replicas"}),
    "a group whose deletion was refused stays dead": frozenset({"deny", "delete"}),
    "a dead instance is named after its session ended": frozenset({"die", "move"}),
    "a planned stop does not answer what is in flight": frozenset({"stop", "delay"}),
    "offsets are keyed by the topic's name alone": frozenset({"topics"}),
    "the offsets of a hidden topic are deleted": frozenset({"topics"}),
    "a commit under the old id is taken": frozenset({"topics"}),
    "a cooperative member keeps the partitions of an earlier topic": frozenset({"topics"}),
    "a generation whose topic was hidden knows no id": frozenset({"topics"}),
    "members that were not heard get full sessions": frozenset({"alternate"}),
    "a newcomer that has vanished holds up the first join": frozenset({"newcomer"}),
    "a group is removed before the log says that it is empty": frozenset({"emptied"}),
    "a closed connection ends the term": frozenset({"idle"}),
    "sessions run while nobody is answered": frozenset({"outage"}),
    "an instance of an older tree claims": frozenset({"restore"}),
    "producer ids that a claim skips are not fenced": frozenset({"ahead"}),
    "the number of a term is guessed from its znode": frozenset({"znode", "move"}),
}
"""The faults that reveal a defect soon. Other faults would hide it."""


@contextmanager
def patched(patch: Patch) -> Iterator[None]:
    """Replaces an attribute until the end of the block."""
    where, attribute, defect = patch
    before = where.__dict__[attribute]
    setattr(where, attribute, defect)
    try:
        yield
    finally:
        setattr(where, attribute, before)


def planted(name: str) -> AbstractContextManager[None]:
    """Plants the defect until the end of the block."""
    return patched(PLANTED[name]())
