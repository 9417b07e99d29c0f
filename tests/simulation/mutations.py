"""Deliberate defects. The simulator must find each defect, which proves that its judge can fail a history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaError
from msgspec import structs

from kafka_coord.channel.membership import Membership
from kafka_coord.channel.operations import Registration
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.command_loop import CommandLoop
from kafka_coord.consumer.connector import Connector
from kafka_coord.consumer.fetcher import FetchErrors
from kafka_coord.consumer.settings import OffsetReset
from kafka_coord.consumer.stream_partitions import FetchedRuns, HeldPartition
from kafka_coord.coordinator import decision_writer, group_reader, image, start_offsets
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.group_reader import GroupReader
from kafka_coord.coordinator.offset_expiry import Expiration
from kafka_coord.coordinator.plan import member_update, target
from kafka_coord.coordinator.queue import RebalanceRequestQueue
from kafka_coord.coordinator.start_offsets import FirstEnds, StartOffsets, read_start_offsets
from kafka_coord.frontends.members.fenced_store import FencedStore
from kafka_coord.frontends.members.machine import MembershipMachine
from kafka_coord.frontends.members.machine.stimuli import MemberWritten
from kafka_coord.frontends.members.machine.writes import Writes
from kafka_coord.frontends.members.term import Term
from kafka_coord.frontends.members.writes import Writer
from kafka_coord.frontends.socket.gateway import HeardNote
from kafka_coord.model import NO_OFFSET, NO_PARTITIONS, Ledger, Zxids
from kafka_coord.zk import layout
from kafka_coord.zk.election import ZkElection
from kafka_coord.zk.layout import COORDINATOR_EPOCH
from kafka_coord.zk.store import Check, GetData
from tests.simulation.applications import SimulatedFetchers
from tests.simulation.brokers import POLLED_MUTATIONS
from tests.simulation.faults import (
    CUT_LOG,
    DEAD_MEMBER,
    ENCORES,
    FORBIDDEN,
    LATE,
    MARKERS,
    NO_LEADER,
    OFTEN,
    POLLS,
    RETENTION,
    SEEK,
    SILENCE,
    SOCKETS,
    SUBSCRIBE,
    UNREADABLE,
)
from tests.simulation.kafka_mutations import KAFKA_MUTATIONS, KAFKA_TELLING
from tests.simulation.rule_mutations import RULE_MUTATIONS

Patch = tuple[Any, str, Any]


def _no_epoch_check() -> Patch:
    def write(self: Any, units: Any) -> Any:
        return [self._store.multi([Check(COORDINATOR_EPOCH), *unit]) for unit in units]

    return Executor, "write", write


def _no_token_check() -> Patch:
    return Registration, "fence", lambda _self: (Check("/"), Check("/"))


def _held_is_only_what_is_owned() -> Patch:
    return Ledger, "held", property(lambda self: self.owned)


def _acknowledge_without_offsets() -> Patch:
    original = ConsumerChannel.acknowledge
    return ConsumerChannel, "acknowledge", lambda self, who, command, _offsets: original(self, who, command, {})


def _stop_offsets_written_again() -> Patch:
    original = ConsumerChannel.acknowledge

    def acknowledge(self: Any, who: Any, command: Any, offsets: Any) -> Any:
        found = original(self, who, command, offsets)
        self.commit(who, offsets)
        return found

    return ConsumerChannel, "acknowledge", acknowledge


def _acknowledge_without_stopping() -> Patch:
    return SimulatedFetchers, "release", lambda self, partitions: self.uncommitted(partitions)


def _hand_out_without_proof() -> Patch:
    return Connector, "may_hand_out", lambda self: self.registration is not None


def _hand_out_while_waiting() -> Patch:
    original = Connector.may_hand_out
    return Connector, "may_hand_out", lambda self: self.waits or original(self)


def _go_on_without_listing() -> Patch:
    def goes_on(self: Any, _registration: Any, _since: float) -> bool:
        self._waiting_since, self._commands.listed_at = None, self._store.clock.monotonic()
        return True

    return Connector, "_goes_on", goes_on


def _marker_passed_too_early() -> Patch:
    return FetchedRuns, "reached", lambda _self, holding, offset: holding.reach(offset)


def _marker_never_passed() -> Patch:
    return HeldPartition, "reach", lambda _self, _offset: None


def _overtaken_group_begins_at_the_end() -> Patch:
    def out_of_range(self: Any, holding: HeldPartition, _error: KafkaError) -> None:
        _, end = self._client.bounds_of(holding.partition)
        self._partitions.seek(holding, end if self._reset is OffsetReset.LATEST else NO_OFFSET)

    return FetchErrors, "_out_of_range", out_of_range


def _full_sessions_in_each_term() -> Patch:
    return HeardNote, "session_left_s", lambda _self, _member, options: options.session_timeout_s


def _cut_log_is_out_of_range() -> Patch:
    def truncated(self: Any, holding: HeldPartition, _end: int) -> None:
        self._out_of_range(holding, KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))

    return FetchErrors, "_truncated", truncated


def _cut_log_is_not_noticed() -> Patch:
    return FetchErrors, "_truncated", lambda self, holding, _end: self._partitions.try_again(holding.partition)


def _events_are_dropped() -> Patch:
    return RebalanceRequestQueue, "request", lambda _self, _group: None


def _release_while_a_stop_is_outstanding() -> Patch:
    original = member_update.member_update_of

    def member_update_of(*args: Any) -> Any:
        update = original(*args)
        if update.stop_outstanding:
            update.released = update.released | update.ledger.stopping
            update.ledger = structs.replace(update.ledger, stopping=NO_PARTITIONS)
        return update

    return member_update, "member_update_of", member_update_of


def _coordinator_without_incarnation_check() -> Patch:
    return member_update, "is_dead", lambda _ledger, _member: False


def _consumer_without_incarnation_check() -> Patch:
    original = ConsumerChannel.read

    def read(self: Any, command_id: Any) -> Any:
        command, mine = original(self, command_id), self._store.exists(self._registration_path)
        return command if command is None or mine is None else structs.replace(command, incarnation=mine.czxid)

    return ConsumerChannel, "read", read


def _stale_start_offset() -> Patch:
    read_once: dict[Any, int] = {}

    def read_first(store: Any, *args: Any) -> Any:
        found = read_start_offsets(store, *args)
        once = {tp: read_once.setdefault((store, tp), offset) for tp, offset in found.offsets.items()}
        return replace(found, offsets=once)

    return decision_writer, "read_start_offsets", read_first


def _commands_in_any_order() -> Patch:
    original = ConsumerChannel.outstanding

    def outstanding(self: Any, watcher: Any = None) -> Any:
        commands, strays = original(self, watcher)
        return commands[::-1], strays

    return ConsumerChannel, "outstanding", outstanding


def _lost_reply_answered_by_trying_again() -> Patch:
    """The instance takes its own znode for another instance's, so nobody coordinates while that znode exists."""
    return ZkElection, "_own_election", lambda self, _node, _session_id: self._leadership


