"""Hostile and careless peers get an error, or are disconnected with a reason. Other clients are not affected."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.clients import ClientLimits
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.wire.messages import message
from tests.frontends.kafka.conftest import Front
from tests.frontends.kafka.counting import REQUESTS, growth, values
from tests.frontends.kafka.peer import Peer, committing, join, request
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def topic(front: Front) -> str:
    name = "beside-hostile-peers"
    TopicAdmin(front.cluster.bootstrap_servers).create(name, 1, replication=1)
    return name


@pytest.fixture
def group() -> str:
    return f"peers-{next(_numbers)}"


@pytest.fixture
def limit(listener: KafkaListener) -> Iterator[Callable[..., None]]:
    """Sets limits of ``listener`` for new connections."""
    before = listener.clients.limits

    def change(**limits: Any) -> None:
        listener.clients.limits = replace(before, **limits)

    yield change
    listener.clients.limits = before


@pytest.fixture
def nobody_notices(listener: KafkaListener, topic: str) -> Iterator[None]:
    """Fails unless a bystander's connection stays open and its commits are answered."""
    names = (f"bystander-{number}" for number in itertools.count())
    beside = next(name for name in names if partition_of(name) in listener.manager.terms)
    with Peer(listener) as bystander:
        commit(bystander, beside, topic, 0)
        yield
        for offset in range(1, 20):
            commit(bystander, beside, topic, offset)


def commit(peer: Peer, group: str, topic: str, offset: int) -> None:
    answer = peer.ask("OffsetCommit", 7, group_id=group, **committing(topic, offset=offset))
    assert answer.topics[0].partitions[0].error_code == Error.NONE


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length of 2 GB": b"\x7f\xff\xff\xff" + b"\0" * 100,
    "a negative length": b"\xff\xff\xff\xff",
    "too short for a header": b"\0\0\0\x02\0\0",
    "JoinGroup version 99": b"\0\0\0\x0c" + b"\0\x0b\0\x63" + b"\0" * 8,
    "JoinGroup of nonsense": b"\0\0\0\x14" + b"\0\x0b\0\x05" + b"\0\0\0\x01" + b"\0\x01a" + b"\0\xff" + b"\x7f" * 7,
    "a heartbeat above the limit": (ClientLimits().max_group_request_bytes + 1).to_bytes(4) + b"\0\x0c\0\0" + b"\0" * 8,
    "a TLS handshake": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"x" * 500,
    "an api key nobody knows": b"\0\0\0\x0a" + b"\x7f\xff\0\0" + b"\0\0\0\1" + b"\xff\xff",
    "SASL of version 0": b"\0\0\0\x11" + b"\0\x11\0\0" + b"\0\0\0\1" + b"\xff\xff" + b"\0\x05PLAIN",
}


@pytest.mark.usefixtures("nobody_notices")
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_its_own_connection_and_the_reason_is_logged(
    listener: KafkaListener, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kafka_coord.frontends.kafka")
    with Peer(listener) as peer:
        address = "{}:{}".format(*peer.socket.getsockname())
        peer.socket.sendall(garbage)
        assert peer.is_closed()
    eventually(lambda: f"closed connection address={address} reason=" in caplog.text)


@pytest.mark.usefixtures("nobody_notices")
def test_connections_without_a_first_request_are_closed(
    listener: KafkaListener, limit: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kafka_coord.frontends.kafka")
    limit(first_request_s=1.0)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Peer(listener)) for _ in range(2_000)]
        assert all(one.is_closed() for one in silent)
    assert "reason=no request within 1 s" in caplog.text


@pytest.mark.usefixtures("nobody_notices")
def test_a_connection_whose_request_arrives_too_slowly_is_closed(
    listener: KafkaListener, topic: str, limit: Callable[..., None]
) -> None:
    """Tries a request that the instance answers itself, and one that it passes on to the broker."""
    limit(request_s=1.0, slowest_bytes_a_second=1 << 20)
    local = request("OffsetFetch", 7, message("OffsetFetchRequest")(group_id="x" * 200, topics=None))
    named = message("MetadataRequest").struct("MetadataRequestTopic")(name="y" * 200)
    passed = request("Metadata", 4, message("MetadataRequest")(topics=(named,)))
    with Peer(listener) as one, Peer(listener) as other:
        for peer in one, other:
            assert peer.ask("Metadata", 4, topics=()).brokers

        def drips(peer: Peer, frame: Iterator[int]) -> bool:
            peer.socket.setblocking(False)
            try:
                peer.socket.send(bytes([next(frame)]))
                return peer.socket.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        for peer, frame in ((one, iter(local)), (other, iter(passed))):
            eventually(lambda peer=peer, frame=frame: drips(peer, frame), within_s=8.0, every_s=0.05)  # type: ignore[misc]


