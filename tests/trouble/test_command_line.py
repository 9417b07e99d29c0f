"""The messages and exit codes of commands that are started in trouble."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_coord import Consumer
from kafka_coord.errors import ConsumerIdInUse, InvalidName, InvalidPattern
from kafka_coord.zk import layout
from tests.coordinator.harness import World
from tests.waiting import eventually

NOBODY = "127.0.0.1:1"
QUICKLY = {"KAFKA_COORD_ZOOKEEPER_CONNECT_TIMEOUT_MS": "500"}
Serve = Callable[..., "Serving"]


class Serving:
    """One ``kafka-coord serve`` process, with its output in a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        command = [sys.executable, "-m", "kafka_coord.cli.main", "serve", *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | QUICKLY)

    @property
    def output(self) -> str:
        return self._log.read_text()

    def says(self, *words: str, within_s: float = 20.0) -> str:
        def found() -> str | None:
            return next((line for line in self.output.splitlines() if all(word in line for word in words)), None)

        return eventually(found, within_s=within_s)

    def ends(self, within_s: float = 20.0) -> int:
        return self.process.wait(within_s)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    made: list[Serving] = []

    def start(*arguments: str) -> Serving:
        made.append(Serving(tmp_path / f"serve-{len(made)}.log", *arguments))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait(10)


def test_serve_waits_for_an_unreachable_zookeeper_and_stops_at_sigterm(serve: Serve):
    serving = serve("--broker-id", "1", "--zookeeper", NOBODY)
    serving.says("no ZooKeeper at 127.0.0.1:1")
    serving.process.send_signal(signal.SIGTERM)
    assert serving.ends() == 0
    assert "Traceback" not in serving.output


@pytest.mark.zookeeper
def test_serve_with_the_broker_id_of_a_running_instance_ends_with_the_reason(world: World, serve: Serve):
    world.instance(1).start_elected()
    serving = serve("--broker-id", "1", "--zookeeper", world.hosts, "--session-timeout-ms", "1000")
    assert serving.ends() == 2
    assert "broker id 1 is taken by an instance" in serving.output
    assert "Stop it, or use another broker id here" in serving.output
    assert "Traceback" not in serving.output
    assert world.value("/consumers/coordinator")["brokerid"] == 1


@pytest.mark.zookeeper
def test_serve_reports_that_its_chroot_does_not_exist(world: World, serve: Serve):
    serving = serve("--broker-id", "1", "--zookeeper", f"{world.hosts}/missing")
    serving.says("chroot", "missing", "does not exist")
    if serving.process.poll() is None:
        serving.process.send_signal(signal.SIGTERM)
    serving.ends()
    assert "Traceback" not in serving.output


def test_serve_with_invalid_settings_ends_at_once(serve: Serve):
    for wrong, said in (("--broker-id=x", "serve.broker_id: 'x'"), ("--zookeeper=h:1:2", "h:1:2")):
        serving = serve("--broker-id", "1", wrong)
        assert serving.ends() == 2
        assert said in serving.output
        assert "Traceback" not in serving.output


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"group": "no/slash", "topics": ["t"]}, InvalidName, "group name 'no/slash'"),
        ({"group": "g", "topics": ["t t"]}, InvalidName, "topic name 't t'"),
        ({"group": "g", "topics": ["t"], "consumer_id": ".."}, InvalidName, r"name '\.\.'"),
        ({"group": "g", "include": "("}, InvalidPattern, r"topic pattern '\('"),
    ],
)
def test_a_consumer_with_an_illegal_name_or_pattern_is_refused_before_it_connects(options, error, says):
    with pytest.raises(error, match=says):
        Consumer(zookeeper=NOBODY, **options)


@pytest.mark.zookeeper
def test_a_second_consumer_with_a_live_name_is_refused_and_the_error_names_the_holders_host(world: World):
    broker = {"version": 5, "endpoints": [f"PLAINTEXT://{NOBODY}"], "listener_security_protocol_map": {}}
    world.store.create(layout.broker(1), json.dumps(broker).encode(), ephemeral=True)
    world.instance(1).start_elected()
    world.consumer("c1", host="there").join()
    consumer = Consumer(
        zookeeper=world.hosts, group="delays", topics=["flights"], consumer_id="c1", session_timeout_ms=3_000
    )
    with consumer, pytest.raises(ConsumerIdInUse, match=r"'c1' of group 'delays' is held by a consumer on host there"):
        eventually(lambda: consumer.poll(0.2))
