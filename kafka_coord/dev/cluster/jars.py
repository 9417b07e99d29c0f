"""The jars of ZooKeeper and Kafka, each fetched once from Maven's central repository into the cache (ADR 61)."""

from __future__ import annotations

import hashlib
import os
import ssl
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.dev.cluster.cache import cache_directory
from kafka_coord.errors import DevClusterError

REPOSITORY_VARIABLE = "KAFKA_COORD_MAVEN"
_AT_ONCE = 8
_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Artifact:
    """The Maven coordinates of a jar."""

    organisation: str
    name: str
    version: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a program, and the jars that it needs."""

    name: str
    artifacts: Sequence[Artifact]


def _all(organisation: str, version: str, *names: str) -> tuple[Artifact, ...]:
    return tuple(Artifact(organisation, name, version) for name in names)


ZOOKEEPER = Release(
    "ZooKeeper 3.9.5",
    (
        *_all("org.apache.zookeeper", "3.9.5", "zookeeper", "zookeeper-jute"),
        *_all("io.netty", "4.2.13.Final", "netty-buffer", "netty-codec", "netty-codec-base", "netty-common"),
        *_all("io.netty", "4.2.13.Final", "netty-handler", "netty-resolver", "netty-transport"),
        *_all("io.netty", "4.2.13.Final", "netty-transport-classes-epoll", "netty-transport-native-unix-common"),
        Artifact("org.slf4j", "slf4j-api", "2.0.17"),
        *_all("org.apache.logging.log4j", "2.25.4", "log4j-slf4j2-impl", "log4j-api", "log4j-core"),
        Artifact("io.dropwizard.metrics", "metrics-core", "4.2.37"),
        Artifact("org.xerial.snappy", "snappy-java", "1.1.10.8"),
        Artifact("commons-io", "commons-io", "2.22.0"),
        Artifact("commons-cli", "commons-cli", "1.11.0"),
    ),
)
"""Kafka needs these jars, too: the client, the logging and the compression."""
_LIBRARIES = (
    Artifact("com.yammer.metrics", "metrics-core", "2.2.0"),
    Artifact("com.typesafe.scala-logging", "scala-logging_2.13", "3.9.5"),
    Artifact("net.sf.jopt-simple", "jopt-simple", "5.0.4"),
    Artifact("commons-validator", "commons-validator", "1.10.1"),
    Artifact("com.fasterxml.jackson.dataformat", "jackson-dataformat-csv", "2.16.2"),
    Artifact("com.fasterxml.jackson.datatype", "jackson-datatype-jdk8", "2.16.2"),
    *_all("org.scala-lang", "2.13.18", "scala-library", "scala-reflect"),
    Artifact("com.fasterxml.jackson.core", "jackson-annotations", "2.21"),
    *_all("com.fasterxml.jackson.core", "2.21.2", "jackson-core", "jackson-databind"),
    Artifact("org.apache.logging.log4j", "log4j-1.2-api", "2.25.4"),
    Artifact("at.yawk.lz4", "lz4-java", "1.11.0"),
    Artifact("com.github.luben", "zstd-jni", "1.5.7-7"),
)
_OWN = (
    *("kafka-clients", "kafka-group-coordinator", "kafka-group-coordinator-api", "kafka-metadata", "kafka-raft"),
    *("kafka-server", "kafka-server-common", "kafka-storage", "kafka-storage-api", "kafka-tools-api"),
    *("kafka-transaction-coordinator", "kafka_2.13"),
)
"""Kafka's own artifacts in every release."""


def _kafka_release(version: str, own: Sequence[str], *libraries: Artifact) -> Release:
    artifacts = (*_all("org.apache.kafka", version, *own), *libraries, *_LIBRARIES, *ZOOKEEPER.artifacts)
    return Release(f"Kafka {version}", artifacts)


