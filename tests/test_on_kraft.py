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
CLI = "tests/cli/test_with_kafka.py::test_"
NAMED = (
    *(f"tests/frontends/kafka/test_{name}.py" for name in ("contract", "recreated_topics")),
    "tests/frontends/kafka/test_operators.py::test_the_dashboard_evicts_and_resets_a_group_of_stock_clients",
    f"{CLI}reset_offsets_previews_executes_exports_and_restores",
    f"{CLI}offsets_are_reset_while_a_consumer_runs",
    f"{CLI}the_lag_of_all_groups_is_sorted_with_the_largest_first",
    f"{CLI}watch_shows_owners_and_lag",
)
"""What takes a minute and touches most. ``tests/end_to_end/test_kraft.py`` and ``tests/security/test_kraft.py`` have
consumers there."""
SUITES = (
    ("tests/frontends",),
    ("tests/consumer", "tests/end_to_end", "tests/third_party"),
    ("tests/cli", "tests/monitor"),
)


def passes_on_kraft(*arguments: str, within_s: float) -> None:
    try:
        class_path(KAFKA_4)
    except DevClusterError as error:
        pytest.skip(f"no Kafka 4.3: {error}")
    command = [sys.executable, "-m", "pytest", "-q", "--kraft", "-m", "kafka", "-p", "no:cacheprovider", *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=within_s, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:]


@pytest.mark.timeout(960)
def test_the_named_part_of_the_suites_passes_on_kafka_4() -> None:
    passes_on_kraft(*NAMED, within_s=900)


@pytest.mark.long
@pytest.mark.timeout(3_100)
@pytest.mark.parametrize("suite", SUITES, ids=lambda paths: paths[0].rpartition("/")[2])
def test_all_of_a_suite_passes_on_kafka_4(suite: tuple[str, ...]) -> None:
    passes_on_kraft("-n", "3", "--max-worker-restart", "0", *suite, within_s=3_000)
