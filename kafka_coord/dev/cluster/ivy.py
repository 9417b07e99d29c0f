"""Fetches jars with the Ivy that PySpark bundles, so that Maven or another downloader is not needed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.dev.cluster.java import run_java
from kafka_coord.errors import DevClusterError

_TIMEOUT_S = 600
_IN_PARENTHESES = re.compile(r"\((.*Exception.*)\)$")

# All artifacts are listed, so Ivy need not read POMs, and takes ten seconds instead of a minute.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0">
  <info organisation="kafka_coord" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconfmapping="default->default">
{dependencies}
  </dependencies>
</ivy-module>
"""


@dataclass(frozen=True, slots=True)
class Artifact:
    """The Maven coordinates of a jar."""

    organisation: str
    name: str
    version: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def retrieve(artifacts: Sequence[Artifact], into: Path, *, ivy: Path, work: Path) -> None:
    """Fetches ``artifacts`` into the new directory ``into``. ``work`` is for Ivy's own files.

    ``JAVA_TOOL_OPTIONS`` can set a proxy and certificates. Raises :class:`DevClusterError` with Ivy's reasons if a jar
    could not be fetched, and OSError if a directory cannot be written.
    """
    settings, module = work / "ivysettings.xml", work / "ivy.xml"
    settings.write_text(_SETTINGS, encoding="utf-8")
    module.write_text(_MODULE.format(dependencies="\n".join(map(_dependency, artifacts))), encoding="utf-8")
    arguments = [
        f"-Divy.default.ivy.user.dir={work / 'ivy'}",
        *("-jar", str(ivy)),
        *("-settings", str(settings)),
        *("-ivy", str(module)),
        *("-cache", str(work / "ivy-cache")),
        *("-retrieve", str(into / "[artifact]-[revision].[ext]")),
    ]
    try:
        answer = run_java(arguments, _TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(artifacts, [f"gave up after {_TIMEOUT_S} s"]) from error
    missing = [artifact.file_name for artifact in artifacts if not (into / artifact.file_name).is_file()]
    if answer.returncode != 0 or missing:
        raise _not_fetched(artifacts, _complaints(answer.stdout) or [f"missing: {', '.join(missing)}"])


def _dependency(artifact: Artifact) -> str:
    return (
        f'    <dependency org="{artifact.organisation}" name="{artifact.name}" rev="{artifact.version}" '
        'transitive="false"/>'
    )


def _complaints(output: str) -> list[str]:
    """Returns why Ivy failed, without duplicates: its causes (connection, certificate, disk), or else the jars that it
    did not find.
    """
    lines = [line.strip(" :\t") for line in output.splitlines()]
    causes = [line for line in lines if "Exception" in line or "No space left" in line]
    # "Server access error at url … (javax.net.ssl.SSLHandshakeException: PKIX path building failed: …)", once per jar
    reasons = [match[1] if (match := _IN_PARENTHESES.search(line)) else line for line in causes]
    return list(dict.fromkeys(reasons or [line for line in lines if line.startswith("module not found")]))[:4]


def _not_fetched(artifacts: Sequence[Artifact], reasons: Sequence[str]) -> DevClusterError:
    proxy = (
        ""
        if os.environ.get("JAVA_TOOL_OPTIONS")
        else " (JAVA_TOOL_OPTIONS can set a proxy, -Dhttps.proxyHost=…, or certificates, -Djavax.net.ssl.trustStore=…)"
    )
    return DevClusterError(
        f"{len(artifacts)} jars could not be fetched: {'; '.join(reasons)}. Check the network{proxy} and the free disk "
        "space, or put the jars into a directory and set KAFKA_COORD_JARS_DIR to its path "
        "(libs/ of a Kafka 3.9 distribution will do)"
    )
