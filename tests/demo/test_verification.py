"""The verification finds and names each fault, and reports nothing else."""

from __future__ import annotations

from dataclasses import replace

from kafka_coord.dev.demo.expected import AirlineTotal
from kafka_coord.dev.demo.journal import Acknowledged, Change, Handed
from kafka_coord.dev.demo.verification import MAX_DIFFERENCES, Verification, verify
from kafka_coord.model import PartitionSet
from tests.demo.evidence import START_MS, SmallRun, run, tp

WRITTEN = "the topic holds every written record"
CONSUMED = "every record was consumed at least once"
TWICE = "no record was consumed twice, except what a killed consumer had not committed"
RESUMED = "after a kill, the next owner resumed at the committed offset"
ONE_OWNER = "no two consumers owned a partition at once"
INTERRUPTED = "no partition that kept its owner was interrupted"
AIRLINES = "flights per airline equal the input's"
DELAYS = "delays per airline match the input"
KEPT = "no acknowledged commit was lost"
COMMITTED = "the committed offsets add up to the number of records"


def failed(verification: Verification) -> set[str]:
    return {check.name for check in verification.checks if not check.passed}


def differences(verification: Verification, name: str) -> str:
    return "\n".join(next(check for check in verification.checks if check.name == name).differences)


def test_a_run_in_which_only_the_killed_consumer_repeated_passes() -> None:
    found = verify(SmallRun().evidence())

    assert found.passed, found.failures()
    assert found.repeated == 10
    assert sum(total.flights for total in found.consumed.values()) == 200


def test_records_that_no_consumer_received_are_named() -> None:
    world = SmallRun()
    world.c1[0] = run(0, range(97))

    found = verify(world.evidence())

    assert CONSUMED in failed(found)
    assert "flights-0: nobody consumed offsets 97-99 (3)" in differences(found, CONSUMED)


def test_a_missing_record_also_shows_in_its_airlines_count() -> None:
    world = SmallRun()
    world.c1[0] = run(0, range(99))

    assert failed(verify(world.evidence())) == {CONSUMED, AIRLINES} | {DELAYS}


def test_a_record_repeated_by_a_clean_handover_is_refused() -> None:
    world = SmallRun()
    world.c2 += [run(0, range(40, 42))]

    found = verify(world.evidence())

    assert failed(found) == {TWICE}
    assert "flights-0: offsets 40-41 (2) were consumed more than once" in differences(found, TWICE)
    assert "no killed consumer owned it" in differences(found, TWICE)


def test_repeating_what_the_killed_consumer_had_committed_is_refused() -> None:
    world = SmallRun()
    world.c1[1] = run(1, range(45, 100))

    found = verify(world.evidence())

    assert failed(found) == {TWICE}
    assert "flights-1: offsets 45-49 (5)" in differences(found, TWICE)
    assert "c2's records from offset 50 on may be repeated" in differences(found, TWICE)


def test_a_third_delivery_after_a_killing_is_refused() -> None:
    world = SmallRun()
    world.c1.append(run(1, range(55, 57)))

    found = verify(world.evidence())

    assert failed(found) == {TWICE}
    assert "flights-1: offsets 55-56 (2)" in differences(found, TWICE)


def test_without_a_killing_no_repetition_is_allowed() -> None:
    world = SmallRun()
    world.killings = []

    found = verify(world.evidence())

    assert failed(found) == {TWICE, ONE_OWNER}
    assert "offsets 50-59 (10)" in differences(found, TWICE)


def test_uncommitted_records_that_the_next_owner_skipped_are_found_although_they_were_consumed() -> None:
    world = SmallRun()
    world.c1[1] = run(1, range(60, 100))

    found = verify(world.evidence())

    assert failed(found) == {RESUMED}
    assert "offsets 50-59 (10)" in differences(found, RESUMED)


def test_an_airline_counted_wrongly_is_named_with_both_numbers() -> None:
    world = SmallRun()
    world.expected["B6"].flights += 1

    found = verify(world.evidence())

    assert failed(found) == {AIRLINES}
    assert differences(found, AIRLINES) == "B6: 66 flights consumed, 67 in the input"


def test_an_airline_the_input_does_not_have_is_found() -> None:
    world = SmallRun()
    del world.expected["AA"]

    assert "AA: 66 flights consumed, 0 in the input" in differences(verify(world.evidence()), AIRLINES)


def test_an_airline_that_never_came_is_found() -> None:
    world = SmallRun()
    world.expected["HA"] = AirlineTotal(flights=3, arrived=2, delay_minutes=-9)

    found = verify(world.evidence())

    assert differences(found, AIRLINES) == "HA: 0 flights consumed, 3 in the input"
    assert "HA: 0 minutes over 0 arrivals consumed, -9 over 2 in the input" in differences(found, DELAYS)


def test_delays_that_differ_are_found_where_the_counts_agree() -> None:
    world = SmallRun()
    world.expected["UA"].delay_minutes += 5

    assert failed(verify(world.evidence())) == {DELAYS}


def test_a_repetition_counts_a_flight_once() -> None:
    """c2 and c1 both consumed 50 … 59; the airlines' totals still match the input."""
    assert AIRLINES not in failed(verify(SmallRun().evidence()))


def test_an_offset_not_committed_to_the_end_is_found() -> None:
    world = SmallRun()
    world.committed[tp(1)] = 99

    found = verify(world.evidence())

    assert failed(found) == {COMMITTED}
    assert "add up to 199, but 200 records were written" in differences(found, COMMITTED)
    assert "flights-1: committed 99, end offset 100" in differences(found, COMMITTED)


