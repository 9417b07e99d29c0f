"""When the metadata comes from the brokers, and what the elected coordinator writes then."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from msgspec import structs

from kafka_coord.coordinator.mirror import DESCRIBED_EVERY_S
from kafka_coord.coordinator.mirroring import EVERY_S, LOOKS_AFTER_S, OLD_S, no_way_back, way_back_op
from kafka_coord.coordinator.service import CoordinatorService
from kafka_coord.errors import Fenced, MalformedValue, StoreUnavailable, UnknownVersion
from kafka_coord.model import Broker, Listener, Request, RequestType
from kafka_coord.model import json_fields as fields
from kafka_coord.model.broker import NOT_AUTHORIZED, AnsweredTopic, BrokerAnswer
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import read_brokers
from kafka_coord.zk.instance import InstanceRegistration
from kafka_coord.zk.root import (
    Source,
    read_asked_listeners,
    read_cluster_record,
    read_mirror_trouble,
    tell_changed,
)
from kafka_coord.zk.store import Create, Delete, Op
from tests.coordinator.electing import TREE, Elected
from tests.coordinator.mirrored import TWO, Answers, kafkas_own, topic, topic_id, unknown, whole
from tests.simulation.scheduler import VirtualClock
from tests.simulation.store import SimulatedStore, connected_store

MIRRORED = structs.replace(TREE, source=Source.BROKERS, by="a test")


def test_without_a_sign_kafkas_own_znodes_are_read() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    elected.step(3)
    assert elected.source() is Source.ZOOKEEPER
    assert elected.answers.asked_at == []


def test_a_change_of_source_changes_no_topic_and_keeps_every_listener() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    before = elected.decoded("a")
    elected.store.create(layout.MIGRATION)
    elected.step()
    assert elected.source() is Source.BROKERS
    assert elected.decoded("a") == before
    assert elected.store.get(layout.broker_topic("a")).stat.czxid != before.czxid
    found = read_brokers(elected.store)
    assert found is not None
    assert {one.broker_id: [at.endpoint for at in one.listeners] for one in found.live} == {
        1: ["INT://one:9092", "EXT://out:9093"],
        2: ["INT://two:9092"],
    }


def test_a_topic_that_cannot_be_read_is_not_lost_by_a_change_of_source() -> None:
    elected = Elected(Answers(whole()))  # the broker has not heard of the topic yet
    kafkas_own(elected.store)
    before = elected.store.get(layout.broker_topic("a")).data
    elected.store.set(layout.broker_topic("a"), b"[]")
    elected.store.create(layout.MIGRATION)
    with pytest.raises(MalformedValue, match=f"{layout.broker_topic('a')}: is unreadable"):
        elected.step()
    assert elected.source() is Source.ZOOKEEPER
    elected.store.set(layout.broker_topic("a"), before)
    elected.step()
    assert elected.source() is Source.BROKERS
    assert elected.decoded("a").identity == topic_id(1)


@pytest.mark.parametrize(
    ("controller", "setting", "expected"),
    [
        ('{"version":2,"kraftControllerEpoch":3}', "auto", Source.BROKERS),
        ('{"version":2,"kraftControllerEpoch":3}', "zookeeper", Source.ZOOKEEPER),
        ('{"version":2,"kraftControllerEpoch":-1}', "brokers", Source.BROKERS),
    ],
)
def test_signs_and_setting_decide(controller: str, setting: str, expected: Source) -> None:
    elected = Elected(Answers(whole(topic("a", 1))), setting)
    kafkas_own(elected.store, controller=controller)
    elected.step()
    assert elected.source() is expected


def test_a_cluster_that_was_never_in_zookeeper_is_asked() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step()
    assert elected.source() is Source.BROKERS
    assert elected.answers.asked_at[0] == ("", (("one", 9092),))
    assert elected.decoded("a").identity == topic_id(1)


def test_an_operators_way_back_holds_until_a_kraft_controller_is_active() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    elected.store.create(layout.MIGRATION)
    elected.store.set(layout.CLUSTER, structs.replace(TREE, by="an operator").to_bytes())
    elected.step(3)
    assert elected.source() is Source.ZOOKEEPER
    elected.store.set(layout.CONTROLLER, b'{"version":2,"kraftControllerEpoch":3}')
    elected.step()
    assert elected.source() is Source.BROKERS


@pytest.mark.parametrize("damage", [b"", b"\xff garbage", b'{"version":1,"somebody":"else"}'])
def test_a_damaged_record_of_the_tree_is_written_again(damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step()
    before = read_cluster_record(elected.store)
    elected.store.set(layout.CLUSTER, damage)
    elected.step(2)
    assert read_cluster_record(elected.store) == before
    assert "damaged" in caplog.text


def test_a_tree_of_another_format_stays_as_it_is() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step()
    elected.store.set(layout.CLUSTER, b'{"version":9}')
    with pytest.raises(UnknownVersion):
        elected.step()
    assert elected.store.get(layout.CLUSTER).data == b'{"version":9}'


def test_brokers_without_topic_ids_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    elected = Elected(Answers(replace(whole(), has_ids=False)), "brokers")
    kafkas_own(elected.store)
    elected.step()
    assert elected.source() is Source.ZOOKEEPER
    assert "older than Kafka 2.8" in caplog.text


def test_a_fill_that_was_cut_off_is_continued() -> None:
    elected = Elected(Answers(None), "brokers")
    kafkas_own(elected.store)
    elected.step(round(OLD_S) + 5)
    trouble = read_mirror_trouble(elected.store)
    assert trouble is not None
    assert "cannot take the metadata from the brokers, although serve.metadata is brokers: no broker" in trouble.reason
    elected.answers.listing_now = whole(topic("a", 1))
    elected.step(2)
    assert elected.source() is Source.BROKERS
    assert read_mirror_trouble(elected.store) is None


def test_a_deposed_coordinator_writes_nothing() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step()
    elected.store.set(layout.COORDINATOR_EPOCH, b"2")
    elected.answers.listing_now = whole(topic("a", 1, 3))
    with pytest.raises(Fenced):
        elected.step()
    assert elected.decoded("a").partitions == {0}


def test_the_next_term_goes_on_where_the_last_one_was() -> None:
    elected = Elected(Answers(whole(topic("a", 1, 2), topic("b", 9), topic("log", 5))))
    elected.step()
    elected.answers.listing_now = whole(topic("a", 2), topic("b", 9), topic("log", 5))
    elected.answers.by_id_now = [unknown(1, 1), unknown(2, 1)]
    elected.step()
    assert elected.decoded("a").identity == topic_id(2)
    writes = elected.store.exists(layout.MIRRORED_TOPICS)
    elected.begin()
    elected.answers.by_id_now = []
    elected.step(2)
    assert elected.store.exists(layout.MIRRORED_TOPICS) == writes
    elected.answers.listing_now = whole(topic("a", 1, 2), topic("b", 9), topic("log", 5))
    elected.answers.by_id_now = [unknown(1, 2), unknown(2, 2)]
    elected.step(20)
    assert not elected.store.exists(f"{layout.MIRRORED_TOPICS}/a")


def test_leaders_of_the_groups_log_are_mirrored() -> None:
    log = replace(topic("log", 5), leaders={0: (2, 7)})
    elected = Elected(Answers(whole(log, topic("a", 1))))
    elected.step()
    state = fields.load_object(elected.store.get(layout.partition_state("log", 0)).data, "")
    assert state["leader"] == 2
    elected.answers.listing_now = whole(replace(log, leaders={0: (1, 6)}), topic("a", 1))
    elected.step()
    state = fields.load_object(elected.store.get(layout.partition_state("log", 0)).data, "")
    assert state["leader"] == 2, "an older leader epoch does not count"


def test_an_old_mirror_is_recorded_until_it_is_fresh_again() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step()
    elected.answers.listing_now = None
    elected.step(10)
    assert read_mirror_trouble(elected.store) is None
    elected.step(round(OLD_S))
    trouble = read_mirror_trouble(elected.store)
    assert trouble is not None
    assert "no broker" in trouble.reason
    age = elected.mirror.age_s()
    assert age is not None
    assert age > OLD_S
    assert elected.decoded("a").partitions == {0}
    elected.answers.listing_now = whole(topic("a", 1), brokers=TWO)
    elected.step()
    assert read_mirror_trouble(elected.store) is None


def test_a_topic_that_is_being_deleted_is_no_trouble_but_one_that_stays_hidden_is() -> None:
    elected = Elected(Answers(whole(topic("a", 1), topic("b", 9))))
    elected.step()
    elected.answers.listing_now = whole(topic("b", 9))
    elected.step(round(OLD_S))
    assert read_mirror_trouble(elected.store) is None
    elected.step(2)
    trouble = read_mirror_trouble(elected.store)
    assert trouble is not None
    assert "hide 1 topics" in trouble.reason


def test_a_new_topic_that_the_instance_may_not_describe_is_told_if_a_group_names_it() -> None:
    """Brokers do not list it. They say so only if they are asked by name, and then also of topics that do not exist."""
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step()
    elected.mirror._subscribed = lambda: ("a", "secret", "none")
    elected.answers.by_name = {"secret": AnsweredTopic("secret", error=NOT_AUTHORIZED)}
    elected.step(round(OLD_S) + 7)
    trouble = read_mirror_trouble(elected.store)
    assert trouble is not None
    assert "hide 1 topics from this instance, or they are being deleted: secret" in trouble.reason
    elected.answers.listing_now = whole(topic("a", 1), topic("secret", 2))
    elected.step(2)
    assert elected.decoded("secret").partitions == {0}
    assert read_mirror_trouble(elected.store) is None


def test_the_way_back_is_refused_while_kafkas_znodes_are_not_kept_up_to_date() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    assert "no broker is registered" in no_way_back(elected.store)
    kafkas_own(elected.store, controller='{"version":2,"kraftControllerEpoch":3}')
    elected.step()
    assert "a KRaft controller is active" in no_way_back(elected.store)
    elected.store.set(layout.CONTROLLER, b'{"version":2,"kraftControllerEpoch":-1}')
    assert no_way_back(elected.store) == ""
    elected.store.multi([way_back_op(elected.store, "alice@host")])
    elected.step(3)
    assert elected.source() is Source.ZOOKEEPER
    record = read_cluster_record(elected.store)
    assert record is not None
    assert record.by == "alice@host"
    assert "already" in no_way_back(elected.store)
    assert elected.store.get(layout.broker_topic("a")).stat.czxid == elected.decoded("a").czxid


def answer(service: CoordinatorService, store: SimulatedStore, asked: Request) -> Request:
    """Asks the elected coordinator, and returns what it answers."""
    path = store.create(layout.REQUEST_PREFIX, fields.dump(asked.to_json()), sequence=True)
    for _ in range(4):
        service.turn()
        while store.has_notification():
            store.deliver()
    return Request.from_json(fields.load(store.get(path).data, path), path)


def test_an_operator_leads_everybody_back_with_one_request() -> None:
    store = connected_store()
    kafkas_own(store)
    service = CoordinatorService(store, 1, metadata=Elected(Answers(whole(topic("a", 1)))).options)
    asked = Request(RequestType.METADATA, by="alice@host")
    service.turn()
    assert answer(service, store, asked).result == "refused"
    store.set(layout.CLUSTER, structs.replace(read_cluster_record(store), source=Source.BROKERS).to_bytes())
    answered = answer(service, store, asked)
    assert (answered.result, answered.message) == ("done", "brokers and topics are read from Kafka's own znodes")
    record = read_cluster_record(store)
    assert record is not None
    assert (record.source, record.by) == (Source.ZOOKEEPER, "alice@host")
    service.stop()


def test_the_brokers_are_asked_at_once_when_a_request_has_changed_topics() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    tell_changed(elected.store)  # there is no mirror yet
    elected.step(3)
    elected.answers.listing_now = whole(topic("a", 1, 2))
    assert elected.mirror.turn() == EVERY_S
    assert elected.decoded("a").partitions == {0, 1}
    tell_changed(elected.store)
    elected.deliver()
    assert elected.mirror.turn() == LOOKS_AFTER_S[0], "the broker that was asked may not know it yet"
    elected.answers.listing_now = whole(topic("a", 1, 3))
    assert elected.mirror.turn() == EVERY_S
    assert elected.decoded("a").partitions == {0, 1, 2}


def test_looks_after_a_signal_end_although_nothing_has_changed() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step(2)
    tell_changed(elected.store)
    elected.deliver()
    assert [elected.mirror.turn() for _ in range(len(LOOKS_AFTER_S) + 2)] == [*LOOKS_AFTER_S, EVERY_S, EVERY_S]


def test_signals_do_not_take_more_than_a_tenth_of_a_core() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step(2)
    slow = elected.answers.listing

    def listing(listener: str, addresses: Sequence[tuple[str, int]], names: Collection[str] | None) -> BrokerAnswer:
        elected.clock.now += 0.05
        return slow(listener, addresses, names)

    elected.answers.listing = listing  # type: ignore[method-assign]
    elected.mirror.turn()
    asked = len(elected.answers.asked_at)
    tell_changed(elected.store)
    elected.deliver()
    assert elected.mirror.turn() == pytest.approx(0.45)
    assert len(elected.answers.asked_at) == asked
    elected.clock.now += 0.45
    elected.mirror.turn()
    assert len(elected.answers.asked_at) == asked + 1


def test_signs_and_the_record_are_watched_and_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    elected.step(2)
    reads: list[str] = []
    for name in ("read_many", "exists", "get", "arm"):
        monkeypatch.setattr(SimulatedStore, name, lambda *_, name=name, **__: reads.append(name))
    elected.step(5)
    assert reads == []


def test_a_setting_of_one_instance_that_differs_does_nothing() -> None:
    elected = Elected(Answers(whole(topic("a", 1))), "brokers")
    kafkas_own(elected.store)
    elected.store.ensure_path(layout.COORDINATORS)
    for number, setting in ((1, "brokers"), (2, "auto")):
        InstanceRegistration(elected.store, number, {}, lambda: None, metadata=setting).register()
    elected.step(3)
    assert elected.source() is Source.ZOOKEEPER
    elected.store.delete(layout.instance(2))
    elected.step(2)
    assert elected.source() is Source.BROKERS


def test_endpoints_of_a_broker_that_registers_later_are_copied_while_its_znode_exists() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    elected.store.create(layout.MIGRATION)
    elected.step()
    registered = {
        "endpoints": ["INT://elsewhere:9092", "EXT://out2:9093"],
        "listener_security_protocol_map": {"INT": "PLAINTEXT", "EXT": "SSL"},
    }
    own = f"{layout.kafkas_own(layout.BROKER_IDS)}/2".removeprefix(layout.KAFKAS_OWN)
    elected.store.create(own, fields.dump(registered))
    elected.step(10)
    elected.store.delete(own)
    elected.step(10)
    found = read_brokers(elected.store)
    assert found is not None
    assert [at.endpoint for at in found.live[1].listeners] == ["INT://two:9092", "EXT://out2:9093"]
    assert read_asked_listeners(elected.store) == ("INT",)


def test_listeners_that_nobody_is_asked_on_are_known_from_the_brokers_settings() -> None:
    """Also their names, and what the brokers say now counts more than what ZooKeeper had."""
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)

    def described(external: str) -> list[Broker]:
        names = {"EXT": ("SASL_SSL", external), "INT": ("PLAINTEXT", "one:9092"), "COORD": ("PLAINTEXT", "inst:9192")}
        return [Broker(1, tuple(Listener(name, *at) for name, at in names.items()))]

    def endpoints() -> list[list[str]]:
        found = read_brokers(elected.store)
        assert found is not None
        return [[at.endpoint for at in one.listeners] for one in found.live]

    elected.answers.described_now = described("out1:9093")
    elected.store.create(layout.MIGRATION)
    elected.step(2)
    assert endpoints() == [
        ["EXT://out1:9093", "INT://one:9092", "COORD://inst:9192"],
        ["INT://two:9092"],
    ]
    elected.answers.described_now = described("out2:9093")
    elected.step(round(DESCRIBED_EVERY_S) + 2)
    assert endpoints()[0][0] == "EXT://out2:9093"
    elected.answers.described_now = []  # they may not be asked for their settings any more
    elected.step(10)
    assert endpoints()[0][0] == "EXT://out2:9093"
    assert read_asked_listeners(elected.store) == ("COORD", "EXT", "INT")


def test_topics_that_are_held_back_go_when_an_operator_lets_them() -> None:
    many = [topic(f"t{number}", number + 100) for number in range(12)]
    answers = Answers(whole(*many, topic("b", 9)))
    clock = VirtualClock()
    store = connected_store(clock=clock)
    service = CoordinatorService(store, 1, metadata=Elected(answers).options)
    service.turn()
    coordinator = service.coordinator
    assert coordinator is not None
    mirror = coordinator.mirror
    assert mirror is not None

    def steps(seconds: int) -> None:
        for _ in range(seconds):
            mirror.turn()
            while store.has_notification():
                store.deliver()
            clock.now += 1.0

    steps(2)
    assert answer(service, store, Request(RequestType.LET_GO)).message == "the mirror holds no topic back"
    answers.listing_now = whole(topic("b", 9))
    answers.by_id_now = [unknown(teller, *range(100, 112)) for teller in (1, 2)]
    steps(15)
    held = read_mirror_trouble(store)
    assert held is not None
    assert len(held.held) == 12
    assert "others" in answer(service, store, Request(RequestType.LET_GO, unchanged_since=1)).message
    done = answer(service, store, Request(RequestType.LET_GO, by="alice@host", unchanged_since=held.zxid))
    assert done.message == "12 topics may go, unless a broker knows them again"
    steps(2)
    assert store.children(layout.BROKER_TOPICS) == ("b",)
    assert read_mirror_trouble(store) is None
    service.stop()


def test_trouble_of_an_earlier_term_is_removed_once_it_is_over() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    elected.step()
    elected.answers.listing_now = None
    elected.step(round(OLD_S) + 5)
    assert read_mirror_trouble(elected.store) is not None
    elected.begin()
    elected.answers.listing_now = whole(topic("a", 1))
    elected.step()
    assert read_mirror_trouble(elected.store) is None


@pytest.mark.parametrize("lasts", range(6))
def test_the_next_instance_ends_a_change_of_source_in_which_the_elected_one_died(
    lasts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies at each of its requests that write, and nobody reads the mirror before it is full."""
    elected = Elected(Answers(whole(topic("a", 1), topic("b", 9))))
    kafkas_own(elected.store)
    before = elected.decoded("a")
    elected.store.create(layout.MIGRATION)
    written = 0
    multi = SimulatedStore.multi

    def dies(self: SimulatedStore, ops: Sequence[Op]) -> object:
        nonlocal written
        if written == lasts:
            raise StoreUnavailable("the instance died")
        written += 1
        return multi(self, ops)

    with monkeypatch.context() as patch, suppress(StoreUnavailable):
        patch.setattr(SimulatedStore, "multi", dies)
        elected.step()
    assert lasts > 0 or elected.source() is Source.ZOOKEEPER
    if elected.source() is Source.ZOOKEEPER:
        assert elected.decoded("a") == before
    elected.begin()
    elected.step(2)
    assert elected.source() is Source.BROKERS
    assert elected.decoded("a") == before
    assert elected.store.children(layout.BROKER_TOPICS) == ("a", "b")


