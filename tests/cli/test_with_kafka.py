"""Loading, consuming, lag and resets, on real brokers with a real coordinator."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.model import TopicPartition
from kafka_coord.monitor.metrics import LagSampler, measure_lags
from kafka_coord.zk import connect
from kafka_coord.zk.brokers import read_brokers
from tests.cli.running import Run, run, started
from tests.coordinator.harness import Instance
from tests.monitor.deleting import delete_records
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

_names = itertools.count(1)


@pytest.fixture
def group() -> str:
    return f"cli-group-{next(_names)}"


@pytest.fixture(scope="module")
def coord(kafka_cluster: KafkaCluster) -> Iterator[Run]:
    """Commands on the ZooKeeper of the brokers, with an elected coordinator."""
    instance = Instance(kafka_cluster.zookeeper, 1).start_elected()
    eventually(lambda: (found := read_brokers(instance.store)) is not None and found.live)
    yield partial(run, zookeeper=kafka_cluster.zookeeper)
    instance.stop()


@pytest.fixture(scope="module")
def loaded(coord: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic that tests read in groups of their own."""
    return load_numbers(coord, "cli-numbers", tmp_path_factory.mktemp("loaded"))


def load_numbers(coord: Run, topic: str, directory: Path) -> str:
    """Makes a topic of three partitions with 300 numbered records."""
    file = directory / "numbers.csv"
    file.write_text("n,name\n" + "".join(f"{n},k{n % 17}\n" for n in range(300)))
    ran = coord("load", str(file), "--topic", topic, "--partitions", "3", "--key", "name")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"wrote 300 records to {topic}")
    return topic


def offsets(coord: Run, group: str) -> list[dict[str, Any]]:
    return coord("groups", "describe", group, "--offsets", "-o", "json").json()["offsets"]


def test_a_csv_file_is_loaded_as_json_with_numbers_and_keys(coord: Run, loaded: str, group: str) -> None:
    ran = coord(
        "consume",
        "--group",
        group,
        "--topic",
        loaded,
        "--from-beginning",
        "--max-messages",
        "300",
        "--formatter",
        "json",
    )
    assert ran.code == 0, ran.err
    records = [json.loads(line) for line in ran.out.splitlines()]
    values = [json.loads(record["value"]) for record in records]
    assert sorted(value["n"] for value in values) == list(range(300))
    assert all(record["key"] == value["name"] for record, value in zip(records, values, strict=True))


def test_exactly_the_printed_records_are_committed(coord: Run, loaded: str, group: str) -> None:
    consume = partial(coord, "consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages")
    first = consume("123")
    assert len(first.out.splitlines()) == 123
    assert sum(row["committed_offset"] or 0 for row in offsets(coord, group)) == 123

    second = consume("177")

    assert second.code == 0, second.err
    assert sorted(json.loads(line)["n"] for line in (first.out + second.out).splitlines()) == list(range(300))
    rows = offsets(coord, group)
    assert {row["lag"] for row in rows} == {0}
    assert sum(row["committed_offset"] for row in rows) == sum(row["end_offset"] for row in rows) == 300


