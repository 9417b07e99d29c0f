"""Tests of backups without a server: what they take, the file, and what a restore makes of it."""

from __future__ import annotations

import inspect
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from kafka_coord.errors import MalformedValue, RequestRefused, SettingsError, UnknownVersion
from kafka_coord.groups.backup import (
    LEFT_OUT,
    TAKEN,
    Backup,
    BackupHeader,
    RanThere,
    place_of,
    read_file,
    read_tree,
    write_file,
)
from kafka_coord.groups.restore import LEAST_HOLD_MS, UNKNOWN, plan_restore
from kafka_coord.model import Hold, Holds, Ledger, PartitionSet, TopicOfOffsets, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.model.offsets import LogRange
from kafka_coord.zk import layout
from kafka_coord.zk.acl import RULES
from kafka_coord.zk.root import ClusterRecord, make_tree
from kafka_coord.zk.store import SetData
from tests.simulation.store import Quiet, SimulatedStore, connected_store

ID = "TMyOC9fMQO2RvZzC_cfMOw"
FLIGHTS = TopicPartition("flights", 0)
HEADER = BackupHeader(
    release="1",
    made_ms=1,
    zookeeper=("zk1:2181",),
    chroot="/kafka",
    tree="a",
    generation=3,
    kafka=None,
    instances=(RanThere(1, {"kafka": "b1:9095"}),),
    is_still=True,
    longest_session_ms=90_000,
    groups=1,
    offsets=1,
)


def backup(below: dict[str, bytes] | None = None, header: BackupHeader = HEADER, epoch: bytes = b"7") -> Backup:
    """A backup of the group ``delays``. ``below`` are more of its znodes."""
    own = {
        layout.group("delays"): b"",
        **{f"{layout.group('delays')}/{path}": data for path, data in (below or {}).items()},
    }
    return Backup(header, {layout.COORDINATOR_EPOCH: epoch, layout.history("x"): b"\xff\x00"}, {"delays": own})


def ledger(consumer: str, partitions: dict[str, list[int]], process: str = "", **more: int) -> bytes:
    return fields.dump(Ledger(consumer, 12, PartitionSet(partitions), process=process, **more).to_json())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "kafka-coord.backup"
    write_file(found, backup({"offsets": b"", "offsets/flights": f"{ID} 1".encode(), "offsets/flights/0": b"12"}))
    return found


def paths_of_the_layout() -> Iterator[str]:
    """Every path that :mod:`kafka_coord.zk.layout` can name below ``/consumers``, with names filled in."""
    yield from (rule.place for rule in RULES)
    values = {"broker_id": 1, "partition": 0}
    for name, found in vars(layout).items():
        if isinstance(found, str) and found.startswith(layout.CONSUMERS):
            yield found
        elif (
            inspect.isfunction(found)
            and found.__module__ == layout.__name__
            and name not in {"kafkas_own", "as_readers_name_it"}
        ):
            path = found(*(values.get(one, one) for one in inspect.signature(found).parameters))
            if path.startswith(layout.CONSUMERS):
                yield path


def test_every_znode_of_the_layout_is_taken_or_named_as_left_out() -> None:
    assert not TAKEN & LEFT_OUT.keys()
    missing = [path for path in paths_of_the_layout() if place_of(path) is None and path != layout.REQUEST_PREFIX]
    assert not missing, "say in kafka_coord/groups/backup.py whether a backup takes these, or why not"


def test_a_file_holds_everything_and_only_its_owner_may_read_it(file: Path) -> None:
    made = backup({"offsets": b"", "offsets/flights": f"{ID} 1".encode(), "offsets/flights/0": b"12"})

    found, checksum = read_file(file)

    assert found == made
    assert len(checksum) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_a_file_that_is_cut_off_or_changed_is_refused_wherever(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(MalformedValue, match=r"not a backup|cut off or was changed"):
            read_file(file)
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(MalformedValue):
            read_file(file)


def test_another_version_is_refused_by_name(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'{"kafka_coord_backup":1', b'{"kafka_coord_backup":2', 1))

    with pytest.raises(UnknownVersion, match="version 2; this release reads version 1"):
        read_file(file)


