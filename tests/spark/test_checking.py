"""Tests that a query checks at its start whether the machine has what it needs."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from kafka_coord.errors import SettingsError
from kafka_coord.spark.session import SUPPORTED, require_java, require_versions

FITTING = {"pyspark": "4.2.0", "pandas": "2.3.3", "pyarrow": "21.0.0"}


def test_the_installed_versions_are_supported():
    require_versions()


@pytest.mark.parametrize(
    ("package", "version", "says"),
    [
        ("pyspark", "4.1.1", "pyspark 4.1.1 is installed, but only versions from 4.2 up to"),
        ("pyspark", "5.0.0.dev1", "pyspark 5.0.0.dev1 is installed"),
        ("pandas", "3.0.0", "pandas 3.0.0 is installed, but only versions from 2.2 up to"),
        ("pyarrow", "14.0.2", "pyarrow 14.0.2 is installed"),
    ],
)
def test_the_error_for_an_unsupported_version_names_the_supported_ones(package: str, version: str, says: str):
    with pytest.raises(SettingsError, match=says):
        require_versions(FITTING | {package: version})


def test_the_error_for_a_missing_package_says_how_to_install_it():
    with pytest.raises(SettingsError, match=r"pandas is not installed.*pip install 'kafka-coord\[spark\]'"):
        require_versions({name: version for name, version in FITTING.items() if name != "pandas"})


def test_the_extras_requirements_equal_the_supported_versions():
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[2] / "setup.cfg")
    wanted = dict(line.split(maxsplit=1) for line in setup["options.extras_require"]["spark"].strip().splitlines())
    for one in SUPPORTED:
        assert one.package in wanted
        if not wanted[one.package].startswith("=="):
            least, below = (".".join(map(str, numbers)) for numbers in (one.least, one.below))
            assert wanted[one.package].removesuffix(f", < {below}") == f">= {least}"


def java(directory: Path, version: str) -> str:
    """Makes a Java home whose Java reports this version."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-21' >&2\n")
    program.chmod(0o755)
    return str(directory)


def test_the_installed_java_is_supported():
    require_java()


def test_the_error_without_java_says_what_to_install(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"there is no java on the PATH.*apt-get install openjdk-17"):
        require_java({"PATH": str(tmp_path)})
    with pytest.raises(SettingsError, match=r"cannot run .*bin/java \(from JAVA_HOME\)"):
        require_java({"JAVA_HOME": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(("version", "major"), [("1.8.0_412", 8), ("11.0.22", 11)])
def test_an_old_java_is_refused_with_its_version(tmp_path: Path, version: str, major: int):
    with pytest.raises(SettingsError, match=f"is Java {major}. Spark needs Java 17"):
        require_java({"JAVA_HOME": java(tmp_path, version)})


def test_a_newer_java_is_accepted(tmp_path: Path):
    require_java({"JAVA_HOME": java(tmp_path, "21.0.2")})
