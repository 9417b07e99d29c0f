"""Reads stored offsets for consumers, some at a time, so that one large request does not delay the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import MalformedValue, StoreError, StoreUnavailable
from kafka_coord.model import TopicPartition
from kafka_coord.zk.store import Store

MAX_READS = 2_000
"""The most offsets to read in one step, over all requests."""

Committed = Mapping[TopicPartition, int | None]


@dataclass(slots=True, eq=False)
class _Question:
    channel: ConsumerChannel
    wanted: Callable[[], Sequence[TopicPartition]]
    then: Callable[[Committed | StoreError | MalformedValue], None]
    left: Sequence[TopicPartition] | None = None
    found: dict[TopicPartition, int | None] = field(default_factory=dict)


class CommittedReader:
    """Answers requests for stored offsets in turn. One thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._questions: deque[_Question] = deque()

    def ask(
        self,
        group: str,
        consumer: str,
        wanted: Callable[[], Sequence[TopicPartition]],
        then: Callable[[Committed | StoreError | MalformedValue], None],
    ) -> None:
        """Queues a request. Calls ``wanted`` when its turn comes. ``then`` receives any exception it raises, like a
        failed read."""
        self._questions.append(_Question(ConsumerChannel(self._store, group, consumer), wanted, then))

    def step(self) -> bool:
        """Reads up to :data:`MAX_READS` offsets; returns whether more are left. Raises nothing."""
        room = MAX_READS
        while self._questions and room > 0:
            question = self._questions.popleft()
            try:
                if question.left is None:
                    question.left = question.wanted()
                part, question.left = question.left[:room], question.left[room:]
                question.found |= question.channel.committed(part)
            except (StoreUnavailable, StoreError, MalformedValue) as error:
                question.then(error)
                continue
            room -= max(1, len(part))
            if question.left:
                self._questions.append(question)
            else:
                question.then(question.found)
        return bool(self._questions)
