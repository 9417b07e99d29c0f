"""Tests of how long a session is certainly alive, with a model of the ZooKeeper leader's knowledge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.zk.kazoo_session import LAG_SHARE, MARGIN_S, SessionLease

TIMEOUT_S = 10.0


def connected_lease(at: float = 100.0) -> SessionLease:
    lease = SessionLease()
    lease.connected(at, session_id=7, timeout_s=TIMEOUT_S)
    return lease


def test_nothing_is_proven_before_a_connect_and_after_the_end() -> None:
    lease = SessionLease()
    lease.record_answer(5.0, through_leader=True)
    assert lease.lease_deadline() == 0.0

    lease.connected(100.0, 7, TIMEOUT_S)
    lease.ended()

    assert lease.lease_deadline() == 0.0
    assert lease.session_id == 0


def test_an_accepted_connection_proves_one_timeout_minus_the_margin() -> None:
    assert connected_lease(100.0).lease_deadline() == pytest.approx(100.0 + TIMEOUT_S * 0.95)


def test_a_short_session_keeps_the_minimum_margin() -> None:
    lease = SessionLease()
    lease.connected(100.0, 7, 0.4)
    assert lease.lease_deadline() == pytest.approx(100.4 - MARGIN_S)


def test_answered_reads_prove_nothing_because_a_cut_off_follower_answers_them_too() -> None:
    lease = connected_lease()
    before = lease.lease_deadline()

    for at in range(101, 120):
        lease.record_answer(float(at), through_leader=False)

    assert lease.lease_deadline() == before


def test_an_answer_through_the_leader_proves_earlier_requests() -> None:
    lease = connected_lease(100.0)
    lease.record_answer(103.0, through_leader=False)

    lease.record_answer(103.0 + LAG_SHARE * TIMEOUT_S, through_leader=True)

    assert lease.lease_deadline() == pytest.approx(103.0 + TIMEOUT_S * 0.95)


def test_an_answer_to_a_request_of_an_earlier_connection_does_not_count() -> None:
    lease = connected_lease(100.0)
    lease.connected(200.0, 8, TIMEOUT_S)

    lease.record_answer(199.0, through_leader=True)

    assert lease.lease_deadline() == pytest.approx(200.0 + TIMEOUT_S * 0.95)


def test_heartbeats_alone_keep_the_proof_45_percent_of_the_timeout_ahead() -> None:
    lease = connected_lease(0.0)
    now = 0.0
    for _ in range(50):
        now = lease.leader_heard_at + LAG_SHARE * TIMEOUT_S
        assert lease.lease_deadline() - now >= 0.45 * TIMEOUT_S - 1e-9  # the proof just before the heartbeat
        lease.record_answer(now, through_leader=True)


@given(
    tick_share=st.floats(0.01, 0.5),
    sends=st.lists(st.tuples(st.floats(0.0, 40.0), st.booleans()), max_size=60),
    cut_at=st.floats(0.0, 40.0),
)
def test_no_lease_exceeds_the_session_whenever_its_follower_is_cut_off(
    tick_share: float, sends: list[tuple[float, bool]], cut_at: float
) -> None:
    """A follower reports its sessions every half tick until it is cut off. It always answers reads."""
    half_tick = tick_share * TIMEOUT_S / 2
    lease = connected_lease(0.0)
    touched = [0.0]
    for sent_at, through_leader in sorted(sends):
        if through_leader and sent_at > cut_at:
            continue  # this request is never answered
        touched.append(sent_at)
        lease.record_answer(sent_at, through_leader=through_leader)
    last_report = (cut_at // half_tick) * half_tick
    leader_knows = max(at for at in touched if at <= last_report)

    assert lease.lease_deadline() <= leader_knows + TIMEOUT_S


@given(st.lists(st.floats(0.0, 1000.0), max_size=300))
def test_the_number_of_remembered_requests_stays_small(sends: list[float]) -> None:
    lease = connected_lease(0.0)
    for sent_at in sorted(sends):
        lease.record_answer(sent_at, through_leader=True)
    assert len(lease._sent) <= LAG_SHARE * 64 + 2
