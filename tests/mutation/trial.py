"""One trial: a separate process imports the changed module and runs the tests; its exit code says whether they noticed.

The process is forked from one that has imported all other packages that the tests need, but nothing of this project. So
a trial starts at once, and no file is changed.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.machinery
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.mutation.mutator import Site, mutated
from tests.mutation.targets import ROOT, Target, pytest_arguments

SURVIVED, KILLED = 0, 1
_MEMORY = 6 << 30
_PR_SET_PDEATHSIG = 1


def preload() -> None:
    """Imports the packages from elsewhere that every trial needs."""
    import hypothesis
    import kazoo.client
    import pytest
    import re2

    assert all((hypothesis, kazoo.client, pytest, re2))
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None)


def forked(work: Callable[[], int]) -> int:
    """Runs ``work`` in a separate, silent process with its own process group. Returns its pid."""
    pid = os.fork()
    if pid:
        with suppress(PermissionError):  # the process has done it already
            os.setpgid(pid, pid)
        return pid
    status = KILLED
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with the run that started it
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        status = work()
    except BaseException:  # noqa: BLE001  whatever a changed module does, it was noticed
        status = KILLED
    finally:
        os._exit(status)


def ended(pid: int, within_s: float) -> int | None:
    """The exit code of a trial; ``None`` if it was ended after its time limit."""
    deadline = time.monotonic() + within_s
    status = None
    while time.monotonic() < deadline:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
            break
        time.sleep(0.05)
    with suppress(ProcessLookupError):  # ends everything that it started
        os.killpg(pid, signal.SIGKILL)
    if status is None:
        os.waitpid(pid, 0)
    return status


def trial(target: Target, module: Path, site: Site) -> int:
    """In the forked process: runs the tests of ``target`` with ``module`` changed at ``site``."""
    _import_changed(module, site)
    return _run(target)


def traced(target: Target, report: Path) -> int:
    """In the forked process: runs the tests of ``target`` on unchanged code, and writes which lines were run."""
    names = {str(module) for module in target.modules()}
    lines: dict[str, set[int]] = {name: set() for name in names}

    def each_line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return each_line

    def each_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename not in names:
            return None
        lines[frame.f_code.co_filename].add(frame.f_lineno)
        return each_line

    threading.settrace(each_call)
    sys.settrace(each_call)
    try:
        status = _run(target)
    finally:
        sys.settrace(None)
        threading.settrace(None)
    report.write_text(json.dumps({name: sorted(found) for name, found in lines.items()}))
    return status


def _run(target: Target) -> int:
    import hypothesis
    import pytest

    hypothesis.settings.load_profile("mutation")
    if pytest.main(pytest_arguments(target)) != pytest.ExitCode.OK:
        return KILLED
    if target.histories:
        from tests.simulation.cluster import run_history

        logging.disable(logging.CRITICAL)
        for seed in range(target.histories):
            if run_history(seed) is not None:
                return KILLED
    return SURVIVED


def _import_changed(module: Path, site: Site) -> None:
    """From now on, the module is imported with that one change, regardless of caches."""
    name = ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType:
            return compile(mutated(ast.parse(module.read_text()), site), str(module), "exec", dont_inherit=True)

    class Finder(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(
            cls, fullname: str, path: Any = None, target: Any = None
        ) -> importlib.machinery.ModuleSpec | None:
            spec = super().find_spec(fullname, path, target) if fullname == name else None
            if spec is not None:
                spec.loader = Loader(fullname, str(module))
            return spec

    assert name not in sys.modules, f"{name} was imported before it was changed"
    sys.meta_path.insert(0, Finder)
