"""Reads stored offsets for consumers in batches, so that one large request does not delay the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kafka_coord.errors import MalformedValue, StoreError, StoreUnavailable
from kafka_coord.model import TopicPartition

T = TypeVar("T")
MAX_READS = 2_000
"""The maximum number of offsets read in one step, for all requests together."""


@dataclass(slots=True, eq=False)
class _OffsetsQuestion(Generic[T]):
    group: str
    wanted: Callable[[], Sequence[TopicPartition]]
    then: Callable[[Mapping[TopicPartition, T] | StoreError | MalformedValue], None]
    left: Sequence[TopicPartition] | None = None
    found: dict[TopicPartition, T] = field(default_factory=dict)


class CommittedReader(Generic[T]):
    """Answers requests for stored offsets in turn. Not thread-safe."""

    def __init__(self, read: Callable[[str, Sequence[TopicPartition]], Mapping[TopicPartition, T]]) -> None:
        """``read`` reads the offsets of a group. It may raise :class:`StoreError` and :class:`MalformedValue`."""
        self._read = read
        self._questions: deque[_OffsetsQuestion[T]] = deque()

    def ask(
        self,
        group: str,
        wanted: Callable[[], Sequence[TopicPartition]],
        then: Callable[[Mapping[TopicPartition, T] | StoreError | MalformedValue], None],
    ) -> None:
        """Queues a request. ``wanted`` is called when the request's turn comes, and returns the partitions. ``then``
        gets the offsets, or the :class:`StoreError` or :class:`MalformedValue` that ``wanted`` or the read raised."""
        self._questions.append(_OffsetsQuestion(group, wanted, then))

    def close(self, why: StoreError) -> None:
        """Answers all queued requests with ``why``."""
        while self._questions:
            self._questions.popleft().then(why)

    def step(self) -> bool:
        """Reads up to :data:`MAX_READS` offsets. Returns whether there is more to read. Passes errors to ``then``."""
        room = MAX_READS
        while self._questions and room > 0:
            question = self._questions.popleft()
            try:
                if question.left is None:
                    question.left = question.wanted()
                part, question.left = question.left[:room], question.left[room:]
                question.found |= self._read(question.group, part)
            except (StoreUnavailable, StoreError, MalformedValue) as error:
                question.then(error)
                continue
            room -= max(1, len(part))
            if question.left:
                self._questions.append(question)
            else:
                question.then(question.found)
        return bool(self._questions)