def _acknowledge_without_starting() -> Patch:
    return SimulatedFetchers, "hold", lambda _self, _starts: None


def _generation_not_increased() -> Patch:
    original = target._next_generation

    def next_generation(observation: Any) -> int:
        return observation.assignment.generation if observation.assignment is not None else original(observation)

    return target, "_next_generation", next_generation


def _bit_cleared_after_looking() -> Patch:
    original = GroupReader.snapshots

    def snapshots(self: Any, memories: Any) -> Any:
        bits, groups = self._queue.groups_being_rebalanced, [memory.group for memory in memories]
        bits.update(groups)
        try:
            return original(self, memories)
        finally:
            bits.difference_update(groups)

    return GroupReader, "snapshots", snapshots


def _heard_before_stored() -> Patch:
    original = MembershipMachine._probe_answered

    def probe_answered(self: Any, answered: Any) -> None:
        original(self, answered)
        member = self.connections.get(answered.connection)
        if member is not None:
            member.heard = member.answered_up_to
            self._writes.offers_due += 5.0

    return MembershipMachine, "_probe_answered", probe_answered


def _done_before_written() -> Patch:
    original = Writes.command_acknowledged

    def command_acknowledged(self: Any, acknowledged: Any) -> None:
        original(self, acknowledged)
        member = self._machine.connections.get(acknowledged.connection)
        if member is not None:
            member.done = acknowledged.command
            self._machine.probe(member)

    return Writes, "command_acknowledged", command_acknowledged


