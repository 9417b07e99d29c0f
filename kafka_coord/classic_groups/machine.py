"""Runs the state machine of one client-assigned group, which clients cannot tell from Kafka 3.9's group coordinator.

::

                      first Join                all joined, or the
     ┌─────────┐  ─────────────────▶  ┌────────────────────┐  rebalance timeout   ┌──────────────────────┐
     │  Empty  │                      │ PreparingRebalance │ ───────────────────▶ │ CompletingRebalance  │
     └─────────┘  ◀─────────────────  └────────────────────┘   (generation + 1)   └──────────────────────┘
          │         no one is left             ▲    ▲                                │           │
          │ expired, deleted                   │    └────────────────────────────────┘           │ leader's Sync,
          ▼                                    │      Join, Leave, expiry, no Sync in time       │ stored
     ┌─────────┐                               │                                                 ▼
     │  Dead   │                               └─────────────────────────────────────────── ┌────────┐
     └─────────┘                                 Join with news, Leave, expiry              │ Stable │
                                                                                            └────────┘

- *Empty*: the group has no members, but may have offsets. Consumers that assign their own partitions may commit.
- *PreparingRebalance*: joins are held until every member has joined or the largest rebalance timeout has passed. Then
  dynamic members that have not joined are removed. The first rebalance of an empty group also waits for
  ``group.initial.rebalance.delay.ms``, and each newcomer prolongs the wait. Heartbeats get REBALANCE_IN_PROGRESS.
- *CompletingRebalance*: the leader computes the assignment. Syncs are held until the assignment is in the log.
- *Stable*: syncs are answered immediately. If a member has synced and its client can wait, its heartbeats are held
  until a rebalance begins, the member is removed or replaced, the group ends, or :class:`Released` arrives.

One thread runs a :class:`Group`. It calls :meth:`Group.handle` with each event, and :meth:`Group.tick` at
:attr:`Group.due`. ``now`` is in seconds of a clock that runs only while the group is served (ADR 39).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.events import (
    NO_GENERATION,
    NO_MEMBER,
    Answered,
    ConnectionLost,
    Event,
    Heartbeat,
    Held,
    Instruction,
    Join,
    Joined,
    Leave,
    Left,
    Released,
    StaticReturn,
    Stored,
    StoreGroup,
    Sync,
    Synced,
    TopicsReplaced,
)
from kafka_coord.classic_groups.heartbeat_hold import Beats, LateBeats
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, MemberMetadata
from kafka_coord.classic_groups.sessions import LEAST_S, NOTED_AFTER_S
from kafka_coord.model import Departure, DepartureKind
from kafka_coord.model.member import LEFT

STORE_AGAIN_S = 1.0
"""How long to wait before writing again that a group is empty, in seconds, if the log refused it."""
NEW_MEMBER_JOIN_TIMEOUT_S = 300.0
"""How long a new member's first join may be held, in seconds. After that, its client must be gone, so the member is
removed."""

NO_LIMIT = (1 << 31) - 1
"""Kafka's default for the number of members."""

EMPTY, PREPARING, COMPLETING = ClassicState.EMPTY, ClassicState.PREPARING_REBALANCE, ClassicState.COMPLETING_REBALANCE
STABLE, DEAD = ClassicState.STABLE, ClassicState.DEAD


@dataclass(slots=True)
class GroupLimits:
    """The limits for all groups, named after the broker's settings, with Kafka's defaults. All groups share one object,
    which changes when the broker's settings are known."""

    min_session_timeout_s: float = 6.0
    max_session_timeout_s: float = 1800.0
    max_size: int = NO_LIMIT
    consumer_max_size: int = NO_LIMIT
    """The same for KIP-848 members."""
    initial_rebalance_delay_s: float = 3.0
    consumer_session_timeout_s: float = 45.0
    """The session timeout of KIP-848 members, whose clients do not send one."""
    offset_metadata_chars: int = 4096
    append_bytes: int = 900 << 10
    """The maximum size of one record of the groups log, with its overhead. By default, a broker accepts batches of up
    to 1 MiB (``max.message.bytes``)."""
    idle_s: float = 600.0
    """How long a connection to the broker may be idle before the broker closes it (``connections.max.idle.ms``)."""
    expiry_check_s: float = 600.0
    """How often to remove expired offsets."""
    noted_after_s: float = NOTED_AFTER_S
    least_session_s: float = LEAST_S
    """See :mod:`~kafka_coord.classic_groups.sessions`. These two are not settings."""