def test_the_lag_of_all_groups_is_sorted_with_the_largest_first(coord: Run, group: str, tmp_path: Path) -> None:
    topic = load_numbers(coord, "cli-numbers-of-two", tmp_path)
    more = f"{group}-more"
    for name in (group, more):
        ran = coord("consume", "--group", name, "--topic", topic, "--from-beginning", "--max-messages", "300")
        assert ran.code == 0, ran.err

    ran = coord("groups", "reset-offsets", more, "--all-topics", "--to-offset", "41", "--execute")
    assert ran.code == 0, ran.err
    listed = coord("groups", "list", "--lag", "-o", "json").json()
    lags = {row["group"]: row["lag"] for row in listed}
    assert (lags[group], lags[more]) == (0, 177)
    assert [row["lag"] or 0 for row in listed] == sorted((row["lag"] or 0 for row in listed), reverse=True)
    row = next(row for row in listed if row["group"] == more)
    one = coord("groups", "describe", more, "--by-lag", "-o", "json").json()
    assert {name: one[name] for name in ("lag", "worst_lag", "lag_unknown")} == {
        name: row[name] for name in ("lag", "worst_lag", "lag_unknown")
    }
    assert one["offsets"][0]["lag"] == row["worst_lag"]

    both = coord("groups", "describe", group, more, "--offsets", "-o", "json").json()
    assert [(one["group"], one["lag"]) for one in both] == [(group, 0), (more, 177)]
    shown = coord("groups", "describe", "--all-groups", "--topic", f"{topic}:0-2", "--by-lag")
    assert {line.split()[0] for line in shown.out.splitlines()[1:]} == {group, more}
    assert "lag: 177 in 6 partitions, at most" in shown.err
    assert len(coord("groups", "describe", group, more, "--topic", f"{topic}:1", "-o", "tsv").out.splitlines()) == 3


def test_a_topics_readers_are_known_with_the_age_of_what_waits(coord: Run, group: str, tmp_path: Path) -> None:
    topic = load_numbers(coord, "cli-numbers-read", tmp_path)
    behind, done = f"{group}-behind", f"{group}-done"
    for name, rule in ((behind, "--to-earliest"), (done, "--to-latest")):
        assert coord("groups", "reset-offsets", name, "--topic", topic, rule, "--execute", "--create").code == 0
    found = coord("topics", "describe", topic, "-o", "json").json()
    assert [one["end_offset"] - one["start_offset"] > 0 for one in found["partitions"]] == [True] * 3
    first, last = found["groups"]
    assert (first["group"], first["kind"], first["lag"], first["lag_s_by"]) == (behind, "managed", 300, "timestamp")
    assert (last["group"], last["lag"], last["lag_s"]) == (done, 0, 0)
    ages = [row["lag_s"] for row in first["offsets"]]
    assert 0 < first["lag_s"] == max(ages) < 600
    assert [line.split()[0] for line in coord("topics", "describe", topic).out.splitlines()[1:3]] == [behind, done]
    assert coord("topics", "describe", "no-such-topic").code == 7

    def listed(*options: str) -> list[str]:
        return [row["group"] for row in coord("groups", "list", "--name", group.upper(), *options, "-o", "json").json()]

    assert listed("--sort", "lag-s") == listed("--sort", "lag") == listed("--sort", "name") == [behind, done]
    assert listed("--sort", "lag-s", "--state", "Stable") == []
    (one,) = coord("groups", "describe", behind, done, "--by-lag", "-o", "json").json()[:1]
    assert one["lag_s"] >= first["lag_s"], "it only gets older"
    assert "behind, by the timestamp" in coord("groups", "describe", behind).err


def test_watch_shows_the_group_that_is_furthest_behind_among_many(coord: Run, loaded: str, group: str) -> None:
    names = [f"{group}-{at:02}" for at in range(21)]
    reset = partial(coord, "groups", "reset-offsets", "--topic", loaded, "--execute", "--create")
    assert reset("--to-latest", *names).code == 0
    assert reset("--to-earliest", f"{group}-last").code == 0
    for options in ((), ("--sort", "name")):
        frame = json.loads(coord("watch", "--count", "1", "-o", "json", *options).out)
        assert frame["left_out"] > 0
        assert f"{group}-last" in {one["group"] for one in frame["owners"]}
        (shown,) = [one for one in frame["groups"] if one["group"] == f"{group}-last"]
        assert shown["lag"] == 300
    assert coord("groups", "delete", *names, f"{group}-last", "--yes").code == 0


