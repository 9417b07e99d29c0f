"""Tests of the dashboard in a real browser: Chromium, driven by Playwright. They are skipped if either is missing.

Debian: ``apt-get install chromium``.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from kafka_coord.dev.cluster.kafka import KafkaCluster
from kafka_coord.groups.lag import LagService
from kafka_coord.groups.next_records import next_records_of
from kafka_coord.model import Request, RequestType, TopicPartition
from kafka_coord.zk import layout
from tests.cli.running import run
from tests.coordinator.harness import World
from tests.fuzzing.odd_pages import odd_pages
from tests.fuzzing.odd_requests import served as odd_served
from tests.fuzzing.tools import odd_cluster
from tests.monitor.dashboard.pictures import LONG, RECORDED, draw
from tests.monitor.dashboard.served import Served, operators_file, serving
from tests.monitor.deleting import delete_records
from tests.waiting import eventually

playwright = pytest.importorskip("playwright.sync_api", reason="no browser test: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser test: there is no chromium (apt-get install chromium)"
)

WAIT_MS = 60_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page that must log no error. ``page.expected`` has parts of messages that the test expects."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    made = context.new_page()
    made.errors = []
    made.on("console", lambda message: made.errors.append(message.text) if message.type == "error" else None)
    made.on("pageerror", lambda error: made.errors.append(str(error)))
    made.on(
        "request", lambda request: made.errors.append(f"asks {request.url}") if "127.0.0.1" not in request.url else None
    )
    yield made
    context.close()


def test_a_rebalance_appears_in_the_open_page(world: World, served: Served, page: Any) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    page.goto(f"{served.url}#/groups/delays")
    page.get_by_role("heading", name="delays").wait_for()
    page.locator(".bar", has_text="c1").first.wait_for()
    page.get_by_text("member c1 joined").first.wait_for()
    page.get_by_text("trend unknown (unknown for 4 of 4 partitions)").wait_for()

    world.consumer("c2").join()
    world.settles("c1", "c2", partitions=4)
    page.locator(".bar", has_text="c2").first.wait_for()
    page.get_by_text("member c2 joined").first.wait_for()

    world.ask(
        Request(RequestType.REBALANCE, group="delays", reason="<b>bold</b>", by="mallory@<script>alert(1)</script>")
    )
    page.get_by_role("cell", name="mallory@<script>alert(1)</script>").wait_for()
    assert page.locator("main b", has_text="bold").count() == 0

    world.consumer("stuck", obedient=False).join()
    page.get_by_text("the oldest for").wait_for()
    assert page.errors == []


@pytest.mark.parametrize("seed", range(4))
def test_the_page_draws_whatever_the_api_promises(seed: int, page: Any) -> None:
    """A time that was none once stopped the page, and a consumer called "__proto__" was never shown."""
    with odd_cluster(Random(seed)) as cluster, odd_served(cluster) as (port, _):
        page.goto(f"http://127.0.0.1:{port}/dashboard/")
        for what, fault in odd_pages(page, Random(seed), 10):
            assert not fault, what


def test_a_topic_that_no_member_subscribes_to_any_more_lacks_no_owner(world: World, served: Served, page: Any) -> None:
    world.instance(1).start_elected()
    world.kafka.topic("fares", 1)
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    path = layout.offset("delays", "fares", 0)
    world.store.ensure_path(path)
    world.store.set(path, b"7")
    page.goto(f"{served.url}#/groups/delays")
    page.get_by_role("cell", name="not subscribed").wait_for()
    assert page.get_by_text("without an owner").count() == 0
    assert page.get_by_text("no owner").count() == 0
    page.get_by_role("link", name="fares 0").first.click()
    page.get_by_role("heading", name="fares 0 of delays", level=1).wait_for()
    page.locator(".lead", has_text="Partition of group delays, not subscribed").wait_for()
    assert page.locator(".lead .badge").all_text_contents() == ["not subscribed"], "it has no owner, and no verdict"
    assert page.errors == []


def test_every_page_opens_and_can_be_reached_by_keyboard(world: World, served: Served, page: Any) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    page.goto(served.url)
    page.get_by_role("heading", name="Instances").wait_for()
    page.get_by_text("Stable").first.wait_for()
    page.get_by_role("navigation").get_by_role("link", name="Groups").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Groups as CSV").click()
    assert download.value.suggested_filename == "groups.csv"
    for name in ("Groups", "Cluster", "Overview"):
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        page.get_by_role("heading", name=name, exact=True, level=1).wait_for()
        assert page.title().startswith(name)
        if name == "Cluster":
            page.get_by_role("region", name="Unassigned partitions").get_by_text("none", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("delay")
    page.get_by_role("list", name="Found").get_by_role("link", name="delays").wait_for()
    assert page.locator("#found").inner_text().startswith("1 found: delays, group"), "this is read aloud"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="delays", level=1).wait_for()
    page.get_by_role("link", name="flights 2").first.click()
    page.get_by_role("heading", name="flights 2 of delays").wait_for()
    page.get_by_role("link", name="c1").first.click()
    page.get_by_role("heading", name="c1", level=1).wait_for()
    page.get_by_text("registered").first.wait_for()
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, "on a phone, the page must not scroll sideways"
    assert page.errors == []


def test_an_operator_logs_in_and_pauses_a_group(world: World, page: Any, tmp_path: Path) -> None:
    world.instance(1).start_elected()
    world.consumer("c1").join()
    world.settles("c1", partitions=4)
    with serving(world.hosts, operators_file(tmp_path, alice="a long token")) as served:
        page.goto(f"{served.url}#/groups/delays")
        page.locator(".bar", has_text="c1").first.wait_for()
        assert page.get_by_role("group", name="Actions").count() == 0

        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Token").fill("a wrong token")
        page.get_by_role("dialog").get_by_role("button", name="Log in").click()
        page.get_by_role("alert").filter(has_text="no operator has this token").wait_for()
        page.get_by_label("Token").fill("a long token")
        page.keyboard.press("Enter")
        page.get_by_role("status").filter(has_text="Logged in as alice").wait_for()

        page.get_by_role("button", name="Pause").click()
        page.keyboard.type("moving disks")
        page.keyboard.press("Enter")
        page.get_by_role("status").filter(has_text="group delays paused").wait_for()
        page.get_by_role("alert").filter(has_text="Paused by alice@127.0.0.1 over HTTP").wait_for()
        page.get_by_role("cell", name="moving disks").wait_for()
        page.get_by_role("button", name="Resume").click()
        page.get_by_label("Reason").fill("moved")
        page.get_by_role("dialog").get_by_role("button", name="Resume").click()
        page.get_by_role("cell", name="moved", exact=True).wait_for()
        page.get_by_role("button", name="Pause").wait_for()
        page.get_by_role("button", name="Evict…").click()
        page.get_by_role("checkbox", name="c1").check()
        page.get_by_label("Reason").fill("stuck")
        page.get_by_role("button", name="Show the change").click()
        page.get_by_role("listitem").filter(has_text="c1 loses 4 partitions").wait_for()
        page.get_by_role("dialog").get_by_role("button", name="Evict").click()
        page.get_by_role("cell", name="stuck", exact=True).wait_for()

        page.reload()
        page.get_by_role("button", name="Log out alice").click()
        page.get_by_role("button", name="Log in").wait_for()
        assert page.get_by_role("group", name="Actions").count() == 0
    trail = run("groups", "history", "delays", "--actions", "-o", "json", zookeeper=world.hosts).json()
    assert [(one["action"], one["by"], one["reason"]) for one in trail] == [
        ("pause", "alice@127.0.0.1 over HTTP", "moving disks"),
        ("resume", "alice@127.0.0.1 over HTTP", "moved"),
        ("evict", "alice@127.0.0.1 over HTTP", "stuck"),
    ]
    assert [one for one in page.errors if "401" not in one] == []


def logged_in(page: Any, address: str) -> None:
    page.goto(address)
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("Token").fill("a long token")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Log out alice").wait_for()


def test_groups_are_paused_together_and_a_groups_settings_change(world: World, page: Any, tmp_path: Path) -> None:
    world.instance(1).start_elected()
    for group in ("delays", "etl"):
        world.consumer("c1", group=group).join()
        world.settles("c1", group=group, partitions=4)
    with serving(world.hosts, operators_file(tmp_path, alice="a long token")) as served:
        logged_in(page, f"{served.url}#/groups")
        page.get_by_role("button", name="Pause several…").click()
        dialog = page.get_by_role("dialog")
        for name in ("delays", "etl"):
            dialog.get_by_role("checkbox", name=name).check()
        dialog.get_by_label("Reason").fill("moving disks")
        page.keyboard.press("Enter")
        dialog.get_by_role("listitem").filter(has_text="paused: 2 groups (delays, etl)").wait_for()
        page.keyboard.press("Escape")
        assert dialog.count() == 0, "Escape closes the dialog"
        assert world.node(layout.paused("etl")) is None, "and nothing was done"
        page.get_by_role("button", name="Pause several…").click()
        for name in ("delays", "etl"):
            dialog.get_by_role("checkbox", name=name).check()
        dialog.get_by_label("Reason").fill("moving disks")
        page.keyboard.press("Enter")
        dialog.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("status").filter(has_text="group delays paused; group etl paused").wait_for()

        page.get_by_role("button", name="Move several…").click()
        dialog.get_by_role("checkbox", name="delays").check()
        dialog.get_by_role("combobox").select_option("client-assigned")
        dialog.get_by_label("Reason").fill("as planned")
        page.keyboard.press("Enter")
        dialog.get_by_role("listitem").filter(
            has_text="group delays is managed; 0 offsets and 1 member (c1)"
        ).wait_for()
        dialog.get_by_role("listitem").filter(has_text="c1 cannot, so this is refused: stop them first").wait_for()
        dialog.get_by_role("button", name="Move", exact=True).click()
        page.get_by_role("status").filter(
            has_text="0 of 1 groups are client-assigned now; group 'delays' has"
        ).wait_for()

        page.goto(f"{served.url}#/groups/etl")
        page.get_by_role("button", name="Move…").wait_for()
        page.get_by_role("button", name="Settings…").click()
        dialog.get_by_label("Assignor").fill("none-such")
        dialog.get_by_label("Reason").fill("one after the other")
        page.keyboard.press("Enter")
        dialog.get_by_role("alert").filter(has_text="assignor 'none-such' is not installed").wait_for()
        dialog.get_by_label("Assignor").fill("range")
        page.keyboard.press("Enter")
        dialog.get_by_role("listitem").filter(has_text="assignor: sticky → range").wait_for()
        dialog.get_by_role("button", name="Change").click()
        page.get_by_role("cell", name="one after the other").wait_for()
        assert world.value(layout.group("etl"))["assignor"] == "range"
    assert [one for one in page.errors if "400" not in one and "503" not in one] == []


def produced(cluster: KafkaCluster, topic: str, count: int, partitions: int = 1) -> None:
    """Writes so many records to the topic's partitions, in turn."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, b"x", partition=number % partitions)
    assert producer.flush(60) == 0


