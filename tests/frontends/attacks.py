"""``python -m tests.frontends.attacks``: thousands of normal consumers register, then one attack follows another.

The program measures how long a bystander waits for pings and answers during each attack.

The instance, the normal consumers, the attackers and the bystander are separate processes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_coord.channel.frames import AnsweredRequest, Asked, Decoder, Event, RefusedRequest, Rpc, encode
from kafka_coord.dev.cluster.coordinator import serve_beside
from kafka_coord.dev.cluster.ports import free_port
from kafka_coord.dev.cluster.process import ChildProcess
from kafka_coord.dev.cluster.zookeeper import ZooKeeperServer, ZooKeeperSettings
from kafka_coord.errors import NoNode
from kafka_coord.model import CoordinatorInfo
from kafka_coord.model import json_fields as fields
from kafka_coord.zk import connect, layout
from kafka_coord.zk.store import Store
from tests.waiting import eventually

TOPICS_OF_10_KB = {f"topic-{'x' * 20}-{number:04}": 1 for number in range(280)}
BYSTANDER_SESSION_MS, HONEST_SESSION_MS = 1_500, 60_000
PARTITIONS_ASKED = 60_000
HANDSHAKES = 3_000


@dataclass(frozen=True, slots=True)
class Waited:
    """The bystander's longest waits in seconds: for a ping that is overdue, and for the answer to a request."""

    ping_s: float
    answer_s: float
    lost: int = 0

    def __str__(self) -> str:
        return f"pings {self.ping_s:.2f} s late, answers after {self.answer_s:.2f} s, {self.lost} connections lost"

    @property
    def worst_s(self) -> float:
        return max(self.ping_s, self.answer_s)


