"""The requests for groups with KIP-848 members, in each state of the group, and the same requests for other groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from kafka_coord.wire.consumer_protocol import encoded_assignment, encoded_subscription
from kafka_coord.wire.messages import message
from tests.frontends.kafka.consumer_group_side import Beating, ConsumerGroupSide
from tests.frontends.kafka.side_by_side import Play

Side = ConsumerGroupSide
OTHER = "-other"
"""The suffix of the name of a second topic, which has one partition."""
_NO_SUCH_ID = bytes(15) + b"\x07"
_JOINS = 20

# --- groups in each of their states ----------------------------------------------------------------------------------


async def nobody(_side: Side) -> Beating:
    return Beating("stranger", 3)


async def member(side: Side) -> Beating:
    return await side.member("m1")


async def two_members(side: Side) -> Beating:
    first = await side.member("m1")
    await side.settle(first, await side.begin("m2"))
    return first


async def static(side: Side) -> Beating:
    return await side.member("s1", instance_id="i1")


async def away(side: Side) -> Beating:
    """A static member has left temporarily."""
    who = await side.member("s1", instance_id="i1")
    await side.commit(who, 9)
    before = replace(who)
    await side.beat(who, member_epoch=-2, instance_id="i1")
    return before


async def left(side: Side) -> Beating:
    """The group's only member has committed and left."""
    who = await side.member("m1")
    await side.commit(who, 9)
    return await side.ended(who, member_epoch=-1)


async def offsets_only(side: Side) -> Beating:
    await side.commit()
    return Beating("stranger", 3)


async def classic(side: Side) -> Beating:
    joined = await side.join("c1", quiet=True)
    given = message("SyncGroupRequest").struct("SyncGroupRequestAssignment")
    await side.sync(joined, assignments=(given(member_id=joined.member_id, assignment=encoded_assignment(())),))
    return Beating(joined.member_id, joined.generation_id)


async def classic_left(side: Side) -> Beating:
    (joined,) = await side.stable("c1")
    await side.commit(joined)
    await side.leave(joined)
    return Beating("stranger", 3)


# --- requests --------------------------------------------------------------------------------------------------------


async def beats(side: Side, one: Beating) -> None:
    """Heartbeats that change nothing."""
    owned = side.partitions(one.owned)
    foreign = side.partitions(frozenset({(_NO_SUCH_ID, 0)}))
    names = {"subscribed_topic_names": (side.topic,)}
    for version in (0, 1):
        await side.beat(replace(one), f"version {version}", version)
    await side.beat(replace(one), "partitions", topic_partitions=owned)
    await side.beat(replace(one), "partitions and topics", topic_partitions=owned, **names)
    await side.beat(replace(one), "all fields", **side.whole(topic_partitions=owned))
    await side.beat(replace(one), "the same topics", **names)
    await side.beat(replace(one), "the same assignor", server_assignor="uniform")
    await side.beat(replace(one), "an unknown assignor", server_assignor="fastest")
    await side.beat(replace(one), "a rack", rack_id="r1")
    await side.beat(replace(one, epoch=one.epoch + 1), "a later epoch")
    await side.beat(replace(one, epoch=one.epoch + 1), "a later epoch, partitions", topic_partitions=owned)
    await side.beat(replace(one, epoch=one.epoch + 90), "a much later epoch")
    await side.beat(replace(one, member_id="nobody"), "an unknown member")
    await side.beat(replace(one), "no member id", member_id="")
    await side.beat(replace(one), "no group id", group_id="")
    await side.beat(replace(one), "an epoch below -2", member_epoch=-3)
    await side.beat(replace(one), "an empty instance id", instance_id="")
    await side.beat(replace(one), "an empty rack", rack_id="")
    await side.beat(replace(one), "its instance id", instance_id="i1")
    await side.beat(replace(one), "another's instance id", instance_id="i9")
    await side.beat(replace(one, member_id="nobody"), "an unknown member with its instance id", instance_id="i1")
    await side.beat(replace(one), "fewer partitions", topic_partitions=owned[:0])
    await side.beat(replace(one), "partitions of an unknown topic", topic_partitions=foreign)
    await side.beat(replace(one), "partitions again", topic_partitions=owned)


