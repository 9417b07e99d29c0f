"""The rule for legal names of topics, groups and consumers, which is Kafka's rule for topic names; and patterns of
topic names, which run on a linear-time engine. Their size is limited, and none runs twice on the same topic."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import re2

from kafka_coord.errors import InvalidName, InvalidPattern

MAX_LENGTH = 249
LEGAL = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_LENGTH}}}")
RULE = f"1 to {MAX_LENGTH} of the characters a-z A-Z 0-9 . _ - and neither '.' nor '..'"


def is_legal(name: object) -> bool:
    """Returns whether Kafka would accept ``name`` as a topic name (``org.apache.kafka.common.internals.Topic``)."""
    return isinstance(name, str) and LEGAL.fullmatch(name) is not None and name not in {".", ".."}


def legal(kind: str, name: object) -> str:
    """Returns ``name`` if it is legal. Otherwise raises :class:`InvalidName`, stating the ``kind`` ("group", …), the
    name and the rule."""
    if isinstance(name, str) and is_legal(name):
        return name
    shown = repr(name)
    raise InvalidName(f"{kind} name {shown[:80]}{'…' if len(shown) > 80 else ''} is not legal: use {RULE}")


def generated(prefix: str, tail: str, length: Callable[[str], int] = len) -> str:
    """Returns ``prefix`` and ``tail``, which makes the name unique. Shortens the prefix if the name would otherwise be
    too long to be legal. ``length`` returns how long a part becomes once it is a legal name."""
    prefix = prefix[:MAX_LENGTH]
    while prefix and length(prefix) + length(tail) > MAX_LENGTH:
        prefix = prefix[:-1]
    return prefix + tail


_OF_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def no_formula(text: str) -> str:
    """Returns a text for a cell of a spreadsheet, which would run one that begins like a formula: anyone may have
    chosen the name. Such a text begins with ``'``."""
    return f"'{text}" if text.startswith(_OF_FORMULAS) and text != "-" else text


MAX_PATTERN_CHARS = 10_000
MAX_PROGRAM_BYTES = 256 << 10
"""The memory limit for a compiled pattern. It allows about 14,000 instructions, so one match takes at most tens of ms.
A list of topic names with ``MAX_PATTERN_CHARS`` characters fits, but ``.{0,999}.{0,999}`` does not."""
_MATCHING_BYTES = 4 << 20
"""The memory that RE2 may use for caching while matching. With less, RE2 starts over for each topic, which makes it a
hundred times slower."""

_UNKNOWN, _NO, _YES = 0, 1, 2

_topic_numbers: dict[str, int] = {}
_next_number = itertools.count()


class TopicPattern:
    """One compiled pattern, created by :func:`topic_pattern`. Thread-safe.

    Although matching takes linear time, a pattern designed to be slow can take a minute for a few thousand topics, so
    each result is cached, at one byte per topic. :meth:`knows` tells whether the result for a topic is cached.
    """

    __slots__ = ("_answers", "_written")

    def __init__(self, pattern: str) -> None:
        self._written = pattern
        try:
            re2.compile(pattern, _options(MAX_PROGRAM_BYTES))
        except re2.error as error:
            shown = error.args[0] if error.args else error
            shown = shown.decode(errors="replace") if isinstance(shown, bytes) else shown
            raise InvalidPattern(
                f"topic pattern {pattern[:80]!r} is not a regular expression that RE2 can run: {shown}"
                " (back-references, look-around and large repetitions are not supported)"
            ) from None
        self._answers = bytearray()

    def knows(self, topic: str) -> bool:
        """Returns whether the result for ``topic`` is cached."""
        number = _topic_numbers.get(topic)
        return number is not None and number < len(self._answers) and self._answers[number] != _UNKNOWN

    def fits(self, name: str) -> bool:
        """Like :meth:`matches`, but does not cache the result. Use it for names that clients choose, such as group
        names."""
        return _compiled(self._written).fullmatch(name) is not None

    def matches(self, topic: str) -> bool:
        """Returns whether the pattern matches the whole name ``topic``."""
        number = _topic_numbers.get(topic)
        if number is not None and number < len(self._answers) and self._answers[number] != _UNKNOWN:
            return self._answers[number] == _YES
        matched = _compiled(self._written).fullmatch(topic) is not None
        number = _topic_numbers.setdefault(topic, next(_next_number)) if number is None else number
        missing = number + 1 - len(self._answers)
        if missing > 0:  # if another thread also extends the array, it only becomes longer than necessary
            self._answers.extend(bytes(missing))
        self._answers[number] = _YES if matched else _NO
        return matched


