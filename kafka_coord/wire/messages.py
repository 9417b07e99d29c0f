"""Kafka's messages, by name. ``message("JoinGroupRequest")`` returns the classes, decoders and encoders of a message.

The files in ``definitions/`` are Apache Kafka's (Apache License 2.0), without their comments. The files for KIP-848
are from Kafka 4.3.0, and all other files are from 3.9.2. Kafka documents the format in ``clients/src/main/resources``.
A message's definition is compiled into Python: one class per structure, and a decoder and an encoder for each version.
Each version is compiled on first use, so unused messages cost nothing.

The functions are straight-line code: adjacent fixed-size fields take a single call to :mod:`struct`, and no version is
checked at run time. They are therefore several times as fast as code that looks up the definition of each field.

A decoder never reads past the end of its input, allocates at most a fixed multiple of the input's size, and raises only
:class:`BadMessage`. It refuses an array that claims more elements than there are bytes left and, in a request, an array
of more than :data:`MAX_ELEMENTS` elements. Like Kafka, it ignores bytes after the message and replaces invalid UTF-8
with U+FFFD.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from kafka_coord.errors import KafkaCoordError

FIXED = {
    "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d", "uuid": "16s"
}  # fmt: skip
"""The :mod:`struct` formats of fixed-size types. A ``uuid`` is 16 bytes."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions from ``first`` to ``last`` inclusive. The range is empty if ``first`` is greater than ``last``."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __iter__(self) -> Any:
        return iter(range(self.first, self.last + 1))

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parses ``3``, ``0-9``, ``2+`` or ``none``."""
        if text == "none":
            return NO_VERSIONS
        first, _, last = text.partition("-")
        if first.endswith("+"):
            return cls(int(first[:-1]), 1 << 15)
        return cls(int(first), int(last or first))


NO_VERSIONS = Versions(1, 0)


@dataclass(frozen=True, slots=True)
class Field:
    """One field. For an array, ``type`` is the element type. If the type is a structure, ``struct`` is set. If
    ``flexible`` is not ``None``, it overrides the flexible versions of the message."""

    name: str
    type: str
    is_array: bool
    versions: Versions
    nullable: Versions
    tag: int | None
    tagged: Versions
    flexible: Versions | None
    ignorable: bool
    default: Any
    struct: Struct | None


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure: the message itself, or the type of one of its fields."""

    name: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """A message. Only requests and responses have an ``api_key``."""

    name: str
    api_key: int | None
    versions: Versions
    flexible: Versions
    struct: Struct


def read_definition(name: str) -> Definition:
    """Returns the definition of the message called ``name``, such as ``JoinGroupRequest``."""
    raw = json.loads(files("kafka_coord.wire").joinpath("definitions", f"{name}.json").read_text())
    common = {struct["name"]: struct for struct in raw.get("commonStructs", ())}
    return Definition(
        name=name,
        api_key=raw.get("apiKey"),
        versions=Versions.parse(raw["validVersions"]),
        flexible=Versions.parse(raw["flexibleVersions"]),
        struct=_struct(name, raw["fields"], common),
    )


def _struct(name: str, fields: list[dict[str, Any]], common: dict[str, Any]) -> Struct:
    return Struct(name, tuple(_field(field, common) for field in fields))


def _field(raw: dict[str, Any], common: dict[str, Any]) -> Field:
    is_array, kind = raw["type"].startswith("[]"), raw["type"].removeprefix("[]")
    fields = raw.get("fields") or common.get(kind, {}).get("fields")
    flexible = raw.get("flexibleVersions")
    return Field(
        name=snake_case(raw["name"]),
        type=kind,
        is_array=is_array,
        versions=Versions.parse(raw["versions"]),
        nullable=Versions.parse(raw.get("nullableVersions", "none")),
        tag=raw.get("tag"),
        tagged=Versions.parse(raw.get("taggedVersions", "none")),
        flexible=Versions.parse(flexible) if flexible is not None else None,
        ignorable=raw.get("ignorable", False),
        default=_default(kind, raw.get("default"), is_array=is_array, is_struct=fields is not None),
        struct=_struct(kind, fields, common) if fields is not None else None,
    )


def _default(kind: str, given: Any, *, is_array: bool, is_struct: bool) -> Any:
    if given == "null":
        return None
    if is_array:
        return ()
    if is_struct:
        return ...  # means a structure with all default values
    if kind == "string":
        return given or ""
    if kind in {"bytes", "records"}:
        return b""
    if kind == "uuid":
        return bytes(16)
    if kind == "bool":
        return str(given).lower() == "true"
    return float(given or 0) if kind == "float64" else int(str(given or 0), 0)


