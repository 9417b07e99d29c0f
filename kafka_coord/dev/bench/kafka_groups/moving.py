"""Kills a broker and its instance, and measures how fast thousands of groups move to another instance."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from kafka_coord.dev.bench.kafka_groups.client import RawClient, request_bytes, without_errors
from kafka_coord.dev.bench.kafka_groups.loading import wrong_offsets
from kafka_coord.dev.bench.kafka_groups.members import COMMIT, TOPIC, Member, await_coordinator, join_all
from kafka_coord.dev.bench.kafka_groups.options import KafkaGroupsOptions
from kafka_coord.dev.bench.kafka_groups.servers import Servers, groups_everywhere, started
from kafka_coord.dev.bench.report import Bar, Table
from kafka_coord.dev.bench.waiting import awaited
from kafka_coord.dev.cluster.process import OnProgress
from kafka_coord.grouplog.term import PARTITIONS
from kafka_coord.grouplog.term import TOPIC as LOG_TOPIC
from kafka_coord.wire.messages import message

_FIND, _METADATA = 4, 4
_AT_ONCE, _PARTITIONS, _OFFSET = 2_000, 10, 42
_WITHIN_S = 120.0
_BAR_GROUPS, _BAR_S = 10_000, 5.0


def measure_moving(
    directory: Path, options: KafkaGroupsOptions, on_progress: OnProgress
) -> tuple[list[Table], list[Bar]]:
    """Creates groups of one member and ten offsets on two brokers, then kills one broker and its instance."""
    on_progress("starting ZooKeeper, two brokers and their instances")
    with started(directory, brokers=2, as_in_production=options.judged) as servers:
        servers.make_topic(TOPIC, _PARTITIONS)
        groups = [f"moving-{number}" for number in range(options.groups)]
        where = coordinators(servers, groups)
        for at in range(0, len(groups), _AT_ONCE):
            _populate(groups[at : at + _AT_ONCE], where)
            on_progress(f"{min(at + _AT_ONCE, len(groups)):,} of {len(groups):,} groups have a member")
        stays, goes = servers.cluster.brokers
        address = servers.instances[stays.broker_id].address
        moved = sum(where[group] != address for group in groups)
        on_progress(f"killing broker {goes.broker_id} and its instance")
        killed = time.monotonic()
        servers.instances[goes.broker_id].process.kill()
        goes.kill()
        awaited(lambda: _led_by(stays.address, stays.broker_id) == PARTITIONS, _WITHIN_S, "other leaders")
        led_s = time.monotonic() - killed
        await_coordinator(address, groups_everywhere(), _WITHIN_S)
        served_s = time.monotonic() - killed
        row = {
            "groups": len(groups),
            "moved": moved,
            "leaders_elected_s": round(led_s, 2),
            "coordinated_s": round(served_s, 2),
            "beyond_s": round(served_s - led_s, 2),
            "wrong_offsets": wrong_offsets(address, groups, TOPIC, _PARTITIONS, _OFFSET),
        }
    on_progress(f"coordinated again {row['beyond_s']} s after the leaders were elected")
    return [Table("moving", [row])], moving_bars(row)


def coordinators(servers: Servers, groups: Sequence[str]) -> dict[str, str]:
    """Waits until every partition of the groups log has a coordinator. Maps each group to its coordinator's address."""
    where = _instances_of(servers, [*groups, *groups_everywhere()])
    for address in set(where.values()):
        await_coordinator(address, [group for group in groups_everywhere() if where[group] == address])
    return where


def _instances_of(servers: Servers, groups: Sequence[str]) -> dict[str, str]:
    """Waits until each group has an instance, and maps it to the instance's address."""
    asked = message("FindCoordinatorRequest")(coordinator_keys=tuple(groups))
    with RawClient(servers.instance.address) as client:

        def found() -> dict[str, str]:
            answer = client.ask("FindCoordinator", _FIND, asked)
            there = {one.key: f"{one.host}:{one.port}" for one in answer.coordinators if not one.error_code}
            return there if len(there) == len(set(groups)) else {}

        return awaited(found, _WITHIN_S, "a coordinator for every group", every_s=0.5)


def _populate(groups: Sequence[str], where: dict[str, str]) -> None:
    """Adds a member to each group, commits offsets, and closes the connections."""
    with ExitStack() as running:
        members = [Member(running.enter_context(RawClient(where[group])), group) for group in groups]
        join_all(members)
        for member in members:
            member.client.send(request_bytes("OffsetCommit", COMMIT, member.commit(_PARTITIONS, _OFFSET)))
        for member in members:
            without_errors(member.client.answer("OffsetCommit", COMMIT), "OffsetCommit")


def _led_by(address: str, broker_id: int) -> int:
    """Returns how many partitions of the groups log ``broker_id`` leads, according to the broker at ``address``."""
    form = message("MetadataRequest")
    with RawClient(address) as client:
        named = form.struct("MetadataRequestTopic")(name=LOG_TOPIC)
        answer = client.ask("Metadata", _METADATA, form(topics=(named,), allow_auto_topic_creation=False))
    return sum(part.leader_id == broker_id for part in answer.topics[0].partitions)


def moving_bars(row: dict[str, float]) -> list[Bar]:
    name, enough = f"{_BAR_GROUPS:,} groups move after leaders are elected", row["groups"] >= _BAR_GROUPS
    return [
        Bar.at_most(name, _BAR_S, row["beyond_s"], " s", counts=enough),
        Bar.at_most("offsets that differ from the committed ones", 0, row["wrong_offsets"]),
    ]
