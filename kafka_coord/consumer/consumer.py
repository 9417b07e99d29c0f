"""The consumer users import."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

from confluent_kafka import Message

from kafka_coord.channel.operations import eviction_op
from kafka_coord.consumer.broker_lookup import BrokerLookup
from kafka_coord.consumer.commit_offsets import asked_offsets, consumed_offsets
from kafka_coord.consumer.connector import Connector
from kafka_coord.consumer.counters import ConsumerStats
from kafka_coord.consumer.fetcher import DEFAULT_MAX_RECORDS
from kafka_coord.consumer.fetchers import KafkaFetchers, client_settings
from kafka_coord.consumer.open_consumers import open_consumers
from kafka_coord.consumer.record import Record
from kafka_coord.consumer.reset import OffsetReset
from kafka_coord.consumer.running import ConnectorThread
from kafka_coord.consumer.settings import (
    Callbacks,
    PartitionCallback,
    Reading,
    callbacks,
    membership,
    one_of,
    reading,
    stream_count,
)
from kafka_coord.consumer.stream import Stream
from kafka_coord.consumer.transport import Endpoint, open_transport
from kafka_coord.errors import BrokerError, ConsumerClosed, ConsumerError
from kafka_coord.model import TopicPartition
from kafka_coord.zk.options import ZkOptions
from kafka_coord.zk.store import Op, Store

Partition = TopicPartition | tuple[str, int]


class Consumer:
    """A member of a group: registers, is given partitions by the coordinator, hands out their records, commits.

    ::

        with Consumer(zookeeper="localhost:2181", group="delays", topics=["flights"]) as consumer:
            for record in consumer:
                ...

    **What is consumed.** A record (or batch) counts as consumed when the application comes back for the next one,
    leaves the ``with`` block normally, or commits it. An exception leaves what is in hand unconsumed: it will be read
    again. When a partition moves, the record in hand is waited for, so a record that takes long delays the handover
    of its own partition (never of others), and past the group's rebalance timeout the consumer is evicted.

    **Threads.** ``poll``, ``consume`` and iteration belong to one thread per stream; any thread may call everything
    else. Three callbacks tell of partitions: ``on_assign(partitions)`` before the first of their records is fetched (it
    may ``seek``); ``on_revoke(partitions)`` before their offsets are committed (it may ``commit``);
    ``on_lost(partitions)`` when they are gone without notice. When ``on_revoke`` is called, the application has none of
    their records in hand, except when :meth:`close` could not wait for it (see there). All three run on the connector's
    thread and should be quick. An exception they raise is logged and does not hold up the handover. ``on_start`` and
    ``on_stop``, named after the commands start-fetcher and stop-fetcher, are other names of ``on_assign`` and
    ``on_revoke``.

    **Errors.** Any call may raise :class:`ConsumerClosed`, :class:`ConsumerIdInUse` (the name is taken),
    :class:`NoOffset` (until the application seeks), :class:`BrokerError` (no usable listener, or not authorised).
    A lost ZooKeeper session raises nothing by itself: the consumer registers again. ``commit`` then raises
    :class:`MembershipLost` for what can no longer be committed.

    Arguments, besides those that say it themselves:

    ``zookeeper`` | ``bootstrap``
        ``host:port,host:port/chroot``, the one Kafka uses; or, to take part without ZooKeeper, ``host:port,host:port``
        of broker hosts where ``kafka-coord serve --listen-channel`` listens (docs/socket-protocol.md), with an
        ``ssl.SSLContext`` as ``tls`` and a ``secret`` where the operator asks for them.
    ``topics`` | ``include`` | ``exclude``
        A list of topics or ``{topic: streams}``; or a regular expression: the consumer subscribes to every topic whose
        whole name matches ``include``, or to every topic that does not match ``exclude``. A comma means ``|``.
        ``white_list`` and ``black_list``, as 0.8 called them, are other names of ``include`` and ``exclude``.
    ``consumer_id``
        Its name within the group. By default one is made up. With ``rejoin_grace_ms``, a restarted consumer gets its
        partitions back by its name.
    ``streams``
        How many fetchers it has. Each is read from a thread of its own through :attr:`streams`.
    ``auto_commit_interval_ms``
        How often consumed offsets are committed; 0 or ``None``: only by :meth:`commit`. Then a partition that moves
        goes on from what was committed, so commit in ``on_revoke``.
    ``auto_offset_reset``
        Where to begin without a stored offset, or when it is no longer in the log: ``earliest``, ``latest`` or
        ``error``. The default is Kafka's, ``latest`` (0.8: ``largest``). With ``latest`` the end of a partition is
        committed before its first record is handed out, so that a crash does not move the beginning. Use ``earliest``
        to see partitions that are added later from their first record on.
    ``session_timeout_ms``
        How long the consumer may be silent before the coordinator takes it for dead and gives its partitions to
        others. The default is 10,000, and 45,000 with ``bootstrap``: more than twice the session timeout of the
        instances, so that the crash of a coordinator does not interrupt the consumer.
    ``rejoin_grace_ms``
        How long the coordinator keeps its partitions for it after it has vanished (Kafka's static membership).
    ``mode``
        ``incremental``, or ``eager``: everything stops before anything starts, as in 0.8.
    ``kafka``
        Further librdkafka settings (TLS, SASL, fetch sizes, …). With ``bootstrap.servers`` the consumer does not read
        the brokers' addresses from ZooKeeper. ``listener`` picks a listener by name rather than by
        ``security.protocol``.
    ``store``
        A ZooKeeper store to use instead of opening one. It is not closed with the consumer.
    """

    def __init__(
        self,
        zookeeper: str | None = None,
        *,
        bootstrap: str | None = None,
        group: str,
        topics: Iterable[str] | Mapping[str, int] | None = None,
        include: str | None = None,
        exclude: str | None = None,
        consumer_id: str | None = None,
        streams: int = 1,
        auto_commit_interval_ms: int | None = 1_000,
        auto_offset_reset: str = "latest",
        rejoin_grace_ms: int = 0,
        capacity: int = 1,
        rack: str | None = None,
        assignor: str | None = None,
        mode: str = "incremental",
        session_timeout_ms: int | None = None,
        zk_options: ZkOptions | None = None,
        kafka: Mapping[str, Any] | None = None,
        listener: str | None = None,
        on_assign: PartitionCallback | None = None,
        on_revoke: PartitionCallback | None = None,
        on_lost: PartitionCallback | None = None,
        store: Store | None = None,
        tls: ssl.SSLContext | None = None,
        secret: str | None = None,
        white_list: str | None = None,
        black_list: str | None = None,
        on_start: PartitionCallback | None = None,
        on_stop: PartitionCallback | None = None,
    ) -> None:
        self._membership = membership(
            group=group,
            topics=topics,
            include=include,
            exclude=exclude,
            white_list=white_list,
            black_list=black_list,
            consumer_id=consumer_id,
            streams=streams,
            assignor=assignor,
            capacity=capacity,
            rack=rack,
            mode=mode,
            rejoin_grace_ms=rejoin_grace_ms,
        )
        how = reading(
            client_settings(group, self._membership.consumer, kafka or {}),
            auto_offset_reset=auto_offset_reset,
            auto_commit_interval_ms=auto_commit_interval_ms,
            listener=listener,
        )
        told = callbacks(on_start=on_start, on_stop=on_stop, on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        endpoint = Endpoint(
            zookeeper=zookeeper,
            store=store,
            zk_options=zk_options,
            bootstrap=bootstrap,
            tls=tls,
            secret=secret,
            session_timeout_ms=session_timeout_ms,
        )
        self._pid = os.getpid()
        self._closed = False
        self._wakeup = threading.Event()
        self._transport = open_transport(endpoint, self._membership, how, self._wakeup.set)
        self._assemble(how, told)
        self._transport.start()
        self._thread.start()
        open_consumers.add(self)

    def _assemble(self, how: Reading, told: Callbacks) -> None:
        transport = self._transport
        self._fetchers = KafkaFetchers(
            how.kafka,
            streams=stream_count(self._membership.subscription),
            reset=how.reset,
            auto_commit=how.auto_commit_interval_s is not None,
            hands_out_until=self._hands_out_until,
            check=self._check,
            wake=self._wakeup.set,
        )
        self._connector = Connector(
            transport.handle,
            transport.channel,
            self._fetchers,
            registration_value=partial(self._membership.registration_value, transport.handle),
            wake=self._wakeup.set,
            auto_commit_interval_s=how.auto_commit_interval_s,
            on_start=told.on_assign,
            on_stop=told.on_revoke,
            on_lost=told.on_lost,
        )
        self._brokers = BrokerLookup(transport, how.kafka.get("bootstrap.servers"), self._fetchers.connect)
        self._streams = tuple(Stream(fetcher, self._check_process) for fetcher in self._fetchers.streams)
        self._thread = ConnectorThread(
            self._connector,
            transport.handle,
            transport.channel,
            self._wakeup,
            consumer=self._membership.consumer,
            meanwhile=self._brokers.step,
            at_end=self._let_go,
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 1.0) -> Record | None:
        """The next record, or ``None`` if none came within ``timeout_s`` seconds. The record before counts as
        consumed."""
        return self._only_stream().poll(timeout_s)

    def consume(self, max_records: int = DEFAULT_MAX_RECORDS, timeout_s: float = 1.0) -> list[Record]:
        """Up to ``max_records`` records, as soon as there is one; none if none came within ``timeout_s`` seconds.

        All records handed out before count as consumed.
        """
        return self._only_stream().consume(max_records, timeout_s)

    def consume_messages(self, max_messages: int = DEFAULT_MAX_RECORDS, timeout_s: float = 1.0) -> list[Message]:
        """As :meth:`consume`, with confluent-kafka's messages instead of records.

        It is as fast as confluent-kafka's own consumer, and serves programs written for that one. No message is an
        error: the consumer raises errors or recovers from them.
        """
        return self._only_stream().consume_messages(max_messages, timeout_s)

    def __iter__(self) -> Iterator[Record]:
        """The records as they come, until the consumer is closed. It may be left and taken up again."""
        return iter(self._only_stream())

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Each to be read from a thread of its own."""
        return self._streams

    def _only_stream(self) -> Stream:
        if len(self._streams) > 1:
            raise ConsumerError(
                f"this consumer has {len(self._streams)} streams: read each of consumer.streams from its own thread"
            )
        return self._streams[0]

    # --- positions ---------------------------------------------------------------------------------------------------

    @overload
    def commit(
        self, offsets: Mapping[Partition, int] | None = None, *, asynchronous: Literal[False] = False
    ) -> None: ...

    @overload
    def commit(
        self, offsets: Mapping[Partition, int] | None = None, *, asynchronous: Literal[True]
    ) -> Future[None]: ...

    def commit(
        self, offsets: Mapping[Partition, int] | None = None, *, asynchronous: bool = False
    ) -> Future[None] | None:
        """Commits everything that was handed out, or the ``offsets`` given (of the next record to read).

        With several streams, records that other threads have in hand are not counted. The call returns when ZooKeeper
        has stored the offsets. While ZooKeeper is away it waits until ZooKeeper is back or the session has ended. With
        ``asynchronous`` it returns a future at once.

        Raises (or the future holds) :class:`MembershipLost` when the partitions may belong to others by now;
        :class:`NotFound` when the topic was deleted; :class:`ConsumerError` for an offset beyond what was handed out,
        or one that goes back without a ``seek`` before it.
        """
        self._check_process()
        if self._closed and not self._connector.done:  # while close() waits for the application, it may commit
            self._thread.check()
        else:
            self._check()
        wanted = asked_offsets(self._fetchers, offsets) if offsets is not None else self._consumed()
        if self._thread.is_current:
            if wanted:
                self._connector.commit_now(wanted)
            done: Future[None] = Future()
            done.set_result(None)
            return done if asynchronous else None
        if not wanted:
            future: Future[None] = Future()
            future.set_result(None)
        else:
            future = self._connector.commit(wanted)
        if asynchronous:
            return future
        future.result()
        return None

    def _consumed(self) -> dict[TopicPartition, int]:
        lost = (
            f"consumer {self.consumer_id!r} lost its membership in group {self._membership.group!r}"
            f" ({self._connector.counters.last_loss}) before this commit: uncommitted records will be read again"
        )
        reader = None if self._thread.is_current else threading.current_thread()
        return consumed_offsets(self._fetchers, reader, lost)

    def position(self, partition: Partition) -> int | None:
        """The offset of the next record to be handed out; ``None`` until that is known (begins at the log's start).

        Raises :class:`ConsumerError` where the consumer does not hold the partition.
        """
        self._check_process()
        _, holding = self._fetchers.held(TopicPartition(*partition))
        return holding.position if holding.position >= 0 else None

    def committed(self, partitions: Iterable[Partition] | None = None) -> dict[TopicPartition, int | None]:
        """What ZooKeeper has for these (default: all held); ``None`` where nothing is stored."""
        self._check_process()
        self._check()
        wanted = self.assignment() if partitions is None else [TopicPartition(*partition) for partition in partitions]
        return self._transport.channel.committed(sorted(wanted))

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions held now, without those just being stopped."""
        self._check_process()
        return self._fetchers.assignment()

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hands out nothing of these until :meth:`resume`; they stay this consumer's. A new start resumes them."""
        self._pause(partitions, paused=True)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Goes on with these where they were paused."""
        self._pause(partitions, paused=False)

    def _pause(self, partitions: Iterable[Partition], *, paused: bool) -> None:
        self._check_process()
        self._check()
        for fetcher, holding in [self._fetchers.held(TopicPartition(*partition)) for partition in partitions]:
            fetcher.partitions.pause(holding, paused=paused)

    def seek(self, partition: Partition, offset: int | str) -> None:
        """Goes on from ``offset``, ``"earliest"`` or ``"latest"``. Only this lets a later commit go back.

        Raises :class:`ConsumerError` where the consumer does not hold the partition.
        """
        self._check_process()
        self._check()
        target = one_of("offset", offset, OffsetReset) if isinstance(offset, str) else offset
        self._fetchers.seek(TopicPartition(*partition), target)

    # --- itself ------------------------------------------------------------------------------------------------------

    @property
    def consumer_id(self) -> str:
        """Its name in the group."""
        return self._membership.consumer

    @property
    def group(self) -> str:
        """The group it is a member of."""
        return self._membership.group

    @property
    def registered(self) -> bool:
        """Whether it is a member now."""
        return self._connector.registration is not None

    @property
    def stats(self) -> ConsumerStats:
        """What it has done since it was made."""
        return ConsumerStats(
            records=sum(fetcher.records for fetcher in self._fetchers.streams), **asdict(self._connector.counters)
        )

    # --- leaving -----------------------------------------------------------------------------------------------------

    def close(self, *, leave: bool | None = None, timeout_s: float = 10.0) -> None:
        """Leaves the group: no partition's records are skipped, and only records still in hand are handed out again.

        The consumer hands out nothing more and waits until the application has come back from the records in hand
        (which counts them as consumed), for ``timeout_s`` seconds at most. It does not wait for the thread that calls
        ``close`` nor for one that has ended: they cannot come back. Then a single write commits, of each partition
        held, the offset up to which the application has come back, and deletes the registration. With
        ``auto_commit_interval_ms=None`` it commits what the application has committed itself; it may still call
        :meth:`commit` while ``close`` waits. Records still in hand are handed out again by the next owner: to count
        them, commit before you close, or leave a ``with`` block normally.

        The partitions move at once. A consumer with ``rejoin_grace_ms`` keeps its place for that long, as a static
        member does in Kafka, unless ``leave=True`` gives the place up now. No coordinator is needed. If ZooKeeper does
        not answer within ``timeout_s`` seconds, the end of the session ends the membership, and the last commit
        counts. ``close`` may be called twice, and from any thread.
        """
        if os.getpid() != self._pid:
            return  # the parent's; nothing of it may be touched here
        self._closed = True
        give_up = bool(leave) and self._membership.rejoin_grace_ms > 0
        in_hand = partial(self._fetchers.in_hand_of_others, threading.current_thread())
        self._connector.close(timeout_s, self._eviction() if give_up else (), in_hand=in_hand)
        self._thread.join(timeout_s + 15.0)

    def _eviction(self) -> tuple[Op, ...]:
        now_ms = int(self._transport.handle.clock.time() * 1000)
        return (eviction_op(self._membership.group, self.consumer_id, now_ms),)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and os.getpid() == self._pid:
            for fetcher in self._fetchers.streams:
                if fetcher.reader is threading.current_thread():
                    fetcher.partitions.mark_consumed()
        self.close()

    def __repr__(self) -> str:
        return f"Consumer({self.consumer_id!r}, group={self.group!r}, {self._membership.subscription})"

    # --- the connector's thread --------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        self._fetchers.abandon()
        self._fetchers.close()
        self._transport.close()
        open_consumers.discard(self)

    def _hands_out_until(self) -> float:
        return self._connector.hands_out_until()

    # --- checks ------------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConsumerError(
                f"consumer {self.consumer_id!r} belongs to process {self._pid} and process {os.getpid()} is its"
                f" fork: connections cannot be shared, so create a consumer in each process"
            )

    def _check(self) -> None:
        self._thread.check()
        if self._closed or self._connector.done:
            raise ConsumerClosed(f"consumer {self.consumer_id!r} is closed")
        if self._brokers.problem:
            raise BrokerError(self._brokers.problem)


__all__ = ["Consumer", "ConsumerStats"]
