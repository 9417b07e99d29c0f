"""Backups of the coordination tree (ADR 58): which znodes a backup takes, its file, and how a tree is read into one.

The file is text. Its first line is a JSON object with the version, where the tree was, and what ran on it. Each further
line holds the znodes of one group, or those that belong to no group, as they are. The last line is the checksum of all
bytes before it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from kafka_coord import __version__
from kafka_coord.errors import MalformedValue, RequestRefused, SettingsError, UnknownVersion
from kafka_coord.model import CoordinatorInfo, Ledger
from kafka_coord.model import json_fields as fields
from kafka_coord.model.codec import Count, JsonObject
from kafka_coord.model.names import LOG_PARTITIONS
from kafka_coord.model.sequences import parts
from kafka_coord.zk import layout
from kafka_coord.zk.instance import read_restored
from kafka_coord.zk.root import read_cluster_record
from kafka_coord.zk.store import GetChildren, GetData, Node, Read, Stat, Store

VERSION = 1
GROUPS_AT_ONCE = 200
MOST_READS = 20
"""How often a group is read again that changes while it is read."""

_G = "/consumers/groups/<group>"
TAKEN = frozenset(
    {
        "/consumers/paused",
        "/consumers/history",
        "/consumers/retention",
        "/consumers/coordinator_epoch",
        "/consumers/kafka/<partition>",
        "/consumers/kinds/<partition>",
        _G,
        f"{_G}/paused",
        f"{_G}/assignment",
        f"{_G}/history",
        f"{_G}/owners/<consumer>",
        f"{_G}/held",
        f"{_G}/offsets",
        f"{_G}/offsets/<topic>",
        f"{_G}/offsets/<topic>/<partition>",
        f"{_G}/unresolved/<what>",
        f"{_G}/details/<topic>/<partition>",
    }
)
LEFT_OUT: Mapping[str, str] = {
    "/consumers": "empty",
    "/consumers/cluster": "the new tree has an id and a generation of its own",
    "/consumers/cluster/<everything>": "the new tree finds its brokers and topics itself",
    "/consumers/coordinator": "of a session",
    "/consumers/coordinators": "of sessions",
    "/consumers/coordinators/<instance>": "of a session",
    "/consumers/rights": "of sessions",
    "/consumers/rights/<instance>": "of a session",
    "/consumers/requests": "whoever asked is no longer there",
    "/consumers/requests/<request>": "whoever asked is no longer there",
    "/consumers/successor": "it names a running instance",
    "/consumers/heard": "it is about sessions",
    "/consumers/restored": "it is about an earlier restore",
    "/consumers/kafka": "empty",
    "/consumers/kinds": "empty",
    "/consumers/kinds/<partition>/<instance>": "of a session",
    "/consumers/groups": "empty",
    f"{_G}/ids": "of sessions",
    f"{_G}/ids/<consumer>": "of a session",
    f"{_G}/channel": "of sessions",
    f"{_G}/channel/<consumer>": "its version fences a session",
    f"{_G}/channel/<consumer>/<command>": "it is for a session",
    f"{_G}/owners": "empty",
    f"{_G}/unresolved": "empty",
    f"{_G}/details": "empty",
    f"{_G}/details/<topic>": "empty",
    f"{_G}/settled": "it consists of zxids",
}
"""Why a backup leaves a znode out."""

_ALONE = (layout.PAUSED, layout.HISTORY, layout.RETENTION, layout.COORDINATOR_EPOCH)
_BELOW_A_GROUP = ("assignment", "history", "paused", "held")
_PARENTS = ("owners", "unresolved", "offsets", "details")


def place_of(path: str) -> str | None:
    """Returns the place of a znode in :data:`TAKEN` or :data:`LEFT_OUT`, or ``None``."""
    segments = path.split("/")
    if len(segments) > 4 and path.startswith(f"{layout.GROUPS}/"):
        return _BELOW.get((segments[4], len(segments)))
    return next((place for place, found in _ELSEWHERE.items() if found.fullmatch(path)), None)


_PLACES = (*TAKEN, *LEFT_OUT)
_BELOW = {(one.split("/")[4], len(one.split("/"))): one for one in _PLACES if one.startswith(f"{_G}/")}
_ELSEWHERE = {
    one: re.compile(re.sub(r"<\w+>", "[^/]+", one.replace("<everything>", ".+")))
    for one in _PLACES
    if not one.startswith(f"{_G}/")
}
Znodes = Mapping[str, bytes]
"""Values by path."""


class RanThere(JsonObject, frozen=True):
    """An instance that was running when the backup was made."""

    broker_id: int
    endpoints: Mapping[str, str]


class BackupHeader(JsonObject, frozen=True, tag_field="kafka_coord_backup", tag=VERSION):
    """The first line. ``is_still`` says that no instance ran while the tree was read, none was elected meanwhile, and
    none had been waiting after a restore: unless one has run since, the ledgers are those of the end.
    ``longest_session_ms`` is the longest session timeout of any member."""

    release: str
    made_ms: Count
    zookeeper: tuple[str, ...]
    chroot: str
    tree: str
    generation: Count
    kafka: str | None
    instances: tuple[RanThere, ...]
    is_still: bool
    longest_session_ms: Count
    groups: Count
    offsets: Count


class Backup(NamedTuple):
    """What a tree consists of. ``groups`` maps names to znodes."""

    header: BackupHeader
    alone: Znodes
    groups: Mapping[str, Znodes]


# --- reading a tree ------------------------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """A group as it was read. ``state`` identifies what its znodes are, except for the values of its offsets."""

    znodes: dict[str, bytes]
    state: dict[str, tuple[int, ...]]


def read_tree(
    store: Store, servers: Sequence[str], chroot: str, told: Callable[[int, int], None] = lambda _done, _all: None
) -> Backup:
    """Reads the tree, also while everything runs. ``told`` hears how many of the groups have been read.

    Each group is consistent: it is read, and then looked at again. If anything but an offset was written in between, it
    is read anew. Offsets may differ in age by as long as that takes, but each was committed, and belongs to the topic
    that is named above it. Raises :class:`RequestRefused` if there is no tree, or if a group does not stand still.
    """
    store.sync(layout.CONSUMERS)
    before = _elections(store)
    record = read_cluster_record(store)
    if record is None or store.exists(layout.GROUPS) is None:
        raise RequestRefused(
            f"there is no {layout.GROUPS} at {', '.join(servers)}{chroot}, so there is nothing to back up"
        )
    alone = _read_alone(store)
    names, done = store.children(layout.GROUPS), 0
    groups: dict[str, Znodes] = {}
    for some in parts(names, GROUPS_AT_ONCE):
        groups |= _read_groups(store, some)
        done += len(some)
        told(done, len(names))
    instances, after, restored = _instances(store), _elections(store), read_restored(store)
    waits = restored is not None and restored.wait_ms > 0
    header = BackupHeader(
        release=__version__,
        made_ms=int(time.time() * 1000),
        zookeeper=tuple(servers),
        chroot=chroot,
        tree=record.tree,
        generation=record.generation,
        kafka=record.kafka,
        instances=instances,
        is_still=before == after and not (before[0] or instances or waits),
        longest_session_ms=max(map(_longest_session_ms, groups.values()), default=0),
        groups=len(groups),
        offsets=sum(is_offset(path) for znodes in groups.values() for path in znodes),
    )
    return Backup(header, alone, groups)


def _elections(store: Store) -> tuple[bool, int]:
    """Returns whether an instance is elected, and how often the epoch was written."""
    elected, epoch = store.read_many([GetData(layout.COORDINATOR), GetData(layout.COORDINATOR_EPOCH)])
    return isinstance(elected, Node), epoch.stat.version if isinstance(epoch, Node) else -1


def _read_alone(store: Store) -> dict[str, bytes]:
    (terms,) = store.read_many([GetChildren(layout.LOG_PARTITIONS)])
    partitions = terms if isinstance(terms, tuple) else ()
    kinds = map(layout.kinds, range(LOG_PARTITIONS))
    paths = [*_ALONE, *(f"{layout.LOG_PARTITIONS}/{one}" for one in partitions), *kinds]
    found = zip(paths, store.read_many([GetData(path) for path in paths]), strict=True)
    return {path: node.data for path, node in found if isinstance(node, Node)}


def _instances(store: Store) -> tuple[RanThere, ...]:
    (listed,) = store.read_many([GetChildren(layout.COORDINATORS)])
    paths = [f"{layout.COORDINATORS}/{one}" for one in (listed if isinstance(listed, tuple) else ())]
    found = []
    for path, node in zip(paths, store.read_many([GetData(path) for path in paths]), strict=True):
        with suppress(MalformedValue):
            if isinstance(node, Node):
                info = CoordinatorInfo.from_bytes(node.data, path)
                found.append(RanThere(info.broker_id, info.endpoints))
    return tuple(found)


def _read_groups(store: Store, names: Sequence[str]) -> dict[str, Znodes]:
    read: dict[str, Znodes] = {}
    for _ in range(MOST_READS):
        seen = _walk(store, names)
        again = _state(store, {name: one.state for name, one in seen.items()})
        read |= {name: one.znodes for name, one in seen.items() if again[name] == one.state}
        names = [name for name in names if name in seen and again[name] != seen[name].state]
        if not names:
            return read
    raise RequestRefused(
        f"group {names[0]} was changed each of the {MOST_READS} times that it was read; try again, or pause it"
    )


def _walk(store: Store, names: Sequence[str]) -> dict[str, _Seen]:
    """Reads all that is taken of groups, level by level. Identities of topics are read before offsets, so that an
    offset belongs to the identity, unless that was changed, which :func:`_state` notices."""
    roots = {layout.group(name): name for name in names}
    below = [f"{root}/{one}" for root in roots for one in (*_BELOW_A_GROUP, *_PARENTS)]
    listed = [path for path in below if path.rpartition("/")[2] in _PARENTS]
    first = _read(store, [GetData(path) for path in (*roots, *below)] + [GetChildren(path) for path in listed])
    second = [f"{path}/{name}" for path in listed for name in _names(first, path)]
    deeper = [path for path in second if path.split("/")[4] in {"offsets", "details"}]
    found = first | _read(store, [GetData(path) for path in second] + [GetChildren(path) for path in deeper])
    third = [f"{path}/{name}" for path in deeper for name in _names(found, path)]
    found |= _read(store, [GetData(path) for path in third])
    seen = {name: _Seen({}, {}) for root, name in roots.items() if isinstance(found[GetData(root)], Node)}
    for read, node in found.items():
        name = read.path.split("/")[3]
        if name not in seen or not isinstance(node, Node):
            continue
        if place_of(read.path) in TAKEN:
            seen[name].znodes[read.path] = node.data
        if (facts := _facts(read.path, node.stat)) is not None:
            seen[name].state[read.path] = facts
    return seen


def _state(store: Store, states: Mapping[str, Mapping[str, tuple[int, ...]]]) -> dict[str, dict[str, tuple[int, ...]]]:
    found = _read(store, [GetData(path) for state in states.values() for path in state])
    return {
        name: {
            path: facts
            for path in state
            if isinstance(node := found[GetData(path)], Node) and (facts := _facts(path, node.stat)) is not None
        }
        for name, state in states.items()
    }


def _facts(path: str, stat: Stat) -> tuple[int, ...] | None:
    """Returns what changes when the znode does, or when one that is listed below it is created or deleted."""
    below = path.split("/")[4:]
    if len(below) == 3:
        return None
    if len(below) == 2 and below[0] in {"offsets", "details"}:  # the first commit of a partition changes nothing else
        return (stat.czxid, stat.mzxid)
    return (stat.czxid, stat.mzxid, stat.pzxid if below and below[0] in _PARENTS else 0)


def _read(store: Store, reads: Sequence[Read]) -> dict[Read, Any]:
    return dict(zip(reads, store.read_many(reads), strict=True))


def _names(found: Mapping[Read, Any], path: str) -> tuple[str, ...]:
    listed = found[GetChildren(path)]
    return listed if isinstance(listed, tuple) else ()


def is_offset(path: str) -> bool:
    below = path.split("/")[4:]
    return len(below) == 3 and below[0] == "offsets"


def ledgers_in(znodes: Znodes) -> Iterator[Ledger]:
    """Yields the ledgers among a group's znodes. Raises :class:`MalformedValue`: who holds what must be known."""
    for path, data in znodes.items():
        if place_of(path) == f"{_G}/owners/<consumer>":
            yield Ledger.from_bytes(data, path, consumer=path.rpartition("/")[2])


