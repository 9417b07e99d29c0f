"""The fetchers of all streams of a consumer, which carry out the connector's commands with librdkafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, Message, libversion
from confluent_kafka.admin import AdminClient

from kafka_coord.consumer.fetcher import Fetcher
from kafka_coord.consumer.other_clients import partition_of, refused_properties
from kafka_coord.consumer.record import Record
from kafka_coord.consumer.settings import OffsetReset, between
from kafka_coord.consumer.stream_partitions import HeldPartition, offsets_of
from kafka_coord.consumer.troubles import TroubleCallback, Troubles
from kafka_coord.errors import ConsumerError, MembershipLost, NoOffset, SettingsError
from kafka_coord.kafka.authentication import renewed_from
from kafka_coord.kafka.librdkafka import GROUP_PREFIX, LogOffsets, admin_client, is_about_no_group, rdkafka_log
from kafka_coord.model import NO_OFFSET, StartPoint, TopicPartition
from kafka_coord.renewed import Renewed

log = logging.getLogger(__name__)

C = TypeVar("C")
_Clients = tuple[AdminClient, list[KafkaConsumer]]
"""The client that asks about offsets, and one client per stream, which fetches."""

_LOCKS_UP = 0x020A0000
"""The first version of librdkafka in which a client may deadlock, and with it all threads of the interpreter, when a
broker leaves the cluster and returns (librdkafka issue 5476; docs/adr/0011-stock-clients.md)."""

_OURS = {
    "enable.auto.commit": "offsets are committed to ZooKeeper; set auto_commit_interval_ms instead",
    "enable.auto.offset.store": "offsets are committed to ZooKeeper",
    "auto.offset.reset": "use auto_offset_reset instead",
    "enable.partition.eof": "a consumer learns from these events which offsets hold no record",
}


def client_settings(group: str, consumer_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns librdkafka's settings: this project's defaults, overridden by the user's settings. Raises
    :class:`SettingsError` for settings that the user is not allowed to set."""
    for name, why in _OURS.items():
        if name in given:
            raise SettingsError(f"kafka={{{name!r}: …}} cannot be set here: {why}")
    settings = {
        "group.id": f"{GROUP_PREFIX}{group}",
        "client.id": consumer_id,
        # The first record after a start must wait for the fetch in flight to return, which takes up to 500 ms by
        # default.
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 100,
        # Once librdkafka has prefetched enough records, it pauses each partition for this long, by default for 1 s.
        "fetch.queue.backoff.ms": 10,
        "reconnect.backoff.max.ms": 1_000,
        **given,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,  # the position passes markers and gaps before the end; see Fetcher
        "auto.offset.reset": "error",  # the fetcher resets offsets; see fetch_errors
    }
    tried = _client({name: value for name, value in settings.items() if name != "bootstrap.servers"})
    threading.Thread(target=_close, args=(tried,), name="kafka-coord-settings", daemon=True).start()
    return settings


def _close(client: KafkaConsumer) -> None:
    """Closes a client. Call this on a separate thread, because librdkafka takes a second to close about one new client
    in ten."""
    client.close()


def _client(settings: Mapping[str, Any]) -> KafkaConsumer:
    return _made(lambda: KafkaConsumer(dict(settings), logger=rdkafka_log), settings)


def _made(make: Callable[[], C], settings: Mapping[str, Any]) -> C:
    try:
        return make()
    except (KafkaException, ValueError, TypeError) as error:
        why = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        why = "; ".join(refused_properties(settings)) or why  # or only their combination is refused
        raise SettingsError(f"librdkafka does not accept the kafka settings: {why}") from error


class FetchClients:
    """Creates librdkafka's clients. ``message`` is the type of their messages."""

    message: type[Any] = Message

    def consumer(self, settings: Mapping[str, Any]) -> KafkaConsumer:
        return _client(settings)

    def admin(self, settings: Mapping[str, Any]) -> AdminClient:
        return _made(lambda: admin_client(settings), settings)


