"""Reads and writes ``cluster.json``, which records the servers and processes of a local cluster for later commands."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.dev.cluster.identity import ProcessIdentity, boot_id
from kafka_coord.errors import DevClusterError, MalformedValue
from kafka_coord.model import json_fields

FILE_NAME = "cluster.json"
KINDS = ("coordinator", "kafka", "zookeeper")
"""The kinds of server, in the order in which they are stopped."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One server. ``kind`` is one of :data:`KINDS`. ``port`` is the port for Kafka or ZooKeeper clients, or None.
    ``other_port`` is the port at which a broker listens for its instance, or that of an instance's dashboard.
    ``controller_port`` is that of a broker in KRaft mode which is a controller too. ``process`` is None once the server
    has been stopped.
    """

    name: str
    kind: str
    log: Path
    port: int | None
    process: ProcessIdentity | None
    other_port: int | None = None
    controller_port: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "log": str(self.log),
            "port": self.port,
            "other_port": self.other_port,
            "controller_port": self.controller_port,
            "pid": self.process and self.process.pid,
            "started": self.process and self.process.started,
        }

    @classmethod
    def from_json(cls, value: json_fields.Json, where: str) -> ServerRecord:
        kind = json_fields.text(value, "kind", where)
        if kind not in KINDS:
            raise MalformedValue(where, f"field 'kind' is {kind!r}, not one of {', '.join(KINDS)}")
        process = None
        if value.get("pid") is not None:
            process = ProcessIdentity(
                pid=json_fields.number(value, "pid", where, at_least=2),
                started=json_fields.number(value, "started", where, at_least=0),
            )
        return cls(
            name=json_fields.text(value, "name", where),
            kind=kind,
            log=Path(json_fields.text(value, "log", where)),
            port=_port(value, "port", where),
            process=process,
            other_port=_port(value, "other_port", where),
            controller_port=_port(value, "controller_port", where),
        )


def _port(value: json_fields.Json, field: str, where: str) -> int | None:
    return None if value.get(field) is None else json_fields.number(value, field, where, at_least=1)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """The last recorded servers of a cluster, with the machine's boot id and the version of Kafka."""

    servers: tuple[ServerRecord, ...]
    boot_id: str
    kafka_version: str

    @property
    def kraft(self) -> bool:
        """Whether the brokers run in KRaft mode."""
        return any(server.controller_port for server in self.servers)

    def of_kind(self, kind: str) -> tuple[ServerRecord, ...]:
        return tuple(server for server in self.servers if server.kind == kind)

    def server(self, name: str) -> ServerRecord | None:
        """Returns the server with this name, as last recorded."""
        return next((server for server in self.servers if server.name == name), None)

    def running(self) -> tuple[ServerRecord, ...]:
        """Returns the servers whose recorded processes still run. A process with a reused pid does not count."""
        if self.boot_id != boot_id():
            return ()
        return tuple(server for server in self.servers if server.process is not None and server.process.alive())

    def to_json(self) -> dict[str, Any]:
        return {
            "version": json_fields.VERSION,
            "boot_id": self.boot_id,
            "kafka_version": self.kafka_version,
            "servers": [server.to_json() for server in self.servers],
        }

    @classmethod
    def from_json(cls, raw: bytes, where: str) -> ClusterRecord:
        value = json_fields.load(raw, where)
        return cls(
            servers=tuple(ServerRecord.from_json(server, where) for server in _objects(value, "servers", where)),
            boot_id=json_fields.text(value, "boot_id", where),
            kafka_version=json_fields.text(value, "kafka_version", where),
        )


def load(directory: Path) -> ClusterRecord | None:
    """Reads the record in ``directory``. Returns None if there is none. Raises :class:`DevClusterError` if it is
    malformed."""
    file = directory / FILE_NAME
    try:
        return ClusterRecord.from_json(file.read_bytes(), str(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DevClusterError(f"{file} cannot be read: {error}") from error
    except MalformedValue as error:
        left = "".join(f"\n    {pid}  {command}" for pid, command in processes_mentioning(directory))
        todo = (
            f"end these processes, whose command lines mention the cluster's directory, and remove the file:{left}"
            if left
            else "remove the file"
        )
        raise DevClusterError(f"{error}; the file no longer identifies any process, so {todo}") from error


def save(directory: Path, record: ClusterRecord) -> None:
    """Replaces the record in ``directory`` atomically. Raises OSError."""
    file = directory / FILE_NAME
    beside = file.with_suffix(".new")
    with beside.open("w", encoding="utf-8") as out:
        json.dump(record.to_json(), out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)


def processes_mentioning(directory: Path) -> list[tuple[int, str]]:
    """Returns the processes whose command lines contain a path below ``directory``, each with the beginning of its
    command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", errors="replace")
            except OSError:  # the process has ended, or belongs to somebody else
                continue
            if f"{directory}/" in command:
                found.append((int(entry.name), command[:60]))
    return sorted(found)


def _objects(value: Mapping[str, Any], field: str, where: str) -> list[json_fields.Json]:
    found = value.get(field)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise MalformedValue(where, f"field {field!r} is not a list of objects")
    return found
