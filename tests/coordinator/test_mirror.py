"""What the mirror of a cluster's metadata holds, as a function of what brokers answered."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_coord.coordinator.mirror import (
    AWAY_AFTER_S,
    GONE_AFTER_S,
    Mirror,
    MirroredBroker,
    MirroredTopic,
    changes,
    read_retired,
)
from kafka_coord.model import Broker, Listener
from kafka_coord.model import json_fields as fields
from kafka_coord.model.broker import NOT_AUTHORIZED, AnsweredTopic, BrokerAnswer
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import decode_brokers, decode_topic
from kafka_coord.zk.store import Create, Delete, GetData, Node, SetData, Stat
from tests.coordinator.mirrored import TWO, topic, topic_id, unknown, whole
from tests.simulation.store import connected_store


def filled(*topics: AnsweredTopic) -> Mirror:
    mirror = Mirror()
    mirror.hear(whole(*topics), 0.0)
    mirror.settle(0.0)
    return mirror


def rounds(mirror: Mirror, listing: BrokerAnswer, *by_id: BrokerAnswer, seconds: float, begin: float = 1.0) -> None:
    """Repeats a round of answers every second."""
    at = begin
    while at <= begin + seconds:
        mirror.hear(listing, at)
        for one in by_id:
            mirror.hear(one, at)
        mirror.settle(at)
        at += 1.0


def test_a_topic_missing_from_every_listing_stays() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    rounds(mirror, whole(topic("b", 9)), seconds=100)
    assert set(mirror.topics) == {"a", "b"}
    assert mirror.hidden == {"a"}
    assert mirror.to_ask() == {topic_id(1): "a"}


def test_a_topic_that_may_not_be_described_stays() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    refused = AnsweredTopic("a", error=NOT_AUTHORIZED)
    rounds(mirror, whole(refused, topic("b", 9)), seconds=100)
    assert set(mirror.topics) == {"a", "b"}


def test_a_topic_is_gone_when_two_brokers_have_not_known_its_id_for_ten_seconds() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    answers = unknown(1, 1), unknown(2, 1)
    rounds(mirror, whole(topic("b", 9)), *answers, seconds=GONE_AFTER_S - 1)
    assert "a" in mirror.topics
    rounds(mirror, whole(topic("b", 9)), *answers, seconds=1, begin=GONE_AFTER_S + 1)
    assert set(mirror.topics) == {"b"}
    assert topic_id(1) in mirror.retired


def test_one_broker_of_two_is_not_enough() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    rounds(mirror, whole(topic("b", 9)), unknown(1, 1), seconds=100)
    assert "a" in mirror.topics


def test_a_broker_that_knows_the_id_keeps_the_topic() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    knows = BrokerAnswer(2, TWO, known=frozenset({topic_id(1), topic_id(9)}))
    rounds(mirror, whole(topic("b", 9)), unknown(1, 1), knows, seconds=100)
    assert "a" in mirror.topics


def test_an_answer_without_a_witness_does_not_count() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    nothing = unknown(1, 1, 9, witness=None), unknown(2, 1, 9, witness=None)
    rounds(mirror, whole(), *nothing, seconds=100)
    assert set(mirror.topics) == {"a", "b"}


def test_the_ten_seconds_begin_again_after_a_silence() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    answers = unknown(1, 1), unknown(2, 1)
    rounds(mirror, whole(topic("b", 9)), *answers, seconds=6)
    rounds(mirror, whole(topic("b", 9)), *answers, seconds=6, begin=20.0)
    assert "a" in mirror.topics


def test_more_than_half_of_many_topics_do_not_go_at_once() -> None:
    many = [topic(f"t{number}", number + 100) for number in range(12)]
    mirror = filled(*many, topic("b", 9))
    ids = [number + 100 for number in range(12)]
    rounds(mirror, whole(topic("b", 9)), unknown(1, *ids), unknown(2, *ids), seconds=100)
    assert len(mirror.topics) == 13
    assert "12 of 13 topics seem to be gone at once" in mirror.why_held()


def test_a_topic_made_anew_replaces_the_old_one_at_once_if_every_broker_says_so() -> None:
    mirror = filled(topic("a", 1, 5), topic("b", 9))
    rounds(mirror, whole(topic("a", 2), topic("b", 9)), unknown(1, 1), unknown(2, 1), seconds=0)
    assert mirror.topics["a"] == MirroredTopic(topic_id(2), {0: (1, 2)})
    rounds(mirror, whole(topic("a", 1, 5), topic("b", 9)), unknown(1, 2), unknown(2, 2), seconds=100)
    assert mirror.topics.get("a") != MirroredTopic(topic_id(1), dict.fromkeys(range(5), (1, 2)))


def test_an_older_broker_does_not_bring_an_earlier_topic_back() -> None:
    mirror = filled(topic("a", 2), topic("b", 9))
    knows = BrokerAnswer(1, TWO, known=frozenset({topic_id(2), topic_id(9)}))
    rounds(mirror, whole(topic("a", 1), topic("b", 9), teller=2), unknown(2, 2), knows, seconds=100)
    assert mirror.topics["a"].topic_id == topic_id(2)


def test_a_partition_count_never_falls_for_one_id() -> None:
    mirror = filled(topic("a", 1, 10), topic("b", 9))
    mirror.hear(whole(topic("a", 1, 9), topic("b", 9)), 1.0)
    assert len(mirror.topics["a"].replicas) == 10


def test_a_broker_that_is_no_longer_named_is_away_and_later_forgotten() -> None:
    mirror = filled(topic("a", 1))
    rounds(mirror, whole(topic("a", 1), brokers={1: TWO[1]}), seconds=AWAY_AFTER_S - 1)
    assert not mirror.brokers[2].is_away
    rounds(mirror, whole(topic("a", 1), brokers={1: TWO[1]}), seconds=2, begin=AWAY_AFTER_S)
    assert mirror.brokers[2].is_away
    node = Node(mirror.brokers[2].to_bytes(), Stat(1, 1, 0, 0, 0, 0, 0, 0, 0, 1))
    assert decode_brokers(["2"], [node]).live == ()
    moved = AnsweredTopic("a", topic_id(1), {0: (1,)})
    rounds(mirror, whole(moved, brokers={1: TWO[1]}), seconds=1, begin=AWAY_AFTER_S + 3)
    assert set(mirror.brokers) == {1}
    mirror.hear(whole(moved), 100.0)
    assert not mirror.brokers[2].is_away


def test_silence_makes_no_broker_away() -> None:
    mirror = filled(topic("a", 1))
    mirror.settle(1_000.0)
    mirror.hear(whole(topic("a", 1), brokers={1: TWO[1]}), 1_001.0)
    mirror.settle(1_001.0)
    assert not mirror.brokers[2].is_away


def test_a_brokers_listeners_keep_their_order() -> None:
    """Clients use the first listener that speaks their protocol: the one for instances names instances."""
    registered = {"PLAINTEXT": ("PLAINTEXT", "one", 9092), "COORD": ("PLAINTEXT", "one", 9192)}
    mirror = Mirror(brokers={1: MirroredBroker.from_znode(1, MirroredBroker(registered).to_bytes())})
    mirror.hear(whole(topic("a", 1)), 0.0)
    shown = Broker.from_json(fields.load_object(mirror.brokers[1].to_bytes(), ""), 1, "")
    assert [one.name for one in shown.listeners] == ["PLAINTEXT", "COORD"]
    assert mirror.brokers[1].address("", "PLAINTEXT") == ("one", 9092)


def test_a_listener_that_was_heard_before_its_name_was_known_gets_its_name() -> None:
    mirror = filled(topic("a", 1))
    assert set(mirror.brokers[1].endpoints) == {"PLAINTEXT"}
    one = Broker(1, (Listener("EXT", "SSL", "out:9093"), Listener("INT", "PLAINTEXT", "one:9092")))
    mirror.hear_described([one], 1.0)
    rounds(mirror, whole(topic("a", 1)), seconds=2)
    assert list(mirror.brokers[1].endpoints) == ["EXT", "INT"]
    assert list(mirror.brokers[2].endpoints) == ["PLAINTEXT"]


def test_the_formats_are_kafkas() -> None:
    mirrored = MirroredTopic(topic_id(7), {0: (1, 2), 1: (2, 1)}, czxid=55)
    node = Node(mirrored.to_bytes(), Stat(99, 99, 0, 0, 0, 0, 0, 0, 0, 99))
    info = decode_topic("a", node, {})
    assert (info.partitions, info.identity, info.former_identity, info.czxid) == ({0, 1}, topic_id(7), "55", 55)
    broker = MirroredBroker({"EXTERNAL": ("SSL", "::1", 9093), "PLAIN": ("PLAINTEXT", "one", 9092)}, "west")
    decoded = Broker.from_znode(broker.to_bytes(), 3, "")
    assert [(one.name, one.protocol, one.address) for one in decoded.listeners] == [
        ("EXTERNAL", "SSL", "[::1]:9093"),
        ("PLAIN", "PLAINTEXT", "one:9092"),
    ]
    assert MirroredBroker.from_znode(3, broker.to_bytes()) == broker
    assert MirroredTopic.from_znode("a", mirrored.to_bytes()) == mirrored


def test_only_changes_are_written_and_a_new_id_gets_a_new_znode() -> None:
    mirror = filled(topic("a", 1), topic("b", 9))
    before = mirror.znodes()
    assert changes(before, mirror.znodes()) == []
    mirror.hear(whole(topic("a", 1, 2), topic("b", 9)), 1.0)
    path = f"{layout.MIRRORED_TOPICS}/a"
    assert changes(before, mirror.znodes()) == [[SetData(path, mirror.znodes()[path])]]
    rounds(mirror, whole(topic("a", 2), topic("b", 9)), unknown(1, 1), unknown(2, 1), seconds=0)
    parents, remade = changes(before, mirror.znodes())
    assert [type(op) for op in remade] == [Delete, Create]
    assert isinstance(parents[0], SetData)
    assert read_retired(parents[0].data) == (topic_id(1),)


_TOPICS = st.builds(lambda number, partitions: topic("abc"[number % 3], number, partitions), *(st.integers(1, 6),) * 2)
_ANSWERS = st.builds(
    lambda teller, topics, known, unknown_ids, is_whole: BrokerAnswer(
        teller,
        TWO,
        tuple({one.name: one for one in topics}.values()),
        is_whole,
        frozenset(map(topic_id, known)),
        frozenset(map(topic_id, unknown_ids - known)),
    ),
    st.sampled_from([1, 2, None]),
    st.lists(_TOPICS, max_size=3),
    st.frozensets(st.integers(1, 6), max_size=3),
    st.frozensets(st.integers(1, 6), max_size=6),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 8), _ANSWERS), max_size=25))
def test_whatever_brokers_answer_ids_do_not_return_and_counts_do_not_fall(
    answers: list[tuple[float, BrokerAnswer]],
) -> None:
    mirror, now = Mirror(), 0.0
    store = connected_store()
    store.ensure_path(layout.CLUSTER)
    written: dict[str, bytes] = {}
    was: dict[str, int] = {}
    left: set[str] = set()
    for after, answer in answers:
        now += after
        mirror.hear(answer, now)
        mirror.settle(now)
        ids = {one.topic_id: len(one.replicas) for one in mirror.topics.values()}
        left |= was.keys() - ids.keys()
        assert not left & ids.keys()
        assert all(ids.get(one, count) >= count for one, count in was.items())
        was = ids
        for unit in changes(written, mirror.znodes()):
            store.multi(unit)
        written = mirror.znodes()
    found = store.read_many([GetData(path) for path in written])
    assert [node.data if isinstance(node, Node) else None for node in found] == list(written.values())
