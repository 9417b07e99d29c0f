"""Measures what thousands of KIP-848 members in managed groups cost, and how fast another member joins."""

from __future__ import annotations

import heapq
import itertools
import select
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.classic_groups.errors import Error
from kafka_coord.dev.bench.kafka_groups.client import RawClient, request_bytes, without_errors
from kafka_coord.dev.bench.kafka_groups.moving import coordinators
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import Servers, started
from kafka_coord.dev.bench.report import Bar, Spread, Table
from kafka_coord.dev.bench.usage import cpu_meter
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.errors import Timeout
from kafka_coord.wire.messages import message

_API_VERSIONS, _HEARTBEAT = 3, 0
_TOPIC, _GROUPS = "managed", 50
_AT_ONCE = 250
"""How many members register at the same time. The next batch follows when all of them have their shares."""
_WITHIN_S, _TIMES, _BETWEEN_JOINS_S = 300.0, 5, 1.0
_REBALANCE_TIMEOUT_MS = 300_000
_LEAVE, _AGAIN_S = -1, 0.1
_BAR_MEMBERS, _BAR_PERCENT, _BAR_P50_MS, _BAR_MOST_MS = 5_000, 50.0, 100.0, 400.0

Share = dict[bytes, tuple[int, ...]]
"""Partitions by topic id."""


@dataclass(slots=True, eq=False)
class Consumer:
    """A member that behaves like librdkafka: it sends the next heartbeat an interval after the last one, or immediately
    if its share has changed."""

    client: RawClient
    group: str
    member_id: str
    epoch: int = 0
    share: Share | None = None
    sent_at: float = 0.0
    waits: bool = False
    """Whether an answer is outstanding."""

    def heartbeat(self) -> bytes:
        """Returns the next heartbeat request, whose owned partitions acknowledge the last change."""
        form = message("ConsumerGroupHeartbeatRequest")
        more: dict[str, Any] = {}
        if self.epoch == 0:
            more = {"rebalance_timeout_ms": _REBALANCE_TIMEOUT_MS, "subscribed_topic_names": (_TOPIC,)}
        if self.epoch >= 0:
            topic, owned = form.struct("TopicPartitions"), self.share or {}
            more["topic_partitions"] = tuple(topic(topic_id=one, partitions=owned[one]) for one in owned)
        value = form(group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, **more)
        return request_bytes("ConsumerGroupHeartbeat", _HEARTBEAT, value)

    def count(self) -> int:
        """Returns how many partitions the coordinator has assigned to the member."""
        return sum(map(len, (self.share or {}).values()))


