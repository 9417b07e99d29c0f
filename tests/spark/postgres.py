"""A PostgreSQL server for the tests, from the package ``pgserver``. It listens only on a socket in its folder."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.waiting import eventually

USER, DATABASE = "kafka_coord", "postgres"
PORT = 5432
"""The port is only part of the socket's name, because the server listens on no network."""


@contextlib.contextmanager
def postgres() -> Iterator[Path]:
    """Runs the server, and yields the folder with its socket."""
    # The server refuses to run as root, and another user may be unable to read the folder where it is installed.
    nobody = "nobody" if os.geteuid() == 0 else None
    package = importlib.util.find_spec("pgserver")
    assert package is not None
    installed = Path(str(package.origin)).parent
    with tempfile.TemporaryDirectory(prefix="kc-pg-") as made:
        folder = Path(made)
        for name in ("pgserver", "pgserver.libs"):  # the programs find their libraries relative to their own path
            shutil.copytree(installed.parent / name, folder / name)
        programs = folder / "pgserver" / "pginstall" / "bin"
        if nobody:
            shutil.chown(folder, nobody)
        data = folder / "data"
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8"],
            check=True,
            user=nobody,
            cwd=folder,
            capture_output=True,
        )
        command = [programs / "postgres", "-D", data, "-k", folder, "-p", str(PORT), "-h", "", "-F"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, user=nobody, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            ready = [programs / "pg_isready", "-h", folder, "-p", str(PORT), "-q"]
            eventually(lambda: subprocess.run(ready, check=False).returncode == 0, within_s=60, every_s=0.1)
            yield folder
        finally:
            server.terminate()  # this "smart" shutdown waits for open connections, but the tests close theirs
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def connecting(driver: str, folder: Path) -> Callable[[], Any]:
    """Returns a function that connects to the server with ``psycopg`` or ``pg8000``."""
    if driver == "psycopg":
        connect = importlib.import_module("psycopg").connect
        return partial(connect, host=str(folder), port=PORT, user=USER, dbname=DATABASE)
    connect = importlib.import_module("pg8000").connect
    return partial(connect, unix_sock=str(folder / f".s.PGSQL.{PORT}"), user=USER, database=DATABASE)
