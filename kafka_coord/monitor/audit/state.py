"""What the coordinator and the consumers had written at one point of the log, decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_coord.model import Assignment, Command, CommandId, Ledger, PartitionSet, TopicPartition
from kafka_coord.monitor.audit.tree import Checked, Node, Step
from kafka_coord.zk import layout


class Registered(NamedTuple):
    """A live registration: its incarnation is its czxid. ``value`` is what it wrote, not decoded."""

    incarnation: int
    session_id: int
    value: bytes = b""


class Outstanding(NamedTuple):
    """A command znode; ``command`` is ``None`` where its value cannot be decoded."""

    id: CommandId
    command: Command | None


@dataclass(slots=True)
class GroupState:
    """One group as of the last step."""

    name: str
    registrations: dict[str, Registered] = field(default_factory=dict)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    commands: dict[str, dict[str, Outstanding]] = field(default_factory=dict)
    """consumer → znode name → command"""
    holders: dict[TopicPartition, tuple[str, ...]] = field(default_factory=dict)
    """Whose ledgers name the partition, whether their incarnation lives or not."""
    target: Assignment | None = None
    generation: int = 0
    """The highest a target had."""
    told: dict[str, int] = field(default_factory=dict)
    """consumer → generation of the newest command written for it"""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """What is stored, where it can be read"""
    paused: bool = False

    def live(self, consumer: str) -> Ledger | None:
        """The consumer's ledger, if it is of the incarnation that is registered."""
        ledger, registered = self.ledgers.get(consumer), self.registrations.get(consumer)
        if ledger is None or registered is None or ledger.incarnation != registered.incarnation:
            return None
        return ledger

    def live_holders(self, partition: TopicPartition) -> tuple[str, ...]:
        return tuple(consumer for consumer in self.holders.get(partition, ()) if self.live(consumer) is not None)

    def set_ledger(self, consumer: str, ledger: Ledger | None) -> None:
        before, after = self.ledgers.get(consumer), ledger
        had = before.held if before is not None else PartitionSet()
        has = after.held if after is not None else PartitionSet()
        for tp in had - has:
            left = tuple(name for name in self.holders[tp] if name != consumer)
            if left:
                self.holders[tp] = left
            else:
                del self.holders[tp]
        for tp in has - had:
            self.holders[tp] = (*self.holders.get(tp, ()), consumer)
        if ledger is None:
            self.ledgers.pop(consumer, None)
        else:
            self.ledgers[consumer] = ledger

    def command_of(self, consumer: str, name: str) -> Outstanding | None:
        return self.commands.get(consumer, {}).get(name)

    def outstanding(self, consumer: str) -> Iterator[Outstanding]:
        return iter(self.commands.get(consumer, {}).values())


class Names:
    """Who a session is: the instance or the consumers that made their ephemerals in it."""

    def __init__(self) -> None:
        self._known: dict[int, list[str]] = {}

    def learn(self, session_id: int, name: str) -> None:
        known = self._known.setdefault(session_id, [])
        if name not in known and len(known) < 4:
            known.append(name)

    def of(self, session_id: int) -> str:
        known = self._known.get(session_id)
        return f"{', '.join(known)}, session {session_id:#x}" if known else f"session {session_id:#x}"


@dataclass(slots=True)
class ZooKeeperState:
    """Everything at one point of the log."""

    groups: dict[str, GroupState] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    epoch: int = 0
    """The highest that was won."""
    epoch_version: int = -1
    epoch_session: int | None = None
    """Who won the newest epoch; ``None`` while that is not known."""
    incarnations: dict[tuple[int, str, str], int] = field(default_factory=dict)
    """(session, group, consumer) → the newest incarnation it registered"""
    all_paused: bool = False
    topics: dict[str, Node] = field(default_factory=dict)
    """Kafka's topics: the data of their znodes lists their partitions"""

    def group(self, name: str) -> GroupState:
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = GroupState(name)
        return found


@dataclass(slots=True)
class StepContext:
    """One step being judged, and what of it every rule needs."""

    step: Step
    fence: Checked | None = None
    checked: dict[str, int] = field(default_factory=dict)
    """path → version"""
    gone: set[tuple[str, str]] = field(default_factory=set)
    """(group, consumer): registrations this step removed"""
    removed: set[str] = field(default_factory=set)
    """paths of commands this step removed"""
    started: list[tuple[str, str, Outstanding]] = field(default_factory=list)
    """(group, consumer, start-fetcher) this step wrote"""
    freed: set[tuple[str, TopicPartition]] = field(default_factory=set)
    """(group, partition) that nobody who lives held before this step, of those it grants"""
    granted: list[tuple[str, str, PartitionSet]] = field(default_factory=list)
    """(group, consumer, partitions): what its ledger names since this step"""
    elected: bool = False
    committers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """group → the member whose checks the step holds, once somebody asked"""

    @classmethod
    def of(cls, step: Step) -> StepContext:
        context = cls(step)
        for check in step.checks:
            context.checked[check.path] = check.version
            if check.path == layout.COORDINATOR_EPOCH:
                context.fence = check
        return context

    def fences_a_member_of(self, group: str) -> bool:
        """Whether it checks the token of some consumer of the group."""
        return any(path.startswith(f"{layout.channels(group)}/") for path in self.checked)

    def fenced_as(self, group: str, consumer: str) -> bool:
        """Whether it holds both checks of docs/protocol.md, section 4."""
        return layout.registration(group, consumer) in self.checked and layout.channel(group, consumer) in self.checked
