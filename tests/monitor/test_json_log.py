"""Tests of log lines as JSON: the fields of a line, and the events that docs/observability.md lists."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kafka_coord.coordinator.steps import GroupState
from kafka_coord.monitor.json_log import JsonFormatter, keys

ROOT = Path(__file__).parents[2]
PACKAGE, DOCUMENT = ROOT / "kafka_coord", ROOT / "docs" / "observability.md"


def line(message: str, *args: Any, **extra: Any) -> dict[str, Any]:
    record = logging.getLogger("kafka_coord.x").makeRecord(
        "kafka_coord.x", 20, "f", 1, message, args, None, extra=extra
    )
    record.created = 1_700_000_000.25
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_line_has_the_time_the_level_and_the_message() -> None:
    assert line("100 %% of %s\nis done", "it") == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "INFO",
        "logger": "kafka_coord.x",
        "message": "100 % of it\nis done",
    }


def test_keys_in_the_message_are_fields_with_the_type_of_their_values() -> None:
    told = line("%s a=%d b='%s' c=%r d=%.1f e=%s", "say", 1, "two", "thr\nee", 4.25, GroupState.STABLE)
    assert [told[key] for key in "abcde"] == [1, "two", "thr\nee", 4.25, "Stable"]
    assert told["message"] == "say a=1 b='two' c='thr\\nee' d=4.2 e=Stable"


def test_extra_fields_are_added_and_replace_no_standard_field() -> None:
    told = line("level=%s", "high", event="elected", causes=("member-joined",), since=None, worst=float("nan"))
    assert told["level"] == "INFO"
    assert (told["event"], told["causes"], told["since"], told["worst"]) == ("elected", ["member-joined"], None, "nan")


def test_any_message_can_be_formatted() -> None:
    assert line("%(group)s", {"group": "delays"})["group"] == "delays"
    assert line("a=%d %", event="x")["message"] == "a=%d %"
    record = logging.makeLogRecord({"msg": ValueError("no template %d")})
    assert json.loads(JsonFormatter().format(record))["message"] == "no template %d"


def test_the_line_of_an_exception_has_its_traceback() -> None:
    try:
        int("bad\nvalue")
    except ValueError:
        record = logging.makeLogRecord({"msg": "failed", "exc_info": sys.exc_info()})
    assert json.loads(JsonFormatter().format(record))["exception"].endswith("with base 10: 'bad\\nvalue'")


def test_the_documents_table_of_events_matches_the_code() -> None:
    table = re.findall(r"^\| `(\w+)` \|([^|]*)\|[^|]*\|$", section("Logs"), re.MULTILINE)
    assert {event: set(re.findall(r"`(\w+)`", fields)) for event, fields in table} == events()


def section(heading: str) -> str:
    return DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


INDIRECT = {
    "logged": ("operator_action",),
    "_event": ("group_decided", "group_state"),
    "_FAILED": ("group_failed",),
    "_TROUBLE": ("member_trouble",),
}
"""The events of each ``extra`` that is not a literal, by its name."""


def events() -> dict[str, set[str]]:
    """All events in the code, with the fields that a line may have."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in sorted({*PACKAGE.rglob("*.py")} - {*(PACKAGE / "dev").rglob("*.py")}):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Dict):
                for event in event_of(node):
                    found[event] |= fields_of(node)
            for word in node.keywords if isinstance(node, ast.Call) else ():
                if word.arg == "extra" and isinstance(node, ast.Call):
                    for event in event_of(word.value):
                        found[event] |= keys_of(node)
    return dict(found)


def event_of(extra: ast.AST) -> Iterable[str]:
    if isinstance(extra, ast.Dict):
        pairs = zip(extra.keys, extra.values, strict=True)
        pairs = [(key, value) for key, value in pairs if isinstance(key, ast.Constant) and key.value == "event"]
        return [value.value for _, value in pairs if isinstance(value, ast.Constant)]
    last = extra.func if isinstance(extra, ast.Call) else extra
    return INDIRECT[last.attr if isinstance(last, ast.Attribute) else ast.unparse(last)]


def fields_of(extra: ast.Dict) -> set[str]:
    return {key.value for key in extra.keys if isinstance(key, ast.Constant)} - {"event"}


def keys_of(call: ast.Call) -> set[str]:
    texts = [one.value for one in ast.walk(call) if isinstance(one, ast.Constant) and "%" in str(one.value)]
    return {key for text in texts for key in keys(text) if key}
