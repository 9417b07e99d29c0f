"""Tests of settings that need no server."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kafka_coord.consumer.settings import Callbacks, bound, member_settings
from kafka_coord.consumer.transport import Endpoint, open_transport
from kafka_coord.errors import SettingsError


def test_a_consumer_without_a_name_gets_a_generated_one() -> None:
    assert member_settings(group="delays", topics=["flights"]).member.consumer.startswith("delays_")
    assert member_settings(group="delays", topics=["flights"], consumer_id="c1").member.consumer == "c1"


def test_a_store_and_a_coordinators_socket_cannot_be_combined() -> None:
    both = Endpoint(store=cast("Any", object()), bootstrap="127.0.0.1:7171")
    with pytest.raises(SettingsError, match="not both"):
        open_transport(both, member_settings(group="delays", topics=["flights"]), cast("Any", None), lambda: None)


def test_a_callback_with_two_parameters_gets_the_consumer_first() -> None:
    calls: list[Any] = []
    given = (
        lambda consumer, partitions: calls.append((consumer, partitions)),
        lambda partitions, mine="mine": calls.append((mine, partitions)),
        calls.append,
    )
    for callback in given:
        told = bound(callback, "me")
        assert told is not None
        told(frozenset())
    assert calls == [("me", frozenset()), ("mine", frozenset()), frozenset()]


def test_a_callback_cannot_be_given_under_both_of_its_names() -> None:
    assert Callbacks.of("me", {"group": "g", "on_start": print, "on_stop": repr}) == Callbacks(print, repr)
    assert Callbacks.of("me", {"group": "g"}) == Callbacks()
    with pytest.raises(SettingsError, match="give on_assign or on_start, not both"):
        Callbacks.of("me", {"group": "g", "on_start": print, "on_assign": print})
