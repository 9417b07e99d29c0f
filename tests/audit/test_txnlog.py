"""Tests log files that killed servers, full disks and purges leave behind."""

from __future__ import annotations

import contextlib
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import MalformedValue, NotFound
from kafka_coord.monitor.audit import AuditRule, audit
from kafka_coord.monitor.audit.tree import ZnodeTree, read_snapshot
from kafka_coord.monitor.audit.txnlog import Truncated, Txn, decode_txn, find_files, in_order, read_log
from kafka_coord.zk import layout
from tests.audit.scribe import GROUP, Scribe, make_root

pytestmark = pytest.mark.zookeeper
HEADER = 16
ROOTS_OF_ALL = ("/kafka", "/other")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the ``version-2`` of a killed server that took snapshots often. It has a lawful group."""
    settings = ZooKeeperSettings(
        tick_ms=200, properties={"autopurge.purgeInterval": "0"}, jvm_properties={"zookeeper.snapCount": "40"}
    )
    directory = tmp_path_factory.mktemp("logged")
    with ZooKeeperServer(directory, settings=settings) as server:
        with Scribe(server.connect_string, make_root(server.connect_string, "/kafka")) as scribe:
            scribe.elect(1)
            scribe.join("c1")
            scribe.assign(1, {"c1": {"flights": "0-1"}})
            scribe.obey("c1", {0: 0, 1: 0})
            for offset in range(150):
                scribe.commit("c1", {0: offset, 1: offset})
        server.kill()
        server.start()
        with Scribe(server.connect_string, make_root(server.connect_string, "/other")) as scribe:
            scribe.elect(1)
    version_2 = directory / "data" / "version-2"
    assert len(list(version_2.glob("log.*"))) >= 3
    return version_2


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    """Copies the files, so a test can damage them."""
    return Path(shutil.copytree(written, tmp_path / "version-2"))


def logs(directory: Path) -> list[Path]:
    return [path for _, path in find_files([directory])[0].logs]


def txns(path: Path) -> list[Txn]:
    return list(read_log(path))


def extents(path: Path) -> list[tuple[int, int]]:
    """Returns (offset, length with its framing) of each record."""
    data, at, found = path.read_bytes(), HEADER, []
    while length := int.from_bytes(data[at + 8 : at + 12]):
        found.append((at, 12 + length + 1))
        at += found[-1][1]
    return found


def test_several_files_are_one_history_without_a_gap(written: Path):
    torn: list[str] = []
    found = list(in_order(find_files([written]), torn))
    assert [txn.zxid for txn in found] == list(range(1, len(found) + 1))
    report = audit([written], chroot="/kafka")
    assert (report.violations, report.warnings) == ([], [])
    assert report.figures["commits"] == 302
    assert report.figures["log_files"] == len(logs(written))


@pytest.mark.parametrize("chroot", ["", "/", "/nowhere"])
def test_another_chroot_has_no_transactions_of_this_group(written: Path, chroot: str):
    report = audit([written], chroot=chroot)
    assert "commits" not in report.figures
    assert audit([written], chroot="/other/").figures["elections"] == 1


def test_a_servers_directory_can_be_given_in_three_ways(written: Path):
    assert find_files([written]) == find_files([written.parent]) == find_files([written.parent.parent])


@pytest.mark.parametrize("left", [7, 8, 12, 20, -1])
def test_an_incomplete_last_record_is_reported_and_ignored(copied: Path, left: int):
    last = logs(copied)[-1]
    before = txns(last)
    offset, length = extents(last)[-1]
    with last.open("r+b") as file:
        file.truncate(offset + (left if left > 0 else length + left))
    torn: list[str] = []
    assert list(read_log(last, torn)) == before[:-1]
    assert len(torn) == 1
    assert f"{last}:{offset}" in torn[0]
    assert [found.rule for found in audit([copied], chroot="/kafka").warnings] == [AuditRule.INCOMPLETE]


@pytest.mark.parametrize("left", [8, 20, -1])
def test_a_last_record_that_ends_in_preallocated_zeros_is_reported_and_ignored(copied: Path, left: int):
    last = logs(copied)[-1]
    before = txns(last)
    offset, length = extents(last)[-1]
    kept = left if left > 0 else length + left
    with last.open("r+b") as file:
        file.seek(offset + kept)
        file.write(bytes(length - kept))
    torn: list[str] = []
    assert list(read_log(last, torn)) == before[:-1]
    assert len(torn) == 1


def test_a_file_that_ends_with_a_record_is_complete(copied: Path):
    last = logs(copied)[-1]
    before = txns(last)
    offset, length = extents(last)[-1]
    with last.open("r+b") as file:
        file.truncate(offset + length)
    torn: list[str] = []
    assert list(read_log(last, torn)) == before
    assert torn == []


@pytest.mark.parametrize("kept", [0, 5, 16])
def test_a_file_whose_server_died_at_its_beginning_has_no_transactions(copied: Path, kept: int):
    last = logs(copied)[-1]
    with last.open("r+b") as file:
        file.truncate(kept)
    assert txns(last) == []


def test_the_error_for_a_flipped_bit_in_the_middle_names_file_and_offset(copied: Path):
    first = logs(copied)[0]
    offset, length = extents(first)[3]
    damaged = bytearray(first.read_bytes())
    damaged[offset + length - 3] ^= 1
    first.write_bytes(damaged)
    with pytest.raises(MalformedValue, match=rf"{first}:{offset}: the checksum of a record is 0x"):
        audit([copied], chroot="/kafka")


class WrittenMeanwhile(type(Path())):  # type: ignore[misc]
    """A file whose first reader sees an incomplete record. Later readers see the complete record and more records."""

    stale: bytes | None = None

    def open(self, *args: Any, **kwargs: Any) -> Any:
        stale, self.stale = self.stale, None
        return io.BytesIO(stale) if stale is not None else super().open(*args, **kwargs)


def test_a_record_that_a_running_server_completes_between_two_reads_is_read_again(copied: Path):
    path = WrittenMeanwhile(logs(copied)[0])
    offset, length = extents(path)[5]
    stale = bytearray(path.read_bytes())
    stale[offset + length // 2 : offset + length] = bytes(length - length // 2)
    path.stale = bytes(stale)
    assert txns(path) == txns(logs(copied)[0])
    assert path.stale is None


def test_a_hole_in_the_middle_is_an_error(copied: Path):
    first = logs(copied)[0]
    offset, length = extents(first)[3]
    damaged = bytearray(first.read_bytes())
    damaged[offset : offset + length] = bytes(length)
    first.write_bytes(damaged)
    with pytest.raises(MalformedValue, match=rf"{first}:{offset}: more data follows a truncated record"):
        txns(first)


@pytest.mark.parametrize("length", [-5, (1 << 31) - 1])
def test_an_impossible_length_is_an_error(copied: Path, length: int):
    first = logs(copied)[0]
    offset, _ = extents(first)[3]
    damaged = bytearray(first.read_bytes())
    damaged[offset + 8 : offset + 12] = pack(">i", length)
    first.write_bytes(damaged)
    with pytest.raises(MalformedValue, match=rf"{first}:{offset}: a record of {length} bytes"):
        txns(first)


def test_a_file_that_is_no_log_is_refused(tmp_path: Path):
    (tmp_path / "log.1").write_bytes(b"2026-01-31 12:00:00 INFO started")
    with pytest.raises(MalformedValue, match="not a ZooKeeper transaction log"):
        audit([tmp_path])
    (tmp_path / "log.1").write_bytes(pack(">4siq", b"ZKLG", 3, 0))
    with pytest.raises(MalformedValue, match="format 3"):
        audit([tmp_path])


def test_complete_but_invalid_records_are_refused(tmp_path: Path):
    header = pack(">qiqqi", 1, 1, 1, 1, 1)
    for payload in (b"", header[:-1], header, header + pack(">i", 99), pack(">qiqqi", 1, 1, 1, 1, 77)):
        record = pack(">qi", zlib.adler32(payload), len(payload)) + payload + b"B"
        (tmp_path / "log.1").write_bytes(pack(">4siq", b"ZKLG", 2, 0) + record + record)
        with pytest.raises(MalformedValue, match=r"log\.1:16: "):
            txns(tmp_path / "log.1")


def test_a_directory_without_a_log_causes_an_error(tmp_path: Path):
    with pytest.raises(NotFound, match="is not a directory"):
        audit([tmp_path / "nowhere"])
    with pytest.raises(NotFound, match="no transaction log"):
        audit([tmp_path])


# --- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_replaces_deleted_logs(copied: Path):
    for path in logs(copied)[:-2]:
        path.unlink()
    report = audit([copied], chroot="/kafka")
    assert report.violations == []
    assert [found.rule for found in report.warnings] == [AuditRule.INCOMPLETE]
    assert "begins with snapshot." in report.warnings[0].what
    assert report.figures["groups"] == 1


def test_a_violation_after_the_snapshot_is_found(zookeeper_server_factory: Callable[..., ZooKeeperServer]):
    server = zookeeper_server_factory()
    with Scribe(server.connect_string, make_root(server.connect_string, "/kafka")) as scribe:
        scribe.elect(1)
        scribe.join("c1")
        scribe.assign(1, {"c1": {"flights": "0-1"}})
        scribe.obey("c1", {0: 5, 1: 5})
        server.kill()
        server.start()  # the server loads its log, takes a snapshot, and begins a new log
        scribe.await_connections()
        scribe.commit("c1", {0: 6})
        scribe.somebody.set(layout.offset(GROUP, "flights", 0), b"4")
        logs(server.directory)[0].unlink()
        report = audit([server.directory], chroot="/kafka")
    assert {found.rule for found in report.violations} == {AuditRule.OFFSET_BACK, AuditRule.UNFENCED_COMMIT}
    assert {found.rule for found in report.warnings} == {AuditRule.INCOMPLETE}


def test_deleted_logs_without_a_snapshot_cause_an_error(copied: Path):
    logs(copied)[0].unlink()
    for snapshot in copied.glob("snapshot.*"):
        snapshot.unlink()
    with pytest.raises(MalformedValue, match="no snapshot replaces it"):
        audit([copied], chroot="/kafka")


def test_a_log_missing_in_the_middle_is_refused_unless_a_snapshot_or_another_server_has_it(copied: Path, written: Path):
    logs(copied)[1].unlink()
    assert audit([copied, written], chroot="/kafka").warnings == []
    report = audit([copied], chroot="/kafka")
    assert "transactions are missing between zxid" in report.warnings[0].what
    for snapshot in copied.glob("snapshot.*"):
        snapshot.unlink()
    with pytest.raises(MalformedValue, match="transactions are missing between zxid"):
        audit([copied], chroot="/kafka")


def test_an_unreadable_snapshot_is_skipped(copied: Path):
    logs(copied)[0].unlink()
    snapshots = [path for _, path in find_files([copied])[0].snapshots]
    fitting = [path for path in snapshots if path.name != "snapshot.0"]
    damaged = bytearray(fitting[0].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    fitting[0].write_bytes(damaged)
    with pytest.raises(MalformedValue, match="not a complete ZooKeeper snapshot"):
        list(read_snapshot(fitting[0]))
    assert fitting[1].name in audit([copied], chroot="/kafka").warnings[0].what


def test_a_compressed_snapshot_is_read(copied: Path):
    snapshot = next(path for _, path in reversed(find_files([copied])[0].snapshots))
    packed = snapshot.with_name(f"{snapshot.name}.gz")
    packed.write_bytes(gzip.compress(snapshot.read_bytes()))
    assert list(read_snapshot(packed)) == list(read_snapshot(snapshot))


def test_every_snapshot_with_the_following_log_gives_the_same_tree(written: Path):
    txns_of_all = list(in_order(find_files([written]), []))
    whole = ZnodeTree("", ROOTS_OF_ALL)
    for txn in txns_of_all:
        whole.apply(txn)
    snapshots = [(zxid, path) for zxid, path in find_files([written])[0].snapshots if zxid]
    assert len(snapshots) >= 3
    for zxid, path in snapshots:
        tree = ZnodeTree("", ROOTS_OF_ALL)
        newest = zxid
        for name, node, shown in read_snapshot(path):
            tree.put(name, node)
            newest = max(newest, shown)
        for txn in txns_of_all:
            if zxid < txn.zxid <= newest:
                tree.catch_up(txn)
            elif txn.zxid > newest:
                tree.apply(txn)
        assert tree.nodes == whole.nodes, path.name


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_raise_truncated(payload: bytes):
    for body in (payload, pack(">qiqqi", 1, 1, 1, 1, 14) + payload, pack(">qiqqi", 1, 1, 1, 1, 1) + payload):
        with contextlib.suppress(Truncated):
            decode_txn(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_as_a_snapshot_or_raise_malformed_value(body: bytes):
    with tempfile.TemporaryDirectory() as directory:
        for name, head in (
            ("snapshot.1", pack(">4siq", b"ZKSN", 2, 0)),
            ("snapshot.2.gz", b"\x1f\x8b"),
            ("snapshot.3", b""),
        ):
            path = Path(directory, name)
            path.write_bytes(head + body)
            with contextlib.suppress(MalformedValue):
                list(read_snapshot(path))