def _longest_session_ms(znodes: Znodes) -> int:
    try:
        return max((one.session_timeout_ms for one in ledgers_in(znodes)), default=0)
    except MalformedValue:  # a restore then waits before it lets anybody start
        return 0


# --- the file ------------------------------------------------------------------------------------------------------


class _FileLine(JsonObject, frozen=True, omit_defaults=True):
    """One line of the file: the znodes of a group, or of none. ``binary`` holds in base64 what is not text."""

    group: str | None = None
    znodes: Mapping[str, str] = {}
    binary: Mapping[str, str] = {}
    END: ClassVar[str] = "sha256"


def encoded(backup: Backup) -> Iterator[bytes]:
    """Yields the lines of the file."""
    hashed = hashlib.sha256()
    lines = ((None, backup.alone), *sorted(backup.groups.items()))
    for line in (backup.header.to_bytes(), *(_line(group, znodes) for group, znodes in lines)):
        hashed.update(line + b"\n")
        yield line + b"\n"
    yield fields.dump({_FileLine.END: hashed.hexdigest()}) + b"\n"


def _line(group: str | None, znodes: Znodes) -> bytes:
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for path, data in znodes.items():
        try:
            text[path] = data.decode()
        except UnicodeDecodeError:
            binary[path] = base64.b64encode(data).decode()
    return _FileLine(group, text, binary).to_bytes()


