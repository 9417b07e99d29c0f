"""Tests of ``dashboard`` as a process: it prints its address, serves the page and stops, or reports an error."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request

from tests.cli.running import Run, started
from tests.monitor.written import Tree


def test_the_dashboard_prints_its_address_and_stops_at_sigterm(tree: Tree, zk_hosts: str) -> None:
    tree.coordinator(broker_id=3)
    with started("dashboard", "--listen", "127.0.0.1:0", "-z", zk_hosts) as process:
        address = process.line().strip().removeprefix("http://").removesuffix("/dashboard/")
        with urllib.request.urlopen(f"http://{address}/dashboard/", timeout=20) as page:
            assert b"kafka-coord" in page.read()
        with urllib.request.urlopen(f"http://{address}/api/v1/cluster", timeout=20) as cluster:
            assert json.load(cluster)["coordinator"] == 3
        ran = process.ended(by=signal.SIGTERM)
    assert ran.code == 0
    assert ran.err == "press Ctrl-C to stop\n"


def test_an_address_in_use_or_invalid_is_reported_at_once(tree: Tree, coord: Run) -> None:
    del tree
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = coord("dashboard", "--listen", address)
    assert ran.code == 2
    assert f"cannot listen on {address}" in ran.err
    assert "choose another --listen" in ran.err
    assert coord("dashboard", "--listen", "nowhere").code == 2
