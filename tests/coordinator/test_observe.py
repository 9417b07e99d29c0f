"""Tests of a group's snapshot, which takes two reads, between which anything may happen."""

from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.group_reader import GroupQuery, observe
from kafka_coord.coordinator.image import Snapshot
from kafka_coord.coordinator.memory import GroupMemory
from kafka_coord.model import Assignment, GroupKind, Ledger, Member, PartitionSet, Subscription
from kafka_coord.model import json_fields as fields
from kafka_coord.model.member import Refusals
from kafka_coord.model.names import partition_of
from kafka_coord.zk import layout
from kafka_coord.zk.kinds import GroupRecord, change_kinds
from kafka_coord.zk.store import Delete
from tests.simulation.server import SimulatedZooKeeper
from tests.simulation.store import Quiet, SimulatedStore, connected_store


class _VanishesBeforeTheSecondRead(Quiet):
    def __init__(self, server: SimulatedZooKeeper) -> None:
        self.reads = 0
        self._server = server

    def before_effect(self, store: SimulatedStore, doing: str) -> None:
        if doing.startswith("read"):
            self.reads += 1
            if self.reads == 2:
                self._server.write_one(Delete(layout.registration("delays", "c1")), 0, 0)
                self._server.catch_up(store.replica)


def test_a_member_that_vanishes_between_the_two_reads_has_its_grace_period() -> None:
    server = SimulatedZooKeeper()
    around = _VanishesBeforeTheSecondRead(server)
    store = connected_store(server, around=around)
    for path in (layout.ids("delays"), layout.owners("delays"), layout.channels("delays")):
        store.ensure_path(path)
    member = Member("c1", 1, Subscription.to(["flights"]), rejoin_grace_ms=60_000)
    store.create(layout.registration("delays", "c1"), fields.dump(member.to_json()))
    store.create(layout.ledger("delays", "c1"), fields.dump(Ledger("c1", 1, place=member).to_json()))

    query = GroupQuery(GroupMemory("delays"), {}, ())
    (snapshot,) = observe(store, [query], epoch=1, options=CoordinatorOptions())

    assert around.reads >= 2
    assert isinstance(snapshot, Snapshot)
    assert not snapshot.observation.members
    assert snapshot.observation.in_grace == {"c1"}


class _ConvertedBeforeTheRecordIsRead(Quiet):
    """The group, which is recorded as client-assigned, becomes managed after its znodes were read."""

    def __init__(self, server: SimulatedZooKeeper) -> None:
        self._store, self.is_converted = connected_store(server), False

    def before_effect(self, _store: SimulatedStore, doing: str) -> None:
        if layout.KINDS in doing and not self.is_converted:
            self.is_converted = True
            held = Ledger("c1", 1, PartitionSet({"flights": frozenset({0, 1})}))
            self._store.create(layout.ledger("delays", "c1"), held.to_bytes())
            record_as(self._store, GroupKind.MANAGED)


def record_as(store: SimulatedStore, kind: GroupKind) -> None:
    change_kinds(store, partition_of("delays"), lambda before: {**before, "delays": GroupRecord(kind)})


def test_what_the_members_hold_is_known_once_their_group_is_recorded_as_managed() -> None:
    server = SimulatedZooKeeper()
    writer = connected_store(server)
    for path in (layout.ids("delays"), layout.owners("delays"), layout.channel("delays", "c1")):
        writer.ensure_path(path)
    member = Member("c1", 1, Subscription.to(["flights"]))
    writer.create(layout.registration("delays", "c1"), fields.dump(member.to_json()))
    record_as(writer, GroupKind.CLIENT_ASSIGNED)
    around = _ConvertedBeforeTheRecordIsRead(server)

    query = GroupQuery(GroupMemory("delays"), {}, ())
    (snapshot,) = observe(connected_store(server, around=around), [query], epoch=1, options=CoordinatorOptions())

    assert around.is_converted
    assert isinstance(snapshot, Snapshot)
    assert snapshot.observation.pause is None
    assert snapshot.observation.ledgers["c1"].owned == PartitionSet({"flights": frozenset({0, 1})})


class _Counts(Quiet):
    reads = 0

    def before_effect(self, store: SimulatedStore, doing: str) -> None:
        self.reads += doing.startswith("read")


def test_a_pass_takes_one_request_and_a_second_one_for_everything_that_the_first_does_not_know() -> None:
    store = connected_store(SimulatedZooKeeper(), around=(requests := _Counts()))
    for path in (layout.ids("delays"), layout.channel("delays", "c1"), layout.unresolved("delays")):
        store.ensure_path(path)
    member = Member("c1", 1, Subscription.to(["flights"]))
    store.create(layout.registration("delays", "c1"), fields.dump(member.to_json()))
    store.create(
        layout.assignment("delays"),
        fields.dump(Assignment(1, 1, "", "sticky", "", {"c1": PartitionSet({"flights": frozenset({0})})}).to_json()),
    )
    memory, requests.reads = GroupMemory("delays"), 0

    def seen() -> Snapshot:
        (snapshot,) = observe(store, [GroupQuery(memory, {}, ())], epoch=1, options=CoordinatorOptions())
        assert isinstance(snapshot, Snapshot)
        return snapshot

    seen()
    assert requests.reads == 2
    seen()
    assert requests.reads == 3

    # a new consumer, a refused topic, and a command that has been outstanding for long
    name = store.create(layout.command("delays", "c1", "stop-fetcher-"), b"?", sequence=True).rpartition("/")[2]
    memory.timers.commands["c1", 1, name] = -1_000
    store.create(layout.refusals("delays", "c1"), fields.dump(Refusals(1, {"flights": "no"}).to_json()))
    store.create(layout.registration("delays", "c2"), fields.dump(member.to_json()))
    found = seen()
    assert requests.reads == 5
    assert set(found.observation.members) == {"c1", "c2"}
    assert set(found.observation.refusals) == {"c1"}
    assert [one.path for one in found.observation.unreadable] == [layout.command("delays", "c1", name)]


def test_a_coordinator_that_was_elected_later_knows_how_long_an_expired_session_was() -> None:
    store = connected_store(SimulatedZooKeeper())
    for path in (layout.ids("delays"), layout.owners("delays"), layout.channel("delays", "c1")):
        store.ensure_path(path)
    held = PartitionSet({"flights": [0]})
    target = Assignment(1, 1, "digest", "sticky", "member c1 joined", {"c1": held})
    store.create(layout.assignment("delays"), fields.dump(target.to_json()))
    ledger = Ledger("c1", 1, owned=held, session_timeout_ms=6_000)
    store.create(layout.ledger("delays", "c1"), fields.dump(ledger.to_json()))

    query = GroupQuery(GroupMemory("delays"), {}, ())
    (snapshot,) = observe(store, [query], epoch=2, options=CoordinatorOptions())

    assert isinstance(snapshot, Snapshot)
    assert str(snapshot.observation.departures["c1"]) == "expired after 6 s"
