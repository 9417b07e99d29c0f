"""What an instance does not tell about client-assigned groups is named, and never counts as nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.errors import BrokerError, RequestRefused
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.groups.client_assigned import NativeVerbs, list_client_groups
from kafka_coord.groups.cluster import read_cluster
from kafka_coord.groups.copies import CopyPosition, Existing, GroupPositions, compare
from kafka_coord.groups.directory import GroupDirectory
from kafka_coord.groups.instances import AskedInstances, InstanceDirectory, Silent, evict_members
from kafka_coord.kafka.connection import NoCommonVersion
from kafka_coord.kafka.coordinators import LISTS_A_PART, Ask
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.model.offsets import LogRange
from kafka_coord.wire.messages import message
from tests.monitor.written import Tree

TP, HIDDEN = TopicPartition("flights", 0), TopicPartition("salaries", 0)
READ, ALL_RIGHTS = 1 << 3, 0xFFFF


class Scripted(AskedInstances):
    """Two instances whose answers the test gives, in Kafka's own messages. ``errors`` maps (request, broker, group) to
    an error. ``silent`` are the requests that the instance 2 does not answer."""

    def __init__(self, tree: Tree, groups: Mapping[int, list[str]], errors: Mapping[tuple[str, str], int]) -> None:
        super().__init__(tree.store, {})
        self.groups, self.errors = groups, errors
        self.silent: set[str] = set()
        self.brokers: tuple[int, ...] = (1, 2)
        self.of_brokers: dict[int, int] = {}
        """The leaders of the partitions in which the brokers store their groups."""
        self.types: dict[str, str] = {}
        self.members: dict[str, tuple[bytes, bytes]] = {}
        """The subscription and the assignment of the only member of a group."""

    def directory(self, topic: str = TOPIC) -> InstanceDirectory:
        leaders = {number: 1 + number % 2 for number in range(50)} if topic == TOPIC else self.of_brokers
        return InstanceDirectory({1: "h1:1", 2: "h2:1"}, leaders, topic=topic, brokers=self.brokers)

    def ask_coordinator(
        self, group: str, conversation: Callable[[Ask], Awaitable[Any]], timeout_s: float = 10.0
    ) -> tuple[int, Any]:
        (broker_id,) = [number for number, names in self.groups.items() if group in names]
        return broker_id, asyncio.run(conversation(self._asker(broker_id)))

    def ask_each(
        self, addresses: Mapping[int, str], conversation: Callable[[Ask], Awaitable[Any]]
    ) -> tuple[dict[int, Any], tuple[Silent, ...]]:
        answered, silent = {}, []
        for broker_id in addresses:
            try:
                answered[broker_id] = asyncio.run(conversation(self._asker(broker_id)))
            except TimeoutError:
                silent.append(Silent(broker_id, "h2:1", "no response in time"))
        return answered, tuple(silent)

    def _asker(self, broker_id: int) -> Ask:
        async def ask(request: str, version: int, sent: Any) -> Any:
            del version
            if broker_id == 2 and request in self.silent:
                raise TimeoutError
            response = message(f"{request}Response")
            if request == "ListGroups":
                one = response.struct("ListedGroup")
                error = self.errors.get(("ListGroups", str(broker_id)), 0)
                rows = (one(group_id=name, group_type=self.types.get(name, "")) for name in self.groups[broker_id])
                return response(error_code=error, groups=tuple(rows))
            if request == "Metadata":
                if ("Metadata", "old") in self.errors:
                    raise NoCommonVersion("only versions 0 to 7")
                return response(cluster_authorized_operations=self.errors.get(("Metadata", "rights"), ALL_RIGHTS))
            if request == "ConsumerGroupDescribe":
                one = response.struct("DescribedGroup")
                codes = {name: 0 if self.types.get(name) == "consumer" else 69 for name in sent.group_ids}
                told = (one(group_id=name, error_code=code, group_state="Stable") for name, code in codes.items())
                return response(groups=tuple(told))
            if request == "DescribeGroups":
                one = response.struct("DescribedGroup")
                return response(groups=tuple(self._described(one, name) for name in sent.groups))
            one = response.struct("OffsetFetchResponseGroup")
            return response(groups=tuple(self._offsets(response, one, broker_id, asked) for asked in sent.groups))

        return ask

    def _described(self, one: Any, name: str) -> Any:
        error = self.errors.get(("DescribeGroups", name), 0)
        member = message("DescribeGroupsResponse").struct("DescribedGroupMember")
        told = self.members.get(name)
        members = told and (member(member_id="m", member_metadata=told[0], member_assignment=told[1]),)
        return one(
            group_id=name,
            group_state="Dead" if self.types.get(name) else "" if error else "Empty",
            error_code=error,
            protocol_type="consumer",
            members=members or (),
        )

    def _offsets(self, response: Any, one: Any, broker_id: int, asked: Any) -> Any:
        name = asked.group_id
        if name not in self.groups[broker_id]:
            return one(group_id=name, error_code=Error.NOT_COORDINATOR)
        if error := self.errors.get(("OffsetFetch", name), 0):
            return one(group_id=name, error_code=error)
        partition = response.struct("OffsetFetchResponsePartitions")(
            partition_index=0, committed_offset=40, error_code=self.errors.get(("flights-0", name), 0)
        )
        topic = response.struct("OffsetFetchResponseTopics")(name="flights", partitions=(partition,))
        return one(group_id=name, topics=(topic,))


def hundred(partitions: PartitionSet) -> tuple[Mapping[TopicPartition, LogRange], str]:
    return dict.fromkeys(partitions, LogRange(70, 100)), ""


@pytest.fixture
def shown(tree: Tree) -> Callable[..., tuple[dict[str, tuple[int | None, int | None]], tuple[str, ...]]]:
    tree.coordinator()
    tree.topic("flights", 1)

    def listed(
        groups: Mapping[int, list[str]], errors: Mapping[tuple[str, str], int], silent: str = ""
    ) -> tuple[dict[str, tuple[int | None, int | None]], tuple[str, ...]]:
        instances = Scripted(tree, groups, errors)
        instances.silent = {silent}
        found = GroupDirectory(instances).list(hundred)
        return {row.group: (row.lag, row.gone) for row in found.rows}, found.missing

    return listed


def test_a_group_that_is_listed_but_not_described_is_named(shown: Callable[..., Any]) -> None:
    failing = {("DescribeGroups", name): Error.GROUP_AUTHORIZATION_FAILED for name in ("audit", "billing")}
    rows, missing = shown({1: ["audit", "billing", "delays"], 2: ["orders"]}, failing)
    assert rows == {"delays": (30, 30), "orders": (30, 30)}
    assert missing == ("NOT SHOWN: groups audit, billing, because instance 1 answered GROUP_AUTHORIZATION_FAILED",)


def test_native_groups_that_no_instance_can_ask_about_are_named_by_their_partitions(tree: Tree) -> None:
    tree.coordinator()
    instances = Scripted(tree, {1: ["delays"], 2: []}, {})
    instances.of_brokers = {0: 1, 1: 3, 2: -1, 3: 3, 4: 2}
    missing = list_client_groups(instances).missing
    assert missing == (
        "NOT SHOWN: the native groups in __consumer_offsets[1,3], because no instance beside broker 3 serves Kafka"
        " clients",
        "NOT SHOWN: the native groups in __consumer_offsets[2], because the partition has no live leader",
    )


def test_native_groups_of_a_broker_without_an_instance_are_named_although_no_leader_is_known(tree: Tree) -> None:
    """As where the metadata comes from the brokers, which are asked for the leaders of the groups log alone."""
    tree.coordinator()
    instances = Scripted(tree, {1: ["delays"], 2: []}, {})
    instances.brokers = (1, 2, 3)
    assert list_client_groups(instances).missing == (
        "NOT SHOWN: the native groups of broker 3, because no instance beside broker 3 serves Kafka clients",
    )


def test_groups_that_have_no_consumers_are_named_with_their_type(tree: Tree) -> None:
    tree.coordinator()
    instances = Scripted(tree, {1: ["delays", "shared", "spread"], 2: ["streamed"]}, {})
    instances.types = {"shared": "share", "spread": "share", "streamed": "streams"}
    listed = list_client_groups(instances)
    assert [one.group for one in listed.groups] == ["delays"]
    assert listed.missing == (
        "NOT SHOWN: groups shared, spread of type share: see Kafka's own tools",
        "NOT SHOWN: group streamed of type streams: see Kafka's own tools",
    )
    described, absent = GroupDirectory(instances).describe(["delays", "shared"], None, None, None)
    assert [one.group for one in described] == ["delays"]
    assert list(map(str, absent)) == ["no group 'shared' of consumers, but one of type share: see Kafka's own tools"]


def test_nobody_is_told_that_a_group_of_kip_848_does_not_exist(tree: Tree) -> None:
    tree.coordinator()
    instances = Scripted(tree, {1: ["delays"], 2: []}, {})
    instances.types = {"delays": "consumer"}
    for evict in (
        lambda: evict_members(instances, "delays", ["c1"], 1.0),
        lambda: NativeVerbs(instances).dry_evict("delays", ["c1"], lambda _: ({}, "")),
    ):
        with pytest.raises(RequestRefused, match="its members use KIP-848, and the brokers let nobody remove them"):
            evict()


def test_of_several_groups_one_that_cannot_be_read_stops_no_other(tree: Tree) -> None:
    tree.coordinator()
    instances = Scripted(tree, {1: ["delays"], 2: ["orders"]}, {("DescribeGroups", "delays"): 30})
    found, absent = GroupDirectory(instances).describe(["delays", "orders"], None, None, None)
    assert [one.group for one in found] == ["orders"]
    (error,) = absent
    assert isinstance(error, BrokerError)
    assert "cannot read group 'delays' from its coordinator: GROUP_AUTHORIZATION_FAILED" in str(error)


@pytest.mark.parametrize(
    ("subscription", "assignment", "what"),
    [(b"\xff", b"", "subscription"), (b"", b"\0\0\x7f\xff\xff\xff", "assignment")],
)
def test_what_a_member_said_and_nobody_can_decode_is_named(
    tree: Tree, subscription: bytes, assignment: bytes, what: str
) -> None:
    """Otherwise, it would seem to want, or to own, nothing."""
    tree.coordinator()
    instances = Scripted(tree, {1: ["delays", "orders"], 2: []}, {})
    instances.members = {"delays": (subscription, assignment), "orders": (b"", b"")}
    found = GroupDirectory(instances)
    assert {row.group: row.unreadable for row in found.list().rows} == {"delays": 1, "orders": 0}
    ((unreadable,), none) = (one.unreadable for one in found.describe((), None, None, None)[0])
    assert (str(unreadable.path), none) == ("member m of group delays", ())
    assert unreadable.reason == f"its {what} cannot be decoded"


def test_a_group_that_another_instance_describes_is_not_missing(shown: Callable[..., Any]) -> None:
    rows, missing = shown({1: ["delays"], 2: []}, {})
    assert (rows, missing) == ({"delays": (30, 30)}, ())


def test_a_group_whose_offsets_are_refused_or_not_returned_has_an_unknown_lag_and_is_named(
    shown: Callable[..., Any],
) -> None:
    refused = {("OffsetFetch", "delays"): Error.COORDINATOR_LOAD_IN_PROGRESS}
    rows, missing = shown({1: ["delays", "flown"], 2: ["orders", "routes"]}, refused, silent="OffsetFetch")
    assert rows == {"delays": (None, None), "flown": (30, 30), "orders": (None, None), "routes": (None, None)}
    assert missing == (
        "LAG UNKNOWN: no committed offsets of group delays, because instance 1 answered COORDINATOR_LOAD_IN_PROGRESS",
        "LAG UNKNOWN: no committed offsets of groups orders, routes, because instance 2 does not answer: no response in"
        " time",
    )


def test_a_group_with_a_refused_partition_has_an_unknown_lag_and_the_partition_is_named(
    shown: Callable[..., Any],
) -> None:
    refused = {("flights-0", "delays"): Error.UNSTABLE_OFFSET_COMMIT}
    rows, missing = shown({1: ["delays", "flown"], 2: []}, refused)
    assert rows == {"delays": (None, None), "flown": (30, 30)}
    assert missing == (
        "LAG UNKNOWN: no committed offsets of group delays, because instance 1 answered UNSTABLE_OFFSET_COMMIT for"
        " flights-0",
    )


def test_an_instance_that_does_not_list_all_groups_says_why(shown: Callable[..., Any]) -> None:
    said = {
        ("ListGroups", "1"): Error.COORDINATOR_LOAD_IN_PROGRESS,
        ("ListGroups", "2"): Error.COORDINATOR_NOT_AVAILABLE,
    }
    _, missing = shown({1: [], 2: []}, said)
    assert missing == (
        "instance 1 is still loading, so some groups may be missing; try again soon",
        "instance 2 answered COORDINATOR_NOT_AVAILABLE, so some groups may be missing; try again soon",
    )


def test_a_user_that_may_not_describe_the_cluster_is_told_that_it_sees_a_part(shown: Callable[..., Any]) -> None:
    assert shown({1: ["delays"], 2: []}, {("Metadata", "rights"): READ}) == ({"delays": (30, 30)}, (LISTS_A_PART,))
    for tells in ({("Metadata", "rights"): -(1 << 31)}, {("Metadata", "old"): 0}):
        assert shown({1: ["delays"], 2: []}, tells) == ({"delays": (30, 30)}, ())


class Offsets:
    """A store of offsets with one group."""

    name = "the instances"

    def __init__(self, *partitions: TopicPartition) -> None:
        self.found = GroupPositions(positions=dict.fromkeys(partitions, CopyPosition(5)))

    def groups(self) -> list[str]:
        return ["delays"]

    def read(self, groups: Any) -> dict[str, GroupPositions]:
        return dict.fromkeys(groups, self.found)

    def write(self, wanted: Any) -> dict[str, str]:
        raise AssertionError(wanted)


def test_a_topic_that_is_hidden_from_the_operator_is_not_gone(tree: Tree) -> None:
    gone = TopicPartition("dropped", 0)
    existing = Existing({TP}, {"salaries": "TOPIC_AUTHORIZATION_FAILED"})

    def copied(*partitions: TopicPartition) -> tuple[str, list[str]]:
        (found,) = compare(Offsets(*partitions), Offsets(), ["delays"], lambda _topics: existing, print)
        return found.problem, [row.verdict for row in found.rows]

    assert copied(TP, gone) == ("", ["no such partition", "copy"])
    problem, rows = copied(TP, HIDDEN)
    assert "whether topic salaries exists (TOPIC_AUTHORIZATION_FAILED)" in problem
    assert rows == [], "nothing is left out without a word"

    tree.topic("flights", 1)
    tree.store.create("/brokers/topics/salaries", b"?")
    cluster = read_cluster(tree.store)
    assert [cluster.lacks(topic) for topic in ("flights", "salaries", "dropped")] == [False, False, True]
