"""Tests each rule about ZooKeeper's contents with a broken history, and with the most similar lawful history.

The histories are written to a simulated ZooKeeper, whose clock the tests move.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafka_coord.channel.operations import Registration, register_ops
from kafka_coord.coordinator.mirror import MirroredTopic
from kafka_coord.model import (
    GroupSettings,
    Ledger,
    Member,
    Mode,
    PartitionSet,
    RequestType,
    Subscription,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.offsets import Retention
from kafka_coord.monitor.audit import AuditFinding, AuditRule
from kafka_coord.zk import layout
from kafka_coord.zk.root import ClusterRecord, Source
from kafka_coord.zk.store import Check, Create, Delete, SetData, Store
from tests.audit.scribe import GROUP, TOPIC, Scribe
from tests.simulation.audited import audit_history
from tests.simulation.scheduler import VirtualClock
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import connected_store

SESSION_MS = 10_000
NEW, OLD = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"
"""Two topic ids."""


class Written(Scribe):
    """A scribe that writes to a simulated ZooKeeper."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.server = SimulatedZooKeeper()
        super().__init__("", "", self._open_store)

    def _open_store(self) -> Store:
        return connected_store(self.server, self.clock, timeout_ms=SESSION_MS)

    def end(self, consumer: str) -> None:
        self.stores[consumer].close()
        self.server.catch_up(self.server.replicas[0])

    def violations(self) -> list[AuditFinding]:
        return audit_history(self.server.log, SESSION_MS).violations

    def rules(self) -> set[AuditRule]:
        return {found.rule for found in self.violations()}

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def topic(self, topic_id: str, partitions: int = 4) -> None:
        """Creates ``flights``, or creates it again."""
        path = layout.broker_topic(TOPIC)
        self.somebody.ensure_path(layout.BROKER_TOPICS)
        if self.somebody.exists(path):
            self.somebody.delete(path)
        value = {"version": 3, "topic_id": topic_id, "partitions": {str(n): [1] for n in range(partitions)}}
        self.somebody.create(path, fields.dump(value))

    def evict(self, consumer: str, *more: SetData) -> None:
        self.write(*more, Delete(layout.registration(GROUP, consumer)))


@pytest.fixture
def scribe() -> Iterator[Written]:
    """Writes a group in which ``c1`` owns 0 and 1 of ``flights``, and ``c2`` owns 2 and 3."""
    with Written() as made:
        made.elect(1)
        made.join("c1")
        made.join("c2")
        made.assign(1, {"c1": {"flights": "0-1"}, "c2": {"flights": "2-3"}})
        made.obey("c1", {0: 100, 1: 100})
        made.obey("c2", {2: 100, 3: 100})
        assert made.violations() == []
        yield made


MOVED = {"c1": {"flights": "0"}, "c2": {"flights": "1-3"}}


# --- units -----------------------------------------------------------------------------------------------------------


def test_a_command_written_without_its_ledger_is_found(scribe: Written):
    scribe.write(scribe.target(2, MOVED))
    scribe.write(scribe.ledger("c1", {"flights": "0"}, {"flights": "1"}))
    scribe.write(scribe.stopping("c1", {"flights": "1"}, 2))
    found = scribe.violations()
    assert [one.rule for one in found] == [AuditRule.SPLIT_UNIT, AuditRule.SPLIT_UNIT]
    assert found[0].what == "the ledger of c1 stops flights[1] without a stop-fetcher in the same transaction"
    assert found[1].what == "stop-0000000001 was written without a change to the ledger of c1"


def test_a_command_that_was_overwritten_after_it_was_read_may_be_acknowledged(scribe: Written):
    scribe.write(scribe.target(2, MOVED))
    scribe.stop("c1", {"flights": "0"}, {"flights": "1"}, 2)
    ((read,), _) = scribe.channels["c1"].outstanding()
    scribe.somebody.set(layout.command(GROUP, "c1", read.name), b"nobody can read this")
    scribe.channels["c1"].acknowledge(scribe.registrations["c1"], read, {TopicPartition(TOPIC, 1): 130})
    assert scribe.rules() == {AuditRule.UNFENCED_WRITE}, "only the overwriting itself is a violation"


