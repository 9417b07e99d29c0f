"""Damages valid values. All choices come from the given ``Random``, so a seed repeats them."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

MAX_INPUT_BYTES = 950_000
"""A little more than a value may have (900 kB), because larger values must be refused too."""
_MAX_REPEATED_BYTES = 2 * MAX_INPUT_BYTES
"""What is larger is not repeated: a few repetitions of repetitions need gigabytes, of which almost all is cut off."""


class Form(StrEnum):
    """The form of an input, which determines how it is damaged."""

    JSON = "json"
    TEXT = "text"
    BINARY = "binary"


def spoilt(random: Random, samples: Sequence[bytes], form: Form) -> bytes:
    """One of the samples, changed in one or a few places."""
    sample = random.choice(samples)
    if form is Form.JSON:
        raw = _spoilt_json(random, sample)
    elif form is Form.TEXT:
        raw = _spoilt_text(random, sample, samples)
    else:
        raw = sample
    if form is Form.BINARY or random.random() < 0.2:
        raw = _spoilt_bytes(random, raw, samples)
    return raw[:MAX_INPUT_BYTES]


# --- JSON ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Raw:
    """The JSON text to write, valid or not."""

    text: bytes


@dataclass(slots=True)
class _Object:
    """An object with its fields as written: a key may occur twice."""

    fields: list[tuple[Any, Any]]


def _spoilt_json(random: Random, sample: bytes) -> bytes:
    root = [json.loads(sample, object_pairs_hook=lambda pairs: _Object(list(pairs)))]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _spoil_one(random, root)
    return _encoded(root[0])


def _places(root: list[Any]) -> list[tuple[Any, int]]:
    """Every (container, index) in it, including the value itself."""
    found: list[tuple[Any, int]] = []
    todo: list[Any] = [root]
    while todo:
        container = todo.pop()
        values = container if isinstance(container, list) else [value for _, value in container.fields]
        found += ((container, index) for index in range(len(values)))
        todo += (value for value in values if isinstance(value, list | _Object))
    return found


def _spoil_one(random: Random, root: list[Any]) -> None:
    container, index = random.choice(_places(root))
    kind = random.randrange(6)
    if isinstance(container, _Object):
        key, value = container.fields[index]
        if kind == 0:
            del container.fields[index]
        elif kind == 1:
            container.fields.insert(random.randrange(len(container.fields) + 1), (key, _nasty(random)))  # twice
        elif kind == 2:
            container.fields[index] = (_nasty_key(random), value)
        elif kind == 3:
            container.fields.append((_nasty_key(random), value))
        else:
            container.fields[index] = (key, _nasty(random))
    elif container is root:
        if kind == 0:
            root[0] = _nasty(random)
        elif isinstance(root[0], _Object):
            root[0].fields.append((_nasty_key(random), _nasty(random)))
    elif kind == 0:
        del container[index]
    elif kind == 1:
        times = random.choice((2, 30, 500))
        if len(_encoded(container)) * times <= _MAX_REPEATED_BYTES:
            container *= times
    else:
        container[index] = _nasty(random)


def _encoded(value: Any) -> bytes:
    if isinstance(value, _Raw):
        return value.text
    if isinstance(value, _Object):
        return b"{" + b",".join(_encoded(key) + b":" + _encoded(one) for key, one in value.fields) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_encoded, value)) + b"]"
    return json.dumps(value).encode()


_SCALARS = (
    *(b"null", b"true", b"false", b'""', b"{}", b"[]", b"0", b"-1", b"1", b"-0", b"-0.0", b"1.5", b"1e2", b"1E400"),
    *(b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b"0x10", b"undefined", b"'x'", b"", b",", b'"', b'"\\'),
    *(str(number).encode() for bits in (31, 32, 53, 63, 64) for number in (2**bits - 1, 2**bits, -(2**bits))),
)
_STRINGS = (
    *(
        "",
        ".",
        "..",
        "/",
        "a/b",
        " ",
        "\0",
        "\n",
        "é",
        "²",
        "٣",
        "\uff11",
        "\U0001d7d9",
        "\u202e",
        "\ufeff",
        "x" * 249,
        "x" * 250,
    ),
    *(
        "0-2147483647",
        "0-999999",
        "0-1000000",
        "2147483648",
        "1-0",
        "0-0",
        "0,",
        ",",
        "00",
        "-1",
        "1" * 20,
        "0," * 50_000,
    ),
    *("(a*)*b", "(", "[", "\\", "a{1000}{1000}", ".*", "(?=x)", "\\1", "a|" * 5_000, "(?i)x", "\\pN{900}"),
    *("stop-fetcher", "start-fetcher", "white_list", "evict", "reset-offsets", "eager", "NaN", "null", "~nobody/x"),
    *("http://[", "PLAINTEXT://h:²", "PLAINTEXT://h:" + "9" * 5_000, "A://[::1]:9092", "://:", "x:1"),
)


def _nasty(random: Random) -> _Raw:
    kind = random.randrange(8)
    if kind <= 2:
        return _Raw(random.choice(_SCALARS))
    if kind <= 4:
        return _string(random)
    if kind == 5:
        return _Raw(b"9" * random.choice((19, 20, 400, 4_299, 4_301, 50_000)))
    if kind == 6:
        return _Raw(_nested(random))
    return _Raw(_large(random))


def _string(random: Random) -> _Raw:
    if random.random() < 0.2:
        escaped = random.choice(
            (b"\\ud800", b"\\udfff\\ud800", b"\\u0000", b"\\ud83d\\ude00", b"\\u12", b"\xff", b"\\x")
        )
        return _Raw(b'"' + escaped * random.choice((1, 1, 3)) + b'"')
    return _Raw(json.dumps(random.choice(_STRINGS), ensure_ascii=random.random() < 0.5).encode())


def _nasty_key(random: Random) -> _Raw:
    if random.random() < 0.3:
        return _Raw(json.dumps(str(random.choice((0, 1, 7, 2**31, 10**10)))).encode())
    return _string(random)


def _nested(random: Random) -> bytes:
    """Nested, mostly about as deep as the interpreter can go, where one more frame makes the difference."""
    limit = sys.getrecursionlimit()
    depth = random.choice((2, 50, limit // 2, limit - random.randrange(120), limit - random.randrange(60), 20_000))
    if random.random() < 0.5:
        return b"[" * depth + b"]" * depth
    return b'{"a":' * depth + b"1" + b"}" * depth


def _large(random: Random) -> bytes:
    count = random.choice((100, 100, 1_000, 1_000, 1_000, 10_000, 100_000))
    kind = random.randrange(4)
    if kind == 0:
        return b"[" + b",".join([random.choice((b"0", b"{}", b"[]", b"1.5", b'""'))] * count) + b"]"
    if kind == 1:
        return b"{" + b",".join(b'"t%d":"0-999999"' % n for n in range(count // 5)) + b"}"
    if kind == 2:
        return b"{" + b",".join(b'"%d":{"offset":%d}' % (n, n) for n in range(count // 5)) + b"}"
    return b'"' + random.choice((b"x", b"0,", b"\\u0000", b"\xc3\xa9")) * count + b'"'


# --- text ------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(rb"[A-Za-z0-9_]+|\s+|[^A-Za-z0-9_\s]")
_TOKENS = (
    *(
        b'"',
        b"'",
        b'"""',
        b"'''",
        b"[",
        b"[[",
        b"]",
        b"{",
        b"}",
        b"=",
        b".",
        b",",
        b"\n",
        b"\r",
        b"\0",
        b"#",
        b":",
        b"/",
    ),
    *(
        b"\\",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xc2\xb2",
        b"\xd9\xa3",
        b"inf",
        b"nan",
        b"1e999",
        b"0x",
        b"-",
    ),
    *(b"1979-05-27T07:32:00Z", b"9999-99-99", b"0000-00-00", b"P1D", b"P9999999999999999999D", b"true", b"~nobody/x"),
    *(
        b"[::1]",
        b"[",
        b"%",
        b"@",
        b"user:password@",
        b"*",
        b"world:anyone",
        b"digest:a:b",
        b"..",
        b"-1",
        b"0-2147483647",
    ),
    *(b"\\u0000", b"\\ud800", b"\\U00110000", b"99999999999999999999", b"2147483648", b"/proc/self/mem", b"/dev/null"),
)