def topic_pattern(pattern: str) -> TopicPattern:
    """Returns the compiled pattern. Raises :class:`InvalidPattern`. Results and errors are cached."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidPattern(f"topic pattern is {len(pattern)} characters long; the limit is {MAX_PATTERN_CHARS}")
    found = _remembered(pattern)
    if isinstance(found, InvalidPattern):
        raise InvalidPattern(str(found))
    return found


_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[^{}]*\}|,", re.DOTALL)
"""An escape, a character class, a repetition, or a comma in none of them."""


def group_pattern(pattern: str, what: str = "managed_groups") -> TopicPattern:
    """Like :func:`topic_pattern`, for names of groups. ``what`` names the setting in messages. Refuses a comma that a
    list of alternatives may have meant: no group that Kafka's tools accept has a comma in its name, so the expression
    would match nothing."""
    if any(part[0] == "," for part in _PARTS.finditer(pattern)):
        instead = _PARTS.sub(lambda part: "|" if part[0] == "," else part[0], pattern)
        raise InvalidPattern(
            f'{what} is {pattern[:80]!r}, and a comma is not an "or": write {instead[:80]!r}'
            " (or '[,]' for a comma in a group's name)"
        )
    return topic_pattern(pattern)


@lru_cache(maxsize=4096)
def topic_filter(written: str) -> str:
    """Translates the pattern of a Kafka 0.8 consumer (``kafka.consumer.TopicFilter``) into a regular expression: a
    comma means ``|`` unless a backslash precedes it, blanks are dropped, and so are surrounding quotes."""
    parts = (part.replace(",", "|") for part in written.strip().replace(" ", "").strip("\"'").split("\\,"))
    return ",".join(parts)


@lru_cache(maxsize=4096)
def _remembered(pattern: str) -> TopicPattern | InvalidPattern:
    try:
        return TopicPattern(pattern)
    except InvalidPattern as error:
        return error.with_traceback(None)


@lru_cache(maxsize=256)
def _compiled(written: str) -> Any:
    """Compiles a pattern. The cache is small, because each pattern may take 4 MiB while it matches, so 256 of them
    already take 1 GB."""
    return re2.compile(written, _options(_MATCHING_BYTES))


def _options(max_bytes: int) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = max_bytes
    return options


_SERVED, _PASSED_ON = "coordinated", "native"


def left_to_brokers(setting: str | None) -> Callable[[str], bool]:
    """Returns whether a new group with a name is left to the brokers, by ``new_groups``: ``coordinated`` (none, as by
    default), ``native`` (all), or ``native:PATTERN`` (those whose whole names match). Raises
    :class:`InvalidPattern`."""
    which, colon, pattern = (setting or _SERVED).partition(":")
    if which not in {_SERVED, _PASSED_ON} or (colon and which != _PASSED_ON):
        raise InvalidPattern(f"new_groups is {which[:80]!r}; use coordinated, native or native:PATTERN")
    if colon:
        return group_pattern(pattern, "new_groups").fits
    return lambda _name: which == _PASSED_ON


LOG_PARTITIONS = 50
"""The number of partitions of the groups log."""


@lru_cache(maxsize=1 << 16)
def partition_of(group_id: str, count: int = LOG_PARTITIONS) -> int:
    """Returns a group's log partition: as in Kafka, ``abs(hash) % count`` with Java's ``String.hashCode``."""
    value = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    value = value - (1 << 32) if value & 0x80000000 else value
    return 0 if value == -(1 << 31) else abs(value) % count
