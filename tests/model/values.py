"""Hypothesis strategies for every value that is written to ZooKeeper."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import structs

from kafka_coord.model import (
    Assignment,
    Cause,
    CommittedOffset,
    CoordinatorInfo,
    Decision,
    GroupKind,
    GroupSettings,
    Ledger,
    Member,
    Mode,
    PartitionSet,
    Pause,
    Request,
    RequestType,
    StartFetcher,
    StartPoint,
    StopFetcher,
    Subscription,
    SubscriptionKind,
    TopicPartition,
)

names = st.from_regex(r"[a-zA-Z0-9._-]{1,12}", fullmatch=True).filter(lambda name: name not in {".", ".."})
numbers = st.integers(0, 40) | st.integers(0, (1 << 31) - 1)
longs = st.integers(0, (1 << 63) - 1)
words = st.text(st.characters(codec="utf-8"), max_size=20)
optional_words = st.none() | words
partition_sets = st.builds(PartitionSet, st.dictionaries(names, st.sets(numbers, max_size=8), max_size=4))
small_sets = st.builds(PartitionSet, st.dictionaries(names, st.sets(st.integers(0, 30), max_size=8), max_size=4))
counts = st.integers(1, 1000)

subscriptions = st.one_of(
    st.builds(Subscription.to, st.dictionaries(names, counts, max_size=4)),
    st.builds(
        Subscription.matching,
        st.sampled_from(["fl.*", "a|b", "(x|y)+", "[a-z]+\\.log", "", "é"]),
        exclude=st.booleans(),
        streams=counts,
    ),
)
members = st.builds(
    Member,
    consumer=names,
    incarnation=longs,
    subscription=subscriptions,
    assignor=optional_words,
    capacity=st.integers(1, (1 << 63) - 1),
    rack=optional_words,
    mode=st.sampled_from(Mode),
    session_timeout_ms=st.integers(0, 10**9),
    rejoin_grace_ms=st.integers(0, 7 * 24 * 3600 * 1000),
    host=optional_words,
    client=optional_words,
    timestamp=words,
)


@st.composite
def streams(draw: st.DrawFn, partitions: PartitionSet) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    return draw(st.dictionaries(st.sampled_from(list(partitions)), st.integers(1, 999)))


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    owned = draw(small_sets)
    stopping = draw(small_sets) - owned
    consumer, incarnation = draw(names), draw(longs)
    place = draw(st.none() | members)
    held = owned | stopping
    return Ledger(
        consumer=consumer,
        incarnation=incarnation,
        owned=owned,
        stopping=stopping,
        generation=draw(longs),
        streams=draw(streams(held)),
        place=None if place is None else _renamed(place, consumer, incarnation),
        topic_ids={topic: draw(words) for topic in held.topics if draw(st.booleans())},
        session_timeout_ms=draw(st.integers(0, 300_000)),
        znode_version=draw(st.integers(0, 1 << 31)),
    )


def _renamed(member: Member, consumer: str, incarnation: int) -> Member:
    return structs.replace(member, consumer=consumer, incarnation=incarnation)


@st.composite
def assignments(draw: st.DrawFn) -> Assignment:
    consumers = draw(st.lists(names, unique=True, max_size=4))
    left = draw(small_sets)
    shares: dict[str, list[TopicPartition]] = {consumer: [] for consumer in consumers}
    for partition in left:
        if consumers:
            shares[draw(st.sampled_from(consumers))].append(partition)
    owned = {consumer: PartitionSet.of(found) for consumer, found in shares.items()}
    chosen = {consumer: draw(streams(found)) for consumer, found in owned.items()}
    return Assignment(
        generation=draw(longs),
        epoch=draw(longs),
        inputs=draw(words),
        assignor=draw(words),
        reason=draw(words),
        members=owned,
        streams={consumer: found for consumer, found in chosen.items() if found},
        timestamp_ms=draw(longs),
        znode_version=draw(st.integers(0, 1 << 31)),
    )


stops = st.builds(StopFetcher, longs, longs, longs, partition_sets, words)
starts = st.builds(
    StartFetcher,
    longs,
    longs,
    longs,
    st.dictionaries(
        st.builds(TopicPartition, names, numbers),
        st.builds(StartPoint, st.integers(-1, (1 << 63) - 1), st.integers(0, 999)),
        max_size=8,
    ),
    words,
    st.sampled_from(["", "sticky"]),
)
group_settings = st.builds(
    GroupSettings, assignor=optional_words, rebalance_timeout_ms=st.integers(1, 10**12), offsets_retention_ms=longs
)
committed_offsets = st.builds(
    CommittedOffset,
    offset=longs,
    leader_epoch=st.integers(-1, (1 << 31) - 1),
    metadata=words,
    committed_at_ms=st.just(0),
    topic_id=st.just(""),
    expires_at_ms=st.just(-1),
)
pauses = st.builds(Pause, by=words, reason=words, since_ms=longs)
requests = st.builds(
    Request,
    type=st.sampled_from(RequestType),
    group=names,
    consumer=names,
    reason=words,
    by=words,
    timestamp_ms=longs,
    offsets=st.dictionaries(st.builds(TopicPartition, names, numbers), longs, max_size=5),
    partitions=partition_sets,
    to=st.sampled_from(GroupKind),
    unchanged_since=longs,
    result=words,
    message=words,
    action=words,
    change=words,
    request_id=names,
)
coordinators = st.builds(
    CoordinatorInfo,
    broker_id=st.integers(-1, 1 << 31),
    epoch=longs,
    timestamp=words,
    endpoints=st.dictionaries(words, words, max_size=2),
)
decisions = st.builds(
    Decision,
    generation=longs,
    epoch=longs,
    reason=words,
    assignor=words,
    decided_at_ms=longs,
    members=longs,
    partitions=longs,
    moved=longs,
    started=longs,
    stopped=longs,
    stopped_ms=st.none() | longs,
    settled_ms=st.none() | longs,
    moves=st.dictionaries(names, st.dictionaries(st.sampled_from(["gained", "lost"]), words), max_size=2),
    causes=st.lists(st.sampled_from(Cause), unique=True, max_size=3).map(tuple),
)

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["0-3,7", "0-2147483647", "9-1", "static", "white_list", "(", "eager", "stop-fetcher", "1,1,1", "é"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | names, inner, max_size=3),
    max_leaves=8,
)
KINDS = tuple(SubscriptionKind)