@pytest.mark.kafka
def test_offsets_are_copied_reset_under_a_consumer_and_deleted(
    kafka_cluster: KafkaCluster, make_topic: Any, page: Any, tmp_path: Path
) -> None:
    topic, kafka = make_topic(1), kafka_cluster.zookeeper
    produced(kafka_cluster, topic, 10)

    def committed() -> Any:
        found = run("groups", "describe", "copy", "--offsets", "-o", "json", zookeeper=kafka).json()
        return [one["committed_offset"] for one in found["offsets"]]

    with ExitStack() as rest:
        world = World(kafka)
        rest.callback(world.close)
        world.instance(1).start_elected()
        to_offset = ("--topic", topic, "--to-offset", "7", "--execute", "--create")
        assert run("groups", "reset-offsets", "source", *to_offset, zookeeper=kafka).code == 0
        served = rest.enter_context(serving(kafka, operators_file(tmp_path, alice="a long token")))
        logged_in(page, f"{served.url}#/groups/source")
        dialog = page.get_by_role("dialog")
        page.get_by_role("button", name="Copy offsets…").click()
        dialog.get_by_label("To the group").fill("copy")
        dialog.get_by_label("Reason").fill("a copy")
        page.keyboard.press("Enter")
        dialog.get_by_role("listitem").filter(has_text="group copy does not exist, and is created").wait_for()
        dialog.get_by_role("button", name="Copy", exact=True).click()
        page.get_by_role("status").filter(has_text="done").wait_for()
        assert committed() == [7]

        page.goto(f"{served.url}#/groups/copy")
        assert run("groups", "reset-offsets", "source", *to_offset[:3], "4", "--execute", zookeeper=kafka).code == 0
        page.get_by_role("button", name="Reset offsets…").click()
        dialog.get_by_label("Rule").select_option("from-group")
        dialog.get_by_label("Value").fill("source")
        dialog.get_by_label("Reason").fill("again")
        page.keyboard.press("Enter")
        dialog.get_by_text("3 records are read again, and 0 are never read.").wait_for()
        dialog.get_by_role("button", name="Reset", exact=True).click()
        page.get_by_role("cell", name="again", exact=True).wait_for()
        assert committed() == [4]

        page.get_by_role("button", name="Reset offsets…").click()
        dialog.get_by_label("Rule").select_option("undo")
        dialog.get_by_label("Reason").fill("a mistake")
        page.keyboard.press("Enter")
        dialog.get_by_text("0 records are read again, and 3 are never read.").wait_for()
        dialog.get_by_role("button", name="Reset", exact=True).click()
        page.get_by_role("cell", name="a mistake", exact=True).wait_for()
        assert committed() == [7]

        consumer = world.consumer("c1", group="copy", topics=(topic,)).join()
        world.settles("c1", group="copy", partitions=1)
        page.get_by_role("link", name="c1").first.wait_for()
        page.get_by_role("button", name="Reset offsets…").click()
        dialog.get_by_label("Rule").select_option("to-latest")
        dialog.get_by_label("Reason").fill("skip all")
        page.keyboard.press("Enter")
        dialog.get_by_text("0 records are read again, and 3 are never read.").wait_for()
        dialog.get_by_role("checkbox", name="pause the group, evict the owners").check()
        dialog.get_by_role("button", name="Reset", exact=True).click()
        page.get_by_role("cell", name="to-latest: ").wait_for()
        assert committed() == [10]

        consumer.halt()  # it has been evicted
        page.get_by_role("cell", name="no owner").first.wait_for()
        page.get_by_role("button", name="Delete offsets…").click()
        dialog.get_by_label("Reason").fill("never again")
        page.keyboard.press("Enter")
        dialog.get_by_text(
            "Then consumers read 10 records again (auto.offset.reset earliest), or never read 0"
        ).wait_for()
        delete, name = (
            dialog.get_by_role("button", name="Delete", exact=True),
            dialog.get_by_label("Type copy to confirm"),
        )
        delete.click()
        assert page.evaluate("document.querySelector('dialog [name=name]').validity.valueMissing")
        name.fill("cop")
        delete.click()
        dialog.get_by_role("alert").filter(has_text="type the group's name").wait_for()
        name.fill("copy")
        page.keyboard.press("Enter")
        page.get_by_role("cell", name="never again").wait_for()
        assert committed() in ([None], [])

        page.get_by_role("button", name="Delete group…").click()
        dialog.get_by_label("Reason").fill("not used")
        page.keyboard.press("Enter")
        dialog.get_by_text("group copy is removed").wait_for()
        dialog.get_by_label("Type copy to confirm").fill("copy")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Groups", level=1).wait_for()
        assert run("groups", "describe", "copy", zookeeper=kafka).code == 7
    assert [one for one in page.errors if "409" not in one and "404" not in one] == []


