"""Values from files that others renew: certificates, keys, CAs, users and passwords."""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kafka_coord.errors import SettingsError

log = logging.getLogger(__name__)

T = TypeVar("T")

STILL_S = 1.0
"""A file that changed more recently, in seconds, may be half written (also where its beginning is valid), and is read
later."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a certificate is valid, in seconds since 1970."""

    starts_at: float
    ends_at: float

    @classmethod
    def of(cls, certificate: Path | str | None, ca: Path | str | None = None) -> Lifetime | None:
        """Returns the time in which a certificate and at least one CA of the file ``ca`` are valid, or None without
        both. Raises ``OSError``."""
        # CPython's own tests use this decoder; the library has no other
        decoded = None if certificate is None else ssl._ssl._test_decode_cert(str(certificate))  # type: ignore[attr-defined]
        times = [] if decoded is None else [(_at(decoded["notBefore"]), _at(decoded["notAfter"]))]
        if ca is not None and not Path(ca).is_dir():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(ca)
            times.append((0.0, max((_at(str(one["notAfter"])) for one in context.get_ca_certs()), default=math.inf)))
        return cls(max(starts for starts, _ in times), min(ends for _, ends in times)) if times else None

    def problem(self, now: float) -> str:
        """Returns why the certificate is not valid now, or "" if it is."""
        if self.ends_at <= now:
            return "it, or its CA, has expired"
        return "it is not valid yet" if self.starts_at > now else ""


def _at(written: str) -> float:
    return float(ssl.cert_time_to_seconds(written))


SOON_S = 14 * 24 * 3600
"""A certificate that ends sooner, in seconds, is reported. Those that are renewed automatically are renewed earlier."""

_said: set[tuple[tuple[Path, ...], str]] = set()
"""The problems that the log has named: several values may be made from one file."""


class Renewed(Generic[T]):
    """What ``read`` makes of ``files``. It is read again when one of the files has changed, and then been still for
    :data:`STILL_S`.

    Files that cannot be used (half written, unreadable, expired, not valid yet, a pair that does not fit) change
    nothing: the last usable value stays, with one warning. ``read`` raises :class:`SettingsError` for such files; so
    does the constructor. ``lifetime`` returns that of the value's certificate, or None; a certificate that is not valid
    is used only if there has never been a better one. ``what`` names the value in the log.
    """

    def __init__(
        self,
        what: str,
        files: Iterable[Path | None],
        read: Callable[[], T],
        *,
        lifetime: Callable[[T], Lifetime | None] = lambda _value: None,
        every_s: float = 0.0,
    ) -> None:
        """:meth:`newest` looks at the files at most every ``every_s`` seconds."""
        self._what, self._read, self._every_s = what, read, every_s
        self._files = tuple(file for file in files if file is not None)
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen = self._versions()
        self._value = read()
        self._again_at = math.inf
        self._said_ending: tuple[float, bool] | None = None
        self.problem = ""
        """Why the files as they are now are not used, or "" if they are."""
        if problem := self._not_valid(self._value):
            log.warning("using the %s although %s", what, problem)

    @classmethod
    def fixed(cls, value: T) -> Renewed[T]:
        """Returns a value that nobody renews."""
        return cls("", (), lambda: value)

    @property
    def ends_at(self) -> float | None:
        """When the certificate in use ends, in seconds since 1970. None without a certificate."""
        found = self._lifetime(self._value)
        return None if found is None else found.ends_at

    def newest(self) -> T:
        """Returns the value, after looking at the files if that is due."""
        if self._files and time.monotonic() >= self._looked + self._every_s:
            self.look()
        return self._value

    def look(self, *, now: bool = False) -> None:
        """Reads the files again if they have changed and are still or, with ``now``, in any case."""
        with self._lock:
            self._looked = time.monotonic()
            versions = self._versions()
            if not now and ((versions == self._seen and time.time() < self._again_at) or _written_now(versions)):
                return
            self._seen, self._again_at = versions, math.inf
            before = self.problem
            try:
                value = self._read()
                self.problem = self._not_valid(value)
                if self.problem and (found := self._lifetime(value)) is not None and found.starts_at > time.time():
                    self._again_at = found.starts_at
            except SettingsError as error:
                self.problem = str(error)
            if not self.problem:
                self._value = value
        _said.discard((self._files, before))
        if not self.problem:
            log.info("using the renewed %s", self._what, extra={"event": "renewed"})
        elif now or (self._files, self.problem) not in _said:
            log.warning("still using the earlier %s: %s", self._what, self.problem, extra={"event": "renewal_unusable"})
        if self.problem:
            _said.add((self._files, self.problem))

    def say_if_ending(self) -> None:
        """Logs, after looking at the files, that the certificate in use ends within :data:`SOON_S` or has ended: once
        for each."""
        self.newest()
        if (ends_at := self.ends_at) is None or (left_s := ends_at - time.time()) >= SOON_S:
            return
        if (said := (ends_at, left_s <= 0)) != self._said_ending:
            self._said_ending = said
            when = time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(ends_at))
            what = f"the certificate, or its CA, of the {self._what} {'has ended' if left_s <= 0 else 'ends'} at {when}"
            todo = "renew it; renewed files are read without a restart"
            log.warning("%s: %s", what, todo, extra={"event": "certificate_ends"})

    def _not_valid(self, value: T) -> str:
        found = self._lifetime(value)
        return "" if found is None else found.problem(time.time())

    def _versions(self) -> tuple[_Version | str, ...]:
        return tuple(map(_version, self._files))


@dataclass(frozen=True, slots=True)
class _Version:
    """Changes whenever a file does, also if only its owner or its rights do. Times are in ns."""

    modified: int
    changed: int
    size: int
    inode: int
    device: int


def _version(file: Path) -> _Version | str:
    """Returns why the file cannot be looked at, if so."""
    try:
        stat = file.stat()
    except OSError as error:
        return str(error)
    return _Version(stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino, stat.st_dev)


def _written_now(versions: Iterable[_Version | str]) -> bool:
    """A file server's clock may be ahead of this one: then nothing is known, and the answer is no."""
    ages = (time.time() - max(one.modified, one.changed) / 1e9 for one in versions if isinstance(one, _Version))
    return any(0 <= age < STILL_S for age in ages)
