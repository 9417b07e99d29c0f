"""The tested clients, and how to start a member of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_coord.spark.session import find_java
from tests.frontends.kafka.tried.fetching import (
    MEMBERS,
    go_program,
    java_class_path,
    java_classes,
    node_packages,
    python_packages,
)


@dataclass(frozen=True, slots=True)
class Program:
    """A member's command, without the arguments that all members take."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contender:
    """A client in one version. ``program`` fetches it if necessary, and raises :class:`DevClusterError`."""

    name: str
    program: Callable[[], Program]
    strategies: tuple[str, ...] = ("range",)
    static: bool = False
    tells_commits: bool = True


def _python(library: str, *requirements: str) -> Callable[[], Program]:
    def make() -> Program:
        path = {"PYTHONPATH": str(python_packages(*requirements))} if requirements else {}
        return Program([sys.executable, str(MEMBERS / "member.py"), library], path)

    return make


def java_program(class_path: str, program: str = "Member", flags: Sequence[str] = ()) -> Program:
    flags = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN", *flags)
    java = [str(find_java().executable), *flags]
    return Program([*java, "-cp", os.pathsep.join([class_path, str(java_classes(program, class_path))]), program])


def _java(artifact: str, program: str = "Member") -> Callable[[], Program]:
    return lambda: java_program(java_class_path(f"org.apache.kafka:{artifact}"), program)


def _go(name: str, *modules: str) -> Callable[[], Program]:
    return lambda: Program([str(go_program(name, *modules))])


def _node(script: str, *requirements: str) -> Callable[[], Program]:
    def make() -> Program:
        return Program(["node", str(MEMBERS / script)], {"NODE_PATH": str(node_packages(*requirements))})

    return make


BOTH = ("range", "cooperative-sticky")
CONTENDERS = (
    Contender("confluent-kafka 2.9.0", _python("confluent-kafka"), BOTH, static=True),
    Contender("confluent-kafka 2.16.1", _python("confluent-kafka", "confluent-kafka==2.16.1"), BOTH, static=True),
    Contender("kafka-python 3.0.12", _python("kafka-python", "kafka-python==3.0.12"), static=True),
    Contender("kafka-python 2.0.6", _python("kafka-python", "kafka-python==2.0.6")),
    Contender("aiokafka 0.14.0", _python("aiokafka", "aiokafka==0.14.0"), static=True),
    Contender("kafka-clients 2.8.2", _java("kafka-clients:2.8.2"), BOTH, static=True),
    Contender("kafka-clients 3.9.2", _java("kafka-clients:3.9.2"), BOTH, static=True),
    Contender("kafka-clients 4.3.0", _java("kafka-clients:4.3.0"), BOTH, static=True),
    Contender("kafka-streams 3.9.2", _java("kafka-streams:3.9.2", "Streams"), ("stream",), tells_commits=False),
    Contender("franz-go 1.22.3", _go("franz_go", "github.com/twmb/franz-go@v1.22.3"), BOTH, static=True),
    Contender("Sarama 1.61.1", _go("sarama", "github.com/IBM/sarama@v1.61.1")),
    Contender("KafkaJS 2.2.4", _node("kafkajs.js", "kafkajs@2.2.4")),
)


def environment(program: Program) -> dict[str, str]:
    """The environment without this project's ``PYTHONPATH``: a member must not import this project."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(program.environment)
