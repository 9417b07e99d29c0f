"""Checks the invariants of docs/design.md (section 5) at every transaction and every handed-out record."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from kafka_coord.channel.operations import decode_command, decode_offset
from kafka_coord.coordinator.steps import Plan, WriteLedgerAndCommands
from kafka_coord.frontends.kafka.managed.classic import PROTOCOL as CLASSIC
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.model import (
    NO_OFFSET,
    Assignment,
    Command,
    Coverage,
    Ledger,
    Observation,
    PartitionSet,
    Settled,
    StartPoint,
    StopFetcher,
    TopicOfOffsets,
    TopicPartition,
    Zxids,
    parse_command_id,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import layout
from kafka_coord.zk.layout import Root
from kafka_coord.zk.store import ANY_VERSION, Check, Create, Delete, WatchType
from tests.coordinator.plan.invariants import violations, violations_of_ledgers
from tests.simulation.garbage import GARBAGE
from tests.simulation.group_kind import BYSTANDER, GROUP
from tests.simulation.server import Change, SimulatedZooKeeper, Transaction

_TOKEN_PATH = re.compile(r"/consumers/groups/([^/]+)/channel/([^/]+)")
_GROUP_PATH = re.compile(
    r"/consumers/groups/([^/]+)/(ids|owners|channel|offsets|assignment|settled)(?:/([^/]+))?(?:/([^/]+))?"
)

_DECIDED = re.compile(r"/consumers/groups/[^/]+/(owners/.*|assignment|settled|history)")
"""Only the elected coordinator writes these znodes."""
LONG_SILENCE_MS = 8_000
"""This is shorter than any session timeout of Kafka clients."""
LONGEST_WRITE_MS = 10_000
"""The time that may pass between an instance's decision on an expiry and its write."""
_TERM = layout.log_partition(partition_of(GROUP))


class InvariantBroken(AssertionError):
    """An invariant does not hold."""