def test_a_full_disk_leaves_the_old_file(file: Path) -> None:
    old, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(SettingsError, match="which is as it was: File too large"):
            write_file(file, backup({"history": b"x" * 1_000}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert file.read_bytes() == old
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_an_interrupted_backup_leaves_the_old_file(file: Path) -> None:
    old = file.read_bytes()

    class Interrupted(dict[str, bytes]):
        def items(self) -> Iterator[tuple[str, bytes]]:  # type: ignore[override]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(file, Backup(HEADER, {}, {"delays": Interrupted()}))

    assert file.read_bytes() == old
    assert [one.name for one in file.parent.iterdir()] == [file.name]


# --- the plan of a restore -----------------------------------------------------------------------------------------


def written(made: Backup) -> dict[str, bytes]:
    return dict(plan_restore(made, "sum").znodes())


def test_parents_come_before_children_and_details_after_offsets() -> None:
    made = backup(
        {
            "details/flights/0": b"{}",
            "offsets/flights/0": b"12",
            "offsets/flights": f"{ID} 1".encode(),
            "offsets": b"",
            "assignment": b"{}",
        }
    )

    paths = list(written(made))

    assert len(paths) == len(set(paths))
    for path in paths:
        parent = path.rpartition("/")[0]
        assert not parent or paths.index(parent) < paths.index(path)
    assert paths.index(layout.offset("delays", *FLIGHTS)) < paths.index(layout.offset_details("delays", *FLIGHTS))


@pytest.mark.parametrize("identity", ["4294967321", "", "what?"])
def test_a_topic_without_an_id_becomes_unknown(identity: str) -> None:
    """The new ensemble counts its own zxids, so a czxid of the old one names another topic there, or none."""
    made = backup({"offsets/flights": TopicOfOffsets(identity, 6).data, "offsets/flights/0": b"12"})

    plan = plan_restore(made, "sum")

    assert plan.groups[0].unknown == ("flights",)
    assert dict(plan.znodes())[layout.topic_offsets("delays", "flights")] == f"{UNKNOWN} 6".encode()


def test_an_id_and_the_offsets_stay_as_they_are() -> None:
    made = backup({"offsets/flights": f"{ID} 6 99".encode(), "offsets/flights/0": b"12"})

    found = written(made)

    assert found[layout.topic_offsets("delays", "flights")] == f"{ID} 6 99".encode()
    assert found[layout.offset("delays", *FLIGHTS)] == b"12"


def test_ledgers_become_holds_for_the_longest_session() -> None:
    made = backup(
        {
            "owners/c1": ledger("c1", {"flights": [0, 1]}, "p1"),
            "owners/c2": ledger("c2", {}, "p2"),
            "held": fields.dump(Holds(5, {"c3": Hold(PartitionSet({"flights": [2]}), "p3")}).to_json()),
        }
    )

    found = written(made)

    path = layout.held("delays")
    assert Holds.from_json(fields.load(found[path], path), path) == Holds(
        90_000, {"c1": Hold(PartitionSet({"flights": [0, 1]}), "p1"), "c3": Hold(PartitionSet({"flights": [2]}), "p3")}
    )
    assert not any(path.startswith(layout.owners("delays")) for path in found)


def test_a_backup_from_under_a_running_instance_holds_nothing_but_makes_everybody_wait() -> None:
    header = structs.replace(HEADER, is_still=False, longest_session_ms=0)
    made = backup({"owners/c1": ledger("c1", {"flights": [0]}, "p1")}, header)

    plan = plan_restore(made, "sum")

    assert plan.wait_ms == LEAST_HOLD_MS
    assert layout.held("delays") not in dict(plan.znodes())


def test_a_ledger_that_cannot_be_read_makes_everybody_wait() -> None:
    plan = plan_restore(backup({"owners/c1": b"?"}), "sum")

    assert plan.wait_ms == 90_000
    assert "owners/c1" in plan.notes[0]


@pytest.mark.parametrize(("stored", "epoch"), [(b"7", 7), (b"?", 0)])
def test_the_epoch_goes_on(stored: bytes, epoch: int) -> None:
    plan = plan_restore(backup(epoch=stored), "sum")

    assert dict(plan.znodes())[layout.COORDINATOR_EPOCH] == str(epoch).encode()


@pytest.mark.parametrize(("known", "generation"), [(0, 4), (3, 4), (9, 10)])
def test_the_generation_is_above_every_one_that_is_known(known: int, generation: int) -> None:
    assert plan_restore(backup(), "sum", generation=known).generation == generation


@pytest.mark.parametrize(
    ("stored", "term"), [(b'{"version":1,"term":41,"broker":3,"managed_groups":"x"}', 41), (b"", 0), (b"?", 0)]
)
def test_a_term_of_the_groups_log_keeps_its_number_and_nobody_serves_it(stored: bytes, term: int) -> None:
    made = backup()
    found = written(made._replace(alone={**made.alone, layout.log_partition(7): stored}))

    assert fields.load(found[layout.log_partition(7)], "term") == {"version": 1, "term": term}


@pytest.mark.parametrize(
    ("log", "older", "beyond"),
    [(LogRange(0, 12), 0, 0), (LogRange(12, 20), 0, 0), (LogRange(13, 20), 1, 0), (LogRange(0, 11), 0, 1)],
)
def test_offsets_outside_their_log_are_named(log: LogRange, older: int, beyond: int) -> None:
    made = backup({"offsets/flights": f"{ID} 1".encode(), "offsets/flights/0": b"12"})

    (group,) = plan_restore(made, "sum", lambda _partitions: {FLIGHTS: log}).groups

    assert (len(group.older), len(group.beyond)) == (older, beyond)
    assert group.znodes[layout.offset("delays", *FLIGHTS)] == b"12"


def test_a_tree_is_still_only_while_no_instance_runs() -> None:
    """Between two elections nobody is elected, but the next one changes what members hold."""
    store = connected_store()
    for path in layout.PERSISTENT_ROOTS:
        store.ensure_path(path)
    make_tree(store, ClusterRecord.new(store, 1))
    assert read_tree(store, ["zk1:2181"], "").header.is_still

    store.create(layout.instance(1), fields.dump({"version": 1, "brokerid": 1, "endpoints": {"kafka": "b1:9095"}}))

    header = read_tree(store, ["zk1:2181"], "").header
    assert not header.is_still
    assert header.instances == (RanThere(1, {"kafka": "b1:9095"}),)


def test_a_group_that_changes_while_it_is_read_is_read_again() -> None:
    class Changing(Quiet):
        """Replaces the target whenever the group's offsets are read, a few times."""

        left = 3

        def before_reply(self, store: SimulatedStore, doing: str) -> None:
            if self.left and doing.startswith("read") and "/offsets/" in doing:
                self.left -= 1
                store.server.write([SetData(layout.assignment("delays"), str(self.left).encode())], 0, 0)
                store.server.catch_up(store.replica)

    around = Changing()
    store = connected_store(around=around)
    make_tree(store, ClusterRecord.new(store, 1))
    store.ensure_path(layout.topic_offsets("delays", "flights"))
    store.create(layout.assignment("delays"), b"first")
    store.create(layout.offset("delays", "flights", 0), b"12")

    found = read_tree(store, ["zk1:2181"], "").groups["delays"]

    assert around.left == 0
    assert found[layout.assignment("delays")] == b"0"
    around.left = 1_000
    with pytest.raises(RequestRefused, match="group delays was changed each of the 20 times"):
        read_tree(store, ["zk1:2181"], "")
