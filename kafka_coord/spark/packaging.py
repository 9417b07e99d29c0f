"""Packages this project for a cluster's machines: a zip for ``--py-files``, or an environment for ``--archives``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import kafka_coord
from kafka_coord.errors import NotFound, SettingsError
from kafka_coord.version import __version__

OnProgress = Callable[[str], None]

_DISTRIBUTION = "kafka-coord"
_EXTRAS = re.compile(r"extra == ['\"](?:cli|spark)['\"]")
"""The extras whose dependencies are included. ``cli`` is one of them, since a driver in the cluster runs ``kafka-coord
pipeline``."""
_OF_SPARK = "pyspark"
"""The package that is left out, which saves 400 MB. Executors get it from the cluster's own Spark."""
_SAME_ALWAYS = (2000, 1, 1, 0, 0, 0)
_LOG_LINES = 5


def write_zip(directory: Path) -> Path:
    """Writes ``kafka_coord-<version>.zip``, which contains the package's modules but no dependencies. Returns its path.
    The same modules always yield the same file."""
    root = Path(kafka_coord.__file__).parent
    target = directory / f"kafka_coord-{__version__}.zip"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted([*root.rglob("*.py"), root / "py.typed"]):
            entry = zipfile.ZipInfo(f"{root.name}/{path.relative_to(root).as_posix()}", _SAME_ALWAYS)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return target


def requirements(required: Iterable[str] | None = None) -> list[str]:
    """Returns the packages that pip must install on executors besides this package. ``required`` lists the requirements
    (default: those of the installed package).

    Raises :class:`NotFound` if pip did not install this package, because its dependencies are then unknown.
    """
    if required is None:
        try:
            required = metadata.requires(_DISTRIBUTION) or []
        except metadata.PackageNotFoundError:
            raise NotFound(
                f"{_DISTRIBUTION} can be imported but is not installed in this Python: install it with pip"
            ) from None
    needed = []
    for requirement in required:
        what, _, marker = (part.strip() for part in requirement.partition(";"))
        if marker and not _EXTRAS.fullmatch(marker):
            continue
        if re.split(r"[^A-Za-z0-9._-]", what)[0].lower() != _OF_SPARK:
            needed.append(what)
    return needed


def write_environment(directory: Path, on_progress: OnProgress = lambda _: None) -> Path:
    """Writes ``kafka_coord-<version>-environment.tar.gz``: a virtual environment with the package and its dependencies
    except PySpark. Returns the file's path. The environment is built for this machine's Python, operating system and
    processor, and expects the same Python at the same path on the other machines. Raises :class:`SettingsError` with
    the last output if pip or venv fails.
    """
    packages = requirements()
    target = directory / f"kafka_coord-{__version__}-environment.tar.gz"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kafka-coord-environment-") as scratch:
        home = Path(scratch) / "environment"
        on_progress(f"creating a virtual environment with {sys.executable}")
        _run([sys.executable, "-m", "venv", "--copies", str(home)])
        python = home / "bin" / "python"
        on_progress(f"pip install {' '.join(packages)}")
        _run([str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q", *packages])
        site = Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
        source = Path(kafka_coord.__file__).parent
        shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        _run([str(python), "-c", "import confluent_kafka, pandas, pyarrow, kafka_coord.consumer"])
        on_progress(f"packing {target}")
        with tarfile.open(target, "w:gz", compresslevel=6) as archive:
            archive.add(home, arcname=".")
    return target


def _run(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        last_lines = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()][-_LOG_LINES:]
        raise SettingsError(
            f"{' '.join(command[:6])} … failed (exit code {ended.returncode}): {' | '.join(last_lines)}"
        )
    return ended.stdout
