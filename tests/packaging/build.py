"""Builds the distributions so that the same commit always gives the same bytes, whoever builds them, where and when.

The sources are copied first, so setuptools leaves nothing in the checkout. ``kafka-coord-dev`` has no sdist: its
version is in the package around it.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BACKEND = """
import os, sys
from setuptools import build_meta
os.umask(0o022)
_, out, *kinds = sys.argv
for kind in kinds:
    getattr(build_meta, "build_" + kind)(out)
"""


@dataclass(frozen=True, slots=True)
class Built:
    """The files of one build."""

    wheel: Path
    sdist: Path
    dev_wheel: Path

    def bytes(self) -> list[bytes]:
        return [path.read_bytes() for path in (self.wheel, self.sdist, self.dev_wheel)]


def build(scratch: Path, out: Path) -> Built:
    """Builds both wheels and the sdist of this checkout into ``out``; ``scratch`` must be empty, and may go then."""
    out.mkdir(parents=True, exist_ok=True)
    copy_sources(scratch)
    _run_backend(scratch, out, "wheel", "sdist")
    _run_backend(scratch / "kafka_coord" / "dev", out, "wheel")
    (sdist,) = out.glob("kafka_coord-*.tar.gz")
    _normalise(sdist)
    (wheel,) = out.glob("kafka_coord-*.whl")
    (dev_wheel,) = out.glob("kafka_coord_dev-*.whl")
    return Built(wheel, sdist, dev_wheel)


def build_from_sdist(sdist: Path, scratch: Path, out: Path) -> Path:
    """The wheel that pip would build from the sdist."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    (top,) = scratch.iterdir()
    _run_backend(top, out, "wheel")
    (wheel,) = out.glob("*.whl")
    return wheel


def epoch() -> int:
    """The time that the files carry: ``SOURCE_DATE_EPOCH``, otherwise that of the commit, in seconds."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _git("log", "-1", "--format=%ct"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def copy_sources(target: Path) -> None:
    """Copies what git tracks, and new files that it does not ignore, with the modes of a fresh clone."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "kafka_coord", "*.*", "LICENSE")
    for name in filter(None, listed.split("\0")):
        source, copy = ROOT / name, target / name
        if not source.is_file() or ("/" in name and not name.startswith("kafka_coord/")):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _run_backend(where: Path, out: Path, *kinds: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BACKEND, str(out), *kinds],
        cwd=where,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch()), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"setuptools failed in {where}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _normalise(sdist: Path) -> None:
    """Packs it again, sorted, with one time and no owner; setuptools writes when it ran, and who ran it."""
    made = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch(), 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(made.getvalue(), mtime=epoch()))