def test_the_metrics_have_the_lag_of_the_groups_furthest_behind(
    coord: Run, kafka_cluster: KafkaCluster, loaded: str, group: str
) -> None:
    ran = coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "300")
    assert ran.code == 0, ran.err
    assert coord("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute").code == 0
    leads = True
    sampler = LagSampler(lambda: connect(kafka_cluster.zookeeper), {}, lambda: leads, most=1, interval_s=0.1)
    try:
        found = eventually(lambda: {one.name: one.samples for one in sampler.collect()})
        (lag,) = found["kafka_coord_group_lag_records"]
        furthest, *others = coord("groups", "list", "--lag", "-o", "json").json()
        assert (lag.labels, lag.value) == ({"group": furthest["group"], "kind": "managed"}, furthest["lag"])
        assert lag.value >= 300
        assert found["kafka_coord_group_lag_unknown_partitions"][0].value == furthest["lag_unknown"]
        assert found["kafka_coord_group_lag_left_out_groups"][0].value == len(others)
        leads = False
        assert list(sampler.collect()) == []
    finally:
        sampler.close()


def test_records_that_were_deleted_unread_are_gone_and_do_not_count_as_lag(
    coord: Run, kafka_cluster: KafkaCluster, group: str, tmp_path: Path
) -> None:
    topic = load_numbers(coord, "cli-numbers-deleted", tmp_path)
    consume = partial(coord, "consume", "--group", group, "--topic", topic, "--from-beginning", "--max-messages")
    assert len(consume("90").out.splitlines()) == 90
    to_offset = ("groups", "reset-offsets", group, "--topic", f"{topic}:0-2", "--to-offset", "10", "--execute")
    assert coord(*to_offset).code == 0
    ends = [row["end_offset"] for row in offsets(coord, group)]
    delete_records(
        kafka_cluster, {TopicPartition(topic, 0): 25, TopicPartition(topic, 1): 10, TopicPartition(topic, 2): ends[2]}
    )

    wanted = [(ends[0] - 25, 15), (ends[1] - 10, 0), (0, ends[2] - 10)]
    lag, gone = (sum(column) for column in zip(*wanted, strict=True))
    found = coord("groups", "describe", group, "-o", "json").json()
    assert [(row["lag"], row["gone"]) for row in found["offsets"]] == wanted
    assert [row["start_offset"] for row in found["offsets"]] == [25, 10, ends[2]]
    assert (found["lag"], found["gone"], found["worst_lag"]) == (lag, gone, max(one for one, _ in wanted))
    assert f"; {gone} unread records are gone" in coord("groups", "describe", group).err
    printed = coord("groups", "describe", group, "--offsets", "-o", "tsv").out.splitlines()
    header, *rows = (line.split("\t") for line in printed)
    assert [(row[header.index("lag")], row[header.index("gone")]) for row in rows] == [
        (str(one), str(other)) for one, other in wanted
    ]
    (listed,) = [row for row in coord("groups", "list", "--lag", "-o", "json").json() if row["group"] == group]
    assert (listed["lag"], listed["gone"]) == (lag, gone)
    frame = json.loads(coord("watch", group, "--count", "1", "-o", "json").out)
    assert [(row["lag"], row["gone"]) for row in (*frame["groups"], *frame["owners"])] == [(lag, gone)] * 2
    examined = [one for one in coord("doctor", "-o", "json").json() if one["group"] == group]
    assert [one["what"] for one in examined if "gone" in one["what"]] == [
        f"group {group}: {gone} unread records are gone from {topic}[0,2]: they were deleted, by retention or by an"
        " operator, before the group read them"
    ]

    with closing(connect(kafka_cluster.zookeeper)) as store:
        (sampled,) = [row for row in measure_lags(store, {}, most=1_000).rows if row.group == group]
    assert (sampled.lag, sampled.gone) == (lag, gone)

    rest = consume(str(lag)).out.splitlines()
    assert len(rest) == lag, "the lag must be what the group can still read"
    read = offsets(coord, group)
    assert [(row["lag"], row["gone"]) for row in read[:2]] == [(0, 0)] * 2
    assert coord("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute").code == 0
    assert {row["gone"] for row in offsets(coord, group)} == {0}


