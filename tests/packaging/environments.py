"""Empty virtual environments with one wheel, one of its extras, and nothing else."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment. Its programs see nothing of this process's packages."""

    home: Path

    @property
    def python(self) -> str:
        return str(self.home / "bin" / "python")

    @property
    def program(self) -> str:
        return str(self.home / "bin" / "kafka-coord")

    @property
    def site(self) -> Path:
        (found,) = self.home.glob("lib/python3.*/site-packages")
        return found

    def _variables(self) -> dict[str, str]:
        """As after ``activate``: Spark finds its workers' Python on the PATH."""
        return _clean() | {"PATH": f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(self, *command: str, within_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.home, env=self._variables(), capture_output=True, text=True, timeout=within_s, check=False
        )

    @contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Runs the command with its output in ``out`` of the environment, and kills it if it still runs at the end."""
        with (
            (self.home / "out").open("w") as out,
            subprocess.Popen(
                command, cwd=self.home, env=self._variables(), stdout=out, stderr=out, text=True
            ) as process,
        ):
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def output(self) -> str:
        return (self.home / "out").read_text()


def _clean() -> dict[str, str]:
    settings = ("PYTHON", "PYSPARK", "KAFKA_COORD")
    return {name: value for name, value in os.environ.items() if not name.startswith(settings)}


def empty(home: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=120)
    return Environment(home)


def install(environment: Environment, extra: str, *wheels: Path, index: bool = True) -> None:
    """Installs the first wheel with the extra (``""``: none), and the other wheels, from package indexes."""
    first, *others = map(str, wheels)
    options = () if index else ("--no-index", "--no-compile")
    _pip(environment, *options, f"{first}[{extra}]" if extra else first, *others)


def install_without_index(environment: Environment, extra: str, *wheels: Path) -> None:
    """The same without a network: links what the wheels declare, and what that requires, from this Python's packages.
    pip then refuses if something is still missing."""
    site = environment.site
    for distribution in _closure(dict(map(_declared, wheels)), {extra}):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(distribution.locate_file(top))))
    install(environment, extra, *wheels, index=False)


def _pip(environment: Environment, *arguments: str) -> None:
    command = [*_PIP, "--python", environment.python, "install", "-q", "--progress-bar", "off", *arguments]
    done = subprocess.run(command, env=_clean(), capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"pip failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def _declared(wheel: Path) -> tuple[str, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = email.message_from_bytes(archive.read(name))
    return canonicalize_name(declared["Name"]), declared.get_all("Requires-Dist", [])


def _closure(declared: dict[str, list[str]], extras: set[str]) -> list[metadata.Distribution]:
    """What ``kafka-coord`` requires with the extras; ``declared`` has the requirements of the wheels themselves."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(Requirement(line), extras) for line in declared["kafka-coord"]]
    while waiting:
        requirement, asked = waiting.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": one}) for one in asked | {""}):
            continue
        name = canonicalize_name(requirement.name)
        if name in declared:
            waiting.extend((Requirement(line), set(requirement.extras)) for line in declared[name])
        elif name not in found:
            found[name] = metadata.distribution(name)
            waiting.extend((Requirement(line), set(requirement.extras)) for line in found[name].requires or ())
    return list(found.values())