async def old_beats(side: Side, one: Beating) -> None:
    """Heartbeats with the epoch that was valid before a second member joined."""
    before = replace(one)
    second = await side.begin("m2")
    await side.settle(one, second)
    owned, lost = side.partitions(one.owned), side.partitions(before.owned)
    await side.beat(replace(before), "without partitions")
    await side.beat(replace(before), "partitions that it has", topic_partitions=owned)
    await side.beat(replace(before), "partitions that it lost", topic_partitions=lost)
    await side.commit(before, 9, case="commit")
    await side.offsets(9, member=before, case="fetch")


async def refused_joins(side: Side, _one: Beating) -> None:
    new = Beating("new")

    async def ask(case: str, version: int = 1, **fields: Any) -> None:
        await side.beat(replace(new), case, version, **side.whole(**fields))

    await ask("no topics", subscribed_topic_names=None)
    await ask("no topics and an empty regular expression", subscribed_topic_names=None, subscribed_topic_regex="")
    await ask("no rebalance timeout", rebalance_timeout_ms=-1)
    await ask("partitions not given", topic_partitions=None)
    await ask("partitions", topic_partitions=side.partitions(frozenset({(side.ids[side.topic], 0)})))
    await ask("no group id", group_id="")
    await ask("no member id", member_id="")
    await ask("an empty instance id", instance_id="")
    await ask("an empty rack", rack_id="")
    await ask("an unknown assignor", server_assignor="fastest")
    await ask("an empty assignor", server_assignor="")
    await ask("a regular expression that is none", subscribed_topic_names=None, subscribed_topic_regex="(")
    await ask("a back reference", subscribed_topic_names=None, subscribed_topic_regex="(a)\\1")
    await ask("topics and a regular expression that is none", subscribed_topic_regex="[")


async def joins(how: dict[str, Any], version: int, side: Side, _one: Beating) -> None:
    """A member joins. ``how`` has the fields of its heartbeat."""
    fields = {name: value(side) if callable(value) else value for name, value in how.items()}
    count = fields.pop("count", 2)
    who = await side.begin(fields.pop("member_id", "new"), "joins", version=version, **fields)
    if who.epoch > 0:
        await side.settle(who, count=count)
        await side.look("described")


def _topics(*suffixes: str) -> Callable[[Side], tuple[str, ...]]:
    return lambda side: tuple(side.topic + suffix for suffix in suffixes)


_EVERY: Callable[[Side], str] = lambda side: side.topic + ".*"  # noqa: E731
WAYS_TO_JOIN: dict[str, tuple[dict[str, Any], int]] = {
    "version 0": ({}, 0),
    "version 0, no member id": ({"member_id": ""}, 0),
    "version 1": ({}, 1),
    "two topics": ({"subscribed_topic_names": _topics("", OTHER), "count": 3}, 1),
    "an unknown topic": ({"subscribed_topic_names": _topics("-missing"), "count": 0}, 1),
    "no topic": ({"subscribed_topic_names": (), "count": 0}, 1),
    "an illegal topic name": ({"subscribed_topic_names": ("a b",), "count": 0}, 1),
    "a regular expression": ({"subscribed_topic_names": None, "subscribed_topic_regex": _EVERY, "count": 3}, 1),
    "names and a regular expression": ({"subscribed_topic_regex": _EVERY, "count": 3}, 1),
    "a regular expression without a match": (
        {"subscribed_topic_names": None, "subscribed_topic_regex": "nothing-.*", "count": 0},
        1,
    ),
    "uniform": ({"server_assignor": "uniform"}, 1),
    "range": ({"server_assignor": "range"}, 1),
    "a rack": ({"rack_id": "r1"}, 1),
    "an instance id": ({"instance_id": "i5"}, 1),
}


async def second_joins(side: Side, one: Beating) -> None:
    second = await side.begin("m2", "joins")
    await side.beat(one, "the first is told", at_once=False)
    await side.settle(one, second)
    await side.look("described")


async def first_joins(side: Side, _one: Beating) -> None:
    """A member joins a group that has none."""
    await side.settle(await side.begin("m2", "joins"))
    await side.look("described")
    await side.offsets(9, case="offsets")


async def joins_beside(side: Side, _one: Beating) -> None:
    """A member joins a group that has a temporarily absent member, or one of the other protocol."""
    await side.begin("m2", "joins")


