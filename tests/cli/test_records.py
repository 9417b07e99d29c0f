"""Tests of files for ``load`` in which something is odd: the error names the file and the line."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kafka_coord.cli.load import read_records
from kafka_coord.errors import MalformedValue


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.csv", b'"' + b"a" * 200_000, "x.csv:.*field larger than field limit"),
        ("x.csv", b"a,b,a\n1,2,3\n", "names the column 'a' more than once"),
        ("x.jsonl", b'{"k": "\\ud800"}\n', "x.jsonl:1: the field 'k' is not text"),
        ("x.jsonl", b'{"k": 1}\n\xff\n', "not UTF-8"),
    ],
)
def test_an_odd_file_is_refused_with_the_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(MalformedValue, match=said):
        list(read_records(str(file), None, "k" if name == "x.jsonl" else None))


def test_standard_input_that_is_not_utf_8_is_refused_whatever_the_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = io.TextIOWrapper(io.BytesIO(b'{"k": "\xff"}\n'), encoding="ascii", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", typed)
    with pytest.raises(MalformedValue, match="not UTF-8"):
        list(read_records("-", "jsonl", "k"))
    assert not typed.buffer.closed
