"""How long a heartbeat may be held, and with which error it is answered at the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from kafka_coord.classic_groups.errors import Error
from kafka_coord.classic_groups.heartbeat_hold import AutoCommits, Beats, hold_limit_s, longest_hold_s

JAVA = "apache-kafka-java"


@pytest.mark.parametrize(
    ("software", "session_s", "silent_s", "limit_s"),
    [
        ("librdkafka", 45.0, 3.0, 15.0),
        ("librdkafka", 300.0, 3.0, 15.0),
        ("confluent-kafka-python", 6.0, 3.0, 1.0),
        (JAVA, 45.0, 3.0, 6.0),
        (JAVA, 10.0, 3.0, 10.0 / 3),
        ("librdkafka", 10.0, 7.0, 0.0),
        ("github.com/segmentio/kafka-go", 45.0, 3.0, 0.0),
        ("kafka-python", 45.0, 3.0, 0.0),
        ("", 45.0, 3.0, 0.0),
    ],
)
def test_the_limit_fits_the_client_and_its_session(
    software: str, session_s: float, silent_s: float, limit_s: float
) -> None:
    assert max(0.0, hold_limit_s(longest_hold_s(software), session_s, silent_s)) == pytest.approx(limit_s)


AGAIN = Error.COORDINATOR_LOAD_IN_PROGRESS
SESSION_S = 45.0


def joined() -> Beats:
    beats = Beats(99.0)
    beats.joined(99.0)
    return beats


def test_a_hold_ends_just_before_librdkafka_sends_the_next_heartbeat() -> None:
    assert Beats(99.0).arrived(100.0, "librdkafka", SESSION_S) == pytest.approx(8.75)
    assert Beats(99.0).arrived(100.0, JAVA, SESSION_S) == pytest.approx(6.0), "its interval starts again"
    assert Beats(99.0).arrived(100.0, "librdkafka", 10.0) == pytest.approx(2.75), "the session is short"
    assert Beats(99.0).arrived(100.0, "librdkafka", 6.0) == pytest.approx(2.0), "shorter than to the next tick"


def test_a_commit_makes_librdkafka_send_its_heartbeat_again() -> None:
    beats, at = joined(), 100.0
    beats.arrived(at, "librdkafka", SESSION_S)
    assert beats.interrupted(at + 4.0) is AGAIN
    assert beats.arrived(at + 4.1, "librdkafka", SESSION_S) == pytest.approx(4.65), "its ticks stay where they are"
    assert beats.interrupted(at + 8.7) is Error.NONE, "the next tick is near"
    assert beats.arrived(at + 9.0, "librdkafka", SESSION_S) == pytest.approx(8.75)


def test_a_client_is_answered_without_an_error_in_each_term() -> None:
    """In the earlier terms, it may have received errors only, and a client leaves the group after a session timeout
    of errors."""
    for software in ("librdkafka", JAVA):
        beats = Beats(99.0)
        beats.arrived(100.0, software, SESSION_S)
        assert beats.interrupted(101.0) is Error.NONE
        beats.arrived(103.0, software, SESSION_S)
        assert beats.interrupted(104.0) is AGAIN


@pytest.mark.parametrize("software", ["kafka-python 3.0.12", "aiokafka 0.14.0"])
@pytest.mark.parametrize(("interval_s", "held"), [(3.0, 0.9), (1.0, 0.7), (10.0, 0.25)])
def test_a_client_that_waits_for_its_answer_is_answered_before_its_next_heartbeat(
    software: str, interval_s: float, held: float
) -> None:
    beats, at, beyond_s, held_s = joined(), 100.0, 0.0, 0.0
    for _ in range(40):
        hold_s = max(0.0, beats.arrived(at, software, SESSION_S))
        beyond_s, held_s = beyond_s + max(0.0, hold_s - interval_s), held_s + hold_s
        at += max(interval_s, hold_s + 0.01)
    assert beyond_s < 2.0, "until its interval is known"
    assert held_s > held * (at - 100.0)
    beats.arrived(at, software, SESSION_S)
    assert beats.interrupted(at + 0.5) is Error.NONE, "it would take any error for a problem"


def test_other_clients_do_not_send_heartbeats_again() -> None:
    beats = Beats(99.0)
    beats.arrived(100.0, "kgo", SESSION_S)
    assert beats.interrupted(101.0) is Error.NONE


@dataclass
class Librdkafka:
    """The heartbeats of a librdkafka client for a minute, in steps of 0.1 s: the number ``sent``, and in ``silent`` the
    times at which none was under way."""

    sent: int = 0
    silent: list[int] = field(default_factory=list)
    fine: list[int] = field(default_factory=lambda: [1020])
    """When an answer had no error."""

    def commits_every(self, period: int) -> Librdkafka:
        return self.commits({now for now in range(1020, 1620) if (now + 3) % period == 0}, SESSION_S)

    def commits(self, times: set[int], session_s: float) -> Librdkafka:
        beats, ends, again_at, retries = joined(), 0, -1, 0
        for now in range(1020, 1620):
            is_held, is_tick = now < ends, now % 30 == 0
            if now == ends:
                self.fine.append(now)
            if is_held and now in times:
                answer, ends, is_held = beats.interrupted(now / 10), now, False
                again_at, retries = (now + min(2**retries, 10), retries + 1) if answer is AGAIN else (-1, 0)
                self.fine += [now] * (answer is not AGAIN)
            if now == again_at or (is_tick and not is_held and again_at < now):
                retries = retries if now == again_at else 0
                ends = now + round(beats.arrived(now / 10, "librdkafka", session_s) * 10)
                self.sent += 1
            elif not is_held:
                self.silent.append(now)
        return self


def test_a_client_with_automatic_commits_nearly_always_has_a_heartbeat_under_way() -> None:
    client = Librdkafka().commits_every(50)
    assert client.sent <= 20, "as many heartbeats as to Kafka"
    assert len(client.silent) < 600 * 0.06
    assert not any(set(range(at, at + 5)) <= {*client.silent} for at in client.silent), "0.5 s at once"


@pytest.mark.parametrize("period", [1, 3, 7, 10, 20, 30, 40])
def test_a_client_that_commits_often_sends_no_more_heartbeats_than_to_kafka(period: int) -> None:
    assert Librdkafka().commits_every(period).sent <= 20 + 3, "three more are allowed"


@pytest.mark.parametrize("session_s", [6.0, 10.0, 45.0])
def test_a_client_that_commits_often_is_never_answered_with_errors_for_a_session(session_s: float) -> None:
    """If it received errors only for a session timeout, it would leave the group."""
    for seed in range(100):
        choose = random.Random(seed)
        times = set(choose.sample(range(1020, 1620), 600 // choose.choice((1, 2, 5, 10, 20, 40))))
        fine = Librdkafka().commits(times, session_s).fine
        assert max(later - before for before, later in pairwise(fine)) <= session_s * 10 * 2 / 3, seed


def commit(offset: int, number: int = 1) -> bytes:
    """The frame of a commit of the offset, with its correlation id ``number``."""
    return b"".join(one.to_bytes(4, "big") for one in (8 << 16 | 9, number, offset))


@dataclass
class Java:
    """The heartbeats of the Java client for ten minutes, in steps of 0.1 s. It sends one 3 s after the one before, even
    if that is held. After an error, it waits longer each time, until it is answered without one."""

    sent: int = 0
    silent: list[int] = field(default_factory=list)
    fine: list[int] = field(default_factory=list)
    """When an answer had no error."""
    idle_until: int = 0
    """Until this step, each commit is equal to the one before."""
    commits: AutoCommits = field(default_factory=AutoCommits)

    def commit_waits(self, now: int, *, is_held: bool) -> bool:
        request = commit(now * (now > self.idle_until), number=now)
        waits = is_held and self.commits.may_wait(now / 10, JAVA, request)
        self.commits.arrived(now / 10, JAVA, request, waits=waits)
        return waits

    def commits_every(self, period: int) -> Java:
        beats, is_held, due, failed = joined(), False, 1020, 0
        for now in range(1020, 7020):
            is_interrupted = now % period == 0 and not self.commit_waits(now, is_held=is_held)
            if is_held and (now == due or is_interrupted):
                is_held = False
                if beats.interrupted(now / 10) is AGAIN:
                    assert now != due, "a heartbeat is not asked for because the next one has come"
                    due, failed = now + min(2**failed, 10), failed + 1
                else:
                    self.fine.append(now)
                    failed = 0
            if now == due:
                assert beats.arrived(now / 10, JAVA, SESSION_S) > 3.0
                self.sent, is_held, due = self.sent + 1, True, now + 30
            if not is_held:
                self.silent.append(now)
        return self


def test_a_java_client_with_automatic_commits_nearly_always_has_a_heartbeat_under_way() -> None:
    client = Java().commits_every(50)
    assert client.sent <= 10 * 24, "4 a minute more than to Kafka"
    assert len(client.silent) < 6000 * 0.03


@pytest.mark.parametrize("idle_until", [7020, 1500])
def test_a_java_client_that_has_been_idle_sends_as_many_heartbeats_as_to_kafka_and_is_never_silent(
    idle_until: int,
) -> None:
    client = Java(idle_until=idle_until).commits_every(50)
    assert client.sent <= 10 * 20 + 2
    assert len(client.silent) < 6000 * 0.003


def test_an_application_that_waits_for_its_commits_does_so_once_in_ten_minutes() -> None:
    """It polls for 5 s, commits, and waits for the answer, which comes with the next heartbeat, every 3 s."""
    commits, now, waited = AutoCommits(), 100.0, [0.0]
    while now < 1300.0:
        waits = commits.may_wait(now, JAVA, commit(1))
        commits.arrived(now, JAVA, commit(1), waits=waits)
        if waits:
            waited.append(3.0 - now % 3.0)
        now += 5.0 + waits * waited[-1]
    assert 1 <= sum(1 for seconds in waited if seconds > 0.3) <= 2


@pytest.mark.parametrize(
    ("software", "after_s", "offset"),
    [("librdkafka", 5.0, 1), (JAVA, 4.0, 1), (JAVA, 6.0, 1), (JAVA, 0.1, 1), (JAVA, 5.0, 2)],
)
def test_other_commits_are_answered_without_delay(software: str, after_s: float, offset: int) -> None:
    commits = AutoCommits()
    assert not commits.may_wait(100.0, software, commit(1)), "nothing is known about it"
    commits.arrived(100.0, JAVA, commit(1), waits=False)
    again = commit(1, number=2)
    assert all(commits.may_wait(105.1, one, again) for one in (JAVA, "kafka-python 3.0.12", "aiokafka 0.14.0"))
    assert not commits.may_wait(100.0 + after_s, software, commit(offset))


def test_a_java_client_that_joins_again_is_asked_again() -> None:
    beats = Beats(99.0)
    for at in (100.0, 110.0):
        beats.joined(at)
        beats.arrived(at, JAVA, SESSION_S)
        assert beats.interrupted(at + 1.0) is AGAIN


@pytest.mark.parametrize("period", [1, 3, 7, 10, 20, 30, 40, 70])
def test_a_java_client_that_commits_at_other_times_sends_hardly_more_heartbeats(period: int) -> None:
    client = Java().commits_every(period)
    assert client.sent <= 10 * 24 + 3
    assert max(later - before for before, later in pairwise(client.fine)) <= 80, "its membership goes on"