class Witness(Protocol):
    """The view of one simulated consumer from outside."""

    @property
    def consumer(self) -> str: ...

    @property
    def closing(self) -> bool: ...

    @property
    def incarnation(self) -> int | None:
        """The incarnation that the consumer knows, or ``None`` while it is not registered."""

    def holds(self, partition: TopicPartition) -> bool: ...

    subscribed_anew: bool
    """Whether the consumer will register again only because of its new subscription."""

    def replaces(self, member_id: str, protocol: str) -> bool: ...

    @property
    def starts_when_told(self) -> bool:
        """Whether the instance acknowledges a start before the consumer starts the partitions."""

    def may_fetch(self, partition: TopicPartition) -> bool: ...

    def leaving(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Returns each held partition of a leaving consumer, with the offset up to which its application had finished
        at the beginning of the leave, and the offset up to which it has finished now."""


LISTED_WITHIN_S = 3.0
"""How long after a start, and after a leader's return, an awaited end may stay unlisted. The instance lists every
second."""


class InvariantChecker:
    """``witness_of`` returns the consumer of a session, and ``is_coordinator`` tells whether a session is a service's.
    ``named`` returns the consumer with a name, for which a gateway writes in the session of a coordinator.
    ``process_of`` returns the process of a session. ``behind_marks`` returns the first offset from a given one on that
    holds a record, or the end of the log."""

    def __init__(
        self,
        server: SimulatedZooKeeper,
        witness_of: Callable[[int], Witness | None],
        is_coordinator: Callable[[int], bool],
        named: Callable[[str], Witness | None],
        process_of: Callable[[int], object],
        behind_marks: Callable[[TopicPartition, int], int],
    ) -> None:
        self.behind_marks = behind_marks
        self._tree = server.tree
        self._witness_of = witness_of
        self._is_coordinator = is_coordinator
        self._named = named
        self._process_of = process_of
        self._term_of: object = None
        """The instance that claimed the current term of the group's partition of the groups log."""
        self.ledgers: dict[str, dict[str, Ledger]] = {}
        self.czxids: dict[str, int] = {}
        """The czxid of each topic that was ever made, by its identity."""
        self.targets: dict[str, Assignment] = {}
        self.frontier: dict[tuple[str, TopicPartition], int] = {}
        self._sought: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        """To where an application has gone back in a partition, and from where. Whoever gets it before that is
        committed may go on where the stored offset is."""
        self._seeker: dict[tuple[str, TopicPartition], str] = {}
        """The consumer whose application went back last."""
        self.unclean: set[tuple[str, TopicPartition]] = set()
        self.cut: set[tuple[str, TopicPartition]] = set()
        """The partitions whose logs have lost offsets that the group had passed, until a record is handed out again.
        Whoever knows the epoch that it had read goes on at its end; nobody else can."""
        self._may_go_back: Counter[tuple[str, TopicPartition]] = Counter()
        """How many commits may lower a partition's stored offset: one for each cut of its log."""
        self.eager: set[str] = set()
        """The eager groups. They stop all partitions before they start any, so partitions that do not move are also
        paused."""
        self.said_farewell: set[str] = set()
        """The ids of Kafka clients that have sent a leave. It may be written after the next process has started."""
        self.joined: set[int] = set()
        """The incarnations of which Kafka clients have learned."""
        self.expired: set[tuple[str, str, int | None]] = set()
        """The group, consumer and incarnation of each member that a gateway expired."""
        self._heard: dict[str, tuple[int, int]] = {}
        """Maps a Kafka client's member id to two times: since when the current term has received its heartbeats without
        long gaps, and the last of them."""
        self.ends: Mapping[TopicPartition, int] = {}
        """The ends of the logs."""
        self._first_starts: dict[tuple[str, TopicPartition], int] = {}
        """The end of each partition when the group was first told to start it without an offset."""
        self.now: Callable[[], float] = lambda: 0.0
        self.led_since: dict[TopicPartition, float] = {}
        """When each partition that had no leader got one again."""
        self.lists_promptly = False
        """Whether nothing keeps the elected instance from listing awaited ends every second."""
        self._told_at: dict[tuple[str, TopicPartition], float] = {}
        self._listed: dict[tuple[str, TopicPartition], int] = {}
        """The first ends that an instance has stored."""
        self._latest_ends: dict[tuple[str, TopicPartition], int] = {}
        """The end of each partition in ``_first_starts`` when the group must have listed it."""
        self.from_the_end: set[str] = set()
        self._counted: dict[tuple[str, str, int], int] = {}
        self._seen_in_mirror: dict[str, int] = {}
        self.counts: Mapping[str, int] = {}
        """How many partitions each topic has."""
        """The partitions that a topic (by its czxid) had when a group started the first of them. None, if the group
        remembered a subscription to the topic before it was created."""
        self._covered: dict[str, Coverage] = {}
        self._topics_of_offsets: dict[tuple[str, str], bytes] = {}
        """The values of the znodes ``offsets/<topic>``, by group and topic, as of the last transaction."""
        """The groups that read a partition without a stored offset from its end. The start is fixed as soon as an
        offset is stored."""
        self.resets = 0
        """The number of offsets that an operator has set."""
        self.plans = self.plans_with_commands = 0
        self.unsound_plan = ""
        self._offsets: dict[tuple[str, TopicPartition], int] = {}
        self._generations: dict[str, tuple[int, int]] = {}
        self._commands: dict[str, Command] = {}
        """The written commands. A consumer that has read a command executes it, even if the znode changes later."""
        self._settled: tuple[int, Settled] | None = None
        self.epoch = -1
        self.broken: InvariantBroken | None = None
        server.observers.append(self.on_transaction)

    def planned(self, observation: Observation, plan: Plan) -> None:
        """Checks a plan against its observation. Raises a fault only after the write of the plan, so the audit also
        sees it.

        A deposed coordinator may read one ledger before its successor's write and another one after it. Its plan is not
        checked then, because the epoch check refuses its write."""
        if observation.epoch < self.epoch and violations_of_ledgers(observation.ledgers):
            return
        self.plans += 1
        self.plans_with_commands += any(
            isinstance(step, WriteLedgerAndCommands) and step.commands for step in plan.steps
        )
        found = violations(observation, plan)
        if found and not self.unsound_plan:
            self.unsound_plan = f"a plan breaks invariant {found[0]}"

    # --- what is written ---------------------------------------------------------------------------------------------

    def on_transaction(self, transaction: Transaction) -> None:
        touched: set[str] = set()
        found = []
        for change in transaction.changes:
            elects = change.kind is not WatchType.DELETED and transaction.session != 0
            if change.path == layout.COORDINATOR_EPOCH and elects:
                self._check(int(change.data) > self.epoch, f"epoch {change.data!r} after epoch {self.epoch}")
                self.epoch = int(change.data)
            if change.path == _TERM and change.kind is WatchType.CHANGED:
                self._term_of, self._heard = self._process_of(transaction.session), {}
            self._comes_later(change)
            self._mirrored(change)
            match = _GROUP_PATH.fullmatch(change.path)
            if match is not None:
                if match[1] == BYSTANDER and match[2] != "settled" and transaction.session:
                    self._break(f"{change.path} of the group that must stay untouched was written")
                found.append((change, match))
                touched.add(match[1])
        served: Mapping[str, str] | None = None
        if touched and self._is_coordinator(transaction.session):
            self._fenced(transaction)
            served = _served(transaction)
        written: set[str] = set()
        for change, match in found:
            if match[2] == "owners" and match[3]:
                self._ledger(match[1], match[3], change)
                written.add(match[1])
            elif match[2] == "assignment":
                self._target(match[1], change)
        for group in sorted(written):  # only the ledgers have the holders
            self._one_holder(group)
        for change, match in found:
            self._of_a_consumer(match, change, transaction, served or {})
        for change, match in found:
            if match[2] == "offsets" and match[3] and not match[4]:
                self._topics_of_offsets[match[1], match[3]] = change.data
        for group in sorted(touched):
            self._at_rest(group)
        if served is not None and not served and self.unsound_plan:
            self._break(self.unsound_plan)

    def _of_a_consumer(
        self, match: re.Match[str], change: Change, transaction: Transaction, served: Mapping[str, str]
    ) -> None:
        group, kind, name, last = match.groups()
        if kind == "offsets" and name is None and change.kind is not WatchType.DELETED and change.data not in GARBAGE:
            self._covered[group] = Coverage.from_bytes(change.data, change.path)
        if kind == "channel" and last:
            self._command(group, name, change, transaction, served)
        elif kind == "offsets" and last:
            self._offset(group, TopicPartition(name, int(last)), change, transaction, served)
        elif kind == "ids" and name and change.kind is WatchType.DELETED:
            self._left(group, name, change, transaction, served)
            self._departed(group, name, change, transaction)
            if change.path in served and change.before is not None:
                self.expired.add((group, name, change.before.czxid))
                self._expired(name, change, transaction)

    def _fenced(self, transaction: Transaction) -> None:
        """Checks that a coordinator fences its writes by the epoch. A term of Kafka clients must fence its writes by
        the term, and write only for members."""
        fence = transaction.ops[0] if transaction.ops else None
        path = fence.path if isinstance(fence, Check) and fence.version != ANY_VERSION else ""
        fenced = path == layout.COORDINATOR_EPOCH
        if path == _TERM:
            self._check(self._process_of(transaction.session) is self._term_of, f"written after a term's end: {fence}")
            fenced = not any(_DECIDED.fullmatch(change.path) for change in transaction.changes)
        if not fenced:
            self._break(f"unfenced write of a coordinator: {transaction.ops}")

    def _ledger(self, group: str, consumer: str, change: Change) -> None:
        ledgers = self.ledgers.setdefault(group, {})
        if change.kind is WatchType.DELETED:
            ledgers.pop(consumer, None)
        elif change.data not in GARBAGE:  # the partitions of an unreadable ledger stay held
            ledgers[consumer] = Ledger.from_json(
                fields.load(change.data, change.path), change.path, consumer=consumer, znode_version=0
            )

    def _one_holder(self, group: str) -> None:
        holders: dict[TopicPartition, str] = {}
        for consumer, ledger in self.ledgers.get(group, {}).items():
            for partition in ledger.held:
                other = holders.setdefault(partition, consumer)
                if other != consumer:
                    self._break(f"{partition} of {group} is held by {other} and by {consumer}")

    def _target(self, group: str, change: Change) -> None:
        if change.kind is WatchType.DELETED or change.data in GARBAGE:
            return
        target = Assignment.from_json(fields.load(change.data, change.path), change.path, znode_version=0)
        before = self._generations.get(group, (-1, -1))
        self._check(
            target.generation > before[0] and target.epoch >= before[1],
            f"generation and epoch of {group} went from {before} to {(target.generation, target.epoch)}",
        )
        self._generations[group] = (target.generation, target.epoch)
        self.targets[group] = target

    def _command(
        self, group: str, consumer: str, change: Change, transaction: Transaction, served: Mapping[str, str]
    ) -> None:
        if change.kind is WatchType.CREATED:
            self._commanded(group, consumer, change)
        elif change.kind is WatchType.DELETED and change.path in served:
            self._acknowledged_for(served[change.path], group, change, transaction)
        elif change.kind is WatchType.DELETED and change.before is not None:
            witness = self._witness_of(transaction.session)
            if witness is not None:
                self._acknowledged(witness, group, consumer, change)

    def _commanded(self, group: str, consumer: str, change: Change) -> None:
        command = self._commands[change.path] = decode_command(change.data, change.path)
        ledger = self.ledgers.get(group, {}).get(consumer, Ledger(consumer, 0))
        self._check(ledger.incarnation == command.incarnation, f"{change.path} and its ledger differ in incarnation")
        pauses = [node for path in (layout.PAUSED, layout.paused(group)) if (node := self._tree.nodes.get(path))]
        seen = any(command.incarnation > node.czxid for node in pauses)
        self._check(not seen, f"{change.path} commands a member that joined a paused group")
        self._check(command.epoch == self.epoch, f"{change.path} is of epoch {command.epoch}, not {self.epoch}")
        if isinstance(command, StopFetcher):
            target = self.targets.get(group)
            staying = target.members.get(consumer, PartitionSet()) & command.partitions if target else PartitionSet()
            if group not in self.eager and not self._of_earlier_topic(ledger, staying):
                self._check(not staying, f"{change.path} pauses partitions that do not move: {staying}")
            self._check(not command.partitions - ledger.stopping, f"{change.path} stops more than the ledger says")
            return
        self._check(not command.partitions - ledger.owned, f"{change.path} starts more than the ledger says")
        for partition, point in command.starts.items():
            stored = self._stored(group, partition)
            if group in self.from_the_end and point.offset < 0 and not point.later:
                self._first_starts.setdefault((group, partition), self.ends.get(partition, 0))
                self._told_at.setdefault((group, partition), self.now())
            # An instance may store a first end while the start is written. The consumer then begins there.
            just_listed = point.offset < 0 and stored is not None and self._listed.get((group, partition)) == stored
            self._check(
                point.offset == (-1 if stored is None else stored) or just_listed,
                f"{change.path}: {partition} at {point}, stored is {stored}",
            )
        for topic, numbers in command.partitions.by_topic():
            if not self._of_earlier_topic(ledger, PartitionSet({topic: numbers})):
                self._check_later(group, change.path, topic, max(numbers) + 1, command.starts)

    def _comes_later(self, change: Change) -> None:
        parent, _, topic = change.path.rpartition("/")
        if parent == layout.BROKER_TOPICS and change.kind is WatchType.CREATED:
            czxid = self._tree.nodes[change.path].czxid
            for group, coverage in self._covered.items():
                if coverage.covers(topic):
                    self._counted.setdefault((group, topic, czxid), 0)

    def _mirrored(self, change: Change) -> None:
        """Checks that no topic or partition that exists goes from the mirror, whatever brokers answer, and that none is
        missing once everybody reads it."""
        if change.path == layout.CLUSTER and change.kind is WatchType.CHANGED:
            there = {path.rpartition("/")[2] for path in self._tree.nodes if path.startswith(layout.MIRRORED_TOPICS)}
            is_full = self.counts.keys() <= there
            self._check(is_full or b'"brokers"' not in change.data, "the mirror is read before it is full")
        parent, _, topic = change.path.rpartition("/")
        if parent != layout.MIRRORED_TOPICS:
            return
        self._check(change.kind is not WatchType.DELETED or topic not in self.counts, f"{topic} exists, and is gone")
        if change.kind is not WatchType.DELETED:
            before, after = self._seen_in_mirror.get(topic, 0), len(fields.load_object(change.data, "")["partitions"])
            self._check(after >= before, f"{topic} had {before} partitions, and has {after}")
            self._seen_in_mirror[topic] = after

    def _partitions_of(self, topic: str) -> int:
        """Returns how many partitions the coordinator may have seen, in Kafka's own znode or in the mirror."""
        nodes = [self._tree.nodes.get(root.at(layout.broker_topic(topic))) for root in Root]
        values = [fields.load_object(one.data, "") for one in nodes if one is not None and one.data not in GARBAGE]
        return max((len(one["partitions"]) for one in values), default=0)

    def _check_later(
        self, group: str, path: str, topic: str, known: int, starts: Mapping[TopicPartition, StartPoint]
    ) -> None:
        """Checks that a partition begins at its beginning if it came into being after the group had started others of
        its topic. Until the first start, the coordinator may have seen the topic before or after it changed."""
        node = self._tree.nodes.get(layout.broker_topic(topic))
        if node is None or node.data in GARBAGE:
            return
        count = max(known, self._partitions_of(topic))
        first = self._counted.setdefault((group, topic, node.czxid), count)
        for partition, point in starts.items():
            if partition.topic == topic and point.offset < 0 and partition.partition >= first:
                self._check(point.later, f"{path}: {partition} came later, and its records may be skipped")

    def _of_earlier_topic(self, ledger: Ledger, partitions: PartitionSet) -> bool:
        """Tells whether these held partitions belong to deleted topics, whose names other topics have now."""

        def gone(topic: str) -> bool:
            node = self._tree.nodes.get(layout.broker_topic(topic))
            return node is None or self.czxids.get(ledger.topic_ids.get(topic, "")) != node.czxid

        return bool(partitions) and all(gone(topic) for topic in {partition.topic for partition in partitions})

    def _acknowledged(self, witness: Witness, group: str, consumer: str, change: Change) -> None:
        if change.before is None:
            return
        command = self._commands[change.path]
        registration = self._tree.nodes.get(layout.registration(group, consumer))
        mine = witness.incarnation
        if command.incarnation != mine:
            live = registration.czxid if registration is not None else None
            self._check(command.incarnation != live, f"{change.path} for the live incarnation was dropped by another")
            return
        self._check(
            registration is not None and registration.czxid == mine, f"{change.path} acknowledged by incarnation {mine}"
        )
        self._in_order(group, consumer, change)
        stops = isinstance(command, StopFetcher)
        for partition in command.partitions:
            self._check(
                witness.holds(partition) != stops, f"{change.path} was acknowledged without effect on {partition}"
            )
            if stops:
                self._handed_is_stored(group, partition, change)

    def _acknowledged_for(self, consumer: str, group: str, change: Change, transaction: Transaction) -> None:
        """Checks an acknowledgement by a gateway, which comes some time after the consumer's answer. Until then, the
        consumer may have given up or left."""
        if change.before is None:
            return
        command = self._commands[change.path]
        live = self._registered(group, consumer, transaction)
        self._check(command.incarnation == live, f"{change.path} was acknowledged for incarnation {live}")
        self._in_order(group, consumer, change)
        witness = self._named(consumer)
        stops = isinstance(command, StopFetcher)
        for partition in command.partitions:
            if witness is not None and witness.incarnation == live:
                is_gone = not stops and self._of_earlier_topic(
                    self.ledgers.get(group, {}).get(consumer, Ledger(consumer, 0)), PartitionSet.of([partition])
                )  # the Kafka client finds no topic with that id
                is_told = not stops and witness.starts_when_told
                has_left = not stops and witness.closing  # the acknowledgement could not be written before
                self._check(
                    witness.holds(partition) != stops or is_gone or is_told or has_left,
                    f"{change.path} was acknowledged without effect on {partition}",
                )
            if stops:
                self._handed_is_stored(group, partition, change)

    def _in_order(self, group: str, consumer: str, change: Change) -> None:
        channel = self._tree.nodes[layout.channel(group, consumer)]
        number = parse_command_id(change.path.rpartition("/")[2])
        earlier = [c for name in channel.children if (c := parse_command_id(name)) and number and c < number]
        self._check(not earlier, f"{change.path} was acknowledged before {earlier}")

    def _handed_is_stored(self, group: str, partition: TopicPartition, change: Change) -> None:
        handed = self.frontier.get((group, partition))
        if handed and (group, partition) not in self.unclean | self.cut:
            stored, handed = self._stored(group, partition), self.frontier_of(group, partition)
            sentence = f"{change.path}: {partition} handed to {handed}, committed {stored}"
            self._check(self.behind_marks(partition, stored or 0) == handed, sentence)

    def _offset(
        self,
        group: str,
        partition: TopicPartition,
        change: Change,
        transaction: Transaction,
        served: Mapping[str, str],
    ) -> None:
        if change.kind is WatchType.DELETED:
            self._offsets.pop((group, partition), None)
            self._offset_deleted(group, partition, transaction)
            return
        if transaction.session == 0:
            return  # the fault makes an offset unreadable, or the operator repairs it
        offset, before = decode_offset(change.data, change.path), self._offsets.get((group, partition), -1)
        self._offsets[group, partition] = offset
        if self._sought.get((group, partition), (before, 0))[0] <= offset < before:
            before = offset
        elif offset < before and self._may_go_back[group, partition] > 0:
            self._may_go_back[group, partition] -= 1
            before = offset
        if change.path in served:
            consumer = served[change.path]
            ledger = self.ledgers.get(group, {}).get(consumer)
            self._goes_on(change, partition, before, offset, ledger)
            self._begun(group, partition, before, offset, ledger)
            mine = ledger is not None and ledger.incarnation == self._registered(group, consumer, transaction)
            if ledger is None or not mine or partition not in ledger.held:
                self._break(f"{change.path} was committed for {consumer}, who does not hold it: {ledger}")
            return
        if self._is_coordinator(transaction.session):
            awaited = layout.awaited_end(group, *partition)
            if any(one.path == awaited and one.kind is WatchType.DELETED for one in transaction.changes):
                self._check(before < 0, f"{change.path} was {before}, and an instance stored {offset} as its first end")
                if self._are_of_present_topic(group, partition.topic):  # otherwise, it goes with the earlier topic
                    self._first_end(group, partition, offset)
                    self._listed[group, partition] = offset
            else:
                self._set_for_operator(group, partition, offset)
            return
        witness = self._witness_of(transaction.session)
        ledger = self.ledgers.get(group, {}).get(witness.consumer) if witness is not None else None
        self._goes_on(change, partition, before, offset, ledger)
        if witness is not None:
            self._begun(group, partition, before, offset, ledger)
            holds = ledger is not None and ledger.incarnation == witness.incarnation and partition in ledger.held
            if not holds:
                self._break(f"{change.path} was committed by {witness.consumer}, who does not hold it: {ledger}")

    def _offset_deleted(self, group: str, partition: TopicPartition, transaction: Transaction) -> None:
        """Checks that only offsets of deleted topics are deleted: no history lasts as long as the retention, and nobody
        else asks for it."""
        is_present = self._are_of_present_topic(group, partition.topic)
        if is_present and transaction.session and layout.ids(group) in self._tree.nodes:
            self._break(f"the offset of {partition} of {group} was deleted, although its topic exists")

    def _are_of_present_topic(self, group: str, topic: str) -> bool:
        """Tells whether the group's offsets of this name are of the topic that has it now."""
        node = self._tree.nodes.get(layout.broker_topic(topic))
        before = self._topics_of_offsets.get((group, topic), b"")
        return node is not None and self.czxids.get(TopicOfOffsets.read(before).identity) == node.czxid

    def _goes_on(
        self, change: Change, partition: TopicPartition, before: int, offset: int, ledger: Ledger | None
    ) -> None:
        """Checks that an offset does not go back. What is still committed for a deleted topic counts for no other."""
        is_gone = ledger is not None and self._of_earlier_topic(ledger, PartitionSet.of([partition]))
        self._check(offset >= before or is_gone, f"{change.path} went back from {before} to {offset}")

    def _begun(self, group: str, partition: TopicPartition, before: int, offset: int, ledger: Ledger | None) -> None:
        """Takes the start of a partition that is read from its end from its first stored offset."""
        if group not in self.from_the_end or before >= 0 or ledger is None:
            return
        if not self._of_earlier_topic(ledger, PartitionSet.of([partition])):
            self._first_end(group, partition, offset)

    def _first_end(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Checks that the end at which the group begins was not listed before its first start. Whatever the group
        stores first is where it begins."""
        first = self._first_starts.get((group, partition), offset)
        self._check(offset >= first, f"{partition} of {group} begins at {offset}, and its end was {first} already")
        latest = self._latest_ends.get((group, partition), offset)
        late = self.lists_promptly and offset > latest
        self._check(not late, f"{partition} of {group} begins at {offset}, and its end could be listed at {latest}")
        self.frontier.setdefault((group, partition), offset)

    def before_append(self, partition: TopicPartition) -> None:
        """Notes where the group must begin at the latest, if the partition's end could be listed for a while."""
        for key in self._first_starts:
            since = max(self._told_at[key], self.led_since.get(partition, 0.0))
            if key[1] == partition and self.now() >= since + LISTED_WITHIN_S:
                self._latest_ends.setdefault(key, self.ends.get(partition, 0))

    def _registered(self, group: str, consumer: str, transaction: Transaction) -> int | None:
        """Returns the incarnation that was registered before the transaction."""
        path = layout.registration(group, consumer)
        for change in transaction.changes:
            if change.path == path and change.kind is WatchType.DELETED and change.before is not None:
                return change.before.czxid
        node = self._tree.nodes.get(path)
        return node.czxid if node is not None else None

    def _set_for_operator(self, group: str, partition: TopicPartition, offset: int) -> None:
        """Checks that a coordinator writes offsets only for an operator, and only of partitions that have no holder
        after the write."""
        paths = (layout.request(name) for name in self._tree.nodes[layout.REQUESTS].children)
        asked = any(b"reset-offsets" in self._tree.nodes[path].data for path in paths)
        self._check(asked, f"the offset of {partition} of {group} was set, and nobody asked for it")
        held = [name for name, ledger in self.ledgers.get(group, {}).items() if partition in ledger.held]
        self._check(not held, f"the offset of {partition} of {group} was set while {held} held it")
        self.resets += 1
        self.frontier[group, partition] = offset
        self.unclean.discard((group, partition))
        self._sought.pop((group, partition), None)
        if offset > (end := self.ends.get(partition, 0)):  # the log was cut after the operator had looked
            self.log_was_cut(group, partition, end)

    def topic_gone(self, topic: str) -> None:
        """Forgets a deleted topic. A topic of the same name begins with no records."""
        for key in [key for key in self.frontier if key[1].topic == topic]:
            del self.frontier[key]
            self.unclean.discard(key)
            self.cut.discard(key)
            self._sought.pop(key, None)
        for key in [key for key in self._first_starts if key[1].topic == topic]:
            del self._first_starts[key], self._told_at[key]
            self._latest_ends.pop(key, None)
            self._listed.pop(key, None)

    def _left(
        self, group: str, consumer: str, change: Change, transaction: Transaction, served: Mapping[str, str]
    ) -> None:
        """Checks that a leave stores the offset up to which the application had finished, for each held partition."""
        witness = self._named(consumer) if change.path in served else self._witness_of(transaction.session)
        own = any(isinstance(op, Delete) and op.path == change.path for op in transaction.ops)
        if witness is None or not own or change.before is None or witness.incarnation != change.before.czxid:
            return
        ledger = self.ledgers.get(group, {}).get(consumer, Ledger(consumer, 0))
        for partition, (began, by_now) in witness.leaving().items():
            # The offsets of a topic are deleted with it.
            gone = self._of_earlier_topic(ledger, PartitionSet.of([partition]))
            if (group, partition) in self.cut or self._may_go_back[group, partition]:
                continue
            if began == NO_OFFSET or gone or layout.topic_offsets(group, partition.topic) not in self._tree.nodes:
                continue
            stored = self._stored(group, partition) or 0
            least = began if began <= by_now else 0  # the log was cut, and the application went back
            if not least <= stored <= by_now:
                self._break(f"{consumer} left with {partition} at {stored}: its application came back from {began}")

    def heard(self, instance: object, member_id: str, now_ms: int) -> None:
        """Records that an instance has received a heartbeat of a Kafka client."""
        if instance is self._term_of:
            since, last = self._heard.get(member_id, (now_ms, now_ms))
            self._heard[member_id] = (now_ms if now_ms - last > LONG_SILENCE_MS else since), now_ms

    def _expired(self, consumer: str, change: Change, transaction: Transaction) -> None:
        """Checks that an instance does not end the membership of a Kafka client whose heartbeats it receives."""
        witness = self._named(consumer)
        if change.before is None or witness is None or witness.closing or change.before.data in GARBAGE:
            return
        registered = fields.load(change.before.data, change.path)
        member_id = fields.plain(registered.get("resume_key", ""))
        if member_id in self.said_farewell:
            return
        if registered.get("protocol") == CLASSIC and change.before.czxid not in self.joined:
            return  # its client may have been gone before it learned its id
        since, last = self._heard.get(member_id, (0, 0))
        if witness.replaces(member_id, fields.plain(registered.get("protocol", ""))):
            return
        if not _is_replaced(change, transaction) and transaction.time_ms - last < LONG_SILENCE_MS:
            self._check(
                transaction.time_ms - since < LONGEST_WRITE_MS,
                f"{consumer} was expired, and last heard of at {last} ms",
            )

    def _departed(self, group: str, consumer: str, change: Change, transaction: Transaction) -> None:
        ledger, witness = self.ledgers.get(group, {}).get(consumer), self._named(consumer)
        if witness is not None and witness.subscribed_anew:
            witness.subscribed_anew = False
            if _is_replaced(change, transaction):
                return  # it has committed everything
        if ledger is not None and change.before is not None and ledger.incarnation == change.before.czxid:
            self.crashed(group, consumer, ledger.held)

    def _at_rest(self, group: str) -> None:
        """Checks the record of a group at rest, which is valid until a zxid changes."""
        node = self._tree.nodes.get(layout.settled(group))
        if node is None or node.data in GARBAGE:
            return
        if self._settled is None or self._settled[0] != node.mzxid:
            self._settled = node.mzxid, Settled.from_json(fields.load(node.data, group), group)
        if self._settled[1].zxids != self._zxids(group):
            return
        remembered = self._covered.get(group, Coverage())
        self._check(
            group == BYSTANDER or remembered.covers_all(self._settled[1].subscriptions),
            f"{group} counts as at rest with {self._settled[1].subscriptions}, and remembers {remembered}",
        )
        ids, target = self._tree.nodes.get(layout.ids(group)), self.targets.get(group)
        ledgers = self.ledgers.get(group, {})
        members = sorted(ids.children) if ids is not None else []
        self._check(sorted(ledgers) == members, f"{group} counts as at rest with {members}, ledgers are {ledgers}")
        for consumer in members:
            registration = self._tree.nodes[layout.registration(group, consumer)]
            ledger, channel = ledgers[consumer], self._tree.nodes[layout.channel(group, consumer)]
            owned = target.members.get(consumer, PartitionSet()) if target is not None else PartitionSet()
            self._check(
                (ledger.incarnation, ledger.owned) == (registration.czxid, owned)
                and not ledger.stopping
                and not any(parse_command_id(name) for name in channel.children),
                f"{group} counts as at rest, and {consumer} has {ledger} of {owned} and is told {channel.children}",
            )

    def _zxids(self, group: str) -> Zxids:
        nodes = self._tree.nodes
        written = [nodes.get(path) for path in (layout.group(group), layout.assignment(group))]
        listed = [nodes.get(path) for path in (layout.ids(group), layout.owners(group), layout.channels(group))]
        of_group, of_target = (node.mzxid if node is not None else 0 for node in written)
        ids, owners, channel = (node.pzxid if node is not None else 0 for node in listed)
        return Zxids(of_group, ids, owners, channel, of_target)

    # --- what applications saw ---------------------------------------------------------------------------------------

    def crashed(self, group: str, consumer: str, partitions: PartitionSet) -> None:
        """Allows repeated records of these partitions after the last commit. Where the consumer's application had gone
        back, and that was not committed, the next owner goes on at the last commit. (A consumer can learn late that its
        session ended, when the next owner has gone back.)"""
        self.unclean.update((group, partition) for partition in partitions)
        keys = [(group, partition) for partition in partitions]
        for key in [key for key in keys if key in self._sought and self._seeker[key] == consumer]:
            stored = min(self._stored(*key) or 0, self._sought[key][1])
            if not self.stores_old(*key):
                self.frontier[key] = max(self.frontier.get(key, 0), stored)

    def in_session(self, consumer: str, partition: TopicPartition, *, ended: bool) -> None:
        """Checks that a consumer that hands out records has a live session, even after a freeze."""
        self._check(not ended, f"{consumer} was handed {partition} after its session had ended")

    def knows_its_commands(self, consumer: str, partition: TopicPartition, *, listed_first: bool) -> None:
        """Checks that a consumer that has waited lists its channel before it hands out records again."""
        self._check(listed_first, f"{consumer} was handed {partition} before it listed its channel again")

    def log_was_cut(self, group: str, partition: TopicPartition, at: int) -> None:
        """Takes the records from ``at`` on for new ones. Call this before the log is cut."""
        key, stored = (group, partition), self._stored(group, partition)
        if max(self.frontier_of(*key), stored or 0) > at:
            self.cut.add(key)
            self._may_go_back[key] += 1
            self.frontier[key] = min(self.frontier.get(key, at), at)

    def sought(self, group: str, consumer: str, partition: TopicPartition, to: int) -> None:
        """Takes over that the application of the partition's owner has gone back."""
        witness = self._named(consumer)
        if witness is None or not self._lives(group, witness):
            return  # it does not know its eviction yet
        key, read = (group, partition), self.frontier_of(group, partition)
        lowest, highest = self._sought.get(key, (to, read))
        self._sought[key], self._seeker[key] = (min(lowest, to), max(highest, read)), consumer
        self.frontier[key] = min(self.frontier.get(key, to), to)

    def stores_old(self, group: str, partition: TopicPartition) -> bool:
        """Tells whether the stored offset is from before the log was cut, and beyond what was read since. Whoever
        starts there knows no epoch."""
        stored = self._stored(group, partition) or 0
        return self._may_go_back[group, partition] > 0 and stored > self.frontier_of(group, partition)

    def handed(
        self,
        group: str,
        consumer: str,
        partition: TopicPartition,
        begin: int,
        end: int,
        others: Mapping[str, Witness],
        *,
        follows: bool = False,
    ) -> None:
        """``follows`` tells whether the consumer knows the epoch that it read before the log was cut."""
        key = group, partition
        if not self._lives(group, others[consumer]):
            return  # it does not know its eviction yet; its records do not count, and it cannot commit
        for name, other in others.items():
            fetches = name != consumer and other.may_fetch(partition) and self._lives(group, other)
            if fetches:
                self._break(f"{partition} of {group} is fetched by {consumer} and by {name}")
        frontier, was_cut = self.frontier_of(*key), key in self.cut
        self.cut.discard(key)
        if was_cut and not follows:
            self.frontier[key] = end
            return
        has_gone_back = frontier < self._sought.get(key, (0, 0))[1]
        goes_by_old = not follows and (has_gone_back or self.stores_old(group, partition))
        begins = begin <= frontier or (goes_by_old and begin == self.behind_marks(partition, self._stored(*key) or 0))
        self._check(begins, f"{consumer} was handed {partition} from {begin}: skipped {frontier} on")
        if begin < frontier:
            self._check(key in self.unclean, f"{consumer} was handed {partition} from {begin} again, to {frontier}")
            stored = self._stored(group, partition) or 0
            lowered = was_cut or self._may_go_back[key] > 0
            self._check(
                begin >= stored or lowered, f"{consumer} was handed {partition} from {begin}, committed is {stored}"
            )
        if end >= frontier:
            self.unclean.discard(key)
            self.frontier[key] = end

    # --- at rest -----------------------------------------------------------------------------------------------------

    def unrest(self, group: str, members: frozenset[str], partitions: PartitionSet) -> str:
        """Describes why the group has not reached its target, or returns an empty string."""
        target = self.targets.get(group)
        if target is None or set(target.members) != members:
            return f"target names {sorted(target.members) if target else None}, members are {sorted(members)}"
        owned = {consumer: ledger.owned for consumer, ledger in self.ledgers.get(group, {}).items() if ledger.held}
        if owned != {consumer: mine for consumer, mine in target.members.items() if mine}:
            return f"owned {owned}, target {target.members}"
        if PartitionSet.of(tp for mine in owned.values() for tp in mine) != partitions:
            return f"owned {owned}, there are {partitions}"
        for consumer in sorted(members):
            channel = self._tree.nodes.get(layout.channel(group, consumer))
            if channel is None or channel.children:
                return f"outstanding for {consumer}: {channel.children if channel else 'no channel'}"
        return ""

    def unstored(self, group: str, partition: TopicPartition) -> bool:
        """Tells whether records were handed out beyond the committed offset."""
        return self.frontier_of(group, partition) != (self._stored(group, partition) or 0)

    def frontier_of(self, group: str, partition: TopicPartition) -> int:
        """Returns the offset of the next record to hand out, behind offsets that hold none."""
        return self.behind_marks(partition, self.frontier.get((group, partition), 0))

    def _lives(self, group: str, witness: Witness) -> bool:
        node = self._tree.nodes.get(layout.registration(group, witness.consumer))
        return node is not None and node.czxid == witness.incarnation

    def _stored(self, group: str, partition: TopicPartition) -> int | None:
        node = self._tree.nodes.get(layout.offset(group, partition.topic, partition.partition))
        if node is None:
            return None
        return int(node.data) if node.data.isdigit() else self._offsets.get((group, partition))

    def _check(self, holds: bool, sentence: str) -> None:
        if not holds:
            self._break(sentence)

    def _break(self, sentence: str) -> None:
        """Raises the violation. Frequent checks call this directly, because formatting every message would cost too
        much."""
        broken = InvariantBroken(sentence)
        self.broken = self.broken or broken  # the code under test may swallow an exception that is raised inside it
        raise broken


def _served(transaction: Transaction) -> Mapping[str, str]:
    """Maps each path to the consumer for which a gateway wrote it. This is the consumer whose token was checked last
    before the write."""
    served: dict[str, str] = {}
    consumer: str | None = None
    for op in transaction.ops:
        if isinstance(op, Check):
            match = _TOKEN_PATH.fullmatch(op.path)
            if match is not None and op.version != ANY_VERSION:
                consumer = match[2]
        elif consumer is not None:
            served[op.path] = consumer
    return served


def _is_replaced(deleted: Change, transaction: Transaction) -> bool:
    return any(isinstance(op, Create) and op.path == deleted.path for op in transaction.ops)
