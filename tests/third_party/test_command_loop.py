"""How the third-party consumer handles commands that a test writes, in the words of docs/protocol.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from tests.third_party.consumer import ThirdPartyConsumer
from tests.waiting import eventually
from tests.zk.sessions import Wire

pytestmark = [pytest.mark.zookeeper]

GROUP = "/consumers/groups/g"
IDS, CHANNEL = f"{GROUP}/ids/c", f"{GROUP}/channel/c"


class Log:
    """A topic of 1,000 records a partition, and the requests for its records."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def fetch(self, topic: str, partition: int, offset: int) -> list[tuple[int, bytes]]:
        self.asked.append((topic, partition, offset))
        first = max(offset, 0)
        return [(n, b"") for n in range(first, min(first + 10, 1000))]


class Group:
    """The coordinator's side, by hand."""

    def __init__(self, client: KazooClient) -> None:
        self.client = client

    @property
    def incarnation(self) -> int:
        return self.client.exists(IDS).czxid

    def start(self, at: dict[int, int], *, incarnation: int = 0, **changed: Any) -> str:
        self.client.ensure_path(f"{GROUP}/offsets/t")
        points = {str(partition): {"offset": offset, "stream": 0} for partition, offset in at.items()}
        return self._write("start", points, incarnation, changed)

    def stop(self, *partitions: int, incarnation: int = 0, **changed: Any) -> str:
        return self._write("stop", list(partitions), incarnation, changed)

    def _write(self, kind: str, partitions: object, incarnation: int, changed: dict[str, Any]) -> str:
        value = {"version": 1, "type": f"{kind}-fetcher", "generation": 1, "epoch": 1, "reason": "by hand"}
        value |= {"incarnation": incarnation or self.incarnation, "partitions": {"t": partitions}, **changed}
        return self.client.create(f"{CHANNEL}/{kind}-", json.dumps(value).encode(), sequence=True)

    def offset(self, partition: int) -> int | None:
        path = f"{GROUP}/offsets/t/{partition}"
        return int(self.client.get(path)[0]) if self.client.exists(path) else None