def test_the_next_instance_keeps_the_mirror_although_it_sees_no_sign() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    elected.store.create(layout.MIGRATION)
    elected.step()
    elected.store.delete(layout.MIGRATION)  # as after a migration that was rolled back
    elected.store.delete(layout.CONTROLLER)  # no controller is active
    elected.options = replace(elected.options, setting="zookeeper")
    elected.begin()
    elected.answers.listing_now = whole(topic("a", 1, 2))
    elected.step(3)
    assert elected.source() is Source.BROKERS
    assert elected.decoded("a").partitions == {0, 1}


def test_a_second_migration_begins_with_what_everybody_reads_and_not_with_the_mirror_of_the_first() -> None:
    """Between a way back and the next migration, topics were deleted, made anew, and grown."""
    elected = Elected(Answers(whole(topic("a", 1), topic("gone", 2), topic("b", 9))))
    kafkas_own(elected.store)
    elected.store.create(layout.MIGRATION)
    elected.step(2)
    elected.store.delete(layout.MIGRATION)
    elected.store.multi([way_back_op(elected.store, "alice@host")])
    elected.step(2)
    assert elected.source() is Source.ZOOKEEPER
    path = f"{layout.BROKER_TOPICS}/a"
    anew = fields.dump({"version": 3, "topic_id": topic_id(7), "partitions": {"0": [1], "1": [2]}})
    elected.store.multi((Delete(path), Create(path, anew)))
    before = elected.decoded("a")
    elected.answers.listing_now = whole(topic("b", 9))  # the broker that is asked has heard of none of this yet
    elected.store.set(layout.CONTROLLER, b'{"version":2,"kraftControllerEpoch":3}')
    elected.step()
    assert elected.source() is Source.BROKERS
    assert elected.store.children(layout.BROKER_TOPICS) == ("a", "b")
    assert elected.decoded("a") == before
    elected.answers.listing_now = whole(topic("a", 1), topic("b", 9))
    elected.step(15)
    assert elected.decoded("a") == before, "an id that was replaced never comes back"


