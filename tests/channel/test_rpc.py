"""Tests of which end may send which request, and when. They need no I/O."""

from __future__ import annotations

import pytest

from kafka_coord.channel.frames import MAX_UNANSWERED, Asked, BadFrame, Fault, Rpc


def test_the_number_of_unanswered_requests_is_limited() -> None:
    here, there = Rpc(), Rpc()
    for _ in range(MAX_UNANSWERED):
        _, frame = there.ask("commit")
        assert isinstance(here.take(frame), Asked)
    here.answer(1)
    _, frame = there.ask("commit")
    assert isinstance(here.take(frame), Asked)
    _, frame = there.ask("commit")
    with pytest.raises(BadFrame) as refused:
        here.take(frame)
    assert refused.value.fault is Fault.TOO_MANY_REQUESTS
    assert refused.value.id == MAX_UNANSWERED + 2
