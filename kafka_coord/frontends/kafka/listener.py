"""Listens for Kafka clients on its own event loop, and claims a term for each log partition that its broker leads."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from kafka_coord.classic_groups.errors import Error, named
from kafka_coord.classic_groups.sessions import Key as SessionKey
from kafka_coord.errors import (
    BrokerError,
    KafkaCoordError,
    MalformedValue,
    SettingsError,
    StoreError,
    StoreUnavailable,
    TreeRefused,
)
from kafka_coord.frontends.kafka.access import BrokerAccess
from kafka_coord.frontends.kafka.clients import ClientLimits, Clients
from kafka_coord.frontends.kafka.connection import ClientConnection
from kafka_coord.frontends.kafka.group_requests import GroupCoordinator
from kafka_coord.frontends.kafka.instances import (
    SETTINGS_CHECK_S,
    BrokerSettings,
    Claimants,
    Instances,
    Readiness,
    RegisteredInstances,
    report_right,
)
from kafka_coord.frontends.kafka.managed.administration import Administration
from kafka_coord.frontends.kafka.managed.group import ManagedGroups
from kafka_coord.frontends.kafka.managed.terms import ManagedTerms
from kafka_coord.frontends.kafka.managed.watching import ZooKeeperTopics
from kafka_coord.frontends.kafka.native import FOR_BROKERS, Kinds, NativeGroups
from kafka_coord.frontends.kafka.routing import Patches
from kafka_coord.frontends.listening import Handshakes
from kafka_coord.grouplog.manager import GroupMetadataManager
from kafka_coord.grouplog.term import Claimed, TermEnded
from kafka_coord.grouplog.trees import claim_term, is_current_term
from kafka_coord.kafka.authentication import PLAINTEXT, BrokerSecurity
from kafka_coord.kafka.connection import BrokerConnection, LeadsNoMore, LeadsNotYet, NotSent, RightMissing, connect
from kafka_coord.model import GroupKind
from kafka_coord.model.names import group_pattern, left_to_brokers
from kafka_coord.model.offsets import Retention
from kafka_coord.model.sequences import some
from kafka_coord.renewed import Renewed
from kafka_coord.settings import host_and_port
from kafka_coord.zk.instance import share_retention
from kafka_coord.zk.root import ClusterRecord, OwnTree, tell_changed
from kafka_coord.zk.store import Store

log = logging.getLogger(__name__)

LEADER_CHECK_S = 0.5
"""How often to check which partitions the broker leads, in seconds."""
LEADER_CHECK_SOON_S = 0.05
"""The time until the next check, in seconds, after a request for a group that this instance does not coordinate: the
leader may just have changed."""
BEGINS_AGAIN_S = 1.0
"""The time until a part of the listener begins again after an unexpected error, in seconds, so that a lasting defect
does not fill the log."""
TAKE_OVER_CHECK_S = 5.0
"""How often to look for empty groups that match ``managed_groups``, in seconds."""
RIGHT_CHECK_S = 5.0
"""How long to wait before another claim after the broker has denied this instance a right, and how often to report
that in ZooKeeper, in seconds."""
SETTINGS_CHECK_SOON_S = 1.0
"""How long to wait before the broker is asked for its settings again, in seconds, if that failed."""
_SETTINGS_WITHIN_S = 5.0
"""How long the first terms wait for the broker's settings, in seconds."""
TELL_AGAIN_S = 0.1
"""How long after a signal that topics have changed the next may be given, in seconds: clients may ask in vain for what
the mirror does not get."""
THREADS = 50
"""How many calls to ZooKeeper may wait for its answers at the same time: one for each partition of the groups log."""
RESTARTED_WITHIN_S = 10.0
"""For how long a partition may not be claimable because of a planned restart of its broker, in seconds."""


