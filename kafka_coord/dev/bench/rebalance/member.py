"""Runs several members of a group in one process, with real connectors, but fetchers that only record times. The
connectors use real sessions, or sockets to the coordinator. Each event is appended to a journal with a timestamp from
the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TextIO

from kafka_coord.channel.link import SocketClient, SocketLink
from kafka_coord.channel.operations import MemberChannel, Offsets, Registration, SessionHandle
from kafka_coord.channel.search import addresses
from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.consumer.connector import Connector, ConnectorThread
from kafka_coord.consumer.transport import ANSWER_S
from kafka_coord.dev.bench.group import plain_member
from kafka_coord.dev.bench.rebalance.journal import Line, What
from kafka_coord.errors import KafkaCoordError
from kafka_coord.model import NO_OFFSET, CommandId, PartitionSet, StartPoint, TopicPartition
from kafka_coord.zk import SystemClock
from kafka_coord.zk.session import connect

Note = Callable[[What, Iterable[TopicPartition]], None]

_READ = 10
"""The number of records of a partition that count as read when it is stopped, so that there is an offset to commit."""
_CLOSE_S = 20.0


class ModelFetchers:
    """A base for simulated :class:`~kafka_coord.consumer.command_loop.Fetchers`, which never have records in
    hand."""

    def unresolved(self) -> Mapping[TopicPartition, str]:
        return {}

    def listed_ends(self) -> Offsets:
        return {}

    def resolve(self, offsets: Offsets) -> None: ...

    def refused(self) -> Mapping[str, str]:
        return {}

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        del partitions

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        del partitions

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        del partitions
        return False

    def stored(self, offsets: Offsets) -> None:
        del offsets

    def orphans_in_hand(self) -> bool:
        return False


class TimedFetchers(ModelFetchers):
    """Records when a real consumer would start and stop reading."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._held: dict[TopicPartition, int] = {}
        self._unsaid: set[TopicPartition] = set()

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        with self._lock:
            for partition, start in starts.items():
                if partition not in self._held:
                    self._held[partition] = max(0, start.offset)
                    if start.offset == NO_OFFSET:
                        self._unsaid.add(partition)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        self._note(What.STARTED, partitions)

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        self._note(What.STOPPED, partitions)

    def held_partitions(self) -> Iterable[TopicPartition]:
        with self._lock:
            return list(self._held)

    def release(self, partitions: Iterable[TopicPartition]) -> Offsets:
        with self._lock:
            return {one: self._held.pop(one) + _READ for one in partitions if one in self._held}

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> Offsets:
        with self._lock:
            if partitions is None:
                return {one: offset + _READ for one, offset in self._held.items()}
            return {one: self._held[one] for one in self._unsaid.intersection(partitions) if one in self._held}

    def admissible(self, offsets: Offsets) -> Offsets:
        with self._lock:
            return {one: offset for one, offset in offsets.items() if one in self._held}

    def stored(self, offsets: Offsets) -> None:
        with self._lock:
            self._unsaid.difference_update(offsets)

    def abandon(self) -> Iterable[TopicPartition]:
        with self._lock:
            gone = list(self._held)
            self._held.clear()
        self._note(What.STOPPED, gone)
        return gone

    def end(self) -> None:
        """Records that the member has left."""
        self.abandon()


class TimedChannel(ConsumerChannel):
    """Records when ZooKeeper confirms a command's acknowledgement."""

    note: Note = staticmethod(lambda _what, _partitions: None)

    def acknowledge(self, registration: Registration, command_id: CommandId, offsets: Offsets) -> frozenset[str]:
        missing = super().acknowledge(registration, command_id, offsets)
        self.note(What.ACKNOWLEDGED, offsets)
        return missing


class TimedLink(SocketLink):
    """Records when the coordinator has confirmed that an acknowledgement is stored."""

    note: Note = staticmethod(lambda _what, _partitions: None)

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        missing = super().acknowledge(registration, command, offsets)
        self.note(What.ACKNOWLEDGED, offsets)
        return missing


