"""Decoders of the command line's own package, which the other fuzzing modules may not import."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kafka_coord.cli.load import read_records
from kafka_coord.cli.output import clean
from kafka_coord.errors import MalformedValue, SettingsError
from kafka_coord.groups.offsets import parse_scope
from tests.fuzzing.mutations import Form
from tests.fuzzing.target import Target

_CSV = b'sale,customer,amount\n1,"o\'hara, j",12.50\n2,,007\n'
_JSONL = b'{"customer": "a", "amount": 1.5}\n\n{"customer": null, "amount": [1, {}]}\n'


def _scope(raw: bytes) -> object:
    return parse_scope(tuple(raw.decode("utf-8", "surrogateescape").split("\n")), all_topics=False)


def _records(raw: bytes, name: str) -> object:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        file = Path(directory) / name
        file.write_bytes(raw)
        return sum(len(value or b"") for _, value in read_records(str(file), None, "customer"))


def _cleaned(raw: bytes) -> object:
    shown = clean(raw.decode("utf-8", "surrogateescape"))
    if not shown.isprintable():
        raise AssertionError(f"{shown[:100]!r} steers a terminal")
    return shown


_REFUSALS = (MalformedValue, SettingsError)

TARGETS = (
    Target("topic-option", Form.TEXT, (b"flights:0,3-5\nroutes", b"flights"), _scope, _REFUSALS),
    Target("csv-records", Form.TEXT, (_CSV,), lambda raw: _records(raw, "x.csv"), _REFUSALS),
    Target("jsonl-records", Form.TEXT, (_JSONL,), lambda raw: _records(raw, "x.jsonl"), _REFUSALS),
    Target("shown-text", Form.TEXT, (b"member c3 joined", b"\x1b[31mred\x07"), _cleaned, ()),
)