def snake_case(name: str) -> str:
    """Converts a field's name, for example ``MemberId`` to ``member_id``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


MAX_ELEMENTS = 100_000
"""The maximum number of elements of an array in a request. An element of only three bytes takes a hundred times as much
memory once it is decoded."""
Decode = Callable[[bytes, int], tuple[Any, int]]
"""Decodes the message that begins at a position in the bytes. Returns the message and the position where it ends."""
Encode = Callable[[Any, bytearray], None]
"""Encodes a message and appends it to the bytes."""


class BadMessage(KafkaCoordError):
    """The bytes are not the expected message, or this version of a message cannot carry a value."""


class Record:
    """The base class of every compiled class. Fields are set by keyword, and objects are compared by value."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, f) == getattr(other, f) for f in self._fields)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, field) for field in self._fields))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{field}={getattr(self, field)!r}' for field in self._fields)})"


def make_classes(of: Struct, classes: dict[str, type[Record]]) -> None:
    """Adds the classes of the structure and of its fields to ``classes``, which are keyed by name."""
    if of.name in classes:
        return
    for field in of.fields:
        if field.struct is not None:
            make_classes(field.struct, classes)
    scope: dict[str, Any] = {"Record": Record}
    lines = [f"class {of.name}(Record):", f"    __slots__ = _fields = {tuple(f.name for f in of.fields)!r}"]
    lines.append(f"    def __init__(self{', *' if of.fields else ''}")
    for field in of.fields:
        scope[f"d_{field.name}"] = None if field.default is ... else field.default
        lines[-1] += f", {field.name}=d_{field.name}"
    lines[-1] += "):"
    for field in of.fields:
        value = field.name
        if field.default is ... and field.struct is not None:
            scope[f"c_{field.name}"] = classes[field.struct.name]
            value = f"c_{field.name}() if {field.name} is None else {field.name}"
        lines.append(f"        self.{field.name} = {value}")
    lines.append("        pass")
    classes[of.name] = _run(lines, scope)[of.name]


class _Functions:
    """Code shared by the decoder and the encoder of one version."""

    def __init__(self, definition: Definition, classes: dict[str, type[Record]], version: int) -> None:
        if version not in definition.versions:
            raise BadMessage(f"{definition.name} does not exist in version {version}")
        self._definition, self._classes, self._version = definition, classes, version
        self._scope: dict[str, Any] = {"BadMessage": BadMessage, "error": struct.error}
        self._made: dict[str, str] = {}

    def _compact(self, field: Field) -> bool:
        flexible = self._definition.flexible if field.flexible is None else field.flexible
        return self._version in flexible

    def _plain(self, of: Struct) -> list[Field]:
        return [f for f in of.fields if self._version in f.versions and self._version not in f.tagged]

    def _tagged(self, of: Struct) -> list[Field]:
        return sorted(
            (f for f in of.fields if self._version in f.versions and self._version in f.tagged),
            key=lambda f: f.tag or 0,
        )

    @property
    def _flexible(self) -> bool:
        return self._version in self._definition.flexible

    @staticmethod
    def _is_flat(of: Struct) -> bool:
        """Returns whether the code for a structure is free of loops, so that the loop over an array can inline it."""
        return not any(f.struct is not None or (f.is_array and f.type not in FIXED) for f in of.fields)

    def _runs(self, fields: list[Field]) -> Iterator[tuple[bool, list[Field]]]:
        """Yields (true, fields) for each run of adjacent fixed-size fields, and (false, [field]) for every other
        field."""
        for fixed, some in groupby(fields, lambda f: f.type in FIXED and not f.is_array):
            neighbours = list(some)
            yield from [(True, neighbours)] if fixed else ((False, [field]) for field in neighbours)

    def _packer(self, kinds: str) -> str:
        name = "s_" + kinds.replace("?", "B_")
        self._scope[name] = struct.Struct(">" + kinds)
        return name

    def _default_of(self, field: Field) -> str:
        name = f"d_{len(self._scope)}"
        self._scope[name] = field.default
        return name


