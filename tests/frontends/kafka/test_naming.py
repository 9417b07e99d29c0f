"""Which instances clients are told about: only those whose ZooKeeper sessions live."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.frontends.kafka.instances import Instances
from kafka_coord.frontends.kafka.patches import DESCRIBE_CLUSTER, METADATA, Patches
from kafka_coord.frontends.kafka.registered import Address
from kafka_coord.frontends.kafka.routing import LOCAL
from kafka_coord.grouplog.term import TOPIC
from kafka_coord.wire.frames import answer_start
from kafka_coord.wire.messages import message

OWN, OTHER, THIRD = 1, 2, 3
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


def instances(registered: Mapping[int, Address | None], *, rewrites: bool = False) -> Instances:
    made = Instances(_Broker, OWN, lambda: registered, rewrites=rewrites)  # type: ignore[arg-type, return-value]
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


def test_a_running_instance_whose_znode_cannot_be_read_is_named_where_its_broker_advertises_it() -> None:
    known = instances(EVERYONE | {OTHER: None})
    assert coordinator(known, OTHER) == OTHER
    assert known.addresses() is None
    assert coordinator(instances({OWN: ("a", 1), OTHER: None}, rewrites=True), OTHER) is None


def test_with_rewriting_the_registered_addresses_are_named() -> None:
    known = instances({OWN: ("a", 1), OTHER: ("b", 2)}, rewrites=True)
    assert asyncio.run(known.coordinator_of(OTHER - 1)) == (OTHER, "b", 2)
    assert coordinator(known, THIRD) is None


@pytest.mark.parametrize("version", [4, 9])
@pytest.mark.parametrize("rewrites", [False, True])
def test_metadata_does_not_name_an_instance_whose_session_has_ended(version: int, rewrites: bool) -> None:
    known = instances({OWN: ADVERTISED[OWN], THIRD: ADVERTISED[THIRD]}, rewrites=rewrites)
    found = patched(known, METADATA, "MetadataResponse", metadata("read"), version, rewrites=rewrites)
    assert [one.node_id for one in found.brokers] == [OWN, THIRD]
    (topic,) = found.topics
    assert [(one.leader_id, one.error_code) for one in topic.partitions] == [
        (OWN, Error.NONE),
        (-1, 5),  # LEADER_NOT_AVAILABLE, as Kafka answers for a leader that is not running
        (THIRD, Error.NONE),
    ]


def test_describe_cluster_does_not_name_an_instance_whose_session_has_ended() -> None:
    known = instances({OWN: ADVERTISED[OWN], OTHER: ADVERTISED[OTHER]})
    form = message("DescribeClusterResponse")
    of_broker = form.struct("DescribeClusterBroker")
    brokers = tuple(of_broker(broker_id=number, host=host, port=port) for number, (host, port) in ADVERTISED.items())
    found = patched(known, DESCRIBE_CLUSTER, "DescribeClusterResponse", form(brokers=brokers), 0)
    assert [one.broker_id for one in found.brokers] == [OWN, OTHER]


def test_while_every_instance_runs_the_brokers_answers_pass_unchanged() -> None:
    known = instances(EVERYONE)
    assert known.addresses() is None
    assert Patches(known.addresses).get(METADATA, 9) is None
    assert instances({}).addresses() is None, "the registrations have not been read yet"


def test_a_version_that_cannot_be_changed_passes_unless_addresses_must_be_rewritten() -> None:
    known = instances({OWN: ADVERTISED[OWN]})
    assert Patches(known.addresses).get(METADATA, 99) is None
    assert Patches(known.addresses, rewrites=True).get(METADATA, 99) is not None


def test_no_other_answer_is_changed() -> None:
    known = instances({OWN: ADVERTISED[OWN]})
    assert {key for key in range(100) if Patches(known.addresses).get(key, 0) is not None} == {
        *(18, METADATA, DESCRIBE_CLUSTER)
    }
    assert 10 in LOCAL, "FindCoordinator is answered here"
