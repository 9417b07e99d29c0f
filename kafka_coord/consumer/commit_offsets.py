"""Computes the offsets to store when the application commits."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from kafka_coord.consumer.fetchers import KafkaFetchers
from kafka_coord.consumer.settings import between
from kafka_coord.errors import ConsumerError, MembershipLost
from kafka_coord.model import TopicPartition


def consumed_offsets(fetchers: KafkaFetchers, reader: threading.Thread | None, lost: str) -> dict[TopicPartition, int]:
    """Returns the offsets to commit for all consumed records.

    ``reader`` is the committing thread. Its records in hand count as consumed; with a single stream, so do those of any
    other thread. In a callback, ``reader`` is ``None``, and no records in hand count. Raises :class:`MembershipLost`
    with the message ``lost`` if the records that would count were received under an incarnation that has been lost.
    """
    consumed: dict[TopicPartition, int] = {}
    for fetcher in fetchers.streams:
        mine = reader is not None and (len(fetchers.streams) == 1 or fetcher.reader is reader)
        if mine and fetcher.partitions.lost_uncommitted:
            raise MembershipLost(lost)
        consumed |= fetcher.partitions.snapshot(with_in_hand=mine)
    return consumed


def asked_offsets(
    fetchers: KafkaFetchers, offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
) -> dict[TopicPartition, int]:
    """Checks, records and returns the offsets that the application asks to commit. Raises :class:`MembershipLost` for a
    partition that is not held. Raises :class:`ConsumerError` for an offset beyond the records handed out, or below the
    committed offset without a ``seek``.
    """
    requested: dict[TopicPartition, int] = {}
    for key, offset in offsets.items():
        partition = TopicPartition(*key)
        try:
            _, holding = fetchers.held(partition)
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
        requested[partition] = offset
    for partition, offset in requested.items():
        fetcher, holding = fetchers.held(partition)
        fetcher.partitions.ask(holding, offset)
    return requested