async def joins_again(side: Side, one: Beating) -> None:
    """A member joins again, with epoch 0 and its own member id."""
    await side.beat(one, "joins", **side.whole(instance_id=one.instance_id))
    await side.settle(one)
    await side.look("described")


async def lost_answer(side: Side, _one: Beating) -> None:
    """A client repeats its first request, as if it had lost the answer."""
    who = await side.begin("new")
    for _ in range(_JOINS):  # a busy instance tells what a member reads only after the longest time of an answer
        if not who.owned:
            who = await side.begin("new")
    await side.beat(replace(who, epoch=0), "repeated", **side.whole())


async def leaves(side: Side, one: Beating) -> None:
    instance = {"instance_id": one.instance_id}
    await side.beat(replace(one), "-2 without an instance id", member_epoch=-2)
    await side.beat(replace(one), "-1 without a member id", member_epoch=-1, member_id="")
    await side.beat(replace(one, member_id="nobody"), "-1 of an unknown member", member_epoch=-1)
    await side.beat(replace(one, member_id="nobody"), "-2 of an unknown member", member_epoch=-2, instance_id="i1")
    await side.beat(replace(one, member_id="nobody"), "-2, an unknown instance", member_epoch=-2, instance_id="i9")
    await side.beat(replace(one), "-1", member_epoch=-1, **instance)
    await side.beat(replace(one), "-1 again", member_epoch=-1, **instance)
    await side.beat(replace(one), "a heartbeat after it", **instance)


async def static_leaves_for_now(side: Side, one: Beating) -> None:
    await side.beat(replace(one), "-2", member_epoch=-2, instance_id="i1")
    await side.look("described")
    await side.beat(replace(one), "-2 again", member_epoch=-2, instance_id="i1")
    await side.beat(replace(one), "a heartbeat after it", instance_id="i1")
    await side.commit(one, 9, group_instance_id="i1", case="a commit after it")


async def static_returns(side: Side, one: Beating) -> None:
    """A new process has the instance id of a member that left temporarily."""
    new = await side.begin("s2", "joins", instance_id="i1")
    await side.settle(new)
    await side.look("described")
    await side.beat(replace(one), "the old one's heartbeat")
    await side.beat(replace(one), "the old one's heartbeat with its instance id", instance_id="i1")
    await side.beat(replace(one), "the old one leaves", member_epoch=-1, instance_id="i1")
    await side.commit(one, 9, case="the old one's commit")
    await side.commit(one, 9, group_instance_id="i1", case="the old one's commit with its instance id")
    await side.commit(new, 9, group_instance_id="i1", case="the new one's commit")


async def instance_is_taken(side: Side, one: Beating) -> None:
    """A new process has the instance id of a member that is still in the group."""
    await side.begin("s2", "joins", instance_id="i1")
    await side.beat(replace(one), "the first's heartbeat")
    await side.beat(replace(one, member_id="s2"), "the second's heartbeat", instance_id="i1")
    await side.begin("s2", "joins in version 0", version=0, instance_id="i1")
    await side.look("described")


async def subscribes(how: dict[str, Any], side: Side, one: Beating) -> None:
    fields = {name: value(side) if callable(value) else value for name, value in how.items()}
    count, refused = fields.pop("count", 2), fields.pop("refused", False)
    owned = side.partitions(one.owned)
    changed = replace(one)
    fields |= {"topic_partitions": owned, "rebalance_timeout_ms": 60_000}
    answer = await side.beat(changed, "changes", at_once=False, **fields)
    if not answer.error_code:
        await side.settle(changed, count=count)
    assert bool(answer.error_code) == refused, answer
    await side.look("described")


CHANGES: dict[str, dict[str, Any]] = {
    "more topics": {"subscribed_topic_names": _topics("", OTHER), "count": 3},
    "another topic": {"subscribed_topic_names": _topics(OTHER), "count": 1},
    "no topics": {"subscribed_topic_names": (), "count": 0},
    "a regular expression as well": {"subscribed_topic_regex": _EVERY, "count": 3},
    "a regular expression instead": {"subscribed_topic_names": (), "subscribed_topic_regex": _EVERY, "count": 3},
    "an empty regular expression": {"subscribed_topic_regex": ""},
    "a broken regular expression": {"subscribed_topic_regex": "(", "refused": True},
    "another assignor": {"server_assignor": "range"},
}