def test_a_reset_that_falls_back_must_be_accepted(
    coord: Run, kafka_cluster: KafkaCluster, loaded: str, group: str
) -> None:
    coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "300", "-q")
    other = f"{group}-other"
    before, rules = offsets(coord, group), (("--to-datetime", "2099-01-01T00:00:00.000"), ("--shift-by", "100000"))
    create = ("--topic", loaded, "--to-offset", "3", "--execute", "--create")
    assert coord("groups", "reset-offsets", other, *create).code == 0
    coord("groups", "reset-offsets", group, "--topic", f"{loaded}:0", "--to-earliest", "--execute")
    for rule in rules:
        reset = partial(coord, "groups", "reset-offsets", group, "--topic", f"{loaded}:0", *rule)
        planned = reset("-o", "json").json()
        assert "so reset to the end" in planned[0]["note"]
        assert reset().err.strip().endswith("add --execute --accept-notes to make the changes")
        assert "so reset to the end" in reset("--export").err
        refused = reset("--execute")
        assert (refused.code, refused.out) == (6, "")
        assert "1 offset would not be what the rule asks for" in refused.err
        assert "No offset was changed; to accept the notes, add --accept-notes" in refused.err
        assert offsets(coord, group)[0]["committed_offset"] == 0
    several = ("groups", "reset-offsets", other, group, "--topic", f"{loaded}:0", "--shift-by", "-1", "--execute")
    assert coord(*several).code == 6
    assert offsets(coord, other)[0]["committed_offset"] == 3, "a note in one group stops the whole command"

    assert reset("--execute", "--accept-notes").code == 0
    assert offsets(coord, group)[0]["committed_offset"] == before[0]["end_offset"]
    with_records = ("--topic", f"{loaded}:0", "--to-datetime", "2001-01-01T00:00:00.000", "--execute")
    assert coord("groups", "reset-offsets", group, *with_records).code == 0, "no note, so nothing to accept"


def test_a_reset_and_a_deletion_are_undone(coord: Run, loaded: str, group: str) -> None:
    coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "300", "-q")
    read = [row["committed_offset"] for row in offsets(coord, group)]
    reset = partial(coord, "groups", "reset-offsets", group)
    assert reset("--topic", f"{loaded}:0", "--to-earliest", "--execute").code == 0
    assert reset("--all-topics", "--to-current", "--execute").code == 0, "changes nothing, so it is not undone"
    assert "--undo needs one group" in coord("groups", "reset-offsets", "--all-groups", "--all-topics", "--undo").err
    for _ in range(2):
        (row,) = reset("--all-topics", "--undo", "-o", "json").json()
        assert (row["partition"], row["new_offset"]) == (0, read[0])
        assert reset("--all-topics", "--undo", "--execute").code == 0
        assert [row["committed_offset"] for row in offsets(coord, group)] == read
        assert coord("groups", "delete-offsets", group, "--topic", f"{loaded}:0", "--yes").code == 0


def test_a_group_can_get_offsets_before_its_first_consumer(coord: Run, loaded: str, group: str) -> None:
    reset = partial(coord, "groups", "reset-offsets", group, "--topic", loaded, "--to-latest", "--execute")
    refused = reset()
    assert (refused.code, refused.err.count("to create it with these offsets: --execute --create")) == (7, 1)
    dry = coord("groups", "reset-offsets", group, "--topic", loaded, "--to-latest", "--create", "-o", "json")
    assert {row["current_offset"] for row in dry.json()} == {None}
    assert f"group {group} does not exist; --execute creates it" in dry.err
    assert coord("groups", "describe", group).code == 7, "nothing was created"
    assert reset("--create", "--reason", "new").code == 0
    assert {row["lag"] for row in offsets(coord, group)} == {0}
    assert [row["new_offset"] for row in dry.json()] == [row["committed_offset"] for row in offsets(coord, group)]
    trail = coord("groups", "history", group, "--actions", "-o", "json").json()
    assert [(row["action"], row["reason"]) for row in trail] == [("settings", "new"), ("reset-offsets", "new")]
    assert trail[0]["change"] == "created"
    assert reset("--create").code == 0
    assert coord("groups", "describe", group, "--state", "-o", "json").json()["state"] == "Empty"


