"""Locks a cluster's directory for one process. The kernel releases the lock when the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kafka_coord.errors import DevClusterError

_FILE_NAME = "lock"


class DirectoryLock:
    """A lock that is held from :meth:`acquire` until :meth:`release`, or until this process ends."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / _FILE_NAME
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Takes the lock. Raises :class:`DevClusterError`, which names the process that holds it, and OSError if the
        file is not writable."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 32).decode("ascii", errors="replace").strip()
            owner = f"process {pid}" if pid else "another process"
            os.close(descriptor)
            raise DevClusterError(
                f"the cluster in {self._file.parent} is in use by {owner}; stop that process, or use another directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
