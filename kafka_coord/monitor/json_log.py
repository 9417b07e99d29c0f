"""Formats log lines as JSON with typed fields, for ``serve --log-format json`` and applications that run consumers."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

_CONVERSION = re.compile(r"(?:(\w+)=['\"]?)?%(?:%|[-#0 +]*\d*(?:\.\d+)?([a-zA-Z]))")
_OWN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
"""The attributes of every log record. All other attributes are ``extra`` fields."""


class JsonFormatter(logging.Formatter):
    """A formatter that writes one object per line, with ``time`` (UTC), ``level``, ``logger``, ``message``, and
    ``exception`` for a traceback.

    Each ``key=%d`` in the message also becomes a field, with the type of its value, and so does each item of ``extra``.
    Programs should rely only on lines with an ``event``, as the wording of messages may change. docs/observability.md
    lists the events and their fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
        }
        extra = {name: value for name, value in vars(record).items() if name not in _OWN}
        for name, value in {**extra, **_of_message(record)}.items():
            line.setdefault(name, _plain(value))
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _of_message(record: logging.LogRecord) -> Mapping[str, object]:
    args = record.args or ()
    if isinstance(args, Mapping):
        return args
    return {name: value for name, value in zip(keys(str(record.msg)), args, strict=False) if name}


@lru_cache(maxsize=1024)
def keys(template: str) -> tuple[str, ...]:
    """Returns the key before each conversion of a template: ``("", "group")`` for ``"%s group=%s"``."""
    return tuple(found[1] or "" for found in _CONVERSION.finditer(template) if found[2])


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value)