async def kept_running(work: Callable[[], Coroutine[object, object, None]]) -> None:
    """Runs endless work. After an unexpected error, reports it and begins again: nothing else would notice that a part
    of the listener has ended."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a part of the listener for Kafka clients failed (this is a bug); it begins again")
        await asyncio.sleep(BEGINS_AGAIN_S)


class KafkaListener:
    """Serves Kafka clients at ``address`` until :meth:`close`.

    ``broker_listener`` is the broker's listener for this instance, and ``security`` secures the connections to it.
    ``tls`` secures client connections. ``rewrite`` makes the listener put the instances' addresses into the broker's
    responses, in case the broker does not advertise them. ``group_limits`` contains this instance's own values, by
    field of :class:`~kafka_coord.classic_groups.machine.GroupLimits`; the broker's settings determine the others. If
    ``holds`` is set, heartbeats are held. Groups of classic clients are managed if their names match
    ``managed_groups``.

    Raises :class:`SettingsError` if it cannot listen on ``address``, and :class:`InvalidPattern`.
    """

    _refused: TreeRefused | None = None
    """Why this instance may serve nothing any more."""

    def __init__(
        self,
        address: str,
        broker_listener: str,
        store: Store,
        broker_id: int,
        *,
        limits: ClientLimits | None = None,
        security: Renewed[BrokerSecurity] = PLAINTEXT,
        tls: ssl.SSLContext | None = None,
        rewrite: bool = False,
        group_limits: Mapping[str, float] | None = None,
        holds: bool = True,
        managed_groups: str | None = None,
        tree: OwnTree | None = None,
        new_groups: str | None = None,
    ) -> None:
        """``tree`` is the tree that this instance serves. By default, it joins one."""
        self._host, self._port = host_and_port(address)
        self._broker_host, self._broker_port = host_and_port(broker_listener)
        self._security = security
        self._store, self._broker_id, self._managed_groups = store, broker_id, managed_groups
        self._tree = tree or OwnTree(store)
        self._settings = BrokerSettings(group_limits or {})
        self._limits = self._settings.limits
        self._retention: Retention | None = None
        """``None`` until it is known. Until then, nothing expires."""
        self.registered = RegisteredInstances(store)
        to_broker = partial(BrokerConnection, self._broker_host, self._broker_port, security)
        self.instances = Instances(
            *(to_broker, broker_id, lambda: self.registered.addresses),
            rewrites=rewrite,
            claimant=Claimants(store).last,
        )
        self.patches = Patches(self.instances.addresses, rewrites=rewrite)
        self.manager = GroupMetadataManager(
            to_broker,
            self._join,
            self._claim,
            self._check,
            f"{broker_id}@{address}",
            self._limits,
            self._term_ended,
            topics=ZooKeeperTopics(store, self._watch_topic, self.instances.look_up, self._topics_have_changed),
        )
        self.broker_access = BrokerAccess(self._limits)
        self.handshakes = None if tls is None else Handshakes(tls)
        """``None`` if clients do not use TLS."""
        self._stop: asyncio.Event | None = None
        self._server: asyncio.Server | None = None
        """``None`` while this instance refuses connections."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started: Future[str] = Future()
        self._claims: dict[int, asyncio.Task[None]] = {}
        self._failing_since: dict[int, float] = {}
        """When the first claim of each partition failed that its broker leads and that could not be claimed since."""
        self._reported_right = False
        self._unheard: dict[tuple[str, str], float] = {}
        """The members of loaded groups that have not been heard yet, by group and member id, with the times at which
        they would expire."""
        self._look: asyncio.Event = asyncio.Event()
        """Set when a check of the leaders should not wait."""
        self._asked = asyncio.Event()
        """Set once the broker has been asked for its settings."""
        self.topics_changed = asyncio.Event()
        """Set once a request that changes topics has been answered."""
        self._broker_failures = 0
        """How many requests in a row the broker has not answered."""
        self._tell_failure_at = math.inf
        """When to log that the broker does not answer, unless it does so before."""
        self.clients = Clients(limits or ClientLimits())
        self.clients.limits.allow_descriptors()
        self.managed = ManagedTerms(
            store,
            partial(self._call, self.manager.resign),
            lambda asked: self._call(self.coordinator.conversions.convert, asked),
            self._limits.consumer_session_timeout_s,
        )
        self.manager.other_members = self._heard_of_managed
        managed = ManagedGroups(
            self.managed, Administration(store, self.managed), self.manager, broker_id, self._limits
        )
        self.coordinator = GroupCoordinator(
            self.manager,
            self.instances,
            managed,
            statistics=self.clients.statistics,
            holds=holds,
            native=NativeGroups(
                self.instances,
                Kinds(store),
                lambda address: BrokerConnection(*address, security, client_id=FOR_BROKERS),
            ),
            left_to_brokers=left_to_brokers(new_groups),
            is_managed_by_name=group_pattern(managed_groups).fits if managed_groups else lambda _group_id: False,
            on_elsewhere=self._look.set,
        )
        self.readiness = Readiness()
        self._thread = threading.Thread(target=self._run, name="kafka-listener", daemon=True)
        self._thread.start()
        self.address = self._started.result()
        self.managed.start()

    @property
    def kinds(self) -> Kinds:
        return self.coordinator.native.kinds

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """The threads that must live until :meth:`close`."""
        return self._thread, self.managed.thread

    @property
    def is_listening(self) -> bool:
        """Whether clients can connect now. May be read on any thread."""
        server = self._server
        return server is not None and server.is_serving()

    def waiting_for(self) -> str:
        """Returns what a rolling restart must wait for before it restarts the next instance, or an empty string: this
        instance's readiness, replicas of the groups log, or clients. May be called on any thread."""
        if self.readiness.reason:
            return self.readiness.reason
        if self.instances.lagging_replicas:
            return "replicas of the groups log that are not in sync"
        if self._unheard or self.managed.has_unheard():
            return "members that have not been heard since their groups moved here"
        return ""

    def raise_failure(self) -> None:
        """Raises :class:`TreeRefused` once this instance may serve nothing any more. May be called on any thread."""
        if self._refused is not None:
            raise self._refused

    def close(self) -> None:
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self.managed.close()

    # --- on the loop's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                log.critical(
                    "the listener for Kafka clients has stopped (this is a bug); restart this instance, because its"
                    " groups of Kafka clients now have no coordinator",
                    exc_info=True,
                )
            else:
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # by default, two cores get six threads, so that the claims of many partitions wait for each other
        self._loop.set_default_executor(ThreadPoolExecutor(THREADS, "kafka-listener"))
        try:
            self._server = await self._bound()
        except OSError as error:
            raise SettingsError(f"cannot listen for Kafka clients on {self._host}:{self._port}: {error}") from None
        host, port, *_ = self._server.sockets[0].getsockname()
        self._port = port
        endless = (
            *(self._maintain, self._follow_settings, self._end_overdue_clients),
            *(self._take_over_by_name, self._forget_gone, self._tell_changes, self.kinds.follow),
        )
        maintenance = asyncio.gather(*map(kept_running, (*endless, self.registered.follow)))
        self._started.set_result(f"{host}:{port}")
        await self._stop.wait()
        self._stop_listening()
        maintenance.cancel()
        for task in self._claims.values():
            task.cancel()
        await self.coordinator.stop()
        await self.clients.close()
        await self.coordinator.close()
        self.instances.close()
        await asyncio.gather(maintenance, *self._claims.values(), return_exceptions=True)

    async def _bound(self) -> asyncio.Server:
        """Takes the port, without listening yet. Raises :class:`OSError`."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: ClientConnection(self), self._host, self._port, backlog=1024, start_serving=False
        )

    async def _listen(self) -> None:
        """Listens, unless it already does."""
        try:
            if self._server is None:
                self._server = await self._bound()
            await self._server.start_serving()
        except OSError as error:
            log.warning("cannot listen for Kafka clients on %s:%d: %s; retrying", self._host, self._port, error)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _broker_refuses(self) -> None:
        """Stops listening while nobody listens at the broker's address: clients then get the same refusal as from a
        broker that is down, and turn to another. A connection that is closed at once makes some repeat it and log
        it."""
        if self._server is not None and self._server.is_serving():
            log.info("refusing Kafka clients until the broker listens again")
            self._stop_listening()
            self.instances.is_refusing = True
            self.instances.close()  # an old connection may still answer: only a new one proves that the broker listens
            self._look.set()

    async def _end_overdue_clients(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.clients.limits.overdue_check_s())
            self.clients.end_overdue(loop.time())

    async def connect_broker(self, protocol: asyncio.Protocol) -> None:
        """Connects ``protocol`` to the broker. Raises :class:`OSError`."""
        try:
            await connect(lambda: protocol, self._broker_host, self._broker_port, self._security.newest())
        except OSError as error:
            if is_refused(error):
                self._broker_refuses()
            raise

    # --- terms -------------------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        """Claims the partitions that the broker leads, gives up all other partitions, and removes expired offsets."""
        loop = asyncio.get_running_loop()
        expiry_checked = loop.time()
        report_due = loop.time()
        while True:
            await self._refresh_leaders()
            if loop.time() >= report_due:
                report_due = loop.time() + RIGHT_CHECK_S
                await self._report_right()
            if loop.time() >= expiry_checked + self._limits.expiry_check_s:
                expiry_checked = loop.time()
                await self._remove_expired_offsets()
            await asyncio.sleep(LEADER_CHECK_SOON_S)
            if not (self._broker_failures or self.readiness.is_ready):
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEADER_CHECK_S - LEADER_CHECK_SOON_S):
                    await self._look.wait()
            self._look.clear()

    async def _report_right(self) -> None:
        with contextlib.suppress(BrokerError):  # the right may have been given, although nobody commits any more
            await self.instances.learn(dict.fromkeys(self.instances.hidden, 0))
        native, about = self.coordinator.native, dict[str, str]()
        await native.look_for_right()
        error = self.manager.missing_right
        if not error and self.instances.hidden:
            error, about = named(Error.TOPIC_AUTHORIZATION_FAILED), {"topics": some(sorted(self.instances.hidden), 5)}
        elif not error and native.denied:
            error, about = named(Error.GROUP_AUTHORIZATION_FAILED), {"group": native.denied}
        if not error and not self._reported_right:
            return
        try:
            await asyncio.to_thread(report_right, self._store, self._broker_id, error, about)
            self._reported_right = bool(error)
        except StoreError as failed:
            log.info("cannot report a missing right: %s; retrying", failed)

    async def _refresh_leaders(self) -> None:
        """Asks the broker which partitions it leads and claims them. Logs a failure only when it lasts, and then only
        once: a broker that stops closes its connections, and then refuses new ones."""
        try:
            await self.instances.find_leaders()
            self._broker_failures, self.instances.is_refusing = 0, False
            await self._listen()
        except BrokerError as error:
            if isinstance(error, RightMissing):
                self.manager.note_outcome(error.code)
            self.readiness.broker_failed(str(error))
            now = asyncio.get_running_loop().time()
            if not self._broker_failures:
                self._tell_failure_at = now + RESTARTED_WITHIN_S
            self._broker_failures += 1
            if is_refused(error.__cause__):
                self._broker_refuses()
                return
            if now >= self._tell_failure_at:
                self._tell_failure_at = math.inf
                log.warning("cannot determine which groups-log partitions the broker leads: %s; retrying", error)
            if not self.instances.is_refusing:
                await self._listen()
        except Exception:
            log.exception("cannot determine which groups-log partitions the broker leads (this is a bug)")
        else:
            self._follow_leaders()
            self._check_ready()
            self._check_heard()

    async def _follow_settings(self) -> None:
        """Asks the broker for its settings, from time to time, and shares how long it keeps offsets."""
        is_said = False
        while True:
            try:
                await self._settings.ask(self.instances.ask, self._broker_id)
                self.managed.session_timeout_s = self._limits.consumer_session_timeout_s
            except BrokerError as error:
                log.debug("cannot ask the broker for its settings: %s; retrying", error)
            except Exception:
                log.exception("cannot ask the broker for its settings (this is a bug); retrying")
            try:
                if self._settings.is_answered:
                    self._asked.set()
                    told = self._broker_id, self._settings.retention_ms, self.manager.now_ms()
                    self._retention = await asyncio.to_thread(share_retention, self._store, *told)
                    is_said = False
            except (StoreError, MalformedValue) as error:
                if not is_said:
                    log.warning("cannot read how long to keep offsets, so none expire for now: %s; retrying", error)
                self._retention, is_said = None, True
            is_known = self._retention is not None and self._settings.is_complete
            await asyncio.sleep(SETTINGS_CHECK_S if is_known else SETTINGS_CHECK_SOON_S)

    async def _tell_changes(self) -> None:
        while True:
            await self.topics_changed.wait()
            self.topics_changed.clear()
            with contextlib.suppress(StoreError):  # otherwise, the change is seen a little later
                await asyncio.to_thread(tell_changed, self._store)
            await asyncio.sleep(TELL_AGAIN_S)

    async def _take_over_by_name(self) -> None:
        while self._managed_groups is not None:
            try:
                await self.coordinator.conversions.take_over_by_name()
            except StoreUnavailable as error:
                log.info("cannot check which groups to make managed: %s", error)
            await asyncio.sleep(TAKE_OVER_CHECK_S)

    async def _forget_gone(self) -> None:
        while True:
            await asyncio.sleep(self._limits.expiry_check_s)
            await self.coordinator.groups.forget_gone()

    async def _remove_expired_offsets(self) -> None:
        try:
            if self._retention is not None:
                await self.manager.delete_expired_consumer_offsets(self._retention)
        except Exception:
            log.exception("cannot remove expired offsets")

    def _follow_leaders(self) -> None:
        led = {partition for partition, leader in self.instances.leaders.items() if leader == self._broker_id}
        for partition in self._failing_since.keys() - led:
            del self._failing_since[partition]
        for partition in self.manager.terms.keys() - led:
            self.manager.resign(partition, "its broker no longer leads it")
        for partition in sorted(led - self.manager.terms.keys() - self._claims.keys()):
            self._claims[partition] = asyncio.create_task(self._begin(partition))

    def _check_ready(self) -> None:
        """Checks whether this instance serves every partition that its broker leads now."""
        if not self.instances.is_known:
            self.readiness.broker_failed("it does not list itself among the running brokers yet")
            return
        led = {partition for partition, leader in self.instances.leaders.items() if leader == self._broker_id}
        loaded = {partition for partition in self.manager.terms if self.managed.knows_partition(partition)}
        self.readiness.loaded(led & loaded, led)

    def _check_heard(self) -> None:
        """Forgets the members that have been heard, and those that are gone."""
        for (group_id, member_id), expires_at in list(self._unheard.items()):
            group = self.manager.group(group_id)
            member = group.metadata.members.get(member_id) if group is not None else None
            if member is None or member.expires_at != expires_at:
                del self._unheard[group_id, member_id]

    async def _begin(self, partition: int) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SETTINGS_WITHIN_S):
                    await self._asked.wait()
            await self.manager.load_groups_for_partition(partition)
            self._failing_since.pop(partition, None)
            self.instances.tried_to_lead(partition, leads=True)
            self._unheard |= {
                (group_id, member_id): member.expires_at
                for group_id, group in self.manager.groups_of(partition).items()
                for member_id, member in group.metadata.members.items()
            }
            await self._begin_kinds(partition)
            if partition not in self.manager.terms:
                return  # it was given up meanwhile
            self.coordinator.client_assigned.begin_partition(partition)
            sessions = self.manager.states[partition].sessions
            self.managed.begin(partition, self.manager.terms[partition].znode_version, sessions)
            self.coordinator.moves.begin(partition)
            self.coordinator.conversions.begin(partition)
        except TreeRefused as error:
            await self._refuse(error)
        except RightMissing as error:
            log.info("cannot coordinate a partition of the groups log partition=%d: %s; retrying", partition, error)
            await asyncio.sleep(RIGHT_CHECK_S)
        except KafkaCoordError as error:
            if isinstance(error, LeadsNoMore):
                self.instances.tried_to_lead(partition, leads=False)
            failing_since = self._failing_since.setdefault(partition, asyncio.get_running_loop().time())
            log.log(
                claim_failure_level(error, asyncio.get_running_loop().time() - failing_since),
                "cannot yet coordinate a partition of the groups log partition=%d: %s; retrying",
                *(partition, error),
            )
            await asyncio.sleep(LEADER_CHECK_S)
        except Exception:
            log.exception(
                "cannot yet coordinate a partition of the groups log (this is a bug); retrying partition=%d", partition
            )
            await asyncio.sleep(LEADER_CHECK_S)
        finally:
            self._claims.pop(partition, None)

    async def _begin_kinds(self, partition: int) -> None:
        """Records the kinds of the partition's groups that have none. Until then, none of them is served."""
        told = ""
        while (term := self.manager.terms.get(partition)) is not None:
            groups = self.manager.groups_of(partition).items()
            stored = {name: group.metadata.has_members for name, group in groups}
            try:
                await self.kinds.begin(partition, term.znode_version, stored)
            except (StoreError, MalformedValue) as error:
                if str(error) != told:  # what is damaged stays so until somebody mends it
                    told = str(error)
                    level = logging.WARNING if isinstance(error, MalformedValue) else logging.INFO
                    log.log(level, "cannot record the kinds of groups yet partition=%d: %s; retrying", partition, error)
                await asyncio.sleep(LEADER_CHECK_S)
            else:
                return
        raise TermEnded("the term ended while its groups' kinds were recorded")

    def _term_ended(self, partition: int) -> None:
        self._look.set()
        self.kinds.end(partition)
        self.coordinator.moves.end(partition)
        self.coordinator.client_assigned.end_partition(partition)
        self.managed.end(partition)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Schedules a call on the event loop from the managed groups' thread. Does nothing once the loop is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(function, *arguments)

    def _heard_of_managed(self, partition: int) -> dict[SessionKey, int | None]:
        """A conversion that an earlier term began may have left members of a group that is not managed."""
        left_ms = self.managed.left_ms(partition)
        return {key: ms for key, ms in left_ms.items() if self.kinds.are(GroupKind.MANAGED, key[0])}

    def _topics_have_changed(self) -> None:
        self.topics_changed.set()

    def _watch_topic(self, topic: str, changed: Callable[[], None]) -> None:
        self.managed.watch_topic(topic, changed)

    async def _join(self) -> ClusterRecord:
        await asyncio.to_thread(self._tree.join)
        await asyncio.to_thread(self._tree.read)
        record, found = self._tree.record, self.instances.cluster_id
        if record.kafka is not None and found is not None and record.kafka != found:
            raise TreeRefused(
                f"the broker beside this instance belongs to Kafka cluster {found}, but {record.name}, to cluster"
                f" {record.kafka}: correct --broker-listener or --zookeeper"
            )
        return record

    async def _refuse(self, error: TreeRefused) -> None:
        """Ends this instance, and if a newer tree is known, all instances of this one."""
        log.critical("this instance must serve nothing any more: %s", error, extra={"event": "tree_refused"})
        if error.newer and self._tree.record.kafka in {None, self.instances.cluster_id}:
            with contextlib.suppress(StoreError, MalformedValue):
                await asyncio.to_thread(self._tree.superseded, error.newer)
        self._refused = error

    async def _claim(self, partition: int, newest: int) -> Claimed:
        claim = partial(claim_term, self._store, partition, self._broker_id, self._tree, newest=newest)
        return await asyncio.to_thread(claim, managed_groups=self._managed_groups)

    async def _check(self, partition: int, claimed: Claimed) -> bool:
        return await asyncio.to_thread(is_current_term, self._store, partition, claimed)


def claim_failure_level(error: KafkaCoordError, for_s: float) -> int:
    """Returns the level at which to log that a partition cannot be claimed yet, which has been so ``for_s`` seconds. In
    a planned restart of a broker, it is told of its partitions before it leads them, or until it leads them no more, or
    cannot be reached."""
    is_restart = isinstance(error, LeadsNoMore | LeadsNotYet | NotSent) and for_s < RESTARTED_WITHIN_S
    return logging.INFO if is_restart else logging.WARNING


def is_refused(error: BaseException | None) -> bool:
    """Returns whether nobody listens at any of the addresses that were tried. asyncio raises one error for all."""
    if isinstance(error, ConnectionRefusedError):
        return True
    words = str(error) if isinstance(error, OSError) else ""
    return words.count("[Errno ") > 0 and words.count("[Errno ") == words.count(f"[Errno {errno.ECONNREFUSED}]")