class KafkaFetchers:
    """The fetchers of one consumer, one per stream."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        streams: int,
        reset: OffsetReset,
        new_partitions: OffsetReset = OffsetReset.EARLIEST,
        auto_commit: bool,
        hands_out_until: Callable[[], float],
        check: Callable[[], None],
        wake: Callable[[], None],
        record: Callable[[Any], Record[Any, Any]] = Record,
        clients: FetchClients | None = None,
        on_unresolved: TroubleCallback | None = None,
    ) -> None:
        self._settings = dict(settings)
        self._clients = clients or FetchClients()
        self._reset, self._new_partitions = reset, new_partitions
        self._auto_commit = auto_commit
        self._wake = wake
        self._brokers_down = False
        self._used: tuple[str, ...] = ()
        self._fetching: dict[str, Any] = {}
        """The settings of the clients that fetch, once brokers are known."""
        self._renewed: Renewed[_Clients] | None = None
        self._in_use: _Clients | None = None
        self.log_offsets = LogOffsets(uncommitted=settings.get("isolation.level") == "read_uncommitted")
        self.troubles = Troubles(self.log_offsets, wake=wake, readable=self._try_again, on_change=on_unresolved)
        self.streams = tuple(
            Fetcher(
                number,
                reset=reset,
                hands_out_until=hands_out_until,
                check=check,
                wake=wake,
                troubles=self.troubles.begin,
                renew=self._renew,
                record=record,
                message=self._clients.message,
            )
            for number in range(streams)
        )
        self._stream_of: dict[TopicPartition, Fetcher] = {}
        name, number = libversion()
        if number >= _LOCKS_UP:
            log.warning(
                "librdkafka %s may deadlock this process when a broker is restarted (librdkafka issue 5476):"
                " pip install 'confluent-kafka < 2.10'",
                name,
            )

    # --- called by the connector (see fetcher_interface) -------------------------------------------------------------

    def hold(self, starts: Mapping[TopicPartition, StartPoint]) -> None:
        by_stream: dict[Fetcher, list[HeldPartition]] = {}
        for partition, point in starts.items():
            if partition in self._stream_of:
                continue  # already held: this start was carried out before, but its acknowledgement was lost
            holding = HeldPartition(partition, point.offset)
            reset = self._new_partitions if point.later else self._reset
            if point.offset == NO_OFFSET and reset is OffsetReset.LATEST:
                self.troubles.start_at_end(partition)
            elif point.offset == NO_OFFSET and reset is OffsetReset.ERROR:
                holding.failure = NoOffset(
                    f"no offset is stored for {partition}, and auto_offset_reset is 'error'; seek() to an offset"
                )
            fetcher = self.streams[point.stream % len(self.streams)]
            self._stream_of[partition] = fetcher
            by_stream.setdefault(fetcher, []).append(holding)
        for fetcher, holdings in by_stream.items():
            fetcher.partitions.hold(holdings)

    def unresolved(self) -> Mapping[TopicPartition, str]:
        self.troubles.step()
        return self.troubles.starting()

    def listed_ends(self) -> dict[TopicPartition, int]:
        return self.troubles.listed()

    def resolve(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition in self.troubles.starting().keys() & offsets.keys():
            holding = self.holding(partition)
            if holding is not None and holding.position == NO_OFFSET:
                holding.start_at(offsets[partition])
        self.troubles.forget(offsets)

    def refused(self) -> Mapping[str, str]:
        return self.troubles.refused

    def _try_again(self, partition: TopicPartition) -> None:
        fetcher = self._stream_of.get(partition)
        if fetcher is not None:
            fetcher.try_again(partition)

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        for fetcher, wanted in self._by_stream(partitions).items():
            fetcher.partitions.begin(wanted)

    def uncommitted(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        if partitions is None:
            found: dict[TopicPartition, int] = {}
            for fetcher in self.streams:
                found |= fetcher.partitions.uncommitted(auto_commit=self._auto_commit)
            return found
        holdings = [holding for partition in partitions if (holding := self.holding(partition)) is not None]
        return offsets_of(holdings, auto_commit=self._auto_commit)

    def admissible(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        admitted = {}
        for partition, offset in offsets.items():
            holding = self.holding(partition)
            if holding is not None and holding.admit(offset) is not None:
                admitted[partition] = offset
        return admitted

    def stored(self, offsets: Mapping[TopicPartition, int]) -> None:
        for fetcher in self.streams:
            fetcher.partitions.stored(offsets)

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        for fetcher, wanted in self._by_stream(partitions).items():
            fetcher.partitions.stop(wanted)

    def in_hand(self, partitions: Iterable[TopicPartition]) -> bool:
        return any(fetcher.partitions.in_hand(wanted) for fetcher, wanted in self._by_stream(partitions).items())

    def in_hand_of_others(self, closing: threading.Thread) -> bool:
        """Returns whether any live thread other than ``closing`` has records in hand and will therefore call the
        consumer again."""
        return any(fetcher.in_hand_of_others(closing) for fetcher in self.streams)

    def release(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        for fetcher, wanted in self._by_stream(partitions).items():
            offsets |= offsets_of(fetcher.partitions.release(wanted), auto_commit=self._auto_commit)
            for partition in wanted:
                self._forget(partition)
        return offsets

    def held_partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._stream_of)

    def abandon(self) -> frozenset[TopicPartition]:
        lost = frozenset(self._stream_of)
        for fetcher in self.streams:
            fetcher.partitions.abandon()
        for partition in lost:
            self._forget(partition)
        return lost

    def orphans_in_hand(self) -> bool:
        return any(fetcher.partitions.orphans_in_hand for fetcher in self.streams)

    def _forget(self, partition: TopicPartition) -> None:
        self._stream_of.pop(partition, None)
        self.troubles.forget([partition])

    def _by_stream(self, partitions: Iterable[TopicPartition]) -> dict[Fetcher, list[TopicPartition]]:
        found: dict[Fetcher, list[TopicPartition]] = {}
        for partition in partitions:
            fetcher = self._stream_of.get(partition)
            if fetcher is not None:
                found.setdefault(fetcher, []).append(partition)
        return found

    # --- called by the application -----------------------------------------------------------------------------------

    def holding(self, partition: TopicPartition) -> HeldPartition | None:
        fetcher = self._stream_of.get(partition)
        return fetcher.partitions.holding(partition) if fetcher is not None else None

    def held(self, partition: TopicPartition) -> tuple[Fetcher, HeldPartition]:
        """Returns the partition and its fetcher. Raises :class:`ConsumerError` if the consumer does not hold the
        partition."""
        fetcher = self._stream_of.get(partition)
        holding = fetcher.partitions.holding(partition) if fetcher is not None else None
        if fetcher is None or holding is None:
            raise ConsumerError(f"partition {partition} is not assigned to this consumer")
        return fetcher, holding

    def assignment(self) -> frozenset[TopicPartition]:
        holdings = (holding for fetcher in self.streams for holding in fetcher.partitions.holdings())
        return frozenset(holding.partition for holding in holdings if not holding.stopping)

    def seek_to_time(self, partition: TopicPartition, at_ms: int) -> None:
        """Continues at the first record at or after a time in ms since 1970. If there is none, says so, and continues
        at the end."""
        self.held(partition)
        offset = self.log_offsets.at_times({partition: at_ms})[partition]
        if offset is None:
            log.warning(
                "no record of partition=%s is at or after %d ms since 1970: continuing at the end of its log",
                *(partition, at_ms),
                extra={"event": "consumer_time_beyond"},
            )
        self.seek(partition, OffsetReset.LATEST if offset is None else offset)

    def seek(self, partition: TopicPartition, target: int | OffsetReset) -> None:
        fetcher, holding = self.held(partition)
        if target is OffsetReset.EARLIEST:
            offset = NO_OFFSET
        elif target is OffsetReset.LATEST:
            offset = self.log_offsets.ends([partition])[partition]
        elif isinstance(target, int) and target >= 0:
            offset = target
        else:
            raise SettingsError(f"cannot seek {partition} to {target!r}: use an offset, 'earliest' or 'latest'")
        self.troubles.forget([partition])
        fetcher.partitions.seek(holding, offset)

    def consumed(self, reader: threading.Thread | None, lost: str) -> dict[TopicPartition, int]:
        """Returns the offsets to commit for all consumed records.

        ``reader`` is the committing thread. Its records in hand count as consumed; with a single stream, so do those of
        any other thread. In a callback, ``reader`` is ``None``, and no records in hand count. Raises
        :class:`MembershipLost` with the message ``lost`` if the records that would count were received under an
        incarnation that has been lost.
        """
        consumed: dict[TopicPartition, int] = {}
        for fetcher in self.streams:
            mine = reader is not None and (len(self.streams) == 1 or fetcher.reader is reader)
            if mine and fetcher.partitions.lost_uncommitted:
                raise MembershipLost(lost)
            consumed |= fetcher.partitions.snapshot(with_in_hand=mine)
        return consumed

    def asked(self, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Checks, records and returns the offsets that the application asks to commit. Raises :class:`MembershipLost`
        for a partition that is not held. Raises :class:`ConsumerError` for an offset beyond the records handed out, or
        below the committed offset without a ``seek``."""
        requested = {partition_of(key): offset for key, offset in offsets.items()}
        for partition, offset in requested.items():
            try:
                _, holding = self.held(partition)
            except ConsumerError as error:
                raise MembershipLost(f"cannot commit: {error}") from None
            between(f"the offset of {partition}", offset, 0, (1 << 63) - 1)
            if offset > holding.position:
                raise ConsumerError(
                    f"cannot commit offset {offset} of {partition}: records were handed out up to {holding.position};"
                    " to skip records, seek() beyond them"
                )
            if offset < holding.committed and not holding.may_go_back:
                raise ConsumerError(
                    f"cannot commit offset {offset} of {partition}: offset {holding.committed} is already committed;"
                    " call seek() first to go back"
                )
        for partition, offset in requested.items():
            fetcher, holding = self.held(partition)
            fetcher.partitions.ask(holding, offset)
        return requested

    # --- clients -----------------------------------------------------------------------------------------------------

    def connect(self, addresses: tuple[str, ...]) -> None:
        """Starts fetching through the brokers at ``addresses``. A later call has an effect only if the client has lost
        all brokers and ``addresses`` contains none of the previous addresses, or if others have renewed the files that
        the settings name. Files that cannot be used change nothing.

        A librdkafka client discovers the brokers of its cluster, but does not accept further addresses, so it must be
        replaced once all the brokers that it knows are gone. It reads its files only when it starts.
        """
        if not addresses:
            return
        if self._renewed is None or (self._brokers_down and not set(addresses) & set(self._used)):
            self._use_brokers(addresses)
        if self._renewed is None or (newest := self._renewed.newest()) is self._in_use:
            return
        self._in_use = newest
        self.log_offsets.admin, clients = newest
        for fetcher, client in zip(self.streams, clients, strict=True):
            fetcher.use(client)
        self._wake()

    def _use_brokers(self, addresses: tuple[str, ...]) -> None:
        fetching = self._settings | {"bootstrap.servers": ",".join(addresses), "error_cb": self._on_error}
        asking = {name: value for name, value in fetching.items() if name not in _NOT_OF_ADMIN}

        def made() -> _Clients:
            return self._clients.admin(asking), [self._clients.consumer(fetching) for _ in self.streams]

        try:
            renewed = renewed_from(fetching, made)
        except SettingsError as error:
            if self._renewed is None:
                raise
            log.warning("cannot connect to new brokers yet brokers=%s: %s", ",".join(addresses), error)
            return
        if self._used:
            log.warning(
                "connecting to new brokers, because none of the previous ones is still listed brokers=%s previous=%s",
                ",".join(addresses),
                ",".join(self._used),
            )
        self._renewed, self._used, self._fetching = renewed, addresses, fetching
        self._brokers_down = False

    def _renew(self, fetcher: Fetcher) -> None:
        try:
            fetcher.use(self._clients.consumer(self._fetching))
        except SettingsError as error:  # others are renewing the files
            log.warning("still fetching with the earlier client: %s", error)

    def _on_error(self, error: KafkaError) -> None:
        if is_about_no_group(error):
            log.debug("librdkafka reported error=%s: %s", error.name(), error.str())
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._brokers_down = True
            log.warning("lost all brokers: %s", error.str())
        elif error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            log.error("librdkafka reported error=%s: %s", error.name(), error.str())
        else:
            log.info("librdkafka reported error=%s: %s", error.name(), error.str())

    def close(self) -> None:
        for fetcher in self.streams:
            fetcher.close()
        self.log_offsets.admin = None


_NOT_OF_ADMIN = frozenset(
    {
        "error_cb",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "auto.offset.reset",
        "group.id",
        "fetch.wait.max.ms",
        "fetch.error.backoff.ms",
        "fetch.queue.backoff.ms",
        "isolation.level",
    }
)
