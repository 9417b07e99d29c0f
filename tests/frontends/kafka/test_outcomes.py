"""What a broker does to connections and writes of the groups log, beside what Kafka's own coordinator answers.

It closes idle connections, ends authenticated ones, refuses large batches, lacks replicas, and denies rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.cluster.kafka import Broker, KafkaSettings
from kafka_coord.dev.cluster.topics import TopicAdmin
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import BrokerError
from kafka_coord.frontends.kafka.listener import KafkaListener
from kafka_coord.grouplog.manager import partition_of
from kafka_coord.grouplog.term import PARTITIONS, TOPIC, LogTerm
from kafka_coord.kafka.authentication import broker_security
from kafka_coord.kafka.connection import BrokerConnection
from kafka_coord.settings import host_and_port
from kafka_coord.wire.messages import message
from kafka_coord.zk import connect
from kafka_coord.zk.kinds import read_kinds
from tests.cli.running import run as cli
from tests.conftest import brokers_of_a_run
from tests.frontends.kafka.conftest import serving_beside
from tests.frontends.kafka.side_by_side import SUBSCRIPTION, Side
from tests.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
FLIGHTS, OFFSETS_TOPIC = "flights", "__consumer_offsets"
TOO_LARGE = "INVALID_COMMIT_OFFSET_SIZE"
IDLE_MS, LIFETIME_MS = 6_000, 2_000
LARGE_SUBSCRIPTION = SUBSCRIPTION[:-4] + (4_000).to_bytes(4, "big") + bytes(4_000)
"""A subscription with user data. It must be valid, because Kafka reads it."""
_numbers = itertools.count(1)
_SECURITY = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "instance",
    "sasl.password": "i-secret",
}


class Authenticated(Side):
    """A side whose coordinator is behind a listener with SASL, where its user has every right."""

    def connect(self, host: str = "", port: int = 0) -> BrokerConnection:
        where = (host, port) if host else self.coordinator
        assert where is not None
        user = _SECURITY | {"sasl.username": "client", "sasl.password": "c-secret"}
        self.open.append(BrokerConnection(*where, broker_security(user)))
        return self.open[-1]


@dataclass
class Place:
    """A broker that closes idle and expired connections soon, and the instance beside it."""

    broker: Broker
    zookeeper: ZooKeeperServer
    listener: KafkaListener

    @functools.cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.address})

    @property
    def kafkas_too_large(self) -> str:
        """What Kafka's coordinator answers to a commit that is too large. An instance answers as before 4.0, because
        that says what is wrong; since then, every write is answered alike (``CoordinatorOperationExceptionHelper``)."""
        return "UNKNOWN_SERVER_ERROR" if self.broker.settings.kraft else TOO_LARGE

    def terms(self) -> dict[int, LogTerm]:
        return dict(self.listener.manager.terms)

    def sides(self, group: str) -> tuple[Side, Side]:
        """This project's coordinator, for a group of this name, and Kafka's, for another."""
        kafka = Side(host_and_port(self.broker.address), f"{group}-at-kafka", FLIGHTS)
        return kafka, Authenticated(host_and_port(self.listener.address), group, FLIGHTS)

    @contextlib.contextmanager
    def set(self, name: str, value: str) -> Iterator[None]:
        """Changes a setting of both coordinators' topics."""
        self._alter(AlterConfigOpType.SET, name, value)
        try:
            yield
        finally:
            self._alter(AlterConfigOpType.DELETE, name, value)

    def _alter(self, operation: AlterConfigOpType, name: str, value: str) -> None:
        for topic in (TOPIC, OFFSETS_TOPIC):
            entry = ConfigEntry(name, value, incremental_operation=operation)
            resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
            for done in self.admin.incremental_alter_configs([resource]).values():
                done.result(30)
        time.sleep(0.5)  # the broker learns of it

    @contextlib.contextmanager
    def denied(self, operation: AclOperation, topic: str = TOPIC) -> Iterator[None]:
        """Denies the instance, and only the instance, the right on the topic."""
        who = "User:instance", "*", operation, AclPermissionType.DENY
        for done in self.admin.create_acls(
            [AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *who)]
        ).values():
            done.result(30)
        try:
            yield
        finally:
            filters = [AclBindingFilter(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *who)]
            for gone in self.admin.delete_acls(filters).values():
                gone.result(30)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory: Path = tmp_path_factory.mktemp("outcomes")
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    properties = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,COORD:SASL_PLAINTEXT",
        "listener.name.coord.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.coord.plain.sasl.jaas.config": (f'{login} user_instance="i-secret" user_client="c-secret";'),
        "listener.name.coord.plain.connections.max.reauth.ms": str(LIFETIME_MS),
        "connections.max.idle.ms": str(IDLE_MS),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:client;User:ANONYMOUS",
        "offsets.topic.num.partitions": str(PARTITIONS),
    }
    settings = KafkaSettings(replication=2, for_instances=True, properties=properties)
    with (
        ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(tick_ms=200)) as server,
        brokers_of_a_run(directory, server.connect_string, 2, settings) as cluster,
    ):
        broker = cluster.broker(1)
        topics = TopicAdmin(cluster.bootstrap_servers)
        topics.create(TOPIC, PARTITIONS, replication=2, config={"cleanup.policy": "compact"})
        topics.create(FLIGHTS, 10, replication=2)
        kafka = Side(host_and_port(broker.address), "first", FLIGHTS)
        play(kafka, of=lambda side: side.commit())  # creates the topic of Kafka's own coordinator
        cluster.broker(2).stop()  # so min.insync.replicas=2 cannot be met
        security = broker_security(_SECURITY)
        with serving_beside(broker, server.connect_string, security=security) as listener:
            yield Place(broker, server, listener)


