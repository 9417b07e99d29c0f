"""How an append to the groups log ends, with a broker whose every answer the test decides."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_coord.classic_groups.sessions import LONGEST_STEP_S
from kafka_coord.errors import BrokerError, StoreUnavailable
from kafka_coord.grouplog import term
from kafka_coord.grouplog.term import REFUSALS, AppendRefused, Claimed, LogTerm, NotProven, TermEnded
from kafka_coord.kafka.connection import NotSent
from kafka_coord.wire import batches
from kafka_coord.wire.batches import Batch, LogRecord
from tests.simulation.groups.instances import FIRST_TREE, sent
from tests.simulation.groups.log import Sent

TOO_LARGE, LIST_TOO_LARGE, REPLICAS, DENIED = 10, 18, 19, 29
UNKNOWN = {20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND", 7: "REQUEST_TIMED_OUT", 56: "KAFKA_STORAGE_ERROR", 6: "NOT_LEADER",
           45: "OUT_OF_ORDER_SEQUENCE_NUMBER", 87: "INVALID_RECORD", -1: "UNKNOWN_SERVER_ERROR"}  # fmt: skip


class Broker:
    """Stands in for the connection. ``codes`` are the next answers (0 when empty), and batches of more than ``most``
    records are too large."""

    def __init__(self) -> None:
        self.codes: deque[int] = deque()
        self.most = 1 << 30
        self.sent: list[tuple[int, list[bytes | None]]] = []
        """The sequence number and the values of each batch."""
        self.log: list[bytes | None] = []
        self.closed = False
        self.is_open = True
        self.opened = 0
        self.breaks = False
        self._claim: Any = None

    async def open(self) -> None:
        self.opened += 1
        self.is_open = True

    async def ask(self, name: str, _version: int, value: Any, **_: Any) -> Any:
        await asyncio.sleep(0)
        if name == "Fetch":
            part = SimpleNamespace(error_code=0, records=[self._claim], high_watermark=1 << 30)
            return SimpleNamespace(responses=[SimpleNamespace(partitions=[part])])
        if not self.is_open:
            raise NotSent("the connection is closed")
        if self.breaks:
            raise BrokerError("the broker closed the connection")
        batch: Sent = value.topic_data[0].partition_data[0].records
        values = [record.value for record in batch.records]
        self.sent.append((batch.sequence, values))
        code = self.codes.popleft() if self.codes else TOO_LARGE if len(values) > self.most else 0
        base = len(self.log)
        if not code:
            if self._claim is None:
                placed = tuple(one._replace(offset=base) for one in batch.records)
                self._claim = Batch(base, base + 1, batch.producer_id, batch.epoch, batch.sequence, False, placed)
            self.log += values
        part = SimpleNamespace(error_code=code, base_offset=base)
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[part])])


@pytest.fixture(autouse=True)
def _wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(term, "encode_batch", sent)
    monkeypatch.setattr(batches, "decode_batches", iter)


class Played:
    """A claimed term. ``znode`` is what ZooKeeper answers when it is asked whether the term goes on."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.znode: bool | Exception = True
        self.checks = 0
        self.ended: list[str] = []
        self.planned: list[bool] = []
        self.outcomes: list[int] = []

    async def begin(self) -> LogTerm:
        told = self._ended, self._check
        of = 0, Claimed(5, 5, 1), "one", FIRST_TREE
        made = LogTerm(self.broker, *of, lambda: 0, *told, on_outcome=self.outcomes.append)  # type: ignore[arg-type]
        await made.claim()
        made.serve()
        self.broker.sent.clear()
        self.broker.log.clear()
        made._next_offset = 0
        return made

    def _ended(self, reason: str, planned: bool) -> None:
        self.ended.append(reason)
        self.planned.append(planned)

    async def _check(self) -> bool:
        self.checks += 1
        if isinstance(self.znode, Exception):
            raise self.znode
        return self.znode


def run(act: Callable[[Played, LogTerm], Awaitable[None]]) -> Played:
    played = Played()

    async def play() -> None:
        made = await played.begin()
        try:
            await act(played, made)
        finally:
            made.end("done")
            await asyncio.sleep(0)

    asyncio.run(play())
    return played


def record(value: str) -> LogRecord:
    return LogRecord(b"k", value.encode())


async def outcome(append: Awaitable[None]) -> str:
    try:
        await append
    except (AppendRefused, TermEnded) as error:
        return type(error).__name__
    return "written"


@pytest.mark.parametrize("code", sorted(REFUSALS))
def test_after_a_refusal_the_term_goes_on_and_uses_the_sequence_number_again(code: int) -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.codes.append(code)
        assert await outcome(made.append([record("a")])) == "AppendRefused"
        assert await outcome(made.append([record("b")])) == "written"
        (refused, first), (used_again, _) = played.broker.sent
        assert (refused, first) == (used_again, [b"a"])
        assert played.broker.log == [b"b"]
        assert not made.ended

    assert run(act).outcomes == [code, 0]


@pytest.mark.parametrize(("code", "planned"), [(6, True), (56, False), (47, False)])
def test_the_end_of_a_term_says_whether_it_was_planned(code: int, planned: bool) -> None:
    """A partition whose leadership has moved was moved by somebody, and a reason that only mentions that was not."""

    async def act(played: Played, made: LogTerm) -> None:
        played.broker.codes.append(code)
        assert await outcome(made.append([record("a")])) == "TermEnded"

    assert run(act).planned == [planned]


def test_a_text_does_not_decide_whether_an_end_was_planned() -> None:
    async def act(_played: Played, made: LogTerm) -> None:
        made.end("NOT_LEADER_OR_FOLLOWER was the answer to something else")

    assert run(act).planned == [False]


