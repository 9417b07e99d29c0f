"""A term notes once which members it has heard, and the next term gives the others what remains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from kafka_coord.classic_groups.events import Heartbeat
from kafka_coord.classic_groups.machine import GroupLimits
from kafka_coord.classic_groups.metadata import ClassicState, GroupMetadata, MemberMetadata, Protocol
from kafka_coord.classic_groups.sessions import Heard
from kafka_coord.errors import KafkaCoordError
from kafka_coord.grouplog import manager as manager_module
from kafka_coord.grouplog.manager import GroupMetadataManager, partition_of
from kafka_coord.grouplog.records import group_record, heard_records, read_record
from kafka_coord.grouplog.term import AppendRefused, Claimed, TermFigures
from kafka_coord.wire.batches import LogRecord
from kafka_coord.zk.root import ClusterRecord, Source

GROUP, SESSION_S, NOTED_AFTER_S = "delays", 120.0, 0.05
PARTITION = partition_of(GROUP)


class Log:
    """The records of a partition, with the term and the time in seconds of each."""

    def __init__(self) -> None:
        self.records: list[tuple[int, float, LogRecord]] = []
        self.refuses = 0

    def notes(self) -> list[Heard]:
        return [one for _, _, record in self.records if isinstance(one := read_record(record), Heard)]


class MemoryTerm:
    """A term whose appends succeed at once, unless they are refused."""

    number = 1
    log: Log
    is_unproven = is_refused = False
    ended = ""

    def __init__(self, _broker: Any, partition: int, *_: Any, **__: Any) -> None:
        self.partition, self.term, self.figures = partition, MemoryTerm.number, TermFigures()

    async def claim(self, _newest: int) -> int:
        return 0

    async def outlast(self, _answered_at: float) -> None:
        return

    def serve(self) -> None:
        return

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def append_in_order(self, parts: Sequence[tuple[Sequence[LogRecord], Any]]) -> list[asyncio.Future[None]]:
        if self.log.refuses:
            self.log.refuses -= 1
            raise AppendRefused("not now", 19)
        self.log.records += [(self.term, 1_000.0, record) for records, _ in parts for record in records]
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return [done]


class MemoryLoad:
    """Reads the whole log before the claim."""

    newest = -1

    def __init__(self, _broker: Any, _partition: int) -> None: ...

    async def up_to(self, end: int | None) -> AsyncIterator[tuple[int, Sequence[LogRecord]]]:
        for term, at_s, record in MemoryTerm.log.records if end is None else ():
            yield term, [record._replace(timestamp_ms=round(at_s * 1000))]

    def check(self, _tree: ClusterRecord, _term: int = 0) -> None: ...


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(MemoryTerm, "log", made, raising=False)
    monkeypatch.setattr(manager_module, "LogTerm", MemoryTerm)
    monkeypatch.setattr(manager_module, "LogLoad", MemoryLoad)
    found = GroupMetadata(GROUP, ClassicState.STABLE, generation_id=3, protocol_name="range", protocol_type="consumer")
    for name in ("a", "b"):
        member = MemberMetadata(name, None, "c", "/h", SESSION_S, 60.0, (Protocol("range", b""),))
        found.add(member, "consumer")
    made.records.append((1, 10.0, group_record(found, {}, 0)))
    return made


def in_a_term(number: int, act: Callable[[GroupMetadataManager], Awaitable[None]]) -> None:
    """Loads the log in a new term."""

    async def joins() -> ClusterRecord:
        return ClusterRecord("t1", 1, Source.ZOOKEEPER, 0)

    async def claims(_partition: int, _newest: int) -> Claimed:
        return Claimed(number, number, 1)

    async def checks(_partition: int, _claimed: Claimed) -> bool:
        raise KafkaCoordError("nothing is checked")

    async def run() -> None:
        MemoryTerm.number = number
        limits = GroupLimits(noted_after_s=NOTED_AFTER_S)
        broker: Any = type("Broker", (), {"close": lambda _self: None})
        manager = GroupMetadataManager(broker, joins, claims, checks, "test", limits)
        await manager.load_groups_for_partition(PARTITION)
        await act(manager)
        for term in list(manager.terms.values()):
            manager._term_ended(term.partition, broker(), "done", planned=True)
        await asyncio.sleep(0)

    asyncio.run(run())


def left(manager: GroupMetadataManager) -> dict[str, int]:
    """Returns for how many seconds the term waits for each member."""
    found = manager.groups()[GROUP].metadata.members
    return {name: round(one.expires_at - asyncio.get_running_loop().time()) for name, one in found.items()}


def test_a_term_notes_once_whom_it_has_heard(log: Log) -> None:
    async def act(manager: GroupMetadataManager) -> None:
        assert left(manager) == {"a": SESSION_S, "b": SESSION_S}
        manager.groups()[GROUP].handle(Heartbeat(object(), "b", None, 3), manager.now(GROUP))
        await asyncio.sleep(NOTED_AFTER_S * 5)

    in_a_term(2, act)
    (note,) = log.notes()
    assert note.term == 2
    assert note.left_ms[GROUP, "b"] is None
    assert note.left_ms[GROUP, "a"] == pytest.approx(SESSION_S * 1000, abs=1_000)


def test_the_note_names_the_members_that_are_not_in_the_log(log: Log) -> None:
    async def act(manager: GroupMetadataManager) -> None:
        manager.other_members = lambda partition: {("managed", f"m-{partition}"): 7_000}
        await asyncio.sleep(NOTED_AFTER_S * 2)

    in_a_term(2, act)
    assert log.notes()[0].left_ms["managed", f"m-{PARTITION}"] == 7_000


def test_the_note_is_split_where_the_broker_accepts_less(log: Log) -> None:
    async def act(manager: GroupMetadataManager) -> None:
        manager.limits.append_bytes = 1_000
        manager.other_members = lambda _partition: {("managed", f"{'m' * 200}-{number}"): 7_000 for number in range(9)}
        await asyncio.sleep(NOTED_AFTER_S * 2)

    in_a_term(2, act)
    assert len(log.notes()) > 1
    assert all(len(record.value or b"") < 1_000 for term, _, record in log.records if term == 2)


def test_a_refused_note_is_written_later(log: Log) -> None:
    log.refuses = 2

    async def act(_manager: GroupMetadataManager) -> None:
        await asyncio.sleep(NOTED_AFTER_S * 6)

    in_a_term(2, act)
    assert len(log.notes()) == 1


def test_a_term_that_ends_before_has_no_note(log: Log) -> None:
    async def act(_manager: GroupMetadataManager) -> None:
        await asyncio.sleep(0)

    in_a_term(2, act)
    assert log.notes() == []


def test_the_next_term_gives_the_others_what_remains(log: Log) -> None:
    (note,) = heard_records(Heard(2, {(GROUP, "a"): 110_000, (GROUP, "b"): None}))
    later = LogRecord(b"\0e", b"\0e")  # a keep-alive
    log.records += [(2, 20.0, later), (2, 30.0, note), (2, 70.0, later)]

    async def act(manager: GroupMetadataManager) -> None:
        assert left(manager) == {"a": 70, "b": SESSION_S}

    in_a_term(3, act)