def test_group_names_and_all_groups_cannot_be_combined(coord: Run, loaded: str, group: str) -> None:
    assert coord("groups", "describe").code == 2
    assert coord("groups", "describe", group, "--all-groups").code == 2
    assert coord("groups", "describe", group, "nobody").code == 7
    coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "1")
    assert coord("groups", "describe", group, "--topic", "another").code == 7


@pytest.mark.parametrize("missing", [("--topic", "{loaded}", "--topic", "no-such"), ("--include", "no-such.*")])
def test_consume_says_which_topics_do_not_exist(coord: Run, loaded: str, group: str, missing: tuple[str, ...]) -> None:
    subscribed = [one.format(loaded=loaded) for one in missing]
    ran = coord("consume", "--group", group, *subscribed, "-q", "--idle-exit", "5")
    said = [line for line in ran.err.splitlines() if line.startswith("warning: ")]
    assert len(said) == 1, ran.err
    assert "no-such" in said[0]


def test_describe_says_which_of_the_named_partitions_the_group_does_not_use(
    coord: Run, loaded: str, group: str
) -> None:
    coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "1")
    (row,) = json.loads(coord("groups", "describe", group, "--offsets", "-o", "json").out)["offsets"][:1]
    used = f"{loaded}:{row['partition']}"
    ran = coord("groups", "describe", group, "--topic", f"{used},999", "--topic", "no-such")
    assert f"not used by what is shown: {loaded}[999], no-such" in ran.err
    assert "not used" not in coord("groups", "describe", group, "--topic", used).err


def test_offsets_are_reset_while_a_consumer_runs(
    coord: Run, kafka_cluster: KafkaCluster, loaded: str, group: str
) -> None:
    arguments = ("consume", "--group", group, "--topic", loaded, "--from-beginning", "--consumer-id", "c1")
    with started(*arguments, "--max-messages", "600", "-z", kafka_cluster.zookeeper) as process:
        printed = [process.line() for _ in range(300)]
        eventually(lambda: sum(row["committed_offset"] or 0 for row in offsets(coord, group)) == 300)
        reset = partial(coord, "groups", "reset-offsets", group, "--topic", loaded, "--to-earliest", "--execute")
        refused = reset()
        assert refused.code == 6
        assert "owned by c1: stop these consumers, or add --pause to reset while they run. Nothing was changed" in (
            refused.err
        )
        ran = reset("--pause", "--reason", "bug 17")
        assert ran.code == 0, ran.err
        again = process.ended(within_s=60)
    assert again.code == 0, again.err
    assert sorted(again.out.splitlines()) == sorted(map(str.rstrip, printed))
    trail = coord("groups", "history", group, "--actions", "-o", "json").json()
    assert [row["action"] for row in trail] == ["pause", "evict", "reset-offsets", "resume"]
    assert {row["reason"] for row in trail} == {"bug 17"}
    assert trail[2]["change"] == f"to-earliest: {loaded} " + ", ".join(
        f"{row['partition']}: {row['end_offset']} → 0" for row in offsets(coord, group)
    )


def test_ctrl_c_leaves_the_group_and_commits_what_was_printed(
    coord: Run, kafka_cluster: KafkaCluster, loaded: str, group: str
) -> None:
    arguments = ("consume", "--group", group, "--topic", loaded, "--from-beginning", "--consumer-id", "c1")
    with started(*arguments, "-z", kafka_cluster.zookeeper) as process:
        assert process.line()
        ran = process.ended(by=signal.SIGINT)
    printed = 1 + len(ran.out.splitlines())
    assert ran.code == 130, ran.err
    assert "Traceback" not in ran.err
    found = coord("groups", "describe", group, "-o", "json").json()
    assert sum(row["committed_offset"] or 0 for row in found["offsets"]) == printed
    eventually(lambda: coord("groups", "list", "--state", "empty", "-o", "tsv").out.count(group))