def test_a_second_outstanding_command_of_the_same_type_is_found(scribe: Written):
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 1)
    assert scribe.rules() == set()
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "1"}, 1)
    assert scribe.rules() == {AuditRule.TWO_COMMANDS}


def test_a_partition_in_two_ledgers_is_found_even_if_one_consumer_is_dead(scribe: Written):
    scribe.end("c1")
    scribe.write(scribe.target(2, {"c2": {"flights": "0-3"}}))
    scribe.start("c2", {"flights": "0-3"}, 2)
    assert scribe.rules() == {AuditRule.TWO_LEDGERS}


def test_a_ledger_whose_generation_decreases_is_found(scribe: Written):
    scribe.write(scribe.ledger("c1", {"flights": "0-1"}, generation=5))
    scribe.write(scribe.ledger("c1", {"flights": "0-1"}, generation=4))
    assert scribe.rules() == {AuditRule.GENERATION_BACK}


# --- stops and starts ------------------------------------------------------------------------------------------------


def test_a_stop_of_a_partition_that_the_member_keeps_is_found(scribe: Written):
    scribe.write(scribe.target(2, MOVED))
    scribe.stop("c1", {"flights": "0"}, {"flights": "1"}, 2)
    assert scribe.rules() == set()
    scribe.stop("c2", {"flights": "2"}, {"flights": "3"}, 2)
    found = scribe.violations()
    assert [one.rule for one in found] == [AuditRule.NEEDLESS_STOP]
    assert "stops flights[3] on c2, which keeps it" in found[0].what


def eager_stops(scribe: Written) -> None:
    """Makes ``c1`` and ``c2`` stop all their partitions, so that 1 can move."""
    scribe.elect(1)
    for consumer in ("c1", "c2"):
        scribe.join(consumer, mode=Mode.EAGER)
    first = {"c1": {"flights": "0-1"}, "c2": {"flights": "2-3"}}
    scribe.write(scribe.target(1, first))
    for consumer, owned in first.items():
        ledger = scribe.ledger(consumer, owned, generation=1)
        scribe.write(ledger, scribe.starting(consumer, owned, 1, offset=-1))
        scribe.obey(consumer)
    scribe.write(scribe.target(2, MOVED))
    for consumer, owned in first.items():
        ledger = scribe.ledger(consumer, {}, owned, generation=2)
        scribe.write(ledger, scribe.stopping(consumer, owned, 2))


@pytest.mark.parametrize("all_stop", [True, False])
def test_an_eager_start_before_all_have_stopped_is_found(all_stop: bool):
    with Written() as scribe:
        eager_stops(scribe)
        scribe.obey("c1")
        if all_stop:
            scribe.obey("c2")
            scribe.write(scribe.ledger("c2", {}, generation=2))
        scribe.write(scribe.ledger("c1", {}, generation=2))
        ledger = scribe.ledger("c1", {"flights": "0"}, generation=2)
        scribe.write(ledger, scribe.starting("c1", {"flights": "0"}, 2, offset=-1))
        assert scribe.rules() == (set() if all_stop else {AuditRule.EAGER_ORDER})


@pytest.mark.parametrize("everywhere", [True, False])
def test_a_command_for_a_member_that_joined_a_paused_group_is_found(scribe: Written, everywhere: bool):
    scribe.somebody.create(layout.PAUSED if everywhere else layout.paused(GROUP), b"{}")
    scribe.end("c2")
    scribe.forget("c2")
    scribe.join("c3")
    scribe.write(scribe.target(2, {"c1": {"flights": "0-1"}, "c3": {"flights": "2-3"}}))
    scribe.start("c3", {"flights": "2-3"}, 2)
    found = scribe.violations()
    assert [one.rule for one in found] == [AuditRule.PAUSE_IGNORED] * 2
    assert found[1].what == "c3 was told to start flights[2-3] while the group was paused"


@pytest.mark.parametrize(("after_s", "found"), [(1, set()), (30, {AuditRule.PAUSE_IGNORED})])
def test_a_pass_that_began_before_the_pause_may_still_write(scribe: Written, after_s: float, found: set[AuditRule]):
    scribe.somebody.create(layout.paused(GROUP), b"{}")
    scribe.wait(after_s)
    scribe.write(scribe.target(2, MOVED))
    scribe.stop("c1", {"flights": "0"}, {"flights": "1"}, 2)
    assert scribe.rules() == found


