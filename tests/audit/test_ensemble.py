"""Tests the combined logs of several servers, with gaps of one server and transactions that only a dead leader had."""

from __future__ import annotations

import zlib
from pathlib import Path
from struct import pack

from kafka_coord.monitor.audit import AuditRule, audit
from kafka_coord.monitor.audit.txnlog import CREATE, SET_DATA, find_files, in_order


def string(text: str) -> bytes:
    return pack(">i", len(text)) + text.encode()


def create(path: str) -> tuple[int, bytes]:
    return CREATE, string(path) + string("") + pack(">i", 0) + b"\0" + pack(">i", 1)


def set_data(path: str, data: str, version: int) -> tuple[int, bytes]:
    return SET_DATA, string(path) + string(data) + pack(">i", version)


def write_log(directory: Path, records: dict[int, tuple[int, bytes]]) -> Path:
    """Writes one log file with these transactions, in ZooKeeper's format."""
    directory.mkdir(exist_ok=True)
    data = pack(">4siq", b"ZKLG", 2, 0)
    for zxid, (kind, body) in records.items():
        payload = pack(">qiqqi", 7, 1, zxid, 1000, kind) + body
        data += pack(">qi", zlib.adler32(payload), len(payload)) + payload + b"B"
    (directory / f"log.{min(records):x}").write_bytes(data + bytes(100))
    return directory


def zxids(*directories: Path) -> tuple[list[int], list[str]]:
    notes: list[str] = []
    return [txn.zxid for txn in in_order(find_files(directories), notes)], notes


FIRST, SECOND = 1 << 32, 2 << 32
COMMON = {FIRST | n: create(f"/consumers-{n}") for n in range(1, 6)}


def test_transactions_that_one_server_got_as_a_snapshot_are_taken_from_another_log(tmp_path: Path):
    behind = write_log(tmp_path / "behind", {FIRST | 1: COMMON[FIRST | 1], SECOND | 1: create("/b")})
    (behind / f"snapshot.{FIRST | 5:x}").touch()
    whole = write_log(tmp_path / "whole", {**COMMON, SECOND | 1: create("/b")})
    assert zxids(behind, whole) == ([*COMMON, SECOND | 1], [])


def test_transactions_that_one_server_missed_are_taken_from_another_log(tmp_path: Path):
    behind = write_log(tmp_path / "behind", {FIRST | 1: COMMON[FIRST | 1], SECOND | 2: create("/c")})
    whole = write_log(tmp_path / "whole", {**COMMON, SECOND | 1: create("/b"), SECOND | 2: create("/c")})
    assert zxids(behind, whole) == ([*COMMON, SECOND | 1, SECOND | 2], [])


def test_transactions_only_in_a_dead_leaders_log_are_left_out(tmp_path: Path):
    dead = write_log(tmp_path / "dead", {**COMMON, FIRST | 6: create("/x"), FIRST | 7: create("/y")})
    others = [write_log(tmp_path / name, {**COMMON, SECOND | 1: create("/b")}) for name in ("one", "two")]
    found, notes = zxids(dead, *others)
    assert found == [*COMMON, SECOND | 1]
    assert notes[0].startswith("2 proposals from zxid 0x100000006 on")
    assert [finding.rule for finding in audit([dead, *others]).warnings] == [AuditRule.INCOMPLETE]


def test_transactions_only_in_the_newest_leaders_log_are_kept(tmp_path: Path):
    ahead = write_log(tmp_path / "ahead", {**COMMON, FIRST | 6: create("/x")})
    others = [write_log(tmp_path / name, COMMON) for name in ("one", "two")]
    assert zxids(ahead, *others) == ([*COMMON, FIRST | 6], [])


def test_a_change_outside_of_the_tree_is_ignored(tmp_path: Path):
    log = write_log(tmp_path / "log", {**COMMON, FIRST | 6: set_data("/consumers-5", "x", 1)})
    report = audit([log])
    assert (report.figures["transactions"], report.figures.get("steps", 0)) == (6, 0)