@pytest.mark.kafka
def test_the_notes_of_a_reset_must_be_ticked(
    kafka_cluster: KafkaCluster, make_topic: Any, page: Any, tmp_path: Path
) -> None:
    topic, kafka = make_topic(1), kafka_cluster.zookeeper
    produced(kafka_cluster, topic, 5)
    with ExitStack() as rest:
        world = World(kafka)
        rest.callback(world.close)
        world.instance(1).start_elected()
        to_start = ("--topic", topic, "--to-offset", "0", "--execute", "--create")
        assert run("groups", "reset-offsets", "ticked", *to_start, zookeeper=kafka).code == 0
        delete_records(kafka_cluster, {TopicPartition(topic, 0): 2})
        served = rest.enter_context(serving(kafka, operators_file(tmp_path, alice="a long token")))
        page.goto(f"{served.url}#/groups/ticked")
        page.get_by_text("unread records are gone").first.wait_for()
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Token").fill("a long token")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Reset offsets…").click()
        page.get_by_label("Rule").select_option("to-time")
        page.get_by_label("Value").fill("2099-01-01T00:00:00")
        page.get_by_label("Reason").fill("a wrong year")
        page.get_by_role("button", name="Show the change").click()
        page.get_by_role("cell", name="so reset to the end of the log").wait_for()
        reset, accept = page.get_by_role("button", name="Reset", exact=True), page.get_by_role("checkbox")
        reset.click()
        assert page.evaluate("document.querySelector('[name=accept_notes]').validity.valueMissing")
        assert page.get_by_role("dialog").count() == 1, "without the tick, the form is not sent"
        accept.check()
        reset.click()
        page.get_by_role("cell", name="a wrong year").wait_for()
    assert page.errors == []