@pytest.fixture
def client(zk_hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(zk_hosts)
    client.start(timeout=30)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def group(client: KazooClient) -> Group:
    return Group(client)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def consumer(zk_hosts: str, log: Log) -> Iterator[ThirdPartyConsumer]:
    with ThirdPartyConsumer(zk_hosts, "g", ["t"], log.fetch, name="c", session_timeout=4.0) as consumer:
        assert consumer.poll(0) is None
        yield consumer


def gone(group: Group, *paths: str) -> bool:
    return not any(map(group.client.exists, paths))


def test_commands_are_obeyed_in_the_order_of_their_numbers_whatever_their_prefix(consumer, group, log):
    first = group.start({0: 5})
    eventually(lambda: consumer.poll(0.1) == ("t", 0, 5, b""))
    second, third = group.stop(0), group.start({0: 700})
    eventually(lambda: consumer.poll(0.1) == ("t", 0, 700, b""))
    assert gone(group, first, second, third)
    assert group.offset(0) >= 6, "written with the acknowledgement of the stop"


def test_a_stop_is_not_acknowledged_before_the_application_is_done(consumer, group):
    group.start({0: 0, 1: 0})
    taken = eventually(lambda: consumer.poll(0.1))
    stop = group.stop(taken[1])
    assert not gone(group, stop)
    before = [taken]

    def is_obeyed() -> bool:
        before.append(consumer.poll(1.0) or taken)
        return gone(group, stop)

    eventually(is_obeyed)
    assert group.offset(taken[1]) == max(offset for _, number, offset, _ in before if number == taken[1]) + 1
    after = [consumer.poll(1.0) for _ in range(20)]
    assert {number for _, number, _, _ in after} == {1 - taken[1]}, "only the other partition goes on"


def test_commands_for_earlier_incarnations_are_removed_and_not_obeyed(consumer, group, log):
    old = group.start({0: 0}, incarnation=group.incarnation - 1)
    eventually(lambda: consumer.poll(0.1) is None and gone(group, old))
    assert log.asked == []
    assert consumer.assignment() == set()


def test_a_command_for_a_later_incarnation_is_left_in_the_channel(consumer, group, log):
    before = group.incarnation
    group.client.delete(IDS)
    newer = group.client.set(CHANNEL, b"").mzxid
    group.client.create(IDS, b'{"version":1,"session_timeout_ms":4000}', ephemeral=True)
    command = group.start({0: 0}, incarnation=newer)
    with pytest.raises(NodeExistsError):
        eventually(lambda: consumer.poll(0.1))
    assert newer > before
    assert not gone(group, command)
    assert log.asked == []


@pytest.mark.parametrize("changed", [{"version": 2}, {"type": "pause-fetcher"}, {"partitions": 7}])
def test_an_unreadable_command_is_neither_obeyed_nor_removed_nor_skipped(consumer, group, log, caplog, changed):
    unreadable = group.start({0: 0}, **changed)
    behind = group.start({1: 0})
    eventually(lambda: consumer.poll(0.1) or "cannot obey" in caplog.text)
    assert consumer.poll(0.1) is None
    assert not gone(group, unreadable)
    assert not gone(group, behind)
    assert log.asked == []

    group.client.delete(IDS)  # as the coordinator does after the rebalance timeout
    group.client.delete(unreadable)
    eventually(lambda: consumer.poll(0.1) is None and gone(group, behind))
    assert log.asked == [], "what was meant for the incarnation before is not obeyed"
    group.start({1: 40})
    eventually(lambda: consumer.poll(0.1) == ("t", 1, 40, b""))


def test_without_its_server_a_consumer_neither_hands_out_records_nor_commits(zookeeper, zk_hosts, group, log):
    chroot = zk_hosts.partition("/")[2]
    with Wire(zookeeper.port) as wire:
        consumer = ThirdPartyConsumer(f"{wire.hosts}/{chroot}", "g", ["t"], log.fetch, name="c", session_timeout=1.0)
        with consumer:
            assert consumer.poll(0) is None
            group.start({0: 0})
            eventually(lambda: consumer.poll(0.1))
            wire.cut()
            eventually(lambda: consumer.poll(0.1) is None)
            assert consumer.assignment() == set()
            eventually(lambda: group.client.exists(IDS) is None)
            assert group.offset(0) is None


def test_a_session_that_ended_is_followed_by_an_incarnation_that_starts_with_nothing(consumer, zookeeper, group, log):
    group.start({0: 0})
    eventually(lambda: consumer.poll(0.1))
    before = group.incarnation
    closing = KazooClient(zookeeper.connect_string, client_id=consumer._zk.client_id)
    closing.start(timeout=15)
    closing.stop()
    closing.close()
    assert group.client.exists(IDS) is None
    meanwhile = group.start({1: 0}, incarnation=before)

    eventually(lambda: consumer.poll(0.1) is None and group.client.exists(IDS) and gone(group, meanwhile))

    assert group.incarnation > before
    assert consumer.assignment() == set()
    assert group.offset(0) is None, "an incarnation that is gone commits nothing"
    group.start({0: 40})
    eventually(lambda: consumer.poll(0.1) == ("t", 0, 40, b""))


def test_a_channel_that_was_deleted_ends_the_membership(consumer, group):
    group.start({0: 0})
    eventually(lambda: consumer.poll(0.1))
    before = group.incarnation
    group.client.delete(CHANNEL, recursive=True)
    eventually(lambda: consumer.poll(0.1) is None and group.client.exists(IDS) and group.incarnation > before)
    assert consumer.assignment() == set()
    group.start({0: 40})
    eventually(lambda: consumer.poll(0.1) == ("t", 0, 40, b""))


def test_a_session_that_outlived_the_consumers_own_clock_does_not_keep_its_name(consumer, group):
    before = group.incarnation
    consumer._forget()  # as after a reply that came too late, in a session that still lives
    eventually(lambda: consumer.poll(0) is None and group.client.exists(IDS) and group.incarnation > before)


def test_leaving_commits_the_records_that_the_application_has_processed(zk_hosts, group, log):
    with ThirdPartyConsumer(zk_hosts, "g", ["t"], log.fetch, name="c", session_timeout=4.0) as consumer:
        assert consumer.poll(0) is None
        group.start({0: -1, 1: 30})
        taken = eventually(lambda: consumer.poll(0.1))
    assert group.client.exists(IDS) is None
    assert group.client.exists(CHANNEL) is not None
    assert group.offset(taken[1]) == taken[2] + 1
    assert group.offset(1 - taken[1]) is None
    assert log.asked[0] == ("t", 0, -1)
