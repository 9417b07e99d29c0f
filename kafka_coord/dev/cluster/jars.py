"""Finds or fetches the jars of ZooKeeper and Kafka, with the Ivy that PySpark bundles, so that Maven or another
downloader is not needed.

PySpark includes most of them. Kafka's own jars are fetched once (:mod:`kafka_coord.dev.cluster.jars`) into the cache.
With ``KAFKA_COORD_JARS_DIR``, they come from a directory instead, such as ``libs`` of a Kafka distribution.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.dev.cluster.cache import becoming, cache_directory
from kafka_coord.dev.cluster.class_archive import run_java
from kafka_coord.errors import DevClusterError

_TIMEOUT_S = 600
_IN_PARENTHESES = re.compile(r"\((.*Exception.*)\)$")

# All artifacts are listed, so Ivy need not read POMs, and takes ten seconds instead of a minute.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0">
  <info organisation="kafka_coord" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconfmapping="default->default">
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The Maven coordinates of a jar."""

    organisation: str
    name: str
    version: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def retrieve(artifacts: Sequence[Artifact], into: Path, *, ivy: Path, work: Path) -> None:
    """Fetches ``artifacts`` into the new directory ``into``. ``work`` is for Ivy's own files.

    ``JAVA_TOOL_OPTIONS`` can set a proxy and certificates. Raises :class:`DevClusterError` with Ivy's reasons if a jar
    could not be fetched, and OSError if a directory cannot be written.
    """
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    module.write_text(_MODULE.format(dependencies="\n".join(map(_dependency, artifacts))), encoding="utf-8")
    arguments = [
        f"-Divy.default.ivy.user.dir={work / 'ivy'}",
        *("-jar", str(ivy)),
        *("-settings", str(settings)),
        *("-ivy", str(module)),
        *("-cache", str(work / "ivy-cache")),
        *("-retrieve", str(into / "[artifact]-[revision].[ext]")),
    ]
    try:
        answer = run_java(arguments, _TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(artifacts, [f"gave up after {_TIMEOUT_S} s"]) from error
    missing = [artifact.file_name for artifact in artifacts if not (into / artifact.file_name).is_file()]
    if answer.returncode != 0 or missing:
        raise _not_fetched(artifacts, _complaints(answer.stdout) or [f"missing: {', '.join(missing)}"])


def _dependency(artifact: Artifact) -> str:
    return (
        f'    <dependency org="{artifact.organisation}" name="{artifact.name}" rev="{artifact.version}" '
        'transitive="false"/>'
    )


def _complaints(output: str) -> list[str]:
    """Returns why Ivy failed, without duplicates: its causes (connection, certificate, disk), or else the jars that it
    did not find.
    """
    lines = [line.strip(" :\t") for line in output.splitlines()]
    causes = [line for line in lines if "Exception" in line or "No space left" in line]
    # "Server access error at url … (javax.net.ssl.SSLHandshakeException: PKIX path building failed: …)", once per jar
    reasons = [match[1] if (match := _IN_PARENTHESES.search(line)) else line for line in causes]
    return list(dict.fromkeys(reasons or [line for line in lines if line.startswith("module not found")]))[:4]


def _not_fetched(artifacts: Sequence[Artifact], reasons: Sequence[str]) -> DevClusterError:
    proxy = (
        ""
        if os.environ.get("JAVA_TOOL_OPTIONS")
        else " (JAVA_TOOL_OPTIONS can set a proxy, -Dhttps.proxyHost=…, or certificates, -Djavax.net.ssl.trustStore=…)"
    )
    return DevClusterError(
        f"{len(artifacts)} jars could not be fetched: {'; '.join(reasons)}. Check the network{proxy} and the free disk "
        "space, or put the jars into a directory and set KAFKA_COORD_JARS_DIR to its path "
        "(libs/ of a distribution of Kafka will do)"
    )


KAFKA_VERSION = "3.9.2"
JARS_DIR_VARIABLE = "KAFKA_COORD_JARS_DIR"

# ZooKeeper 3.9 with the libraries that it loads at run time. PySpark contains all of them.
_ZOOKEEPER_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "netty-buffer",
    "netty-codec",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
    "slf4j-api",
    "log4j-slf4j2-impl",
    "log4j-api",
    "log4j-core",
    "metrics-core",
    "snappy-java",
    "commons-io",
    "commons-cli",
)
# Further libraries for Kafka that PySpark contains.
_KAFKA_JARS_OF_PYSPARK = (
    "scala-library",
    "scala-reflect",
    "jackson-annotations",
    "jackson-core",
    "jackson-databind",
    "log4j-1.2-api",
    "lz4-java",
    "zstd-jni",
)


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a program. ``artifacts`` are the jars that PySpark lacks, ``megabytes`` MB in total. ``directory``
    is where they are kept in the cache."""

    name: str
    directory: str
    artifacts: Sequence[Artifact]
    megabytes: int


def kafka_release(version: str, kafka: Sequence[str], others: Sequence[Artifact]) -> Release:
    """Describes a release of Kafka. ``kafka`` names Kafka's own artifacts, and ``others`` are the libraries that it
    needs."""
    own = [Artifact("org.apache.kafka", name, version) for name in ("kafka_2.13", *(f"kafka-{one}" for one in kafka))]
    return Release(f"Kafka {version}", f"jars-{version}", (*own, *others), 18)


LIBRARIES = (
    Artifact("com.yammer.metrics", "metrics-core", "2.2.0"),
    Artifact("com.typesafe.scala-logging", "scala-logging_2.13", "3.9.5"),
    Artifact("net.sf.jopt-simple", "jopt-simple", "5.0.4"),
    Artifact("commons-validator", "commons-validator", "1.10.1"),
    Artifact("com.fasterxml.jackson.dataformat", "jackson-dataformat-csv", "2.16.2"),
    Artifact("com.fasterxml.jackson.datatype", "jackson-datatype-jdk8", "2.16.2"),
)
"""The libraries that every release of Kafka needs."""
OWN_JARS = (
    *("clients", "group-coordinator", "group-coordinator-api", "metadata", "raft", "server", "server-common"),
    *("storage", "storage-api", "tools-api", "transaction-coordinator"),
)
"""Kafka's own artifacts in every release, without the prefix ``kafka-``."""

