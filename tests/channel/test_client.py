"""The socket under a link: how it waits, and how it ends."""

from __future__ import annotations

import socket
import threading

from kafka_coord.channel.client import SocketClient
from kafka_coord.channel.link import SocketLink
from kafka_coord.zk.clock import SystemClock


def test_one_that_waits_for_a_hosts_answer_can_be_ended() -> None:
    link = SocketLink(
        "delays",
        "c1",
        SystemClock(),
        session_timeout_ms=10_000,
        resume_key="mine",
        auto_commit=True,
        wake=lambda: None,
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = SocketClient([f"127.0.0.1:{silent.getsockname()[1]}"], link)
        client.start()
        asking, _ = silent.accept()
        with asking:
            assert asking.recv(100)
            client.close(timeout_s=1.0)
            assert not [thread for thread in threading.enumerate() if thread.name == "socket-c1"]
