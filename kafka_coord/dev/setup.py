"""Builds ``kafka-coord-dev``, which installs this folder as the package ``kafka_coord.dev``."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
VERSION = re.findall(r'__version__ = "(.+)"', (HERE.parent / "__init__.py").read_text())[0]


class WithoutSetup(build_py):
    """Leaves this file out of the package."""

    def find_package_modules(self, package, package_dir):
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[:2] != ("kafka_coord.dev", "setup")]


setup(
    name="kafka-coord-dev",
    version=VERSION,
    description="Real ZooKeeper and Kafka on a laptop, the demo and the benchmarks of kafka-coord",
    license_expression="Apache-2.0",
    python_requires=">=3.11",
    package_dir={"kafka_coord.dev": "."},
    packages=["kafka_coord.dev", *(f"kafka_coord.dev.{name}" for name in find_packages(str(HERE)))],
    package_data={"kafka_coord.dev.bench.rebalance": ["*.java"]},
    cmdclass={"build_py": WithoutSetup},
    install_requires=[f"kafka-coord[dev-requirements] == {VERSION}"],
)
