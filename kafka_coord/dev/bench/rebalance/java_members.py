"""Compiles and runs members with Kafka's own client (``Members.java``, with the jars of Kafka 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.dev.bench.rebalance.peer import PeerPlace
from kafka_coord.dev.cluster.class_archive import COMPILER, run_java
from kafka_coord.dev.cluster.jars import KAFKA_4, class_path
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java

_SOURCE = Path(__file__).with_name("Members.java")
_COMPILING_S = 120.0


@dataclass(frozen=True, slots=True)
class JavaMembers:
    class_path: str

    def command(self, place: PeerPlace) -> Sequence[str]:
        """Returns the command that starts a process with members."""
        settings = (f"{name}={value}" for name, value in place.settings.items())
        return (
            *(str(find_java().executable), "-Xmx256m", "-XX:+UseSerialGC", "-cp", self.class_path, "Members"),
            *(place.bootstrap, place.group, place.topic, place.journal, *settings),
        )


def java_members(directory: Path, on_progress: Callable[[str], None]) -> JavaMembers:
    """Compiles the members into ``directory``. Raises :class:`DevClusterError`, for example without a compiler."""
    jars = class_path(KAFKA_4, on_progress)
    directory.mkdir(parents=True, exist_ok=True)
    found = ":".join(map(str, (directory, *jars)))
    ran = run_java([*COMPILER, "-d", str(directory), "-cp", found, str(_SOURCE)], _COMPILING_S)
    if ran.returncode != 0:
        raise DevClusterError(f"{_SOURCE.name} cannot be compiled; is Java a JDK? {ran.stdout.strip()[-500:]}")
    return JavaMembers(found)
