"""The ``AsyncConsumer`` class that users import: a consumer for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from dataclasses import fields
from types import TracebackType
from typing import Any, Never, Self, TypeVar

from kafka_coord.consumer.fetcher import DEFAULT_MAX_RECORDS
from kafka_coord.consumer.member import GroupMember, Offsets
from kafka_coord.consumer.other_clients import check_call
from kafka_coord.consumer.record import K, Record, V
from kafka_coord.consumer.settings import Callbacks, PartitionCallback, stream_count
from kafka_coord.errors import ConsumerClosed, ConsumerError, SettingsError
from kafka_coord.model import TopicPartition

Taken = TypeVar("Taken")

_LOOK_S = 0.1
"""The longest wait for records, in seconds, before the consumer checks whether it was stopped, was closed or has
failed."""
_RUN_S = 30.0
"""How long, in seconds, a callback that is a coroutine function may take."""


class _NotOpen(ConsumerError, AttributeError):
    pass


class AsyncConsumer(GroupMember[K, V]):
    """A :class:`~kafka_coord.Consumer` for asyncio, with the same arguments, rules and errors.

    ::

        async with AsyncConsumer(zookeeper="localhost:2181", group="delays", topics=["flights"]) as consumer:
            async for record in consumer:
                ...

    One thread fetches ahead while the event loop works on records; reading starts no other threads. Only one task at a
    time may read. Callbacks may be coroutine functions, which run on the event loop. Methods that send requests to
    brokers or ZooKeeper (``committed``, ``end_offsets``, ``lag``, and ``seek`` to a time or to ``"latest"``, for
    example) block, so call them through ``asyncio.to_thread``. All other methods return immediately.
    """

    def _constructed(self) -> None:
        if stream_count(self._settings.member.subscription) > 1:
            raise SettingsError("an AsyncConsumer supports only one stream, because its event loop runs in one thread")

    def __getattr__(self, name: str) -> Any:
        if "_fetcher" in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise _NotOpen("the consumer is not open; use async with AsyncConsumer(…) as consumer")

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        callbacks = {field.name: self._on_the_loop(getattr(self._told, field.name)) for field in fields(self._told)}
        self._told = Callbacks(**callbacks)
        self._news = asyncio.Event()
        self._wanted = threading.Event()
        self._failure: BaseException | None = None
        self._task: asyncio.Task[Any] | None = None
        self._reading = False
        with self._signals or nullcontext():
            opening = asyncio.ensure_future(asyncio.to_thread(self._open))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(
                    lambda done: done.exception() or self._begin_leaving(None, 0.0, lambda: False)
                )
                raise
        self._fetcher, name = self._fetchers.streams[0], f"kafka-coord-fetching-{self.consumer_id}"
        threading.Thread(target=self._fetch, name=name, daemon=True).start()
        return self

    def _on_the_loop(self, callback: PartitionCallback | None) -> PartitionCallback | None:
        if not inspect.iscoroutinefunction(callback):
            return callback

        def run(partitions: frozenset[TopicPartition]) -> None:
            running = asyncio.run_coroutine_threadsafe(callback(partitions), self._loop)
            try:
                running.result(_RUN_S)
            except TimeoutError:
                running.cancel()
                raise

        return run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._task is asyncio.current_task():
            self._mark_consumed()
        await self.close()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 1.0, **other: Never) -> Record[K, V] | None:
        """Like :meth:`kafka_coord.Consumer.poll`. Other tasks run at least once for every few hundred records."""
        check_call("poll", other)
        record = self._fetcher.next_of_run()
        return record or await self._read(lambda: self._fetcher.take_one(0.0), timeout_s)

    async def consume(
        self, max_records: int = DEFAULT_MAX_RECORDS, timeout_s: float = 1.0, **other: Never
    ) -> list[Record[K, V]]:
        """Like :meth:`kafka_coord.Consumer.consume`. Other tasks run before it returns, even if records are ready."""
        check_call("consume", other)
        return await self._read(lambda: self._fetcher.take_fetched(max_records), timeout_s)

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        """Yields records as they arrive, until the consumer is closed or stopped."""
        while not self._stopped:
            try:
                record = await self.poll()
            except ConsumerClosed:
                return
            while record is not None:
                yield record
                record = self._fetcher.next_of_run()

    async def _read(self, take: Callable[[], Taken], timeout_s: float) -> Taken:
        """Calls ``take`` until it returns records or the timeout has passed."""
        if self._reading:
            raise ConsumerError("another task is reading this consumer; read it from one task at a time")
        self._reading, self._task = True, asyncio.current_task()
        try:
            deadline = self._loop.time() + timeout_s
            await asyncio.sleep(0)
            while True:
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                self._news.clear()
                taken = take()
                if not self._fetcher.has_fetched:
                    self._wanted.set()
                remaining = deadline - self._loop.time()
                if taken or remaining <= 0 or self._stopped:
                    return taken
                await self._await_records(min(remaining, _LOOK_S))
        finally:
            self._reading = False

    async def _await_records(self, timeout_s: float) -> None:
        if self._fetcher.has_fetched:  # fetched records must not be handed out while the membership is uncertain
            await asyncio.sleep(timeout_s)
            return
        timer = self._loop.call_later(timeout_s, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()

    def _fetch(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._ended.done():
                return
            try:
                self._fetcher.fetch_ahead(until=self._ended.done)
            except Exception as error:  # noqa: BLE001 - the reading task raises it
                self._failure = error
            self._wake_reader()

    def _wake_reader(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    # --- positions ---------------------------------------------------------------------------------------------------

    def commit(self, offsets: Offsets | None = None, **other: Never) -> Awaitable[None]:
        """Like :meth:`kafka_coord.Consumer.commit`. The commit begins immediately. Await the result to know that the
        offsets are stored."""
        check_call("commit", other)
        return asyncio.wrap_future(self._commit(offsets), loop=self._loop)

    # --- leaving -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Like :meth:`kafka_coord.Consumer.stop`."""
        super().stop()
        if "_fetcher" in self.__dict__:
            self._wake_reader()

    async def close(self, *, leave: bool | None = None, timeout_s: float = 10.0) -> None:
        """Like :meth:`kafka_coord.Consumer.close`, with tasks instead of threads. Waits for the task that has records
        in hand, unless that task is the caller or has ended."""
        task = self._task if self._task is not asyncio.current_task() else None

        def in_hand() -> bool:
            return task is not None and not task.done() and self._fetchers.in_hand(self._fetchers.held_partitions())

        self._begin_leaving(leave, timeout_s, in_hand)
        self._wakeup.set()
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=timeout_s + 15.0)
        self._wanted.set()
        if self._signals is not None:
            self._signals.restore()