class Speaker:
    """One connection that sends and receives frames in the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._conversation, self._decoder = Rpc(), Decoder()
        self._events: list[Event] = []

    @classmethod
    async def open(cls, address: str, tls: ssl.SSLContext | None = None) -> Speaker:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=tls))

    async def say(self, request: str, **fields: Any) -> int:
        number, frame = self._conversation.ask(request, fields)
        self._writer.write(encode(frame))
        await self._writer.drain()
        return number

    async def next(self) -> Event:
        while not self._events:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionError("closed")
            self._events = [self._conversation.take(frame) for frame in self._decoder.feed(data)]
        return self._events.pop(0)

    async def ask(self, request: str, **fields: Any) -> AnsweredRequest | RefusedRequest:
        number = await self.say(request, **fields)
        while True:
            event = await self.next()
            if isinstance(event, Asked):
                self.answer(event)
            elif event.id in (number, 0):
                return event

    def answer(self, asked: Asked) -> None:
        self._writer.write(encode(self._conversation.answer(asked.id, {"offsets": {}})))

    async def register(self, group: str, name: str, session_ms: int, topics: dict[str, int]) -> None:
        """Registers. After a refusal, waits for as long as the instance says, and tries again."""
        while True:
            answer = await self.ask(
                "register", group=group, consumer_id=name, subscription=topics, session_timeout_ms=session_ms
            )
            if isinstance(answer, AnsweredRequest):
                return
            if answer.code not in ("slow-down", "unavailable"):
                raise ConnectionError(f"{answer.code}: {answer.message}")
            await asyncio.sleep(answer.frame.get("retry_ms", 500) / 1000)

    def close(self) -> None:
        self._writer.close()


# --- the bystander ---------------------------------------------------------------------------------------------------


async def stand_by(address: str, seconds: float, tls: ssl.SSLContext | None = None) -> Waited:
    """Registers, then measures its waits for ``seconds``."""
    lost = 0
    while True:
        try:
            one = await Speaker.open(address, tls)
            await one.register("bystander", "b1", BYSTANDER_SESSION_MS, {"flights": 1})
            break
        except (OSError, ConnectionError):
            lost += 1
            await asyncio.sleep(0.2)
    interval_s, until = BYSTANDER_SESSION_MS / 3000, time.monotonic() + seconds
    pinged, asked_at, asked, ping_s, answer_s = time.monotonic(), 0.0, 0, 0.0, 0.0
    while (now := time.monotonic()) < until:
        if not asked:
            asked, asked_at = await one.say("cluster-metadata"), now
        event = await one.next()
        now = time.monotonic()
        if isinstance(event, Asked):
            if event.type == "ping":
                ping_s, pinged = max(ping_s, now - pinged - interval_s), now
            one.answer(event)
        elif event.id == asked:
            answer_s, asked = max(answer_s, now - asked_at), 0
            await asyncio.sleep(0.02)
        else:
            lost += 1
            break
    late_s = max(ping_s, now - pinged - interval_s)
    if not lost:
        await one.ask("leave", offsets={}, for_good=True)
    one.close()
    return Waited(late_s, answer_s, lost)


# --- the others ------------------------------------------------------------------------------------------------------


async def honest(address: str, first: int, count: int, report: Callable[[int], None]) -> None:
    """Registers ``count`` members with subscriptions of 10 kB, then answers their pings until it is stopped."""
    registered = 0

    async def live(number: int) -> None:
        nonlocal registered
        while True:
            with suppress(OSError, ConnectionError):
                one = await Speaker.open(address)
                await one.register(f"g{number % 50:02}", f"c{number:05}", HONEST_SESSION_MS, TOPICS_OF_10_KB)
                registered += 1
                report(registered)
                while True:
                    event = await one.next()
                    if isinstance(event, Asked):
                        one.answer(event)
            await asyncio.sleep(0.5)

    await asyncio.gather(*(live(number) for number in range(first, first + count)))


async def _again(what: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        with suppress(OSError, ConnectionError, asyncio.IncompleteReadError):
            await what()
        await asyncio.sleep(0.01)


async def _many(count: int, what: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    async def one(number: int) -> None:
        await _again(lambda: what(number))

    await asyncio.gather(*(one(number) for number in range(count)))


async def shake_hands(address: str, count: int) -> None:
    """Begins TLS handshakes and never completes them."""
    host, _, port = address.rpartition(":")

    async def one(_number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x02")
        await reader.read()

    await _many(count, one)


async def drip(address: str, count: int) -> None:
    """Sends frames one byte at a time."""
    host, _, port = address.rpartition(":")

    async def one(_number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\0\0\xff\xff")
        with suppress(TimeoutError):
            while not reader.at_eof():
                writer.write(b"{")
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await reader.read(1)

    await _many(count, one)


async def send_large(address: str, count: int) -> None:
    """Sends frames of almost a mebibyte, as fast as the instance accepts them."""
    junk = {f"field{number}": list(range(50)) for number in range(4_000)}

    async def one(number: int) -> None:
        speaker = await Speaker.open(address)
        while True:
            await speaker.ask("register", group="no/slash", consumer_id=f"l{number}", subscription={}, **junk)

    await _many(count, one)


async def ask_committed(address: str, count: int) -> None:
    """Registers members that continuously ask for the offsets of tens of thousands of partitions."""
    wanted = {"flights": {str(number): 0 for number in range(PARTITIONS_ASKED)}}

    async def one(number: int) -> None:
        speaker = await Speaker.open(address)
        await speaker.register("askers", f"a{number}", HONEST_SESSION_MS, {"flights": 1})
        while True:
            await speaker.ask("committed", offsets=wanted)

    await _many(count, one)


async def register_flood(address: str, count: int) -> None:
    """Sends registrations as fast as they are refused."""

    async def one(number: int) -> None:
        speaker = await Speaker.open(address)
        while True:
            answer = await speaker.ask(
                "register", group=f"flood{number % 10}", consumer_id=f"f{number}", session_timeout_ms=5_000,
                subscription=TOPICS_OF_10_KB,
            )  # fmt: skip
            if isinstance(answer, AnsweredRequest):
                return

    await _many(count, one)


ATTACKS: dict[str, tuple[Callable[[str, int], Coroutine[Any, Any, None]], int]] = {
    "nothing": (lambda _address, _count: asyncio.sleep(1e9), 0),
    "dripping": (drip, 3_000),
    "large frames": (send_large, 200),
    "committed": (ask_committed, 20),
    "registrations": (register_flood, 500),
}


def _run(what: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
    gc.freeze()  # the parent's clients must not be collected here: their threads do not exist in a fork
    with suppress(KeyboardInterrupt):
        asyncio.run(what(*args))


def _measure(address: str, seconds: float, authority: str | None, found: Any) -> None:
    gc.freeze()
    tls = ssl.create_default_context(cadata=authority) if authority is not None else None
    found.put(asyncio.run(stand_by(address, seconds, tls)))


class Instance:
    """A separate ``serve`` process on ``hosts``, elected."""

    def __init__(self, hosts: str, number: int, directory: Path, tls_pem: Path | None = None) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        security = ["--channel-cert-file", str(tls_pem)] if tls_pem is not None else []
        command = [
            *serve_beside(number, hosts),
            "--listen-channel",
            self.address,
            "--session-timeout-ms",
            "20000",
            *security,
        ]
        self.process = ChildProcess("serve", command, directory / f"serve-{number}.log")
        self.process.start()
        store = connect(hosts)
        try:
            eventually(lambda: self._elected(store, number), within_s=60)
        finally:
            store.close()

    @staticmethod
    def _elected(store: Store, number: int) -> bool:
        with suppress(NoNode):
            info = fields.load(store.get(layout.COORDINATOR).data, "coordinator")
            return CoordinatorInfo.from_json(info, "coordinator").broker_id == number
        return False

    def under(
        self, attack: Callable[[str, int], Coroutine[Any, Any, None]], count: int, seconds: float, authority: str | None
    ) -> Waited:
        """Runs the attack, and returns the bystander's longest waits during it."""
        context = multiprocessing.get_context("fork")
        found = context.Queue()
        bystander = context.Process(target=_measure, args=(self.address, seconds, authority, found))
        attacker = context.Process(target=_run, args=(attack, self.address, count))
        bystander.start()
        attacker.start()
        try:
            waited: Waited = found.get(timeout=seconds + 120)
        finally:
            attacker.kill()
            attacker.join()
            bystander.join(5)
        return waited