def test_a_pass_from_before_the_pause_may_start_partitions_of_a_member_that_has_left():
    with Written() as scribe:
        eager_stops(scribe)
        scribe.obey("c1")
        scribe.obey("c2")
        scribe.somebody.create(layout.paused(GROUP), b"{}")
        scribe.end("c2")
        ledger = scribe.ledger("c2", {"flights": "2-3"}, generation=2)
        scribe.write(ledger, scribe.starting("c2", {"flights": "2-3"}, 2, offset=-1))
        assert scribe.rules() == set()


def test_a_pass_from_before_the_pause_may_start_a_partition_that_was_released_before(scribe: Written):
    scribe.join("c3")
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "2-3"}, "c3": {"flights": "1"}}))
    scribe.stop("c1", {"flights": "0"}, {"flights": "1"}, 2)
    scribe.obey("c1")
    release, ledger = scribe.ledger("c1", {"flights": "0"}), scribe.ledger("c3", {"flights": "1"})
    scribe.somebody.create(layout.paused(GROUP), b"{}")
    scribe.end("c1")
    scribe.write(release, ledger, scribe.starting("c3", {"flights": "1"}, 2))
    assert scribe.rules() == set()


@pytest.mark.parametrize("had_left_before", [True, False])
def test_a_pass_from_before_the_pause_may_assign_to_a_member_that_has_returned(scribe: Written, had_left_before: bool):
    if had_left_before:
        scribe.end("c2")
    scribe.somebody.create(layout.paused(GROUP), b"{}")
    if not had_left_before:
        scribe.end("c2")
    scribe.join("c2")
    scribe.write(scribe.target(2, MOVED))
    assert scribe.rules() == set()


@pytest.mark.parametrize(("after_s", "found"), [(1, set()), (30, {AuditRule.PAUSE_IGNORED})])
def test_a_pass_from_before_the_pause_may_assign_to_a_new_member_that_left_and_returned(
    scribe: Written, after_s: float, found: set[AuditRule]
):
    scribe.join("c3")
    scribe.end("c3")
    scribe.wait(after_s)
    scribe.somebody.create(layout.paused(GROUP), b"{}")
    scribe.join("c3")
    scribe.write(scribe.target(2, {"c1": {"flights": "0-1"}, "c2": {"flights": "2"}, "c3": {"flights": "3"}}))
    assert scribe.rules() == found


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_a_reset_of_a_held_partition_is_found(scribe: Written):
    asked = scribe.ask(RequestType.RESET_OFFSETS, offsets={TopicPartition(TOPIC, 0): 7})
    scribe.write(SetData(layout.offset(GROUP, TOPIC, 0), b"7"), scribe.answer(asked))
    found = scribe.violations()
    assert [one.rule for one in found] == [AuditRule.OPERATOR_WRITE_WHILE_HELD]
    assert found[0].what == "the coordinator set flights-0 to 7 while c1 holds it"


def test_a_reset_without_a_request_is_found(scribe: Written):
    scribe.end("c1")
    scribe.write(SetData(layout.offset(GROUP, TOPIC, 0), b"7"))
    assert scribe.rules() == {AuditRule.OPERATOR_WRITE_UNASKED}


def test_the_coordinator_may_store_the_first_end_of_a_held_partition_that_awaits_it(scribe: Written):
    offset, awaited = layout.offset(GROUP, TOPIC, 0), layout.awaited_end(GROUP, TOPIC, 0)
    scribe.somebody.delete(offset)
    before = scribe.violations()
    scribe.somebody.create(layout.unresolved(GROUP), b"")
    scribe.somebody.create(awaited, b"{}")
    scribe.write(Create(offset, b"7"), Delete(awaited))
    assert scribe.violations() == before

    scribe.somebody.create(awaited, b"{}")
    scribe.write(SetData(offset, b"9"), Delete(awaited))  # it had an offset already
    found = [one.rule for one in scribe.violations()[len(before) :]]
    assert found == [AuditRule.OPERATOR_WRITE_UNASKED, AuditRule.OPERATOR_WRITE_WHILE_HELD]


