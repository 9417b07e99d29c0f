"""The file operations that a table's commits need: create a file completely or not at all, and make files durable.

On local file systems and on NFS, ``link(2)`` fails if the name is taken. Object stores offer no such operation, so they
are not supported.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kafka_coord.errors import SettingsError


def local_directory(path: str | os.PathLike[str]) -> Path:
    """Returns the directory that a path or ``file:`` URI names. Raises :class:`SettingsError` for any other URI
    scheme."""
    text = os.fspath(path)
    parts = urlsplit(text)
    if len(parts.scheme) < 2:
        return Path(text).absolute()
    if parts.scheme == "file" and not parts.netloc:
        return Path(unquote(parts.path))
    raise SettingsError(
        f"a table cannot be stored at {text!r}: its commits need a directory that all machines have mounted (local for "
        "one machine, NFS or similar for a cluster); use a DatabaseTable for anything else"
    )


def create(target: Path, content: bytes) -> bool:
    """Creates the file atomically and durably. If the file already exists, leaves it unchanged and returns false."""
    draft = _draft(target, content)
    try:
        os.link(draft, target)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync(target.parent)
    return True


def replace(target: Path, content: bytes) -> None:
    """Writes the file atomically and durably, replacing an existing file."""
    draft = _draft(target, content)
    try:
        draft.replace(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(target.parent)


def make_durable(files: Iterable[Path]) -> None:
    """Calls fsync(2) on files that another process wrote, and on their directories. Raises FileNotFoundError."""
    folders: set[Path] = set()
    for file in files:
        sync(file)
        folders |= {file.parent, file.parent.parent}
    for folder in folders:
        sync(folder)


def sync(path: Path) -> None:
    """Calls fsync(2) on a file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest_s(folder: Path) -> float:
    """Returns the newest modification time in the folder, in seconds since 1970, or 0 if the folder does not exist."""
    newest = 0.0
    for where, _, names in os.walk(folder):
        for name in (".", *names):
            with contextlib.suppress(FileNotFoundError):  # a writer may rename its files while this runs
                newest = max(newest, os.stat(os.path.join(where, name)).st_mtime)
    return newest


def _draft(target: Path, content: bytes) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # for example, the disk is full; leave no partial file
        draft.unlink(missing_ok=True)
        raise
    return draft
