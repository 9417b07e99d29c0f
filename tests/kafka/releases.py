"""Runs brokers of the releases that the wire tests speak to: with ZooKeeper, 0.11 to 3.9, and 4.3 in KRaft mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka_coord.dev.cluster.kraft import KraftBroker

from kafka_coord.dev.cluster.jars import KAFKA, Artifact, Release, cached_jars
from kafka_coord.dev.cluster.kafka import KafkaBroker, KafkaSettings
from kafka_coord.dev.cluster.server import JvmProgram


def _of(organisation: str, *jars: str) -> tuple[Artifact, ...]:
    """``jars`` are names with versions, as in ``lz4:1.3.0``."""
    return tuple(Artifact(organisation, *jar.split(":")) for jar in jars)


def _release(version: str, kafka: tuple[str, ...], *others: tuple[Artifact, ...]) -> Release:
    """All jars of an old release: they work with their own versions of the libraries."""
    own = _of("org.apache.kafka", *(f"{one}:{version}" for one in ("kafka_2.12", "kafka-clients", *kafka)))
    metrics = _of("com.yammer.metrics", "metrics-core:2.2.0") + _of("log4j", "log4j:1.2.17")
    return Release(f"Kafka {version}", f"jars-{version}", (*own, *metrics, *sum(others, ())), 40)


def _jackson(version: str, databind: str) -> tuple[Artifact, ...]:
    jars = f"jackson-annotations:{version}", f"jackson-core:{databind[:6]}", f"jackson-databind:{databind}"
    return _of("com.fasterxml.jackson.core", *jars)


_ZKCLIENT = _of("com.101tec", "zkclient:0.10") + _of("org.apache.zookeeper", "zookeeper:3.4.10")
_SLF4J = _of("org.slf4j", "slf4j-api:1.7.25", "slf4j-log4j12:1.7.25")
OLD = {
    "0.11": _release(
        "0.11.0.3",
        (),
        *(_ZKCLIENT, _SLF4J, _of("net.sf.jopt-simple", "jopt-simple:5.0.3"), _of("net.jpountz.lz4", "lz4:1.3.0")),
        _of("org.scala-lang", "scala-library:2.12.2"),
        _of("javax.xml.bind", "jaxb-api:2.3.1"),  # Java had it up to 10
        _of("org.scala-lang.modules", "scala-parser-combinators_2.12:1.0.4"),
        _of("org.xerial.snappy", "snappy-java:1.1.2.6"),
    ),
    "1.1": _release(
        "1.1.1",
        (),
        *(_ZKCLIENT, _SLF4J, _of("net.sf.jopt-simple", "jopt-simple:5.0.4"), _of("org.lz4", "lz4-java:1.4.1")),
        _jackson("2.9.0", "2.9.6"),
        _of("org.scala-lang", "scala-library:2.12.4", "scala-reflect:2.12.4"),
        _of("com.typesafe.scala-logging", "scala-logging_2.12:3.8.0"),
        _of("org.xerial.snappy", "snappy-java:1.1.7.1"),
    ),
    "2.8": _release(
        "2.8.2",
        ("kafka-metadata", "kafka-raft"),
        *(_SLF4J, _of("net.sf.jopt-simple", "jopt-simple:5.0.4"), _of("org.lz4", "lz4-java:1.7.1")),
        _jackson("2.10.5", "2.10.5.1"),
        _of("com.fasterxml.jackson.dataformat", "jackson-dataformat-csv:2.10.5"),
        _of("com.fasterxml.jackson.datatype", "jackson-datatype-jdk8:2.10.5"),
        _of("com.fasterxml.jackson.module", "jackson-module-scala_2.12:2.10.5", "jackson-module-paranamer:2.10.5"),
        _of("com.thoughtworks.paranamer", "paranamer:2.8"),
        _of("org.apache.zookeeper", "zookeeper:3.5.9", "zookeeper-jute:3.5.9"),
        _of("io.netty", *(f"netty-{one}:4.1.50.Final" for one in ("buffer", "codec", "common", "handler"))),
        _of("io.netty", *(f"netty-{one}:4.1.50.Final" for one in ("resolver", "transport"))),
        _of("io.netty", *(f"netty-transport-native-{one}:4.1.50.Final" for one in ("epoll", "unix-common"))),
        _of("org.scala-lang", "scala-library:2.12.13", "scala-reflect:2.12.13"),
        _of("org.scala-lang.modules", "scala-collection-compat_2.12:2.3.0", "scala-java8-compat_2.12:0.9.1"),
        _of("com.typesafe.scala-logging", "scala-logging_2.12:3.9.2"),
        _of("commons-cli", "commons-cli:1.4"),
        _of("org.xerial.snappy", "snappy-java:1.1.8.1"),
        _of("com.github.luben", "zstd-jni:1.4.9-1"),
    ),
}
_LOG4J = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %-5p [%t] %c{1}: %m%n
"""
_START_S = 180.0
"""Without an archive of its classes, an old release starts slowly."""
RELEASES = (*OLD, "3.9", "4.3")


class OldBroker(KafkaBroker):
    """A broker of an earlier release, with its own libraries."""

    release: Release = KAFKA

    def _prepare(self) -> JvmProgram:
        program = super()._prepare()
        log4j = self.directory / "log4j.properties"  # of log4j 1
        log4j.write_text(_LOG4J, "ascii")
        flags = (*program.flags, f"-Dlog4j.configuration=file:{log4j}")
        return JvmProgram(flags, cached_jars(self.release), program.main_class, program.arguments)


@contextmanager
def broker_of(release: str, directory: Path, zookeeper: str) -> Iterator[KafkaBroker | KraftBroker]:
    """Starts a broker of the release. It has a listener for its instance, whose groups are in ``zookeeper``."""
    if release == "4.3":
        broker: KafkaBroker | KraftBroker = KraftBroker(directory, zookeeper=zookeeper)
    else:
        settings = KafkaSettings(for_instances=True)
        broker = (OldBroker if release in OLD else KafkaBroker)(directory, 1, zookeeper, settings=settings)
        if isinstance(broker, OldBroker):
            broker.release = OLD[release]
    try:
        broker.start(_START_S)
        yield broker
    finally:
        broker.kill()  # a clean stop takes seconds
