"""Which instances clients are told about: only those whose ZooKeeper sessions live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.answers import FetchedGroup
from kafka_coord.frontends.kafka.calls import Call
from kafka_coord.frontends.kafka.client_assigned import ClientAssignedGroups, ToolCommits
from kafka_coord.frontends.kafka.group import NOTHING_FETCHED
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.frontends.kafka.groups import Groups
from kafka_coord.frontends.kafka.instances import Address, Instances
from kafka_coord.frontends.kafka.native import KindFinder
from kafka_coord.frontends.kafka.routing import DESCRIBE_CLUSTER, FETCH, LOCAL, METADATA, PRODUCE, Patches
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.grouplog.topics import LogTopics
from kafka_coord.wire.frames import API_VERSIONS, RequestHeader, answer_start
from kafka_coord.wire.messages import BadMessage, message
from tests.frontends.kafka.callers import NoManagedGroups, NoNativeGroups, OpenCaller
from tests.frontends.kafka.peer import committing

OWN, OTHER, THIRD = 1, 2, 3
LIST_OFFSETS = 2
ADVERTISED = {number: (f"coord-{number}", 9092) for number in (OWN, OTHER, THIRD)}
EVERYONE = dict(ADVERTISED)


def metadata(topic: str = TOPIC) -> Any:
    form = message("MetadataResponse")
    parts = [
        form.struct("MetadataResponsePartition")(
            partition_index=number - 1, leader_id=number, replica_nodes=(1, 2, 3), isr_nodes=(1, 2, 3)
        )
        for number in ADVERTISED
    ]
    brokers = [
        form.struct("MetadataResponseBroker")(node_id=number, host=host, port=port)
        for number, (host, port) in ADVERTISED.items()
    ]
    found = form.struct("MetadataResponseTopic")(name=topic, partitions=tuple(parts))
    return form(brokers=tuple(brokers), controller_id=OTHER, topics=(found,))


class _Broker:
    """A connection on which the broker answers every Metadata with the same cluster."""

    closed = False

    async def ask(self, _name: str, _version: int, _value: Any) -> Any:
        return metadata()


def instances(
    registered: Mapping[int, Address | None], *, rewrites: bool = False, claims: Mapping[int, int | None] | None = None
) -> Instances:
    """``claims`` says which instance claimed the partition of each broker last."""

    async def claimant(partition: int) -> int | None:
        return (claims or {}).get(partition + 1)

    made = Instances(_Broker, OWN, lambda: registered, rewrites=rewrites, claimant=claimant)  # type: ignore[arg-type, return-value]
    asyncio.run(made.find_leaders())
    return made


def coordinator(of: Instances, broker_id: int) -> int | None:
    found = asyncio.run(of.coordinator_of(broker_id - 1))
    return None if found is None else found[0]


def patched(of: Instances, api_key: int, name: str, answer: Any, version: int, *, rewrites: bool = False) -> Any:
    """The answer that clients get."""
    patch = Patches(of.addresses, rewrites=rewrites).get(api_key, version)
    if patch is None:
        return answer
    form = message(name)
    start = answer_start(form, version)
    frame = bytes(form.encode(answer, version, bytearray(start)))
    return form.decode(patch(frame, version), version, start)


def test_an_instance_is_named_until_its_session_ends() -> None:
    registered = dict(EVERYONE)
    known = instances(registered)
    assert [coordinator(known, number) for number in EVERYONE] == [OWN, OTHER, THIRD]
    del registered[OTHER]
    assert [coordinator(known, number) for number in EVERYONE] == [OWN, None, THIRD]
    registered[OTHER] = ADVERTISED[OTHER]
    assert coordinator(known, OTHER) == OTHER


def test_an_instance_names_itself_before_it_is_registered_and_not_while_it_stops() -> None:
    known = instances({OTHER: ADVERTISED[OTHER]})
    assert coordinator(known, OWN) == OWN
    known.is_stopping = True
    assert coordinator(known, OWN) is None
    assert coordinator(known, OTHER) == OTHER


@pytest.mark.parametrize("rewrites", [False, True])
def test_an_instance_names_itself_no_more_while_its_broker_refuses_connections(rewrites: bool) -> None:
    """Its leaders are then old, and its listener refuses connections, too."""
    known = instances(EVERYONE, rewrites=rewrites)
    known.is_refusing = True
    assert [coordinator(known, number) for number in EVERYONE] == [None, OTHER, THIRD]
    assert known.addresses() == {number: EVERYONE[number] for number in (OTHER, THIRD)}
    known.is_refusing = False
    assert coordinator(known, OWN) == OWN


def test_a_running_instance_whose_znode_cannot_be_read_is_named_where_its_broker_advertises_it() -> None:
    known = instances(EVERYONE | {OTHER: None})
    assert coordinator(known, OTHER) == OTHER
    assert known.addresses() is None
    assert coordinator(instances({OWN: ("a", 1), OTHER: None}, rewrites=True), OTHER) is None


def test_with_rewriting_the_registered_addresses_are_named() -> None:
    known = instances({OWN: ("a", 1), OTHER: ("b", 2)}, rewrites=True)
    assert asyncio.run(known.coordinator_of(OTHER - 1)) == (OTHER, "b", 2)
    assert coordinator(known, THIRD) is None


@pytest.mark.parametrize("version", [4, 9, 13])
@pytest.mark.parametrize("rewrites", [False, True])
def test_metadata_does_not_name_an_instance_whose_session_has_ended(version: int, rewrites: bool) -> None:
    known = instances({OWN: ADVERTISED[OWN], THIRD: ADVERTISED[THIRD]}, rewrites=rewrites)
    found = patched(known, METADATA, "MetadataResponse", metadata("read"), version, rewrites=rewrites)
    assert ([one.node_id for one in found.brokers], found.controller_id) == ([OWN, THIRD], -1)
    (topic,) = found.topics
    assert [(one.leader_id, one.error_code) for one in topic.partitions] == [
        (OWN, Error.NONE),
        (-1, 5),  # LEADER_NOT_AVAILABLE, as Kafka answers for a leader that is not running
        (THIRD, Error.NONE),
    ]


@pytest.mark.parametrize("version", [0, 2])
def test_describe_cluster_does_not_name_an_instance_whose_session_has_ended(version: int) -> None:
    known = instances({OWN: ADVERTISED[OWN], OTHER: ADVERTISED[OTHER]})
    form = message("DescribeClusterResponse")
    of_broker = form.struct("DescribeClusterBroker")
    brokers = tuple(of_broker(broker_id=number, host=host, port=port) for number, (host, port) in ADVERTISED.items())
    for controller, named in ((OTHER, OTHER), (THIRD, -1)):
        answer = form(brokers=brokers, controller_id=controller)
        found = patched(known, DESCRIBE_CLUSTER, "DescribeClusterResponse", answer, version)
        assert ([one.broker_id for one in found.brokers], found.controller_id) == ([OWN, OTHER], named)


def test_while_every_instance_runs_the_brokers_answers_pass_unchanged() -> None:
    known = instances(EVERYONE)
    assert known.addresses() is None
    assert Patches(known.addresses).get(METADATA, 9) is None
    assert instances({}).addresses() is None, "the registrations have not been read yet"


@pytest.mark.parametrize("rewrites", [False, True])
def test_a_version_that_cannot_be_changed_is_not_advertised(rewrites: bool) -> None:
    known, form = instances({OWN: ADVERTISED[OWN]}), message("ApiVersionsResponse")
    entry, named = form.struct("ApiVersion"), {METADATA: 13, DESCRIBE_CLUSTER: 2, PRODUCE: 13, FETCH: 18}
    broker = form(api_keys=tuple(entry(api_key=key, min_version=0, max_version=99) for key in (*named, LIST_OFFSETS)))
    told = patched(known, API_VERSIONS, "ApiVersionsResponse", broker, 3, rewrites=rewrites)
    last = {one.api_key: one.max_version for one in told.api_keys}
    without_leaders = {FETCH: 15} if rewrites else {}
    assert {key: last[key] for key in (*named, LIST_OFFSETS)} == {**named, **without_leaders, LIST_OFFSETS: 99}
    unknown = Patches(known.addresses, rewrites=rewrites).get(METADATA, 14)
    assert unknown is not None
    with pytest.raises(BadMessage):
        unknown(b"", 14)


def test_no_other_answer_is_changed() -> None:
    known = instances({OWN: ADVERTISED[OWN]})
    assert {key for key in range(100) if Patches(known.addresses).get(key, 0) is not None} == {
        *(18, METADATA, DESCRIBE_CLUSTER)
    }
    assert 10 in LOCAL, "FindCoordinator is answered here"


def test_an_instance_that_stops_is_left_out_of_the_brokers_answers_also_with_rewriting() -> None:
    for rewrites in (False, True):
        known = instances(EVERYONE, rewrites=rewrites)
        known.is_stopping = True
        found = patched(known, METADATA, "MetadataResponse", metadata("read"), 9, rewrites=rewrites)
        assert [one.node_id for one in found.brokers] == [OTHER, THIRD]


def _endpoints(form: Any) -> tuple[Any, ...]:
    endpoint = form.struct("NodeEndpoint")
    return tuple(endpoint(node_id=number, host=host, port=port) for number, (host, port) in ADVERTISED.items())


def produced() -> Any:
    """An answer as a broker gives it that has just lost its partitions to the others (KIP-951)."""
    form = message("ProduceResponse")
    part, leader = form.struct("PartitionProduceResponse"), form.struct("LeaderIdAndEpoch")
    parts = [
        part(index=number, error_code=6, base_offset=-1, current_leader=leader(leader_id=number, leader_epoch=9))
        for number in ADVERTISED
    ]
    parts.append(part(index=0, base_offset=17))
    topic = form.struct("TopicProduceResponse")(name="read", partition_responses=tuple(parts))
    return form(responses=(topic,), node_endpoints=_endpoints(form))


def fetched() -> Any:
    form = message("FetchResponse")
    part, leader = form.struct("PartitionData"), form.struct("LeaderIdAndEpoch")
    parts = [
        part(
            partition_index=number,
            error_code=6,
            high_watermark=-1,
            current_leader=leader(leader_id=number, leader_epoch=9),
            records=b"",
        )
        for number in ADVERTISED
    ]
    parts.append(part(partition_index=0, high_watermark=17, records=b"records" * 1000))
    topic = form.struct("FetchableTopicResponse")(topic_id=bytes(range(16)), partitions=tuple(parts))
    return form(responses=(topic,), node_endpoints=_endpoints(form))


LEADING = [
    *((PRODUCE, "ProduceResponse", produced, version, "partition_responses") for version in (10, 11, 13)),
    *((FETCH, "FetchResponse", fetched, version, "partitions") for version in (16, 17, 18)),
]


@pytest.mark.parametrize(("api_key", "name", "answer", "version", "partitions"), LEADING)
def test_new_leaders_are_named_where_their_instances_are(
    api_key: int, name: str, answer: Any, version: int, partitions: str
) -> None:
    """Produce and Fetch name new leaders. A client connects to them without asking anybody else."""
    known = instances({OWN: ("a", 1), THIRD: ("c", 3)}, rewrites=True)
    found = patched(known, api_key, name, answer(), version, rewrites=True)
    assert {one.node_id: (one.host, one.port) for one in found.node_endpoints} == {OWN: ("a", 1), THIRD: ("c", 3)}
    leaders = [one.current_leader for one in getattr(found.responses[0], partitions)]
    assert [(one.leader_id, one.leader_epoch) for one in leaders] == [(OWN, 9), (-1, -1), (THIRD, 9), (-1, -1)]


@pytest.mark.parametrize(("api_key", "name", "answer", "version", "partitions"), LEADING)
def test_a_new_leader_without_an_instance_is_not_named(
    api_key: int, name: str, answer: Any, version: int, partitions: str
) -> None:
    known = instances({OWN: ADVERTISED[OWN], THIRD: ADVERTISED[THIRD]})
    before = answer()
    found = patched(known, api_key, name, answer(), version)
    assert {one.node_id: (one.host, one.port) for one in found.node_endpoints} == {
        OWN: ADVERTISED[OWN],
        THIRD: ADVERTISED[THIRD],
    }
    changed, unchanged = (getattr(one.responses[0], partitions) for one in (found, before))
    assert [changed[at] for at in (0, 2, 3)] == [unchanged[at] for at in (0, 2, 3)]
    assert (changed[1].error_code, changed[1].current_leader.leader_id) == (6, -1)


@pytest.mark.parametrize(("api_key", "name", "answer", "version", "partitions"), LEADING)
def test_an_answer_that_names_no_leader_keeps_its_bytes(
    api_key: int, name: str, answer: Any, version: int, partitions: str
) -> None:
    known = instances({OWN: ADVERTISED[OWN]})
    plain, form = answer(), message(name)
    plain.node_endpoints = ()
    setattr(plain.responses[0], partitions, getattr(plain.responses[0], partitions)[-1:])
    frame = bytes(form.encode(plain, version, bytearray(answer_start(form, version))))
    patch = Patches(known.addresses).get(api_key, version)
    assert patch is not None
    assert patch(frame, version) is frame


def test_versions_that_name_no_leader_pass_unread() -> None:
    known = instances({OWN: ADVERTISED[OWN]})
    for api_key, last in ((PRODUCE, 9), (FETCH, 15)):
        assert Patches(known.addresses).get(api_key, last) is None
    everyone = instances(EVERYONE)
    assert Patches(everyone.addresses).get(FETCH, 16) is None, "nothing is read while every instance runs"


def test_an_instance_whose_broker_refuses_to_lead_names_itself_no_more() -> None:
    """In a move, a broker refuses appends before its own Metadata names the new leader."""
    known = instances(EVERYONE)
    known.tried_to_lead(OWN - 1, leads=False)
    assert coordinator(known, OWN) is None
    assert [coordinator(known, number) for number in (OTHER, THIRD)] == [OTHER, THIRD]
    known.tried_to_lead(OWN - 1, leads=True)
    assert coordinator(known, OWN) == OWN


def test_what_the_broker_refused_is_forgotten_when_its_metadata_names_another_leader() -> None:
    known = instances(EVERYONE)
    known.tried_to_lead(OTHER - 1, leads=False)
    asyncio.run(known.find_leaders())
    assert coordinator(known, OTHER) == OTHER


def test_an_instance_is_named_from_its_claim_until_another_one_claims() -> None:
    claims: dict[int, int | None] = {OTHER: THIRD}
    known = instances(EVERYONE, claims=claims)
    assert coordinator(known, OTHER) is None, (
        "it has not claimed yet, or leads no more: it would answer NOT_COORDINATOR"
    )
    assert coordinator(known, THIRD) == THIRD, "unknown"
    claims[OTHER] = OTHER
    assert coordinator(known, OTHER) == OTHER


def test_an_instance_names_itself_before_its_claim_because_requests_wait_for_it() -> None:
    known = instances(EVERYONE, claims={OWN: OTHER})
    assert coordinator(known, OWN) == OWN


def test_a_claim_in_vain_hides_the_leaders_instance_for_some_seconds_only(monkeypatch: pytest.MonkeyPatch) -> None:
    known = instances(EVERYONE, claims={OTHER: THIRD})
    assert coordinator(known, OTHER) is None
    monkeypatch.setattr("kafka_coord.frontends.kafka.instances._DISAGREES_FOR_S", 0.0)
    assert coordinator(known, OTHER) == OTHER


@pytest.mark.parametrize(
    ("replicas", "partitions", "is_placed"),
    [((3, 1, 2), 50, True), ((3, 1), 50, False), ((3, 1, 9), 50, False), ((3, 1, 2), 20, False)],
)
def test_the_groups_log_lies_where_the_brokers_offsets_lie(
    replicas: tuple[int, ...], partitions: int, is_placed: bool
) -> None:
    """Then a group that is moved keeps its coordinator. A broker that is gone is named no more."""
    asked: list[Any] = []

    class New(_Broker):
        async def ask(self, name: str, _version: int, value: Any) -> Any:
            if name == "CreateTopics":
                asked.append(value.topics[0])
                form = message("CreateTopicsResponse")
                return form(topics=(form.struct("CreatableTopicResult")(name=TOPIC),))
            answer = metadata(value.topics[0].name)
            answer.controller_id, topic = OWN, answer.topics[0]
            part = message("MetadataResponse").struct("MetadataResponsePartition")
            count = partitions if topic.name != TOPIC else 0
            topic.partitions = tuple(part(partition_index=one, replica_nodes=replicas) for one in range(count))
            return answer

    asyncio.run(Instances(New, OWN, lambda: EVERYONE).find_leaders())  # type: ignore[arg-type, return-value]
    (topic,) = asked
    assert {one.partition_index: one.broker_ids for one in topic.assignments} == dict.fromkeys(
        range(50) if is_placed else (), replicas
    )
    assert (topic.num_partitions, topic.replication_factor) == ((-1, -1) if is_placed else (50, 3))


def together(count: int) -> Callable[[object], Awaitable[None]]:
    """Returns a wait that ends once ``count`` different ones wait at the same time."""
    waiting: set[object] = set()

    async def wait(who: object) -> None:
        waiting.add(who)
        while len(waiting) < count:
            await asyncio.sleep(0)

    return wait


def of_partition(partition: int) -> str:
    return next(name for name in map(str, range(1000)) if partition_of(name) == partition)


def test_coordinators_and_offsets_of_many_groups_are_found_at_the_same_time() -> None:
    """One after the other, 160 groups took longer than clients wait, and a second each while ZooKeeper was away."""
    read, known = together(2), instances(EVERYONE)

    async def claimed(partition: int) -> int:
        await read(partition)
        return partition + 1

    async def fetched(_call: Call, asked: Any, *, is_denied: bool) -> FetchedGroup:
        await fetches(asked.group_id)
        assert not is_denied
        return FetchedGroup(asked.group_id, None, Error.NONE, NOTHING_FETCHED, frozenset())

    def call(name: str, **fields: Any) -> Call:
        return Call(RequestHeader(0, 8, 1, "c", True), message(f"{name}Request")(**fields), OpenCaller("h"))

    known._claimant = claimed
    manager, keys = _Manager(), [of_partition(OTHER - 1), of_partition(THIRD - 1)]
    serving: Any = SimpleNamespace(native=NoNativeGroups(), _instances=known, _on_elsewhere=lambda: None)
    serving._coordinator_of = partial(GroupCoordinator._coordinator_of, serving)
    asked = GroupCoordinator.handle_find_coordinator(serving, call("FindCoordinator", coordinator_keys=keys))
    found = asyncio.run(asyncio.wait_for(asked, 5)).coordinators
    assert [(one.key, one.node_id) for one in found] == [(keys[0], OTHER), (keys[1], THIRD)]

    read, fetches = together(2), together(2)
    known._seen.clear()
    serving.groups, serving._fetched = finding(manager, known, lambda: None), fetched
    serving.client_assigned = SimpleNamespace(tool_commits=ToolCommits())
    form = message("OffsetFetchRequest").struct("OffsetFetchRequestGroup")
    groups = tuple(form(group_id=one, topics=None) for one in keys)
    asked = GroupCoordinator.handle_fetch_offsets(serving, call("OffsetFetch", groups=groups))
    told = asyncio.run(asyncio.wait_for(asked, 5)).groups
    assert [one.group_id for one in told] == keys


class _Manager:
    """A manager that begins a claim as soon as somebody looks for it."""

    def __init__(self) -> None:
        self.error, self.looks = Error.NOT_COORDINATOR, 0

    def availability(self, _group_id: str) -> Error:
        return self.error

    def look(self) -> None:
        self.looks += 1
        self.error = Error.COORDINATOR_LOAD_IN_PROGRESS


def finding(manager: _Manager, known: Instances, on_elsewhere: Callable[[], None]) -> Groups:
    none, native = NoManagedGroups(), NoNativeGroups()
    return Groups(
        manager,  # type: ignore[arg-type]
        known,
        ClientAssignedGroups(manager, none.administration.record),  # type: ignore[arg-type]
        none,
        native,
        KindFinder(manager, none.groups, native, lambda _name: False, lambda _name: False),  # type: ignore[arg-type]
        on_elsewhere,
    )


def looked(known: Instances, broker_id: int) -> _Manager:
    """Asks an instance that does not know of a move about a group, whose partition the broker leads now."""
    manager = _Manager()
    groups = finding(manager, known, manager.look)
    asyncio.run(asyncio.wait_for(groups.look_again(of_partition(broker_id - 1)), 5))
    return manager


def test_a_request_waits_until_the_instance_knows_that_its_broker_leads_the_group_now() -> None:
    known = instances(EVERYONE)
    known.leaders = {}
    assert looked(known, OWN).error is Error.COORDINATOR_LOAD_IN_PROGRESS


def test_a_request_about_a_group_elsewhere_does_not_wait() -> None:
    known = instances(EVERYONE)
    assert looked(known, OTHER).looks == 0
    known.is_stopping = True
    assert looked(known, OWN).looks == 0


def test_a_request_waits_until_another_instance_has_claimed_the_group() -> None:
    """Until then, other instances would name this one, because their brokers know of the move later."""
    claims: dict[int, int | None] = {OTHER: OWN}
    known, manager = instances(EVERYONE, claims=claims), _Manager()
    looks = []

    def looked_at() -> None:
        looks.append(1)
        if len(looks) == 3:
            claims[OTHER] = OTHER

    groups = finding(manager, known, looked_at)
    group = of_partition(OTHER - 1)
    asyncio.run(asyncio.wait_for(groups.look_again(group), 5))
    assert manager.error is Error.NOT_COORDINATOR
    assert len(looks) == 3


def test_a_request_does_not_wait_for_ever_for_another_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_coord.frontends.kafka.groups._HANDED_OVER_WITHIN_S", 0.1)
    known = instances(EVERYONE, claims={OTHER: OWN})
    looks: list[int] = []
    groups = finding(_Manager(), known, lambda: looks.append(1))
    group = of_partition(OTHER - 1)
    asyncio.run(asyncio.wait_for(groups.look_again(group), 5))
    assert looks
    looks.clear()
    known.is_stopping = True
    asyncio.run(asyncio.wait_for(groups.look_again(group), 5))
    assert not looks


def test_topics_that_the_broker_hides_from_the_instance_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    of, codes = instances({1: None}), {"salaries": 29, "flights": 0, "dropped": 3}

    async def ask(_name: str, _version: Any, request: Any) -> Any:
        form = message("MetadataResponse")
        of_topic = form.struct("MetadataResponseTopic")
        return form(topics=tuple(of_topic(name=one.name, error_code=codes[one.name]) for one in request.topics))

    of.ask = ask  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            of._told.clear()
            asyncio.run(of.learn(dict.fromkeys(codes, 0)))
        assert of.hidden == {"salaries"}
        assert [one.levelno for one in caplog.records] == [logging.ERROR]
        assert "COORDINATOR_NOT_AVAILABLE: salaries" in caplog.text
        serving: Any = SimpleNamespace(_instances=of, _manager=SimpleNamespace(now_ms=lambda: 0, topics=LogTopics()))
        request = message("OffsetCommitRequest")(**committing("salaries", "dropped", offset=5))
        _, _, errors = GroupCoordinator._committed(serving, request, frozenset())
        assert errors == {
            ("salaries", 0): Error.COORDINATOR_NOT_AVAILABLE,
            ("dropped", 0): Error.UNKNOWN_TOPIC_OR_PARTITION,
        }
        codes["salaries"] = 0
        of._told.clear()
        asyncio.run(of.learn({"salaries": 0}))
    assert (of.hidden, [one.levelno for one in caplog.records]) == (set(), [logging.ERROR, logging.INFO])
