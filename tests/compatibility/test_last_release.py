"""The last release's instances, consumers and znodes beside those of this checkout, forth and back.

Both releases run as processes, the last one from an archive of its commit (docs/upgrading.md).
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_coord.dev.cluster.kafka import KafkaCluster
from tests.cli.running import environment
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
LAST_RELEASE = "0c7860b"
"""Until 0.1.0 is out, the commit before the extras. Then: the tag of the last release."""
RECORDS = 40
PARTITIONS = 4


@pytest.fixture(scope="module")
def last_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the last release, in an empty directory."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed: it has the last release")
    sources = tmp_path_factory.mktemp("last-release")
    archive = subprocess.run(
        ["git", "archive", LAST_RELEASE, "kafka_coord"], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    if archive.returncode:
        pytest.skip(f"this clone lacks the commit of the last release, {LAST_RELEASE}: run `git fetch --unshallow`")
    subprocess.run(["tar", "-x", "-C", str(sources)], input=archive.stdout, check=True, timeout=60)
    where = subprocess.run(
        [sys.executable, "-c", "import kafka_coord; print(kafka_coord.__file__)"],
        cwd=sources,
        env=environment(PYTHONPATH=str(sources)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert where.stdout.startswith(str(sources)), "programs would run this checkout"
    return sources


class Party:
    """Programs of both releases on one cluster, and what their consumers printed."""

    def __init__(self, zookeeper: str, last_release: Path, directory: Path) -> None:
        self._zookeeper = zookeeper
        self._sources = {"last": last_release, "this": ROOT}
        self._directory = directory
        self._running = ExitStack()

    def start(self, release: str, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts ``kafka-coord`` of a release; its standard output goes to the file ``name``."""
        with (self._directory / name).open("ab") as out, (self._directory / f"{name}.err").open("ab") as err:
            process = self._running.enter_context(
                subprocess.Popen(self._command(*arguments), stdout=out, stderr=err, **self._place(release))
            )
        self._running.callback(process.kill)
        return process

    def ask(self, release: str, *arguments: str) -> Any:
        """The JSON that a command of a release prints; ``None`` if it fails."""
        done = subprocess.run(
            [*self._command(*arguments), "-o", "json"],
            **self._place(release),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def printed(self) -> list[str]:
        files = (file for file in self._directory.glob("consumer-*") if file.suffix != ".err")
        return [line for file in files for line in file.read_text().splitlines()]

    def told(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self._directory.glob("*.err")))

    def stop(self) -> None:
        self._running.close()

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "kafka_coord.cli.main", *arguments, "-z", self._zookeeper]

    def _place(self, release: str) -> dict[str, Any]:
        """Python looks into the working directory first, so that is the release's too."""
        sources = self._sources[release]
        return {"cwd": sources, "env": environment(PYTHONPATH=str(sources))}


@pytest.fixture
def party(kafka_cluster: KafkaCluster, last_release: Path, tmp_path: Path) -> Iterator[Party]:
    made = Party(kafka_cluster.zookeeper, last_release, tmp_path)
    yield made
    made.stop()


@pytest.mark.kafka
def test_instances_and_consumers_of_two_releases_share_a_group_forth_and_back(
    party: Party, kafka_cluster: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    topic, group = make_topic(PARTITIONS), "two-releases"
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    numbers = itertools.count()
    sent: list[str] = []

    def send() -> None:
        for _ in range(RECORDS):
            sent.append(str(next(numbers)))
            producer.produce(topic, sent[-1], partition=int(sent[-1]) % PARTITIONS)
        assert producer.flush(60) == 0

    def elected(broker: int, *, seen_by: str) -> None:
        eventually(lambda: (party.ask(seen_by, "coordinator", "status") or {}).get("coordinator") == broker, 60, 0.5)

    def shared_by(*members: str, seen_by: str) -> None:
        """The group comes to rest with these members, each with partitions; then all records have arrived once."""

        def settled() -> bool:
            found = party.ask(seen_by, "groups", "describe", group)
            return (
                found is not None
                and found["state"] == "Stable"
                and {one["consumer"] for one in found["members"]} == set(members)
                and all(one["owned"] for one in found["members"])
            )

        eventually(settled, 60, 0.5)
        send()
        eventually(lambda: len(party.printed()) >= len(sent), 60)
        assert sorted(party.printed(), key=int) == sent, party.told()

    def consume(release: str, name: str) -> subprocess.Popen[bytes]:
        arguments = ("--group", group, "--topic", topic, "--consumer-id", name, "--from-beginning")
        return party.start(release, f"consumer-{name}", "consume", *arguments)

    old = party.start("last", "instance-1", "serve", "--broker-id", "1")
    elected(1, seen_by="last")
    consume("last", "old")
    newer = consume("this", "new")
    shared_by("old", "new", seen_by="last")

    new = party.start("this", "instance-2", "serve", "--broker-id", "2")
    eventually(
        lambda: len((party.ask("this", "coordinator", "status") or {"instances": ()})["instances"]) == 2, 60, 0.2
    )
    old.send_signal(signal.SIGTERM)
    assert old.wait(60) == 0
    elected(2, seen_by="this")
    shared_by("old", "new", seen_by="this")

    party.start("last", "instance-1", "serve", "--broker-id", "1")
    eventually(
        lambda: len((party.ask("last", "coordinator", "status") or {"instances": ()})["instances"]) == 2, 60, 0.2
    )
    new.send_signal(signal.SIGTERM)
    assert new.wait(60) == 0
    elected(1, seen_by="last")
    newer.send_signal(signal.SIGTERM)
    assert newer.wait(60) == 0
    shared_by("old", seen_by="last")
    assert "Traceback" not in party.told()
