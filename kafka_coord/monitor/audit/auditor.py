"""Checks each transaction against the invariants of docs/design.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kafka_coord.channel.operations import decode_command, decode_offset
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Assignment, Ledger, Member, PartitionSet, RequestType, StopFetcher, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.assignment import parse_command_id
from kafka_coord.monitor.audit.report import AuditFinding, AuditRule, Fault, Report
from kafka_coord.monitor.audit.rules import (
    acknowledgement_faults,
    command_faults,
    eviction_faults,
    grace_faults,
    granted_faults,
    is_awaited_end,
    ledger_faults,
    offset_deleted_faults,
    offset_set_faults,
    released_by,
    released_faults,
    removal_faults,
    start_faults,
    was_unreadable,
)
from kafka_coord.monitor.audit.state import (
    AuditedGroup,
    AuditedRegistration,
    Evicted,
    Kind,
    Outstanding,
    StepContext,
    Znode,
    Znodes,
    ZooKeeperState,
    note_cluster,
    note_group,
    note_instance,
    note_offsets_of_topic,
    note_pause,
    note_request,
    note_retention,
    note_topic,
)
from kafka_coord.monitor.audit.tree import Change, Step
from kafka_coord.zk import layout

_COORDINATORS_OWN = frozenset({Kind.LEDGER, Kind.TARGET, Kind.HISTORY, Kind.SETTLED, Kind.TOPIC_OFFSETS})


class Auditor:
    """Keeps the :class:`ZooKeeperState` up to date and reports each violation.

    Rules about permissions look at the state before a step, and rules about invariants at the state after it. Within a
    step, the order of the operations does not matter.
    """

    def __init__(self, report: Report) -> None:
        self.state = ZooKeeperState()
        self.znodes = Znodes()
        self._report = report
        self._judging = True
        self._time_ms = 0
        self._context = StepContext(Step(0, 0, 0, (), ()), self.state)
        self._takers: dict[Kind, Callable[[Znode, Change], None]] = {
            Kind.EPOCH: self._epoch,
            Kind.COORDINATOR: self._coordinator,
            Kind.INSTANCE: partial(self._note, note_instance),
            Kind.REQUEST: partial(self._note, note_request),
            Kind.ALL_PAUSED: partial(self._note, note_pause),
            Kind.PAUSED: partial(self._note, note_pause),
            Kind.RETENTION: partial(self._note, note_retention),
            Kind.TOPIC: partial(self._note, note_topic),
            Kind.MIRRORED_TOPIC: partial(self._note, note_topic),
            Kind.CLUSTER: partial(self._note, note_cluster),
            Kind.GROUP: partial(self._note, note_group),
            Kind.TOPIC_OFFSETS: partial(self._note, note_offsets_of_topic),
            Kind.MEMBERS: self._members,
            Kind.REGISTRATION: self._registration,
            Kind.LEDGER: self._ledger,
            Kind.CHANNEL: self._channel,
            Kind.COMMAND: self._command,
            Kind.TARGET: self._target,
            Kind.OFFSET: self._offset,
        }

    def learn(self, changes: tuple[Change, ...]) -> None:
        """Loads the state of a tree without checking how it came about."""
        self._judging = False
        for change in changes:
            node = change.new
            znode = self.znodes.of(change.path)
            if node is not None and znode.kind in self._takers:
                self._context = StepContext(Step(node.mzxid, 0, node.session_id, (), ()), self.state)
                self._takers[znode.kind](znode, change)
        self._judging = True

    def take(self, step: Step) -> None:
        """Checks one transaction."""
        if step.time_ms < self._time_ms:
            self.state.clock_set_back = step.zxid
        self._time_ms = step.time_ms
        context = self._context = StepContext.of(step, self.state)
        if not self.state.is_made and layout.CLUSTER in context.checked:
            self.learn(step.changes)  # a restore writes what is to be there at the beginning
            return
        znodes = [(self.znodes.of(change.path), change) for change in step.changes]
        for znode, change in znodes:
            if znode.kind is Kind.REGISTRATION and change.new is None:
                context.gone.add((znode.group, znode.name))
            elif znode.kind is Kind.REGISTRATION:
                context.registered.add((znode.group, znode.name))
            elif znode.kind is Kind.COMMAND and change.new is None:
                context.removed.add(change.path)
            elif znode.kind is Kind.COORDINATOR and change.new is not None:
                context.elected = True
        self._fence(context, znodes)
        for znode, change in znodes:
            taker = self._takers.get(znode.kind)
            if taker is not None:
                taker(znode, change)
        for name, consumer, added in context.granted:
            self._report.count("grants", len(added))
            self._violations(name, granted_faults(self.state.group(name), consumer, added))
        self._after(context)

    def _after(self, context: StepContext) -> None:
        """Checks the rules that concern the state after the step."""
        for (name, consumer), before in context.ledgers_before.items():
            self._violations(name, ledger_faults(context, self.state.group(name), consumer, before))
        for name, consumer, written in context.commanded:
            group = self.state.group(name)
            self._violations(name, start_faults(context, group, consumer, written))
            self._violations(name, command_faults(context, group, consumer, written))
        for (name, consumer), evicted in context.evicted.items():
            group = self.state.group(name)
            self._violations(name, eviction_faults(context, group, consumer, evicted))
        while self.state.answered:
            self.state.requests.pop(self.state.answered.pop(), None)

    # --- epochs ------------------------------------------------------------------------------------------------------

    def _fence(self, context: StepContext, znodes: list[tuple[Znode, Change]]) -> None:
        own = [
            (znode, change)
            for znode, change in znodes
            if (
                znode.kind in _COORDINATORS_OWN
                or (znode.kind is Kind.COMMAND and change.new is not None)
                or (znode.kind is Kind.REQUEST and change.old is not None and change.new is not None)
            )
            and not (context.in_term and _is_of_a_conversion(znode, change))
        ]
        if not own and context.fence is None:
            return
        znode, change = own[0] if own else znodes[0]
        what = change.path + (f" and {len(own) - 1} more" if len(own) > 1 else "")
        if context.fence is None:
            self._violation(AuditRule.UNFENCED_WRITE, znode.group, f"{what} was written without checking the epoch")
            return
        state = self.state
        self._report.count("coordinator_writes")
        if context.fence.version != state.epoch_version:
            what = f"{what} was written under version {context.fence.version} of the epoch znode"
            self._violation(AuditRule.STALE_EPOCH, znode.group, f"{what}, which is at version {state.epoch_version}")
        elif state.epoch_session is not None and context.step.session_id != state.epoch_session:
            winner = f"the winner of epoch {state.epoch}, {state.names.of(state.epoch_session)}"
            self._violation(AuditRule.STALE_EPOCH, znode.group, f"{what} was not written by {winner}")

    def _epoch(self, _: Znode, change: Change) -> None:
        state, node = self.state, change.new
        if node is None:
            self._warning(AuditRule.BY_HAND, "", "the epoch znode was deleted")
            return
        state.epoch_version = node.version
        written = node.data.decode("ascii", "replace").strip()
        if not (written.isascii() and written.isdigit() and len(written) <= 10):
            self._warning(AuditRule.UNREADABLE, "", f"{change.path} holds {written[:40]!r}, not an epoch")
            state.epoch_session = None
            return
        epoch = int(written)
        if self._context.elected:
            self._report.count("elections")
            state.epoch_session = self._context.step.session_id
            if epoch <= state.epoch:
                self._violation(AuditRule.EPOCH_BACK, "", f"epoch {epoch} was won after epoch {state.epoch}")
            elif self._judging and state.epoch_known and epoch != state.epoch + 1:
                self._violation(AuditRule.EPOCH_SKIPPED, "", f"epoch {epoch} was won after epoch {state.epoch}")
        elif change.old is not None and self._judging:
            state.epoch_session = None
            if state.names.is_instance(self._context.step.session_id):
                what = f"epoch {epoch} was not written together with the coordinator's znode"
                self._violation(AuditRule.SPLIT_ELECTION, "", what)
            if epoch < state.epoch:
                self._violation(
                    AuditRule.EPOCH_BACK, "", f"the epoch was set to {epoch} by hand after epoch {state.epoch}"
                )
            else:
                self._warning(AuditRule.BY_HAND, "", f"the epoch was set to {epoch} without an election")
        state.epoch, state.epoch_known = max(state.epoch, epoch), True

    def _coordinator(self, _: Znode, change: Change) -> None:
        if change.new is None:
            return
        session = self._context.step.session_id
        if not self._judging:
            self.state.epoch_session = change.new.session_id
        elif not any(other.path == layout.COORDINATOR_EPOCH for other in self._context.step.changes):
            who = self.state.names.of(session)
            self._violation(
                AuditRule.SPLIT_ELECTION, "", f"{who} made itself the coordinator without raising the epoch"
            )

    def _note(self, note: Callable[[StepContext, Znode, Change], None], znode: Znode, change: Change) -> None:
        if znode.kind is Kind.REQUEST and change.new is not None and change.old is None and self._judging:
            self._report.count("requests")
        try:
            note(self._context, znode, change)
        except MalformedValue as error:
            self._warning(AuditRule.UNREADABLE, znode.group, str(error))

    def _members(self, znode: Znode, change: Change) -> None:
        group = self.state.group(znode.group)
        if change.new is not None:
            group.removing = False
        elif self._context.fence is not None and not group.removing:
            self._violations(znode.group, removal_faults(self._context, group))

    # --- members and their partitions --------------------------------------------------------------------------------

    def _registration(self, znode: Znode, change: Change) -> None:
        group, consumer, node = self.state.group(znode.group), znode.name, change.new
        if node is None:
            self._departed(group, consumer)
            step, owner = self._context.step, change.old.session_id if change.old is not None else 0
            if self._context.fence is None and not step.session_ended and owner not in {0, step.session_id}:
                self._warning(AuditRule.BY_HAND, znode.group, f"someone deleted the registration of {consumer}")
            return
        if not any(request.consumer == consumer for request in self._context.asked(group.name, RequestType.EVICT)):
            group.given_up.discard(consumer)
        self._was_unreadable(group, consumer)
        member = None
        try:
            member = Member.from_bytes(node.data, change.path, consumer=consumer, incarnation=node.czxid)
        except MalformedValue as error:
            self._warning(AuditRule.UNREADABLE, znode.group, str(error))
        group.registrations[consumer] = AuditedRegistration(node.czxid, node.session_id, member)
        if member is not None and member.rebalance_timeout_ms:
            group.shortest_timeout_ms = min(group.shortest_timeout_ms, member.rebalance_timeout_ms)
        self.state.names.learn(node.session_id, f"{consumer} of {znode.group}")
        self.state.incarnations[node.session_id, znode.group, consumer] = node.czxid
        if not self._judging:
            return
        if change.old is not None:  # the instance of a member without a session may change its subscription
            if node.session_id or not self._context.fenced_as(group.name, consumer):
                self._warning(AuditRule.BY_HAND, znode.group, f"the registration of {consumer} was overwritten")
            return
        self._report.count("registrations")
        channel = change.path.replace("/ids/", "/channel/", 1)
        if not any(other.path == channel and other.old is not None for other in self._context.step.changes):
            self._warning(AuditRule.BY_HAND, znode.group, f"{consumer} registered without writing its token")

    def _departed(self, group: AuditedGroup, consumer: str) -> None:
        """Handles the removal of a registration. Uses the member's state before the step."""
        context, key = self._context, (group.name, consumer)
        ledger = group.live(consumer)
        self._was_unreadable(group, consumer)
        registered = group.registrations.pop(consumer, None)
        if registered is not None:
            group.gone_since[consumer, registered.incarnation] = context.instant
        if ledger is not None:
            stops = [
                one.command.partitions for one in group.outstanding(consumer) if isinstance(one.command, StopFetcher)
            ]
            for tp in ledger.held:  # an acknowledged stop has already freed its partitions
                if tp in ledger.owned or any(tp in stopping for stopping in stops):
                    group.freed[tp] = context.step.zxid
        if context.fence is None or context.fenced_as(*key) or registered is None or key in context.registered:
            return
        before = context.ledgers_before.get(key, ledger)
        lived = before is not None and before.incarnation == registered.incarnation
        oldest = None
        if consumer in group.commands:
            commands = (*group.outstanding(consumer), *context.dropped.get(key, ()))
            oldest = min((one.since for one in commands), default=context.instant)
        context.evicted[key] = Evicted(registered.incarnation, before if lived else None, oldest)

    def _was_unreadable(self, group: AuditedGroup, consumer: str) -> None:
        """If the consumer's registration was unreadable, records that this step repairs or removes it."""
        registered = group.registrations.get(consumer)
        if registered is not None and registered.member is None:
            group.unreadable_until[consumer] = (self._context.instant, registered.incarnation)

    def _channel(self, znode: Znode, change: Change) -> None:
        group = self.state.group(znode.group)
        if change.new is not None:
            group.farewells[znode.name] = change.new.data
        else:
            group.farewells.pop(znode.name, None)
            if znode.name in group.registrations and self._judging:
                self._warning(
                    AuditRule.BY_HAND, znode.group, f"the channel of {znode.name}, which is alive, was deleted"
                )
            group.commands.pop(znode.name, None)

    def _ledger(self, znode: Znode, change: Change) -> None:
        group, consumer = self.state.group(znode.group), znode.name
        before = group.live(consumer)
        ledger = None
        if change.new is not None:
            try:
                value = fields.load(change.new.data, change.path)
                ledger = Ledger.from_json(value, change.path, consumer=consumer, znode_version=change.new.version)
            except MalformedValue as error:
                self._warning(AuditRule.UNREADABLE, znode.group, str(error))
                group.unreadable_ledgers.add(consumer)
                return
        was = group.ledgers.get(consumer)
        self._context.ledgers_before.setdefault((znode.group, consumer), was)
        if self._judging and ledger is None and not self._context.in_term:  # else, a conversion removes the group
            self._violations(znode.group, grace_faults(self._context, group, consumer))
        if was is not None and ledger is None and self._context.fence is None:
            group.deleted_by_hand[consumer] = was
        if was is not None and (ledger is None or ledger.incarnation != was.incarnation):
            group.gone_since.pop((consumer, was.incarnation), None)
        group.unreadable_ledgers.discard(consumer)
        if ledger is not None and self._judging:
            free = ledger.owned - (before.held if before is not None else PartitionSet())
            self._context.freed.update((znode.group, tp) for tp in free if not group.live_holders(tp))
        group.set_ledger(consumer, ledger)
        if not self._judging:
            return
        self._report.count("ledger_writes")
        if before is not None and (znode.group, consumer) not in self._context.gone:
            released = released_by(before, ledger)
            self._report.count("releases", len(released))
            self._violations(znode.group, released_faults(group, consumer, before, released))
        if ledger is not None and group.live(consumer) is not None:
            same = was is not None and was.incarnation == ledger.incarnation
            added = ledger.held - was.held if was is not None and same else ledger.held
            self._context.granted.append((znode.group, consumer, added))

    # --- commands ----------------------------------------------------------------------------------------------------

    def _command(self, znode: Znode, change: Change) -> None:
        group, consumer, name = self.state.group(znode.group), znode.name, znode.leaf
        if change.new is None:
            removed = group.commands.get(consumer, {}).get(name)
            if removed is not None:
                if self._judging:
                    self._report.count("commands_removed")
                    faults = acknowledgement_faults(self._context, group, consumer, removed)
                    self._violations(znode.group, faults)
                self._removed(group, consumer, removed)
            return
        command_id = parse_command_id(name)
        if command_id is None:
            return
        try:
            command = decode_command(change.new.data, change.path)
        except MalformedValue as error:
            self._warning(AuditRule.UNREADABLE, znode.group, str(error))
            command = None
        if change.old is not None:  # a consumer that has already read the command executes the old value
            self._warning(AuditRule.BY_HAND, znode.group, f"{name} of {consumer} was overwritten")
            return
        outstanding = Outstanding(command_id, command, self._context.instant)
        group.commands.setdefault(consumer, {})[name] = outstanding
        if command is None:
            return
        if self._judging:
            self._report.count("commands")
            if command.epoch != self.state.epoch:
                what = f"{name} for {consumer} carries epoch {command.epoch}; the newest epoch is {self.state.epoch}"
                self._violation(AuditRule.STALE_EPOCH, znode.group, what)
            highest = max(group.told.get(consumer, 0), group.generation if group.target is None else 0)
            if command.generation < highest:
                what = f"{name} for {consumer} has generation {command.generation}; an earlier command had {highest}"
                self._violation(AuditRule.GENERATION_BACK, znode.group, what)
            self._context.commanded.append((znode.group, consumer, outstanding))
        group.told[consumer] = max(group.told.get(consumer, 0), command.generation)

    def _removed(self, group: AuditedGroup, consumer: str, removed: Outstanding) -> None:
        context, key = self._context, (group.name, consumer)
        del group.commands[consumer][removed.id.name]
        if context.by_instance and not context.fenced_as(*key):
            context.dropped.setdefault(key, []).append(removed)
        elif isinstance(removed.command, StopFetcher):  # the coordinator learns nothing from its own deletion
            for tp in removed.command.partitions:
                group.freed[tp] = context.step.zxid

    def _target(self, znode: Znode, change: Change) -> None:
        group = self.state.group(znode.group)
        if change.new is None:
            group.target = None
            return
        try:
            target = Assignment.from_bytes(change.new.data, change.path, znode_version=change.new.version)
        except MalformedValue as error:
            self._warning(AuditRule.UNREADABLE, znode.group, str(error))
            group.target = None
            return
        if self._judging:
            self._report.count("targets")
            if target.generation <= group.generation:
                what = f"a target of generation {target.generation} was written after generation {group.generation}"
                self._violation(AuditRule.GENERATION_BACK, znode.group, what)
            if target.epoch != self.state.epoch:
                what = f"the target of generation {target.generation} carries epoch {target.epoch}"
                self._violation(AuditRule.STALE_EPOCH, znode.group, f"{what}; the newest epoch is {self.state.epoch}")
            self._aimed(group, target)
        group.target, group.target_since = target, self._context.instant
        group.generation = max(group.generation, target.generation)

    def _aimed(self, group: AuditedGroup, target: Assignment) -> None:
        """Checks that the coordinator may write a target now, and that the target keeps every reserved place until its
        grace period ends."""
        group.removing = False
        for consumer in group.ledgers.keys() - target.members.keys():
            if not was_unreadable(self._context, group, consumer):
                self._violations(group.name, grace_faults(self._context, group, consumer))
        since = self._context.paused_since(group)
        if since is None:
            return
        # A target lists consumers, not incarnations, so a returned consumer may be in the target because of its earlier
        # incarnation or its reserved place.
        departed = group.gone_since.items()
        returned = {consumer for (consumer, _), gone in departed if not self._context.must_have_seen(gone)}
        known = returned.union(group.target.members if group.target is not None else ())
        joined = group.registrations.keys() & target.members.keys() - known
        newest = max((group.registrations[consumer].incarnation for consumer in joined), default=0)
        if newest > since.zxid or self._context.must_have_seen(since):
            what = f"a target of generation {target.generation} was written while the group was paused"
            self._violation(AuditRule.PAUSE_IGNORED, group.name, what)

    # --- offsets -----------------------------------------------------------------------------------------------------

    def _offset(self, znode: Znode, change: Change) -> None:
        group, node, context = self.state.group(znode.group), change.new, self._context
        tp = TopicPartition(znode.name, int(znode.leaf)) if znode.leaf.isdigit() and len(znode.leaf) <= 10 else None
        try:
            after = decode_offset(node.data, change.path) if node is not None else None
        except MalformedValue as error:
            self._warning(AuditRule.UNREADABLE, znode.group, str(error))
            after = None
        before = group.offsets.get(tp) if tp is not None else None
        if tp is not None:
            deleted = node is None and self._judging and context.fence is not None and not self._committers(group)
            if deleted:
                self._violations(znode.group, offset_deleted_faults(context, group, tp))
            group.note_offset(tp, after, context.instant if node is not None else None)
        if not self._judging:
            return
        if context.fence is not None and not self._committers(group):
            if tp is not None and after is not None:
                if is_awaited_end(context, group, tp, before):
                    group.first_ends.add(tp)
                else:
                    self._violations(znode.group, offset_set_faults(context, group, tp, after))
            return
        if node is None:
            self._violation(
                AuditRule.UNFENCED_WRITE, znode.group, f"{change.path} was deleted without checking the epoch"
            )
        elif tp is not None and after is not None:
            self._commit(group, tp, before, after)

    def _commit(self, group: AuditedGroup, tp: TopicPartition, before: int | None, after: int) -> None:
        self._report.count("commits")
        committers = self._committers(group)
        back = before is not None and after < before
        for committer in committers:
            ledger = group.live(committer)
            if ledger is not None and (tp in ledger.owned or tp in ledger.stopping):
                if back:
                    self._warning(
                        AuditRule.SEEK_BACK, group.name, f"{committer} set {tp} back from {before} to {after}"
                    )
                return
        if back:
            self._violation(AuditRule.OFFSET_BACK, group.name, f"{tp} went back from {before} to {after}")
        if not committers:
            what = f"{tp} was set to {after} without checking a member's registration and token"
            self._violation(AuditRule.UNFENCED_COMMIT, group.name, what)
        else:
            named = " or ".join(committers)
            self._violation(AuditRule.COMMIT_BY_ANOTHER, group.name, f"{named} set {tp} to {after} without holding it")

    def _committers(self, group: AuditedGroup) -> tuple[str, ...]:
        """Returns the members whose registration and token the step checks. There may be several, because an instance
        may commit for several members in one step."""
        cached = self._context.committers
        if group.name not in cached:
            cached[group.name] = tuple(self._find_committers(group))
        return cached[group.name]

    def _find_committers(self, group: AuditedGroup) -> Iterator[str]:
        for path in self._context.checked:
            znode = self.znodes.of(path)
            if znode.kind is Kind.REGISTRATION and znode.group == group.name:
                registered = group.registrations.get(znode.name)
                if (
                    registered is not None
                    and registered.session_id in {0, self._context.step.session_id}
                    and self._context.fenced_as(group.name, znode.name)
                ):
                    yield znode.name

    # --- findings ----------------------------------------------------------------------------------------------------

    def _violation(self, rule: AuditRule, group: str, what: str) -> None:
        if self._judging:
            self._report.violation(self._finding(rule, group, what))

    def _violations(self, group: str, faults: Iterable[Fault]) -> None:
        for rule, what in faults:
            self._violation(rule, group, what)

    def _warning(self, rule: AuditRule, group: str, what: str) -> None:
        if self._judging:
            self._report.warning(self._finding(rule, group, what))

    def _finding(self, rule: AuditRule, group: str, what: str) -> AuditFinding:
        step = self._context.step
        return AuditFinding(rule, what, group, step.zxid, step.time_ms, self.state.names.of(step.session_id))


def _is_of_a_conversion(znode: Znode, change: Change) -> bool:
    """Returns whether the change is part of a group's conversion: its first history, the first ledgers of its members,
    the removal of the target and ledgers of a group that is not managed, or the response to the operator's request."""
    if znode.kind in {Kind.HISTORY, Kind.LEDGER} and change.old is None:
        return True
    return znode.kind is Kind.REQUEST or (znode.kind in {Kind.TARGET, Kind.LEDGER} and change.new is None)