def test_offsets_may_be_deleted_only_on_request_and_without_a_holder(scribe: Written):
    scribe.end("c1")
    scribe.ask(RequestType.DELETE_OFFSETS, partitions=PartitionSet({TOPIC: [0, 2]}))
    scribe.write(Delete(layout.offset(GROUP, TOPIC, 0)))
    assert scribe.rules() == set()
    scribe.write(Delete(layout.offset(GROUP, TOPIC, 2)))
    assert scribe.rules() == {AuditRule.OPERATOR_WRITE_WHILE_HELD}
    scribe.write(Delete(layout.offset(GROUP, TOPIC, 1)))
    assert AuditRule.OPERATOR_WRITE_UNASKED in scribe.rules()


def recreate(scribe: Written) -> None:
    """Recreates the topic when no member holds a partition."""
    scribe.topic(OLD)
    scribe.write(SetData(layout.topic_offsets(GROUP, TOPIC), OLD.encode()))
    scribe.end("c1")
    scribe.end("c2")
    scribe.forget("c1")
    scribe.forget("c2")
    scribe.topic(NEW)
    scribe.join("c1")
    scribe.write(scribe.target(2, {"c1": {"flights": "0-3"}}))


def start_new(scribe: Written, offset: int) -> None:
    scribe.write(
        scribe.ledger("c1", {"flights": "0"}, topic_ids={TOPIC: NEW}),
        scribe.starting("c1", {"flights": "0"}, 2, offset),
    )


def mirrored(scribe: Written, topic_id: str) -> None:
    """Makes everybody read the topics in a mirror that holds ``flights``."""
    record = ClusterRecord("t1", 1, Source.ZOOKEEPER, 1)
    for path, value in ((layout.CLUSTER, record.to_bytes()), (layout.MIRRORED_TOPICS, b"")):
        scribe.somebody.create(path, value)
    scribe.somebody.create(f"{layout.MIRRORED_TOPICS}/{TOPIC}", MirroredTopic(topic_id, {0: (1,)}).to_bytes())
    scribe.somebody.set(layout.CLUSTER, ClusterRecord("t1", 1, Source.BROKERS, 1).to_bytes())


@pytest.mark.parametrize("in_the_mirror", [False, True])
def test_once_topics_are_read_in_the_mirror_kafkas_own_znodes_say_nothing(scribe: Written, in_the_mirror: bool):
    scribe.topic(OLD)
    scribe.write(SetData(layout.topic_offsets(GROUP, TOPIC), OLD.encode()))
    mirrored(scribe, OLD)
    for consumer in ("c1", "c2"):
        scribe.end(consumer)
        scribe.forget(consumer)
    if in_the_mirror:
        path = f"{layout.MIRRORED_TOPICS}/{TOPIC}"
        scribe.somebody.delete(path)
        scribe.somebody.create(path, MirroredTopic(NEW, {0: (1,)}).to_bytes())
    else:
        scribe.topic(NEW)
    scribe.wait(120)
    scribe.join("c1")
    scribe.write(scribe.target(2, {"c1": {"flights": "0-3"}}))
    scribe.write(
        scribe.ledger("c1", {"flights": "0"}, topic_ids={TOPIC: OLD}),
        scribe.starting("c1", {"flights": "0"}, 2, 100),
    )
    assert scribe.rules() == ({AuditRule.EARLIER_TOPIC} if in_the_mirror else set())


def test_a_recreated_topic_without_the_old_offsets_is_lawful(scribe: Written):
    recreate(scribe)
    scribe.write(*(Delete(layout.offset(GROUP, TOPIC, n)) for n in range(4)))
    scribe.write(SetData(layout.topic_offsets(GROUP, TOPIC), NEW.encode()))
    start_new(scribe, -1)
    assert scribe.rules() == set()


@pytest.mark.parametrize("renamed", [True, False])
def test_a_recreated_topic_started_at_the_old_offsets_is_found(scribe: Written, renamed: bool):
    recreate(scribe)
    if renamed:
        scribe.write(SetData(layout.topic_offsets(GROUP, TOPIC), NEW.encode()))
    start_new(scribe, 100)
    found = scribe.violations()
    assert [one.rule for one in found] == [AuditRule.EARLIER_TOPIC]
    assert "starts flights-0 on c1 at offset 100, which belongs to a deleted topic of the same name" in found[0].what


