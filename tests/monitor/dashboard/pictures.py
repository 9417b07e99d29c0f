"""``scripts/pictures``: draws the pictures of the documents from documents that a real cluster's dashboard has served.

They are in ``recorded.json``; ``--record`` replaces them: three minutes in the life of a cluster with groups of every
kind, whose members join, hang and leave. Each picture is drawn by Chromium, without a server and at the moment of the
recording. ``docs/pictures/drawn.json`` has the digest of all that a picture is drawn from.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.house.rooms import ROOT

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
FOLDER = ROOT / "docs" / "pictures"
DRAWN = FOLDER / "drawn.json"
ASSETS = resources.files("kafka_coord.monitor.dashboard") / "assets"

LONG = "warehouse-" + "-".join(("europe", "north", "inventory", "by", "hour") * 9)[:190]
GROUP_PARTS = ("", "/findings", "/history", "/actions", "/timeline", "/lag")
PATHS = (
    *("/overview", "/cluster", "/cluster/findings", "/cluster/history", "/cluster/requests", "/cluster/unassigned"),
    *("/topics", "/topics/flights", "/groups?limit=101", "/groups/delays/partitions/flights/3"),
    *(f"/groups/{group}{part}" for group in ("delays", "billing", LONG) for part in GROUP_PARTS),
)


# --- recording --------------------------------------------------------------------------------------------------------


def record() -> None:
    """Runs the story, and stores the documents of its last moment."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    from kafka_coord.dev.cluster.cluster import DevCluster
    from kafka_coord.dev.cluster.kafka import KafkaSettings
    from kafka_coord.dev.cluster.topics import TopicAdmin
    from tests.cli.running import run, started

    with ExitStack() as rest:
        directory = Path(rest.enter_context(tempfile.TemporaryDirectory()))
        cluster = DevCluster(
            directory / "cluster", brokers=3, coordinators=True, dashboards=True,
            kafka_settings=KafkaSettings(replication=3, for_instances=True), on_progress=print,
        )  # fmt: skip
        rest.callback(cluster.down)
        cluster.up()
        bootstrap, zookeeper = cluster.bootstrap_servers, cluster.zookeeper
        instances = cluster.instance_servers
        page = _elected(zookeeper)
        admin = TopicAdmin(bootstrap)
        for topic, partitions in (("flights", 12), ("bookings", 6), ("routes", 3)):
            admin.create(topic, partitions, replication=2)
        producer = Producer({"bootstrap.servers": bootstrap})

        def pass_by(seconds: int) -> None:
            for _ in range(seconds):
                for at in range(400):
                    producer.produce("flights", b"x", str(at))
                for at in range(40):
                    producer.produce("bookings", b"x", str(at))
                producer.flush()
                time.sleep(1)

        for at in range(60_000):
            producer.produce("routes", b"x", str(at))
            producer.poll(0)
        pass_by(2)
        _follow(rest, page, *(f"/groups/delays{part}" for part in GROUP_PARTS), "/overview", "/topics/flights")
        _follow(rest, page, *(f"/groups/billing{part}" for part in GROUP_PARTS), "/cluster/unassigned")
        _follow(rest, page, *(f"/groups/{LONG}{part}" for part in GROUP_PARTS))
        for number, name in enumerate(("etl-airlines", "etl-crews", "etl-fares")):
            with closing(Consumer({"bootstrap.servers": instances, "group.id": name})) as stopped:
                offsets = [TopicPartition("routes", partition, 7_500 * number) for partition in range(3)]
                stopped.commit(offsets=offsets, asynchronous=False)

        consumers: dict[str, Any] = {}

        def join(name: str, group: str = "delays", topic: str = "flights", *more: str) -> None:
            arguments = ("consume", "--group", group, "--topic", topic, "--from-beginning", "-q", "-z", zookeeper)
            consumers[name] = rest.enter_context(started(*arguments, "--consumer-id", name, *more))

        def client(group: str, topic: str, pace: int = 200, **more: Any) -> None:
            given = {"bootstrap.servers": instances, "group.id": group, "auto.offset.reset": "earliest", **more}
            consumer = Consumer(given)
            consumer.subscribe([topic])
            ends = threading.Event()

            def read() -> None:
                while not ends.is_set():
                    consumer.consume(pace, 0.5)
                    time.sleep(0.2)
                consumer.close()

            thread = threading.Thread(target=read)
            thread.start()
            rest.callback(thread.join)
            rest.callback(ends.set)

        for name in ("c1", "c2", "c3"):
            join(name)
        join("night-1", LONG, "bookings")
        patient = ("--session-timeout-ms", "60000")
        join("audit-1", "audit", "bookings", *patient)
        for name in ("billing", "billing", "search-index", "mail"):
            client(name, "bookings", **{"client.id": f"{name}-app"})
        client("clicks", "flights", **{"group.protocol": "consumer", "client.id": "clicks-app"})
        client("reports", "flights", 20, **{"client.id": "reports-app"})
        pass_by(25)
        join("c4")
        pass_by(15)
        consumers["c2"].process.kill()
        pass_by(30)
        consumers["c3"].process.send_signal(signal.SIGSTOP)
        pass_by(8)
        consumers["c3"].process.send_signal(signal.SIGCONT)
        join("c2")
        pass_by(30)
        reset = ("--topic", "flights:3", "--to-earliest", "--execute", "--pause", "--reason", "bug 17")
        assert run("groups", "reset-offsets", "delays", *reset, zookeeper=zookeeper).code == 0
        pass_by(45)  # until all lags are measured
        consumers["audit-1"].process.send_signal(signal.SIGSTOP)
        join("audit-2", "audit", "bookings", *patient)
        pass_by(8)
        at_ms = int(time.time() * 1000)
        documents = {path: _document(page, quote(path, safe="/?=")) for path in PATHS}
        consumers["audit-1"].process.send_signal(signal.SIGCONT)
    text = json.dumps({"at_ms": at_ms, "documents": documents}, separators=(",", ":"))
    RECORDED.write_text(re.sub(rf"(?<=[\"@]){re.escape(socket.gethostname())}(?=[\" ])", "kafka-1", text) + "\n")