@pytest.mark.kafka
def test_the_page_of_a_topic_shows_who_reads_it_and_how_many_seconds_behind(
    kafka_cluster: KafkaCluster, make_topic: Any, page: Any
) -> None:
    topic, kafka = make_topic(2), kafka_cluster.zookeeper
    produced(kafka_cluster, topic, 10, partitions=2)
    with ExitStack() as rest:
        world = World(kafka)
        rest.callback(world.close)
        world.instance(1).start_elected()
        for group, rule in (("late", "--to-earliest"), ("in-time", "--to-latest")):
            reset = ("--topic", topic, rule, "--execute", "--create")
            assert run("groups", "reset-offsets", group, *reset, zookeeper=kafka).code == 0
        service = LagService(next_records=next_records_of(world.store, {}))
        served = rest.enter_context(serving(kafka, service=service))
        page.goto(served.url)
        page.keyboard.press("/")
        page.keyboard.type(topic)
        page.get_by_role("list", name="Found").get_by_role("link", name=topic).wait_for()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name=topic, level=1).wait_for()
        late = page.get_by_role("region", name="Groups").get_by_role("row").filter(has_text="late")
        late.get_by_role("cell", name=re.compile(r"^\d[\d.]* (ms|s|min .*)$")).wait_for()
        assert "10" in late.get_by_role("cell").all_inner_texts(), "the records that wait"
        readers = (
            page.get_by_role("region", name="Who reads which partition").get_by_role("row").filter(has_text="no owner")
        )
        readers.nth(3).wait_for()
        assert readers.count() == 4
        late.get_by_role("link", name="late").click()
        page.get_by_role("heading", name="late", level=1).wait_for()
        page.get_by_text("behind in time").wait_for()
    assert page.errors == []