async def commits(side: Side, one: Beating) -> None:
    for version in range(2, 10):
        await side.commit(one, version, offset=version, case=f"version {version}")
    await side.commit(replace(one, epoch=one.epoch + 1), 9, case="a later epoch")
    await side.commit(replace(one, epoch=0), 9, case="epoch 0")
    await side.commit(replace(one, epoch=-1), 9, case="epoch -1")
    await side.commit(replace(one, member_id="nobody"), 9, case="an unknown member")
    await side.commit(replace(one, member_id=""), 9, case="no member id")
    await side.commit(one, 9, group_instance_id="i1", case="an instance id")
    await side.commit(one, 9, group_instance_id="i9", case="another's instance id")
    await side.commit(None, 9, offset=77, case="of a tool")
    await side.commit(None, 2, offset=78, case="of a tool, version 2")
    await side.commit(one, 9, metadata="m" * 4096, case="metadata")
    await side.commit(one, 9, metadata="m" * 4097, case="too much metadata")
    await side.commit(one, 9, partition=99, case="an unknown partition")
    await side.commit(one, 9, topic="no-such-topic", case="an unknown topic")
    await side.commit(one, 9, partitions=(0, 0), case="a partition twice")
    await side.commit(one, 9, partitions=(), case="a topic without partitions")
    await side.commit(one, 9, partitions=(), topic="no-such-topic", case="an unknown topic without partitions")
    await side.commit(one, 9, topic=side.topic + OTHER, case="a topic that it has not subscribed to")
    await side.offsets(9, case="stored")


async def fetches(side: Side, one: Beating) -> None:
    await side.commit(one, 9, offset=9)
    for version in range(1, 10):
        await side.offsets(version, case=f"version {version}")
    await side.offsets(9, None, case="all")
    await side.offsets(9, require_stable=True, case="stable")
    await side.offsets(9, member=one, case="of the member")
    await side.offsets(9, None, member=one, case="all, of the member")
    await side.offsets(9, member=replace(one, epoch=one.epoch + 1), case="a later epoch")
    await side.offsets(9, member=replace(one, epoch=0), case="epoch 0")
    await side.offsets(9, member=replace(one, epoch=-1), case="epoch -1")
    await side.offsets(9, member=replace(one, member_id="nobody"), case="an unknown member")
    await side.offsets(9, member=replace(one, member_id=""), case="no member id")
    await side.offsets(9, topic="no-such-topic", case="an unknown topic")
    await side.offsets(9, (0, 1, 0), case="a partition twice")
    await side.offsets(9, (), case="a topic without partitions")
    await side.offsets(9, (), topic="no-such-topic", case="an unknown topic without partitions")
    await side.offsets(7, (0, 1, 0), case="a partition twice, version 7")


async def looks(side: Side, _one: Beating) -> None:
    for version in (0, 1):
        await side.look(f"as a group of KIP-848, version {version}", version)
    for version in range(6):
        await side.ask("DescribeGroups", version, case=f"as a classic group, version {version}", groups=(side.group,))
        await side.listed(f"listed, version {version}", version)
    await side.listed("listed as consumer", types_filter=("consumer",))
    await side.listed("listed as CONSUMER", types_filter=("CONSUMER",))
    await side.listed("listed as classic", types_filter=("classic",))
    await side.listed("listed as stable", states_filter=("Stable",))
    await side.listed("listed as stable in small letters", states_filter=("stable",))
    await side.listed("listed as empty", states_filter=("Empty",))
    await side.ask("ConsumerGroupDescribe", 1, case="no groups", group_ids=())
    await side.ask("ConsumerGroupDescribe", 1, case="an empty group id", group_ids=("",))


async def deletes(side: Side, _one: Beating) -> None:
    form = message("OffsetDeleteRequest")
    parts = tuple(form.struct("OffsetDeleteRequestPartition")(partition_index=number) for number in (0, 9))
    for name in ("", OTHER, "-missing"):
        topic = form.struct("OffsetDeleteRequestTopic")(name=side.topic + name, partitions=parts)
        await side.ask("OffsetDelete", 0, case=f"offsets of TOPIC{name}", group_id=side.group, topics=(topic,))
    await side.offsets(9, case="stored")
    for version in range(3):
        case = f"the group, version {version}"
        await side.ask("DeleteGroups", version, case=case, groups_names=(side.group,))
    await side.look("described")


