"""Kafka's own command line tools and its Java client, from its jars, all in one JVM."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway

from kafka_coord.dev.cluster.class_archive import archive_path, use
from kafka_coord.dev.cluster.jars import (
    KAFKA,
    KAFKA_VERSION,
    Artifact,
    Release,
    class_path,
)
from kafka_coord.spark.session import find_java

_RELEASE = Release(
    "the tools of Kafka",
    (
        *KAFKA.artifacts,
        Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        Artifact("net.sf.py4j", "py4j", "0.10.9.9"),
    ),
)
_TOOLS = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}


class KafkaTools:
    """Runs the tools as their shell scripts do."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway = gateway

    def __call__(self, script: str, *arguments: str) -> str:
        """Runs a tool, and returns its standard output. If it fails, raises an error with its error messages."""
        jvm = self._gateway.jvm
        given = self._gateway.new_array(jvm.java.lang.String, len(arguments))
        for number, argument in enumerate(arguments):
            given[number] = argument
        printed = jvm.java.io.ByteArrayOutputStream()
        before = jvm.java.lang.System.out
        jvm.java.lang.System.setOut(jvm.java.io.PrintStream(printed, True))
        try:
            functools.reduce(getattr, _TOOLS[script].split("."), jvm).main(given)
        finally:
            jvm.java.lang.System.setOut(before)
        told = str(printed.toString())
        assert "Error:" not in told, told
        return told

    def consumer(self, topic: str, **settings: str) -> JavaConsumer:
        """Starts a consumer. ``settings`` have an underscore for each dot."""
        jvm = self._gateway.jvm
        given = jvm.java.util.Properties()
        as_bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        settings |= {"key_deserializer": as_bytes, "value_deserializer": as_bytes}
        for name, value in settings.items():
            given.setProperty(name.replace("_", "."), value)
        made = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(given)
        made.subscribe(jvm.java.util.List.of(topic))
        return JavaConsumer(made, jvm.java.time.Duration.ofMillis(100))


class JavaConsumer:
    """A ``KafkaConsumer`` of Java, in the tools' JVM."""

    def __init__(self, consumer: Any, pause: Any) -> None:
        self._consumer, self._pause = consumer, pause

    def partitions(self) -> set[int]:
        """Polls, and returns the numbers of the partitions that are assigned. Raises ``Py4JJavaError``, as after a
        fatal error."""
        self._consumer.poll(self._pause)
        return {one.partition() for one in self._consumer.assignment()}

    def commit(self) -> None:
        self._consumer.commitSync()

    def close(self) -> None:
        self._consumer.close()


def brokers_archive() -> tuple[str, ...]:
    """The Java flags that use the brokers' class archive, for programs whose class path begins with the brokers'."""
    archive = archive_path("kafka", find_java(), class_path(KAFKA))
    return use(archive) if archive else ()


@contextmanager
def kafka_tools() -> Iterator[KafkaTools]:
    """One JVM that runs the tools. It ends when its standard input is closed."""
    command = [
        *(str(find_java().executable), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx192m", *brokers_archive()),
        *("-cp", os.pathsep.join(map(str, class_path(_RELEASE)))),
        *("py4j.GatewayServer", "--die-on-broken-pipe", "0"),
    ]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True) as process:
        assert process.stdout is not None
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(process.stdout.readline())))
        try:
            yield KafkaTools(gateway)
        finally:
            gateway.shutdown()
            process.kill()


def table(printed: str) -> list[dict[str, str]]:
    """The rows of a table, as cells by heading. Cells have no spaces, and the first heading is GROUP."""
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    assert ["GROUP"] in [line[:1] for line in lines], printed
    at = next(number for number, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[at], line, strict=False)) for line in lines[at + 1 :]]


def rows_of_four(printed: str) -> list[list[str]]:
    """The columns GROUP, TOPIC, PARTITION and NEW-OFFSET. The tool of 3.9 puts all rows into one line."""
    words = printed.split()
    assert words[:4] == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], printed
    return [words[at::4] for at in range(4, 8)]
