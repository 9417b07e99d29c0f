"""Formats times and durations. Does no I/O."""

from __future__ import annotations

from datetime import UTC, datetime

_DAY_S = 86_400


def iso_time(ms: int | None) -> str | None:
    """Formats milliseconds since 1970 as ``2026-01-31T12:00:00.123Z``. Returns ``None`` for ``None``, 0, and a time
    that ``datetime`` cannot represent."""
    if not ms:
        return None
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def duration(ms: int) -> str:
    """Formats a duration as ``47 s``, ``12 min``, ``5 h`` or ``3 d``."""
    seconds = max(0, ms) // 1000
    for least, size, unit in ((2 * _DAY_S, _DAY_S, "d"), (7_200, 3_600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def lasting(began_ms: int, now_ms: int) -> str:
    """Formats the time since ``began_ms`` as ``for 12 min (since 10:45:03 UTC)``."""
    return f"for {duration(now_ms - began_ms)} (since {_clock(began_ms, now_ms)})"


def ago(at_ms: int, now_ms: int) -> str:
    """Formats a past time as ``12 min ago (10:45:03 UTC)``."""
    return f"{duration(now_ms - at_ms)} ago ({_clock(at_ms, now_ms)})"


def _clock(at_ms: int, now_ms: int) -> str:
    try:
        at, now = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (at_ms, now_ms))
    except (ValueError, OverflowError, OSError):  # read from a znode that anyone may have written
        return f"{at_ms} ms since 1970"
    return at.strftime("%H:%M:%S UTC" if at.date() == now.date() else "%Y-%m-%d %H:%M UTC")
