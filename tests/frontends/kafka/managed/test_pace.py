"""How long heartbeats are held, with models of the clients that send them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from kafka_coord.frontends.kafka.managed.pace import NOT_HELD_S, Pace

SOON_S = 0.002


@dataclass
class Client:
    """librdkafka: it gives a heartbeat up after the interval that it was last told. It sends the next one that interval
    after it sent the previous one. ``commit_s``: it commits this often, on the same connection."""

    software: str = "librdkafka"
    commit_s: float = math.inf
    heartbeats: int = 0
    held_s: float = 0.0
    silences: list[float] = field(default_factory=list)
    too_late: int = 0

    def live(self, seconds: float) -> Client:
        pace, now, commit_at = Pace.of(self.software), 0.0, 0.7 * self.commit_s
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
                commit_at += self.commit_s
            self.heartbeats += 1
            self.held_s += end - sent
            self.silences.append(now - end)
            self.too_late += end - sent >= timeout_s
        return self


@pytest.mark.parametrize(("commit_s", "per_minute"), [(5.0, 60), (1.0, 240), (math.inf, 60)])
def test_librdkafka_is_hardly_ever_silent(commit_s: float, per_minute: int) -> None:
    client = Client(commit_s=commit_s).live(300.0)
    assert client.too_late == 0
    assert client.heartbeats <= 5 * per_minute
    assert client.held_s >= 0.7 * 300 if commit_s < 5 else client.held_s >= 0.9 * 300
    assert sorted(client.silences)[len(client.silences) // 2] <= 0.15


def test_a_client_that_waits_for_any_answer_is_told_to_come_back_at_once() -> None:
    pace = Pace.of("apache-kafka-java")
    assert pace.limit_s() == pace.join_limit_s() == pace.longest_s > 5
    assert pace.after_news() == pace.after_limit(7.0) == pace.after_interruption(7.0) < 0.1
    assert pace.while_stopping() == NOT_HELD_S, "it comes back by itself"


def test_an_unknown_client_is_not_held() -> None:
    pace = Pace.of("")
    pace.arrived(0.0)
    assert pace.after_limit(0.0) == NOT_HELD_S
    assert pace.limit_s() <= 0