def test_a_start_with_an_unreadable_offset_is_found(scribe: Written):
    scribe.end("c1")
    scribe.forget("c1")
    scribe.somebody.set(layout.offset(GROUP, TOPIC, 0), b"x")
    scribe.join("c1")
    scribe.write(scribe.target(2, {"c1": {"flights": "0-1"}, "c2": {"flights": "2-3"}}))
    scribe.start("c1", {"flights": "0"}, 2, offset=-1)
    assert scribe.rules() == {AuditRule.UNREADABLE_START}


# --- retention -------------------------------------------------------------------------------------------------------


def remove(scribe: Written) -> None:
    scribe.write(
        Delete(layout.ids(GROUP)),
        *(Delete(layout.offset(GROUP, TOPIC, n)) for n in range(4)),
        Delete(layout.topic_offsets(GROUP, TOPIC)),
    )


def empty(scribe: Written) -> None:
    for consumer in ("c1", "c2"):
        scribe.end(consumer)
        scribe.forget(consumer)


def test_an_empty_group_may_be_removed_when_its_retention_has_passed(scribe: Written):
    empty(scribe)
    scribe.write(scribe.target(2, {}))
    scribe.wait(Retention().in_force_ms / 1000)
    remove(scribe)
    assert scribe.rules() == set()


@pytest.mark.parametrize(("waits_s", "found"), [(300, set()), (10, {AuditRule.RETENTION_BROKEN})])
def test_a_group_that_is_removed_too_early_is_found(scribe: Written, waits_s: float, found: set[AuditRule]):
    settings = GroupSettings(offsets_retention_ms=300_000)
    scribe.somebody.set(layout.group(GROUP), fields.dump(settings.to_json()))
    empty(scribe)
    now_ms = int(scribe.clock.time() * 1000)
    target = fields.load(scribe.target(2, {}).data, "")
    scribe.write(SetData(layout.assignment(GROUP), fields.dump({**target, "timestamp_ms": now_ms})))
    scribe.wait(waits_s)
    remove(scribe)
    assert scribe.rules() == found


@pytest.mark.parametrize(
    ("retention_ms", "shortened_s_ago", "found"),
    [
        (300_000, 300, set()),
        (300_000, 100, {AuditRule.RETENTION_BROKEN}),
        (9_000_000, 300, {AuditRule.RETENTION_BROKEN}),
    ],
)
def test_the_brokers_retention_counts_unless_the_group_has_its_own(
    scribe: Written, retention_ms: int, shortened_s_ago: int, found: set[AuditRule]
):
    empty(scribe)
    scribe.write(scribe.target(2, {}))
    scribe.wait(1_000)
    since_ms = int(scribe.clock.time() * 1000)
    scribe.somebody.create(layout.RETENTION, fields.dump(Retention(retention_ms, since_ms).to_json()))
    scribe.wait(shortened_s_ago)
    remove(scribe)
    assert scribe.rules() == found


def test_an_empty_group_without_offsets_may_be_removed_at_any_time(scribe: Written):
    empty(scribe)
    scribe.write(scribe.target(2, {}))
    scribe.ask(RequestType.DELETE_OFFSETS, partitions=PartitionSet({TOPIC: range(4)}))
    scribe.write(*(Delete(layout.offset(GROUP, TOPIC, n)) for n in range(4)))
    scribe.write(Delete(layout.ids(GROUP)), Delete(layout.topic_offsets(GROUP, TOPIC)))
    assert scribe.rules() == set()


@pytest.mark.parametrize(("topic", "found"), [("fares", set()), (TOPIC, {AuditRule.OPERATOR_WRITE_UNASKED})])
def test_only_offsets_of_topics_that_nobody_subscribes_to_may_expire(
    scribe: Written, topic: str, found: set[AuditRule]
):
    empty(scribe)
    scribe.write(scribe.target(2, {}))
    scribe.join("c3", topic)
    scribe.write(Delete(layout.offset(GROUP, TOPIC, 0)))
    assert scribe.rules() == found


def test_the_removal_of_an_empty_group_whose_target_has_members_is_found(scribe: Written):
    empty(scribe)
    remove(scribe)
    assert scribe.rules() == {AuditRule.LIVE_GROUP_REMOVED}


