"""Java's application class data archives: classes loaded and verified once, mapped at every later start.

Kafka starts in 1.2 s with one and in 2.2 s without. The archive is written by the first server of its kind that ends
cleanly (``-XX:ArchiveClassesAtExit``, about 3 s), into its own directory, and moved into the cache from there. It is
only ever a shortcut. A Java for which it was not made starts as if it were not there (``-Xshare:auto``); but Java 17
aborts on one that is truncated behind its header, so a server that crashes with one is started again without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from kafka_coord.dev.cluster.cache import cache_directory
from kafka_coord.spark.java import Java

_NEW = ".new"
_USE = "-XX:SharedArchiveFile="
# Only what goes wrong: writing an archive names every class it leaves out.
_QUIET = "-Xlog:cds*=off"

_lock = threading.Lock()
_being_written: dict[Path, Path] = {}


def archive_flags(name: str, java: Java, class_path: Sequence[Path], directory: Path) -> tuple[str, ...]:
    """The flags that make a server of this kind use its archive, or write it to ``directory`` when it ends. One server
    of a kind writes at a time; others that start meanwhile use none.
    """
    if not java.archives_classes:
        return ()
    archive = cache_directory() / "classes" / f"{name}-{_digest(java, class_path)}.jsa"
    if archive.is_file():
        return (f"{_USE}{archive}", _QUIET)
    with _lock:
        if _being_written.setdefault(archive, directory) != directory:
            return ()
    return (f"-XX:ArchiveClassesAtExit={directory / archive.name}{_NEW}", _QUIET)


def keep_archives(directory: Path) -> None:
    """Moves the archive that a cleanly ended server wrote to ``directory`` into the cache."""
    home = cache_directory() / "classes"
    for written in directory.glob(f"*.jsa{_NEW}"):
        archive = home / written.name.removesuffix(_NEW)
        beside = archive.with_name(f"{archive.name}.{os.getpid()}")
        # A cache that cannot be written costs a second at the next start, and nothing else.
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            try:
                shutil.move(written, beside)
                beside.replace(archive)
            finally:
                beside.unlink(missing_ok=True)
    discard_archives(directory)


def discard_archives(directory: Path) -> None:
    """Removes the incomplete archive of a killed server from ``directory``, so that another server may write it."""
    for written in directory.glob(f"*.jsa{_NEW}"):
        written.unlink(missing_ok=True)
    with _lock:
        for archive in [archive for archive, writer in _being_written.items() if writer == directory]:
            del _being_written[archive]


def drop_archive(command: Sequence[str]) -> bool:
    """Remove the archive that ``command`` uses; False if it uses none."""
    for argument in command:
        if argument.startswith(_USE):
            Path(argument.removeprefix(_USE)).unlink(missing_ok=True)
            return True
    return False


def _digest(java: Java, class_path: Sequence[Path]) -> str:
    """Changes with everything for which Java would reject the archive: its own build, and each jar's path, time and
    size.
    """
    parts = [str(java.executable.resolve()), java.version, str(java.executable.stat().st_mtime_ns)]
    for jar in class_path:
        stat = jar.stat()
        parts.append(f"{jar}:{stat.st_mtime_ns}:{stat.st_size}")
    return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()[:16]