KAFKA = kafka_release(
    KAFKA_VERSION,
    OWN_JARS,
    (
        *LIBRARIES,
        Artifact("org.pcollections", "pcollections", "4.0.1"),
        Artifact("com.github.ben-manes.caffeine", "caffeine", "2.9.3"),
        Artifact("org.scala-lang.modules", "scala-java8-compat_2.13", "1.0.2"),
        Artifact("org.scala-lang.modules", "scala-collection-compat_2.13", "2.10.0"),
    ),
)
"""The last line of releases that keeps its metadata in ZooKeeper."""

KAFKA_4_VERSION = "4.3.0"
KAFKA_4 = kafka_release(
    KAFKA_4_VERSION,
    (*OWN_JARS, "coordinator-common", "share-coordinator"),
    (
        *LIBRARIES,
        Artifact("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
        Artifact("org.pcollections", "pcollections", "4.0.2"),
        Artifact("com.github.ben-manes.caffeine", "caffeine", "3.2.0"),
        Artifact("com.google.re2j", "re2j", "1.8"),
        Artifact("com.dynatrace.hash4j", "hash4j", "0.22.0"),
        Artifact("org.hdrhistogram", "HdrHistogram", "2.2.2"),
    ),
)
"""A release that has only KRaft mode."""

# Written last, so a cache is incomplete if it lacks this file or does not match it.
_MANIFEST = "manifest.json"


def zookeeper_class_path() -> tuple[Path, ...]:
    """Returns the jars for ZooKeeper, all of which PySpark includes."""
    return _named(pyspark_jars_directory(), _ZOOKEEPER_JARS)


def kafka_class_path(
    jars_directory: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
    *,
    release: Release = KAFKA,
) -> tuple[Path, ...]:
    """Returns the jars for a release of Kafka. Fetches them if necessary (18 MB, about 10 s, once).

    Uses ``jars_directory`` or ``$KAFKA_COORD_JARS_DIR``, if set, instead of the cache and the network. Raises
    :class:`DevClusterError` if that directory lacks a jar, or if a jar cannot be fetched.
    """
    directory = jars_directory or _directory_of_environment()
    return (cached_jars(release, on_progress) if directory is None else _given(directory, release)) + _of_pyspark()


def _of_pyspark() -> tuple[Path, ...]:
    return zookeeper_class_path() + _named(pyspark_jars_directory(), _KAFKA_JARS_OF_PYSPARK)


def pyspark_jars_directory() -> Path:
    """Returns PySpark's directory of jars without importing PySpark. Raises :class:`DevClusterError` if it does not
    exist."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise DevClusterError(
            "PySpark, which has ZooKeeper's jars, is not installed; in a clone, run `pip install ./kafka_coord/dev`"
        )
    jars = Path(spec.origin).parent / "jars"
    if not jars.is_dir():
        raise DevClusterError(
            f"PySpark has no jars in {jars}; reinstall it with `pip install --force-reinstall pyspark`"
        )
    return jars


def _directory_of_environment() -> Path | None:
    value = os.environ.get(JARS_DIR_VARIABLE)
    return Path(value).expanduser().absolute() if value else None


def _named(directory: Path, artifacts: Sequence[str]) -> tuple[Path, ...]:
    """Returns the jars of ``artifacts`` (names without version) in ``directory``."""
    jars = {_artifact_of(jar): jar for jar in sorted(directory.glob("*.jar"))}
    missing = [artifact for artifact in artifacts if artifact not in jars]
    if missing:
        raise DevClusterError(f"{directory} lacks the jars {', '.join(f'{name}-<version>.jar' for name in missing)}")
    return tuple(jars[artifact] for artifact in artifacts)


def _given(directory: Path, release: Release) -> tuple[Path, ...]:
    """Returns Kafka's jars in the user's directory: preferably the versions that would be fetched, otherwise others of
    the same major version. (A distribution contains metrics-core 2 and metrics-core 4, which are different libraries.)
    """
    found: list[Path] = []
    missing: list[str] = []
    for artifact in release.artifacts:
        major = artifact.version.partition(".")[0]
        of_major = sorted(directory.glob(f"{artifact.name}-{major}.*.jar"))
        if (directory / artifact.file_name).is_file():
            found.append(directory / artifact.file_name)
        elif of_major:
            found.append(of_major[-1])
        else:
            missing.append(artifact.file_name)
    if missing:
        raise DevClusterError(
            f"{directory} lacks the jars {', '.join(missing)}; use libs/ of a {release.name} distribution"
        )
    return tuple(found)


def _artifact_of(jar: Path) -> str:
    """Returns a jar's name without its version: ``zookeeper-jute`` for ``zookeeper-jute-3.9.5.jar``."""
    name: list[str] = []
    for part in jar.stem.split("-"):
        # In log4j-1.2-api, the number belongs to the name.
        if part[:1].isdigit() and name != ["log4j"]:
            break
        name.append(part)
    return "-".join(name)


def cached_jars(release: Release, on_progress: Callable[[str], None] | None = None) -> tuple[Path, ...]:
    """Returns the release's own jars from the cache. Fetches them into the cache if necessary. Raises
    :class:`DevClusterError`."""
    home = cache_directory() / release.directory
    if not _complete(home, release):
        if on_progress is not None:
            on_progress(f"fetching {release.name} into {home} ({release.megabytes} MB, once)")
        _fetch_into(home, release)
    return tuple(home / artifact.file_name for artifact in release.artifacts)


def _complete(home: Path, release: Release) -> bool:
    try:
        sizes = json.loads((home / _MANIFEST).read_text(encoding="utf-8"))
        return {artifact.file_name for artifact in release.artifacts} <= set(sizes) and all(
            (home / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _fetch_into(home: Path, release: Release) -> None:
    what = f"the jars of {release.name}"
    with becoming(home, what) as fetched:
        retrieve(release.artifacts, fetched, ivy=_ivy_jar(), work=fetched.parent)
        sizes = {jar.name: jar.stat().st_size for jar in fetched.iterdir()}
        (fetched / _MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
        if home.exists() and not _complete(home, release):
            shutil.rmtree(home)
    if not _complete(home, release):
        raise DevClusterError(f"{what} could not be stored in {home}; remove that directory and try again")


def _ivy_jar() -> Path:
    return _named(pyspark_jars_directory(), ["ivy"])[0]
