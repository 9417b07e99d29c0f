"""The comparison with Kafka's own groups: its contenders, its bars, and a small run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kafka_coord.dev.bench.rebalance import compare
from kafka_coord.dev.bench.rebalance.compare import Found, bars, tables
from kafka_coord.dev.bench.rebalance.contenders import (
    CONTENDERS,
    DEFAULTS,
    EACH_SECOND,
    FASTEST,
    JAVA,
    LIBRARIES,
    MANAGED,
    MANAGED_JAVA,
    OURS,
    PEERS,
    Contender,
    Protocol,
    Server,
    contenders,
)
from kafka_coord.dev.bench.rebalance.figures import Cost, Event, Owners, balanced
from kafka_coord.dev.bench.rebalance.newer_client import newer_client
from kafka_coord.errors import DevClusterError, SettingsError
from kafka_coord.model import TopicPartition
from tests.cli.running import run

VARIANTS = (DEFAULTS, EACH_SECOND, FASTEST)


def costs(settle_ms: float, gap_ms: float, needless: int = 0) -> Mapping[Event, Sequence[Cost]]:
    one = Cost(Event.JOIN, settle_ms, (gap_ms,) * 80, 80, 0, needless, 0)
    return {event: [one] if event in {Event.JOIN, Event.LEAVE} else [] for event in Event}


def owned(*counts: int) -> Owners:
    owners = [f"c{number}" for number, count in enumerate(counts) for _ in range(count)]
    return {TopicPartition("flights", number): owner for number, owner in enumerate(owners)}


def test_each_contender_is_compared_once_and_those_of_one_broker_are_adjacent():
    found = contenders(PEERS, VARIANTS)
    assert sorted(one.name for one in found) == sorted([OURS.name, *(c.name for p in PEERS for c in CONTENDERS[p])])
    brokers = [(one.server, sorted(one.broker.items())) for one in found]
    changes = sum(1 for one, other in pairwise(brokers) if one != other)
    assert changes == len({str(one) for one in brokers}) - 1
    assert contenders((), VARIANTS) == [OURS]
    assert [one.variant for one in contenders([Protocol.KIP848], [FASTEST])] == [DEFAULTS, FASTEST], "ours always"
    assert all((one.server is Server.KRAFT) == (one.protocol is Protocol.KIP848) for one in found)
    assert {one.variant for one in found if one.server is Server.INSTANCE} == {DEFAULTS}


def test_kafkas_own_client_is_compared_on_the_same_servers_only_if_requested():
    found = contenders([Protocol.MANAGED, Protocol.KIP848, *JAVA], [FASTEST])
    by_server = {server: {str(one.protocol) for one in found if one.server is server} for server in Server}
    assert by_server[Server.INSTANCE] == {"managed", *map(str, MANAGED_JAVA)}
    assert by_server[Server.KRAFT] == {"kip848", "kip848-java"}
    assert not {str(one.protocol) for one in contenders(PEERS, VARIANTS)} & {str(one) for one in JAVA}


def test_other_libraries_are_compared_at_a_broker_and_in_both_kinds_of_groups_of_an_instance():
    found = contenders(list(LIBRARIES), [FASTEST])
    by_server = {server: {str(one.protocol) for one in found if one.server is server} for server in Server}
    names = {"aiokafka", "kafka-python"}
    assert by_server[Server.ZOOKEEPER] == names | {str(OURS.protocol)}
    assert by_server[Server.INSTANCE] == {f"{kind}-{name}" for kind in ("client-assigned", "managed") for name in names}
    assert {str(one.protocol) for one in found if one.protocol in MANAGED} == {f"managed-{name}" for name in names}


@pytest.mark.parametrize(
    ("members", "counts", "is_balanced"),
    [
        (3, (4, 3, 3), True),
        (3, (4, 4, 2), False),
        (3, (5, 5), False),
        (3, (3, 3, 3), False),
        (2, (5, 5), True),
        (12, (1,) * 10, True),
        (0, (), True),
        (0, (10,), False),
    ],
)
def test_a_group_has_settled_when_all_is_fetched_evenly(members: int, counts: tuple[int, ...], is_balanced: bool):
    assert balanced(owned(*counts), members, 10) is is_balanced


def judged(contender: Contender, theirs: Mapping[Event, Sequence[Cost]], needless: int = 0) -> list[bool | None]:
    found = [Found(OURS, costs(50, 20, needless)), Found(contender, theirs)]
    return [bar.met for bar in bars(found)]


def test_times_are_those_of_this_projects_consumer():
    classic = CONTENDERS[Protocol.CLASSIC][0]
    (table,) = tables([Found(OURS, costs(50, 20)), Found(classic, costs(1_000, 500))])
    join = [row for row in table.rows if row["event"] == "join"]
    assert [(row["group"], row["times"], row["times_partition_seconds"]) for row in join] == [
        ("kafka_coord, defaults", 1.0, 1.0),
        ("classic, fastest", 20.0, 25.0),
    ]


@pytest.mark.parametrize(
    "contender",
    [one for protocol in PEERS for one in CONTENDERS[protocol] if protocol not in MANAGED],
    ids=lambda c: c.name,
)
def test_the_bars_against_contenders_tuned_to_the_limit_are_at_most_ten_times(contender: Contender):
    tuned = contender.protocol is Protocol.KIP848 and contender.variant == "fastest"
    assert judged(contender, costs(500, 200)) == [True] * 5
    assert judged(contender, costs(250, 60)) == ([True] * 5 if tuned else [False] * 4 + [True])
    assert judged(contender, costs(240, 60))[0] is False
    assert judged(contender, costs(500, 200), needless=1)[-1] is False


def test_stock_clients_in_managed_groups_have_bars_of_their_own_and_beside_kafka():
    (managed,), kafka = CONTENDERS[Protocol.MANAGED], CONTENDERS[Protocol.KIP848][0]
    assert judged(managed, costs(90, 20)) == [True] * 6
    assert judged(managed, costs(110, 20)) == [False, True, False, True, True, True]
    found = [Found(OURS, costs(50, 20)), Found(managed, costs(90, 20)), Found(kafka, costs(5_000, 200))]
    (compared,) = [bar for bar in bars(found) if "compared with" in bar.name]
    assert compared.met


def test_an_unknown_protocol_is_refused_with_the_list_of_known_ones():
    ran = run("bench", "rebalance", "--compare", "classic,raft")
    assert ran.code == 2
    assert "'raft' is not one of classic, cooperative, kip848" in ran.err


def test_a_newer_client_that_cannot_be_stored_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    in_the_way = tmp_path / "a-file"
    in_the_way.write_text("")
    monkeypatch.setenv("KAFKA_COORD_CACHE", str(in_the_way))
    with pytest.raises(DevClusterError, match=r"cannot be stored.*set KAFKA_COORD_CACHE"):
        newer_client(lambda _: None)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.zookeeper
@pytest.mark.timeout(300)
def test_a_small_run_has_the_same_events_for_all_contenders(tmp_path: Path):
    asked = ("--smoke", "--compare", "cooperative,kip848", "--dir", str(tmp_path), "-o", "json")
    found = run("bench", "rebalance", *asked).json()
    groups = {OURS.name, "cooperative, fastest"}
    if not found["notes"]:
        groups.add("kip848, fastest")
    assert found["systems"].keys() == groups
    assert found["ratios"].keys() == groups - {OURS.name}
    for name, told in found["ratios"].items():
        theirs, ours = (found["systems"][one]["events"]["join"]["settle_ms"]["p50"] for one in (name, OURS.name))
        assert told["join"]["settle"] == pytest.approx(theirs / ours, abs=0.06)
    rows = found["compared"]
    assert {row["group"] for row in rows} == groups, found["notes"]
    for row in rows:
        assert row["settle_p50_ms"] > 0, row
        if row["event"] in {"join", "leave"}:
            assert row["moved"] == 4, f"the third member's share of twelve: {row}"
    assert all(row["interrupted_not_moved"] == 0 for row in rows if row["group"] == OURS.name)


@pytest.mark.parametrize(
    ("asked", "against"),
    [
        (["--fetch"], ()),
        (["--fetch", "--smoke"], ()),
        (["--compare", "kip848"], (Protocol.KIP848,)),
        (["--compare", "kip848,classic,kip848", "--smoke"], (Protocol.KIP848, Protocol.CLASSIC)),
    ],
)
def test_it_is_compared_only_with_the_requested_protocols(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[str], against: tuple[Protocol, ...]
):
    seen: list[compare.CompareOptions] = []

    def look(options: compare.CompareOptions, *_: object) -> None:
        seen.append(options)
        raise SettingsError("seen")

    monkeypatch.setattr(compare, "run_compare", look)
    run("bench", "rebalance", *asked, "--dir", str(tmp_path))
    assert [options.against for options in seen] == [against]
