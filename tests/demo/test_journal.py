"""A consumer's journal can be read back, however its process ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_coord.dev.demo.journal import Acknowledged, Change, Handed, Journal, JournalWriter, read_journal
from kafka_coord.errors import MalformedValue
from kafka_coord.model import PartitionSet
from tests.demo.evidence import run, tp

PARTITIONS = PartitionSet({"flights": [0, 1, 5]})


def write(path: Path) -> Journal:
    runs = (run(0, range(5, 9), 3_000), run(1, range(2), 3_000))
    with JournalWriter(path) as journal:
        journal.handed(2_000, Change.STARTED, PARTITIONS)
        journal.records(3_000, runs)
        journal.handed(4_000, Change.STOPPED, PARTITIONS)
        journal.committed(4_500, {tp(0): 9, tp(1): 2})
    handed = (Handed(2_000, Change.STARTED, PARTITIONS), Handed(4_000, Change.STOPPED, PARTITIONS))
    return Journal("c1", runs, handed, (Acknowledged(4_500, {tp(0): 9, tp(1): 2}),))


def test_a_journal_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = write(tmp_path / "c1")

    assert read_journal(tmp_path / "c1", "c1") == written


def test_a_half_line_of_a_killed_writer_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "c1"
    whole = write(path)
    content = path.read_bytes()

    for cut in range(1, len(content.splitlines()[-1]) + 1):
        path.write_bytes(content[:-cut])
        found = read_journal(path, "c1")
        assert found.commits == ()
        assert found.runs == whole.runs


def test_a_consumer_that_never_wrote_has_an_empty_journal(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "nobody", "nobody") == Journal("nobody")


def test_a_reopened_journal_continues_after_its_last_run(tmp_path: Path) -> None:
    write(tmp_path / "c1")
    with JournalWriter(tmp_path / "c1") as journal:
        journal.records(9_000, [run(0, range(9, 10))])

    assert read_journal(tmp_path / "c1", "c1").runs[-1].first == 9


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b'{"at_ms":1,"event":"exploded"}',
        b'{"at_ms":1,"event":"started","partitions":{"flights":"x"}}',
        b'{"at_ms":1,"event":"records","runs":[["flights",0,1,["UA"],[]]]}',
        b'{"event":"committed","offsets":[]}',
    ],
)
def test_an_invalid_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "c1"
    path.write_bytes(b'{"at_ms":1,"event":"committed","offsets":[]}\n' + line + b"\n")

    with pytest.raises(MalformedValue, match="c1:2"):
        read_journal(path, "c1")