def test_quiet_prints_only_the_rate(coord: Run, loaded: str, group: str) -> None:
    ran = coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "-q", "--idle-exit", "3")
    assert ran.out == ""
    assert "300 records, " in ran.err
    assert ran.err.splitlines()[-1].startswith("300 records in ")


def test_formats(coord: Run, loaded: str, group: str) -> None:
    consume = partial(coord, "consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "1")
    topic, at, key = consume("--formatter", r"{topic}\t{partition}@{offset}\t{key}").out.strip().split("\t")
    assert topic == loaded
    assert at.partition("@")[2] == "0"
    assert key.startswith("k")
    assert consume("--formatter", "full").out.count("\t") == 3


def test_reset_offsets_previews_executes_exports_and_restores(
    coord: Run, loaded: str, group: str, tmp_path: Path
) -> None:
    coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "300", "-q")
    before = {row["partition"]: row["committed_offset"] for row in offsets(coord, group)}
    reset = partial(coord, "groups", "reset-offsets", group)

    preview = reset("--topic", f"{loaded}:0", "--shift-by", "-5")
    assert preview.code == 0, preview.err
    assert "nothing was changed; add --execute to make the changes" in preview.err
    assert {row["partition"]: row["committed_offset"] for row in offsets(coord, group)} == before

    exported = reset("--all-topics", "--to-current", "--export")
    assert exported.out.splitlines() == [f"{loaded},{partition},{offset}" for partition, offset in before.items()]
    file = tmp_path / "offsets.csv"
    file.write_text(exported.out)

    done = reset("--all-topics", "--to-earliest", "--execute", "-o", "json")
    assert [row["new_offset"] for row in done.json()] == [0, 0, 0]
    assert [row["committed_offset"] for row in offsets(coord, group)] == [0, 0, 0]
    assert sum(row["lag"] for row in offsets(coord, group)) == 300

    assert reset("--from-file", str(file), "--execute").code == 0
    assert {row["partition"]: row["committed_offset"] for row in offsets(coord, group)} == before
    assert reset("--all-topics", "--by-duration", "P1D", "--execute").code == 0
    assert [row["committed_offset"] for row in offsets(coord, group)] == [0, 0, 0]
    file.write_text("no-such-topic,0,1\n")
    assert reset("--from-file", str(file)).code == 7


def test_offsets_of_several_groups_are_exported_reset_and_restored(
    coord: Run, loaded: str, group: str, tmp_path: Path
) -> None:
    groups = [f"{group}-a", f"{group}-b"]
    reset = partial(coord, "groups", "reset-offsets")
    made = reset(*groups, "--topic", loaded, "--to-latest", "--execute", "--create", "-o", "json")
    assert made.code == 0, made.err
    ends = {(row["group"], row["partition"]): row["new_offset"] for row in made.json()}
    lines = [f"{name},{loaded},{partition},{offset}" for (name, partition), offset in ends.items()]

    exported = reset(*groups, "--all-topics", "--to-current", "--export").out
    assert exported.splitlines() == lines
    assert set(lines) <= set(reset("--all-groups", "--all-topics", "--to-current", "--export").out.splitlines())
    assert reset(*groups, "--topic", f"{loaded}:1", "--to-earliest", "--execute").code == 0
    file = tmp_path / "offsets.csv"
    file.write_text(exported)
    taken_back = reset("--all-groups", "--from-file", str(file), "--execute", "-o", "json").json()

    changed = {(row["group"], row["partition"]) for row in taken_back if row["current_offset"] != row["new_offset"]}
    assert changed == {(name, 1) for name in groups}
    shifted = reset(*groups, "--topic", loaded, "--shift-by", "-1")
    assert {row["committed_offset"] for name in groups for row in offsets(coord, name)} == set(ends.values())
    assert shifted.code == 0, shifted.err
    assert reset("--all-groups", "--topic", "no-such-topic", "--to-latest").code == 7
    assert reset(groups[0], "no-such-group", "--topic", loaded, "--to-latest", "--execute").code == 7