async def classic_requests(side: Side, one: Beating) -> None:
    await side.heartbeat(one, 4, case="a heartbeat")
    await side.sync(one, 5, protocol_name="range", case="a sync")
    leaving = {"case": "a tool removes nobody", "instance": "i9"}
    await side.leave(Beating(""), 5, **leaving)
    await side.leave(Beating("nobody"), 5, case="a tool removes an unknown member")
    await side.leave(Beating(""), 5, instance="i1", case="a tool removes an instance")
    await side.leave(one, 5, case="a tool removes a member")
    await side.leave(one, 2, case="a leave of old")
    await side.heartbeat(one, 4, case="a heartbeat after it")


async def classic_joins(side: Side, one: Beating) -> None:
    """A client of the classic protocol joins."""
    given = {
        "group_id": side.group, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": "",
        "protocol_type": "consumer", "protocols": side.protocols("range", metadata=encoded_subscription(side.topic)),
    }  # fmt: skip
    await side.ask("JoinGroup", 4, case="joins without an id", **given)
    joining = asyncio.create_task(side.ask("JoinGroup", 3, case="joins", at_once=False, **given))
    while not joining.done():  # a member gives up the partitions that the new one gets
        await side.beat(one, topic_partitions=side.partitions(one.owned))
        await asyncio.sleep(0.02)
    joined = await joining
    who = Beating(side.name(joined.member_id, "c2"), joined.generation_id)
    await side.ask("JoinGroup", 3, case="joins as connect", **{**given, "protocol_type": "connect"})
    (group,) = (await side.look()).groups
    side.answers["types of members"] = {side.names[one.member_id]: str(one.member_type) for one in group.members}
    await side.heartbeat(replace(who, epoch=who.epoch + 9), 4, case="a later generation")
    await side.sync(replace(who, epoch=who.epoch + 9), 5, protocol_name="range", case="a sync of a later generation")
    await side.sync(who, 5, protocol_name="roundrobin", case="a sync for another assignor")
    await side.sync(who, 5, protocol_type="connect", protocol_name="range", case="a sync as connect")
    await side.leave(who, 5, case="leaves")
    await side.leave(who, 5, case="leaves again")
    await side.heartbeat(who, 4, case="a heartbeat after it")


# --- which requests are sent in which state --------------------------------------------------------------------------

State = Callable[[Side], Any]
EVERYWHERE: tuple[State, ...] = (nobody, member, two_members, static, away, left, offsets_only, classic, classic_left)
ASKED: tuple[tuple[Callable[[Side, Beating], Any], tuple[State, ...]], ...] = (
    (beats, EVERYWHERE),
    (old_beats, (member,)),
    (refused_joins, (nobody, member, classic)),
    (second_joins, (member, static)),
    (first_joins, (left, offsets_only, classic_left)),
    (joins_beside, (away, classic)),
    (joins_again, (member, static)),
    (lost_answer, (nobody,)),
    (leaves, EVERYWHERE),
    (static_leaves_for_now, (static,)),
    (static_returns, (away,)),
    (instance_is_taken, (static,)),
    (commits, EVERYWHERE),
    (fetches, EVERYWHERE),
    (looks, EVERYWHERE),
    (deletes, EVERYWHERE),
    (classic_requests, (nobody, member, static, away, left)),
    (classic_joins, (member, left)),
)


def matrix() -> Iterator[tuple[str, Play]]:
    async def play(state: State, question: Callable[[Side, Beating], Any], side: Any) -> None:
        await question(side, await state(side))

    for question, states in ASKED:
        for state in states:
            yield f"{state.__name__}-{question.__name__}", partial(play, state, question)
    for name, (how, version) in WAYS_TO_JOIN.items():
        yield f"joins-{name}", partial(play, nobody, partial(joins, how, version))
    for name, how in CHANGES.items():
        yield f"subscribes-{name}", partial(play, member, partial(subscribes, how))
