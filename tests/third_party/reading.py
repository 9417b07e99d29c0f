"""Runs a third-party consumer: it reads real brokers, on a thread."""

from __future__ import annotations

from typing import Any

from tests.chaos.foreign import Fetcher
from tests.end_to_end.parties import SESSION_MS, Reader
from tests.third_party.consumer import ThirdPartyConsumer


class ThirdPartyReader(Reader):
    """Like the library's reader, and counted together with it."""

    def __init__(self, zookeeper: str, bootstrap: str, group: str, topic: str, name: str) -> None:
        super().__init__(zookeeper, group, topic, name)
        self._made_of: tuple[Any, ...] = (zookeeper, group, [topic])
        self._fetcher = Fetcher(bootstrap)

    def _run(self) -> None:
        try:
            with ThirdPartyConsumer(
                *self._made_of, self._fetcher, name=self.name, session_timeout=SESSION_MS / 1000
            ) as consumer:
                self.consumer = consumer
                while not self._stop.is_set():
                    record = consumer.poll(0.2)
                    if record is not None:
                        self.given.append(record[1:3])
        except BaseException as failure:  # noqa: BLE001  reported by stop(), on the test's thread
            self.failure = failure
        finally:
            self._fetcher.close()
