"""Tests of the import path that users wrote before ``kafka_coord.spark`` had its current name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

NEW = {
    "kafka_coord.pipeline.checking": "kafka_coord.spark.checking",
    "kafka_coord.pipeline.jobs.flights": "kafka_coord.dev.jobs.flights",
    "kafka_coord.pipeline.jobs.history": "kafka_coord.spark.jobs.history",
    "kafka_coord.pipeline.progress": "kafka_coord.spark.progress",
    "kafka_coord.pipeline.records": "kafka_coord.spark.records",
    "kafka_coord.pipeline.sinks": "kafka_coord.spark.sinks",
    "kafka_coord.pipeline.sinks.parquet": "kafka_coord.spark.sinks.parquet",
    "kafka_coord.pipeline.stopping": "kafka_coord.spark.stopping",
}


@pytest.fixture(autouse=True)
def _imported_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    finders = list(sys.meta_path)
    for name in [name for name in sys.modules if name.startswith("kafka_coord.pipeline")]:
        monkeypatch.delitem(sys.modules, name)
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.startswith("kafka_coord.pipeline")]:
        del sys.modules[name]


@pytest.mark.parametrize("old", NEW)
def test_an_old_path_warns_with_the_new_name_and_gives_the_same_module(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=r"kafka_coord\.pipeline is now kafka_coord\.spark"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(NEW[old])


def test_the_old_package_has_the_same_names_as_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"kafka_coord\.spark"):
        from kafka_coord.pipeline import KafkaCoordSource, register
    from kafka_coord import spark

    assert register is spark.register
    assert KafkaCoordSource is spark.KafkaCoordSource


def test_the_error_for_an_unknown_module_has_its_new_name() -> None:
    with (
        pytest.warns(DeprecationWarning, match="spark"),
        pytest.raises(ModuleNotFoundError, match=r"kafka_coord\.spark\.nothing"),
    ):
        importlib.import_module("kafka_coord.pipeline.nothing")