def test_all_times_are_in_utc_and_say_so_wherever_the_browser_is(world: World, chromium: Any, tmp_path: Path) -> None:
    world.instance(1).start_elected()
    consumer = world.consumer("c1").join()
    world.settles("c1", partitions=4)
    context = chromium.new_context(timezone_id="America/New_York")
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    with serving(world.hosts, operators_file(tmp_path, alice="a long token")) as served:
        page.goto(f"{served.url}#/groups/delays")
        page.locator(".bar", has_text="c1").first.wait_for()
        clock = "(at) => import(new URL('dom.js', document.baseURI)).then((dom) => dom.clock(at ?? Date.now()))"
        then, now = page.evaluate(clock, 1769860800123), page.evaluate(clock)
        assert then == "2026-01-31 12:00:00 UTC"
        assert re.fullmatch(r"\d\d:\d\d:\d\d UTC", now), "today's times need no date"
        assert page.locator(".tick").first.inner_text().endswith("UTC")
        consumer.position = {TopicPartition("flights", 0): 5}
        consumer.leave()
        page.get_by_role("button", name="Log in").click()
        page.get_by_label("Token").fill("a long token")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Reset offsets…").click()
        assert "in UTC" in page.get_by_role("dialog").inner_text()
        page.get_by_label("Rule").select_option("to-current")
        page.get_by_role("dialog").get_by_label("Topics").fill("flights:0")
        page.get_by_label("Reason").fill("bug 17")
        page.get_by_role("button", name="Show the change").click()
        page.get_by_text("Rule: to-current").wait_for()
    context.close()