def test_a_partition_without_any_committed_offset_is_found() -> None:
    world = SmallRun()
    del world.committed[tp(0)]

    assert "flights-0: committed nothing, end offset 100" in differences(verify(world.evidence()), COMMITTED)


def test_an_empty_partition_needs_no_commit() -> None:
    world = SmallRun()
    world.ends[tp(2)] = 0

    assert verify(world.evidence()).passed


def test_offsets_committed_for_a_partition_beyond_another_do_not_make_up_for_it() -> None:
    world = SmallRun()
    world.committed = {tp(0): 101, tp(1): 99}

    found = verify(world.evidence())

    assert failed(found) == {COMMITTED}
    assert "flights-0: committed 101" in differences(found, COMMITTED)


def test_records_lost_between_producer_and_topic_are_found() -> None:
    world = SmallRun()
    world.written = 201

    assert "201 were written, but it holds 200" in differences(verify(world.evidence()), WRITTEN)


def test_consuming_what_the_topic_does_not_have_is_found() -> None:
    world = SmallRun()
    world.c1.append(run(0, range(98, 103)))
    world.c1.append(run(7, range(1)))

    found = verify(world.evidence())

    assert "c1 consumed flights-0 up to offset 102, whose end is 100" in differences(found, CONSUMED)
    assert "c1 consumed flights-7 up to offset 0, which the topic does not have" in differences(found, CONSUMED)


def test_a_thousand_differences_are_summarized_in_a_few_lines() -> None:
    world = SmallRun()
    for partition in range(2, 100):
        world.ends[tp(partition)] = 10
    found = verify(world.evidence())

    check = next(check for check in found.checks if check.name == CONSUMED)
    assert len(check.differences) == MAX_DIFFERENCES + 1
    assert check.differences[-1] == "78 more differences"
    assert len(found.failures()) == len(failed(found))


def test_two_owners_at_once_are_found_although_no_record_was_doubled() -> None:
    world = SmallRun()
    world.holds["c1"][1] = replace(world.holds["c1"][1], at_ms=START_MS + 5_990)

    found = verify(world.evidence())

    assert failed(found) == {ONE_OWNER}
    assert differences(found, ONE_OWNER) == "flights-1: c2 and c1, 10 ms"


def test_a_needless_interruption_is_found() -> None:
    world = SmallRun()
    world.holds["c1"][1:1] = [
        Handed(START_MS + 700, Change.STOPPED, PartitionSet({"flights": [0]})),
        Handed(START_MS + 730, Change.STARTED, PartitionSet({"flights": [0]})),
    ]

    found = verify(world.evidence())

    assert failed(found) == {INTERRUPTED}
    assert "flights-0: c1 was stopped and, 30 ms later, started again" in differences(found, INTERRUPTED)


def test_a_consumer_that_lost_its_membership_and_came_back_was_not_interrupted_needlessly() -> None:
    world = SmallRun()
    world.holds["c1"][1:1] = [
        Handed(START_MS + 700, Change.LOST, PartitionSet({"flights": [0]})),
        Handed(START_MS + 730, Change.STARTED, PartitionSet({"flights": [0]})),
    ]

    assert verify(world.evidence()).passed


def with_commits(world: SmallRun, *commits: Acknowledged) -> Verification:
    """As if c2 were a stock client that recorded which of its commits were acknowledged."""
    c1, c2 = world.journals()
    return verify(replace(world.evidence(), journals=[c1, replace(c2, commits=commits)]))


def test_acknowledged_commits_that_the_next_owner_went_on_from_were_kept() -> None:
    found = with_commits(SmallRun(), Acknowledged(START_MS + 5_500, {tp(1): 50}))

    assert found.passed, found.failures()
    assert KEPT in {check.name for check in found.checks}
    assert KEPT not in {check.name for check in verify(SmallRun().evidence()).checks}, "nobody wrote any down"


def test_an_owner_that_begins_before_an_acknowledged_commit_is_named() -> None:
    found = with_commits(SmallRun(), Acknowledged(START_MS + 5_500, {tp(1): 55}))

    assert failed(found) == {KEPT}
    assert "c1 began at offset 50, but a commit of 55 had already been acknowledged" in differences(found, KEPT)


def test_a_group_that_ends_before_an_acknowledged_commit_is_named() -> None:
    world = SmallRun()
    world.committed[tp(1)] = 40

    found = with_commits(world, Acknowledged(START_MS + 5_500, {tp(1): 50}))

    assert "the group ends at offset 40, but a commit of 50 was acknowledged" in differences(found, KEPT)


def test_what_a_stock_client_had_not_committed_when_it_lost_its_membership_may_come_again() -> None:
    world = SmallRun(killings=[])
    world.holds["c2"].append(Handed(START_MS + 6_000, Change.LOST, PartitionSet({"flights": [1]})))
    acknowledged = Acknowledged(START_MS + 5_500, {tp(1): 50})

    assert with_commits(world, acknowledged).passed

    world.c2[0] = run(1, range(60))
    world.c1[1] = run(1, range(45, 100), START_MS + 9_000)
    found = with_commits(world, acknowledged)
    assert failed(found) == {TWICE, KEPT}
    assert "offsets 45-49 (5)" in differences(found, TWICE)
