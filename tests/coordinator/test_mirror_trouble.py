"""What happens to the mirror, event by event. Nothing is unassigned or skipped because metadata could not be had, and
somebody is told. The events that other tests show:

- the elected instance dies in the middle of the change of source: ``test_mirroring.py``
  (``…_ends_a_change_of_source_…``), and ``python -m tests.chaos migrate --kills`` on real servers;
- a broker's answer is old or lacks topics, a topic is made anew between two polls, ACLs hide topics:
  ``test_mirror.py``, and in any mixture ``test_mirror_world.py``;
- the controller is away, a migration was rolled back, and ``/brokers`` that was left over: ``test_mirroring.py``;
- producer ids and epochs wrap: ``tests/frontends/kafka/test_trees.py`` and ``test_terms.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from kafka_coord.coordinator.mirror import AWAY_AFTER_S, DESCRIBED_EVERY_S
from kafka_coord.coordinator.mirroring import ALL_EVERY_S, FEW_TOPICS, OLD_S, MetadataMirror
from kafka_coord.model.broker import AnsweredTopic, BrokerAnswer
from kafka_coord.zk import layout
from kafka_coord.zk.brokers import read_brokers
from kafka_coord.zk.fencing import MAX_BYTES
from kafka_coord.zk.root import Source, read_mirror_trouble
from kafka_coord.zk.store import Op
from tests.coordinator.electing import Elected
from tests.coordinator.mirrored import TWO, Answers, kafkas_own, topic, topic_id, unknown, whole

MANY = 10_000


class Selective(Answers):
    """Answers with the topics that were asked for, and counts the requests for all of them."""

    def __init__(self, listing: BrokerAnswer) -> None:
        super().__init__(listing)
        self.asked_for_all = 0
        self.names: list[tuple[str, ...]] = []

    def listing(
        self, listener: str, addresses: Sequence[tuple[str, int]], names: Collection[str] | None
    ) -> BrokerAnswer:
        answer = super().listing(listener, addresses, names)
        if names is None:
            self.asked_for_all += 1
            return answer
        self.names.append(tuple(names))
        return replace(answer, topics=tuple(one for one in answer.topics if one.name in names), is_whole=False)


def written(elected: Elected[Selective]) -> list[Op]:
    """What the elected instance writes from now on."""
    ops: list[Op] = []
    multi = elected.store.multi

    def noting(given: Sequence[Op]) -> object:
        ops.extend(given[1:])  # behind the fence
        return multi(given)

    elected.store.multi = noting  # type: ignore[method-assign,assignment]
    return ops


def test_of_10_000_topics_only_subscribed_ones_are_asked_for_each_second_and_only_changes_are_written() -> None:
    every = [topic(f"t{number}", number + 1, 10) for number in range(MANY)]
    elected = Elected(Selective(whole(*every)))
    elected.step(round(ALL_EVERY_S) + 2)
    elected.mirror._subscribed = lambda: ("t7", "t8")
    ops = written(elected)
    before = elected.answers.asked_for_all
    every[7] = topic("t7", 8, 11)
    elected.answers.listing_now = whole(*every)
    elected.answers.names.clear()
    elected.step(2)
    assert elected.answers.asked_for_all == before
    assert set(elected.answers.names) == {("t7", "t8")}
    assert elected.decoded("t7").partitions == set(range(11))
    assert [op.path for op in ops] == [f"{layout.MIRRORED_TOPICS}/t7"]
    elected.answers.listing_now = whole(*every, topic("new", MANY + 1))
    elected.step(round(ALL_EVERY_S))
    assert elected.answers.asked_for_all == before + 1
    assert elected.decoded("new").identity == topic_id(MANY + 1)
    assert len(ops) == 2
    assert len(every) > FEW_TOPICS


def test_10_000_topics_with_long_names_that_seem_gone_at_once_are_told_and_can_be_let_go() -> None:
    """Their names do not fit in one znode."""
    names = [f"{number:05}".ljust(249, "x") for number in range(MANY)]
    elected = Elected(Answers(whole(*(topic(name, number + 1) for number, name in enumerate(names)), topic("b", 0))))
    elected.step(2)
    elected.answers.listing_now = whole(topic("b", 0))
    elected.answers.by_id_now = [unknown(teller, *range(1, MANY + 1), witness=0) for teller in (1, 2)]
    elected.step(15)
    assert len(elected.store.children(layout.BROKER_TOPICS)) == MANY + 1
    left = [MANY]
    while (held := read_mirror_trouble(elected.store)) is not None and left[-1]:
        assert held.reason.startswith(f"{left[-1]} of {left[-1] + 1} topics seem to be gone at once")
        left.append(left[-1] - len(held.held))
        elected.mirror.let_go(held)
        elected.step(2)
    assert elected.store.children(layout.BROKER_TOPICS) == ("b",)
    assert len(left) > 2


def test_a_topic_that_is_too_large_for_a_znode_does_not_stop_the_mirror_of_the_others() -> None:
    replicas = dict.fromkeys(range(100_000), (1, 2))
    vast = AnsweredTopic("vast", topic_id(3), replicas)
    elected = Elected(Answers(whole(topic("a", 1), AnsweredTopic("vast", topic_id(3), {0: (1, 2)}))))
    elected.step(2)
    elected.answers.listing_now = whole(topic("a", 1, 2), vast)
    elected.step(2)
    assert elected.decoded("a").partitions == {0, 1}
    assert elected.decoded("vast").partitions == {0}
    elected.answers.listing_now = whole(topic("a", 1, 3), vast)
    elected.step(round(OLD_S))
    assert elected.decoded("a").partitions == {0, 1, 2}
    trouble = read_mirror_trouble(elected.store)
    assert trouble is not None
    assert "stay as they were: vast (" in trouble.reason
    assert f"at most {MAX_BYTES:,})" in trouble.reason
    elected.answers.listing_now = whole(topic("a", 1, 3), AnsweredTopic("vast", topic_id(3), {0: (1, 2), 1: (2, 1)}))
    elected.begin()
    elected.step(2)
    assert elected.decoded("vast").partitions == {0, 1}
    assert read_mirror_trouble(elected.store) is None


def test_a_broker_that_only_the_instance_cannot_reach_stays_and_vetoes_nothing_and_is_told() -> None:
    """Other brokers name it, so consumers may reach it."""
    three = {**TWO, 3: replace(TWO[1], host="three")}
    elected = Elected(Answers(whole(topic("a", 1), topic("b", 9), brokers=three)))
    elected.step()
    elected.answers.listing_now = whole(topic("b", 9), brokers=three)
    elected.answers.by_id_now = [replace(unknown(teller, 1), brokers=three) for teller in (1, 2)]
    elected.answers.unheard = {3: "connection refused"}
    elected.step(round(AWAY_AFTER_S) + 5)
    found = read_brokers(elected.store)
    assert found is not None
    assert {one.broker_id for one in found.live} == {1, 2, 3}
    assert elected.store.children(layout.BROKER_TOPICS) == ("b",)
    assert read_mirror_trouble(elected.store) is None, "it may be starting"
    elected.step(round(DESCRIBED_EVERY_S + OLD_S))
    trouble = read_mirror_trouble(elected.store)
    assert trouble is not None
    assert "cannot reach 1 brokers that others name: broker 3 (connection refused)" in trouble.reason
    elected.answers.unheard = {}
    elected.step(round(DESCRIBED_EVERY_S) + 2)
    assert read_mirror_trouble(elected.store) is None


def test_two_instances_that_see_different_phases_do_not_disagree() -> None:
    """Only the elected one judges. Another, which was elected before and has seen nothing of the migration, changes
    nothing, and reads what the record says."""
    elected = Elected(Answers(whole(topic("a", 1))))
    kafkas_own(elected.store)
    elected.step()
    earlier: MetadataMirror = elected.mirror
    elected.store.create(layout.MIGRATION)
    elected.store.set(layout.COORDINATOR_EPOCH, b"2")
    elected.begin()
    elected.step(2)
    assert elected.source() is Source.BROKERS
    record = elected.store.get(layout.CLUSTER)
    elected.store.delete(layout.MIGRATION)  # what the other now sees is another phase
    earlier.step()
    elected.deliver()
    assert elected.store.get(layout.CLUSTER) == record