def test_a_page_switches_to_another_instance_when_its_own_ends(world: World, page: Any, tmp_path: Path) -> None:
    """Two instances with dashboards, as with ``serve --listen-http``. When one ends, the page opens the other."""
    operators = operators_file(tmp_path, alice="a long token")
    with ExitStack() as rest:
        second = rest.enter_context(serving(world.hosts, operators))
        with serving(world.hosts, operators) as first:
            endpoints = [{"http": f"127.0.0.1:{one.port}"} for one in (first, second)]
            elected = world.instance(1, endpoints=endpoints[0]).start_elected()
            world.instance(2, endpoints=endpoints[1]).start()
            world.consumer("c1").join()
            world.settles("c1", partitions=4)
            page.goto(f"{first.url}#/groups/delays")
            page.locator(".bar", has_text="c1").first.wait_for()
            page.get_by_role("button", name="Log in").click()
            page.get_by_label("Token").fill("a long token")
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Pause").click()
            elected.stop()
            world.instances.remove(elected)
        page.wait_for_url(f"{second.url}#/groups/delays")
        page.get_by_role("status").filter(has_text="this is another one. Log in again to act.").wait_for()
        page.get_by_role("button", name="Log in").wait_for()
        assert page.get_by_role("group", name="Actions").count() == 0
        eventually(lambda: world.instances[0].service.leads)
        world.consumer("c2").join()
        page.locator(".bar", has_text="c2").first.wait_for()
        page.get_by_text("coordinated by broker 2").wait_for()
    assert [one for one in page.errors if "Failed to load resource" not in one] == []


# --- pages with recorded documents, without a server ------------------------------------------------------------------

WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 800}
RECORDING = json.loads(RECORDED.read_text())
PAGES = (
    *("#/", "#/groups", "#/cluster", "#/groups/delays", "#/groups/billing", f"#/groups/{LONG}", "#/topics/flights"),
    *("#/groups/delays/partitions/flights/3", "#/groups/delays/consumers/c1", "#/nothing", "#/groups/nothing"),
)


def drawn(
    chromium: Any, size: dict[str, int], scheme: str = "light", documents: Mapping[str, Any] = RECORDING["documents"]
) -> Any:
    page = draw(chromium.new_context(viewport=size, color_scheme=scheme), documents, RECORDING["at_ms"])
    page.set_default_timeout(WAIT_MS)
    return page


SHOW = """address => new Promise((done) => {
    if (location.hash === address) return done();
    addEventListener("hashchange", () => done(), {once: true});
    location.hash = address;
})"""
"""Returns when the page, which has listened for longer, has changed: a busy browser may do so late."""