class Crowd:
    """Sends the heartbeats of many members from one thread."""

    def __init__(self) -> None:
        self.heartbeats = 0
        self._poll = select.epoll()
        self._by_number: dict[int, Consumer] = {}
        self._due: list[tuple[float, int, Consumer]] = []
        self._order = itertools.count()

    def add(self, consumer: Consumer) -> None:
        number = consumer.client.socket.fileno()
        self._by_number[number] = consumer
        self._poll.register(number, select.EPOLLIN)
        self._send(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Makes the member leave, and waits for the answers to its leave and to any heartbeat in flight."""
        number = consumer.client.socket.fileno()
        self._poll.unregister(number)
        del self._by_number[number]
        outstanding, consumer.epoch, consumer.share = consumer.waits, _LEAVE, None
        consumer.client.send(consumer.heartbeat())
        for _ in range(1 + outstanding):
            without_errors(consumer.client.answer("ConsumerGroupHeartbeat", _HEARTBEAT), "ConsumerGroupHeartbeat")

    def run_until(self, done: Callable[[], bool], what: str, within_s: float = _WITHIN_S) -> None:
        """Sends heartbeats until ``done`` returns true. Raises :class:`~kafka_coord.errors.Timeout`, which says that it
        was waiting for ``what``."""
        deadline = time.monotonic() + within_s
        while not done():
            now = time.monotonic()
            if now > deadline:
                raise Timeout(f"timed out after {within_s:.0f} s waiting for {what}")
            while self._due and self._due[0][0] <= now:
                consumer = heapq.heappop(self._due)[2]
                if consumer.client.socket.fileno() in self._by_number:
                    self._send(consumer)
            wait_s = min(0.1, max(0.0, self._due[0][0] - now)) if self._due else 0.1
            for number, _ in self._poll.poll(wait_s):
                self._receive(self._by_number[number])

    def run_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.run_until(lambda: time.monotonic() >= end, "the end", seconds + _WITHIN_S)

    def _send(self, consumer: Consumer) -> None:
        consumer.client.send(consumer.heartbeat())
        consumer.sent_at, consumer.waits = time.monotonic(), True
        self.heartbeats += 1

    def _receive(self, consumer: Consumer) -> None:
        answer = consumer.client.answer("ConsumerGroupHeartbeat", _HEARTBEAT)
        consumer.waits = False
        if answer.error_code == Error.COORDINATOR_LOAD_IN_PROGRESS:  # because many members register at the same time
            heapq.heappush(self._due, (time.monotonic() + _AGAIN_S, next(self._order), consumer))
            return
        without_errors(answer, f"{consumer.group} {consumer.member_id}: {answer.error_message}")
        consumer.epoch = answer.member_epoch
        if answer.assignment is not None:
            told = {topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions}
            if told != consumer.share:
                consumer.share = told
                self._send(consumer)
                return
        due = consumer.sent_at + answer.heartbeat_interval_ms / 1000
        heapq.heappush(self._due, (due, next(self._order), consumer))


def measure_managed(
    directory: Path, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Fills 50 groups and measures them at rest. Then another member joins one group after another and leaves it
    again."""
    on_progress(f"starting ZooKeeper and brokers ({options.brokers}), with an instance beside each")
    with (
        started(directory, brokers=options.brokers, as_in_production=options.judged) as servers,
        ExitStack() as running,
    ):
        servers.make_topic(_TOPIC, options.partitions)
        groups = [f"managed-{number}" for number in range(_GROUPS)]
        crowd, new = Crowd(), _Newcomers(coordinators(servers, groups), running)
        members = _filled(crowd, new, groups, options, on_progress)
        on_progress(f"{len(members):,} members have their shares; idling for {2 * _TIMES * options.seconds:g} s")
        row = _at_rest(crowd, servers, len(members), _TIMES * options.seconds)
        on_progress(f"one member joins and leaves, {options.joins} times")
        joins, leaves = _joined_and_left(crowd, new, members, groups, options)
    row |= {
        "join_p50_ms": round(joins.median, 1),
        "join_most_ms": round(joins.most, 1),
        "leave_p50_ms": round(leaves.median, 1),
        "leave_most_ms": round(leaves.most, 1),
    }
    return [Table("managed", [row])], managed_bars(row)


class _Newcomers:
    """Creates members, each with a connection to its group's coordinator."""

    def __init__(self, where: dict[str, str], running: ExitStack) -> None:
        self._where, self._running = where, running

    def __call__(self, group: str) -> Consumer:
        client = self._running.enter_context(RawClient(self._where[group]))
        about = message("ApiVersionsRequest")(client_software_name="librdkafka", client_software_version="2.16.0")
        client.ask("ApiVersions", _API_VERSIONS, about)
        return Consumer(client, group, str(uuid.uuid4()))


def _filled(
    crowd: Crowd, new: Callable[[str], Consumer], groups: Sequence[str], options: KafkaGroupsOptions, said: OnProgress
) -> list[Consumer]:
    members: list[Consumer] = []
    while len(members) < options.connections:
        for number in range(len(members), min(len(members) + _AT_ONCE, options.connections)):
            members.append(new(groups[number % len(groups)]))
            crowd.add(members[-1])
        crowd.run_until(
            lambda: _are_settled(members, options.partitions), f"{len(members):,} members to get their share"
        )
        said(f"{len(members):,} of {options.connections:,} members have joined")
    return members


def _are_settled(members: Sequence[Consumer], partitions: int) -> bool:
    """Returns whether the members of each group have all its ``partitions``."""
    of_group: dict[str, int] = {}
    for member in members:
        if member.share is None:
            return False
        of_group[member.group] = of_group.get(member.group, 0) + member.count()
    return all(count == partitions for count in of_group.values())


def _at_rest(crowd: Crowd, servers: Servers, members: int, seconds: float) -> dict[str, Any]:
    crowd.run_for(seconds)  # lets the after-effects of the last joins subside
    cpu_s = [cpu_meter(instance.process.pid) for instance in servers.instances.values()]
    before, began = crowd.heartbeats, time.monotonic()
    crowd.run_for(seconds)
    took_s = time.monotonic() - began
    return {
        "members": members,
        "heartbeats_per_minute": round((crowd.heartbeats - before) * 60 / took_s / members, 1),
        "cpu_percent": [round(100 * one() / took_s, 1) for one in cpu_s],
        "memory_mib": [round(instance.memory_mib()) for instance in servers.instances.values()],
    }


def _joined_and_left(
    crowd: Crowd,
    new: Callable[[str], Consumer],
    members: Sequence[Consumer],
    groups: Sequence[str],
    options: KafkaGroupsOptions,
) -> tuple[Spread, Spread]:
    """Returns how long joins and leaves took in ms. A join ends when the new member has its share, and a leave ends
    when the other members have taken that share back."""
    joins, leaves = list[float](), list[float]()
    for number in range(options.joins):
        group = groups[number % len(groups)]
        others = [member for member in members if member.group == group]
        least = options.partitions // (len(others) + 1)
        consumer, began = new(group), time.monotonic()
        crowd.add(consumer)
        crowd.run_until(lambda one=consumer, n=least: one.count() >= n, "a newcomer to get its share")  # type: ignore[misc]
        joins.append((time.monotonic() - began) * 1000)
        crowd.run_for(_BETWEEN_JOINS_S)
        began = time.monotonic()
        crowd.remove(consumer)
        crowd.run_until(lambda of=others: _are_settled(of, options.partitions), "the others to take over its share")  # type: ignore[misc]
        leaves.append((time.monotonic() - began) * 1000)
        crowd.run_for(_BETWEEN_JOINS_S)
    return Spread.some(joins), Spread.some(leaves)


def managed_bars(row: dict[str, Any]) -> list[Bar]:
    enough, percent = row["members"] >= _BAR_MEMBERS, max(row["cpu_percent"])
    bars = [
        Bar.at_most(
            f"{_BAR_MEMBERS:,} KIP-848 members at rest, each instance",
            _BAR_PERCENT,
            percent,
            " % of a core",
            counts=enough,
        )
    ]
    for what in ("join", "leave"):
        median, most = row[f"{what}_p50_ms"], row[f"{what}_most_ms"]
        bars.append(
            Bar(
                f"{what} beside them",
                f"p50 at most {_BAR_P50_MS:g} ms, worst at most {_BAR_MOST_MS:g} ms",
                f"{median:g}, {most:g} ms",
                median <= _BAR_P50_MS and most <= _BAR_MOST_MS if enough else None,
            )
        )
    return bars