def _spoilt_text(random: Random, sample: bytes, samples: Sequence[bytes]) -> bytes:
    tokens = _TOKEN.findall(sample) or [b""]
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        at = random.randrange(len(tokens) + 1)
        kind = random.randrange(7)
        if kind == 0:
            del tokens[at : at + random.choice((1, 2, 10))]
        elif kind == 1:
            tokens[at : at + 1] = [random.choice(_TOKENS)]
        elif kind == 2:
            tokens.insert(at, random.choice(_TOKENS))
        elif kind == 3:
            tokens.insert(at, _long_text(random))
        elif kind == 4:
            other = _TOKEN.findall(random.choice(samples)) or [b""]
            start = random.randrange(len(other))
            tokens[at:at] = other[start : start + 10]
        elif kind == 5:
            repeated, times = tokens[at : at + 10], random.choice((1, 3, 200))
            if sum(map(len, repeated)) * times <= _MAX_REPEATED_BYTES:
                tokens[at:at] = repeated * times
        else:
            tokens[at : at + 1] = [random.choice(_STRINGS).encode()]
    return b"".join(tokens)


def _long_text(random: Random) -> bytes:
    depth = random.choice((30, 400, sys.getrecursionlimit() - random.randrange(200), 20_000))
    return random.choice(
        (
            b"9" * random.choice((20, 4_301, 50_000)),
            b"x" * random.choice((250, 100_000)),
            b"[" * depth,
            b"x = " + b"[" * depth + b"]" * depth,
            b"\nx = " + b"{a=" * depth + b"1" + b"}" * depth + b"\n",
            b"\n" + b"a." * depth + b"a = 1\n",
            b"\n[" + b"kafka." * depth + b"a]\nb = 1\n",
            b"\n" * 10_000,
            b"," * 50_000,
            b"a=1\n" * 5_000,
        )
    )


# --- bytes -----------------------------------------------------------------------------------------------------------

_NUMBERS = (0, 1, -1, 2, 127, 255, 65_535, 2**31 - 1, -(2**31), 1_000_000, 50_000_000)


def _spoilt_bytes(random: Random, raw: bytes, samples: Sequence[bytes]) -> bytes:
    changed = bytearray(raw)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(changed) + 1)
        kind = random.randrange(6)
        if kind == 0:
            changed[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            del changed[at : at + random.choice((1, 4, 100))]
        elif kind == 2:
            changed[at : at + 4] = struct.pack(">i", random.choice(_NUMBERS))
        elif kind == 3:
            del changed[at:]
        elif kind == 4:
            other = random.choice(samples)
            changed[at:at] = other[random.randrange(len(other) + 1) :]
        else:
            changed[at:at] = bytes([random.randrange(256)]) * random.choice((1, 8, 1_000))
    return bytes(changed)
