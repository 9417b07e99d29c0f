"""Fetches each client once into the cache, with its language's own package tool."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kafka_coord.dev.cluster.cache import becoming, cache_directory
from kafka_coord.dev.cluster.class_archive import COMPILER
from kafka_coord.dev.cluster.jars import ZOOKEEPER, class_path
from kafka_coord.errors import DevClusterError
from kafka_coord.spark.session import find_java

MEMBERS = Path(__file__).parent / "members"


def home(name: str) -> Path:
    return cache_directory() / "clients" / name


def tool(name: str) -> str:
    """The path of a tool. Raises :class:`DevClusterError` if this machine does not have the tool."""
    found = shutil.which(name)
    if found is None:
        raise DevClusterError(f"{name} is not installed")
    return found


def python_packages(*requirements: str) -> Path:
    """Installs the packages, and returns their directory for ``PYTHONPATH``."""
    where = home("-".join([*requirements, sys.implementation.cache_tag or "python"]).replace("==", "-"))
    if not where.exists():
        with becoming(where, requirements[0]) as fetched:
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q"]
            run([*pip, "--target", str(fetched), *requirements])
    return where


def java_jars(*artifacts: str) -> tuple[Path, ...]:
    """Fetches the artifacts (``group:name:version``) and their dependencies with Maven, and returns their jars."""
    where = home("-".join(one.partition(":")[2].replace(":", "-") for one in artifacts))
    if not where.exists():
        with becoming(where, artifacts[0]) as fetched:
            wanted = "\n".join(_DEPENDENCY.format(*one.split(":")) for one in artifacts)
            (fetched / "pom.xml").write_text(_POM.format(wanted))
            maven = [tool("mvn"), "-q", "-B", "-f", str(fetched / "pom.xml"), "dependency:copy-dependencies"]
            run([*maven, "-DincludeScope=runtime", f"-DoutputDirectory={fetched / 'jars'}"])
    return tuple(sorted((where / "jars").glob("*.jar")))


def java_class_path(*artifacts: str) -> str:
    """The class path of these artifacts, with this project's own logging."""
    logging = ("slf4j", "log4j", "reload4j")
    of_them = [jar for jar in java_jars(*artifacts) if not jar.name.startswith(logging)]
    ours = [jar for jar in class_path(ZOOKEEPER) if jar.name.startswith(logging)]
    return os.pathsep.join(map(str, [*of_them, *ours]))


def java_classes(program: str, class_path: str) -> Path:
    """The directory with the compiled ``members/<program>.java``."""
    source = MEMBERS / f"{program}.java"
    made_of = hashlib.sha256(source.read_bytes() + class_path.encode()).hexdigest()[:16]
    where = home(f"{program}-{made_of}")
    if not where.exists():
        with becoming(where, source.name) as compiled:
            run([str(find_java().executable), *COMPILER, "-d", str(compiled), "-cp", class_path, str(source)])
    return where


def go_program(name: str, *modules: str) -> Path:
    """Builds the program of ``members/<name>`` with these modules (``path@version``), and returns its path."""
    made_of = hashlib.sha256((MEMBERS / name / "main.go").read_bytes()).hexdigest()[:16]
    where = home("-".join([name, *(one.rpartition("@")[2] for one in modules), made_of]))
    if not (where / "member").exists():
        with becoming(where, name) as fetched:
            shutil.copy(MEMBERS / name / "main.go", fetched)
            go = tool("go")
            run([go, "mod", "init", "member"], cwd=fetched)
            run([go, "get", *modules], cwd=fetched)
            run([go, "mod", "tidy"], cwd=fetched)
            run([go, "build", "-o", "member", "."], cwd=fetched)
    return where / "member"


def node_packages(*requirements: str) -> Path:
    """Installs the packages, and returns their directory for ``NODE_PATH``."""
    where = home("-".join(requirements).replace("@", "-"))
    if not where.exists():
        with becoming(where, requirements[0]) as fetched:
            run(
                [tool("npm"), "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(fetched), *requirements]
            )
    return where / "node_modules"


def run(command: Sequence[str], cwd: Path | None = None) -> None:
    """Runs a command. If it fails, raises :class:`DevClusterError` with the end of its output."""
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if ended.returncode:
        said = (ended.stderr.strip() or ended.stdout.strip())[-600:]
        raise DevClusterError(f"{Path(command[0]).name} failed: {said}")


_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kafka_coord</groupId><artifactId>clients</artifactId><version>1</version>
  <dependencies>
{}
  </dependencies>
</project>
"""
_DEPENDENCY = "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
