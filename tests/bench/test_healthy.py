"""The bench of a healthy cluster: what counts as a warning, and small runs of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from kafka_coord.dev.bench.healthy import run as healthy
from kafka_coord.dev.bench.healthy.lines import warnings_in
from kafka_coord.dev.bench.healthy.members import MANAGED, NATIVE, every_kind
from kafka_coord.dev.bench.healthy.run import HealthyOptions, bars
from kafka_coord.dev.demo.options import Kind
from tests.cli.running import run


def test_warnings_of_instances_members_and_librdkafka_count() -> None:
    bad = [
        "2026-11-29 07:09:36,218 WARNING kafka_coord.consumer.connector: fenced consumer=c1",
        "2026-11-29 07:09:36,218 ERROR   kafka_coord.serve failed",
        "%3|1795936174.825|FAIL|c1#consumer-1| [thrd:host:1]: Connect failed",
        "Traceback (most recent call last):",
    ]
    fine = [
        "2026-11-29 07:09:36,218 INFO kafka_coord.consumer.connector: a WARNING is only a word here",
        "26/11/29 07:10:16 WARN NativeCodeLoader: Unable to load native-hadoop library",
        "%6|1795936174.825|GETSUBSCRIPTIONS|c1#consumer-1| fine",
        "%4|1795936174.825|CGRP|c1| [thrd:app]: KIP-848 Consumer Group Protocol is in Early Access and MUST NOT …",
    ]
    assert list(warnings_in([*bad, *fine])) == bad


def test_there_is_a_member_of_every_kind_in_groups_of_every_kind() -> None:
    members = every_kind(spark=True, kraft=True)
    assert len({one.name for one in members}) == len(members)
    assert {one.kind for one in members} == set(Kind)
    assert {one.socket for one in members if one.kind is Kind.OWN} == {True, False}
    assert Kind.CONSUMER in {one.kind for one in members if one.group.startswith(NATIVE)}
    beginnings = (MANAGED, NATIVE, ("eager", "cooperative", "static"))
    for begins in beginnings:
        classic = [one for one in members if one.kind is Kind.CLASSIC and one.group.startswith(begins)]
        assert {(one.strategy, one.static) for one in classic} == {
            ("range", False),
            ("cooperative-sticky", False),
            ("cooperative-sticky", True),
        }


def test_a_finding_and_a_warning_each_miss_a_target() -> None:
    assert [one.met for one in bars({"findings": 0, "warnings": 0})] == [True, True]
    assert [one.met for one in bars({"findings": 1, "warnings": 2})] == [False, False]


def test_ctrl_c_ends_the_examinations_and_the_report_has_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    examinations = iter([["warning: lag: a group falls behind"]])

    def findings(_cluster: object) -> Iterator[str]:
        yield from next(examinations, None) or _interrupted()

    monkeypatch.setattr(healthy, "_findings", findings)
    found = healthy._examined(cast("Any", None), (), HealthyOptions(every_s=0.0), said.append)
    assert (found["examinations"], found["findings"]) == (1, {"warning: lag: a group falls behind": 1})
    assert said[-1].startswith("interrupted")


def _interrupted() -> list[str]:
    raise KeyboardInterrupt


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.zookeeper
@pytest.mark.parametrize("options", [["--smoke"], ["--minutes", "60"]], ids=["short", "an hour"])
def test_a_healthy_cluster_has_no_finding_and_no_warning(tmp_path: Path, options: list[str]) -> None:
    found = run("bench", "healthy", *options, "--dir", str(tmp_path), "-o", "json").json()
    (row,) = found["healthy"]
    assert (row["findings"], row["warnings"]) == (0, 0), found["notes"]
    assert row["examinations"] > 1
