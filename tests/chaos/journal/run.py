"""The setup of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kafka_coord.errors import MalformedValue

RUN = "run.json"


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the run, with either ``topics`` or ``pattern``, which is a subscription's white list.

    ``members`` are the kinds of its consumers, in words. A ``latest`` group must read only the records after its first
    start. An ``assigned`` group is client-assigned, beside managed ones.
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    members: tuple[str, ...] = ()
    latest: bool = False
    assigned: bool = False


@dataclass(frozen=True, slots=True)
class Participant:
    """A consumer of the run, with its id in the group, its kind, and its options."""

    name: str
    group: str
    kind: str = "library"
    session_timeout_ms: int = 10_000
    rejoin_grace_ms: int = 0


@dataclass(frozen=True, slots=True)
class Setup:
    """The machine and versions of the run, and the times (ms) from which the judge derives its bounds.
    ``session_timeouts_ms`` is by role: ``serve``, ``consumer``, ``kafka``. ``versions`` is by part, such as python,
    kafka and librdkafka.
    """

    cores: int
    memory_bytes: int
    versions: Mapping[str, str]
    session_timeouts_ms: Mapping[str, int]
    rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Run:
    """``zookeeper_logs`` are the servers' directories that contain ``version-2``, relative to the run's directory. The
    znodes of the coordinator and Kafka are below ``chroot``. ``started`` is monotonic, and ``started_wall`` since 1970
    (s). ``clients`` is ``kafka`` if all consumers are stock Kafka clients, and ``mixed`` if every group has some."""

    seed: int
    minutes: float
    commit: str
    started: float
    started_wall: float
    setup: Setup
    groups: tuple[Group, ...]
    consumers: tuple[Participant, ...]
    zookeeper_logs: tuple[str, ...] = ()
    chroot: str = ""
    clients: str = "library"


def write_run(directory: Path, run: Run) -> None:
    """Writes ``run.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RUN).write_text(json.dumps({"version": 1} | asdict(run), indent=1) + "\n")


def read_run(directory: Path) -> Run:
    """Reads ``run.json``. Raises :class:`MalformedValue` if it is missing or unreadable."""
    path = directory / RUN
    try:
        value = json.loads(path.read_bytes())
        if value.pop("version") != 1:
            raise MalformedValue(str(path), "is of a version this release does not know")
        groups = [
            Group(**group | {"topics": tuple(group["topics"]), "members": tuple(group["members"])})
            for group in value["groups"]
        ]
        return Run(
            **value
            | {
                "setup": Setup(**value["setup"]),
                "groups": tuple(groups),
                "consumers": tuple(Participant(**consumer) for consumer in value["consumers"]),
                "zookeeper_logs": tuple(value["zookeeper_logs"]),
            }
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MalformedValue(str(path), f"does not describe a run ({error!r})") from error
