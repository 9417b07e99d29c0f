"""Defines the findings of the doctor's checks, and their severity."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from kafka_coord.groups.group import Document


class Severity(StrEnum):
    """``error`` means that something does not work. ``warning`` means that something will fail or degrade unless an
    operator acts."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. ``check`` names the check, ``what`` describes the finding, ``todo`` is the remedy, and ``group`` is
    the group with the problem. ``todo`` and ``group`` may be empty."""

    severity: Severity
    check: str
    what: str
    todo: str = ""
    group: str = ""


class FindingDocument(Document, frozen=True):
    """``kafka-coord doctor -o json``"""

    severity: Severity
    """``ok``, ``info``, ``warning`` or ``error``."""
    check: str
    what: str
    todo: str | None
    """The remedy."""
    group: str | None
    """The group that the finding is about."""

    @classmethod
    def of(cls, one: Finding) -> Self:
        return cls(
            severity=one.severity, check=one.check, what=one.what, todo=one.todo or None, group=one.group or None
        )


def ok(check: str, what: str) -> Finding:
    return Finding(Severity.OK, check, what)


def info(check: str, what: str, todo: str = "", group: str = "") -> Finding:
    return Finding(Severity.INFO, check, what, todo, group)


def warning(check: str, what: str, todo: str, group: str = "") -> Finding:
    return Finding(Severity.WARNING, check, what, todo, group)


def error(check: str, what: str, todo: str, group: str = "") -> Finding:
    return Finding(Severity.ERROR, check, what, todo, group)