def test_a_controller_that_is_away_is_no_sign() -> None:
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    elected.store.delete(layout.CONTROLLER)
    elected.step(3)
    assert elected.source() is Source.ZOOKEEPER


def test_what_kafkas_own_znodes_say_for_years_after_a_migration_means_nothing() -> None:
    elected = Elected(Answers(whole(topic("a", 1, 3), topic("b", 9))))
    kafkas_own(elected.store, controller='{"version":2,"kraftControllerEpoch":3}')
    elected.step(2)
    for name, number in (("long-gone", 50), ("b", 51)):  # b was made anew since
        value = fields.dump({"version": 3, "topic_id": topic_id(number), "partitions": {"0": [1]}})
        elected.store.server.write((Create(f"/brokers/topics/{name}", value),), 0, 1)
    elected.begin()
    elected.step(20)
    assert elected.store.children(layout.BROKER_TOPICS) == ("a", "b")
    assert elected.decoded("b").identity == topic_id(9)
    assert elected.decoded("a").partitions == {0, 1, 2}


def test_a_tree_that_begins_beside_what_is_left_of_kafkas_own_znodes_lets_go_of_what_brokers_do_not_know() -> None:
    elected = Elected(Answers(whole(topic("b", 9))))
    kafkas_own(elected.store, controller='{"version":2,"kraftControllerEpoch":3}')
    elected.answers.by_id_now = [unknown(1, 1), unknown(2, 1)]
    elected.step(2)
    assert elected.store.children(layout.BROKER_TOPICS) == ("a", "b")
    elected.step(12)
    assert elected.store.children(layout.BROKER_TOPICS) == ("b",)


def test_brokers_of_another_cluster_change_nothing() -> None:
    elected = Elected(Answers(replace(whole(topic("a", 1)), cluster_id="k1")), "brokers")
    kafkas_own(elected.store)
    elected.step()
    record = read_cluster_record(elected.store)
    assert record is not None
    assert (record.source, record.kafka) == (Source.BROKERS, "k1")

    elected.answers.listing_now = replace(whole(topic("b", 2)), cluster_id="k2")
    elected.step(round(OLD_S) + 2)

    assert elected.store.children(layout.BROKER_TOPICS) == ("a",)
    trouble = read_mirror_trouble(elected.store)
    assert trouble is not None
    assert "they belong to cluster k2, but this tree, to cluster k1" in trouble.reason
