"""Tests of the position in a run over which one thread iterates without a lock while another thread ends the run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from kafka_coord.consumer.stream_partitions import HeldPartition, IteratedRun
from tests.consumer.fetched import PARTITION, Message, messages


@pytest.fixture
def hasty() -> Iterator[None]:
    """Makes threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_all_records_before_the_last_one_handed_out_count_as_consumed():
    holding = HeldPartition(PARTITION, 0)
    run = IteratedRun(holding, messages(5))  # offsets 1, 2, 4, 5, 7
    assert run.account() == 0
    assert (holding.consumed, holding.position) == (0, 0)
    next(run.rest)
    assert run.account() == 1
    assert (holding.consumed, holding.position) == (0, 2)
    next(run.rest), next(run.rest)
    assert run.account() == 2
    assert (holding.consumed, holding.position) == (3, 5)
    assert run.account() == 0
    more, left = run.end()
    assert (more, [message.offset() for message in left]) == (0, [5, 7])
    assert next(run.rest, None) is None


@pytest.mark.usefixtures("hasty")
def test_each_record_is_either_handed_out_or_left_whenever_the_run_ends():
    for waits in range(200):
        holding, given = HeldPartition(PARTITION, 0), messages(3_000)
        run, taken, begun = IteratedRun(holding, given), list[Message](), threading.Event()

        def take(run: IteratedRun = run, taken: list[Message] = taken, begun: threading.Event = begun) -> None:
            begun.set()
            while (message := next(run.rest, None)) is not None:
                taken.append(message)

        thread = threading.Thread(target=take)
        thread.start()
        begun.wait()
        counted = sum(run.account() for _ in range(waits % 20))
        more, left = run.end()
        thread.join()
        assert taken + left == given
        assert counted + more == len(taken)
        assert holding.position == (taken[-1].offset() + 1 if taken else 0)