def _elected(zookeeper: str) -> str:
    from tests.cli.running import run

    shown = run("coordinator", "status", "-o", "json", zookeeper=zookeeper).json()
    return next(one["endpoints"]["http"] for one in shown["instances"] if one["elected"])


def _document(address: str, path: str) -> Any:
    for _ in range(60):
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", f"/api/v1{path}")
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status == 200:
            return json.loads(body)
        time.sleep(1)
    raise AssertionError(f"{path}: {answer.status} {body!r}")


def _follow(rest: ExitStack, address: str, *paths: str) -> None:
    """Keeps a page's stream open, so that the dashboard samples what it shows."""
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request("GET", "/api/v1/events?" + "&".join(f"path={quote(path)}" for path in paths))
    opened, answer = connection.sock, connection.getresponse()

    def read() -> None:
        with suppress(OSError, ValueError):
            while answer.readline():
                pass

    thread = threading.Thread(target=read)
    thread.start()

    def end() -> None:
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        answer.close()
        connection.close()

    rest.callback(end)


# --- drawing ----------------------------------------------------------------------------------------------------------

_STREAM = """(documents) => {
  window.EventSource = class extends EventTarget {
    readyState = 1;
    static CLOSED = 2;
    static OPEN = 1;
    constructor(url) {
      super();
      setTimeout(() => {
        this.onopen?.();
        for (const path of new URL(url, location).searchParams.getAll("path")) {
          const kind = path in documents ? "document" : "trouble";
          const value = documents[path] ?? `${path} does not exist`;
          const data = `${JSON.stringify({ path })}\\n${JSON.stringify(value)}`;
          this.dispatchEvent(new MessageEvent(kind, { data }));
        }
      });
    }
    close() {}
  };
}"""
"""Gives the page its documents, instead of a server's stream."""
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
_NOT_DRAWN = {"actions.js", "live.js", "openapi.json", "uPlot.LICENSE.txt"}
_DEMO = ROOT / "kafka_coord" / "dev"
_OF_REPORT = [_DEMO / "html.py", *(_DEMO / "demo" / f"{one}.py" for one in ("report", "charts", "shared_section"))]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the page at ``address`` (or of the demo's report, without one)."""

    name: str
    address: str | None
    height: int
    scheme: str


PICTURES = (
    Picture("dashboard-overview", "#/", 860, "dark"),
    Picture("dashboard-group", "#/groups/delays", 900, "light"),
    Picture("dashboard-topic", "#/topics/flights", 820, "light"),
    Picture("demo-report", None, 900, "light"),
)


def draw(context: Any, documents: Mapping[str, Any], at_ms: int) -> Any:
    """Returns a page of this browser context that shows these documents and no others, at this moment."""
    page = context.new_page()
    page.clock.set_fixed_time(datetime.fromtimestamp(at_ms / 1000, UTC))
    page.add_init_script(f"({_STREAM})({json.dumps(documents)})")
    page.route("http://dashboard.invalid/**", _answer)
    page.goto("http://dashboard.invalid/dashboard/")
    return page


def _answer(route: Any) -> None:
    name = route.request.url.split("?")[0].rpartition("/dashboard/")[2] or "index.html"
    if "/api/" in name:
        route.fulfill(content_type="application/json", body='{"actions": false, "operator": null}')
    else:
        route.fulfill(content_type=_TYPES[name.rpartition(".")[2]], body=(ASSETS / name).read_text())


def digest(picture: Picture) -> str:
    """Returns the digest of all that the picture is drawn from, but for the browser, its fonts, and the demo's run."""
    found = hashlib.sha256(repr(picture).encode())
    files = _OF_REPORT if picture.address is None else [RECORDED, *map(Path, map(str, ASSETS.iterdir()))]
    for file in sorted(files):
        if file.is_file() and file.name not in _NOT_DRAWN:
            found.update(file.read_bytes())
    return found.hexdigest()


def _drawn() -> dict[str, str]:
    return json.loads(DRAWN.read_text()) if DRAWN.exists() else {}


def outdated() -> list[Picture]:
    """Returns the pictures that were drawn from something else."""
    drawn = _drawn()
    return [one for one in PICTURES if drawn.get(one.name) != digest(one)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="record the dashboard's documents anew first")
    if parser.parse_args().record:
        record()
    from playwright.sync_api import sync_playwright

    recorded, drawn = json.loads(RECORDED.read_text()), _drawn()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as started, tempfile.TemporaryDirectory() as directory:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for one in outdated():
            print(one.name)  # noqa: T201
            size = {"width": 1200, "height": one.height}
            context = browser.new_context(viewport=size, color_scheme=one.scheme)
            if one.address is None:
                report = Path(directory, "report.html")
                command = (sys.executable, "-m", "kafka_coord.cli.main", "demo", "--report", report, "--no-live")
                subprocess.run(command, check=True)
                page = context.new_page()
                page.goto(report.as_uri())
            else:
                page = draw(context, recorded["documents"], recorded["at_ms"])
                page.evaluate(f"location.hash = {one.address!r}")
                page.get_by_role("heading", level=2).first.wait_for()
                page.wait_for_timeout(500)  # until uPlot has drawn
            (FOLDER / f"{one.name}.jpg").write_bytes(page.screenshot(type="jpeg", quality=60))
            context.close()
            drawn[one.name] = digest(one)
            DRAWN.write_text(json.dumps(drawn, indent=2) + "\n")
        browser.close()


if __name__ == "__main__":
    main()
