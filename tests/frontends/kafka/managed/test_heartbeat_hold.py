"""Tests of how long heartbeats are held, with models of the clients that send them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kafka_coord.frontends.kafka.managed.heartbeat_hold import NOT_HELD_S, SLOWEST_S, STEADY_S, Pace

SOON_S = 0.002


@dataclass
class Client:
    """A model of librdkafka. It gives a heartbeat up after the interval that it was last told. It sends the next one an
    interval after it sent the previous one, and commits every ``commit_s`` on the same connection."""

    software: str = "librdkafka"
    commit_s: float = math.inf
    irregular: random.Random | None = None
    """If set, each commit comes earlier or later by up to half of ``commit_s``."""
    heartbeats: int = 0
    held_s: float = 0.0
    silences: list[float] = field(default_factory=list)
    too_late: int = 0

    def live(self, seconds: float) -> Client:
        pace, now, due_s = Pace.of(self.software), 0.0, 0.7 * self.commit_s
        commit_at = due_s
        pace.after_news()
        while now < seconds:
            sent, timeout_s = now, pace.told_s
            pace.arrived(sent)
            end = sent + max(0.0, pace.limit_s())
            if commit_at < end:
                end, interval_s = commit_at, pace.after_interruption(commit_at)
            else:
                interval_s = pace.after_limit(end)
            now = max(end + SOON_S, sent + interval_s)
            while commit_at < now:
                pace.committed(commit_at)
                due_s += self.commit_s
                late_s = self.irregular.uniform(-0.5, 0.5) * self.commit_s if self.irregular else 0.0
                commit_at = max(commit_at + SOON_S, due_s + late_s)
            self.heartbeats += 1
            self.held_s += end - sent
            self.silences.append(now - end)
            self.too_late += end - sent >= timeout_s
        return self


@pytest.mark.parametrize("commit_s", [math.inf, 5.0, 3.0, 2.0, 1.5, 1.0])
def test_librdkafka_almost_always_has_a_heartbeat_open(commit_s: float) -> None:
    client = Client(commit_s=commit_s).live(300.0)
    assert client.too_late == 0
    assert client.heartbeats <= 5 * 61
    assert client.held_s >= 0.9 * 300
    assert sorted(client.silences)[len(client.silences) // 2] <= 0.15


@pytest.mark.parametrize("commit_s", [0.05, 0.1, 0.3, 0.5, 0.7])
def test_a_client_that_commits_continuously_sends_no_additional_heartbeats(commit_s: float) -> None:
    client = Client(commit_s=commit_s).live(300.0)
    assert client.too_late == 0
    assert client.heartbeats <= 5 * 60
    assert max(client.silences) <= 1.5, "news must arrive long before Kafka's interval of 5 s has passed"


@pytest.mark.parametrize("commit_s", [0.3, 0.7, 1.0, 1.9, 2.5])
def test_heartbeats_are_held_even_if_commits_are_irregular(commit_s: float) -> None:
    client = Client(commit_s=commit_s, irregular=random.Random(1)).live(300.0)
    assert client.too_late == 0
    assert client.heartbeats <= 5 * 60
    assert client.held_s >= 0.1 * 300


def test_heartbeats_are_held_again_after_a_client_stops_committing() -> None:
    pace = Pace.of("librdkafka")
    for number in range(10):
        pace.committed(number / 2)
    pace.arrived(60.0)
    assert pace.after_limit(60.5) < 1.0


def test_a_client_that_waits_for_every_answer_is_told_to_send_the_next_heartbeat_at_once() -> None:
    pace = Pace.of("kgo")
    assert pace.limit_s() == pace.join_limit_s() == pace.longest_s > 5
    assert pace.after_news() == pace.after_limit(7.0) == pace.after_interruption(7.0) < 0.1
    assert pace.while_stopping() == NOT_HELD_S, "the client sends the next heartbeat without being asked"
    for at in 8.0, 8.2, 8.4:
        pace.committed(at)
    pace.arrived(8.4)
    assert pace.after_interruption(8.6) == pytest.approx(0.8), "the client must not send a heartbeat after each commit"


@dataclass
class JavaClient:
    """A model of the Java client that has just carried out an assignment. It waits for ``BACKOFF_S`` after each answer.
    The interval that it was last told begins when it sends a heartbeat, or with the answer that changes the interval.
    If the interval ends while a heartbeat is held, the client spins. Its application polls every ``POLL_S`` at the
    latest, and commits every ``commit_s``. At the times ``sends``, the client sends other requests."""

    BACKOFF_S, POLL_S = 0.11, 0.1
    commit_s: float = STEADY_S
    sends: Sequence[float] = ()
    heartbeats: int = 0
    asked: int = 0
    spun_s: float = 0.0
    silences: list[float] = field(default_factory=list)

    def live(self, seconds: float) -> JavaClient:
        polls, pace, now = random.Random(1), Pace.of("apache-kafka-java"), 0.0
        interval_s = pace.after_news()
        pace.acknowledged(now)
        commit_at, sends = self.commit_s + polls.uniform(0, self.POLL_S), [*self.sends, math.inf]
        while now < seconds:
            pace.arrived(now)
            self.heartbeats += 1
            end, due = now + pace.limit_s(), now + interval_s
            sent_at = min(commit_at, sends[0])
            if sent_at < end:
                end = max(now, sent_at)
                if pace.asks_again(end):
                    self.asked += 1
                    told_s, due = interval_s, end
                else:
                    told_s = pace.after_interruption(end)
            else:
                told_s = pace.after_limit(end)
            self.spun_s += max(0.0, end - now - interval_s)
            if told_s != interval_s:
                interval_s, due = told_s, end + told_s
            now = max(due, end + self.BACKOFF_S)
            self.silences.append(now - end)
            while commit_at < now:
                pace.committed(commit_at)
                commit_at += self.commit_s + polls.uniform(0, self.POLL_S)
            while sends[0] < now:
                sends.pop(0)
        return self


@pytest.mark.parametrize("commit_s", [STEADY_S, math.inf])
def test_the_java_client_almost_always_has_a_heartbeat_open_and_hardly_spins(commit_s: float) -> None:
    client = JavaClient(commit_s, sends=[0.03, 100.7, 233.3]).live(300.0)
    assert client.heartbeats <= 5 * 12 + client.asked, "no more heartbeats than with Kafka"
    assert sum(client.silences) <= 0.05 * 300
    assert max(client.silences) <= 0.35
    assert client.spun_s <= 0.02 * 300
    assert client.asked <= 6


@pytest.mark.parametrize("commit_s", [0.1, 0.4, 0.9, 1.7, 3.3, 7.0, 12.0])
def test_a_java_client_that_commits_at_any_interval_is_without_a_heartbeat_for_at_most_a_second(
    commit_s: float,
) -> None:
    client = JavaClient(commit_s).live(300.0)
    assert client.heartbeats <= 5 * 61
    assert max(client.silences) <= 1.0
    assert client.spun_s <= 0.05 * 300
    assert client.asked <= 3 + 5, "three times, and once a minute: the client writes a line to its log each time"


def test_the_hold_of_a_joining_java_client_is_short_because_the_client_spins() -> None:
    pace = Pace.of("apache-kafka-java")
    pace.joins()
    assert pace.join_limit_s() < 1.0
    assert pace.after_limit(0.9) == SLOWEST_S, "the client may get partitions at any moment"
    assert pace.after_news() == pace.while_stopping() == STEADY_S


def test_heartbeats_of_an_unknown_client_are_not_held() -> None:
    pace = Pace.of("")
    pace.arrived(0.0)
    assert pace.after_limit(0.0) == NOT_HELD_S
    assert pace.limit_s() <= 0