def show(page: Any, address: str) -> None:
    page.evaluate(SHOW, address)
    page.wait_for_function("!document.querySelector('main').textContent.includes('Reading…')")
    page.evaluate("new Promise(requestAnimationFrame)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(scheme: str, chromium: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="not tested with axe: pip install axe-playwright-python")
    script = Path(axe.__file__).with_name("axe.min.js").read_text()
    of = '{runOnly: ["color-contrast"]}' if scheme == "dark" else ""  # only the colours differ
    for size in (WIDE, PHONE):
        page = drawn(chromium, size, scheme)
        page.evaluate(f"{script};0")
        for address in PAGES:
            show(page, address)
            found = page.evaluate(
                f"axe.run({of}).then((all) => all.violations.map((one) => [one.impact, one.id, one.nodes[0].html]))"
            )
            assert [one for one in found if one[0] in {"serious", "critical"}] == [], address
        page.context.close()


def test_on_a_phone_nothing_scrolls_sideways_and_every_value_has_its_name(chromium: Any) -> None:
    page = drawn(chromium, PHONE)
    for address in PAGES:
        show(page, address)
        wide = page.evaluate("""[...document.querySelectorAll("html, main :not(thead *, .lanes, .lanes *)")]
            .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
            .filter((one) => getComputedStyle(one).overflowX !== "hidden")
            .map((one) => one.className || one.nodeName)""")
        assert wide == [], address
    show(page, "#/groups")
    card = page.get_by_role("row").filter(has_text="billing").first
    assert "Lag" in card.locator("td").evaluate_all(
        "(cells) => cells.map((one) => getComputedStyle(one, '::before').content).join()"
    )
    assert card.locator("td").first.bounding_box()["width"] > 300
    page.context.close()


def test_labels_of_lanes_differ_where_names_do(chromium: Any) -> None:
    documents = copy.deepcopy(RECORDING["documents"])
    stem = "warehouse-europe-north-inventory-by"
    for at, lane in enumerate(documents["/groups/delays/timeline"]["partitions"]):
        lane["topic"] = f"{stem}-{('hour', 'day')[at % 2]}-{'compacted' * (at % 3)}-in-the-first-data-centre"
    for size in (PHONE, WIDE):
        page = drawn(chromium, size, documents=documents)
        show(page, "#/groups/delays")
        names = page.locator(".lane a.name")
        labels, whole = names.all_inner_texts(), names.evaluate_all("(all) => all.map((one) => one.title)")
        assert len(set(labels)) == len(set(whole)) == 12
        cut = names.evaluate_all("(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length")
        assert cut == 0, "no label is cut off"
        chance = Random(size["width"])
        for _ in range(300):
            some = {"".join(chance.choices("ab-", k=chance.choice((3, 20, 60)))) for _ in range(chance.randrange(40))}
            made = page.evaluate(
                """async ([names, room]) =>
                    [...(await import(new URL("dom.js", document.baseURI))).distinct(names, room)]""",
                [sorted(some), 12],
            )
            assert {name for name, _ in made} == some
            assert len({label for _, label in made}) == len(some)
        page.context.close()


def test_charts_show_the_last_half_hour_and_legends_have_values(chromium: Any) -> None:
    documents = copy.deepcopy(RECORDING["documents"])
    samples = documents["/groups/delays/lag"]["samples"]
    samples.insert(0, [RECORDING["at_ms"] - 3_600_000, 1_000_000, 0, 0])
    page = drawn(chromium, WIDE, documents=documents)
    for address, values in (("#/groups/delays", [str(samples[-1][1])]), ("#/", ["1"])):
        show(page, address)
        page.locator(".u-legend .u-value").first.wait_for()
        eventually(lambda: "--" not in page.locator(".u-legend .u-value").all_inner_texts())
        assert page.locator(".u-legend .u-value").all_inner_texts()[1:] == values
    show(page, "#/groups/delays")
    assert page.get_by_role("button", name="30 min").get_attribute("aria-pressed") == "true"
    assert not page.evaluate("document.querySelector('time-chart').textContent.includes('M')")
    page.context.close()


def test_whatever_lists_groups_says_which_are_missing_and_a_native_group_has_no_rebalances_here(chromium: Any) -> None:
    documents = copy.deepcopy(RECORDING["documents"])
    documents["/overview"]["missing"] = told = ["NOT SHOWN: the native groups in __consumer_offsets[3]"]
    documents["/groups/billing"] |= {"kind": "native", "generation": None}
    documents["/groups/billing/history"] = []
    page = drawn(chromium, WIDE, documents=documents)
    for address in ("#/", "#/groups", "#/cluster"):
        show(page, address)
        assert page.get_by_text(told[0]).count() == 1, address
    show(page, "#/groups/billing")
    assert page.get_by_text("the brokers record none").count() == 1
    page.context.close()


def test_an_address_that_does_not_exist_says_so_in_one_sentence(chromium: Any) -> None:
    page = drawn(chromium, WIDE)
    for address, sentence in (
        ("#/nothing/here", "There is no page at #/nothing/here; the overview leads to all pages."),
        ("#/groups/%E0%A4%A", "There is no page at #/groups/%E0%A4%A; the overview leads to all pages."),
        ("#/groups/nothing", "/groups/nothing does not exist"),
        ("#/topics/nothing", "/topics/nothing does not exist"),
        ("#/groups/delays/consumers/nobody", "Group delays has no consumer nobody."),
    ):
        show(page, address)
        assert page.locator("main > :not(h1)").all_inner_texts() == [sentence]
    page.context.close()
