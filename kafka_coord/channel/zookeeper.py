"""The consumer's end of the ZooKeeper channel: registers, reads and acknowledges commands, commits, and leaves.

:class:`ConsumerChannel` has no thread of its own: each method calls the store a few times at most, on the caller's
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from kafka_coord.channel.offset_details import identity_reads, replaced_topics
from kafka_coord.channel.operations import (
    FENCE_LENGTH,
    Holder,
    Offsets,
    Registration,
    acknowledge_op,
    chunks,
    decode_command,
    decode_offset,
    eviction_op,
    in_order,
    leave_ops,
    offset_op,
    register_ops,
)
from kafka_coord.errors import (
    BadVersion,
    MalformedValue,
    MembershipLost,
    MultiFailed,
    NoAuth,
    NodeExists,
    NoNode,
    StoreUnavailable,
)
from kafka_coord.model import (
    Command,
    CommandId,
    CommandType,
    Departure,
    GroupSettings,
    Member,
    Subscription,
    TopicPartition,
)
from kafka_coord.model import json_fields as fields
from kafka_coord.model.member import LEFT, MAX_REASON_CHARS, Refusals, write_reason
from kafka_coord.zk import layout
from kafka_coord.zk.store import (
    Check,
    Create,
    Delete,
    GetChildren,
    GetData,
    Node,
    Op,
    ReadResult,
    SetData,
    Stat,
    Store,
    Watcher,
    WatchEvent,
    WatchType,
)

log = logging.getLogger(__name__)

_ATTEMPTS = 5
"""The maximum number of attempts at a request whose znodes keep changing. Each retry reads them again."""


def ensure_group(store: Store, group: str) -> None:
    """Creates the parents of a group's registrations and channels if they are missing."""
    store.ensure_path(layout.ids(group))
    store.ensure_path(layout.channels(group))