def write_file(file: Path, backup: Backup) -> None:
    """Writes the file whole or not at all: beside its place, to the disk, and only then in its place. Only the owner
    may read it. Raises :class:`SettingsError`."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)  # with mode 0600
    except OSError as error:
        raise SettingsError(f"cannot write {file}: {error.strerror}") from error
    try:
        with open(descriptor, "wb") as beside:
            beside.writelines(encoded(backup))
            beside.flush()
            os.fsync(beside.fileno())
        os.replace(name, file)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise SettingsError(f"cannot write {file}, which is as it was: {error.strerror}") from error
        raise
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_file(file: Path) -> tuple[Backup, str]:
    """Returns what the file holds, and its checksum. Raises :class:`SettingsError` if it cannot be opened, and
    :class:`MalformedValue` if it is not a backup, or is cut off or changed."""
    try:
        whole = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from error
    where = str(file)
    if not whole.startswith(b'{"kafka_coord_backup":'):
        raise MalformedValue(where, "it is not a backup of kafka-coord")
    body, _, last = whole.rstrip(b"\n").rpartition(b"\n")
    checksum = hashlib.sha256(body + b"\n").hexdigest()
    try:
        ended = json.loads(last)
    except (ValueError, RecursionError):
        ended = None
    header, *lines = body.split(b"\n") if body else [last]
    version = fields.load_object(header, where).get("kafka_coord_backup") if body else VERSION
    if version != VERSION:
        raise UnknownVersion(where, f"version {fields.shown(version)}; this release reads version {VERSION}")
    if not isinstance(ended, dict) or ended.get(_FileLine.END) != checksum:
        raise MalformedValue(where, "it is cut off or was changed: its checksum is missing or does not match")
    found = BackupHeader.from_json(fields.load_object(header, where), where)
    alone: dict[str, bytes] = {}
    groups: dict[str, Znodes] = {}
    for raw in lines:
        line = _FileLine.from_json(fields.load_object(raw, where), where)
        znodes = {path: text.encode() for path, text in line.znodes.items()}
        try:
            znodes |= {path: base64.b64decode(text) for path, text in line.binary.items()}
        except ValueError as error:
            raise MalformedValue(where, f"a value is not base64: {error}") from None
        if line.group is None:
            alone = znodes
        else:
            groups[line.group] = znodes
    return Backup(found, alone, groups), checksum
