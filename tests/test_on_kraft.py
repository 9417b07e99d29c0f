"""The suites of the listener, of consumers, of the command line and of the dashboard on Kafka 4.3: a named part of them
each time, on one cluster, and all of it in a long run. ``scripts/test --kraft PATH`` runs any of them there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kafka_coord.dev.cluster.jars import KAFKA_4, class_path
from kafka_coord.errors import DevClusterError
from tests.house.rooms import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]
NAMED = (
    "tests/frontends/kafka/test_contract.py",
    "tests/frontends/kafka/test_managed.py",
    "tests/frontends/kafka/test_recreated_topics.py",
    "tests/consumer/test_handover.py",
    "tests/cli/test_with_kafka.py",
)
"""What takes a minute and touches most."""
SUITES = (
    ("tests/frontends",),
    ("tests/consumer", "tests/end_to_end", "tests/third_party"),
    ("tests/cli", "tests/monitor"),
)


def passes_on_kraft(*paths: str, within_s: float) -> None:
    try:
        class_path(KAFKA_4)
    except DevClusterError as error:
        pytest.skip(f"no Kafka 4.3: {error}")
    command = [sys.executable, "-m", "pytest", "-q", "--kraft", "-m", "kafka", "-p", "no:cacheprovider", *paths]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=within_s, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:]


@pytest.mark.timeout(660)
def test_the_named_part_of_the_suites_passes_on_kafka_4() -> None:
    passes_on_kraft(*NAMED, within_s=600)


@pytest.mark.long
@pytest.mark.timeout(3_100)
@pytest.mark.parametrize("suite", SUITES, ids=lambda paths: paths[0].rpartition("/")[2])
def test_all_of_a_suite_passes_on_kafka_4(suite: tuple[str, ...]) -> None:
    passes_on_kraft(*suite, within_s=3_000)