class Decoders(_Functions):
    def message(self, each: Mapping[str, Callable[[Decode], Decode]] | None = None) -> Decode:
        """``each`` wraps the decoders of structures, by name."""
        self._each = each or {}
        self._scope |= {"uvarint": _uvarint, "bare": object.__new__}
        inner = self._struct(self._definition.struct)
        lines = [
            "def decode(b, p):",
            "    try:",
            f"        o, p = {inner}(b, p)",
            "    except (IndexError, error):",
            f"        raise BadMessage('{self._definition.name} ends too early') from None",
            "    if p > len(b):",
            f"        raise BadMessage('{self._definition.name} ends too early')",
            "    return o, p",
        ]
        decode: Decode = _run(lines, self._scope)["decode"]
        return decode

    def _struct(self, of: Struct) -> str:
        if of.name in self._made:
            return self._made[of.name]
        name = self._made[of.name] = f"read_{of.name}"
        _run([f"def {name}(b, p):", *self._body(of, "o"), "    return o, p"], self._scope)
        if of.name in self._each:
            self._scope[name] = self._each[of.name](self._scope[name])
        return name

    def _body(self, of: Struct, o: str) -> list[str]:
        """Returns code that creates and reads the object. It calls ``__init__`` only if a default is a structure."""
        new = f"new_{of.name}"
        self._scope[new] = self._classes[of.name]
        plain = self._plain(of)
        others = [f for f in of.fields if f not in plain]
        body = [f"    {o} = bare({new})"]
        if any(f.default is ... for f in others):
            body = [f"    {o} = {new}()"]
        else:
            body += [f"    {o}.{f.name} = {self._default_of(f)}" for f in others]
        for fixed, fields in self._runs(plain):
            body += self._fixed(fields, o) if fixed else self._one(fields[0], f"{o}.{fields[0].name}")
        return [*body, *self._tags(of, o)] if self._flexible else body

    def _fixed(self, fields: list[Field], o: str) -> list[str]:
        kinds = "".join(FIXED[f.type] for f in fields)
        targets = ", ".join(f"{o}.{f.name}" for f in fields)
        return [
            f"    {targets}, = {self._packer(kinds)}.unpack_from(b, p)",
            f"    p += {struct.calcsize('>' + kinds)}",
        ]

    def _one(self, field: Field, target: str) -> list[str]:
        compact = self._compact(field)
        if field.struct is not None and not field.is_array:
            return self._structure(field, target)
        size = self._length(field, compact)
        null = "None" if self._version in field.nullable else ""
        body = self._array(field, target) if field.is_array else self._bytes(field, target)
        refuse = f"raise BadMessage('{field.name} must not be null')"
        return [*size, "    if n < 0:", f"        {f'{target} = {null}' if null else refuse}", "    else:", *body]

    def _structure(self, field: Field, target: str) -> list[str]:
        assert field.struct is not None  # noqa: S101  the caller has checked
        read = f"{self._struct(field.struct)}(b, p)"
        if self._version not in field.nullable:
            return [f"    {target}, p = {read}"]
        return [
            "    p += 1",
            "    if b[p - 1] > 127:",
            f"        {target} = None",
            "    else:",
            f"        {target}, p = {read}",
        ]

    def _length(self, field: Field, compact: bool) -> list[str]:
        if compact:
            return ["    n = b[p]", "    p += 1", "    if n > 127:", "        n, p = uvarint(b, p - 1)", "    n -= 1"]
        kind, size = ("h", 2) if field.type == "string" and not field.is_array else ("i", 4)
        return [f"    n, = {self._packer(kind)}.unpack_from(b, p)", f"    p += {size}"]

    def _bytes(self, field: Field, target: str) -> list[str]:
        text = "str(b[p:p + n], 'utf-8', 'replace')" if field.type == "string" else "b[p:p + n]"
        return [f"        {target} = {text}", "        p += n"]

    def _array(self, field: Field, target: str) -> list[str]:
        refuse = [
            "        if n > len(b) - p:",
            f"            raise BadMessage('{field.name} claims more elements than there are bytes')",
        ]
        if self._definition.name.endswith("Request"):
            refuse.append(f"        if n > {MAX_ELEMENTS}:")
            refuse.append(
                f"            raise BadMessage(f'{field.name} contains {{n}} elements; the limit is {MAX_ELEMENTS}')"
            )
        if field.type in FIXED:
            kind = FIXED[field.type]
            self._scope["unpack_from"] = struct.unpack_from
            size = struct.calcsize(">" + kind)
            form = f"f'>{{n}}{kind}'" if kind != "16s" else "'>' + '16s' * n"
            return [*refuse, f"        {target} = unpack_from({form}, b, p)", f"        p += {size} * n"]
        loop = [*refuse, "        found = []", "        for _ in range(n):"]
        if field.struct is not None and self._is_flat(field.struct):
            loop += ["        " + line for line in self._body(field.struct, "x")]
        elif field.struct is not None:
            loop.append(f"            x, p = {self._struct(field.struct)}(b, p)")
        else:
            element = replace(field, is_array=False, nullable=NO_VERSIONS)
            loop.append("            m = n")
            loop += ["        " + line for line in self._one(element, "x")]
            loop.append("            n = m")
        return [*loop, "            found.append(x)", f"        {target} = tuple(found)"]

    def _tags(self, of: Struct, o: str) -> list[str]:
        lines = [
            "    t = b[p]",
            "    p += 1",
            "    if t:",
            "        if t > 127:",
            "            t, p = uvarint(b, p - 1)",
            "        for _ in range(t):",
            "            tag, p = uvarint(b, p)",
            "            size, p = uvarint(b, p)",
            "            end = p + size",
            "            if end > len(b):",
            "                raise BadMessage('a tagged field is longer than its message')",
        ]
        for field in self._tagged(of):
            fixed = field.type in FIXED and not field.is_array
            read = self._fixed([field], o) if fixed else self._one(field, f"{o}.{field.name}")
            lines += [f"            if tag == {field.tag}:", *("            " + line for line in read)]
        return [*lines, "            p = end"]