class Orderly(Protocol):
    """What the process needs from a member."""

    def join(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None: ...


class Journal:
    """Appends one line per event, each in one write."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, consumer: str, what: What, partitions: PartitionSet) -> None:
        os.write(self._file, Line(time.monotonic_ns(), consumer, what, partitions).encoded())


@dataclass(frozen=True, slots=True)
class Place:
    """The group and servers of a process's members. ``journal`` is the process's file. With ``bootstrap`` (a
    coordinator's address for consumers), the members use sockets.
    """

    zookeeper: str
    group: str
    topic: str
    session_timeout_ms: int
    journal: str
    bootstrap: str = ""


class BenchMember:
    """One member. It opens its session or connection before it registers, like a real application."""

    def __init__(self, place: Place, consumer: str, journal: Journal) -> None:
        self._consumer, self._journal = consumer, journal
        self._wakeup = threading.Event()
        self._settings = plain_member(place.group, place.topic, consumer)
        self._connector: Connector | None = None
        self._thread: ConnectorThread | None = None
        open_way = self._open_socket if place.bootstrap else self._open_session
        self._connection, self._channel, self._end = open_way(place)

    def _open_session(self, place: Place) -> tuple[SessionHandle, MemberChannel, Callable[[], None]]:
        store = connect(place.zookeeper, session_timeout_ms=place.session_timeout_ms)
        channel = TimedChannel(store, place.group, self._consumer)
        channel.note = self._note
        return store, channel, store.close

    def _open_socket(self, place: Place) -> tuple[SessionHandle, MemberChannel, Callable[[], None]]:
        link = TimedLink(
            place.group,
            self._consumer,
            SystemClock(),
            session_timeout_ms=place.session_timeout_ms,
            resume_key=secrets.token_hex(8),
            auto_commit=False,
            wake=self._wakeup.set,
            patience_s=ANSWER_S,
        )
        link.note = self._note
        client = SocketClient(addresses(place.bootstrap), link)
        client.start()

        def end() -> None:
            link.close()
            client.close()

        return link, link, end

    def join(self) -> None:
        fetchers = TimedFetchers(self._note)
        self._connector = Connector(
            self._connection,
            self._channel,
            fetchers,
            registration_value=partial(self._settings.registration_value, self._connection),
            wake=self._wakeup.set,
            auto_commit_interval_s=None,
        )
        self._thread = ConnectorThread(
            self._connector,
            self._connection,
            self._channel,
            self._wakeup,
            consumer=self._consumer,
            at_end=fetchers.end,
        )
        self._note(What.JOINING, ())
        self._thread.start()

    def leave(self) -> None:
        if self._connector is None or self._thread is None:
            return
        self._note(What.LEAVING, ())
        self._connector.close(_CLOSE_S)
        self._thread.join(_CLOSE_S)
        self._connector = self._thread = None

    def close(self) -> None:
        self.leave()
        self._end()

    def _note(self, what: What, partitions: Iterable[TopicPartition]) -> None:
        self._journal.note(self._consumer, what, PartitionSet.of(partitions))


def serve_orders(make: Callable[[str], Orderly], orders: Iterable[str], answers: TextIO) -> None:
    """Runs the process. An order is a line of JSON, (what, consumers), where ``what`` is ``open``, ``join`` or
    ``leave``. The answer is null once the process has executed the order, or else the error. When the input ends, the
    members leave and the process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C and lets the members leave
    members: dict[str, Orderly] = {}
    for order in orders:
        what, consumers = json.loads(order)
        problem = None
        try:
            for one in consumers:
                if what == "open":
                    members[one] = make(one)
                elif what == "join":
                    members[one].join()
                else:
                    members[one].leave()
        except KafkaCoordError as error:
            problem = str(error)
        print(json.dumps(problem), file=answers, flush=True)
    for member in members.values():
        member.close()


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    place = Place(**json.loads(sys.argv[1]))
    journal = Journal(place.journal)
    serve_orders(lambda consumer: BenchMember(place, consumer, journal), sys.stdin, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
