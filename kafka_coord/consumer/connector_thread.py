"""The thread that runs the connector of a consumer or of a Spark query."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from kafka_coord.channel.interface import MemberChannel, SessionHandle
from kafka_coord.consumer.connector import Connector
from kafka_coord.errors import ConsumerError, KafkaCoordError

log = logging.getLogger(__name__)


class ConnectorThread:
    """Steps the connector whenever it is due or ``wakeup`` is set, until the connector has left the group, failed
    permanently, or crashed. After a crash, nobody would carry out the member's commands, so the member leaves its
    group, and :meth:`check` raises the reason. After every step, the thread calls ``meanwhile`` with the current time;
    the result says when to call it next. However the thread ends, it calls ``at_end`` once.
    """

    def __init__(
        self,
        connector: Connector,
        store: SessionHandle,
        channel: MemberChannel,
        wakeup: threading.Event,
        *,
        consumer: str,
        at_end: Callable[[], None],
        meanwhile: Callable[[float], float] = lambda _now: float("inf"),
    ) -> None:
        self._connector = connector
        self._clock = store.clock
        self._channel = channel
        self._wakeup = wakeup
        self._consumer = consumer
        self._meanwhile = meanwhile
        self._at_end = at_end
        self._thread = threading.Thread(target=self._run, name=f"kafka-coord-{consumer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raises the error that ended the membership permanently, if any."""
        failure = self._connector.failure
        if failure is not None:
            raise failure.with_traceback(None)

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, in a callback of the connector."""
        return threading.current_thread() is self._thread

    def join(self, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` seconds for the thread to end. Does not wait if called on the thread itself."""
        self._wakeup.set()
        if not self.is_current:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        crash: KafkaCoordError | None = None
        try:
            while True:
                self._wakeup.clear()
                due = self._connector.step()
                if due is None:
                    break
                due = min(due, self._meanwhile(self._clock.monotonic()))
                self._wakeup.wait(max(0.0, due - self._clock.monotonic()))
        except KafkaCoordError as error:
            crash = error
        except Exception as error:  # a bug; report it to the application, which would otherwise wait forever
            log.exception("crashed consumer=%s", self._consumer)
            crash = ConsumerError(f"the connector of consumer {self._consumer!r} crashed: {error!r}")
        finally:
            if crash is not None:
                self._leave_after_crash(crash)
            self._at_end()

    def _leave_after_crash(self, error: KafkaCoordError) -> None:
        registration = self._connector.registration
        self._connector.crashed(error)
        if registration is not None:
            with contextlib.suppress(KafkaCoordError):
                self._channel.leave(registration, {})
