"""Every finding of the doctor has an input in which it appears, and one nearby in which it must not."""

from __future__ import annotations

import ast
import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kafka_coord.monitor import doctor
from kafka_coord.monitor.doctor.findings import Finding, Severity, error, warning
from tests.monitor.findings_table import CASES, Case

MAKERS = {"warning": warning, "error": error}
BAD = {Severity.WARNING, Severity.ERROR}
Site = tuple[str, int]
"""A module, and the line of a statement that makes a finding."""


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(doctor.__path__):
        if found.name != "findings":
            yield importlib.import_module(f"{doctor.__name__}.{found.name}")


def sites(module: ModuleType) -> Iterator[tuple[Site, range]]:
    """Each place where the module makes a finding at WARNING or above, and the lines of its statement."""
    tree = ast.parse(Path(module.__file__ or "").read_text())
    for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
        names = set(MAKERS)
        for one in ast.walk(function):  # finding = warning if … else info
            if isinstance(one, ast.Assign) and _names(one.value) & names and not isinstance(one.value, ast.Call):
                names |= {target.id for target in one.targets if isinstance(target, ast.Name)}
        for one in ast.walk(function):
            if isinstance(one, ast.Call) and _names(one.func) & names:
                yield (module.__name__, one.lineno), range(one.lineno, (one.end_lineno or one.lineno) + 1)


def _names(found: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(found) if isinstance(one, ast.Name)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
def test_a_finding_appears_where_it_should_and_not_nearby(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    found = [one for one in case.appears() if one.severity in BAD]
    assert any(case.words in one.what for one in found), found
    assert all(one.todo for one in found)
    assert [one for one in case.nearby() if one.severity in BAD] == []


def test_no_finding_is_missing_from_the_table(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    made: set[Site] = set()

    def noting(name: str) -> None:
        def make(check: str, what: str, todo: str, group: str = "") -> Finding:
            caller = sys._getframe(1)
            made.add((caller.f_globals["__name__"], caller.f_lineno))
            return MAKERS[name](check, what, todo, group)

        for module in modules():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, make)

    for name in MAKERS:
        noting(name)
    for case in CASES:
        list(case.appears())
    missing = [
        f"{module}:{line}"
        for each in modules()
        for (module, line), lines in sites(each)
        if not any((module, one) in made for one in lines)
    ]
    assert missing == []
