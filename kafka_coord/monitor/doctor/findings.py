"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """``error``: something does not work. ``warning``: it will not, or not well, unless somebody acts."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` is a few words that stay the same, ``what`` the fact, ``todo`` what to do about it ("" for nothing)."""

    severity: Severity
    check: str
    what: str
    todo: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(Severity.OK, check, what)


def info(check: str, what: str, todo: str = "") -> Finding:
    return Finding(Severity.INFO, check, what, todo)


def warning(check: str, what: str, todo: str) -> Finding:
    return Finding(Severity.WARNING, check, what, todo)


def error(check: str, what: str, todo: str) -> Finding:
    return Finding(Severity.ERROR, check, what, todo)
