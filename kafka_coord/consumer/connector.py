"""The consumer's side of the protocol (docs/protocol.md), as a state machine. One thread runs its steps.

The connector registers, carries out commands in order, commits, and registers again after it has lost its membership.
While it cannot know whether it still is a member, because ZooKeeper does not answer, the member waits: it keeps its
partitions, but hands out nothing (docs/adr/0044-a-consumer-waits.md).

The connector does not assign partitions, and never blocks. :meth:`Connector.step` does everything that can be done now
and returns when to call it again. Watches, session listeners and fetchers only set a flag and call ``wake``, so the
same code runs with a real ZooKeeper and in a simulation, where the caller sets the time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from kafka_coord.channel.operations import Holder, MemberChannel, Offsets, Registration, SessionHandle
from kafka_coord.consumer.command_loop import CommandLoop, ConsumerStats, Fetchers, tell
from kafka_coord.consumer.settings import PartitionCallback
from kafka_coord.errors import (
    ConsumerClosed,
    ConsumerError,
    ConsumerIdInUse,
    KafkaCoordError,
    MembershipLost,
    NoAuth,
    NotFound,
    StoreError,
    StoreUnavailable,
)
from kafka_coord.model import TopicPartition
from kafka_coord.zk.store import SessionState, WatchEvent

log = logging.getLogger(__name__)

_RETRY_S = 0.25
_NAME_RETRY_S = 0.5


@dataclass(slots=True)
class _CommitRequest:
    registration: Registration
    offsets: Offsets
    future: Future[None]


@dataclass(slots=True)
class _Closing:
    """A requested close. ``in_hand`` returns whether the application is still working on records and will call the
    consumer again."""

    deadline: float
    for_good: bool
    in_hand: Callable[[], bool]
    stopped: frozenset[TopicPartition] | None = None
    told: bool = False
    last_try: bool = False
    unanswered: bool = False
    """Whether an attempt to leave may have taken effect although the response was lost."""


class Connector:
    """Keeps one consumer registered and carries out its commands. ``registration_value`` returns the value to register
    with. ``auto_commit_interval_s=None`` turns automatic commits off.

    :meth:`step` calls ``on_start``, ``on_stop`` and ``on_lost``. If a callback raises an exception, the connector logs
    it and continues. Any thread may read the properties below and call :meth:`commit`, :meth:`register_again` and
    :meth:`close`. Only the stepping thread may call the other methods.
    """

    def __init__(
        self,
        store: SessionHandle,
        channel: MemberChannel,
        fetchers: Fetchers,
        *,
        registration_value: Callable[[], bytes],
        wake: Callable[[], None],
        auto_commit_interval_s: float | None = 1.0,
        on_start: PartitionCallback | None = None,
        on_stop: PartitionCallback | None = None,
        on_lost: PartitionCallback | None = None,
    ) -> None:
        self._store = store
        self._channel = channel
        self._fetchers = fetchers
        self._registration_value = registration_value
        self._wake = wake
        self._auto_commit_interval_s = auto_commit_interval_s
        self._on_stop = on_stop
        self._on_lost = on_lost
        self.counters = ConsumerStats()
        self._commands = CommandLoop(channel, fetchers, self.counters, wake, on_start, on_stop)
        self._registration: Registration | None = None
        self._value: bytes | None = None
        self._name_taken_since: float | None = None
        self._evicted = False
        self._registration_changed = False
        self._waiting_since: float | None = None
        self._commit_due = 0.0
        self._commit_requests: deque[_CommitRequest] = deque()
        self._closing: _Closing | None = None
        self._registering_again = False
        self._told_revoked: frozenset[TopicPartition] = frozenset()
        self._left_with: Offsets = {}
        self.done = False
        self.failure: KafkaCoordError | None = None
        self._unlisten = store.on_session(self._on_session)

    # --- state, for any thread to read -------------------------------------------------------------------------------

    @property
    def registration(self) -> Registration | None:
        """The consumer's registration, or ``None`` while it is not registered."""
        return self._registration

    def may_hand_out(self) -> bool:
        """Returns whether records may be handed out, that is, whether the registration certainly exists now."""
        return self.hands_out_until() > self._store.clock.monotonic()

    def hands_out_until(self) -> float:
        """Returns the (monotonic) time until which the registration certainly exists, even if no further response
        arrives, or 0.0 if it might not exist now. See :meth:`~kafka_coord.zk.store.Session.lease_deadline`.

        A lease that begins again counts only once the channel was listed. The coordinator evicts a consumer that does
        not answer a command within the rebalance timeout, so the last listing counts for no longer than that."""
        registration, listed_at = self._registration, self._commands.listed_at
        if registration is None or listed_at is None:
            return 0.0
        session = self._store.session
        until = session.lease_deadline()  # read first, so that a lease that begins again in between does not count
        if session.session_id != registration.session_id or session.lease_began() > listed_at:
            return 0.0
        return min(until, listed_at + self._channel.rebalance_timeout_s)

    @property
    def other_assignor(self) -> str:
        """The assignor that the group uses, as far as the coordinator has said that it is not the requested one."""
        return self._commands.other_assignor

    @property
    def waits(self) -> bool:
        """Whether the consumer hands out nothing, because it cannot know whether it still is a member."""
        return self._waiting_since is not None

    def commit(self, offsets: Offsets) -> Future[None]:
        """Commits on the connector's thread. The returned future fails with :class:`MembershipLost` or
        :class:`NotFound`."""
        future: Future[None] = Future()
        registration = self._registration
        if registration is None:
            self._refuse(future, offsets)
            return future
        self._commit_requests.append(_CommitRequest(registration, offsets, future))
        if self.done:  # the connector has just ended
            self._refuse_commits()
        self._wake()
        return future

    def commit_now(self, offsets: Offsets) -> None:
        """Like :meth:`commit`, but for callbacks, which already run on the connector's thread."""
        registration = self._registration
        if registration is None:
            raise self._lost_error()
        self._write(registration, offsets)

    def register_again(self) -> None:
        """Makes the member register again. Call this after ``registration_value`` has changed."""
        self._registering_again = True
        self._wake()

    def close(self, timeout_s: float, *, for_good: bool = False, in_hand: Callable[[], bool] | None = None) -> None:
        """Makes the member leave its group (docs/protocol.md, section 7). Once it has left, :attr:`done` is true.

        The connector stops returning records, and waits up to ``timeout_s`` for the application to finish its records
        in hand. Then one multi stores the consumed offset of each held partition, deletes the registration, and with
        ``for_good`` gives up the member's place. The next owner delivers any records that are still in hand again.

        ``in_hand`` returns whether the application is still working on records and will call the consumer again. By
        default, all records in hand count.
        """
        if self._closing is None:
            deadline = self._store.clock.monotonic() + timeout_s
            self._closing = _Closing(deadline, for_good, in_hand or self._anything_in_hand)
            self._wake()

    def _anything_in_hand(self) -> bool:
        return self._fetchers.in_hand(self._fetchers.held_partitions())

    def crashed(self, error: KafkaCoordError) -> None:
        """Fails the pending commits after the stepping thread has crashed, because their futures would otherwise never
        complete."""
        self.failure = error
        self.done = True
        self._registration = None
        self._refuse_commits()

    # --- the step ----------------------------------------------------------------------------------------------------

    def step(self) -> float | None:
        """Does everything that can be done now. Returns the latest (monotonic) time for the next step, or ``None`` once
        the connector is done."""
        if self.done:
            return None
        now = self._store.clock.monotonic()
        try:
            return self._step(now)
        except MembershipLost as error:
            self._lose(str(error))
            return now
        except StoreUnavailable as error:
            log.debug("got no response from ZooKeeper consumer=%s: %s", self._channel.consumer, error)
            self._name_taken_since = None
            return now + _RETRY_S
        except NoAuth as error:
            self._fail(error)
            return None
        except StoreError as error:
            log.warning("ZooKeeper refused a request consumer=%s: %s; trying again", self._channel.consumer, error)
            return now + _RETRY_S

    def _step(self, now: float) -> float | None:
        registration = self._registration
        if registration is not None:
            why = self._why_lost(registration)
            if why:
                self._evicted = self._channel.was_evicted(registration)
                self._lose(why)
                registration = None
            elif self._is_unsure(now):
                self._wait(registration, now)
        if self._closing is not None:
            return self._leave(self._closing, now)
        if registration is None:
            return self._join(now)
        if self._store.session.state is not SessionState.CONNECTED:
            until = self.hands_out_until()
            return until if until > now else now + _RETRY_S
        if self._registration_changed and not self._still_registered(registration):
            self._evicted = self._store.session.session_id == registration.session_id
            self._lose("its registration was deleted, because the coordinator or an operator evicted it")
            return now
        if self._waiting_since is not None and not self._goes_on(registration, self._waiting_since):
            return now + _RETRY_S
        self._carry_out_commits()
        due = self._commands.step(registration, now)
        due = min(due, self._commands.unresolved.step(registration, now))
        if self._registering_again and not self._commands.busy:
            if self._gave_up(registration):
                return now
            due = min(due, now + _RETRY_S)  # guards against a lost wake-up from the fetchers
        return min(due, self._auto_commit(registration, now), max(now, self.hands_out_until()))

    # --- while ZooKeeper does not answer -----------------------------------------------------------------------------

    def _is_unsure(self, now: float) -> bool:
        """Returns whether nothing may be handed out. A consumer that has just registered need not wait until it has
        listed its channel."""
        has_listed = self._commands.listed_at is not None
        return (self.hands_out_until() if has_listed else self._store.session.lease_deadline()) <= now

    def _wait(self, registration: Registration, now: float) -> None:
        if self._waiting_since is not None:
            return
        self._waiting_since = now
        self._registration_changed = True
        if self._store.session.lease_deadline() <= now:
            why = "ZooKeeper has not responded for so long that the session may have ended"
        else:
            why = "its channel could not be listed within the rebalance timeout, so it may have been evicted"
        self.counters.waits += 1
        log.warning(
            "waiting consumer=%s incarnation=%d partitions=%d reason=%r: keeps its partitions, but returns no records",
            registration.consumer,
            registration.incarnation,
            len(list(self._fetchers.held_partitions())),
            why,
            extra={"event": "consumer_waits", "group": registration.group},
        )

    def _goes_on(self, registration: Registration, since: float) -> bool:
        """Goes on where the consumer was, if it still is a member. Lists the channel first, so that the application is
        not handed records of partitions that it has to give up."""
        if not self._channel.is_still_its_own(registration):
            self._lose("its registration or its channel was deleted or replaced while it waited")
            return False
        self._commands.list_commands(self._store.clock.monotonic())
        now = self._store.clock.monotonic()
        if self.hands_out_until() <= now:
            return False
        self._waiting_since = None
        self._commit_due = now
        log.info(
            "goes on consumer=%s incarnation=%d waited_s=%.1f",
            registration.consumer,
            registration.incarnation,
            now - since,
            extra={"event": "consumer_goes_on", "group": registration.group},
        )
        return True

    # --- registration ------------------------------------------------------------------------------------------------

    def _join(self, now: float) -> float:
        self._refuse_commits()
        if self._store.session.state is not SessionState.CONNECTED:
            return now + 1.0
        if self._evicted and self._fetchers.orphans_in_hand():
            # The application was too slow, so the coordinator evicted the consumer. As in Kafka after
            # max.poll.interval.ms, the consumer registers again once the application polls.
            return now + 1.0
        if self._value is None:
            self._registering_again = False
            self._value = self._registration_value()
        outcome = self._channel.register(self._value)
        if isinstance(outcome, Holder):
            return self._wait_for_name(outcome, now)
        self._registration = outcome
        self._value = None
        self._evicted = False
        self._name_taken_since = None
        self.counters.registrations += 1
        self._registration_changed = True  # sets the watch
        self._commands.look_again()
        self._commit_due = now + (self._auto_commit_interval_s or 0.0)
        log.info(
            "registered consumer=%s group=%s incarnation=%d",
            outcome.consumer,
            outcome.group,
            outcome.incarnation,
            extra={"event": "consumer_registered"},
        )
        return now

    def _gave_up(self, registration: Registration) -> bool:
        """Once the application has finished its records in hand, releases all partitions and then the registration, so
        that the next step registers again. Returns false while the application is still working on them."""
        held = frozenset(self._fetchers.held_partitions())
        self._fetchers.stop(held)
        if self._fetchers.in_hand(held):
            return False
        unaware, self._told_revoked = held - self._told_revoked, held
        if unaware:
            tell(self._on_stop, unaware, "on_stop")
        self._carry_out_commits()
        self._commands.unresolved.keep_ends(registration)
        self._channel.commit(registration, self._fetchers.uncommitted())
        self._fetchers.release(held)
        self._channel.abandon(registration)
        self._commands.reset()
        self._registration = None
        self._told_revoked = frozenset()
        return True

    def _wait_for_name(self, holder: Holder, now: float) -> float:
        """Keeps trying to get the name, because its holder may be an earlier process of this consumer. Fails once that
        process's session would have expired. Returns the time of the next attempt."""
        since = self._name_taken_since
        if since is None:
            since = self._name_taken_since = now
            log.warning(
                "waiting for another session to release the name consumer=%s incarnation=%d",
                self._channel.consumer,
                holder.incarnation,
            )
        timeout_ms = (holder.member.session_timeout_ms if holder.member else None) or self._store.session.timeout_ms
        until = since + 1.0 + max(timeout_ms, self._store.session.timeout_ms) * 1.2 / 1000
        if now >= until:
            member = holder.member
            who = f"a consumer on host {member.host or 'unknown'} ({member.client})" if member else "another consumer"
            self._fail(
                ConsumerIdInUse(
                    f"consumer id {self._channel.consumer!r} of group {self._channel.group!r} is held by {who},"
                    f" which registered first; give each consumer its own consumer_id, or leave it out"
                )
            )
            return now
        return min(now + _NAME_RETRY_S, until)

    def _still_registered(self, registration: Registration) -> bool:
        self._registration_changed = False
        try:
            return self._channel.is_registered(registration, self._on_registration_event)
        except BaseException:
            self._registration_changed = True
            raise

    def _why_lost(self, registration: Registration) -> str:
        session = self._store.session
        if session.session_id != registration.session_id:
            return "its ZooKeeper session ended"
        if session.state in {SessionState.LOST, SessionState.CLOSED}:
            return f"its ZooKeeper session is {session.state.value}"
        return ""

    def _lose(self, why: str) -> None:
        """Handles a lost membership: releases all partitions, clears the queues and starts over."""
        registration, self._registration = self._registration, None
        self._waiting_since = None
        if registration is None:
            return
        lost = frozenset(self._fetchers.abandon())
        self._channel.abandon(registration)
        self._commands.reset()
        if self._closing is not None and self._closing.unanswered:
            log.info(
                "left the group, although the response was lost consumer=%s group=%s",
                registration.consumer,
                registration.group,
            )
            return
        self.counters.losses += 1
        self.counters.last_loss = why
        self._refuse_commits()
        log.warning(
            "lost its membership consumer=%s incarnation=%d partitions=%d reason=%r",
            registration.consumer,
            registration.incarnation,
            len(lost),
            why,
            extra={"event": "consumer_lost_membership", "group": registration.group},
        )
        tell(self._on_lost, lost, "on_lost")

    def _fail(self, error: KafkaCoordError) -> None:
        """Gives up. The application's next call raises ``error``."""
        log.error("gave up consumer=%s: %s", self._channel.consumer, error, extra={"event": "consumer_gave_up"})
        self._lose(str(error))
        self._finish(error)

    def _finish(self, error: KafkaCoordError | None = None) -> None:
        self.failure = error
        self.done = True
        self._unlisten()
        self._channel.unwatch()
        self._refuse_commits()

    # --- commits -----------------------------------------------------------------------------------------------------

    def _carry_out_commits(self) -> None:
        while self._commit_requests:
            request = self._commit_requests[0]
            if request.future.cancelled():
                self._commit_requests.popleft()
                continue
            try:
                if request.registration is not self._registration:
                    raise self._lost_error()
                self._write(request.registration, request.offsets)
            except StoreUnavailable:
                raise  # the outcome is unknown, so the request stays first in the queue
            except MembershipLost as error:
                self._commit_requests.popleft()
                _fail_future(request.future, error)
                raise
            except KafkaCoordError as error:
                self._commit_requests.popleft()
                _fail_future(request.future, error)
            else:
                self._commit_requests.popleft()
                _complete(request.future)

    def _write(self, registration: Registration, offsets: Offsets) -> None:
        admitted = self._fetchers.admissible(offsets)
        if not admitted:
            return
        missing = self._channel.commit(registration, admitted)
        self._fetchers.stored(admitted)
        self.counters.commits += 1
        if missing:
            raise NotFound(
                f"offsets of {', '.join(sorted(missing))} were removed from ZooKeeper; was the topic deleted?"
            )

    def _auto_commit(self, registration: Registration, now: float) -> float:
        if self._auto_commit_interval_s is None:
            return float("inf")
        if now >= self._commit_due:
            self._commit_due = now + self._auto_commit_interval_s
            stored = self._channel.auto_commit(registration, self._fetchers.uncommitted())
            if stored:
                self._fetchers.stored(stored)
                self.counters.commits += 1
        return self._commit_due

    def _refuse_commits(self) -> None:
        with contextlib.suppress(IndexError):  # the queue is empty
            while True:
                request = self._commit_requests.popleft()
                self._refuse(request.future, request.offsets)

    def _refuse(self, future: Future[None], offsets: Offsets) -> None:
        """Fails a commit that cannot be carried out any more because the consumer is not a member. If the consumer has
        left and stored these offsets on leaving, the commit succeeds."""
        if self.done and offsets and offsets.items() <= self._left_with.items():
            _complete(future)
        else:
            _fail_future(future, self._lost_error())

    def _lost_error(self) -> KafkaCoordError:
        if self.failure is not None:
            return self.failure
        if self.done:
            return ConsumerClosed(f"consumer {self._channel.consumer!r} is closed")
        return MembershipLost(
            f"consumer {self._channel.consumer!r} lost its membership in group {self._channel.group!r}"
            f" ({self.counters.last_loss or 'it is not registered yet'}): other members may own its partitions now,"
            " and uncommitted records will be read again"
        )

    # --- leaving -----------------------------------------------------------------------------------------------------

    def _leave(self, closing: _Closing, now: float) -> float | None:
        registration = self._registration
        if registration is None:
            self._finish()
            return None
        connected = self._store.session.state is SessionState.CONNECTED
        late = now >= closing.deadline
        if late and (closing.last_try or not connected):
            log.warning("could not leave cleanly consumer=%s: ZooKeeper did not respond", self._channel.consumer)
            self._end_membership()
            return None
        if not connected:
            return min(closing.deadline, now + _RETRY_S)
        closing.last_try = late
        self._carry_out_commits()
        if closing.stopped is None:
            closing.stopped = frozenset(self._fetchers.held_partitions())
            self._fetchers.stop(closing.stopped)
        if not late and closing.in_hand():
            return min(closing.deadline, now + _RETRY_S)  # guards against a lost wake-up from the fetchers
        if not closing.told:
            closing.told = True
            tell(self._on_stop, closing.stopped, "on_stop")
        self._write_leave(registration, closing)
        return None

    def _write_leave(self, registration: Registration, closing: _Closing) -> None:
        """Makes one attempt to leave, storing the offsets consumed so far."""
        self._commands.unresolved.keep_ends(registration)
        offsets = dict(self._fetchers.uncommitted())
        try:
            self._channel.leave(registration, offsets, for_good=closing.for_good)
        except StoreUnavailable:
            closing.unanswered = True
            raise
        self._left_with = offsets
        log.info(
            "left consumer=%s group=%s offsets=%d",
            *(registration.consumer, registration.group, len(offsets)),
            extra={"event": "consumer_left"},
        )
        self._end_membership()

    def _end_membership(self) -> None:
        self._fetchers.abandon()
        self._registration = None
        self._finish()

    # --- events, which only set flags and wake the connector ---------------------------------------------------------

    def _on_session(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED:
            # A new ZooKeeper leader restarts the timeout of every session, even a dead owner's, so start waiting for
            # the name again.
            self._name_taken_since = None
        self._registration_changed = True
        self._commands.look_again()
        self._wake()

    def _on_registration_event(self, _event: WatchEvent) -> None:
        self._registration_changed = True
        self._wake()


def _complete(future: Future[None]) -> None:
    if future.set_running_or_notify_cancel():
        future.set_result(None)


def _fail_future(future: Future[None], error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


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