def stored_offsets(store: Store, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
    """Returns the stored offset of each partition, or ``None`` if there is none, or if it belongs to an earlier topic
    of the same name. Raises :class:`MalformedValue`."""
    offsets = {}
    for tp, found in _read_offsets(store, group, partitions).items():
        if isinstance(found, MalformedValue):
            raise found
        offsets[tp] = found
    return offsets


def _read_offsets(
    store: Store, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | MalformedValue | None]:
    """Like :func:`stored_offsets`, but returns the error of each offset that cannot be decoded."""
    requested = list(partitions)
    topics = sorted({tp.topic for tp in requested})
    paths = [layout.offset(group, tp.topic, tp.partition) for tp in requested]
    found = store.read_many([*identity_reads(group, topics), *(GetData(path) for path in paths)])
    identities, nodes = found[: len(topics)], found[len(topics) :]
    replaced = replaced_topics(store, topics, identities)
    offsets: dict[TopicPartition, int | MalformedValue | None] = dict.fromkeys(requested)
    for tp, path, node in zip(requested, paths, nodes, strict=True):
        if isinstance(node, Node) and tp.topic not in replaced:
            try:
                offsets[tp] = decode_offset(node.data, path)
            except MalformedValue as error:
                offsets[tp] = error
    return offsets


class ConsumerChannel:
    """One consumer's channel. ``consumer`` and ``group`` must be legal names. This class is not thread-safe."""

    def __init__(self, store: Store, group: str, consumer: str) -> None:
        self.group = group
        self.consumer = consumer
        self._store = store
        self._path = layout.channel(group, consumer)
        self._registration_path = layout.registration(group, consumer)
        self._stored: set[TopicPartition] = set()
        self._abandoned: set[int] = set()
        self._watcher: Watcher | None = None
        self._settings = GroupSettings()
        self._followed = False
        """Whether the watcher is notified of every new command. False again once the connection has broken."""

    # --- registration ----------------------------------------------------------------------------------------------

    def register(self, value: bytes) -> Registration | Holder:
        """Registers as a new incarnation, or returns the consumer that holds the name.

        After :class:`~kafka_coord.errors.StoreUnavailable`, call this method again with the same ``value``. It then
        finds out whether the earlier request took effect: if so, the value and the session match, and the channel was
        last written in the same transaction. The error is also raised if the session may already have ended: otherwise,
        the coordinator might rebalance the group for a registration that is about to be abandoned.
        """
        if self._store.session.lease_deadline() <= self._store.clock.monotonic():
            raise StoreUnavailable("ZooKeeper has not responded for so long that the session may have ended")
        for attempt in range(_ATTEMPTS):
            if attempt > 0:  # most groups exist already
                ensure_group(self._store, self.group)
            node, channel = self._registered()
            existing = self._existing(value, node, channel)
            if existing is not None:
                return existing
            try:
                ops = register_ops(self.group, self.consumer, value, has_channel=channel is not None)
                if node is not None:  # this consumer's own abandoned incarnation still blocks the name
                    ops = (Delete(self._registration_path), *ops)
                self._store.multi(ops)
            except MultiFailed as failure:
                if isinstance(failure.cause, NoAuth):
                    raise failure.cause from failure
                # NoNode: the group is new, or the channel was deleted; NodeExists: another client was faster
                if not isinstance(failure.cause, (NoNode, NodeExists)):
                    raise
        existing = self._existing(value, *self._registered())
        if existing is None:
            raise NoNode(f"{self._registration_path} was deleted each time it was created", self._registration_path)
        return existing

    def _registered(self) -> tuple[Node | None, Node | None]:
        """Reads the registration under the consumer's name, and the consumer's channel."""
        node, channel = self._store.read_many([GetData(self._registration_path), GetData(self._path)])
        return node if isinstance(node, Node) else None, channel if isinstance(channel, Node) else None

    def _existing(self, value: bytes, node: Node | None, channel: Node | None) -> Registration | Holder | None:
        if node is None:
            return None
        stat = node.stat
        if stat.ephemeral_owner != self._store.session.session_id:
            return Holder(stat.czxid, stat.ephemeral_owner, self._member(node))
        if stat.czxid in self._abandoned:
            return None
        if node.data != value:  # another consumer uses the same session
            return Holder(stat.czxid, stat.ephemeral_owner, self._member(node))
        if channel is None or channel.stat.mzxid != stat.czxid:
            # another client has written to the channel since, so the token is unknown; register again
            return None
        return Registration(self.group, self.consumer, stat.czxid, channel.stat.version, stat.ephemeral_owner)

    def _member(self, node: Node) -> Member | None:
        try:
            value = fields.load(node.data, self._registration_path)
            return Member.from_json(value, self._registration_path, consumer=self.consumer, incarnation=node.stat.czxid)
        except MalformedValue:
            return None

    def abandon(self, registration: Registration) -> None:
        """Gives up the given incarnation. If its znode still exists, the next :meth:`register` removes it."""
        self._abandoned.add(registration.incarnation)
        self._stored.clear()

    def was_evicted(self, registration: Registration) -> bool:
        """Returns false: over ZooKeeper, only :meth:`is_registered` reveals an eviction."""
        del registration
        return False

    def is_registered(self, registration: Registration, watcher: Watcher | None = None) -> bool:
        """Returns whether exactly the given incarnation is still registered. ``watcher`` is notified of the next
        change."""
        stat: Stat | None = self._store.exists(self._registration_path, watcher)
        return stat is not None and stat.czxid == registration.incarnation

    def is_still_its_own(self, registration: Registration) -> bool:
        """Returns whether the session, the registration and the token are still those of ``registration``, as the
        ZooKeeper leader sees them."""
        self._store.sync(self._path)
        node, channel = self._registered()
        return (
            node is not None
            and channel is not None
            and (node.stat.czxid, node.stat.ephemeral_owner) == (registration.incarnation, registration.session_id)
            and channel.stat.version == registration.token
        )

    @property
    def rebalance_timeout_s(self) -> float:
        """The group's rebalance timeout, in seconds, as of the last :meth:`outstanding`."""
        return self._settings.rebalance_timeout_ms / 1000

    # --- commands --------------------------------------------------------------------------------------------------

    def outstanding(self, watcher: Watcher | None = None) -> tuple[tuple[CommandId, ...], tuple[str, ...]]:
        """Returns the commands in order of execution, and the names of children that are not commands.

        ``watcher`` is notified of later changes. If the server supports it, each new command causes a ``CREATED`` event
        with the command's path; after any other event, call this method again. Deleting a command does not always cause
        an event.

        Raises :class:`MembershipLost` if the channel itself was deleted, because its version was the fencing token.
        """
        once = watcher if watcher is not None and not self._follows(watcher) else None
        group = GetData(layout.group(self.group))
        try:
            if once is None:
                settings, names = self._store.read_many([group, GetChildren(self._path)])
            else:
                (settings,) = self._store.read_many([group])
                names = self._store.children(self._path, once)
        except NoNode:
            names = settings = None
        if not isinstance(names, tuple):
            raise MembershipLost(
                f"the channel {self._path} was deleted, so its consumer can no longer acknowledge anything"
            )
        self._note_settings(settings)
        return in_order(names)

    def _note_settings(self, node: ReadResult) -> None:
        where = layout.group(self.group)
        try:
            value = node.data if isinstance(node, Node) else b""
            self._settings = GroupSettings.from_bytes(value, where) if value else GroupSettings()
        except MalformedValue:  # the coordinator reports it; until it is repaired, the last known settings hold
            return

    def _follows(self, watcher: Watcher) -> bool:
        self._watcher = watcher
        if not self._followed:
            self._followed = True  # set before the call, because _on_event may clear it before the call returns
            possible = False
            try:
                possible = self._store.follow(self._path, self._on_event)
            finally:
                if not possible:
                    self._followed = False
        return self._followed

    def _on_event(self, event: WatchEvent) -> None:
        watcher = self._watcher
        if event.path == self._path:  # the connection broke, or the channel was deleted or recreated
            self._followed = False
            event = WatchEvent(WatchType.CHILD, self._path)
        if watcher is not None and event.type is not WatchType.DELETED:
            watcher(event)

    def unwatch(self) -> None:
        """Stops notifying the watcher of :meth:`outstanding`."""
        self._watcher = None
        self._followed = False
        self._store.unfollow(self._path, self._on_event)

    def read(self, command: CommandId) -> Command | None:
        """Returns the command, or ``None`` if it was deleted. Raises :class:`MalformedValue`."""
        path = layout.command(self.group, self.consumer, command.name)
        try:
            return decode_command(self._store.get(path).data, path)
        except NoNode:
            return None

    def drop(self, command: CommandId) -> None:
        """Deletes a command for an earlier incarnation, without carrying it out."""
        try:
            self._store.delete(layout.command(self.group, self.consumer, command.name))
        except NoNode:
            return

    # --- fenced by the token -----------------------------------------------------------------------------------------

    def commit(self, registration: Registration, offsets: Offsets) -> frozenset[str]:
        """Writes offsets. Returns the topics whose offsets cannot be written because their znodes were deleted.

        Raises :class:`MembershipLost`. After ``StoreUnavailable``, retry with the same arguments.
        """
        return self._write_offsets(registration, offsets, ()) if offsets else frozenset()

    def auto_commit(self, registration: Registration, offsets: Offsets) -> Offsets:
        """Carries out an automatic commit. Returns the offsets that now count as stored."""
        self.commit(registration, offsets)
        return offsets

    def acknowledge(self, registration: Registration, command: CommandId, offsets: Offsets) -> frozenset[str]:
        """Acknowledges a command by deleting it and writes its offsets in the same multi. Returns and raises the same
        as :meth:`commit`."""
        try:
            return self._write_offsets(registration, offsets, (acknowledge_op(registration, command),))
        except NoNode:
            # the command was deleted by an earlier attempt whose response was lost, or by another client
            if command.type is CommandType.STOP_FETCHER:
                # the earlier attempt wrote these offsets and released the partitions; the next owner may have committed
                # since, so a second write could only move that owner's offsets back
                return frozenset()
            return self.commit(registration, offsets)

    def leave(
        self, registration: Registration, offsets: Offsets, *, for_good: bool = False, departure: Departure = LEFT
    ) -> frozenset[str]:
        """Writes the last offsets and deletes the registration in the same multi, so that the partitions move
        immediately. ``departure`` tells the coordinator how the member went.

        With ``for_good``, the multi also gives up the place that the coordinator keeps for ``rejoin_grace_ms``, unless
        the consumer's credentials do not allow that. Returns the same as :meth:`commit`.
        """
        now_ms = int(self._store.clock.time() * 1000)
        also = (eviction_op(self.group, self.consumer, now_ms),) if for_good else ()
        last = leave_ops(registration, departure)
        if also:
            try:
                for op in also:
                    self._store.ensure_path(op.path.rpartition("/")[0])
                return self._write_offsets(registration, offsets, (*also, *last))
            except (NoAuth, MultiFailed) as failure:
                cause = failure.cause if isinstance(failure, MultiFailed) else failure
                if not isinstance(cause, NoAuth) or cause.path not in {op.path for op in also}:
                    raise
                log.warning(
                    "leaving, but the partitions stay reserved for rejoin_grace_ms, because only operators may release"
                    " them consumer=%s reason=%s",
                    self.consumer,
                    cause,
                )
        return self._write_offsets(registration, offsets, last)

    def change_subscription(
        self, registration: Registration, subscription: Subscription, also: Iterable[Op] = ()
    ) -> None:
        """Writes a new subscription into the registration and carries out ``also`` in the same multi. Does nothing if
        the subscription is unchanged. Raises :class:`MembershipLost`."""
        node, _ = self._registered()
        if node is None or node.stat.czxid != registration.incarnation:
            raise MembershipLost(f"consumer {self.consumer!r} is no longer registered in group {self.group!r}")
        before = fields.load(node.data, registration.path)
        value = fields.dump({**before, **subscription.to_json()})
        if value == fields.dump(before):
            return
        also = tuple(also)
        for op in also:
            self._store.ensure_path(op.path.rpartition("/")[0])
        self._write((*registration.fence(), SetData(registration.path, value, node.stat.version), *also))

    def started_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records that the offsets in a start-fetcher are already stored."""
        self._stored.update(tp for tp, offset in offsets.items() if offset >= 0)

    def _write_offsets(self, registration: Registration, offsets: Offsets, last: tuple[Op, ...]) -> frozenset[str]:
        missing: frozenset[str] = frozenset()
        for attempt in range(_ATTEMPTS):
            writable = {tp: offset for tp, offset in offsets.items() if tp.topic not in missing}
            writes = [offset_op(self.group, tp, offset, exists=tp in self._stored) for tp, offset in writable.items()]
            try:
                *first, final = chunks(writes, last, registration.fence(), self._store.acl_bytes)
                for request in first:
                    # fails unless the znodes that the last request deletes still exist
                    self._write((*request, *(Check(op.path) for op in last if isinstance(op, Delete))))
                self._write(final)
            except MultiFailed as failure:
                if attempt == _ATTEMPTS - 1:
                    raise
                missing = self._look_again(writable, failure)
            else:
                self._stored.update(writable)
                break
        if missing:
            log.warning(
                "did not commit the offsets of some topics, because the offsets' znodes were deleted"
                " (probably along with the topics) group=%s topics=%s",
                self.group,
                ",".join(sorted(missing)),
            )
        return missing

    def _write(self, request: tuple[Op, ...]) -> None:
        try:
            self._store.multi(request)
        except MultiFailed as failure:
            if failure.index < FENCE_LENGTH and isinstance(failure.cause, (NoNode, BadVersion)):
                raise MembershipLost(
                    f"consumer {self.consumer!r} is no longer registered in group {self.group!r} as this incarnation;"
                    " nothing was written, because other members may hold its partitions"
                ) from failure
            if isinstance(request[failure.index], (Check, Delete)) and isinstance(failure.cause, NoNode):
                raise failure.cause from failure
            raise

    def _look_again(self, offsets: Offsets, failure: MultiFailed) -> frozenset[str]:
        """After a failed multi, checks again which offset znodes exist. Returns the topics whose offsets were
        deleted."""
        if not isinstance(failure.cause, (NoNode, NodeExists)):
            raise failure
        partitions = list(offsets)
        topics = sorted({tp.topic for tp in partitions})
        paths = [layout.offset(self.group, tp.topic, tp.partition) for tp in partitions]
        stats = self._store.exists_many([*paths, *(layout.topic_offsets(self.group, topic) for topic in topics)])
        for tp, stat in zip(partitions, stats, strict=False):
            (self._stored.discard if stat is None else self._stored.add)(tp)
        return frozenset(topic for topic, stat in zip(topics, stats[len(paths) :], strict=True) if stat is None)

    # --- what the consumer cannot resolve ----------------------------------------------------------------------------

    def await_ends(self, registration: Registration, reasons: Mapping[TopicPartition, str]) -> None:
        """Records that partitions start at their ends, which nobody has listed yet, and why. From then on, the elected
        instance also tries to list them. Raises :class:`MembershipLost`."""
        paths = {tp: layout.awaited_end(self.group, tp.topic, tp.partition) for tp in reasons}

        def ops() -> Iterator[Op]:
            found = self._store.read_many([GetData(path) for path in paths.values()])
            stored = _read_offsets(self._store, self.group, reasons)
            for (tp, path), node in zip(paths.items(), found, strict=True):
                value = write_reason(reasons[tp])
                if stored[tp] is None and not isinstance(node, Node):
                    yield Create(path, value)
                elif isinstance(node, Node) and node.data != value:
                    yield SetData(path, value)

        self._write_as_found(registration, ops)

    def keep_ends(self, registration: Registration, ends: Offsets) -> Offsets:
        """Stores the first listed end of each partition, unless the group has an offset already. Returns the offsets
        that the group has now. Leaves out partitions of deleted topics, and those whose offset cannot be decoded.
        Raises :class:`MembershipLost`."""
        awaited = {tp: layout.awaited_end(self.group, tp.topic, tp.partition) for tp in ends}
        topics = sorted({tp.topic for tp in ends})
        kept: dict[TopicPartition, int] = {}

        def ops() -> Iterator[Op]:
            kept.clear()
            stored = _read_offsets(self._store, self.group, ends)
            parents = [layout.topic_offsets(self.group, topic) for topic in topics]
            stats = self._store.exists_many([*awaited.values(), *parents])
            there = {topic for topic, stat in zip(topics, stats[len(awaited) :], strict=True) if stat is not None}
            for tp, stat in zip(awaited, stats, strict=False):
                offset = stored[tp]
                if tp.topic not in there or isinstance(offset, MalformedValue):
                    continue
                if offset is None:
                    yield offset_op(self.group, tp, ends[tp], exists=False)
                kept[tp] = ends[tp] if offset is None else offset
                if stat is not None:
                    yield Delete(awaited[tp])

        self._write_as_found(registration, ops)
        self._stored.update(kept)
        return kept

    def refuse(self, registration: Registration, topics: Mapping[str, str]) -> None:
        """Records which topics the consumer is not allowed to read, each with the reason. The coordinator leaves the
        consumer out for these topics. Raises :class:`MembershipLost`."""
        path = layout.refusals(self.group, self.consumer)
        reasons = {topic: reason[:MAX_REASON_CHARS] for topic, reason in sorted(topics.items())}
        value = Refusals(registration.incarnation, reasons).to_bytes()

        def ops() -> Iterator[Op]:
            # The coordinator watches only which znodes exist, so a change deletes the znode and creates it again.
            if self._store.exists(path) is not None:
                yield Delete(path)
            if topics:
                yield Create(path, value)

        self._write_as_found(registration, ops)

    def _write_as_found(self, registration: Registration, ops: Callable[[], Iterator[Op]]) -> None:
        """Writes ``ops`` under the token. ``ops`` reads the znodes first, and is called again if they have changed
        since."""
        for attempt in range(_ATTEMPTS):
            wanted = list(ops())
            try:
                for request in chunks(wanted, (), registration.fence(), self._store.acl_bytes) if wanted else ():
                    self._write(request)
            except (MultiFailed, NoNode) as failure:
                cause = failure.cause if isinstance(failure, MultiFailed) else failure
                if isinstance(cause, NoAuth):
                    raise cause from failure
                if attempt == _ATTEMPTS - 1 or not isinstance(cause, (NoNode, NodeExists)):
                    raise
                self._store.ensure_path(layout.unresolved(self.group))
            else:
                return

    # --- reading -----------------------------------------------------------------------------------------------------

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See :func:`stored_offsets`. Thread-safe."""
        return stored_offsets(self._store, self.group, partitions)
