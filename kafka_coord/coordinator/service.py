"""The service that runs beside each broker: it stands for election, and coordinates while elected."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from msgspec import structs

from kafka_coord.coordinator.assignors import Assignor, load_assignors
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.deadlines import CoordinatorOptions
from kafka_coord.coordinator.handler import RebalanceObserver, RebalanceRequestHandler
from kafka_coord.coordinator.history import action_of
from kafka_coord.coordinator.listeners import SessionExpirationListener
from kafka_coord.coordinator.mirroring import MetadataOptions, no_way_back, read_held, way_back_op
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.coordinator.start_offsets import EndLister
from kafka_coord.errors import (
    Fenced,
    KafkaCoordError,
    NodeExists,
    RequestRefused,
    StoreError,
    StoreUnavailable,
    TreeUnfinished,
)
from kafka_coord.model import Process, Request, RequestType
from kafka_coord.model.operations import Restored
from kafka_coord.zk import layout
from kafka_coord.zk.election import COMPLAIN_AGAIN_S, Leadership, ZkElection
from kafka_coord.zk.fencing import multi_fenced
from kafka_coord.zk.instance import InstanceRegistration, Successor, name_op, read_restored
from kafka_coord.zk.root import OwnTree
from kafka_coord.zk.store import Op, SessionState, SetData, Store

log = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0
HANDLER_WAIT_S = 0.5
_NEW_OBJECTS = 50_000
_YOUNG_COLLECTIONS = 20


def _nothing() -> None:
    return


class CoordinatorService:
    """Stands for election and coordinates while it is elected.

    It runs its own thread (session, election, listeners) and, while elected, the handler's thread. The code of both
    threads advances in steps and depends on nothing but a :class:`Store`, so a simulation can run it without threads.
    """

    def __init__(
        self,
        store: Store,
        broker_id: int,
        endpoints: Mapping[str, str] | None = None,
        options: CoordinatorOptions | None = None,
        assignors: Mapping[str, Assignor] | None = None,
        process: Process | None = None,
        observer: RebalanceObserver | None = None,
        lister: EndLister | None = None,
        metadata: MetadataOptions | None = None,
        tree: OwnTree | None = None,
    ) -> None:
        """``tree`` is the tree to serve. By default, one is made if there is none."""
        self._observer = observer
        self._metadata = metadata
        self._lister = lister
        self._store = store
        self._tree = tree or OwnTree(store)
        self._broker_id = broker_id
        self._options = options or CoordinatorOptions()
        self._assignors = assignors if assignors is not None else load_assignors()
        self._process = process
        self.awake = threading.Event()
        """Set when something happens that the next :meth:`turn` must handle."""
        self._stopping = threading.Event()
        self.registered = False
        """Whether this instance has been listed under ``/consumers/coordinators``."""
        self._finished = threading.Event()
        self._failure: KafkaCoordError | None = None
        self._election = ZkElection(store, broker_id, endpoints or {}, self.awake.set)
        setting = metadata.setting if metadata is not None else "auto"
        self._instance = InstanceRegistration(store, broker_id, endpoints or {}, self.awake.set, process, setting)
        self._sessions = SessionExpirationListener(self.awake.set)
        self._unsubscribe = store.on_session(self._sessions.on_session)
        self._stand_again_at = 0.0
        self._restored: Restored | None = None
        self._status = ""
        self._trouble = ""
        self._complain_again_at = 0.0
        self._thread: threading.Thread | None = None
        self._handler_thread: threading.Thread | None = None
        self.coordinator: ConsumerCoordinator | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="coordinator-service", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits up to ``timeout_s`` seconds for the service to end. Returns whether it has ended. If the service
        failed, raises its error."""
        ended = self._finished.wait(timeout_s)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self, timeout_s: float = 10.0) -> None:
        """Resigns immediately, so another instance is elected without waiting for a session to expire. Waits up to
        ``timeout_s`` seconds for the thread to end. Does not close the store, which belongs to the caller. Safe to call
        twice."""
        self._stopping.set()
        self.awake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def leads(self) -> bool:
        """Whether this instance is elected and ready to decide now."""
        return self.coordinator is not None and self.elected

    @property
    def leadership(self) -> Leadership | None:
        """The current leadership, even while this instance is not ready to decide or cannot confirm its session."""
        coordinator = self.coordinator
        return coordinator.leadership if coordinator is not None else self._election.leadership

    @property
    def elected(self) -> bool:
        """Whether this instance is known to be elected now, even if it is not ready to decide."""
        return self._election.still_leads()

    @property
    def obstacle(self) -> str:
        """Why no instance can be elected, or why this instance cannot coordinate, with the remedy if one is known.
        Empty if there is no obstacle. Safe to read from any thread."""
        return self._election.obstacle() or self._trouble

    def handler_age_s(self) -> float | None:
        """Returns the seconds since the handler's last step, or ``None`` while no handler is running. An idle handler
        completes a step every :data:`HANDLER_WAIT_S`. Safe to call from any thread."""
        coordinator = self.coordinator
        return coordinator.handler.age_s() if coordinator is not None else None

    def step(self) -> None:
        """Handles session changes, registers, stands for election, runs listeners, and answers requests that do not
        concern a managed group. Raises :class:`StoreError` if ZooKeeper did not respond or refused a request, in which
        case the caller must call this method again."""
        if self._sessions.expired:
            self._sessions.expired = False
            self._step_down("its ZooKeeper session ended")
        elif self.coordinator is not None and self.coordinator.handler.deposed:
            self._step_down(f"{layout.COORDINATOR_EPOCH} was changed or deleted (by an election or by hand)")
        if self._store.session.state is not SessionState.CONNECTED:
            self._say(f"waiting for ZooKeeper. I am {self._broker_id}, not connected, and making no decisions")
            return
        self._register()
        self._election.step()
        self._tree.check(self._election.tree_seen)
        if self.coordinator is not None and not self._election.still_leads():
            if self._election.is_mine():
                self._say(
                    f"waiting. I am {self._broker_id}, elected, but my session is uncertain, so I am "
                    "making no decisions"
                )
            else:
                self._step_down(self._election.why_lost())
        elif self.coordinator is not None:
            self.coordinator.step()
            self._answer_requests()
            self._say_status()
        elif self._election.successor() == self._broker_id or self._store.clock.monotonic() >= self._stand_again_at:
            self._stand()

    def turn(self) -> float:
        """Runs :meth:`step` and handles its errors. Returns how many seconds to wait for ``awake`` before the next
        turn."""
        self.awake.clear()
        try:
            self.step()
        except Fenced as error:
            self._step_down(str(error))
        except StoreUnavailable as error:
            self._say(f"waiting for ZooKeeper. I am {self._broker_id}: {error}")
            return self._options.retry_backoff_ms / 1000
        except (NodeExists, TreeUnfinished) as error:
            self._say(f"waiting. I am {self._broker_id}: {error}")
        except StoreError as error:
            self._complain(f"cannot coordinate. I am {self._broker_id}: {error}")
        except KafkaCoordError:
            raise
        except Exception as error:  # noqa: BLE001  if this ended the instance, the next one would hit the same bug
            self._complain(f"cannot coordinate. I am {self._broker_id}: {error!r} (this is a bug)", error)
            with suppress(StoreError):
                self._resign("a bug")
        else:
            if self._store.clock.monotonic() >= self._stand_again_at:
                self._trouble = ""
        return IDLE_WAIT_S

    def tell(self, *, ready: bool, waiting_for: str, withdrawn: Collection[str] = ()) -> None:
        """See :meth:`InstanceRegistration.tell`."""
        self._instance.tell(ready=ready, waiting_for=waiting_for, withdrawn=withdrawn)

    def _register(self) -> None:
        if not self.registered or not self._instance.is_registered():
            self._tree.join()
            if not self.registered:
                self._look_at_restore()
            for path in layout.PERSISTENT_ROOTS:
                self._store.ensure_path(path)
            self._instance.register()
            self.registered = True

    def _look_at_restore(self) -> None:
        """Reads how the tree was restored, if it was, and whether to wait before standing for election."""
        self._restored = read_restored(self._store)
        if self._restored is not None and self._restored.wait_ms:
            # counted from now, on this clock: the old servers had stopped before the restore began
            self._stand_again_at = self._store.clock.monotonic() + self._restored.wait_ms / 1000
            self._say(
                f"waiting {self._restored.wait_ms / 1000:g} s before standing for election: the tree was restored, and"
                " its backup does not say who held what in the end"
            )

    def _end_the_wait(self, leadership: Leadership) -> None:
        if self._restored is not None and self._restored.wait_ms:
            self._restored = structs.replace(self._restored, wait_ms=0)
            op = SetData(layout.RESTORED, self._restored.to_bytes())
            multi_fenced(self._store, leadership.fence, [op], leadership.session_id)

    def _stand(self) -> None:
        leadership = self._election.elect()
        if leadership is None:
            self._say_who_leads()
            return
        log.info(
            "elected as coordinator broker_id=%d epoch=%d",
            self._broker_id,
            leadership.epoch,
            extra={"event": "elected"},
        )
        coordinator = ConsumerCoordinator(
            self._store,
            leadership,
            self._election.still_leads,
            self.awake.set,
            self._assignors,
            self._options,
            self._broker_id,
            self._process,
            self._lister,
            self._metadata,
        )
        try:
            self._end_the_wait(leadership)
            coordinator.coordinator_startup()
        except Exception:
            coordinator.close()
            self._election.resign()
            raise
        coordinator.handler.observer = self._observer
        self.coordinator = coordinator
        if self._thread is not None:
            self._start_handler(coordinator.handler)
            for thread in coordinator.threads:
                thread.start()

    def _step_down(self, why: str) -> None:
        """Drops the leadership and its state. A later turn stands for election again."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is None:
            return
        log.log(
            logging.INFO if self._stopping.is_set() else logging.WARNING,
            "stepped down broker_id=%d epoch=%d: %s",
            self._broker_id,
            coordinator.leadership.epoch,
            why,
            extra={"event": "stepped_down", "reason": why},
        )
        coordinator.close()
        self._join_handler()
        if self._observer is not None:
            self._observer.interrupted()
        self._election.forget()

    def _answer_requests(self) -> None:
        """Answers requests to resign, to read Kafka's own znodes again, to let topics go from the mirror, and to record
        an action that does not concern a managed group."""
        coordinator = self.coordinator
        if coordinator is None:
            return
        for request in coordinator.requests.of_no_group():
            try:
                message, also, then = self._effect_of(request, coordinator)
            except RequestRefused as refusal:
                coordinator.answer(request, "refused", str(refusal))
                continue
            if not coordinator.answer(request, "done", message, also):
                continue
            then()
            action = action_of(request, int(self._store.clock.time() * 1000))
            if action is not None:
                log.info("%s", action.sentence, extra=action.logged)
                coordinator.record(action)
            if request.type is RequestType.RESIGN:
                self._resign(f"an operator asked for it: {action.sentence}" if action else "an operator asked for it")
                return

    def _effect_of(
        self, request: Request, coordinator: ConsumerCoordinator
    ) -> tuple[str, Sequence[Op], Callable[[], None]]:
        """Returns the answer, what to write with it, and what to do after that. Raises :class:`RequestRefused`."""
        also, then = list[Op](), _nothing
        message = "recorded"
        if request.type is RequestType.RESIGN:
            message = f"coordinator {self._broker_id} resigned from epoch {coordinator.leadership.epoch}"
            if request.successor is not None:
                self._check_can_follow(request.successor)
                message += f" and named broker {request.successor} as its successor"
                also = [name_op(self._store, Successor(request.successor, coordinator.leadership.epoch))]
        elif request.type is RequestType.METADATA:
            if problem := no_way_back(self._store):
                raise RequestRefused(problem)
            message, also = (
                "brokers and topics are read from Kafka's own znodes",
                [way_back_op(self._store, request.by)],
            )
        elif request.type is RequestType.LET_GO:
            held = read_held(self._store, request.unchanged_since)
            if coordinator.mirror is None:
                raise RequestRefused("this instance keeps no mirror")
            message = f"{counted(len(held.held), 'topic')} may go, unless a broker knows them again"
            then = partial(coordinator.mirror.let_go, held)
        return message, also, then

    def _check_can_follow(self, successor: int) -> None:
        """Raises :class:`RequestRefused` if the instance beside broker ``successor`` cannot become the successor."""
        if successor == self._broker_id:
            raise RequestRefused(f"the instance beside broker {successor} is already the coordinator")
        if self._store.exists(layout.instance(successor)) is None:
            running = ", ".join(self._store.children(layout.COORDINATORS))
            raise RequestRefused(f"no instance is running beside broker {successor}; running instances: {running}")

    def _resign(self, why: str) -> None:
        coordinator = self.coordinator
        if coordinator is not None and coordinator.history is not None and self.elected:
            with suppress(StoreError):
                coordinator.history.end(why)
        self._step_down(why)
        self._stand_again_at = self._store.clock.monotonic() + self._options.resign_pause_ms / 1000
        self._election.resign(coordinator.leadership if coordinator is not None else None)

    def _say_who_leads(self) -> None:
        leader = self._election.leader()  # read first, because this also detects a repaired epoch
        if self.obstacle:
            self._say(f"waiting. I am {self._broker_id}, no instance is coordinating: {self.obstacle}")
            return
        named = self._election.successor()
        if named is not None:
            self._say(
                f"waiting. I am {self._broker_id}, no instance is coordinating: broker {named} is the named successor"
            )
            return
        who = f"broker {leader.broker_id} coordinates, epoch {leader.epoch}" if leader else "no instance coordinates"
        self._say(f"no action. I am {self._broker_id}, {who}")

    def _say_status(self) -> None:
        coordinator = self.coordinator
        if coordinator is not None:
            self._say(
                f"no action. I am {self._broker_id}, the coordinator, epoch {coordinator.leadership.epoch}:"
                f" {counted(len(coordinator.groups), 'group')}, {counted(len(coordinator.catalog.names()), 'topic')}"
            )

    def _complain(self, trouble: str, defect: Exception | None = None) -> None:
        """Logs a problem as soon as it appears, and again every :data:`COMPLAIN_AGAIN_S` while it lasts."""
        now = self._store.clock.monotonic()
        if trouble != self._trouble or now >= self._complain_again_at:
            log.error("%s", trouble, exc_info=defect, extra={"event": "cannot_coordinate"})
            self._complain_again_at = now + COMPLAIN_AGAIN_S
        self._trouble = trouble

    def _say(self, status: str) -> None:
        """Logs this instance's status whenever it changes."""
        if status != self._status:
            self._status = status
            log.info("%s", status, extra={"event": "status"})

    # --- threads -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.awake.wait(self.turn())
        except KafkaCoordError as error:
            self._failure = error
        except Exception as error:
            log.exception("coordinator service ended broker_id=%d", self._broker_id)
            self._failure = KafkaCoordError(f"the coordinator service ended: {error!r} (this is a bug; see the log)")
        finally:
            self._end()

    def _end(self) -> None:
        self._unsubscribe()
        try:
            self._resign("the service is stopping")
            self._instance.unregister()
        except StoreError as error:
            log.warning("could not resign, so the leadership will end with the session: %s", error)
        finally:
            self._election.close()
            self._finished.set()

    def _start_handler(self, handler: RebalanceRequestHandler) -> None:
        self._handler_thread = threading.Thread(
            target=self._handle, args=(handler,), name="rebalance-request-handler", daemon=True
        )
        self._handler_thread.start()

    def _handle(self, handler: RebalanceRequestHandler) -> None:
        """Runs the handler. If the handler fails, so does the service: an elected instance without a handler would keep
        all other instances from taking over."""
        try:
            while not (handler.closed or handler.deposed):
                if not handler.step(HANDLER_WAIT_S) and not handler.may_decide():
                    self._stopping.wait(0.02)
        except Exception as error:
            log.exception("rebalance request handler failed broker_id=%d; resigning", self._broker_id)
            self._failure = KafkaCoordError(
                f"the rebalance request handler ended: {error!r} (this is a bug; see the log)"
            )
            self._stopping.set()
        self.awake.set()

    def _join_handler(self) -> None:
        thread, self._handler_thread = self._handler_thread, None
        if thread is not None:
            thread.join(HANDLER_WAIT_S * 20)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Runs Python's cyclic collector after 50,000 new containers instead of 700 (:func:`gc.set_threshold`).

    A decision creates hundreds of thousands of containers. Hardly any of them are part of a cycle, so reference
    counting frees them without the collector's help. Scanning them over and over took up a quarter of the time needed
    to decide for a large group (``docs/performance.md``). The price is a few MB of garbage that lives longer.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, _YOUNG_COLLECTIONS, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
