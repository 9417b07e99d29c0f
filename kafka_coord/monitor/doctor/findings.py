"""The findings of the doctor's checks, and their severity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """``error``: something does not work. ``warning``: something will fail or work badly unless an operator acts."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` is the check's constant name, ``what`` is the finding, and ``todo`` is the remedy ("" if none).
    ``group`` is the group that the finding is about ("" if none)."""

    severity: Severity
    check: str
    what: str
    todo: str = ""
    group: str = ""


def ok(check: str, what: str) -> Finding:
    return Finding(Severity.OK, check, what)


def info(check: str, what: str, todo: str = "", group: str = "") -> Finding:
    return Finding(Severity.INFO, check, what, todo, group)


def warning(check: str, what: str, todo: str, group: str = "") -> Finding:
    return Finding(Severity.WARNING, check, what, todo, group)


def error(check: str, what: str, todo: str, group: str = "") -> Finding:
    return Finding(Severity.ERROR, check, what, todo, group)