class Encoders(_Functions):
    def message(self) -> Encode:
        self._scope |= {"write_uvarint": _write_uvarint}
        inner = self._struct(self._definition.struct)
        lines = [
            "def encode(o, out):",
            "    try:",
            f"        {inner}(o, out)",
            "    except (error, TypeError, AttributeError, UnicodeEncodeError) as reason:",
            f"        raise BadMessage(f'{self._definition.name} version {self._version}: {{reason}}') from None",
        ]
        encode: Encode = _run(lines, self._scope)["encode"]
        return encode

    def _struct(self, of: Struct) -> str:
        if of.name in self._made:
            return self._made[of.name]
        name = self._made[of.name] = f"write_{of.name}"
        _run([f"def {name}(o, out):", *self._body(of, "o"), "    return"], self._scope)
        return name

    def _body(self, of: Struct, o: str) -> list[str]:
        body = []
        for field in of.fields:
            if self._version not in field.versions and not field.ignorable:
                body += self._absent(field, o)
        for fixed, fields in self._runs(self._plain(of)):
            body += self._fixed(fields, o) if fixed else self._one(fields[0], f"{o}.{fields[0].name}")
        return [*body, *self._tags(of, o)] if self._flexible else body

    def _absent(self, field: Field, o: str) -> list[str]:
        """Returns the lines that, like Kafka's encoder, raise an error for a value that this version cannot carry.
        Otherwise, the value would be lost silently."""
        if field.default is ...:
            return []
        return [
            f"    if {o}.{field.name} != {self._default_of(field)}:",
            f"        raise BadMessage('{self._definition.name} version {self._version} cannot carry {field.name}')",
        ]

    def _fixed(self, fields: list[Field], o: str) -> list[str]:
        kinds = "".join(FIXED[f.type] for f in fields)
        return [f"    out += {self._packer(kinds)}.pack({', '.join(f'{o}.{f.name}' for f in fields)})"]

    def _one(self, field: Field, value: str) -> list[str]:
        if field.struct is not None and not field.is_array:
            write = f"{self._struct(field.struct)}({value}, out)"
            if self._version not in field.nullable:
                return [f"    {write}"]
            return [
                f"    if {value} is None:",
                "        out.append(255)",
                "    else:",
                "        out.append(1)",
                f"        {write}",
            ]
        lines = [f"    x = {value}", "    if x is None:"]
        lines.append(self._null(field))
        lines.append("    else:")
        if field.is_array:
            return [*lines, *self._array(field)]
        if field.type == "string":
            lines.append("        x = x.encode()")
        return [*lines, f"        {self._length(field, 'len(x)')}", "        out += x"]

    def _null(self, field: Field) -> str:
        if self._version not in field.nullable:
            where = f"{self._definition.name} version {self._version}"
            return f"        raise BadMessage('{where}: {field.name} must not be null')"
        return "        out.append(0)" if self._compact(field) else f"        {self._length(field, '-1')}"

    def _length(self, field: Field, of: str) -> str:
        if self._compact(field):
            return f"out.append(n) if (n := {of} + 1) < 128 else write_uvarint(n, out)"
        return f"out += {self._packer('h' if field.type == 'string' and not field.is_array else 'i')}.pack({of})"

    def _array(self, field: Field) -> list[str]:
        lines = [f"        {self._length(field, 'len(x)')}"]
        if field.type in FIXED:
            kind = FIXED[field.type]
            self._scope["pack"] = struct.pack
            form = f"f'>{{len(x)}}{kind}'" if kind != "16s" else "'>' + '16s' * len(x)"
            return [*lines, f"        out += pack({form}, *x)"]
        if field.struct is not None and self._is_flat(field.struct):
            return [*lines, "        for y in x:", *("        " + line for line in self._body(field.struct, "y"))]
        if field.struct is not None:
            return [*lines, "        for y in x:", f"            {self._struct(field.struct)}(y, out)"]
        element = replace(field, is_array=False, nullable=NO_VERSIONS)
        return [*lines, "        for y in x:", *("        " + line for line in self._one(element, "y"))]

    def _tags(self, of: Struct, o: str) -> list[str]:
        tagged = self._tagged(of)
        if not tagged:
            return ["    out.append(0)"]
        lines = ["    tags = []"]
        for field in tagged:
            default = f"type({o}.{field.name})()" if field.default is ... else self._default_of(field)
            fixed = field.type in FIXED and not field.is_array
            write = self._fixed([field], o) if fixed else self._one(field, f"{o}.{field.name}")
            lines += [
                f"    if {o}.{field.name} != {default}:",
                "        main, out = out, bytearray()",
                *("    " + line for line in write),
                f"        tags.append(({field.tag}, out))",
                "        out = main",
            ]
        return [
            *lines,
            "    write_uvarint(len(tags), out)",
            "    for tag, value in tags:",
            "        write_uvarint(tag, out)",
            "        write_uvarint(len(value), out)",
            "        out += value",
        ]


