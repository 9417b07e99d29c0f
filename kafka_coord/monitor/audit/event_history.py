"""Collects the history of a partition, group or consumer: each event, who caused it, and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kafka_coord.channel.operations import decode_command
from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.model import (
    NO_PARTITIONS,
    Assignment,
    Command,
    Departure,
    Ledger,
    PartitionSet,
    Pause,
    Request,
    StopFetcher,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.audit.auditor import Auditor
from kafka_coord.monitor.audit.report import EventDocument, clock_time
from kafka_coord.monitor.audit.state import Kind, StepContext, Znode
from kafka_coord.monitor.audit.tree import Change, Step, TreeNode
from kafka_coord.zk import layout

MAX_EVENTS = 100_000
"""The maximum number of events in a history. A longer history loses its oldest events."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The partition, group or consumer whose history is collected. An empty selection covers everything."""

    group: str = ""
    consumer: str = ""
    partition: TopicPartition | None = None


def parse_partition(written: str) -> TopicPartition:
    """Parses a partition such as ``flights-3``. Raises :class:`SettingsError`."""
    topic, _, number = written.rpartition("-")
    if not topic or not (number.isascii() and number.isdigit() and len(number) <= 10):
        raise SettingsError(f"{written!r} is not a partition such as flights-3")
    return TopicPartition(topic, int(number))


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """One event in a history. ``who`` wrote it, and ``why`` is the reason ("" if unknown)."""

    zxid: int
    time_ms: int
    group: str
    what: str
    why: str
    who: str

    def document(self) -> EventDocument:
        return EventDocument(
            when=clock_time(self.time_ms),
            zxid=f"{self.zxid:#x}",
            group=self.group,
            what=self.what,
            why=self.why,
            who=self.who,
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """A change, with its step and the state before the step."""

    context: StepContext
    znode: Znode
    change: Change


Told = tuple[str, str]
"""The description of an event, and its reason ("" if unknown)."""


class EventHistory:
    """Collects the events that match the selection. Must receive each step before the auditor checks it."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.events: deque[GroupEvent] = deque(maxlen=MAX_EVENTS)
        self._tellers: dict[Kind, Callable[[Scene], Iterator[Told]]] = {
            Kind.COORDINATOR: self._coordinator,
            Kind.REGISTRATION: self._registration,
            Kind.TARGET: self._target,
            Kind.COMMAND: self._command,
            Kind.LEDGER: self._ledger,
            Kind.OFFSET: self._offset,
            Kind.PAUSED: self._paused,
            Kind.ALL_PAUSED: self._paused,
            Kind.REQUEST: self._request,
        }

    def __call__(self, auditor: Auditor, step: Step) -> None:
        context: StepContext | None = None
        for change in step.changes:
            znode = auditor.znodes.of(change.path)
            teller = self._tellers.get(znode.kind)
            if teller is None or (self._selection.group and znode.group not in {"", self._selection.group}):
                continue
            context = context or StepContext.of(step, auditor.state)
            try:
                told = list(teller(Scene(context, znode, change)))
            except MalformedValue as error:
                told = [(f"unreadable value: {error}", "")]
            for what, why in told:
                who = auditor.state.names.of(step.session_id)
                if znode.kind is Kind.REGISTRATION and change.old is None:
                    who = f"{znode.name} of {znode.group}, session {step.session_id:#x}"
                self.events.append(GroupEvent(step.zxid, step.time_ms, znode.group, what, why, who))

    # --- the selection -----------------------------------------------------------------------------------------------

    def _about(self, consumer: str, partitions: PartitionSet | None = None) -> bool:
        """Returns whether the history covers an event about ``consumer`` and ``partitions`` (``None`` for an event
        without partitions)."""
        selection = self._selection
        if selection.consumer and consumer != selection.consumer:
            return False
        return selection.partition is None or (partitions is not None and selection.partition in partitions)

    def _shown(self, partitions: PartitionSet) -> str:
        """Formats the partitions, or only the selected partition if the history is about one."""
        wanted = self._selection.partition
        return str(wanted) if wanted is not None else str(partitions)

    # --- the events --------------------------------------------------------------------------------------------------

    def _coordinator(self, at: Scene) -> Iterator[Told]:
        if self._selection.consumer or self._selection.partition is not None:
            return
        if at.change.new is None:
            why = "its session ended" if at.context.step.session_ended else "it resigned"
            yield "the coordinator's znode is gone", why
        else:
            epoch = next((c.new for c in at.context.step.changes if c.path == layout.COORDINATOR_EPOCH), None)
            number = epoch.data.decode("ascii", "replace") if epoch is not None else "?"
            yield f"elected coordinator, epoch {number}", ""

    def _registration(self, at: Scene) -> Iterator[Told]:
        consumer = at.znode.name
        ledger = at.context.state.group(at.znode.group).ledgers.get(consumer)
        held = ledger.held if ledger is not None else NO_PARTITIONS
        if not self._about(consumer, held):
            return
        if at.change.new is not None:
            yield f"{consumer} registered, incarnation {at.change.new.czxid}", ""
        elif at.change.old is not None:
            holding = f", holding {self._shown(held)}" if held else ""
            channel = layout.channel(at.znode.group, consumer)
            farewell = next((c.new for c in at.context.step.changes if c.path == channel and c.new is not None), None)
            if farewell is not None and farewell.data:
                why = f"it {Departure.read(farewell.data, channel)}"
            else:
                why = self._departure(at.context, at.change.old)
            yield f"{consumer} is gone{holding}", why

    def _departure(self, context: StepContext, old: TreeNode) -> str:
        if context.step.session_ended:
            return "its session ended"
        if context.fence is not None:
            return "the coordinator evicted it"
        return "it left" if context.step.session_id == old.session_id else "someone deleted its registration"

    def _target(self, at: Scene) -> Iterator[Told]:
        if at.change.new is None:
            yield "the target was deleted", ""
            return
        after = _assignment(at.change.path, at.change.new)
        before = at.context.state.group(at.znode.group).target
        had = before.members if before is not None else {}
        head = f"generation {after.generation}"
        if self._selection.partition is not None:
            tp = self._selection.partition
            was = next((c for c, owned in had.items() if tp in owned), "no owner")
            now = next((c for c, owned in after.members.items() if tp in owned), "no owner")
            if was != now and (not self._selection.consumer or self._selection.consumer in {was, now}):
                yield f"{head}: {tp} is to move from {was} to {now}", after.reason
            return
        moves = []
        for consumer in sorted({*had, *after.members}):
            gained = after.members.get(consumer, NO_PARTITIONS) - had.get(consumer, NO_PARTITIONS)
            lost = had.get(consumer, NO_PARTITIONS) - after.members.get(consumer, NO_PARTITIONS)
            if (gained or lost) and self._about(consumer):
                moves.append(consumer + (f" gains {gained}" if gained else "") + (f" loses {lost}" if lost else ""))
        if moves or not self._selection.consumer:
            yield f"{head}, {len(after.members)} members: {'; '.join(moves) or 'nothing moves'}", after.reason

    def _command(self, at: Scene) -> Iterator[Told]:
        node = at.change.new or at.change.old
        command = decode_command(node.data if node is not None else b"", at.change.path)
        consumer = at.znode.name
        if not self._about(consumer, command.partitions):
            return
        does = "stop" if isinstance(command, StopFetcher) else "start"
        what = f"{does} {self._shown(command.partitions)}"
        if at.change.new is not None:
            yield f"{consumer} is told to {what}{self._from_offset(command)} ({at.znode.leaf})", command.reason
        elif at.context.fenced_as(at.znode.group, consumer):
            yield f"{consumer} acknowledged {at.znode.leaf} ({what}){self._committed(at.context, at.znode.group)}", ""
        elif at.context.fence is not None:
            yield f"{at.znode.leaf} for {consumer} ({what}) was removed", "its incarnation is gone"
        else:
            yield f"{at.znode.leaf} for {consumer} ({what}) was dropped", "it was for another incarnation"

    def _from_offset(self, command: Command) -> str:
        tp = self._selection.partition
        if tp is None or isinstance(command, StopFetcher) or tp not in command.starts:
            return ""
        offset = command.starts[tp].offset
        return f" from offset {offset}" if offset >= 0 else " from the offset chosen by its auto.offset.reset"

    def _committed(self, context: StepContext, group: str) -> str:
        tp = self._selection.partition
        if tp is None:
            return ""
        path = layout.offset(group, tp.topic, tp.partition)
        written = next((c.new for c in context.step.changes if c.path == path), None)
        return f" at offset {written.data.decode('ascii', 'replace')}" if written is not None else ""

    def _ledger(self, at: Scene) -> Iterator[Told]:
        before = at.context.state.group(at.znode.group).ledgers.get(at.znode.name)
        after = None
        if at.change.new is not None:
            value = fields.load(at.change.new.data, at.change.path)
            after = Ledger.from_json(value, at.change.path, consumer=at.znode.name, znode_version=at.change.new.version)
        released = (before.held if before is not None else NO_PARTITIONS) - (
            after.held if after is not None else NO_PARTITIONS
        )
        if released and self._about(at.znode.name, released):
            alive = at.context.state.group(at.znode.group).live(at.znode.name) is not None
            why = "it has stopped" if alive else "its incarnation is gone"
            yield f"{at.znode.name} no longer holds {self._shown(released)}", why

    def _offset(self, at: Scene) -> Iterator[Told]:
        tp = PartitionSet.of([(at.znode.name, int(at.znode.leaf))]) if at.znode.leaf.isdigit() else NO_PARTITIONS
        if self._selection.consumer or not self._about("", tp):
            return
        name = f"{at.znode.name}-{at.znode.leaf}"
        old, new = (_number(at.change.old), _number(at.change.new))
        if at.context.fence is not None and not at.context.fences_a_member_of(at.znode.group):
            why = "an operator's request" if new is not None else "reset, deleted, or its topic was recreated"
            yield f"the offset of {name} was set from {_said(old)} to {_said(new)} by the coordinator", why
        elif new is None:
            yield f"the offset of {name} was deleted", ""
        elif old is not None and new < old:
            yield f"the offset of {name} went back from {old} to {new}", ""

    def _paused(self, at: Scene) -> Iterator[Told]:
        where = f"group {at.znode.group}" if at.znode.group else "every group"
        if at.change.new is None:
            yield f"{where} is resumed", ""
        elif at.change.new.data:
            pause = Pause.from_bytes(at.change.new.data, at.change.path)
            yield f"{where} is paused", f"{pause.reason} ({pause.by})" if pause.by else pause.reason

    def _request(self, at: Scene) -> Iterator[Told]:
        if at.change.new is None:
            return
        request = Request.from_bytes(at.change.new.data, at.change.path)
        selection = self._selection
        if selection.group and request.group != selection.group:
            return
        named = PartitionSet.of(request.offsets) | request.partitions
        if selection.partition is not None and selection.partition not in named and request.type != "rebalance":
            return
        if selection.consumer and request.consumer != selection.consumer:
            return
        about = " ".join(part for part in (request.group, request.consumer) if part)
        by = f"{request.reason} ({request.by})" if request.by else request.reason
        if request.answered:
            yield f"{at.znode.name}: {request.type} {about} is {request.result}: {request.message}", by
        else:
            yield f"{at.znode.name}: {request.type} {about} is requested", by


def _assignment(path: str, node: TreeNode) -> Assignment:
    return Assignment.from_bytes(node.data, path, znode_version=node.version)


def _number(node: TreeNode | None) -> int | None:
    if node is None or not node.data.strip().isdigit():
        return None
    return int(node.data)


def _said(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)