def play(
    instance: Instance, consumers: int, seconds: float, share: float, say: Callable[[str], None]
) -> dict[str, Waited]:
    """Registers the normal consumers, then attacks. ``share`` scales the usual number of attackers."""
    context = multiprocessing.get_context("fork")
    registered = context.Value("i", 0)

    def report(count: int) -> None:
        registered.value = count

    crowd = context.Process(target=_run, args=(honest, instance.address, 0, consumers, report))
    began = time.monotonic()
    crowd.start()
    try:
        eventually(lambda: registered.value >= consumers, within_s=600)
        say(f"{consumers} consumers with subscriptions of 10 kB registered in {time.monotonic() - began:.1f} s")
        found = {}
        for name, (attack, count) in ATTACKS.items():
            attackers = max(1, int(count * share))
            found[name] = instance.under(attack, attackers, seconds, None)
            say(f"{name} by {attackers}: {found[name]}")
        return found
    finally:
        crowd.kill()
        crowd.join()


def play_tls(instance: Instance, authority: str, count: int, seconds: float) -> Waited:
    """Measures a bystander's waits over TLS while ``count`` other clients begin handshakes and do not complete them."""
    return instance.under(shake_hands, count, seconds, authority)


def main(arguments: Sequence[str]) -> int:
    import trustme

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--share", type=float, default=1.0, help="The share of the usual number of attackers.")
    chosen = parser.parse_args(arguments)
    authority = trustme.CA()
    with tempfile.TemporaryDirectory() as made, _zookeeper(Path(made)) as zookeeper:
        directory = Path(made)
        pem = directory / "server.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
        plain = Instance(zookeeper.connect_string, 1, directory)
        found = play(plain, chosen.consumers, chosen.seconds, chosen.share, say)
        plain.process.stop()
        secure = Instance(zookeeper.connect_string, 2, directory, pem)
        count = int(HANDSHAKES * chosen.share)
        found["handshakes"] = play_tls(secure, authority.cert_pem.bytes().decode(), count, chosen.seconds)
        say(f"handshakes by {count}: {found['handshakes']}")
        secure.process.kill()
    return 0 if all(waited.worst_s < 1 for waited in found.values()) else 1


def _zookeeper(directory: Path) -> ZooKeeperServer:
    return ZooKeeperServer(directory / "zookeeper", settings=ZooKeeperSettings(heap_mb=512))


def say(line: str) -> None:
    """Prints progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
