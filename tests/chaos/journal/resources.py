"""The resources that processes use."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from kafka_coord.dev.json_lines import Appending, read_lines

RESOURCES = "resources.jsonl"


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources of one process, with its ``target`` as in events. With the ``target`` ``zookeeper``, only
    ``znodes`` is set. ``cpu_s`` is the CPU time since the start of the process."""

    t: float
    target: str
    pid: int = 0
    rss_bytes: int = 0
    threads: int = 0
    descriptors: int = 0
    sockets: int = 0
    znodes: int = 0
    cpu_s: float = 0.0


class ResourceWriter(Appending):
    """Appends to ``resources.jsonl``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / RESOURCES)

    def write(self, usage: Usage) -> None:
        self.append(asdict(usage))


def read_resources(directory: Path) -> tuple[Usage, ...]:
    return tuple(read_lines(directory / RESOURCES, lambda value: Usage(**value)))
