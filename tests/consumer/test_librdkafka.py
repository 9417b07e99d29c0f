"""The supported versions of librdkafka."""

from __future__ import annotations

import pytest

from kafka_coord.consumer import fetchers
from kafka_coord.consumer.offset_reset import OffsetReset


def make_fetchers() -> fetchers.KafkaFetchers:
    return fetchers.KafkaFetchers(
        {},
        streams=1,
        reset=OffsetReset.EARLIEST,
        auto_commit=True,
        hands_out_until=lambda: float("inf"),
        check=lambda: None,
        wake=lambda: None,
    )


@pytest.mark.parametrize(("name", "number", "said"), [("2.9.0", 0x020900FF, 0), ("2.16.1", 0x021001FF, 1)])
def test_one_that_may_lock_up_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, number: int, said: int
) -> None:
    monkeypatch.setattr(fetchers, "libversion", lambda: (name, number))
    make_fetchers()
    assert sum(f"librdkafka {name}" in message for message in caplog.messages) == said


def test_the_one_installed_is_not(caplog: pytest.LogCaptureFixture) -> None:
    make_fetchers()
    assert caplog.messages == []
