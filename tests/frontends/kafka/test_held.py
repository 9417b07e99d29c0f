"""Tests of held heartbeats: an answer without news is delayed, and it is sent at once when there is news."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kafka_coord.classic_groups import heartbeat_hold
from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.wire.messages import message
from tests.frontends.kafka.conftest import Front, end_term
from tests.frontends.kafka.peer import SESSION_MS, Member, Peer, committing, join
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
_numbers = itertools.count(1)


@pytest.fixture
def group() -> str:
    return f"held-{next(_numbers)}"


@pytest.fixture
def short_idle(listener: KafkaListener) -> Iterator[None]:
    before = listener.clients.limits
    listener.clients.limits = replace(before, idle_s=0.5)
    yield
    listener.clients.limits = before


@pytest.fixture
def member(listener: KafkaListener, group: str) -> Iterator[Member]:
    with Peer(listener) as peer:
        yield Member(peer, group)


def test_a_rebalance_releases_a_held_heartbeat_at_once(listener: KafkaListener, member: Member, group: str) -> None:
    beat = member.beat()
    with Peer(listener) as newcomer:
        newcomer.send("JoinGroup", 3, **join(group, session_ms=SESSION_MS))
        assert member.told() == (beat, Error.REBALANCE_IN_PROGRESS)


def test_the_clients_next_request_releases_its_held_heartbeat_which_is_answered_first(member: Member) -> None:
    for expected, why in (
        (Error.NONE, "an earlier term may have refused one"),
        (
            Error.COORDINATOR_LOAD_IN_PROGRESS,
            "librdkafka sends it again",
        ),
    ):
        beat = member.beat()
        asked = member.peer.send("Metadata", 4, topics=())
        assert member.told() == (beat, expected), why
        assert member.peer.answer("Metadata", 4)[0] == asked


def test_an_automatic_commit_of_the_java_client_is_stored_at_once_and_answered_at_the_next_heartbeat(
    front: Front, listener: KafkaListener, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_hold, "_COMMITS_S", (0.0, 60.0))
    monkeypatch.setattr(heartbeat_hold, "_PROOFS", 0)
    TopicAdmin(front.brokers).create(group, 1)

    def stored() -> int:
        return listener.manager.offsets(group)[group, 0].offset

    with Peer(listener) as peer, Peer(listener) as newcomer:
        member = Member(peer, group, "apache-kafka-java")
        who = {"group_id": group, "member_id": member.who["member_id"]}
        who |= {"generation_id_or_member_epoch": member.who["generation_id"]}
        peer.ask("OffsetCommit", 7, **who, **committing(group, offset=1))
        beat = member.beat()
        commit = peer.send("OffsetCommit", 7, **who, **committing(group, offset=2))
        eventually(lambda: stored() == 2)
        peer.hears_nothing()
        newest = peer.send("Heartbeat", 3, **member.who)
        assert member.told()[0] == beat
        assert peer.answer("OffsetCommit", 7)[0] == commit
        peer.hears_nothing()
        newcomer.send("JoinGroup", 3, **join(group, session_ms=SESSION_MS))
        assert member.told() == (newest, Error.REBALANCE_IN_PROGRESS)


@pytest.mark.parametrize("software", ["kgo", "apache-kafka-java", "librdkafka"])
def test_a_client_that_gives_a_held_heartbeat_up_is_answered_at_once_from_then_on(
    listener: KafkaListener, group: str, software: str
) -> None:
    with Peer(listener) as impatient:
        who = Member(impatient, group, software)
        who.beat()
    for _ in range(2):
        with Peer(listener) as again:
            again.ask("ApiVersions", 3, client_software_name=software, client_software_version="2")
            for _ in range(2):
                sent_at = time.monotonic()
                again.send("Heartbeat", 3, **who.who)
                assert again.answer("Heartbeat", 3)[1].error_code == Error.NONE
                assert time.monotonic() - sent_at < 1.5, "it was held"


def test_a_heartbeat_that_is_followed_by_another_request_is_not_held(member: Member) -> None:
    beats = [member.peer.send("Heartbeat", 3, **member.who) for _ in range(20)]
    asked = member.peer.send("Metadata", 4, topics=())

    assert [member.told()[0] for _ in beats] == beats
    assert member.peer.answer("Metadata", 4)[0] == asked


def test_the_held_heartbeat_of_a_member_that_an_operator_removes_is_answered_at_once(
    listener: KafkaListener, member: Member, group: str
) -> None:
    beat = member.beat()
    with Peer(listener) as operator:
        leaving = message("LeaveGroupRequest").struct("MemberIdentity")(member_id=member.who["member_id"])
        operator.ask("LeaveGroup", 3, group_id=group, members=(leaving,))

    assert member.told() == (beat, Error.UNKNOWN_MEMBER_ID)


def test_held_heartbeats_are_answered_when_the_instance_gives_up_the_partition(
    front: Front, member: Member, group: str
) -> None:
    beat = member.beat()
    end_term(front, partition_of(group))

    assert member.told() == (beat, Error.NOT_COORDINATOR)
    eventually(front.serves_every_group, within_s=60)


def test_no_heartbeat_is_held_for_a_lost_connection(listener: KafkaListener, member: Member, group: str) -> None:
    member.beat()
    found = listener.manager.groups()[group].metadata.members[member.who["member_id"]]
    assert found.beat_token is not None

    member.peer.socket.close()

    eventually(lambda: found.beat_token is None)


@pytest.mark.usefixtures("short_idle")
def test_a_connection_with_a_held_heartbeat_does_not_count_as_idle(listener: KafkaListener, group: str) -> None:
    with Peer(listener) as peer, Peer(listener) as idle, Peer(listener) as newcomer:
        member = Member(peer, group)
        beat = member.beat()
        idle.ask("Metadata", 4, topics=())
        assert idle.is_closed()
        newcomer.send("JoinGroup", 3, **join(group, session_ms=SESSION_MS))
        assert member.told() == (beat, Error.REBALANCE_IN_PROGRESS)