def test_an_empty_group_may_be_removed_on_request(scribe: Written):
    empty(scribe)
    scribe.ask(RequestType.DELETE_GROUP)
    remove(scribe)
    assert scribe.rules() == set()


def test_the_deletion_of_offsets_of_a_live_group_is_found(scribe: Written):
    scribe.write(Delete(layout.offset(GROUP, TOPIC, 0)))
    assert scribe.rules() == {AuditRule.OPERATOR_WRITE_UNASKED, AuditRule.OPERATOR_WRITE_WHILE_HELD}


# --- members that leave or are evicted -------------------------------------------------------------------------------


def keep_place(scribe: Written) -> Member:
    """``c1`` registers again with a rejoin grace of 30 s, and leaves."""
    scribe.end("c1")
    scribe.forget("c1")
    scribe.join("c1", rejoin_grace_ms=30_000)
    place = Member("c1", scribe.registrations["c1"].incarnation, Subscription.to([TOPIC]), rejoin_grace_ms=30_000)
    scribe.write(scribe.ledger("c1", {"flights": "0-1"}, place=place), scribe.starting("c1", {"flights": "0-1"}, 1))
    scribe.obey("c1")
    scribe.end("c1")
    assert scribe.rules() == set()
    return place


@pytest.mark.parametrize(("waits_s", "found"), [(29, {AuditRule.GRACE_BROKEN}), (30, set())])
def test_a_place_given_away_before_its_grace_has_passed_is_found(
    scribe: Written, waits_s: float, found: set[AuditRule]
):
    keep_place(scribe)
    scribe.wait(waits_s)
    scribe.forget("c1")
    scribe.write(scribe.target(2, {"c2": {"flights": "0-3"}}))
    assert scribe.rules() == found


def test_a_place_may_be_given_up_on_request(scribe: Written):
    keep_place(scribe)
    scribe.ask(RequestType.EVICT, consumer="c1")
    scribe.write(scribe.target(2, {"c2": {"flights": "0-3"}}))
    assert scribe.rules() == set()


def damage_registration(scribe: Written) -> None:
    scribe.somebody.set(layout.registration(GROUP, "c1"), b"nobody can read this")


@pytest.mark.parametrize(
    ("waits_s", "takes_ledger", "found"),
    [(1, False, set()), (25, False, {AuditRule.GRACE_BROKEN}), (1, True, {AuditRule.GRACE_BROKEN})],
)
def test_only_a_target_made_with_an_unreadable_registration_may_omit_its_place(
    scribe: Written, waits_s: float, takes_ledger: bool, found: set[AuditRule]
):
    place = Member("c1", 0, Subscription.to([TOPIC]), rejoin_grace_ms=30_000)
    scribe.write(scribe.ledger("c1", {"flights": "0-1"}, place=place))
    damage_registration(scribe)
    scribe.end("c1")
    scribe.wait(waits_s)
    if takes_ledger:
        scribe.forget("c1")
    else:
        scribe.write(scribe.target(2, {"c2": {"flights": "0-3"}}))
    assert scribe.rules() - {AuditRule.UNFENCED_WRITE} == found


def test_the_place_of_a_member_that_returned_with_an_unreadable_registration_may_be_reassigned(scribe: Written):
    keep_place(scribe)
    scribe.join("c1", rejoin_grace_ms=30_000)
    damage_registration(scribe)
    scribe.end("c1")
    scribe.forget("c1")
    assert scribe.rules() - {AuditRule.UNFENCED_WRITE} == set()


def test_grace_periods_of_members_registered_in_one_transaction_are_separate(scribe: Written):
    """A gateway registers several consumers in one transaction, so all have its zxid as their incarnation."""
    place = Member("c3", 0, Subscription.to([TOPIC]), rejoin_grace_ms=5_000)
    value = fields.dump(place.to_json())
    both = [layout.registration(GROUP, consumer) for consumer in ("c3", "c4")]
    scribe.somebody.multi([Create(path, value) for path in both])
    ledger = Ledger("c3", scribe.somebody.get(both[0]).stat.czxid, place=place)
    scribe.write(Create(layout.ledger(GROUP, "c3"), fields.dump(ledger.to_json())))
    scribe.write(Delete(both[0]))
    scribe.wait(6)
    scribe.write(Delete(both[1]))
    scribe.forget("c3")
    assert AuditRule.GRACE_BROKEN not in scribe.rules()