def _proof_from_when_it_is_heard() -> Patch:
    original = Membership.handle_ping_request

    def handle_ping_request(self: Any, connected: Any, registered: Any, asked: Any, now: float) -> None:
        original(self, connected, registered, asked, now)
        registered.lease_start = now

    return Membership, "handle_ping_request", handle_ping_request


def _no_new_session_after_an_election() -> Patch:
    original = Term.begin

    def begin(self: Any) -> None:
        original(self)
        for member in self.machine.members.values():
            member.deadline = self.machine.now
            self.machine._deadlines.add(member.deadline, member)

    return Term, "begin", begin


def _called_stored_unwritten() -> Patch:
    original = Membership.acknowledge

    def acknowledge(self: Any, registration: Any, command: Any, offsets: Any) -> Any:
        found = self._registered.commands.get(command) if self._registered is not None else None
        settled = found.answer if found is not None else None
        return original(self, registration, command, offsets if settled is None else settled)

    return Membership, "acknowledge", acknowledge


def _leave_without_offsets() -> Patch:
    def write_leave(self: Any, registration: Any, closing: Any) -> None:
        self._channel.leave(registration, {}, for_good=closing.for_good)
        self._end_membership()

    return Connector, "_write_leave", write_leave


def _several_writes_under_way() -> tuple[Patch, ...]:
    """A request may have several writes of one member. After a lost reply, each write is repeated alone."""
    under_way: dict[tuple[Any, int], Any] = {}
    next_one, stored_one = Writes._next, Writes.member_written

    def send_all(self: Any, member: Any) -> None:
        next_one(self, member)
        while member.writing is not None and member.writes and self._machine.is_current(member):
            under_way[member.id, member.write_number] = member.writing
            member.writing = None
            next_one(self, member)

    def member_written(self: Any, found: Any) -> None:
        member, earlier = self._machine.current(found.member), under_way.pop((found.member, found.number), None)
        if member is None or earlier is None:
            stored_one(self, found)
            return
        last, member.writing = member.writing, earlier
        self._done(member, found)
        member.writing = last

    def add(self: Any, write: Any) -> None:
        self._writes[write.wanted.member, write.wanted.number] = write

    def done(self: Any, write: Any, *outcome: Any, **more: Any) -> None:
        wanted = write.wanted
        del self._writes[wanted.member, wanted.number]
        self._report(_stored(wanted, *outcome, **more))

    return (
        (Writes, "_next", send_all),
        (Writes, "member_written", member_written),
        (Writer, "add", add),
        (Writer, "_done", done),
    )


def _stored(wanted: Any, refused: frozenset[str] = frozenset(), trouble: Any = None, reason: str = "") -> MemberWritten:
    return MemberWritten(wanted.member, wanted.number, refused, trouble, reason)


def _settled_whatever_has_happened() -> Patch:
    return Zxids, "hold", lambda _self, _ids, _now=None: True


def _zxids_of_after_the_look() -> Patch:
    original = group_reader.observe

    def with_later_zxids(store: Any, found: Any) -> Any:
        if not isinstance(found, image.Snapshot) or found.image.zxids is None:
            return found
        group = found.observation.group
        paths = (layout.group(group), layout.ids(group), layout.owners(group), layout.channels(group))
        nodes = store.read_many([GetData(path) for path in (*paths, layout.assignment(group))])
        return replace(found, image=replace(found.image, zxids=image._zxids(*nodes)))

    def observe_first(store: Any, *args: Any, **options: Any) -> Any:
        return [with_later_zxids(store, found) for found in original(store, *args, **options)]

    return group_reader, "observe", observe_first


