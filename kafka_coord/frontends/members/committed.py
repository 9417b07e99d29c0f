"""Stored offsets consumers ask for, read a part at a time: whoever asks for many keeps nobody else waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_coord.channel.zookeeper import ConsumerChannel
from kafka_coord.errors import MalformedValue, StoreError, StoreUnavailable
from kafka_coord.model import TopicPartition
from kafka_coord.zk.store import Store

MAX_READS = 2_000
"""Offsets read in one step, of all who ask."""

Committed = Mapping[TopicPartition, int | None]


@dataclass(slots=True, eq=False)
class _Question:
    channel: ConsumerChannel
    wanted: Callable[[], Sequence[TopicPartition]]
    then: Callable[[Committed | StoreError | MalformedValue], None]
    left: Sequence[TopicPartition] | None = None
    found: dict[TopicPartition, int | None] = field(default_factory=dict)


class CommittedReader:
    """Answers questions for stored offsets, in turn. One thread."""

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
        """``wanted`` is called when its turn has come; what it raises goes to ``then``, like a failure to read."""
        self._questions.append(_Question(ConsumerChannel(self._store, group, consumer), wanted, then))

    def step(self) -> bool:
        """Reads :data:`MAX_READS` offsets; whether there is more to read. Raises nothing."""
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