def test_an_instance_may_drop_a_command_for_an_earlier_incarnation_of_a_kafka_client(scribe: Written):
    path, term = layout.registration(GROUP, "c3"), Check(layout.log_partition(7), 0)
    value = fields.dump(Member("c3", 0, Subscription.to([TOPIC])).to_json())
    scribe.somebody.ensure_path(term.path)
    scribe.somebody.multi([term, *register_ops(GROUP, "c3", value, has_channel=False, ephemeral=False)])
    scribe.registrations["c3"] = Registration(GROUP, "c3", scribe.somebody.get(path).stat.czxid, 1, 0)
    scribe.start("c3", {"flights": "4"}, 1)
    set_channel, create = register_ops(GROUP, "c3", value, ephemeral=False)
    scribe.somebody.multi([term, set_channel, Delete(path), create])
    (command,) = scribe.somebody.children(layout.channel(GROUP, "c3"))
    scribe.somebody.multi([term, Delete(layout.command(GROUP, "c3", command))])
    assert AuditRule.ACK_BY_ANOTHER not in scribe.rules()


def test_a_start_of_a_partition_of_a_kept_place_is_found(scribe: Written):
    keep_place(scribe)
    scribe.wait(40)
    scribe.write(scribe.target(2, {"c2": {"flights": "0-3"}}))
    scribe.start("c2", {"flights": "0-3"}, 2)
    assert scribe.rules() == {AuditRule.GRACE_BROKEN}


def test_a_member_evicted_without_a_reason_is_found(scribe: Written):
    scribe.evict("c1")
    found = scribe.violations()
    assert [one.rule for one in found] == [AuditRule.EVICTED_EARLY]
    assert "c1 was evicted, although no operator requested it" in found[0].what


def test_an_eviction_on_request_is_lawful(scribe: Written):
    asked = scribe.ask(RequestType.EVICT, consumer="c1")
    scribe.write(
        scribe.ledger("c1", {"flights": "0-1"}), Delete(layout.registration(GROUP, "c1")), scribe.answer(asked)
    )
    assert scribe.rules() == set()


@pytest.mark.parametrize(("waits_s", "found"), [(61, set()), (50, {AuditRule.EVICTED_EARLY})])
def test_a_member_may_be_evicted_only_after_its_command_has_timed_out(
    scribe: Written, waits_s: float, found: set[AuditRule]
):
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 1)
    scribe.wait(waits_s)
    scribe.evict("c1")
    assert scribe.rules() == found


def test_partitions_released_in_the_transaction_of_an_eviction_are_found(scribe: Written):
    scribe.ask(RequestType.EVICT, consumer="c1")
    scribe.evict("c1", scribe.ledger("c1", {"flights": "1"}))
    found = scribe.violations()
    assert [one.rule for one in found] == [AuditRule.EVICTED_AND_RELEASED]
    assert "flights[0] was taken from c1 in the transaction that evicted it" in found[0].what


def test_partitions_started_in_the_transaction_of_an_eviction_are_found(scribe: Written):
    scribe.ask(RequestType.EVICT, consumer="c1")
    scribe.write(
        Delete(layout.registration(GROUP, "c1")),
        scribe.ledger("c2", {"flights": "0,2-3"}),
        scribe.starting("c2", {"flights": "0"}, 1),
    )
    assert scribe.rules() == {AuditRule.EVICTED_AND_RELEASED, AuditRule.TWO_LEDGERS}


# --- elections -------------------------------------------------------------------------------------------------------


def test_an_election_that_skips_an_epoch_is_found(scribe: Written):
    scribe.depose()
    scribe.elect(3, scribe.session())
    assert scribe.rules() == {AuditRule.EPOCH_SKIPPED}


def test_an_election_in_two_transactions_is_found(scribe: Written):
    scribe.depose()
    scribe.somebody.ensure_path(layout.COORDINATORS)
    other = scribe.session()
    other.create(layout.instance(2), b"{}", ephemeral=True)
    other.create(layout.COORDINATOR, b"{}", ephemeral=True)
    other.set(layout.COORDINATOR_EPOCH, b"2")
    assert [one.rule for one in scribe.violations()] == [AuditRule.SPLIT_ELECTION] * 2