def _run(lines: list[str], scope: dict[str, Any]) -> dict[str, Any]:
    exec("\n".join(lines), scope)  # noqa: S102  the code comes from this package's own definitions, never from input
    return scope


def _uvarint(b: bytes, p: int) -> tuple[int, int]:
    """Decodes an unsigned varint of at most 32 bits. Returns its value and the position where it ends."""
    value = shift = 0
    while True:
        byte = b[p]
        p += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                raise BadMessage("a length takes more than 32 bits")
            return value, p
        shift += 7
        if shift > 28:
            raise BadMessage("a length takes more than five bytes")


def _write_uvarint(value: int, out: bytearray) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


class Message:
    """A message in all its versions."""

    def __init__(self, name: str) -> None:
        definition = read_definition(name)
        self.name = name
        self.api_key = definition.api_key
        self.versions = definition.versions
        self.flexible: Versions = definition.flexible
        self._definition = definition
        self._classes: dict[str, type[Record]] = {}
        make_classes(definition.struct, self._classes)
        self._decoders: dict[int, Decode] = {}
        self._encoders: dict[int, Encode] = {}

    def __call__(self, **fields: Any) -> Record:
        """Creates a message with the given fields. All other fields get their default values."""
        made: Record = self.struct(self.name)(**fields)
        return made

    def struct(self, name: str) -> type[Any]:
        """Returns the class of one of the message's structures. ``name`` is its name in the definition."""
        return self._classes[name]

    def decode(self, data: bytes, version: int, at: int = 0) -> Any:
        """Decodes the message that begins at ``at``. Raises :class:`~kafka_coord.wire.messages.BadMessage`."""
        return self.decode_at(data, version, at)[0]

    def decode_at(self, data: bytes, version: int, at: int = 0) -> tuple[Any, int]:
        """Decodes the message that begins at ``at``. Returns the message and the position where it ends."""
        decode = self._decoders.get(version)
        if decode is None:
            decode = self._decoders[version] = Decoders(self._definition, self._classes, version).message()
        return decode(data, at)

    def decoder(self, version: int, each: Mapping[str, Callable[[Decode], Decode]]) -> Decode:
        """Returns a decoder of its own in which ``each`` wraps the decoders of structures that contain others, by name.
        A wrapper may return anything in place of the structure."""
        return Decoders(self._definition, self._classes, version).message(each)

    def encode(self, message: Any, version: int, out: bytearray | None = None) -> bytearray:
        """Appends the message to ``out`` and returns ``out``. Raises :class:`~kafka_coord.wire.messages.BadMessage`."""
        encode = self._encoders.get(version)
        if encode is None:
            encode = self._encoders[version] = Encoders(self._definition, self._classes, version).message()
        out = bytearray() if out is None else out
        encode(message, out)
        return out


@cache
def message(name: str) -> Message:
    """Returns the message called ``name``, such as ``OffsetCommitResponse``."""
    return Message(name)