def _gateway_without_epoch_check() -> Patch:
    return FencedStore, "multi", lambda self, ops: self._store.multi(ops)


def _new_subscription_without_offsets() -> Patch:
    original = Connector._gave_up

    def gave_up(self: Any, registration: Any) -> bool:
        self._fetchers.uncommitted = dict
        try:
            return original(self, registration)
        finally:
            del self._fetchers.uncommitted

    return Connector, "_gave_up", gave_up


def _later_partition_counts_as_a_first_start() -> Patch:
    def read(*args: Any) -> Any:
        return replace(read_start_offsets(*args), later=frozenset())

    return decision_writer, "read_start_offsets", read


def _partitions_counted_at_every_start() -> Patch:
    original = start_offsets._of_topic

    def of_topic(path: Any, node: Any, below: Any, topic: Any, *args: Any, **more: Any) -> Any:
        found = original(path, node, below, topic, *args, **more)
        return found if found.stale else replace(found, first=len(topic.partitions))

    return start_offsets, "_of_topic", of_topic


def _lost_count_is_the_present_one() -> Patch:
    original = start_offsets._of_topic

    def of_topic(*args: Any, **_more: Any) -> Any:
        return original(*args, was_covered=False)

    return start_offsets, "_of_topic", of_topic


def _start_waits_for_every_position() -> Patch:
    original = CommandLoop._start

    def start(self: Any, registration: Any, current: Any, command: Any) -> bool:
        self._fetchers.hold(command.starts)
        if self._fetchers.unresolved().keys() - self._fetchers.listed_ends().keys():
            return False
        return original(self, registration, current, command)

    return CommandLoop, "_start", start


def _no_instance_lists_ends() -> Patch:
    return FirstEnds, "step", lambda _self: 1.0


def _offsets_expire_at_once() -> Patch:
    return Expiration, "is_over", lambda _self, _offset: True


def _stored_is_not_committed_again() -> Patch:
    original = HeldPartition.admit

    def admit(self: Any, offset: int) -> int | None:
        return None if offset == self.committed else original(self, offset)

    return HeldPartition, "admit", admit


def _remembered_only_with_a_start() -> Patch:
    return decision_writer, "_covering", lambda *_: StartOffsets()


MUTATIONS: dict[str, Callable[[], Patch | tuple[Patch, ...]]] = {
    "no epoch check": _no_epoch_check,
    "no token check": _no_token_check,
    "offsets of topics that nobody subscribes to expire at once": _offsets_expire_at_once,
    "only owned partitions count as held": _held_is_only_what_is_owned,
    "a stop acknowledged before its offsets are committed": _acknowledge_without_offsets,
    "a stop's offsets written again": _stop_offsets_written_again,
    "a stop acknowledged without stopping": _acknowledge_without_stopping,
    "records delivered without a lease": _hand_out_without_proof,
    "a waiting consumer hands out": _hand_out_while_waiting,
    "a consumer goes on without listing its channel first": _go_on_without_listing,
    "a marker is passed before the record before it is handed out": _marker_passed_too_early,
    "the last marker of a log is never passed": _marker_never_passed,
    "a group that retention has overtaken goes on where a new one begins": _overtaken_group_begins_at_the_end,
    "dead socket members get full sessions": _full_sessions_in_each_term,
    "a position in a cut log is out of range": _cut_log_is_out_of_range,
    "a cut log is not noticed": _cut_log_is_not_noticed,
    "events are dropped": _events_are_dropped,
    "partitions released while a stop is outstanding": _release_while_a_stop_is_outstanding,
    "no incarnation check by the coordinator": _coordinator_without_incarnation_check,
    "no incarnation check by the consumer": _consumer_without_incarnation_check,
    "a start with an outdated offset": _stale_start_offset,
    "commands carried out in any order": _commands_in_any_order,
    "an election whose response was lost is retried": _lost_reply_answered_by_trying_again,
    "a start acknowledged without starting": _acknowledge_without_starting,
    "a generation that is not increased": _generation_not_increased,
    "a group's event bit cleared after reading": _bit_cleared_after_looking,
    "a gateway's write without the epoch": _gateway_without_epoch_check,
    "a ping counts as received before its offsets are stored": _heard_before_stored,
    "an acknowledgement counts as done before it is written": _done_before_written,
    "a lease counts from the arrival of a ping": _proof_from_when_it_is_heard,
    "no new session timeout after an election": _no_new_session_after_an_election,
    "records consumed before a start is stored count as stored": _called_stored_unwritten,
    "two writes for one member in one request": _several_writes_under_way,
    "a leave without offsets": _leave_without_offsets,
    "a new subscription without offsets": _new_subscription_without_offsets,
    "a settled group stays settled whatever happens": _settled_whatever_has_happened,
    "zxids of a group at rest read after its state": _zxids_of_after_the_look,
    "a later partition counts as a first start": _later_partition_counts_as_a_first_start,
    "the partitions of a topic are counted at every start": _partitions_counted_at_every_start,
    "a lost count of partitions is replaced by the present one": _lost_count_is_the_present_one,
    "a start waits until every partition has a position": _start_waits_for_every_position,
    "no instance lists the ends that members cannot": _no_instance_lists_ends,
    "a subscription is remembered only with a start": _remembered_only_with_a_start,
    "a stored offset is not committed again while another commit is under way": _stored_is_not_committed_again,
    **KAFKA_MUTATIONS,
    **POLLED_MUTATIONS,
}


