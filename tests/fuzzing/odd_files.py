"""Odd files and odd ACLs, and the commands that read them: ``load``, ``audit``, ``acl`` and ``consume``."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from kafka_coord.errors import BadVersion, NoAuth, StoreError
from kafka_coord.groups.backup import Backup, Znodes, encoded, read_tree
from kafka_coord.zk.acl import ANYONE, Identity, Permission, grants
from kafka_coord.zk.acl_tree import AclChange, FoundAcl
from kafka_coord.zk.options import ZkOptions
from tests.fuzzing.mutations import Form, spoilt
from tests.fuzzing.odd_values import TEXTS, odd_json
from tests.monitor.written import Tree
from tests.simulation.store import SimulatedStore

OF_FILES = """
load {d}/records.csv --topic flights
load {d}/records.jsonl --topic flights --key customer
load - --format jsonl --topic flights
audit {d}/zookeeper
audit {d}/zookeeper --running -o json --group {g}
audit {d}/zookeeper --partition flights-0 --chroot /x
audit {d}/zookeeper --consumer c1
audit --group-log
acl plan
acl plan /consumers/groups/{g}/ids/c1
acl check
acl check -o json
acl apply --yes
consume --group {g} --topic flights --max-messages 1 --idle-exit 0.2
consume --group {g} --include fl.* --formatter full --idle-exit 0.2 --consumer-id c9
""".strip().splitlines()
"""Commands that read files, ACLs or records."""
_CSV = b'sale,customer,amount\n1,"o\'hara, j",12.50\n2,,007\n'
_JSONL = b'{"customer": "a", "amount": 1.5}\n\n{"customer": null, "amount": [1, {}]}\n'
_IDENTITIES = b"""coordinators = ["digest:coordinator:3zpCJSEkTHOmpyrRJKDsoGyH1Ao="]
operators = ["sasl:alice"]
readers = ["world:anyone"]
[consumers]
delays = ["digest:delays:1ZVDWOp9QMyKQQeVQMn5SFnWnb8="]
"""
_CREATE, _SET, _DELETE = 1, 5, 2
_FIRST = (1 << 32) + 1
"""The first zxid of a log that lacks nothing."""


class OddAcls(SimulatedStore):
    """A store whose znodes have odd ACLs, some of which may not be read or set. Any thread may use it."""

    chance = Random(0)
    lock = threading.RLock()
    """Of all stores, because they share a server."""

    def _ask(self, doing: str, effect: Callable[[], Any], *, writes: bool = False) -> Any:
        with self.lock:
            return super()._ask(doing, effect, writes=writes)

    def deliver(self) -> None:
        with self.lock:
            if not self._arrived and self.remote is not None:
                self._arrived, self.remote.outbox = self.remote.outbox, []
            told = self._arrived[:1]
            del self._arrived[:1]
        for event, watchers in told:
            for watcher in watchers:
                watcher(event)

    @property
    def options(self) -> ZkOptions:
        return ZkOptions()

    def read_acls(self, paths: Sequence[str]) -> tuple[FoundAcl | NoAuth | None, ...]:
        return tuple(self._acl(path) for path in paths)

    def _acl(self, path: str) -> FoundAcl | NoAuth | None:
        chance = self.chance
        odd = Identity(chance.choice(("digest", "x509", "", "ip", *TEXTS)), chance.choice(TEXTS))
        permissions = Permission(chance.randrange(32))
        found = FoundAcl(grants([(odd, permissions), (ANYONE, Permission.ALL)][: chance.randrange(3)]), 1)
        return chance.choice((found, found, found, NoAuth("odd", path), None))

    def write_acls(self, changes: Sequence[AclChange]) -> tuple[StoreError | None, ...]:
        return tuple(
            self.chance.choice((None, None, NoAuth("odd", one.path), BadVersion("odd", one.path))) for one in changes
        )


def write_files(folder: Path, tree: Tree, paths: Sequence[str], chance: Random) -> list[str]:
    """Writes the files that the commands read. Returns what is odd about them."""
    backup = b"".join(encoded(_odd_backup(read_tree(tree.store, ["zk1:2181"], ""), chance)))
    written = {
        "tree.backup": spoilt(chance, (backup,), Form.TEXT) if chance.random() < 0.3 else backup,
        "records.csv": spoilt(chance, (_CSV,), Form.TEXT),
        "records.jsonl": spoilt(chance, (_JSONL,), Form.TEXT),
        "identities.toml": spoilt(chance, (_IDENTITIES,), Form.TEXT) if chance.random() < 0.3 else _IDENTITIES,
        "zookeeper/version-2/log.1": _log(tree, paths, chance),
    }
    for name, data in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return [f"{name}: {data[:1_000]!r}" for name, data in written.items()]


def _odd_backup(backup: Backup, chance: Random) -> Backup:
    """Makes a few values odd, of a file whose checksum is right."""

    def odd(znodes: Znodes) -> Znodes:
        return {path: odd_data(data, chance) if chance.random() < 0.1 else data for path, data in znodes.items()}

    groups = {name: odd(znodes) for name, znodes in backup.groups.items()}
    return backup._replace(alone=odd(backup.alone), groups=groups)


def odd_data(data: bytes, chance: Random) -> bytes:
    """Returns the value of a znode as another would have written it."""
    try:
        return json.dumps(odd_json(json.loads(data), chance)).encode()
    except ValueError:
        return chance.choice([b"", b"\xff\xfe", b"null", b"[]", b"99999999999999999999", chance.randbytes(40)])


def _log(tree: Tree, paths: Sequence[str], chance: Random) -> bytes:
    """A log of ZooKeeper that creates, sets and deletes the tree's znodes, with a few odd values."""
    log = b"ZKLG" + struct.pack(">iq", 2, 0)
    for zxid, path in enumerate((*paths, *chance.sample(paths, min(8, len(paths)))), _FIRST):
        data = tree.store.get(path).data
        if data and chance.random() < 0.2:
            data = odd_data(data, chance)
        kind = _CREATE if zxid < _FIRST + len(paths) else chance.choice((_SET, _DELETE))
        body = _text(path.encode())
        if kind == _CREATE:
            acl = struct.pack(">ii", 1, 31) + _text(b"world") + _text(b"anyone")
            body += _text(data) + acl + bytes([chance.random() < 0.2]) + struct.pack(">i", zxid & 0xFF)
        elif kind == _SET:
            body += _text(data) + struct.pack(">i", chance.choice((1, 2, -1)))
        txn = struct.pack(">qiqqi", chance.choice((1, 2)), 1, zxid, 1_732_060_800_000 + zxid, kind) + body
        log += struct.pack(">qi", zlib.adler32(txn), len(txn)) + txn + b"B"
    return log if chance.random() < 0.8 else spoilt(chance, (log,), Form.BINARY)


def _text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value
