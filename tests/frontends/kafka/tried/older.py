"""Brokers of releases before 3.9: one of each release line, with its Scala version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kafka_coord.dev.cluster.kafka import KafkaBroker, KafkaCluster, KafkaSettings
from kafka_coord.dev.cluster.server import JvmProgram
from tests.frontends.kafka.tried.fetching import java_jars

_OF_JAVA_8 = "javax.xml.bind:jaxb-api:2.3.1"
"""Classes that brokers of 0.11 need and later Java versions lack."""
OLDER = {
    "2.8.2": ("org.apache.kafka:kafka_2.13:2.8.2",),
    "1.1.1": ("org.apache.kafka:kafka_2.12:1.1.1",),
    "0.11.0.3": ("org.apache.kafka:kafka_2.11:0.11.0.3", _OF_JAVA_8),
}
_LOG4J = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %-5p [%t] %c: %m%n
"""


class OlderBroker(KafkaBroker):
    """A broker of that version. Its logging is log4j 1."""

    version = ""

    def _prepare(self) -> JvmProgram:
        program = super()._prepare()
        log4j = self.directory / "log4j.properties"
        log4j.write_text(_LOG4J, encoding="ascii")
        jars = java_jars(*OLDER[self.version])
        return replace(program, flags=(*program.flags, f"-Dlog4j.configuration=file:{log4j}"), class_path=jars)


def older(version: str) -> type[KafkaBroker]:
    """Returns the class of brokers of this version. Raises :class:`DevClusterError` if they cannot be fetched."""
    java_jars(*OLDER[version])
    return type("Broker", (OlderBroker,), {"version": version})


def older_cluster(
    version: str, directory: Path, zookeeper: str, _brokers: int, settings: KafkaSettings
) -> KafkaCluster:
    """A cluster of three brokers of this version."""
    broker = older(version)
    cluster = KafkaCluster(directory, zookeeper, brokers=3, settings=settings)
    cluster.brokers = tuple(
        broker(directory / f"kafka-{number}", number, zookeeper, settings=settings) for number in (1, 2, 3)
    )
    return cluster
