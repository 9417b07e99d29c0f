"""Tests ``kafka-coord audit``, as operators and scripts use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer
from kafka_coord.zk import layout
from tests.audit.scribe import GROUP, TOPIC, Scribe
from tests.cli.commands import promised
from tests.cli.running import Ran, run

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def audited(logged_server: ZooKeeperServer, scribe: Scribe):
    def command(*options: str) -> Ran:
        return run("audit", str(logged_server.directory), "--chroot", scribe.chroot, *options)

    return command


def test_with_a_clean_log_the_exit_code_is_0(audited):
    ran = audited()
    assert ran.code == 0, ran.err
    assert ran.out.startswith("0 violations, 0 warnings in ")
    assert "violations: none" in ran.out
    document = audited("-o", "json").json()
    assert (document["violations"], document["warnings"]) == ([], [])
    assert document["checked"]["grants"] == 4
    assert list(document) == list(promised("audit"))
    assert set(document["checked"]) >= set(promised("audit")["checked"])


def test_with_a_violation_the_exit_code_is_10_and_the_output_has_its_time_place_and_author(audited, scribe: Scribe):
    scribe.somebody.set(layout.offset(GROUP, TOPIC, 0), b"99")
    ran = audited("-o", "json")
    assert ran.code == 10
    assert "2 violations" in ran.err
    found = {one["rule"]: one for one in json.loads(ran.out)["violations"]}
    assert found["offset-back"]["what"] == "flights-0 went back from 100 to 99"
    assert found["offset-back"]["group"] == GROUP
    assert found["offset-back"]["who"].startswith("session 0x")
    assert found["offset-back"]["zxid"].startswith("0x")
    assert list(found["offset-back"]) == list(promised("audit")["violations"][0])
    table = audited()
    assert table.code == 10
    assert "flights-0 went back from 100 to 99" in table.out


def test_with_running_an_unfinished_rebalance_is_no_violation(audited, scribe: Scribe):
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "1-3"}}))
    assert audited().code == 10
    assert audited("--running").code == 0


def test_the_history_of_a_partition_has_the_reasons_of_its_moves(audited, scribe: Scribe):
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "1-3"}}))
    scribe.write(scribe.ledger("c1", {"flights": "0"}, {"flights": "1"}), scribe.stopping("c1", {"flights": "1"}, 2))
    scribe.obey("c1", {1: 170})
    scribe.write(scribe.ledger("c1", {"flights": "0"}))
    scribe.start("c2", {"flights": "1-3"}, 2, offset=170)
    scribe.obey("c2")
    told = audited("--partition", "flights-1", "-o", "json").json()["history"]
    assert [(event["what"], event["why"]) for event in told] == [
        ("generation 1: flights-1 is to move from no owner to c1", "reason 1"),
        (
            "c1 is told to start flights-1 from the offset chosen by its auto.offset.reset (start-0000000000)",
            "reason 1",
        ),
        ("c1 acknowledged start-0000000000 (start flights-1) at offset 100", ""),
        ("generation 2: flights-1 is to move from c1 to c2", "reason 2"),
        ("c1 is told to stop flights-1 (stop-0000000001)", "reason 2"),
        ("c1 acknowledged stop-0000000001 (stop flights-1) at offset 170", ""),
        ("c1 no longer holds flights-1", "it has stopped"),
        ("c2 is told to start flights-1 from offset 170 (start-0000000001)", "reason 2"),
        ("c2 acknowledged start-0000000001 (start flights-1)", ""),
    ]
    assert "c1 of delays" in told[2]["who"]
    assert list(told[0]) == ["when", "zxid", "group", "what", "why", "who"]
    assert "is to move from c1 to c2" in audited("--partition", "flights-1").out
    assert audited("--partition", "flights-1", "--group", "other", "-o", "json").json()["history"] == []
    of_c2 = [event["what"] for event in audited("--consumer", "c2", "-o", "json").json()["history"]]
    assert of_c2[0].startswith("c2 registered")
    assert not any("c1 is told" in what for what in of_c2)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["{empty}"], 7, "no transaction log"),
        (["{empty}/nowhere"], 7, "is not a directory"),
        (["{empty}", "--partition", "flights"], 2, "is not a partition such as flights-3"),
        (["{empty}", "--chroot", "kafka"], 2, "is not a path; use one such as /kafka"),
        ([], 2, "Missing argument"),
    ],
)
def test_an_impossible_audit_causes_one_line_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, says: str
):
    ran = run("audit", *(argument.format(empty=tmp_path) for argument in arguments))
    assert ran.code == code
    assert says in ran.err
    assert "Traceback" not in ran.err


def test_the_error_for_a_damaged_log_names_file_and_offset(tmp_path: Path):
    (tmp_path / "log.1").write_bytes(b"ZKLG\0\0\0\2" + bytes(8) + b"\x7f" * 40)
    ran = run("audit", str(tmp_path))
    assert ran.code == 3
    assert f"{tmp_path}/log.1:16: a record of 2139062143 bytes" in ran.err