class Group:
    """One group, with its metadata and timers."""

    def __init__(self, metadata: GroupMetadata, limits: GroupLimits) -> None:
        self.metadata = metadata
        self._limits = limits
        self._out: list[Instruction] = []
        self._join_by = math.inf
        """The time at which the join phase ends, even if members are missing."""
        self._sync_by = math.inf
        self._initial_left_s = 0.0
        """How many more seconds newcomers may add to the first rebalance of an empty group."""
        self._prolonged = False
        self._initial = False
        self._is_forming = False
        """Whether the group has not been stable since it was last empty."""
        self._late = LateBeats()
        self._storing = NO_GENERATION
        """The generation whose assignment is being written to the log."""
        self._store_empty_by = math.inf
        """When to write again that the group is empty, because the log refused it."""
        self.owes_emptiness = False
        """Whether the group is empty and the log does not say so yet, because that record is being written or was
        refused. No record that is true only of an empty group may come before it."""

    @property
    def due(self) -> float:
        """The time at which :meth:`tick` must be called next."""
        group = self.metadata
        if group.state is DEAD:
            return math.inf
        expiries = (member.expires_at for member in group.members.values() if self._may_expire(member))
        return min(self._join_by, self._sync_by, self._store_empty_by, *expiries, *group.pending.values(), math.inf)

    @property
    def is_new(self) -> bool:
        """Whether nobody has ever joined the group or been handed an id in it."""
        group = self.metadata
        return group.state is EMPTY and group.generation_id == 0 and not group.members and not group.pending

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handles an event and returns the resulting instructions in order."""
        match event:
            case Join():
                self._join(event, now)
            case Sync():
                self._sync(event, now)
            case Heartbeat():
                self._heartbeat(event, now)
            case Released():
                self._released(event, now)
            case Leave():
                self._leave(event, now)
            case Stored():
                self._stored(event, now)
            case TopicsReplaced():
                self._topics_replaced(now)
            case ConnectionLost():
                self._gone(event, now)
            case _:
                assert_never(event)
        return self._taken()

    def tick(self, now: float) -> list[Instruction]:
        """Removes silent members and expired member ids, and ends the join or sync phase if its time is up. Returns the
        resulting instructions."""
        group = self.metadata
        for member_id in [pending for pending, at in group.pending.items() if at <= now]:
            del group.pending[member_id]
            self._complete_join_if_all_joined(now)
        for member in list(group.members.values()):
            if member.expires_at <= now and self._may_expire(member) and member.member_id in group.members:
                self._remove(member, Departure(DepartureKind.EXPIRED, round(member.session_timeout_s * 1000)), now)
        if self._sync_by <= now:
            self._sync_expired(now)
        if self._join_by <= now:
            self._join_expired(now)
        if self._store_empty_by <= now and group.state is not DEAD:  # a deletion may be refused as well
            self._store_empty_by = math.inf
            if self.owes_emptiness:
                self._store()
        return self._taken()

    def thaw(self, now: float) -> None:
        """Notes that until now, nobody could hear the members."""
        for member in self.metadata.members.values():
            member.expires_at = max(member.expires_at, now + member.session_timeout_s)

    def emptied(self, generation_id: int, topic_ids: Mapping[str, str] | None = None) -> None:
        """Notes that the log says that the group became empty in that generation, and which topics its members had."""
        if generation_id != self.metadata.generation_id:
            return
        if self.owes_emptiness:
            self.owes_emptiness, self.metadata.departed = False, {}
        if topic_ids is not None and not self.metadata.members:
            self.metadata.topic_ids = dict(topic_ids)

    def end(self, error: Error) -> list[Instruction]:
        """Ends a group that was moved or deleted. Returns responses with ``error`` to all held requests."""
        for member in self.metadata.members.values():
            self._answer_waiting(member, error)
        self.metadata.state = DEAD
        self._join_by = self._sync_by = math.inf
        return self._taken()

    # --- joining -----------------------------------------------------------------------------------------------------

    def _join(self, join: Join, now: float) -> None:
        group, limits = self.metadata, self._limits
        if not limits.min_session_timeout_s <= join.session_timeout_s <= limits.max_session_timeout_s:
            self._refuse_join(join, Error.INVALID_SESSION_TIMEOUT)
        elif group.state is DEAD:
            self._refuse_join(join, Error.COORDINATOR_NOT_AVAILABLE)
        elif not self._has_room_for(join):
            group.remove(join.member_id)
            self._refuse_join(join, Error.GROUP_MAX_SIZE_REACHED, member_id=NO_MEMBER)
        elif not group.supports(join.protocol_type, join.protocols):
            self._refuse_join(join, Error.INCONSISTENT_GROUP_PROTOCOL)
        elif not join.member_id:
            self._new_member(join, now)
        elif join.member_id in group.pending and join.instance_id is None:  # as in Kafka, never a static member
            self._add(join, join.member_id, now)
        else:
            self._known_member(join, now)
        self._complete_join_if_all_joined(now)

    def _has_room_for(self, join: Join) -> bool:
        group, most = self.metadata, self._limits.max_size
        if join.member_id in group.members or group.static_members.get(join.instance_id or ""):
            if group.state is PREPARING:  # members that joined before the limit was lowered may exceed it
                member = group.members.get(join.member_id)
                joined = sum(one.join_token is not None for one in group.members.values())
                return (member is not None and member.join_token is not None) or joined < most
            return True
        return len(group.members) < most

    def _new_member(self, join: Join, now: float) -> None:
        group = self.metadata
        if join.instance_id is not None:
            if join.instance_id in group.static_members:
                self._static_return(join, now)
            else:
                self._add(join, join.fresh_id, now)
        elif join.must_know_id:
            group.pending[join.fresh_id] = now + join.session_timeout_s
            self._refuse_join(join, Error.MEMBER_ID_REQUIRED, member_id=join.fresh_id)
        else:
            self._add(join, join.fresh_id, now)

    def _add(self, join: Join, member_id: str, now: float) -> None:
        group = self.metadata
        if group.state is PREPARING and group.generation_id == 0:
            self._prolonged = True
        member = MemberMetadata(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.session_timeout_s,
            join.rebalance_timeout_s,
            join.protocols,
            join_token=join.token,
            expires_at=now + NEW_MEMBER_JOIN_TIMEOUT_S,
        )
        group.add(member, join.protocol_type)
        self._rebalance(now)

    def _known_member(self, join: Join, now: float) -> None:
        group = self.metadata
        error = self._check_member(join.member_id, join.instance_id)
        if error is not Error.NONE:
            self._refuse_join(join, error)
            return
        member = group.members[join.member_id]
        unchanged = member.protocols == join.protocols
        if group.state is EMPTY:
            self._refuse_join(join, Error.UNKNOWN_MEMBER_ID)
        elif (group.state is COMPLETING and unchanged) or (
            group.state is STABLE and unchanged and group.leader_id != join.member_id
        ):
            # the response to an earlier join was lost, or nothing has changed, so repeat the current state
            with_members = group.state is COMPLETING and group.leader_id == join.member_id
            self._out.append(self._joined(member, join.token, with_members=with_members))
        else:
            self._update(member, join, now)
            self._rebalance(now)

    def _update(self, member: MemberMetadata, join: Join, now: float) -> None:
        if member.join_token is not None and member.join_token != join.token:
            self._answer_join(member, Error.REBALANCE_IN_PROGRESS)  # answers an earlier request from the same member
        member.protocols = join.protocols
        member.rebalance_timeout_s, member.session_timeout_s = join.rebalance_timeout_s, join.session_timeout_s
        member.join_token, member.is_heard, member.former_generation = join.token, True, None
        member.beats.joined(now)

    def _static_return(self, join: Join, now: float) -> None:
        """Handles a static member that returns in a new process, and gives it a new id. If the group is stable and its
        protocol stays the same, the member keeps its assignment without a rebalance."""
        group = self.metadata
        instance_id = join.instance_id or ""
        old_id, old_leader = group.static_members[instance_id], group.leader_id
        member = group.members[old_id]
        self._answer_join(member, Error.FENCED_INSTANCE_ID)
        self._answer_sync(member, Error.FENCED_INSTANCE_ID)
        group.replace_static(instance_id, join.fresh_id)
        by = f"client id {join.client_id} ({join.client_host})"
        group.departed[instance_id] = Departure(DepartureKind.REPLACED, by=by)
        member.beats = Beats()  # of another process
        self._heard_from(member, now)
        before = (member.protocols, member.rebalance_timeout_s, member.session_timeout_s)
        self._update(member, join, now)
        if group.state is STABLE and group.protocol_name == group.select_protocol():
            self._store(because=StaticReturn(join, old_id, join.fresh_id, old_leader, before))
        else:
            self._answer_beat(member, Error.FENCED_INSTANCE_ID)
            self._rebalance(now)

    def _joined(
        self,
        member: MemberMetadata,
        token: object,
        *,
        with_members: bool,
        skip_assignment: bool = False,
        leader_id: str | None = None,
    ) -> Joined:
        group = self.metadata
        return Joined(
            token,
            Error.NONE,
            member.member_id,
            group.generation_id,
            group.protocol_type,
            group.protocol_name,
            leader_id or group.leader_id or NO_MEMBER,
            skip_assignment,
            tuple((m.member_id, m.instance_id, m.metadata(group.protocol_name)) for m in group.members.values())
            if with_members
            else (),
        )

    def _refuse_join(self, join: Join, error: Error, member_id: str | None = None) -> None:
        self._out.append(Joined(join.token, error, join.member_id if member_id is None else member_id))

    # --- rebalancing -------------------------------------------------------------------------------------------------

    def _rebalance(self, now: float) -> None:
        """Begins a rebalance if none is in progress."""
        group = self.metadata
        if group.state not in {EMPTY, STABLE, COMPLETING}:
            return
        self.owes_emptiness = False
        for member in group.members.values():
            member.assignment = b"" if group.state is COMPLETING else member.assignment
            self._answer_sync(member, Error.REBALANCE_IN_PROGRESS)
            self._answer_beat(member, Error.REBALANCE_IN_PROGRESS)
        group.unsynced.clear()
        self._sync_by = math.inf
        delay_s = self._limits.initial_rebalance_delay_s
        self._is_forming = group.state is EMPTY or (group.state is COMPLETING and self._is_forming)
        self._initial = group.state is EMPTY and delay_s > 0
        self._prolonged = False
        self._initial_left_s = max(group.rebalance_timeout_s - delay_s, 0.0)
        self._join_by = now + (delay_s if self._initial else group.rebalance_timeout_s)
        group.state = PREPARING

    def _complete_join_if_all_joined(self, now: float) -> None:
        group = self.metadata
        if group.state is not PREPARING or self._initial or not group.has_all_joined:
            return
        # a newcomer that was handed an id and has vanished must not hold up the first joins of a group, nor keep one
        # from becoming empty whose last member has left
        if not group.pending or self._is_forming or not group.members:
            self._complete_join(now)

    def _join_expired(self, now: float) -> None:
        if self._initial and self._prolonged and self._initial_left_s > 0:
            delay_s = min(self._limits.initial_rebalance_delay_s, self._initial_left_s)
            self._initial_left_s -= delay_s
            self._prolonged = False
            self._join_by = now + delay_s
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        group = self.metadata
        self._join_by, self._initial = math.inf, False
        too_late = Departure(DepartureKind.EXPIRED, round(group.rebalance_timeout_s * 1000))
        for member in [m for m in group.members.values() if m.join_token is None and m.instance_id is None]:
            group.departed[member.name] = too_late
            group.remove(member.member_id)
        joined = [member for member in group.members.values() if member.join_token is not None]
        if group.members and not joined:  # only static members are left, and none has joined, so wait again
            self._join_by = now + group.rebalance_timeout_s
            return
        if joined and group.members[group.leader_id or ""].join_token is None:
            group.leader_id = joined[0].member_id
        group.generation_id += 1
        if not group.members:
            group.protocol_name, group.state, self.owes_emptiness = None, EMPTY, True
            self._store()
            return
        group.protocol_name, group.state = group.select_protocol(), COMPLETING
        group.unsynced = set(group.members)
        self._sync_by = now + group.rebalance_timeout_s
        for member in joined:
            leads = member.member_id == group.leader_id
            self._out.append(self._joined(member, member.join_token, with_members=leads))
            member.join_token, member.is_new = None, False
            self._heard_from(member, now)

    def _sync_expired(self, now: float) -> None:
        """Removes the members that joined but never synced, so that they do not delay further rebalances."""
        group = self.metadata
        self._sync_by = math.inf
        if group.state not in {COMPLETING, STABLE} or not group.unsynced:
            return
        too_late = Departure(DepartureKind.EXPIRED, round(group.rebalance_timeout_s * 1000))
        for member_id in list(group.unsynced):
            group.departed[group.members[member_id].name] = too_late
            group.remove(member_id)
        self._rebalance(now)
        self._complete_join_if_all_joined(now)

    # --- syncing -----------------------------------------------------------------------------------------------------

    def _sync(self, sync: Sync, now: float) -> None:
        group = self.metadata
        error = self._check_sync(sync)
        if error is not Error.NONE:
            self._out.append(Synced(sync.token, error))
            return
        member = group.members[sync.member_id]
        group.unsynced.discard(sync.member_id)
        if not group.unsynced and group.state is STABLE:
            self._sync_by = math.inf
        if group.state is STABLE:
            self._heard_from(member, now)
            self._out.append(
                Synced(sync.token, Error.NONE, group.protocol_type, group.protocol_name, member.assignment)
            )
            return
        self._answer_sync(member, Error.REBALANCE_IN_PROGRESS)
        member.sync_token = sync.token
        if sync.member_id == group.leader_id and self._storing != group.generation_id:
            self._storing = group.generation_id
            assignments = {one: sync.assignments.get(one, b"") for one in group.members}
            self._store(assignments, by_leader=True, topic_ids=sync.topic_ids)

    def _check_sync(self, sync: Sync) -> Error:
        group = self.metadata
        if group.state is DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(sync.member_id, sync.instance_id)
        if error is not Error.NONE:
            return error
        if sync.generation_id != group.generation_id:
            return Error.ILLEGAL_GENERATION
        named = (sync.protocol_type, group.protocol_type), (sync.protocol_name, group.protocol_name)
        if any(said is not None and said != holds for said, holds in named):
            return Error.INCONSISTENT_GROUP_PROTOCOL
        if group.state is EMPTY:
            return Error.UNKNOWN_MEMBER_ID
        return Error.REBALANCE_IN_PROGRESS if group.state is PREPARING else Error.NONE

    def _store(
        self,
        assignments: dict[str, bytes] | None = None,
        because: StaticReturn | None = None,
        *,
        by_leader: bool = False,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        group = self.metadata
        topic_ids = group.topic_ids if topic_ids is None else topic_ids
        if assignments is None:
            assignments = {member.member_id: member.assignment for member in group.members.values()}
        self._out.append(StoreGroup(group.generation_id, assignments, because, by_leader, topic_ids))

    def _stored(self, stored: Stored, now: float) -> None:
        group, store = self.metadata, stored.store
        if store.because is not None:
            self._static_return_stored(store.because, stored.error, now)
            return
        if not store.by_leader:
            if stored.error is Error.NONE:
                self.emptied(store.generation_id)
            elif self.owes_emptiness:
                self._store_empty_by = now + STORE_AGAIN_S
            return
        self._storing = NO_GENERATION
        if group.state is not COMPLETING or group.generation_id != store.generation_id:
            return  # another rebalance has begun
        if stored.error is not Error.NONE:
            for member in group.members.values():
                member.assignment = b""
                self._answer_sync(member, stored.error)
            self._rebalance(now)
            return
        group.state, group.topic_ids, group.departed = STABLE, dict(store.topic_ids), {}
        if not group.unsynced:
            self._sync_by = math.inf
        for member in group.members.values():
            member.assignment = store.assignments.get(member.member_id, b"")
            if member.sync_token is not None:
                self._out.append(
                    Synced(member.sync_token, Error.NONE, group.protocol_type, group.protocol_name, member.assignment)
                )
                member.sync_token = None
                self._heard_from(member, now)

    def _static_return_stored(self, back: StaticReturn, error: Error, now: float) -> None:
        """Answers the join, which was held until the outcome was known, unless a rebalance has already answered it, and
        then tells the old process that it is fenced. If another process has returned meanwhile and this one's record
        was refused, the group is rebalanced, so that it does not go on with an id that the log never held."""
        group, join = self.metadata, back.join
        member = group.members.get(back.new_id)
        if member is None or member.join_token != join.token:
            if error is not Error.NONE and group.state is STABLE:
                self._rebalance(now)
            return
        member.join_token = None
        if error is Error.NONE:
            self._answer_beat(member, Error.FENCED_INSTANCE_ID)
            self._heard_from(member, now)
            skips = join.can_skip_assignment
            leads = skips and group.leader_id == back.new_id
            leader_id = group.leader_id if skips else back.old_leader_id
            self._out.append(
                self._joined(member, join.token, with_members=leads, skip_assignment=leads, leader_id=leader_id)
            )
            return
        self._answer_beat(member, Error.NONE)  # the old process stays a member
        group.replace_static(join.instance_id or "", back.old_id)
        group.departed.pop(join.instance_id or "", None)
        member.protocols, member.rebalance_timeout_s, member.session_timeout_s = back.before
        self._refuse_join(join, error)

    # --- heartbeats, commits, leaving --------------------------------------------------------------------------------

    def _heartbeat(self, beat: Heartbeat, now: float) -> None:
        group = self.metadata
        error = self._check_current(beat.member_id, beat.instance_id, beat.generation_id)
        if error is not Error.NONE:
            self._answer(beat.token, Error.NONE if self._is_late(beat, now) else error)
            return
        member = group.members[beat.member_id]
        if member.beat_token is not None:  # on another connection, because the client no longer waits there
            member.beats.given_up(now)
            self._answer_beat(member, Error.NONE)
        limit_s = member.beats.arrived(now, beat.software, member.session_timeout_s)
        self._heard_from(member, now)
        if group.state is PREPARING:
            self._answer(beat.token, Error.REBALANCE_IN_PROGRESS)
        elif group.state is STABLE and beat.member_id not in group.unsynced and limit_s > 0:
            member.beat_token = beat.token
            self._out.append(Held(beat.token, beat.member_id, limit_s))
        else:
            self._answer(beat.token, Error.NONE)

    def _released(self, released: Released, now: float) -> None:
        member = self.metadata.members.get(released.member_id)
        if member is not None and member.beat_token == released.token:
            error = member.beats.interrupted(now) if released.by_client else Error.NONE
            member.beats.quiet_since = now
            self._answer_beat(member, error)

    def _is_late(self, beat: Heartbeat, now: float) -> bool:
        """Returns whether the heartbeat may be a late duplicate, sent before the client rejoined or left."""
        member = self.metadata.members.get(beat.member_id)
        if member is None:
            return self._late.may_come(beat.member_id, now)
        return beat.generation_id < self.metadata.generation_id and now < member.beats.again_until

    def may_commit(
        self, member_id: str, instance_id: str | None, generation_id: int, now: float, connection: int
    ) -> Error:
        """Returns NONE if the member may commit. A consumer that assigns its own partitions has generation -1 and no
        member id. ``connection`` is the number of the client's connection. Once the client has reconnected and
        committed again, a commit that arrives late on an earlier connection is refused, because its offsets are older.
        """
        group = self.metadata
        if group.state is DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and group.state is EMPTY:
            return Error.NONE
        if generation_id < 0 and not member_id and instance_id is None:
            return Error.UNKNOWN_MEMBER_ID
        error = self._check_current(member_id, instance_id, generation_id)
        if error is not Error.NONE:
            return error
        if group.state is COMPLETING:
            return Error.REBALANCE_IN_PROGRESS
        member = group.members[member_id]
        if connection < member.committed_on:
            return Error.COORDINATOR_NOT_AVAILABLE
        member.committed_on = connection
        self._heard_from(member, now)
        return Error.NONE

    def _topics_replaced(self, now: float) -> None:
        if self.metadata.state is STABLE:
            self._rebalance(now)
        self._complete_join_if_all_joined(now)

    def _leave(self, leave: Leave, now: float) -> None:
        if self.metadata.state is DEAD:
            self._out.append(Left(leave.token, Error.COORDINATOR_NOT_AVAILABLE))
            return
        outcomes = tuple((*who, self._leave_one(*who, leave, now)) for who in leave.leaving)
        self._out.append(Left(leave.token, Error.NONE, outcomes))

    def _leave_one(self, member_id: str, instance_id: str | None, leave: Leave, now: float) -> Error:
        group = self.metadata
        if member_id in group.pending and instance_id is None:
            del group.pending[member_id]
            self._complete_join_if_all_joined(now)
            return Error.NONE
        if instance_id is not None:
            current_id = group.static_members.get(instance_id)
            if current_id is None:
                return Error.UNKNOWN_MEMBER_ID
            if member_id not in {NO_MEMBER, current_id}:
                return Error.FENCED_INSTANCE_ID
            member_id = current_id
        member = group.members.get(member_id)
        if member is None:
            return Error.UNKNOWN_MEMBER_ID
        self._late.left(member_id, member.beats.again_until, now)
        is_own = not leave.by or leave.client == (member.client_id, member.client_host)
        self._remove(member, LEFT if is_own else Departure(DepartureKind.EVICTED, by=leave.by), now)
        return Error.NONE

    def _remove(self, member: MemberMetadata, departure: Departure, now: float) -> None:
        """Removes a member that left or fell silent, so that its partitions go to other members."""
        self._answer_waiting(member, Error.UNKNOWN_MEMBER_ID, NO_MEMBER)
        self.metadata.departed[member.name] = departure
        self.metadata.remove(member.member_id)
        if self.metadata.state in {STABLE, COMPLETING}:
            self._rebalance(now)
        self._complete_join_if_all_joined(now)

    def _gone(self, gone: ConnectionLost, now: float) -> None:
        """Forgets the held syncs and heartbeats from a lost connection. As in Kafka, losing its connection does not
        remove a member, and a held join still counts as joined."""
        for member in self.metadata.members.values():
            if member.sync_token in gone.tokens:
                member.sync_token = None
            if member.beat_token in gone.tokens:
                member.beat_token = None
                if gone.by_client:
                    member.beats.given_up(now)

    # --- shared ------------------------------------------------------------------------------------------------------

    def _check_member(self, member_id: str, instance_id: str | None) -> Error:
        group = self.metadata
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is None:
                return Error.UNKNOWN_MEMBER_ID
            if known != member_id:
                return Error.FENCED_INSTANCE_ID
        return Error.NONE if member_id in group.members else Error.UNKNOWN_MEMBER_ID

    def _check_current(self, member_id: str, instance_id: str | None, generation_id: int) -> Error:
        if self.metadata.state is DEAD:
            return Error.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(member_id, instance_id)
        if error is not Error.NONE:
            return error
        former = self.metadata.members[member_id].former_generation
        is_known = generation_id == (self.metadata.generation_id if former is None else former)
        return Error.NONE if is_known else Error.ILLEGAL_GENERATION

    def _may_expire(self, member: MemberMetadata) -> bool:
        """Returns whether the member may be removed because it is silent. A member whose join or sync is held does not
        count as silent, unless it is new: a new member's client might never return."""
        return member.is_new or not member.waits

    def _heard_from(self, member: MemberMetadata, now: float) -> None:
        member.expires_at, member.is_heard = now + member.session_timeout_s, True
        member.beats.quiet_since = now

    def _answer(self, token: object, error: Error) -> None:
        self._out.append(Answered(token, error))

    def _answer_waiting(self, member: MemberMetadata, error: Error, member_id: str | None = None) -> None:
        """Answers all of the member's held requests."""
        self._answer_join(member, error, member_id)
        self._answer_sync(member, error)
        self._answer_beat(member, error)

    def _answer_join(self, member: MemberMetadata, error: Error, member_id: str | None = None) -> None:
        if member.join_token is not None:
            self._out.append(Joined(member.join_token, error, member.member_id if member_id is None else member_id))
            member.join_token = None

    def _answer_sync(self, member: MemberMetadata, error: Error) -> None:
        if member.sync_token is not None:
            self._out.append(Synced(member.sync_token, error))
            member.sync_token = None

    def _answer_beat(self, member: MemberMetadata, error: Error) -> None:
        if member.beat_token is not None:
            self._answer(member.beat_token, error)
            member.beat_token = None

    def _taken(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out
