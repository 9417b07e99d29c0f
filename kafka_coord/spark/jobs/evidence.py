"""Reads the evidence for the job ``history``: coordinator decisions and their effects, as rows.

ZooKeeper's transaction log holds every decision, command and commit. This module replays the log as ``kafka-coord
audit`` does. It also reads the output of ``kafka-coord groups history GROUP -o json``, which contains only a group's
last decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from kafka_coord.channel.operations import decode_command
from kafka_coord.errors import MalformedValue, NotFound
from kafka_coord.model import Decision, StopFetcher, TopicPartition, Unreadable
from kafka_coord.model import json_fields as fields
from kafka_coord.model.histories import Trail
from kafka_coord.monitor.audit import audit
from kafka_coord.monitor.audit.auditor import Auditor
from kafka_coord.monitor.audit.state import Kind, StepContext, Znode
from kafka_coord.monitor.audit.tree import Change, Step


class DecidedAt(NamedTuple):
    """A decision about a group. Durations are in ms from the decision, or ``None`` if the log does not show them."""

    source: str
    group: str
    generation: int
    epoch: int
    at_ms: int
    reason: str
    causes: tuple[str, ...]
    assignor: str
    members: int
    partitions: int
    moved: int
    stopped_ms: int | None
    settled_ms: int | None


class HeldPartition(NamedTuple):
    """A period in which a consumer held a partition. It begins when a start-fetcher is acknowledged, and ends when a
    stop-fetcher is acknowledged or the registration is removed (``ending`` says which). ``members_left`` is how many
    members the group then has.
    """

    source: str
    group: str
    topic: str
    partition: int
    consumer: str
    begin_ms: int
    end_ms: int | None
    ending: str
    members_left: int


class ReadPosition(NamedTuple):
    """The offset that a group had committed for a partition at a given time."""

    source: str
    group: str
    topic: str
    partition: int
    offset: int
    at_ms: int


@dataclass(slots=True)
class Evidence:
    """All evidence, and the number of values that could not be read, wholly or in part."""

    decisions: list[DecidedAt] = field(default_factory=list)
    holds: list[HeldPartition] = field(default_factory=list)
    positions: list[ReadPosition] = field(default_factory=list)
    unreadable: int = 0

    def add_trail(self, source: str, group: str, trail: Trail) -> None:
        self.add_decisions(source, group, trail.decisions)
        self.unreadable += len(trail.unreadable)

    def add_decisions(self, source: str, group: str, decisions: Iterable[Decision]) -> None:
        self.decisions += (
            DecidedAt(
                source,
                group,
                one.generation,
                one.epoch,
                one.decided_at_ms,
                one.reason,
                tuple(map(str, one.causes)),
                one.assignor,
                one.members,
                one.partitions,
                one.moved,
                one.stopped_ms,
                one.settled_ms,
            )
            for one in decisions
        )


def read_evidence(paths: Sequence[Path], *, chroot: str = "", source: str = "") -> Evidence:
    """Reads the evidence in ``paths``. Each path is the data directory of a ZooKeeper server, or a file with the
    output of 'kafka-coord groups history GROUP -o json', named after its group. All directories must belong to the same
    ensemble. ``source`` names the ensemble (default: the first directory's name). ``chroot`` is the root of the
    coordinator's znodes. Raises :class:`NotFound` for a path that does not exist, and :class:`MalformedValue` for any
    other kind of file.
    """
    evidence = Evidence()
    logs = []
    for path in paths:
        if not path.exists():
            raise NotFound(f"{path} does not exist")
        if path.is_dir():
            logs.append(path)
        else:
            trail = _trail(path)
            if trail.unreadable and not trail.decisions:
                raise MalformedValue(str(path), trail.unreadable[0].reason)
            evidence.add_trail(path.name, path.stem, trail)
    if logs:
        witness = _Witness(source or logs[0].name or str(logs[0]))
        audit(logs, chroot=chroot, running=True, watch=witness)
        witness.end(evidence)
    return evidence


def _trail(path: Path) -> Trail:
    """Reads the decisions in the output of ``groups history``, or in the value of a history znode."""
    content = path.read_bytes()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise MalformedValue(
            str(path), f"not JSON ({error}); use the output of 'groups history GROUP -o json'"
        ) from None
    if isinstance(value, Mapping):
        return Trail.from_json(fields.load(content, str(path)), str(path))
    if not isinstance(value, list) or not all(isinstance(decision, Mapping) for decision in value):
        raise MalformedValue(str(path), "not a list of decisions; use the output of 'groups history GROUP -o json'")
    decisions, problem = fields.readable({"decisions": value}, "decisions", str(path), _shown_decision)
    return Trail(decisions, unreadable=(Unreadable(str(path), problem),) if problem else ())


def _shown_decision(shown: fields.Json, where: str) -> Decision:
    """Decodes a decision as ``groups history`` shows it."""
    written = shown.get("decided_at")
    try:
        at_ms = round(datetime.fromisoformat(written).timestamp() * 1000) if written is not None else 0
    except (TypeError, ValueError, OverflowError):
        raise MalformedValue(where, f"{fields.shown(written)} is not a time") from None
    return Decision.from_json({**shown, "decided_at_ms": at_ms}, where)


class _Witness:
    """Collects evidence from each step of a log, before the audit judges the step."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._decisions: dict[tuple[str, int], Decision] = {}
        self._groups: set[str] = set()
        self._open: dict[tuple[str, TopicPartition], HeldPartition] = {}
        self._closed: list[HeldPartition] = []
        self._commits: dict[tuple[str, TopicPartition, int], ReadPosition] = {}
        self._unreadable = 0

    def __call__(self, auditor: Auditor, step: Step) -> None:
        context = StepContext.of(step, auditor.state)
        for change in step.changes:
            znode = auditor.znodes.of(change.path)
            try:
                if znode.kind is Kind.HISTORY and change.new is not None:
                    self._history(znode, change)
                elif znode.kind is Kind.COMMAND and change.new is None:
                    if context.fenced_as(znode.group, znode.name):
                        self._acknowledged(auditor, znode, change, step.time_ms)
                elif znode.kind is Kind.REGISTRATION and change.new is None:
                    self._gone(auditor, znode, step, _departure(change, context))
                elif znode.kind is Kind.OFFSET and change.new is not None:
                    self._committed(znode, change.new.data, step.time_ms)
            except MalformedValue:
                self._unreadable += 1

    def end(self, evidence: Evidence) -> None:
        """Adds the collected evidence to ``evidence``."""
        for (group, _), decision in self._decisions.items():
            evidence.add_decisions(self._source, group, [decision])
        evidence.holds += [*self._closed, *self._open.values()]
        evidence.positions += self._commits.values()
        evidence.unreadable += self._unreadable

    def _history(self, znode: Znode, change: Change) -> None:
        data = change.new.data if change.new is not None else b""
        found = Trail.from_json(fields.load(data, change.path), change.path)
        decisions = found.decisions
        self._unreadable += len(found.unreadable)
        is_known = znode.group in self._groups
        self._groups.add(znode.group)
        for decision in decisions[-1:] if is_known else decisions:  # only the last decision is new or newly settled
            self._decisions[znode.group, decision.generation] = decision

    def _acknowledged(self, auditor: Auditor, znode: Znode, change: Change, at_ms: int) -> None:
        command = decode_command(change.old.data if change.old is not None else b"", change.path)
        for partition in command.partitions:
            if isinstance(command, StopFetcher):
                left = len(auditor.state.group(znode.group).registrations)
                self._close(znode.group, partition, znode.name, at_ms, "stopped", left)
            else:
                self._open[znode.group, partition] = HeldPartition(
                    self._source, znode.group, *partition, znode.name, at_ms, None, "held at the end", 0
                )

    def _gone(self, auditor: Auditor, znode: Znode, step: Step, ending: str) -> None:
        left = len(auditor.state.group(znode.group).registrations.keys() - {znode.name})
        for group, partition in list(self._open):
            if group == znode.group:
                self._close(group, partition, znode.name, step.time_ms, ending, left)

    def _close(self, group: str, partition: TopicPartition, consumer: str, at_ms: int, ending: str, left: int) -> None:
        held = self._open.get((group, partition))
        if held is not None and held.consumer == consumer:
            del self._open[group, partition]
            self._closed.append(held._replace(end_ms=at_ms, ending=ending, members_left=left))

    def _committed(self, znode: Znode, data: bytes, at_ms: int) -> None:
        if not znode.leaf.isdigit() or not data.strip().isdigit():
            return
        partition = TopicPartition(znode.name, int(znode.leaf))
        self._commits[znode.group, partition, at_ms // 1000] = ReadPosition(
            self._source, znode.group, *partition, int(data), at_ms
        )


def _departure(change: Change, context: StepContext) -> str:
    if context.step.session_ended:
        return "session ended"
    if context.fence is not None:
        return "evicted"
    own = change.old is not None and change.old.session_id == context.step.session_id
    return "left" if own else "registration deleted"