@pytest.fixture
def terms_go_on(place: Place) -> Iterator[None]:
    """Checks that no term ends during the test."""
    before = place.terms()
    assert len(before) == PARTITIONS
    yield
    assert place.terms() == before


def play(*sides: Side, of: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """Runs a play on each side, one after the other."""

    async def one(side: Side) -> Any:
        try:
            await side.find()
            return await of(side)
        finally:
            for connection in side.open:
                connection.close()
            await asyncio.gather(*side.held, return_exceptions=True)

    async def each() -> list[Any]:
        return [await one(side) for side in sides]

    return asyncio.run(each())


def fresh(what: str) -> str:
    return f"{what}-{next(_numbers)}"


def committed(answer: Any) -> set[str]:
    return {Error(part.error_code).name for topic in answer.topics for part in topic.partitions}


async def large_commit(side: Side, partitions: int = 10, metadata: str = "m" * 1_000, times: int = 1) -> Any:
    form = message("OffsetCommitRequest")
    part = form.struct("OffsetCommitRequestPartition")
    parts = tuple(part(partition_index=n, committed_offset=7, committed_metadata=metadata) for n in range(partitions))
    topic = form.struct("OffsetCommitRequestTopic")(name=FLIGHTS, partitions=parts * times)
    return await side.ask("OffsetCommit", 7, group_id=side.group, topics=(topic,))


async def offset_of(side: Side) -> int:
    (topic,) = (await side.offsets(partitions=(0,))).topics
    return int(topic.partitions[0].committed_offset)


@pytest.mark.usefixtures("terms_go_on")
def test_a_commit_after_a_pause_longer_than_the_idle_limit_is_as_quick_as_ever(place: Place) -> None:
    group = fresh("paused")
    _, ours = place.sides(group)

    async def pause_between(side: Side) -> float:
        await side.commit()
        await asyncio.sleep(IDLE_MS / 1000 * 1.2)
        began = time.monotonic()
        assert committed(await side.commit(offset=6)) == {"NONE"}
        assert await offset_of(side) == 6
        return time.monotonic() - began

    (took_s,) = play(ours, of=pause_between)
    assert took_s < 4.0  # 5.4 s and more, when the term ended


@pytest.mark.usefixtures("terms_go_on")
def test_no_term_ends_when_connections_are_used_beyond_their_lifetime(place: Place) -> None:
    _, ours = place.sides(fresh("busy"))

    async def commit_on(side: Side) -> None:
        on = side.connect()
        for number in range(LIFETIME_MS * 2 // 100):
            assert committed(await side.commit(offset=number, on=on)) == {"NONE"}
            await asyncio.sleep(0.1)

    play(ours, of=commit_on)


@pytest.mark.usefixtures("terms_go_on")
def test_members_authenticate_again_during_held_requests_and_notice_nothing(place: Place) -> None:
    """In a native group, whose requests are passed on, and in one whose heartbeats are held for longer than that."""
    native, ours = fresh("native"), fresh("ours")
    at_kafka = Consumer({"bootstrap.servers": place.broker.address, "group.id": native})
    at_kafka.commit(offsets=[TopicPartition(FLIGHTS, 0, 1)], asynchronous=False)
    at_kafka.close()
    told: list[str] = []

    def member(group: str) -> Consumer:
        settings = _SECURITY | {"sasl.username": "client", "sasl.password": "c-secret", "log_level": 4}
        settings |= {"bootstrap.servers": place.listener.address, "group.id": group, "enable.auto.commit": False}
        made = Consumer(settings | {"error_cb": lambda error: told.append(f"{group}: {error}")})
        made.subscribe([FLIGHTS], on_assign=lambda _, given: told.append(f"{group} has {len(given)}"))
        return made

    members = {group: member(group) for group in (native, ours)}
    try:
        for one in members.values():
            eventually(lambda one=one: one.poll(0.05) or one.assignment(), within_s=60)
        until, slowest_s, number = time.monotonic() + 6 * LIFETIME_MS / 1000, 0.0, 0
        while time.monotonic() < until:
            for one in members.values():
                one.poll(0.3)
                began, number = time.monotonic(), number + 1
                (done,) = one.commit(offsets=[TopicPartition(FLIGHTS, 0, number)], asynchronous=False)
                assert done.error is None
                slowest_s = max(slowest_s, time.monotonic() - began)
            time.sleep(1.0)
        assert told == [f"{group} has 10" for group in members]
        with closing(connect(place.zookeeper.connect_string)) as store:
            kinds = read_kinds(store, members)
        assert [str(kinds[group].kind) for group in members] == ["native", "client-assigned"]
        assert slowest_s < 5.0
    finally:
        for one in members.values():
            one.close()


@pytest.mark.usefixtures("terms_go_on")
def test_only_the_commit_that_is_too_large_hears_of_it(place: Place) -> None:
    async def together(side: Side) -> list[set[str]]:
        names = (f"{side.group}-{number}" for number in itertools.count())
        others = list(itertools.islice((n for n in names if partition_of(n) == partition_of(side.group)), 10))
        for other in others:
            await side.ask("FindCoordinator", 1, quiet=True, key=other, key_type=0)
        one = message("OffsetCommitRequest")
        part = one.struct("OffsetCommitRequestPartition")(partition_index=0, committed_offset=1, committed_metadata="")
        topic = one.struct("OffsetCommitRequestTopic")(name=FLIGHTS, partitions=(part,))
        small = [side.ask("OffsetCommit", 7, quiet=True, group_id=other, topics=(topic,)) for other in others]
        answers = await asyncio.gather(large_commit(side), *small, large_commit(side))
        assert await offset_of(side) == -1
        return [committed(answer) for answer in answers]

    with place.set("max.message.bytes", "2000"):
        kafka, ours = play(*place.sides(fresh("large")), of=together)
    assert ours == [{TOO_LARGE}, *[{"NONE"}] * 10, {TOO_LARGE}]
    assert kafka == [{place.kafkas_too_large}, *[{"NONE"}] * 10, {place.kafkas_too_large}]


@pytest.mark.usefixtures("terms_go_on")
def test_a_commit_of_more_than_a_mib_is_answered_as_kafka_answers_it(place: Place) -> None:
    async def commits(side: Side) -> tuple[set[str], set[str]]:
        kept = await large_commit(side, partitions=2)
        huge = functools.partial(large_commit, side, times=150, metadata="m" * 4_000)
        try:
            told = await huge()
        except BrokerError:  # it got no time for longer than its idle limit, and so has closed the connection
            told = await huge()
        return committed(told), committed(kept)

    with place.set("max.message.bytes", "3000"):
        kafka, ours = play(*place.sides(fresh("huge")), of=commits)
    assert (ours, kafka) == (({TOO_LARGE}, {"NONE"}), ({place.kafkas_too_large}, {"NONE"}))


@pytest.mark.usefixtures("terms_go_on")
def test_an_assignment_that_is_too_large_is_handed_to_nobody_and_its_generation_is_not_used_again(place: Place) -> None:
    async def sync_large(side: Side) -> tuple[str, int]:
        joined = await side.join("m1", protocols=side.protocols("range", metadata=LARGE_SUBSCRIPTION))
        synced = await side.sync(joined)
        assert not synced.assignment
        again = await side.join("m1", member_id=joined.member_id, protocols=side.protocols("range"))
        assert not (await side.sync(again)).error_code
        return Error(synced.error_code).name, again.generation_id - joined.generation_id

    with place.set("max.message.bytes", "2000"):
        kafka, ours = play(*place.sides(fresh("wide")), of=sync_large)
    assert ours == kafka == ("UNKNOWN_SERVER_ERROR", 1)


@pytest.mark.usefixtures("terms_go_on")
def test_while_replicas_are_missing_commits_fail_and_reads_and_heartbeats_go_on(place: Place) -> None:
    """Kafka 4 appends nevertheless (``CoordinatorPartitionWriter`` asks for one acknowledgement), and waits until the
    write times out. Heartbeats fail, too: it answers nothing before earlier writes are replicated."""
    group = fresh("replicas")

    async def before(side: Side) -> Any:
        (joined,) = await side.stable("m1")
        await side.commit(joined, offset=3)
        return joined

    async def during(member: Any, side: Side) -> tuple[set[str], int, str]:
        failed = committed(await side.commit(member, offset=4))
        return failed, await offset_of(side), Error((await side.heartbeat(member)).error_code).name

    def outcome(which: int) -> tuple[set[str], int, str, set[str]]:
        (member,) = play(place.sides(group)[which], of=before)
        with place.set("min.insync.replicas", "2"):
            (missing,) = play(place.sides(group)[which], of=functools.partial(during, member))
        (after,) = play(place.sides(group)[which], of=lambda side: side.commit(member, offset=5))
        return *missing, committed(after)

    failed, kafkas_heartbeat = "COORDINATOR_NOT_AVAILABLE", "NONE"
    if place.broker.settings.kraft:
        kafkas_heartbeat = failed
    assert outcome(1) == ({failed}, 3, "NONE", {"NONE"})
    assert outcome(0) == ({failed}, 3, kafkas_heartbeat, {"NONE"})


def test_without_replicas_and_without_zookeeper_nothing_is_answered_from_memory(place: Place) -> None:
    _, ours = place.sides(fresh("unproven"))

    async def act(side: Side) -> list[str]:
        (joined,) = await side.stable("m1")
        with place.set("min.insync.replicas", "2"):
            await side.commit(joined)
            place.zookeeper.pause()
            try:
                await asyncio.sleep(0.5)
                beat = await side.heartbeat(joined)
                offsets = await side.offsets()
                described = await side.describe()
            finally:
                place.zookeeper.resume()
        answers = [beat.error_code, offsets.error_code, described.groups[0].error_code]
        return [Error(code).name for code in answers]

    (told,) = play(ours, of=act)
    assert set(told) <= {"COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"}
    eventually(lambda: len(place.terms()) == PARTITIONS, within_s=60)


@pytest.mark.usefixtures("terms_go_on")
def test_a_group_whose_deletion_is_refused_is_as_before(place: Place) -> None:
    group = fresh("kept")
    _, ours = place.sides(group)

    async def delete(side: Side) -> tuple[str, str, int, str]:
        await side.commit(offset=9)
        with place.set("min.insync.replicas", "2"):
            refused = await side.ask("DeleteGroups", 1, groups_names=(group,))
            state = (await side.describe()).groups[0].group_state
            kept = await offset_of(side)
        done = await side.ask("DeleteGroups", 1, groups_names=(group,))
        codes = [Error(answer.results[0].error_code).name for answer in (refused, done)]
        return codes[0], state, kept, codes[1]

    assert play(ours, of=delete) == [("COORDINATOR_NOT_AVAILABLE", "Empty", 9, "NONE")]


@pytest.mark.usefixtures("terms_go_on")
def test_a_right_that_the_instance_lacks_is_one_error_and_a_finding(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def commit(side: Side) -> list[set[str]]:
        return [committed(await side.commit(offset=number)) for number in range(3)]

    _, ours = place.sides(fresh("denied"))
    with caplog.at_level(logging.ERROR), place.denied(AclOperation.WRITE):
        eventually(lambda: play(ours, of=commit)[0] == [{"COORDINATOR_NOT_AVAILABLE"}] * 3, within_s=30)
        ours.coordinator = None
        found = eventually(lambda: [one for one in findings(place) if "denies its instance" in one], within_s=60)
    assert found == ["broker 1 denies its instance a right on __kafka_coord_groups (TOPIC_AUTHORIZATION_FAILED), so its"
                     " groups cannot commit"]  # fmt: skip
    assert len([one for one in caplog.records if "denies this instance a right" in one.message]) == 1
    eventually(lambda: play(place.sides(fresh("allowed"))[1], of=commit)[0] == [{"NONE"}] * 3, within_s=30)
    eventually(lambda: not [one for one in findings(place) if "denies its instance" in one], within_s=60)


@pytest.mark.usefixtures("terms_go_on")
def test_commits_for_a_topic_that_only_the_instance_may_not_describe_can_be_repeated(place: Place) -> None:
    async def commit(side: Side) -> set[str]:
        return committed(await side.commit(offset=1))

    _, ours = place.sides(fresh("hidden"))
    with place.denied(AclOperation.DESCRIBE, FLIGHTS):
        eventually(lambda: play(ours, of=commit) == [{"COORDINATOR_NOT_AVAILABLE"}], within_s=60)
        told = f"broker 1 does not let its instance describe {FLIGHTS} (TOPIC_AUTHORIZATION_FAILED)"
        eventually(lambda: [one for one in findings(place) if one.startswith(told)], within_s=60)
    eventually(lambda: play(ours, of=commit) == [{"NONE"}], within_s=60)
    eventually(lambda: not [one for one in findings(place) if "does not let" in one], within_s=60)


def findings(place: Place) -> list[str]:
    ran = cli("doctor", "-z", place.zookeeper.connect_string, "-o", "json")
    return [one["what"] for one in json.loads(ran.out)]
