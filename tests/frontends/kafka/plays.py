"""The requests that both coordinators receive: every version of each, in every group state in which it can arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from kafka_coord.wire.messages import message
from tests.frontends.kafka.side_by_side import Play, Side

STRANGER = SimpleNamespace(member_id="stranger", generation_id=3, members=(), protocol_name="range", leader="")

# --- groups in each of their states ----------------------------------------------------------------------------------


async def no_group(_side: Side) -> Any:
    return STRANGER


async def empty(side: Side) -> Any:
    (joined,) = await side.stable("m1")
    await side.leave(joined, quiet=True)
    return joined


async def simple(side: Side) -> Any:
    """The group has only offsets: a consumer that assigns its own partitions has committed."""
    await side.commit(quiet=True)
    return STRANGER


async def awaiting_sync(side: Side) -> Any:
    return await side.join("m1", quiet=True)


async def stable(side: Side) -> Any:
    return (await side.stable("m1"))[0]


async def stable_of_two(side: Side) -> Any:
    return (await side.stable("m1", "m2"))[0]


async def follower(side: Side) -> Any:
    return (await side.stable("m1", "m2"))[1]


async def preparing(side: Side) -> Any:
    """A second member is joining, and the first has not noticed yet."""
    (joined,) = await side.stable("m1")
    pending = await side.ask("JoinGroup", 4, quiet=True, **_join_fields(side))
    side.name(pending.member_id, "m2")
    join = side.ask("JoinGroup", 4, quiet=True, **_join_fields(side, member_id=pending.member_id))
    side.held.append(asyncio.create_task(join))
    for _ in range(500):
        if (await side.ask("DescribeGroups", 4, quiet=True, groups=(side.group,))).groups[0].group_state != "Stable":
            break
        await asyncio.sleep(0.01)
    return joined


async def static(side: Side) -> Any:
    joined = await side.join("s1", quiet=True, group_instance_id="i1")
    await side.sync(joined, quiet=True, group_instance_id="i1")
    return joined


def _join_fields(side: Side, **fields: Any) -> dict[str, Any]:
    return {
        "group_id": side.group, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 2_000,
        "protocol_type": "consumer", "protocols": side.protocols("range"), "member_id": "",
    } | fields  # fmt: skip


STATES = (no_group, empty, simple, awaiting_sync, stable, stable_of_two, follower, preparing, static)

# --- requests --------------------------------------------------------------------------------------------------------


def _of(joined: Any, **changed: Any) -> Any:
    fields = ("member_id", "generation_id", "members", "protocol_name")
    return SimpleNamespace(**{name: getattr(joined, name) for name in fields} | changed)


async def heartbeats(side: Side, joined: Any) -> None:
    for version in range(5):
        await side.heartbeat(joined, version)
    await side.heartbeat(_of(joined, generation_id=joined.generation_id + 1))
    await side.heartbeat(_of(joined, member_id="stranger"))
    await side.heartbeat(_of(joined, member_id=""))
    await side.heartbeat(joined, group_instance_id="i1")
    await side.heartbeat(joined, group_instance_id="nobody")
    await side.heartbeat(joined, group_id="")


async def commits(side: Side, joined: Any) -> None:
    for version in range(2, 10):
        await side.commit(joined, version, offset=version)
    await side.commit(_of(joined, generation_id=joined.generation_id + 1))
    await side.commit(_of(joined, generation_id=0))
    await side.commit(_of(joined, member_id="stranger"))
    await side.commit(_of(joined, member_id=""))
    await side.commit(joined, group_instance_id="nobody")
    await side.commit(None, offset=77)
    await side.commit(joined, metadata="m" * 4096)
    await side.commit(joined, metadata="m" * 4097)
    await side.commit(joined, partition=99)
    await side.commit(joined, topic="no-such-topic")
    await side.offsets()


async def fetches(side: Side, joined: Any) -> None:
    await side.commit(joined, offset=9, metadata="here", quiet=True)
    for version in range(1, 10):
        await side.offsets(version)
        if version >= 2:
            await side.offsets(version, partitions=None)
    await side.offsets(7, require_stable=True)


async def looks(side: Side, _joined: Any) -> None:
    for version in range(6):
        await side.describe(version)


async def leaves(side: Side, joined: Any) -> None:
    await side.leave(_of(joined, member_id="stranger"), 1)
    await side.leave(_of(joined, member_id="stranger"), 4)
    await side.leave(_of(joined, member_id=""), 3, instance="nobody")
    await side.leave(_of(joined, member_id="stranger"), 3, instance="i1")
    await side.leave(joined, 2, group_id="")
    await side.leave(joined, 5)
    await side.leave(joined, 5)
    await side.describe()


async def leaves_of_old(side: Side, joined: Any) -> None:
    for version in (0, 1, 2):
        await side.leave(joined, version)


async def syncs(side: Side, joined: Any) -> None:
    await side.sync(_of(joined, generation_id=joined.generation_id + 1))
    await side.sync(_of(joined, member_id="stranger"))
    await side.sync(joined, group_instance_id="nobody")
    await side.sync(joined, 5, protocol_name="roundrobin")
    await side.sync(joined, 5, protocol_type="connect")
    await side.sync(joined, group_id="")
    if joined.member_id == getattr(joined, "leader", None):
        for version in range(6):
            await side.sync(joined, version)


async def joins(side: Side, joined: Any) -> None:
    await side.join("x", session_timeout_ms=1)
    await side.join("x", session_timeout_ms=10_000_000)
    await side.join("x", group_id="")
    await side.join("x", member_id="stranger")
    await side.join("x", protocol_type="connect")
    await side.join("x", protocols=side.protocols("other"))
    await side.join("x", protocols=())
    await side.join("x", protocol_type="")
    await side.join("x", member_id=joined.member_id, group_instance_id="nobody")


async def deletes(side: Side, joined: Any) -> None:
    form = message("OffsetDeleteRequest")
    parts = tuple(form.struct("OffsetDeleteRequestPartition")(partition_index=p) for p in (0, 1))
    for name in (side.topic, "groups", "no-such-topic"):
        topic = form.struct("OffsetDeleteRequestTopic")(name=name, partitions=parts)
        await side.ask("OffsetDelete", 0, group_id=side.group, topics=(topic,))
    await side.offsets()
    for version in range(3):
        await side.ask("DeleteGroups", version, groups_names=(side.group,))
    await side.describe()


QUESTIONS = (heartbeats, commits, fetches, looks, leaves, leaves_of_old, syncs, joins, deletes)


def matrix() -> Iterator[tuple[str, Play]]:
    """Every request in every state."""

    async def play(state: Any, question: Any, side: Side) -> None:
        joined = await state(side)
        await question(side, joined)

    for state in STATES:
        for question in QUESTIONS:
            yield f"{state.__name__}-{question.__name__}", partial(play, state, question)