@pytest.mark.usefixtures("nobody_notices")
def test_the_connection_of_a_client_that_is_idle_for_too_long_is_closed(
    listener: KafkaListener, limit: Callable[..., None]
) -> None:
    limit(idle_s=1.0)
    with Peer(listener) as idle:
        assert idle.ask("Metadata", 4, topics=()).brokers
        assert idle.is_closed()


@pytest.mark.usefixtures("nobody_notices")
@pytest.mark.parametrize(
    "limits", [{"max_connections": 2, "max_connections_per_ip": 9}, {"max_connections_per_ip": 2}], ids=str
)
def test_more_connections_than_allowed_are_refused(
    listener: KafkaListener, limit: Callable[..., None], limits: dict[str, int]
) -> None:
    eventually(lambda: len(listener.clients) == 1)  # the bystander's connection
    limit(**limits)
    with Peer(listener) as fits, Peer(listener) as refused:
        assert refused.is_closed()
        assert fits.ask("Metadata", 4, topics=()).brokers


@pytest.mark.usefixtures("nobody_notices")
def test_the_oldest_connections_are_closed_when_incomplete_requests_use_too_much_memory(
    listener: KafkaListener, limit: Callable[..., None]
) -> None:
    limit(max_kept_bytes=20 << 20)
    half = b"\0\x7f\0\0" + b"\0\x0b\0\x05" + b"\0" * (7 << 20)  # a JoinGroup of 8 MB
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(listener)) for _ in range(5)]
        for number, peer in enumerate(peers):
            peer.socket.sendall(half)
            eventually(lambda number=number: listener.clients.kept_bytes >= min(2, number + 1) * (7 << 20))  # type: ignore[misc]
        assert all(peer.is_closed() for peer in peers[:3])
        eventually(lambda: listener.clients.kept_bytes == 14 * (1 << 20) + 2 * 8)
    eventually(lambda: listener.clients.kept_bytes == 0)


@pytest.mark.usefixtures("nobody_notices")
def test_memory_stays_bounded_if_a_peer_sends_requests_and_never_reads_answers(
    listener: KafkaListener, group: str, topic: str
) -> None:
    """Each of the instance's answers has 1 MB. It keeps a few, and then reads no more requests."""
    metadata = "m" * 4_000
    form = message("OffsetCommitRequest")
    of_part = form.struct("OffsetCommitRequestPartition")
    parts = (of_part(partition_index=0, committed_offset=1, committed_metadata=metadata),)
    asked = message("OffsetFetchRequest").struct("OffsetFetchRequestTopic")(name=topic, partition_indexes=(0,) * 250)
    with Peer(listener) as peer:
        one = form.struct("OffsetCommitRequestTopic")(name=topic, partitions=parts)
        peer.ask("OffsetCommit", 7, group_id=group, topics=(one,))
        frame = request("OffsetFetch", 7, message("OffsetFetchRequest")(group_id=group, topics=(asked,)))
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        peer.socket.settimeout(1.0)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 50_000:
                sent += peer.socket.send(frame * 10)
        eventually(lambda: listener.clients.kept_bytes > 0)
        assert listener.clients.kept_bytes < 4 << 20
        peer.socket.settimeout(20)
        whole = sent // len(frame)
        assert whole > 20
        for _ in range(whole):
            peer.frame()
    eventually(lambda: listener.clients.kept_bytes == 0)


@pytest.mark.usefixtures("nobody_notices")
def test_requests_behind_a_held_join_wait_and_are_answered_in_order(listener: KafkaListener, group: str) -> None:
    with Peer(listener) as first, Peer(listener) as held:
        joined = first.ask("JoinGroup", 3, **join(group))
        first.ask("SyncGroup", 3, group_id=group, member_id=joined.member_id, generation_id=joined.generation_id)
        numbers = [held.send("JoinGroup", 3, **join(group))]
        numbers += [held.send("Metadata", 4, topics=())]
        numbers += [held.send("Heartbeat", 3, group_id=group, member_id="nobody", generation_id=1)]
        eventually(lambda: beats(first, group, joined) == Error.REBALANCE_IN_PROGRESS)
        held.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            held.socket.recv(1)
        held.socket.settimeout(20)
        first.ask("JoinGroup", 3, **join(group, joined.member_id))
        answers = [
            held.answer(name, version) for name, version in (("JoinGroup", 3), ("Metadata", 4), ("Heartbeat", 3))
        ]
        assert [number for number, _ in answers] == numbers
        assert answers[0][1].error_code == Error.NONE
        assert answers[1][1].brokers
        assert answers[2][1].error_code == Error.UNKNOWN_MEMBER_ID


