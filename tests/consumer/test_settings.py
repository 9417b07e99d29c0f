"""Settings that need no server to be understood or refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kafka_coord.consumer.settings import callbacks, membership
from kafka_coord.consumer.transport import Endpoint, open_transport
from kafka_coord.errors import SettingsError


def test_a_consumer_without_a_name_gets_one() -> None:
    assert membership(group="delays", topics=["flights"]).consumer.startswith("delays_")
    assert membership(group="delays", topics=["flights"], consumer_id="c1").consumer == "c1"


def test_an_open_store_excludes_a_coordinators_socket() -> None:
    both = Endpoint(store=cast("Any", object()), bootstrap="127.0.0.1:7171")
    with pytest.raises(SettingsError, match="not both"):
        open_transport(both, membership(group="delays", topics=["flights"]), cast("Any", None), lambda: None)


def test_a_callback_with_two_parameters_gets_the_consumer_first() -> None:
    calls: list[Any] = []
    given = {
        "on_assign": lambda consumer, partitions: calls.append((consumer, partitions)),
        "on_revoke": lambda partitions, mine="mine": calls.append((mine, partitions)),
        "on_lost": calls.append,
    }
    told = callbacks(on_start=None, on_stop=None, consumer="me", **cast("Any", given))
    for callback in (told.on_assign, told.on_revoke, told.on_lost):
        assert callback is not None
        callback(frozenset())
    assert calls == [("me", frozenset()), ("mine", frozenset()), frozenset()]