def test_a_reset_is_refused_while_a_consumer_owns_the_partition(
    coord: Run, kafka_cluster: KafkaCluster, loaded: str, group: str
) -> None:
    arguments = ("consume", "--group", group, "--topic", loaded, "--from-beginning", "--consumer-id", "c1", "-q")
    with started(*arguments, "-z", kafka_cluster.zookeeper) as process:
        eventually(lambda: coord("groups", "list", "-o", "tsv").out.count(f"{group}\tStable"))
        eventually(lambda: [row["lag"] for row in offsets(coord, group)] == [0, 0, 0])
        refused = coord("groups", "reset-offsets", group, "--topic", f"{loaded}:1", "--to-earliest", "--execute")
        assert refused.code == 6
        assert f"{loaded}[1] of group '{group}' while owned by c1: stop these consumers" in refused.err
        assert process.ended(by=signal.SIGHUP).code == 0, "a terminal that closes ends it as SIGTERM does"
    assert "(c1 left)" in coord("groups", "history", group).out
    assert all(row["committed_offset"] == row["end_offset"] for row in offsets(coord, group))


def test_load_creates_a_topic_and_does_not_change_an_existing_ones_partitions(
    coord: Run, tmp_path: Path, topics: Any
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text('{"a": 1}\n\n{"a": "é"}\n')
    topic = f"made-by-load-{next(_names)}"
    try:
        ran = coord("load", str(file), "--topic", topic, "--partitions", "4", "--key", "a")
        assert ran.code == 0, ran.err
        assert f"topic {topic} created, with 4 partitions" in ran.err
        refused = coord("load", str(file), "--topic", topic, "--partitions", "5")
        assert refused.code == 6
        assert "exists with 4 partitions, not 5" in refused.err
    finally:
        topics.delete(topic)


@pytest.mark.parametrize(
    ("name", "text", "arguments", "code", "said"),
    [
        ("f.csv", "a,b\n1,2\n3\n", (), 3, "f.csv:3: expected 2 columns, as in the header, but the row has 1"),
        ("f.csv", "", (), 3, "the header line is missing"),
        ("f.csv", "a,b\n1,2\n", ("--key", "c"), 2, "is not a column of"),
        ("f.jsonl", '{"a":1}\n{broken\n', (), 3, "f.jsonl:2: not JSON"),
        ("f.jsonl", '{"a":1}\n', ("--key", "b"), 3, "f.jsonl:1: the record lacks the field 'b'"),
        ("f.txt", "x", (), 2, "from its name; pass --format"),
    ],
)
def test_the_error_for_a_file_that_cannot_be_loaded_names_its_line(
    coord: Run,
    make_topic: Callable[..., str],
    tmp_path: Path,
    name: str,
    text: str,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    file = tmp_path / name
    file.write_text(text)
    ran = coord("load", str(file), "--topic", make_topic(1), *arguments)
    assert ran.code == code, ran
    assert said in ran.err


def test_the_flights_are_loaded_without_pandas(coord: Run, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic(2)
    ran = coord("load", "--flights", "--topic", topic, "--limit", "500")
    assert ran.out.startswith(f"wrote 500 records to {topic}"), ran.err
    one = coord("consume", "--group", group, "--topic", topic, "--from-beginning", "--max-messages", "1")
    assert json.loads(one.out)["year"] == 2013


def test_watch_shows_owners_and_lag(coord: Run, loaded: str, group: str) -> None:
    coord("consume", "--group", group, "--topic", loaded, "--from-beginning", "--max-messages", "100", "-q")
    frame = json.loads(coord("watch", group, "--count", "1", "-o", "json").out)
    (row,) = [one for one in frame["groups"] if one["group"] == group]
    assert row["state"] in {"Empty", "Stable", "Rebalancing"}
    assert frame["coordinator"] == 1


def test_doctor_finds_nothing_wrong_with_three_brokers(coord: Run) -> None:
    ran = coord("doctor", "--all")
    assert ran.code == 0, ran.out
    assert "3 brokers registered; all listeners accept connections" in ran.out
