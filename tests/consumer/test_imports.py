"""Tests of what each import loads: operators' tools need no librdkafka, and a simulation needs no client."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kafka_coord


@pytest.mark.parametrize(
    ("module", "not_loaded"),
    [
        ("kafka_coord", {"kazoo", "confluent_kafka", "re2"}),
        ("kafka_coord.model", {"kazoo", "confluent_kafka"}),
        ("kafka_coord.channel.zookeeper", {"kazoo", "confluent_kafka"}),
        ("kafka_coord.consumer.connector", {"kazoo", "confluent_kafka"}),
    ],
)
def test_importing_a_part_does_not_load_what_it_does_not_need(module: str, not_loaded: set[str]) -> None:
    program = f"import sys, {module}; print(*({not_loaded!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.split() == []


def test_every_name_in_all_exists() -> None:
    assert {name for name in kafka_coord.__all__ if not hasattr(kafka_coord, name)} == set()
    assert dir(kafka_coord) == sorted(kafka_coord.__all__)
    with pytest.raises(AttributeError, match="Producer"):
        _ = kafka_coord.Producer  # type: ignore[attr-defined]
