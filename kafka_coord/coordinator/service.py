"""The service beside each broker. It stands for election, and coordinates while it is elected."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress

from kafka_coord.coordinator.assignors import Assignor, load_assignors
from kafka_coord.coordinator.coordinator import ConsumerCoordinator
from kafka_coord.coordinator.handler import RebalanceRequestHandler
from kafka_coord.coordinator.listeners import SessionExpirationListener
from kafka_coord.coordinator.options import CoordinatorOptions
from kafka_coord.errors import Fenced, KafkaCoordError, StoreError, StoreUnavailable
from kafka_coord.zk import layout
from kafka_coord.zk.election import COMPLAIN_AGAIN_S, Leadership, ZkElection
from kafka_coord.zk.store import SessionState, Store

log = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0
HANDLER_WAIT_S = 0.5


class CoordinatorService:
    """Stands for election, coordinates, and hands over. ``start`` and ``stop`` begin and end it; ``step`` is one
    turn.

    It has two threads: its own (session, election, listeners) and, while elected, the handler's. Both run code that is
    written against :class:`Store` and advances in steps, so a simulation drives the same code without threads.
    """

    def __init__(
        self,
        store: Store,
        broker_id: int,
        endpoints: Mapping[str, str] | None = None,
        options: CoordinatorOptions | None = None,
        assignors: Mapping[str, Assignor] | None = None,
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._options = options or CoordinatorOptions()
        self._assignors = assignors if assignors is not None else load_assignors()
        self._awake = threading.Event()
        self._stopping = threading.Event()
        self._registered = threading.Event()
        self._finished = threading.Event()
        self._failure: KafkaCoordError | None = None
        self._election = ZkElection(store, broker_id, endpoints or {}, self._awake.set)
        self._sessions = SessionExpirationListener(self._awake.set)
        self._unsubscribe = store.on_session(self._sessions.on_session)
        self._stand_again_at = 0.0
        self._status = ""
        self._trouble = ""
        self._complain_again_at = 0.0
        self._thread: threading.Thread | None = None
        self._handler_thread: threading.Thread | None = None
        self.coordinator: ConsumerCoordinator | None = None

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the service's thread. :meth:`wait_registered` tells whether the instance is registered."""
        self._thread = threading.Thread(target=self._run, name="coordinator-service", daemon=True)
        self._thread.start()

    def wait_registered(self, timeout_s: float) -> bool:
        """Waits until this instance is listed under ``/consumers/coordinators``.

        Raises :class:`SettingsError` if another live instance has this broker id.
        """
        deadline = self._store.clock.monotonic() + timeout_s
        while not self._registered.wait(0.05):
            if self._failure is not None:
                raise self._failure
            if self._store.clock.monotonic() >= deadline:
                return False
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the service ends. Raises the reason if it failed."""
        ended = self._finished.wait(timeout_s)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self, timeout_s: float = 10.0) -> None:
        """Resigns at once, so that another instance is elected without waiting for a session to expire. The store stays
        open: its owner closes it. Safe to call twice."""
        self._stopping.set()
        self._awake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    @property
    def leads(self) -> bool:
        """Whether this instance is elected and may decide now."""
        return self.coordinator is not None and self.elected

    @property
    def leadership(self) -> Leadership | None:
        """The present leadership, even while this instance is not ready to decide or cannot confirm its session."""
        coordinator = self.coordinator
        return coordinator.leadership if coordinator is not None else self._election.leadership

    @property
    def elected(self) -> bool:
        """Whether this instance is certainly elected now, ready to decide or not."""
        return self._election.still_leads()

    @property
    def obstacle(self) -> str:
        """Why no instance can be elected, or why this one cannot coordinate, with a remedy if there is one; empty if
        there is no obstacle. For any thread."""
        return self._election.obstacle() or self._trouble

    def handler_age_s(self) -> float | None:
        """Seconds since the handler completed a step; ``None`` while this instance has no handler. An idle handler
        completes one every :data:`HANDLER_WAIT_S`. For any thread."""
        coordinator = self.coordinator
        return coordinator.handler.age_s() if coordinator is not None else None

    # --- one turn --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One turn: handles session changes, registers, stands for election, runs listeners, carries out a request to
        resign. Raises :class:`StoreError` if ZooKeeper did not answer: call it again."""
        if self._sessions.expired:
            self._sessions.expired = False
            self._step_down("its ZooKeeper session ended")
        elif self.coordinator is not None and self.coordinator.handler.deposed:
            self._step_down(f"another instance was elected, or somebody wrote {layout.COORDINATOR_EPOCH}")
        if self._store.session.state is not SessionState.CONNECTED:
            self._say(f"waiting for ZooKeeper. I am {self._broker_id}, not connected: I decide nothing")
            return
        self._register()
        self._election.step()
        if self.coordinator is not None and not self._election.still_leads():
            if self._election.is_mine():
                self._say(f"waiting. I am {self._broker_id}, elected, but cannot confirm my session: I decide nothing")
            else:
                self._step_down(self._election.why_lost())
        elif self.coordinator is not None:
            self.coordinator.step()
            self._obey_resignation()
            self._say_status()
        elif self._store.clock.monotonic() >= self._stand_again_at:
            self._stand()

    def turn(self) -> float:
        """Runs :meth:`step` and handles its errors. Returns the seconds to wait unless something wakes it earlier."""
        self._awake.clear()
        try:
            self.step()
        except Fenced as error:
            self._step_down(str(error))
        except StoreUnavailable as error:
            self._say(f"waiting for ZooKeeper. I am {self._broker_id}: {error}")
            return self._options.retry_backoff_ms / 1000
        except StoreError as error:
            self._complain(f"cannot go on. I am {self._broker_id}: {error}")
        except KafkaCoordError:
            raise
        except Exception as error:  # noqa: BLE001  if this ended the instance, the next one would meet the same trouble
            self._complain(f"cannot coordinate. I am {self._broker_id}: {error!r} (a defect)", error)
            with suppress(StoreError):
                self._resign("a defect")
        else:
            if self._store.clock.monotonic() >= self._stand_again_at:
                self._trouble = ""
        return IDLE_WAIT_S

    def is_awake(self) -> bool:
        """Whether something happened since :meth:`turn` began."""
        return self._awake.is_set()

    def _register(self) -> None:
        if not self._registered.is_set() or not self._election.is_registered():
            for path in layout.PERSISTENT_ROOTS:
                self._store.ensure_path(path)
            self._election.register_instance()
            self._registered.set()

    def _stand(self) -> None:
        leadership = self._election.elect()
        if leadership is None:
            self._say_who_leads()
            return
        log.info("elected as coordinator broker_id=%d epoch=%d", self._broker_id, leadership.epoch)
        coordinator = ConsumerCoordinator(
            self._store, leadership, self._election.still_leads, self._awake.set, self._assignors, self._options
        )
        try:
            coordinator.coordinator_startup()
        except Exception:
            coordinator.close()
            self._election.resign()
            raise
        self.coordinator = coordinator
        if self._thread is not None:
            self._start_handler(coordinator.handler)

    def _step_down(self, why: str) -> None:
        """Clears all state. The next turn stands for election again."""
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is None:
            return
        log.warning("stepped down broker_id=%d epoch=%d: %s", self._broker_id, coordinator.leadership.epoch, why)
        coordinator.close()
        self._join_handler()
        self._election.forget()

    def _obey_resignation(self) -> None:
        coordinator = self.coordinator
        request = coordinator.requests.resignation() if coordinator else None
        if coordinator is None or request is None:
            return
        message = f"coordinator {self._broker_id} resigned from epoch {coordinator.leadership.epoch}"
        if coordinator.answer(request, "done", message):
            self._resign("an operator asked for it")

    def _resign(self, why: str) -> None:
        coordinator = self.coordinator
        self._step_down(why)
        self._stand_again_at = self._store.clock.monotonic() + self._options.resign_pause_ms / 1000
        self._election.resign(coordinator.leadership if coordinator is not None else None)

    # --- its status ------------------------------------------------------------------------------------------------

    def _say_who_leads(self) -> None:
        if self.obstacle:
            self._say(f"waiting. I am {self._broker_id}, nobody coordinates: {self.obstacle}")
            return
        leader = self._election.leader()
        known = f"{leader.broker_id} coordinates, epoch {leader.epoch}" if leader else "nobody coordinates yet"
        self._say(f"no action. I am {self._broker_id}, {known}")

    def _say_status(self) -> None:
        coordinator = self.coordinator
        if coordinator is not None:
            self._say(
                f"no action. I am {self._broker_id}, the coordinator, epoch {coordinator.leadership.epoch}:"
                f" {len(coordinator.groups)} groups, {len(coordinator.catalog.names())} topics"
            )

    def _complain(self, trouble: str, defect: Exception | None = None) -> None:
        """Logs a problem when it is new, and every :data:`COMPLAIN_AGAIN_S` while it lasts."""
        now = self._store.clock.monotonic()
        if trouble != self._trouble or now >= self._complain_again_at:
            log.error("%s", trouble, exc_info=defect)
            self._complain_again_at = now + COMPLAIN_AGAIN_S
        self._trouble = trouble

    def _say(self, status: str) -> None:
        """Logs this instance's status whenever it changes."""
        if status != self._status:
            self._status = status
            log.info("%s", status)

    # --- threads ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._awake.wait(self.turn())
        except KafkaCoordError as error:
            self._failure = error
        except Exception as error:
            log.exception("coordinator service ended broker_id=%d", self._broker_id)
            self._failure = KafkaCoordError(f"the coordinator service ended: {error!r} (a defect; see the log)")
        finally:
            self._end()

    def _end(self) -> None:
        self._unsubscribe()
        try:
            self._resign("the service stops")
            self._election.unregister_instance()
        except StoreError as error:
            log.warning("could not resign; the end of the session will release the leadership: %s", error)
        finally:
            self._election.close()
            self._finished.set()

    def _start_handler(self, handler: RebalanceRequestHandler) -> None:
        self._handler_thread = threading.Thread(
            target=self._handle, args=(handler,), name="rebalance-request-handler", daemon=True
        )
        self._handler_thread.start()

    def _handle(self, handler: RebalanceRequestHandler) -> None:
        """Runs the handler. If the handler fails, the service ends too, because an elected instance without a handler
        would keep all others from deciding."""
        try:
            while not (handler.closed or handler.deposed):
                if not handler.step(HANDLER_WAIT_S) and not self._election.still_leads():
                    self._stopping.wait(0.02)
        except Exception as error:
            log.exception("rebalance request handler ended broker_id=%d: resigning", self._broker_id)
            self._failure = KafkaCoordError(f"the rebalance request handler ended: {error!r} (a defect; see the log)")
            self._stopping.set()
        self._awake.set()

    def _join_handler(self) -> None:
        thread, self._handler_thread = self._handler_thread, None
        if thread is not None:
            thread.join(HANDLER_WAIT_S * 20)
