"""Values from files that others renew: certificates, keys, CAs, users and passwords."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from kafka_coord.errors import SettingsError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Renewed(Generic[T]):
    """What ``read`` makes of ``files``. It is read again when one of the files has changed.

    Files that cannot be used (half written, unreadable, expired, a pair that does not fit) change nothing: the last
    usable value stays, with one warning. ``read`` raises :class:`SettingsError` for such files; so does the
    constructor. ``ends_at`` tells when the value's certificate ends (in seconds since 1970), or None; an expired
    certificate is used only if there has never been a better one. ``what`` names the value in the log.
    """

    def __init__(
        self,
        what: str,
        files: Iterable[Path | None],
        read: Callable[[], T],
        *,
        ends_at: Callable[[T], float | None] = lambda _value: None,
        every_s: float = 0.0,
    ) -> None:
        """:meth:`newest` looks at the files at most every ``every_s`` seconds."""
        self._what, self._read, self._every_s = what, read, every_s
        self._files = tuple(file for file in files if file is not None)
        self._end = ends_at
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen = self._versions()
        self._value = read()
        self.problem = ""
        """Why the files as they are now are not used, or "" if they are."""

    @classmethod
    def fixed(cls, value: T) -> Renewed[T]:
        """Returns a value that nobody renews."""
        return cls("", (), lambda: value)

    @property
    def ends_at(self) -> float | None:
        """When the certificate in use ends, in seconds since 1970. None without a certificate."""
        return self._end(self._value)

    def newest(self) -> T:
        """Returns the value, after looking at the files if that is due."""
        if self._files and time.monotonic() >= self._looked + self._every_s:
            self.look()
        return self._value

    def look(self) -> None:
        """Reads the files again if they have changed."""
        with self._lock:
            self._looked = time.monotonic()
            versions = self._versions()
            if versions == self._seen:
                return
            self._seen = versions
            try:
                value = self._read()
                ends_at = self._end(value)
                self.problem = "it has expired" if ends_at is not None and ends_at <= time.time() else ""
            except SettingsError as error:
                self.problem = str(error)
            if not self.problem:
                self._value = value
        if self.problem:
            log.warning("still using the earlier %s: %s", self._what, self.problem, extra={"event": "renewal_unusable"})
        else:
            log.info("using the renewed %s", self._what, extra={"event": "renewed"})

    def _versions(self) -> tuple[object, ...]:
        return tuple(map(_version, self._files))


def _version(file: Path) -> object:
    """Returns a value that changes whenever the file does, also if only its owner or its rights do."""
    try:
        stat = file.stat()
    except OSError as error:
        return str(error)
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino, stat.st_dev


def ends_at(certificate: Path | str) -> float:
    """Returns when a certificate (PEM) ends, in seconds since 1970. Raises ``OSError``."""
    # CPython's own tests use this decoder; the library has no other
    ends = ssl._ssl._test_decode_cert(str(certificate))["notAfter"]  # type: ignore[attr-defined]
    return float(ssl.cert_time_to_seconds(ends))