@pytest.mark.parametrize("code", UNKNOWN, ids=UNKNOWN.get)
def test_any_other_code_ends_the_term_and_nothing_is_sent_again(code: int) -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.codes.append(code)
        first, second = made.append([record("a")]), None
        assert await outcome(first) == "TermEnded"
        with pytest.raises(TermEnded):
            second = made.append([record("b")])
        assert second is None
        assert len(played.broker.sent) == 1

    assert len(run(act).ended) == 1


def test_a_connection_that_closes_after_a_byte_was_written_ends_the_term() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.breaks = True
        assert await outcome(made.append([record("a")])) == "TermEnded"

    assert run(act).checks == 0


def test_only_the_append_that_is_too_large_hears_of_it() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.most = 2
        applied: list[int] = []
        sizes = [1, 1, 3, 1, 1, 2, 1, 4]
        appends = [
            made.append([record(f"{number}")] * size, lambda number=number: applied.append(number))  # type: ignore[misc]
            for number, size in enumerate(sizes)
        ]
        found = [await outcome(one) for one in appends]
        assert found == ["AppendRefused" if size > 2 else "written" for size in sizes]
        assert applied == [number for number, size in enumerate(sizes) if size <= 2]
        assert played.broker.log == [str(n).encode() for n, size in enumerate(sizes) for _ in range(size) if size <= 2]

    assert run(act).ended == ["done"]


def test_what_follows_a_refused_part_of_the_same_request_is_not_written() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.most = 2
        other = made.append([record("x")])
        parts = made.append_in_order(
            [([record(name)] * size, lambda: None) for name, size in (("a", 1), ("b", 3), ("c", 1))]
        )
        last = made.append([record("y")])
        found = [await outcome(one) for one in (other, *parts, last)]
        assert found == ["written", "written", "AppendRefused", "AppendRefused", "written"]
        assert played.broker.log == [b"x", b"a", b"y"]

    run(act)


def test_a_closed_connection_is_opened_again_and_the_term_is_checked_before_anything_is_sent() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.is_open = False
        assert await outcome(made.append([record("a")])) == "written"
        assert (played.broker.opened, played.checks) == (1, 1)

    run(act)


def test_a_term_that_another_instance_has_claimed_meanwhile_ends_before_anything_is_sent() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.is_open, played.znode = False, False
        assert await outcome(made.append([record("a")])) == "TermEnded"
        assert played.broker.sent == []

    run(act)


def test_while_appends_are_refused_the_znode_proves_the_term_for_as_long_as_an_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(term, "PROOF_S", 0.1)

    async def act(played: Played, made: LogTerm) -> None:
        played.broker.codes.extend([REPLICAS] * 3)
        await asyncio.gather(*(made.prove() for _ in range(5)))
        assert (played.checks, made.is_refused) == (1, True)
        await made.prove()
        assert played.checks == 1
        await asyncio.sleep(0.12)
        played.znode = StoreUnavailable("gone")
        with pytest.raises(NotProven):
            await made.prove()
        assert not made.ended
        played.broker.codes.clear()
        await made.prove()
        assert not made.is_refused

    run(act)


def test_a_refusal_proves_nothing_about_the_term() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.codes.append(REPLICAS)
        played.znode = False
        with pytest.raises(TermEnded):
            await made.prove()

    assert len(run(act).ended) == 1


def test_the_closed_list_of_refusals_holds_no_code_after_which_the_log_may_have_the_records() -> None:
    assert {TOO_LARGE, LIST_TOO_LARGE, REPLICAS, DENIED, 30, 31, 53} == REFUSALS


def test_an_append_may_be_as_large_as_the_broker_allows() -> None:
    async def act(_played: Played, made: LogTerm) -> None:
        with pytest.raises(AppendRefused):
            made.append([record("x" * (2 << 20))])
        made._most_bytes = lambda: 3 << 20
        assert await outcome(made.append([record("x" * (2 << 20))])) == "written"
        made._most_bytes = lambda: 1_000
        with pytest.raises(AppendRefused):
            made.append([record("x" * 1_000)])
        assert await outcome(made.append([record("x")])) == "written"

    run(act)


def test_the_clock_of_sessions_stands_still_while_the_term_cannot_be_proven() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        before = made.now()
        played.broker.codes.extend([DENIED] * 2)
        played.znode = StoreUnavailable("ZooKeeper does not answer")
        with pytest.raises(NotProven):
            await made.prove()
        stands_at = made.now()
        await asyncio.sleep(0.1)
        assert made.now() == stands_at < before + 0.1
        assert made.monotonic(stands_at) == pytest.approx(asyncio.get_running_loop().time(), abs=0.01)
        played.znode = True
        await made.prove()
        assert made.now() == pytest.approx(stands_at, abs=0.05)
        await asyncio.sleep(0.02)
        assert made.now() > stands_at

    run(act)


def test_the_clock_runs_while_appends_are_refused_and_the_znode_proves_the_term() -> None:
    async def act(played: Played, made: LogTerm) -> None:
        played.broker.codes.extend([DENIED] * 2)
        await made.prove()
        before = made.now()
        await asyncio.sleep(0.05)
        assert made.now() >= before + 0.05

    run(act)


def test_the_clock_of_sessions_stands_still_while_the_event_loop_is_stalled() -> None:
    async def act(_played: Played, made: LogTerm) -> None:
        before = made.now()
        time.sleep(LONGEST_STEP_S + 0.7)
        assert made.now() == pytest.approx(before + LONGEST_STEP_S, abs=0.1)

    run(act)
