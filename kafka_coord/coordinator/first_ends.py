"""Lists, with this instance's own rights, the first ends that no member could list.

A partition that starts at its end waits in ``unresolved`` until someone has listed that end. The instance tries every
second, also while nobody holds the partition, and stores the end as the group's offset, unless there is one already.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from kafka_coord.channel.operations import offset_op
from kafka_coord.coordinator.execute import Executor
from kafka_coord.coordinator.tolerant_reads import read_each
from kafka_coord.errors import Fenced, KafkaCoordError, MultiFailed
from kafka_coord.model import PartitionSet, TopicPartition
from kafka_coord.zk import layout
from kafka_coord.zk.store import Delete, GetData, Node, Op, Store

log = logging.getLogger(__name__)

EVERY_S = 1.0
"""How often the awaited ends are listed, in seconds."""

ANSWER_S = 2.0
"""How long the lister waits for a broker, in seconds: one that does not answer delays the ends of all others."""

EndLister = Callable[[PartitionSet], Mapping[TopicPartition, int]]
"""Returns the ends that it could list. May wait for the brokers, and may raise :class:`KafkaCoordError`."""


class FirstEnds:
    """Lists awaited ends during one term of the coordinator. ``awaited`` maps groups to partitions; another thread
    replaces its values. Without a ``lister``, the members alone list ends. One thread calls :meth:`step`."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        awaited: Mapping[str, Sequence[TopicPartition]],
        lister: EndLister | None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._awaited = awaited
        self._lister = lister
        self._complaint = ""
        self._closed = threading.Event()

    def start(self) -> None:
        """Calls :meth:`step` every second on a thread of its own, because listing waits for the brokers."""
        if self._lister is not None:
            threading.Thread(target=self._run, name="first-ends", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            try:
                self.step()
            except Fenced:
                return
            except Exception:
                log.exception("could not list awaited ends (this is a bug); trying again")

    def step(self) -> None:
        """Lists the awaited ends and stores those that it finds. Raises :class:`Fenced` once another instance is
        elected."""
        awaited = dict(self._awaited)
        if not awaited or self._lister is None:
            return
        try:
            ends = self._lister(PartitionSet.of({tp for partitions in awaited.values() for tp in partitions}))
            for group, partitions in awaited.items():
                if self._closed.is_set():
                    return
                self._store_ends(group, partitions, ends)
        except Fenced:
            raise
        except KafkaCoordError as error:
            self._complain(f"could not list the ends that {len(awaited)} groups await: {error}")
        else:
            self._complaint = ""

    def _store_ends(self, group: str, partitions: Sequence[TopicPartition], ends: Mapping[TopicPartition, int]) -> None:
        reads = [
            read
            for tp in partitions
            for read in (
                GetData(layout.awaited_end(group, *tp)),
                GetData(layout.offset(group, *tp)),
                GetData(layout.topic_offsets(group, tp.topic)),
                GetData(layout.broker_topic(tp.topic)),
            )
        ]
        found = read_each(self._store, reads)
        for number, tp in enumerate(partitions):
            mark, offset, parent, topic = found[4 * number : 4 * number + 4]
            if not isinstance(mark, Node) or not isinstance(topic, Node):
                continue  # resolved already, or the topic is not seen now
            done = Delete(layout.awaited_end(group, *tp), mark.stat.version)
            if isinstance(offset, Node) or topic.stat.czxid > mark.stat.czxid:
                self._write(group, tp, [done])  # someone has stored an offset, or this is a later topic of that name
                continue
            if not isinstance(parent, Node) or tp not in ends:
                continue
            if self._write(group, tp, [offset_op(group, tp, ends[tp], exists=False), done]):
                log.info(
                    "listed the first end of partition=%s offset=%d group=%s, which no member could list",
                    *(tp, ends[tp], group),
                    extra={"event": "first_end"},
                )

    def _write(self, group: str, partition: TopicPartition, ops: Sequence[Op]) -> bool:
        try:
            self._executor.write([ops])
        except MultiFailed as error:  # a member was faster; look again at the next step
            log.debug("did not store the first end of partition=%s group=%s: %s", partition, group, error)
            return False
        return True

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("%s", complaint)
        self._complaint = complaint