TELLING = {
    **dict.fromkeys(POLLED_MUTATIONS, frozenset({POLLS, "grow"})),
    "a start waits until every partition has a position": frozenset({NO_LEADER, "grow"}),
    "no instance lists the ends that members cannot": frozenset({FORBIDDEN, "grow"}),
    "a later partition counts as a first start": frozenset({"grow", "kill"}),
    "a subscription is remembered only with a start": frozenset({LATE, "kill"}),
    "the partitions of a topic are counted at every start": frozenset({"grow", "kill"}),
    "a lost count of partitions is replaced by the present one": frozenset({UNREADABLE, "grow", "kill"}),
    "a waiting consumer hands out": frozenset({SILENCE, "evict"}),
    "a consumer goes on without listing its channel first": frozenset({SILENCE, "rebalance"}),
    "a marker is passed before the record before it is handed out": frozenset({MARKERS, "grow"}),
    "the last marker of a log is never passed": frozenset({MARKERS, "grow"}),
    "a group that retention has overtaken goes on where a new one begins": frozenset({RETENTION, "grow"}),
    "dead socket members get full sessions": frozenset({DEAD_MEMBER}),
    "a position in a cut log is out of range": frozenset({CUT_LOG, "grow"}),
    "a cut log is not noticed": frozenset({CUT_LOG, "grow"}),
    "a stored offset is not committed again while another commit is under way": frozenset({SEEK, "close", "grow"}),
    "no token check": frozenset({"freeze", "close", "cut", "evict"}),
    "no incarnation check by the consumer": frozenset({"kill", "freeze"}),
    "a group's event bit cleared after reading": frozenset({"kill", ENCORES}),
    "an acknowledgement counts as done before it is written": frozenset({"close", "depose", SOCKETS}),
    "a settled group stays settled whatever happens": frozenset({"depose", "kill"}),
    "a new subscription without offsets": frozenset({SUBSCRIBE, "grow", "kill"}),
    "a lease counts from the arrival of a ping": frozenset({"freeze"}),
    "zxids of a group at rest read after its state": frozenset({"evict"}),
    "two writes for one member in one request": frozenset({"lost", "rebalance", "grow", SOCKETS, OFTEN}),
    "records consumed before a start is stored count as stored": frozenset({"cut", "grow", "rebalance"}),
} | KAFKA_TELLING
"""The faults for defects that other faults hide. With all faults, the simulator would need some hundred seeds."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Plants the named defect until the end of the block."""
    found = (MUTATIONS | RULE_MUTATIONS)[name]()
    patches: tuple[Patch, ...] = (found,) if isinstance(found[1], str) else found
    originals = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    for owner, attribute, replacement in patches:
        setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        for owner, attribute, original in originals:
            setattr(owner, attribute, original)
