"""A consumer of a coordinated group, written from docs/protocol.md alone: kazoo, the standard library, and no Kafka.

`fetch(topic, partition, offset)` is handed in: the records from that offset on as a list of (offset, value), -1 meaning
the oldest. Everything happens in the application's thread: by calling `poll` it says that it is done with the record
before, so it never has one in its hands while a command is obeyed.
"""

import json
import logging
import re
import threading
import time
from collections import deque

from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

LOG = logging.getLogger(__name__)
COMMAND = re.compile("(stop|start)-([0-9]+)")


class MembershipLost(Exception):
    """The consumer may use nothing of its assignment any more."""


class ThirdPartyConsumer:
    def __init__(self, hosts, group, topics, fetch, *, name, session_timeout=10.0):
        self._fetch, self._topics, self._timeout = fetch, topics, session_timeout
        base = f"/consumers/groups/{group}"
        self._ids, self._channel, self._offsets = f"{base}/ids/{name}", f"{base}/channel/{name}", f"{base}/offsets"
        self._event = threading.Event()
        self._on_event = lambda _: self._event.set()
        self._forget()
        self._zk = KazooClient(hosts, timeout=session_timeout)
        self._zk.add_listener(self._on_event)
        self._proven = time.monotonic()  # a connect request proves the session by itself
        self._zk.start()

    def poll(self, timeout=1.0):
        """The next (topic, partition, offset, value), or None after about `timeout` seconds without any."""
        self._finish_record_in_hand()
        deadline = time.monotonic() + timeout
        while True:
            try:
                if self._incarnation is None:
                    self._register()
                if self._event.is_set() or time.monotonic() > self._looked + min(3.0, self._timeout / 4):
                    self._look_for_commands()
                if time.monotonic() > self._committed + 1.0:
                    self._settle(self._consumed)
                if not self._queue:
                    self._fill_queue()
                if self._queue and time.monotonic() < self._proven + 0.9 * self._timeout:
                    self._in_hand = self._queue.popleft()
                    return self._in_hand
            except (MembershipLost, kz.SessionExpiredError) as reason:
                LOG.warning("lost the membership: %r", reason)
                self._forget()
                self._see_to_the_client()
            if time.monotonic() > deadline:
                return None
            self._event.wait(0 if self._queue else 0.02)

    def assignment(self):
        return set(self._positions)

    def close(self, finished=True):
        """Leave; `finished` says whether the application is done with its last record."""
        try:
            if finished:
                self._finish_record_in_hand()
            if self._incarnation is not None:
                self._settle(self._consumed, delete=self._ids)
        except (MembershipLost, kz.SessionExpiredError) as reason:
            LOG.warning("had no membership to leave: %r", reason)
        finally:
            self._zk.stop()
            self._zk.close()

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        self.close(finished=error is None)

    def _forget(self):
        self._incarnation = self._token = self._session = self._in_hand = None
        self._looked = self._committed = 0.0  # when: seconds of the monotonic clock
        self._answered = self._proven = 0.0  # from _proven on, the session lives for its timeout at least
        self._queue = deque()  # (topic, partition, offset, value), fetched and not handed out
        self._positions, self._consumed = {}, {}  # (topic, partition) -> where to fetch next; -> what to commit

    def _see_to_the_client(self):
        """An unexpected reply ends kazoo's thread for good (its issue 641); then every call fails at once."""
        if self._zk.client_state == KeeperState.CLOSED:
            self._zk.start_async()
        time.sleep(0.1)

    def _finish_record_in_hand(self):
        if self._in_hand:
            self._consumed[self._in_hand[:2]] = self._in_hand[2] + 1
            self._in_hand = None

    def _fill_queue(self):
        for of in list(self._positions):
            position = self._positions[of] = self._positions.pop(of)  # and so it is last in the order
            if batch := self._fetch(*of, position):
                self._positions[of] = batch[-1][0] + 1
                self._queue.extend((*of, offset, value) for offset, value in batch)
                return

    def _register(self):
        value = {"version": 1, "subscription": dict.fromkeys(self._topics, 1), "client": "third-party/1"}
        value["follows_root"] = True  # it does not look up brokers in ZooKeeper
        value |= {"session_timeout_ms": int(self._timeout * 1000), "timestamp": str(time.time_ns() // 1_000_000)}
        give_up = time.monotonic() + 1.2 * self._timeout + 1  # the name may be held by our own ghost
        while self._incarnation is None:
            for path in (self._ids.rpartition("/")[0], self._channel):
                self._ask(lambda path=path: self._zk.ensure_path_async(path))
            _, error, results = self._multi(
                ("set_data", self._channel, b""), ("create", self._ids, json.dumps(value).encode(), None, True)
            )
            found = self._ask(lambda: self._zk.exists_async(self._ids))
            if error is None:
                self._incarnation, self._token = results[0].mzxid, results[0].version
            elif found and found.ephemeralOwner == self._session:
                # A reply was lost, or the session lived longer than our clock could prove: start over.
                self._ask(lambda: self._zk.delete_async(self._ids))
            elif found and time.monotonic() > give_up:
                raise error
            elif found:
                time.sleep(0.2)
        self._event.set()

    def _look_for_commands(self):
        self._event.clear()
        self._looked = time.monotonic()
        self._ask(lambda: self._zk.sync_async(self._ids), through_leader=True)
        registered = self._ask(lambda: self._zk.exists_async(self._ids, self._on_event))
        if registered is None or registered.czxid != self._incarnation:
            raise MembershipLost(f"{self._ids} is gone, or another's")
        children = self._ask(lambda: self._zk.get_children_async(self._channel, self._on_event))
        if children is None:
            raise MembershipLost(f"{self._channel} was deleted, and the token is worthless")
        for child in sorted(filter(COMMAND.fullmatch, children), key=lambda child: int(COMMAND.fullmatch(child)[2])):
            path = f"{self._channel}/{child}"
            data = self._ask(lambda path=path: self._zk.get_async(path))
            if data is None:
                continue
            try:
                incarnation, kind, partitions = decode(child, data[0])
            except (ValueError, TypeError, LookupError, AttributeError):
                LOG.exception("cannot obey %s, and nothing that comes after it", path)
                return
            if incarnation > self._incarnation:
                raise MembershipLost(f"{path} is for a later incarnation, {incarnation}")
            if incarnation < self._incarnation:
                self._ask(lambda path=path: self._zk.delete_async(path))
            else:
                self._settle(self._stop(partitions) if kind == "stop" else self._start(partitions), delete=path)

    def _stop(self, partitions):
        for of in partitions:
            self._positions.pop(of, None)
        self._queue = deque(record for record in self._queue if record[:2] in self._positions)
        return {of: self._consumed[of] for of in partitions if of in self._consumed}

    def _start(self, partitions):
        for of, offset in partitions.items():
            self._positions.setdefault(of, offset)
        return {}  # starting at the oldest record requires no stored offset

    def _settle(self, offsets, delete=None):
        """Writes the offsets and deletes ``delete`` in one multi. Raises MembershipLost if no longer registered."""
        write = dict.fromkeys(offsets, "set_data")
        while offsets or delete:
            operations = [("check", self._ids, -1), ("check", self._channel, self._token)]
            operations += [
                (write[of], f"{self._offsets}/{of[0]}/{of[1]}", str(offset).encode()) for of, offset in offsets.items()
            ]
            fault, error, _ = self._multi(*operations, *([("delete", delete)] if delete else []))
            if error is None:
                break
            if fault < 2:
                raise MembershipLost(f"incarnation {self._incarnation} is not registered any more")
            if fault == len(operations):
                break  # an attempt with a lost reply acknowledged it: the partitions may belong to another member now
            of = list(offsets)[fault - 2]
            if write[of] == "set_data":
                write[of] = "create"  # the first offset of this partition
            else:
                offsets = {other: offset for other, offset in offsets.items() if other != of}  # its topic is gone
        self._consumed = {of: offset for of, offset in self._consumed.items() if of not in write}
        self._committed = time.monotonic()

    def _multi(self, *operations):
        """(None, None, results); or, if nothing was done, (index of the failed operation, its error, None)."""

        def send():
            transaction = self._zk.transaction()
            for method, *arguments in operations:
                getattr(transaction, method)(*arguments)
            return transaction.commit_async()

        results = self._ask(send, through_leader=True)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, (kz.RolledBackError, kz.RuntimeInconsistency)):
                return index, result, None
        return None, None, results

    def _ask(self, send, through_leader=False):
        """The reply to a request, repeated until one arrives; None for a znode that does not exist."""
        give_up = time.monotonic() + self._timeout
        while (sent := time.monotonic()) < give_up:
            try:
                answer = send().get(timeout=give_up - sent)
            except (kz.ConnectionLoss, self._zk.handler.timeout_exception):
                time.sleep(0.05)
                continue
            except kz.NoNodeError:
                answer = None
            session = (self._zk.client_id or (None,))[0]
            if session is None:
                continue  # disconnected again, so it is unknown which session answered
            if self._session not in (None, session):
                break
            self._session = session
            if through_leader and 0 < self._answered <= sent - self._timeout / 4:
                # a server that is in touch with the leader has passed it on
                self._proven, self._answered = self._answered, 0.0
            self._answered = self._answered or sent
            return answer
        raise MembershipLost("nobody answers, or in another session")


def decode(name, data):
    """A command's incarnation, "stop" or "start", and the start offset of each partition."""
    command, kind = json.loads(data), COMMAND.fullmatch(name)[1]
    if command["version"] != 1 or command["type"] != f"{kind}-fetcher":
        raise ValueError(f"version {command['version']!r}, type {command['type']!r}")
    named = [(topic, partition) for topic, partitions in command["partitions"].items() for partition in partitions]
    of = {(t, int(p)): command["partitions"][t][p]["offset"] if kind == "start" else None for t, p in named}
    return int(command["incarnation"]), kind, of