KAFKA_VERSION = "3.9.2"
KAFKA = _kafka_release(
    KAFKA_VERSION,
    _OWN,
    Artifact("org.pcollections", "pcollections", "4.0.1"),
    Artifact("com.github.ben-manes.caffeine", "caffeine", "2.9.3"),
    Artifact("org.scala-lang.modules", "scala-java8-compat_2.13", "1.0.2"),
    Artifact("org.scala-lang.modules", "scala-collection-compat_2.13", "2.10.0"),
)
"""The last line of releases that keeps its metadata in ZooKeeper."""
KAFKA_4_VERSION = "4.3.0"
KAFKA_4 = _kafka_release(
    KAFKA_4_VERSION,
    (*_OWN, "kafka-coordinator-common", "kafka-share-coordinator"),
    Artifact("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
    Artifact("org.pcollections", "pcollections", "4.0.2"),
    Artifact("com.github.ben-manes.caffeine", "caffeine", "3.2.0"),
    Artifact("com.google.re2j", "re2j", "1.8"),
    Artifact("com.dynatrace.hash4j", "hash4j", "0.22.0"),
    Artifact("org.hdrhistogram", "HdrHistogram", "2.2.2"),
)
"""A release that has only KRaft mode."""


def class_path(release: Release, on_progress: Callable[[str], None] | None = None) -> tuple[Path, ...]:
    """Returns the jars of a release. Fetches those that are not in the cache. Raises :class:`DevClusterError`."""
    home = cache_directory() / "jars"
    missing = [artifact for artifact in release.artifacts if not (home / artifact.file_name).is_file()]
    if missing:
        if on_progress is not None:
            on_progress(f"fetching {len(missing)} jars of {release.name} into {home} (once)")
        with ThreadPoolExecutor(_AT_ONCE) as fetchers:
            for _ in fetchers.map(lambda artifact: _fetch(artifact, home), missing):
                pass
    return tuple(home / artifact.file_name for artifact in release.artifacts)


def _fetch(artifact: Artifact, home: Path) -> None:
    """Fetches a jar and its checksum. It gets its name once it is complete, so no other process sees half of it."""
    from maven_artifact import Artifact as Named
    from maven_artifact import Downloader

    repository = os.environ.get(REPOSITORY_VARIABLE)
    downloader = Downloader(base=repository) if repository else Downloader()
    try:
        url = downloader.resolver.uri_for_artifact(Named(artifact.organisation, artifact.name, artifact.version))
        content: bytes = _asked(downloader, url).content
        known: str = _asked(downloader, f"{url}.sha1").text.split()[0]
    except (OSError, IndexError) as error:  # requests' own errors are OSErrors
        raise DevClusterError(
            f"{artifact.file_name} could not be fetched: {error}. Check the network (HTTPS_PROXY sets a proxy, "
            f"REQUESTS_CA_BUNDLE certificates, {REPOSITORY_VARIABLE} the address of a mirror), or copy "
            f"{home} from a machine that has it"
        ) from error
    if hashlib.sha1(content, usedforsecurity=False).hexdigest() != known:
        raise DevClusterError(f"{artifact.file_name} was fetched from {url}, but does not match its checksum {known}")
    beside = home / f".{artifact.file_name}.{uuid.uuid4().hex}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_bytes(content)
            beside.rename(home / artifact.file_name)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise DevClusterError(
            f"{artifact.file_name} cannot be stored in {home}: {error}; free some space there, or set KAFKA_COORD_CACHE"
        ) from error


def _asked(downloader: Any, url: str) -> Any:
    return downloader.requestor.request(url, None, timeout=_WITHIN_S, verify=_trusted())


def _trusted() -> str | bool:
    """Returns the certificates that this machine trusts, as pip does, or True for those that come with requests."""
    paths = ssl.get_default_verify_paths()
    found = paths.capath is not None and any(Path(paths.capath).iterdir())
    return os.environ.get("REQUESTS_CA_BUNDLE") or paths.cafile or (paths.capath if found else None) or True
