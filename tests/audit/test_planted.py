"""Tests that the audit finds each kind of violation in a real ZooKeeper's log, and does not report lawful writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafka_coord.model import Pause, RequestType, TopicPartition
from kafka_coord.model import json_fields as fields
from kafka_coord.monitor.audit import AuditRule, Report
from kafka_coord.zk import layout
from kafka_coord.zk.store import Check, Create, Delete, SetData
from tests.audit.scribe import GROUP, TOPIC, Scribe

pytestmark = pytest.mark.zookeeper
Judged = Callable[[], Report]

BOTH = {"c1": {"flights": "0-1"}, "c2": {"flights": "2-3"}}


def rules(report: Report) -> set[AuditRule]:
    return {found.rule for found in report.violations}


def warned(report: Report) -> set[AuditRule]:
    return {found.rule for found in report.warnings}


def test_a_lawful_history_has_no_findings_and_is_checked_completely(scribe: Scribe, judged: Judged):
    scribe.commit("c1", {0: 150})
    report = judged()
    assert (report.violations, report.warnings) == ([], [])
    figures = report.figures
    assert (figures["elections"], figures["registrations"], figures["targets"]) == (1, 2, 1)
    assert (figures["grants"], figures["commands"], figures["commands_removed"], figures["commits"]) == (4, 2, 2, 5)


def test_a_lawful_handover_has_no_findings(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "1-3"}}))
    scribe.write(scribe.ledger("c1", {"flights": "0"}, {"flights": "1"}), scribe.stopping("c1", {"flights": "1"}, 2))
    scribe.obey("c1", {1: 170})
    scribe.write(scribe.ledger("c1", {"flights": "0"}))
    scribe.start("c2", {"flights": "1-3"}, 2, offset=170)
    scribe.obey("c2")
    assert judged().violations == []


def test_two_live_holders_are_found(scribe: Scribe, judged: Judged):
    scribe.write(scribe.ledger("c2", {"flights": "1-3"}))
    report = judged()
    assert AuditRule.TWO_HOLDERS in rules(report)
    found = next(found for found in report.violations if found.rule is AuditRule.TWO_HOLDERS)
    assert "flights-1 was given to c2 while held by c1" in found.what
    assert found.group == GROUP
    assert found.zxid == scribe.leader.get(layout.ledger(GROUP, "c2")).stat.mzxid


def test_partitions_of_a_dead_incarnation_may_be_reassigned(scribe: Scribe, judged: Judged):
    scribe.end("c1")
    scribe.forget("c1")
    scribe.write(scribe.target(2, {"c2": {"flights": "0-3"}}))
    scribe.start("c2", {"flights": "0-3"}, 2)
    scribe.obey("c2")
    assert judged().violations == []


def test_a_start_while_another_holds_it_is_found(scribe: Scribe, judged: Judged):
    scribe.start_again("c2", {"flights": "2-3"}, {"flights": "1"}, 1)
    scribe.obey("c2")
    assert rules(judged()) == {AuditRule.START_WHILE_HELD, AuditRule.START_WITHOUT_LEDGER}


@pytest.mark.parametrize("offset", [-1, 99, 101])
def test_a_start_at_another_offset_than_the_committed_one_is_found(scribe: Scribe, judged: Judged, offset: int):
    scribe.end("c1")
    scribe.forget("c1")
    scribe.write(scribe.target(2, {"c2": {"flights": "0-3"}}))
    scribe.write(scribe.ledger("c2", {"flights": "0-3"}), scribe.starting("c2", {"flights": "0-1"}, 2, offset))
    scribe.obey("c2")
    report = judged()
    assert rules(report) == {AuditRule.START_ELSEWHERE}
    assert f"starts flights-0 on c2 at offset {offset}, but the stored offset is 100" in report.violations[0].what


def test_a_registration_that_another_client_deletes_is_a_warning(scribe: Scribe, judged: Judged):
    scribe.somebody.delete(layout.registration(GROUP, "c1"))
    scribe.write(scribe.target(2, {"c2": {"flights": "2-3"}}))
    report = judged()
    assert (rules(report), warned(report)) == (set(), {AuditRule.BY_HAND})


def test_a_partition_released_before_its_stop_is_acknowledged_is_found(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "1-3"}}))
    scribe.write(scribe.ledger("c1", {"flights": "0"}, {"flights": "1"}), scribe.stopping("c1", {"flights": "1"}, 2))
    scribe.write(scribe.ledger("c1", {"flights": "0"}))
    scribe.obey("c1")
    scribe.start("c2", {"flights": "1-3"}, 2)
    scribe.obey("c2")
    assert rules(judged()) == {AuditRule.RELEASED_EARLY}


def test_a_partition_released_without_a_stop_is_found(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "2-3"}}))
    scribe.write(scribe.ledger("c1", {"flights": "0"}))
    assert rules(judged()) == {AuditRule.RELEASED_EARLY}


def test_a_coordinator_write_without_its_fence_is_found(scribe: Scribe, judged: Judged):
    scribe.leader.set(layout.ledger(GROUP, "c1"), scribe.leader.get(layout.ledger(GROUP, "c1")).data)
    assert rules(judged()) == {AuditRule.UNFENCED_WRITE}


def test_a_deposed_coordinators_write_that_checks_any_version_is_found(scribe: Scribe, judged: Judged):
    # ZooKeeper refuses a check of a wrong version, so a stale fence must be a check of any version
    deposed = scribe.leader
    scribe.depose()
    scribe.elect(2, scribe.session())
    op = scribe.ledger("c1", {"flights": "0-1"})
    scribe.write(op, store=deposed, fence=Check(layout.COORDINATOR_EPOCH))
    assert rules(judged()) == {AuditRule.STALE_EPOCH}


def test_a_command_that_names_an_old_epoch_is_found(scribe: Scribe, judged: Judged):
    scribe.depose()
    scribe.elect(2, scribe.session())
    scribe.write(scribe.ledger("c1", {"flights": "0-1"}), scribe.starting("c1", {"flights": "0"}, 1, epoch=1))
    scribe.obey("c1")
    assert rules(judged()) == {AuditRule.STALE_EPOCH}


def test_an_epoch_that_goes_back_is_found(scribe: Scribe, judged: Judged):
    scribe.depose()
    scribe.elect(2, scribe.session())
    scribe.depose()
    scribe.elect(1, scribe.session())
    assert rules(judged()) == {AuditRule.EPOCH_BACK}


def test_a_generation_that_goes_back_is_found(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(5, BOTH))
    scribe.write(scribe.target(4, BOTH))
    assert rules(judged()) == {AuditRule.GENERATION_BACK}


def test_a_command_of_an_older_generation_is_found(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(5, BOTH))
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 5)
    scribe.obey("c1")
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 4)
    scribe.obey("c1")
    assert rules(judged()) == {AuditRule.GENERATION_BACK}


def test_an_acknowledgement_by_a_session_that_is_not_registered_is_found(scribe: Scribe, judged: Judged):
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 1)
    scribe.somebody.delete(scribe.outstanding("c1")[0])
    report = judged()
    assert rules(report) == {AuditRule.ACK_BY_ANOTHER}
    assert "is registered by c1 of delays" in report.violations[0].what


def test_an_acknowledgement_after_the_end_of_the_registration_is_found(scribe: Scribe, judged: Judged):
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 1)
    scribe.write(scribe.target(2, {"c2": {"flights": "2-3"}}))
    path = scribe.outstanding("c1")[0]
    scribe.stores["c1"].delete(layout.registration(GROUP, "c1"))
    scribe.stores["c1"].delete(path)
    report = judged()
    assert rules(report) == {AuditRule.ACK_BY_ANOTHER}
    assert "which is not registered" in report.violations[0].what


def test_an_acknowledgement_without_its_checks_is_found(scribe: Scribe, judged: Judged):
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 1)
    scribe.stores["c1"].multi([scribe.own_fence("c1")[0], Delete(scribe.outstanding("c1")[0])])
    assert rules(judged()) == {AuditRule.ACK_UNFENCED}


def test_an_acknowledgement_out_of_order_is_found(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(2, {"c1": {"flights": "1"}, "c2": {"flights": "0,2-3"}}))
    scribe.stop("c1", {"flights": "1"}, {"flights": "0"}, 2)
    scribe.write(scribe.ledger("c1", {"flights": "1"}, {"flights": "0"}), scribe.starting("c1", {"flights": "1"}, 2))
    first, second = scribe.outstanding("c1")
    scribe.stores["c1"].multi([*scribe.own_fence("c1"), Delete(second)])
    scribe.stores["c1"].multi([*scribe.own_fence("c1"), Delete(first)])
    assert rules(judged()) == {AuditRule.ACK_OUT_OF_ORDER, AuditRule.NOT_CONVERGED}


def test_a_command_for_an_earlier_incarnation_may_be_dropped(scribe: Scribe, judged: Judged):
    scribe.start_again("c1", {"flights": "0-1"}, {"flights": "0"}, 1)
    scribe.end("c1")
    scribe.join("c1")
    scribe.stores["c1"].delete(scribe.outstanding("c1")[0])
    scribe.write(scribe.target(2, BOTH))
    scribe.start("c1", {"flights": "0-1"}, 2)
    scribe.obey("c1")
    assert judged().violations == []


def test_an_offset_that_a_consumer_without_the_partition_moves_back_is_found(scribe: Scribe, judged: Judged):
    scribe.commit("c2", {0: 99})
    assert rules(judged()) == {AuditRule.OFFSET_BACK, AuditRule.COMMIT_BY_ANOTHER}


def test_an_offset_that_another_client_writes_is_found(scribe: Scribe, judged: Judged):
    scribe.somebody.set(layout.offset(GROUP, TOPIC, 0), b"99")
    assert rules(judged()) == {AuditRule.OFFSET_BACK, AuditRule.UNFENCED_COMMIT}


def test_a_holder_that_moves_its_own_offset_back_is_a_warning(scribe: Scribe, judged: Judged):
    scribe.commit("c1", {0: 99})
    report = judged()
    assert (rules(report), warned(report)) == (set(), {AuditRule.SEEK_BACK})


def test_an_operators_reset_is_lawful(scribe: Scribe, judged: Judged):
    scribe.end("c1")
    scribe.forget("c1")
    asked = scribe.ask(RequestType.RESET_OFFSETS, offsets={TopicPartition(TOPIC, 0): 0})
    scribe.write(SetData(layout.offset(GROUP, TOPIC, 0), b"0"), scribe.answer(asked))
    scribe.write(scribe.target(2, {"c2": {"flights": "2-3"}}))
    assert judged().violations == []


def test_a_group_that_does_not_reach_its_target_is_found(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "1-3"}}))
    scribe.write(scribe.ledger("c1", {"flights": "0"}, {"flights": "1"}), scribe.stopping("c1", {"flights": "1"}, 2))
    report = judged()
    assert rules(report) == {AuditRule.NOT_CONVERGED}
    what = report.violations[0].what
    assert "c1 is still stopping flights[1]" in what
    assert "stop-0000000001 of c1 is not acknowledged" in what
    assert "c2 has not received flights[1]" in what


def test_a_subscribed_partition_that_is_missing_in_the_target_is_found(scribe: Scribe, judged: Judged):
    scribe.somebody.ensure_path(layout.BROKER_TOPICS)
    value = b'{"version":3,"partitions":{"0":[1],"1":[1],"2":[1],"3":[1],"4":[1]}}'
    scribe.somebody.create(layout.broker_topic(TOPIC), value)
    scribe.somebody.create(layout.broker_topic("routes"), value)
    report = judged()
    assert rules(report) == {AuditRule.NOT_CONVERGED}
    assert report.violations[0].what == "at the end of the log, flights[4] has subscribers, but no owner in the target"


def test_a_paused_group_need_not_reach_its_target(scribe: Scribe, judged: Judged):
    scribe.write(scribe.target(2, {"c1": {"flights": "0"}, "c2": {"flights": "1-3"}}))
    scribe.somebody.create(layout.paused(GROUP), fields.dump(Pause().to_json()))
    assert judged().violations == []


def test_a_write_that_failed_has_no_effect(scribe: Scribe, judged: Judged):
    with pytest.raises(Exception, match="version"):
        scribe.write(scribe.ledger("c2", {"flights": "0-3"}), Check(layout.group(GROUP), 99))
    with pytest.raises(Exception, match="version"):
        scribe.write(Create(layout.group("other")), Check(layout.group(GROUP), 99))
    assert judged().violations == []


def test_unreadable_values_are_warnings(scribe: Scribe, judged: Judged):
    scribe.write(Create(layout.ledger(GROUP, "c9"), b"\xff not json"))
    scribe.write(SetData(layout.assignment(GROUP), b"[]"), scribe.target(2, BOTH))
    report = judged()
    assert (rules(report), warned(report)) == (set(), {AuditRule.UNREADABLE})