def beats(peer: Peer, group: str, joined: Any) -> int:
    who = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    return int(peer.ask("Heartbeat", 3, group_id=group, **who).error_code)


@pytest.mark.usefixtures("nobody_notices")
@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0", b"\0\0", b"\0\1\x7f\xff\xff\xff", b"\0\0\0\0\0\1\x7f\xff", b"\xff" * 200, b"\0\3" + b"\0" * 100_000],
    ids=range(7),
)
def test_a_members_malformed_metadata_does_not_block_the_group(
    listener: KafkaListener, group: str, topic: str, metadata: bytes
) -> None:
    """Kafka parses the metadata when it needs the topics to which the group has subscribed."""
    with Peer(listener) as peer:
        joined = peer.ask("JoinGroup", 3, **join(group, metadata=metadata))
        assert joined.error_code == Error.NONE
        peer.ask("SyncGroup", 3, group_id=group, member_id=joined.member_id, generation_id=joined.generation_id)
        described = peer.ask("DescribeGroups", 4, groups=(group,))
        assert described.groups[0].members[0].member_metadata == metadata
        form = message("OffsetDeleteRequest")
        part = form.struct("OffsetDeleteRequestPartition")(partition_index=0)
        one = form.struct("OffsetDeleteRequestTopic")(name=topic, partitions=(part,))
        deleted = peer.ask("OffsetDelete", 0, group_id=group, topics=(one,))
        assert deleted.error_code == Error.NONE
        peer.ask("LeaveGroup", 2, group_id=group, member_id=joined.member_id)


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_a_sync_must_name_protocol_type_and_protocol_from_version_5_on(
    listener: KafkaListener, group: str, missing: str
) -> None:
    names = {"protocol_type": "consumer", "protocol_name": "range", missing: None}
    with Peer(listener) as peer:
        synced = peer.ask("SyncGroup", 5, group_id=group, member_id="x", generation_id=1, **names)
        assert synced.error_code == Error.INCONSISTENT_GROUP_PROTOCOL


def test_offsets_of_the_empty_group_id_cannot_be_deleted(listener: KafkaListener) -> None:
    with Peer(listener) as peer:
        assert peer.ask("OffsetDelete", 0, group_id="", topics=()).error_code == Error.INVALID_GROUP_ID


def test_metrics_show_requests_errors_bytes_and_the_log(listener: KafkaListener, group: str, topic: str) -> None:
    before = values(listener)
    with Peer(listener) as peer:
        commit(peer, group, topic, 3)
        peer.ask("Metadata", 4, topics=())
        assert peer.ask("Heartbeat", 3, group_id=group, member_id="nobody", generation_id=1).error_code
    failed = {"request": "Heartbeat", "error": "UNKNOWN_MEMBER_ID"}
    for name in "OffsetCommit", "Metadata", "Heartbeat":
        eventually(lambda name=name: growth(listener, before, f"{REQUESTS}_count", request=name) == 1)  # type: ignore[misc]
    assert growth(listener, before, "kafka_coord_kafka_errors_total", **failed) == 1
    assert growth(listener, before, "kafka_coord_kafka_accepted_connections_total") == 1
    assert growth(listener, before, "kafka_coord_kafka_received_bytes_total") > 100
    partition = str(partition_of(group))
    assert growth(listener, before, "kafka_coord_kafka_log_appended_records_total", partition=partition) == 1
    assert values(listener)["kafka_coord_kafka_log_term", frozenset({("partition", partition)})] >= 1


def test_stock_clients_still_work_after_these_tests(front: Front, topic: str) -> None:
    assert topic in AdminClient({"bootstrap.servers": front.bootstrap}).list_topics(timeout=20).topics


def test_groups_are_listed_while_others_are_deleted(listener: KafkaListener, topic: str) -> None:
    names = (name for number in itertools.count() if partition_of(name := f"listed-{number}") in listener.manager.terms)
    groups = list(itertools.islice(names, 200))
    with Peer(listener) as peer:
        for one in groups:
            commit(peer, one, topic, 0)
        for one in groups:
            peer.send("DeleteGroups", 2, groups_names=(one,))
        deleted = 0
        while deleted < len(groups):
            with Peer(listener) as other:  # the instance asks the broker about the rights of each new connection
                assert other.ask("ListGroups", 2).error_code == Error.NONE
            for _ in range(20):
                _, answer = peer.answer("DeleteGroups", 2)
                assert answer.results[0].error_code == Error.NONE
                deleted += 1
