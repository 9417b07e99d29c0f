"""The base class of :class:`~kafka_coord.Consumer` and :class:`~kafka_coord.AsyncConsumer`.

The open consumers of a process leave their groups when it exits. Their copies in a forked process do not return
records.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, Self, Unpack

from msgspec import structs

from kafka_coord.consumer.command_loop import ConsumerStats
from kafka_coord.consumer.connector import Connector, ConnectorThread
from kafka_coord.consumer.fetcher import Stream
from kafka_coord.consumer.fetchers import FetchClients, KafkaFetchers, client_settings
from kafka_coord.consumer.other_clients import (
    arguments_of,
    check_offsets,
    explained,
    lacking,
    note_mistake,
    partition_of,
    partitions_of,
    remark_on,
    wrong_arguments,
)
from kafka_coord.consumer.record import Deserializers, K, V
from kafka_coord.consumer.settings import (
    Callbacks,
    ConsumerOptions,
    OffsetReset,
    ReadingSettings,
    member_settings,
    one_of,
    reading,
    stream_count,
    subscription,
)
from kafka_coord.consumer.transport import BrokerLookup, Endpoint, Transport, open_transport
from kafka_coord.consumer.troubles import Absences, TopicListing
from kafka_coord.errors import BrokerError, ConsumerClosed, ConsumerError, SettingsError
from kafka_coord.model import Subscription, TopicPartition
from kafka_coord.model.offsets import LogRange, lag_of

log = logging.getLogger(__name__)

_EXIT_S = 3.0

open_consumers: weakref.WeakSet[GroupMember[Any, Any]] = weakref.WeakSet()


@atexit.register
def _leave_at_exit() -> None:
    """Makes consumers that were not closed leave their groups, so that other members need not wait for a timeout."""
    if open_consumers and (remark := remark_on(getattr(sys, "last_value", None))):
        log.warning(remark)
    for consumer in list(open_consumers):
        consumer._leave(_EXIT_S)


def _forked() -> None:
    """Disables the child process's copies of the parent's consumers."""
    for consumer in list(open_consumers):
        for stream in consumer.streams:
            stream.forked()


os.register_at_fork(after_in_child=_forked)


_ARGUMENTS = ("zookeeper", *ConsumerOptions.__annotations__)

Partition = TopicPartition | tuple[str, int]
Offsets = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
Times = Mapping[TopicPartition, datetime | int] | Mapping[tuple[str, int], datetime | int]


class GroupMember(Generic[K, V]):
    """What all consumers have in common. Subclasses add reading, committing and closing. :class:`~kafka_coord.Consumer`
    describes the arguments."""

    _open_transport: ClassVar[Callable[..., Transport]] = staticmethod(open_transport)
    _clients: ClassVar[FetchClients] = FetchClients()

    @explained
    def __init__(self, zookeeper: str | None = None, **options: Unpack[ConsumerOptions[K, V]]) -> None:
        _check_arguments(zookeeper, options)
        self._settings = member_settings(**options)
        group, consumer_id = self._settings.group, self._settings.member.consumer
        self._how = reading(client_settings(group, consumer_id, options.get("kafka") or {}), options)
        self._told = Callbacks.of(self, options)
        self._on_unresolved = options.get("on_unresolved")
        self._deserializers = Deserializers(options.get("key_deserializer"), options.get("value_deserializer"))
        self._endpoint = Endpoint.of(zookeeper, options)
        self._pid = os.getpid()
        self._is_open = self._closed = self._stopped = False
        self._ended: Future[None] = Future()
        self._wakeup = threading.Event()
        self._signals = _StopSignals(self) if options.get("stop_on_signals") else None
        self._constructed()

    def _constructed(self) -> None:
        """The last step of the constructor, for subclasses to override."""
        with self._signals or nullcontext():
            self._open()

    @classmethod
    @explained
    def from_config(cls, config: Mapping[str, Any], **arguments: Any) -> Self:
        """Creates a consumer from confluent-kafka's settings. ``arguments`` contains the arguments that have no
        counterpart in confluent-kafka, such as ``zookeeper`` and ``topics``. See docs/consumer.md, "Migrating from
        confluent-kafka".

        Raises :class:`SettingsError`, which lists all settings that do not exist, or that this project does not
        support.
        """
        return cls(**arguments_of(config, arguments, _ARGUMENTS))

    def _open(self) -> None:
        """Connects and joins the group. Raises any error raised while opening a ZooKeeper session."""
        self._transport = self._open_transport(self._endpoint, self._settings, self._how, self._wakeup.set)
        self._assemble(self._how, self._told)
        self._is_open = True
        self._transport.start()
        self._thread.start()
        open_consumers.add(self)

    def _assemble(self, how: ReadingSettings, callbacks: Callbacks) -> None:
        transport = self._transport
        self._fetchers = KafkaFetchers(
            how.kafka,
            streams=stream_count(self._settings.member.subscription),
            reset=how.reset,
            new_partitions=how.new_partitions,
            auto_commit=how.auto_commit_interval_s is not None,
            hands_out_until=self._hands_out_until,
            check=self._check,
            wake=self._wakeup.set,
            record=self._deserializers.record(),
            clients=self._clients,
            on_unresolved=self._on_unresolved,
        )
        self._connector = Connector(
            transport.handle,
            transport.channel,
            self._fetchers,
            registration_value=lambda: self._settings.registration_value(transport.handle),
            wake=self._wakeup.set,
            auto_commit_interval_s=how.auto_commit_interval_s,
            on_start=callbacks.on_assign,
            on_stop=callbacks.on_revoke,
            on_lost=callbacks.on_lost,
        )
        self._brokers = BrokerLookup(transport, how.kafka.get("bootstrap.servers"), self._fetchers.connect)
        self._absences = Absences(
            self._settings.group,
            self._settings.member.consumer,
            transport.look or TopicListing(lambda: self._fetchers.log_offsets.admin, self._wakeup.set),
            subscription=lambda: self._settings.member.subscription,
            known=lambda: frozenset(partition.topic for partition in self._fetchers.held_partitions()),
            assignor=self._settings.member.assignor,
            told=lambda: self._connector.other_assignor,
        )
        self._streams: tuple[Stream[K, V], ...] = tuple(
            Stream(fetcher, self._check_process) for fetcher in self._fetchers.streams
        )
        self._thread = ConnectorThread(
            self._connector,
            transport.handle,
            transport.channel,
            self._wakeup,
            consumer=self._settings.member.consumer,
            meanwhile=lambda now: min(self._brokers.step(now), self._absences.step(now)),
            at_end=self._let_go,
        )

    # --- positions ---------------------------------------------------------------------------------------------------

    def _commit(self, offsets: Offsets | None) -> Future[None]:
        """See :meth:`kafka_coord.Consumer.commit`. When called on the connector's thread, commits synchronously."""
        if offsets is not None:
            check_offsets(offsets)
        if self._closed and not self._connector.done:  # the application may commit while close() waits for it
            self._check_process()
            self._thread.check()
        else:
            self._check()
        requested = self._fetchers.asked(offsets) if offsets is not None else self._consumed()
        if requested and not self._thread.is_current:
            return self._connector.commit(requested)
        if requested:
            self._connector.commit_now(requested)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _consumed(self) -> dict[TopicPartition, int]:
        lost = (
            f"consumer {self.consumer_id!r} lost its membership in group {self._settings.group!r}"
            f" ({self._connector.counters.last_loss}) before this commit: uncommitted records will be read again"
        )
        reader = None if self._thread.is_current else threading.current_thread()
        return self._fetchers.consumed(reader, lost)

    @explained
    def position(self, partition: Partition) -> int | None:
        """Returns the offset of the next record to hand out. Returns ``None`` while that offset is unknown, for example
        before the first record of a partition that starts at the beginning of its log.

        Raises :class:`ConsumerError` if the consumer does not hold the partition.
        """
        self._check_process()
        _, holding = self._fetchers.held(partition_of(partition))
        return holding.position if holding.position >= 0 else None

    @explained
    def committed(self, partitions: Iterable[Partition] | None = None) -> dict[TopicPartition, int | None]:
        """Returns the stored offset of each given partition (default: all held), or ``None`` where no offset is
        stored."""
        return self._transport.channel.committed(self._these(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """Returns the partitions that the consumer holds now, except those that are being stopped."""
        self._check_process()
        return self._fetchers.assignment()

    @explained
    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stops returning records of the given partitions until :meth:`resume`, but keeps the partitions. If one of
        them moves away and comes back, it is no longer paused. This is not ``kafka-coord groups pause``, which stops
        rebalances."""
        self._pause(partitions, paused=True)

    @explained
    def resume(self, partitions: Iterable[Partition]) -> None:
        """Resumes the given partitions where they were paused."""
        self._pause(partitions, paused=False)

    def _pause(self, partitions: Iterable[Partition], *, paused: bool) -> None:
        self._check()
        for fetcher, holding in [self._fetchers.held(partition) for partition in partitions_of(partitions)]:
            fetcher.partitions.pause(holding, paused=paused)

    @explained
    def seek(self, partition: Partition, to: int | str | datetime) -> None:
        """Continues reading from an offset, from ``"earliest"`` or ``"latest"``, or from the first record at or after a
        time (from the end, with a warning, if there is no such record). Only after a seek may a commit lower the stored
        offset. For ``"latest"`` and a time, the call sends a request to the brokers and waits for the response.

        Raises :class:`ConsumerError` if the consumer does not hold the partition.
        """
        self._check()
        where = partition_of(partition)
        if isinstance(to, datetime):
            self._fetchers.seek_to_time(where, _ms(to))
        else:
            self._fetchers.seek(where, one_of("to", to, OffsetReset) if isinstance(to, str) else to)

    @explained
    def beginning_offsets(
        self, partitions: Iterable[Partition] | None = None, *, timeout_s: float = 5.0
    ) -> dict[TopicPartition, int]:
        """Returns the first offset in each given partition (default: all held), as reported by the brokers. Like the
        following methods, raises :class:`NotFound` for a partition that does not exist, and
        :class:`BrokerError` if a broker does not respond within ``timeout_s``.
        """
        return self._fetchers.log_offsets.beginnings(self._these(partitions), timeout_s)

    @explained
    def end_offsets(
        self, partitions: Iterable[Partition] | None = None, *, timeout_s: float = 5.0
    ) -> dict[TopicPartition, int]:
        """Returns the offset that the next record of each given partition (default: all held) will get, as reported by
        the brokers. Records of open transactions count only with ``isolation.level=read_uncommitted``."""
        return self._fetchers.log_offsets.ends(self._these(partitions), timeout_s)

    @explained
    def lag(self, *, timeout_s: float = 5.0) -> dict[TopicPartition, int]:
        """Returns, for each held partition, how many offsets its end is ahead of :meth:`position`, or of the first
        record if that was deleted. The records in between have not been handed out yet. Leaves out the partitions that
        cannot be read now (``stats.unresolved``)."""
        readable = self._fetchers.assignment() - self._fetchers.troubles.current.keys()
        beginnings = self.beginning_offsets(readable, timeout_s=timeout_s)
        ends = self.end_offsets(beginnings, timeout_s=timeout_s)
        lags = {}
        for partition, end in ends.items():
            holding, begin = self._fetchers.holding(partition), beginnings[partition]
            position = None if holding is None else holding.position if holding.position >= 0 else begin
            lag = lag_of(position, LogRange(begin, end))
            if lag is not None:
                lags[partition] = lag.lag
        return lags

    @explained
    def offsets_for_times(self, times: Times, *, timeout_s: float = 5.0) -> dict[TopicPartition, int | None]:
        """Returns the offset of each partition's first record at or after the given time, or ``None`` if there is no
        such record. A time is an aware ``datetime``, or a number of ms since 1970."""
        self._these(times)
        wanted = {partition_of(partition): _ms(when) for partition, when in times.items()}
        return self._fetchers.log_offsets.at_times(wanted, timeout_s)

    def _these(self, partitions: Iterable[Partition] | None) -> list[TopicPartition]:
        self._check()
        if partitions is None:
            return sorted(self._fetchers.assignment())
        return partitions_of(partitions)

    # --- the subscription --------------------------------------------------------------------------------------------

    @property
    def subscription(self) -> Subscription:
        """The topics, or the pattern of topics, that the consumer subscribes to."""
        return self._settings.member.subscription

    @explained
    def subscribe(
        self,
        topics: Iterable[str] | Mapping[str, int] | None = None,
        *,
        include: str | None = None,
        exclude: str | None = None,
    ) -> None:
        """Changes the subscription and returns immediately. The arguments are those of the constructor.

        The consumer registers again under its name, as a new incarnation (docs/protocol.md). It stops returning
        records, waits until the application has finished its records in hand, calls ``on_revoke`` for all its
        partitions, commits, and registers. No record is skipped or repeated. The consumer keeps the partitions to which
        it still subscribes, except those that must move for balance.
        """
        self._check()
        streams = len(self._streams)
        changed = subscription(topics, {"include": include, "exclude": exclude}, streams)
        if stream_count(changed) > streams:
            raise SettingsError(f"the consumer has {streams} streams, so no topic can use {stream_count(changed)}")
        if changed != self._settings.member.subscription:
            self._settings = replace(
                self._settings, member=structs.replace(self._settings.member, subscription=changed)
            )
            self._connector.register_again()

    # --- about the consumer ------------------------------------------------------------------------------------------

    @property
    def consumer_id(self) -> str:
        """The consumer's name in the group."""
        return self._settings.member.consumer

    @property
    def group(self) -> str:
        """The group that the consumer belongs to."""
        return self._settings.group

    @property
    def registered(self) -> bool:
        """Whether the consumer is a member now."""
        return self._connector.registration is not None

    @property
    def streams(self) -> tuple[Stream[K, V], ...]:
        """The streams. Read each from its own thread."""
        return self._streams

    @property
    def stats(self) -> ConsumerStats:
        """The consumer's counters since its creation."""
        records = sum(fetcher.records for fetcher in self._fetchers.streams)
        return replace(self._connector.counters, records=records, unresolved=self._fetchers.troubles.current)

    def __getattr__(self, name: str) -> Any:
        raise lacking(self, name)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._state()
        return f"<{type(self).__name__} {self.consumer_id} of group {self.group}: {self.subscription}; {state}>"

    def _state(self) -> str:
        if not hasattr(self, "_thread"):
            return "not open"
        if not self.registered:
            return "not registered"
        if self._connector.waits:
            return f"waits, and holds {len(self._fetchers.assignment())} partitions"
        return f"holds {len(self._fetchers.assignment())} partitions"

    # --- leaving -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops reading. A loop over the records ends after the record in hand. A waiting ``poll`` or ``consume``
        returns within 0.1 s, without records. Then close the consumer, or leave its ``with`` block. Safe to call in a
        signal handler; ``stop_on_signals=True`` installs one."""
        self._stopped = True
        if self._is_open:
            for fetcher in self._fetchers.streams:
                fetcher.stop()

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped

    def _begin_leaving(self, leave: bool | None, timeout_s: float, in_hand: Callable[[], bool]) -> None:
        """See :meth:`kafka_coord.Consumer.close`. ``in_hand`` returns whether the application is still working on
        records and will call the consumer again. ``_ended`` is done when the consumer has left."""
        note_mistake()
        self._closed = True
        for_good = bool(leave) and self._settings.member.rejoin_grace_ms > 0
        self._connector.close(timeout_s, for_good=for_good, in_hand=in_hand)

    def _leave(self, timeout_s: float, leave: bool | None = None) -> None:
        if os.getpid() != self._pid:
            return  # the consumer belongs to the parent process, so leave it untouched
        self._begin_leaving(leave, timeout_s, partial(self._fetchers.in_hand_of_others, threading.current_thread()))
        self._thread.join(timeout_s + 15.0)
        if self._signals is not None:
            self._signals.restore()

    def _mark_consumed(self) -> None:
        """Counts the records that the calling thread has in hand as consumed."""
        if os.getpid() == self._pid:
            for fetcher in self._fetchers.streams:
                if fetcher.reader is threading.current_thread():
                    fetcher.partitions.mark_consumed()

    # --- on the connector's thread -----------------------------------------------------------------------------------

    def _let_go(self) -> None:
        self._fetchers.abandon()
        self._fetchers.close()
        self._transport.close()
        open_consumers.discard(self)
        self._ended.set_result(None)

    def _hands_out_until(self) -> float:
        return self._connector.hands_out_until()

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConsumerError(
                f"consumer {self.consumer_id!r} belongs to process {self._pid}, and process {os.getpid()} is a"
                " fork of it; connections cannot be shared across a fork, so create a consumer in each process"
            )

    def _check(self) -> None:
        self._check_process()
        self._thread.check()
        if self._closed or self._connector.done:
            raise ConsumerClosed(f"consumer {self.consumer_id!r} is closed")
        if self._brokers.problem:
            raise BrokerError(self._brokers.problem)


class _StopSignals:
    """Makes Ctrl-C, SIGTERM and, unless something else handles it, SIGHUP stop a consumer. They do so from the start of
    the ``with`` block on, in which the consumer opens. A signal before it is open ends the program, and so does a
    second one."""

    def __init__(self, consumer: GroupMember[Any, Any]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SettingsError("stop_on_signals=True works only in the main thread, which receives the signals")
        self._consumer = weakref.ref(consumer)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        hang_up = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else ()
        self._before = {number: signal.signal(number, self) for number in (signal.SIGINT, signal.SIGTERM, *hang_up)}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.restore()

    def __call__(self, number: int, _frame: object) -> None:
        consumer = self._consumer()
        if consumer is None or consumer._closed:
            self.restore()
            signal.raise_signal(number)
        elif not consumer._is_open:
            raise SystemExit(0)
        elif consumer.stopped:
            raise KeyboardInterrupt
        else:
            consumer.stop()

    def restore(self) -> None:
        """Restores the handlers of before, in the main thread. Elsewhere, the next signal restores them."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                if signal.getsignal(number) is self:
                    signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _check_arguments(zookeeper: object, options: Mapping[str, Any]) -> None:
    """Raises :class:`SettingsError` for arguments that do not exist."""
    if isinstance(zookeeper, Mapping):
        raise SettingsError(
            "a consumer takes no dict: for confluent-kafka's settings, use"
            " Consumer.from_config(config, zookeeper='…', topics=[…])"
        )
    if wrong := wrong_arguments(options, _ARGUMENTS):
        raise SettingsError("; ".join(wrong))
    if "group" not in options:
        raise SettingsError("group is missing: give the name of the consumer's group")


def _ms(when: datetime | int) -> int:
    if isinstance(when, int):
        return when
    if when.tzinfo is None:
        raise SettingsError(f"{when!r} has no time zone; use an aware datetime, such as datetime.now(UTC)")
    return int(when.timestamp() * 1000)
