"""Tests of the warning about unsupported versions of librdkafka."""

from __future__ import annotations

import pytest

from kafka_coord.consumer import fetchers
from kafka_coord.consumer.settings import OffsetReset


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
def test_a_warning_is_logged_about_a_librdkafka_that_may_hang(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, number: int, said: int
) -> None:
    monkeypatch.setattr(fetchers, "libversion", lambda: (name, number))
    make_fetchers()
    assert sum(f"librdkafka {name}" in message for message in caplog.messages) == said


def test_no_warning_is_logged_about_the_installed_librdkafka(caplog: pytest.LogCaptureFixture) -> None:
    make_fetchers()
    assert caplog.messages == []
