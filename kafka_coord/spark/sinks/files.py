"""What a table's commits need of a directory: to create a file whole or find that it is there, and to make files last.

``link(2)`` fails where the name is taken, on local file systems and on NFS; object stores have nothing like it, and are
refused.
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
    """The directory a path or ``file:`` URI names. Raises :class:`SettingsError` for another file system's."""
    text = os.fspath(path)
    parts = urlsplit(text)
    if len(parts.scheme) < 2:
        return Path(text).absolute()
    if parts.scheme == "file" and not parts.netloc:
        return Path(unquote(parts.path))
    raise SettingsError(
        f"a table cannot be kept at {text!r}: its commits need a directory that all machines have mounted (local for "
        "one machine, NFS or the like for a cluster); for anything else write to a DatabaseTable"
    )


def create(target: Path, content: bytes) -> bool:
    """Creates the file with all of its content at once, durably. False: it is there already, and is untouched."""
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
    """Writes the file, in place of one that may be there, at once."""
    draft = _draft(target, content)
    try:
        draft.replace(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(target.parent)


def make_durable(files: Iterable[Path]) -> None:
    """Makes files somebody wrote durable, with their names. Raises FileNotFoundError."""
    folders: set[Path] = set()
    for file in files:
        sync(file)
        folders |= {file.parent, file.parent.parent}
    for folder in folders:
        sync(folder)


def sync(path: Path) -> None:
    """fsync(2) of a file or directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def newest_s(folder: Path) -> float:
    """When anything in the folder was last written, in seconds since 1970; 0 where there is nothing."""
    newest = 0.0
    for where, _, names in os.walk(folder):
        for name in (".", *names):
            with contextlib.suppress(FileNotFoundError):  # a writer renames its files meanwhile
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
    except OSError:  # a full disk: leave no half of a file
        draft.unlink(missing_ok=True)
        raise
    return draft
