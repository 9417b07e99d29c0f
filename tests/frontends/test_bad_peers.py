"""Bad input is answered with an error, or ends its connection with a reason. Other connections are not affected."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from kafka_coord.channel.frames import MAX_FRAME_BYTES, MAX_UNANSWERED, AnsweredRequest, RefusedRequest, encode
from kafka_coord.frontends.socket import server
from kafka_coord.frontends.socket.access import GatewayOptions
from tests.frontends.harness import HandConsumer, SocketInstance
from tests.waiting import eventually

pytestmark = pytest.mark.zookeeper

Instances = Callable[..., SocketInstance]
Connect = Callable[[SocketInstance], HandConsumer]


def raw(frame: Any) -> bytes:
    body = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
    return struct.pack("!I", len(body)) + body


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame-too-large"),
        (struct.pack("!I", MAX_FRAME_BYTES + 1), "frame-too-large"),
        (raw(b"\xff\xfe\x00"), "malformed-frame"),
        (raw(b'{"v":1,"id":1,"type":' + b"[" * 50_000), "malformed-frame"),
        (raw([1, 2]), "malformed-frame"),
        (raw({"v": 2, "id": 1, "type": "register"}), "unsupported-version"),
        (raw({"v": 1.0, "id": 1, "type": "register"}), "unsupported-version"),
        (raw(b'{"v":1,"id":1,"type":"cluster-metadata","wait_ms":NaN}'), "malformed-frame"),
        (raw({"v": 1, "id": 1, "type": "dance"}), "unexpected-message"),
        (raw({"v": 1, "id": 2, "type": "cluster-metadata"}), "unexpected-message"),
        (raw({"v": 1, "id": 1, "type": "commit", "offsets": {}}), "unexpected-message"),
        (raw({"v": 1, "id": 1, "type": "ping"}), "unexpected-message"),
        (raw({"v": 1, "id": 1, "type": "answer"}), "unexpected-message"),
        (raw({"v": 1, "id": 9, "type": "error", "code": "x", "message": "y"}), "unexpected-message"),
        (raw({"v": 1, "id": 0, "type": "error", "code": 7}), "malformed-frame"),
    ],
)
def test_an_invalid_frame_ends_the_connection_with_a_reason(
    instance: Instances, connect: Connect, sent: bytes, code: str
) -> None:
    coordinator = instance().start_elected()
    good = connect(coordinator)
    assert isinstance(good.register("delays", "good"), AnsweredRequest)
    bad = connect(coordinator)
    bad.socket.sendall(sent)
    found, message = bad.ends_with()
    assert found == code
    assert message
    assert isinstance(good.ask("commit", offsets={}), AnsweredRequest)  # only a member may commit


def test_the_error_for_an_unknown_version_names_the_supported_ones(instance: Instances, connect: Connect) -> None:
    bad = connect(instance().start_elected())
    bad.socket.sendall(raw({"v": 2, "id": 1, "type": "register"}))
    refused = bad.next()
    assert isinstance(refused, RefusedRequest)
    assert refused.frame["versions"] == [1]


def test_a_connection_beyond_the_limit_is_refused_with_a_reason(
    instance: Instances, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SPARE_CONNECTIONS", 1)
    coordinator = instance(1, GatewayOptions(most_consumers=1)).start_elected()
    good, _ = connect(coordinator), connect(coordinator)
    assert isinstance(good.register("delays", "good"), AnsweredRequest)
    late = connect(coordinator)
    late.socket.sendall(raw({"v": 1, "id": 1, "type": "cluster-metadata"}))
    assert late.ends_with()[0] == "too-many-connections"
    assert isinstance(good.ask("commit", offsets={}), AnsweredRequest)  # only a member may commit


def test_memory_for_incomplete_large_frames_is_limited_and_small_frames_are_always_accepted(
    instance: Instances, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_KEPT_BYTES", 300_000)
    coordinator = instance().start_elected()
    first, second, small = (connect(coordinator) for _ in range(3))
    begun = struct.pack("!I", MAX_FRAME_BYTES) + b"{" * 200_000
    first.socket.sendall(begun)
    eventually(lambda: coordinator.server.kept_bytes >= 200_000)
    second.socket.sendall(begun)
    assert second.ends_with()[0] == "overloaded"
    assert isinstance(small.register("delays", "small"), AnsweredRequest)


def test_large_and_small_frames_of_one_connection_are_answered_in_order(instance: Instances, connect: Connect) -> None:
    consumer = connect(instance().start_elected())
    asked = [
        consumer.rpc.ask("cluster-metadata", {"ignored": "x" * size})[1] for size in (0, 900_000, 10, 30_000, 30_000, 5)
    ]
    consumer.socket.sendall(b"".join(encode(frame) for frame in asked))
    assert [consumer.next().id for _ in asked] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": "no/slash"}, "bad-name"),
        ({"consumer_id": "."}, "bad-name"),
        ({"subscription": {}}, "bad-subscription"),
        ({"subscription": {"bad/topic": 1}}, "bad-subscription"),
        ({"subscription": {"flights": 0}}, "bad-subscription"),
        ({"subscription": [1]}, "bad-subscription"),
        ({"subscription": {"(": 1}, "pattern": "white_list"}, "bad-subscription"),
        ({"pattern": "grey_list"}, "bad-subscription"),
        ({"session_timeout_ms": 10}, "timeout-out-of-range"),
        ({"session_timeout_ms": 10_000_000}, "timeout-out-of-range"),
        ({"session_timeout_ms": "soon"}, "bad-value"),
        ({"capacity": 0}, "bad-value"),
        ({"auto_commit": "yes"}, "bad-value"),
        ({"client": "x" * 2_000}, "bad-value"),
        ({"mode": "lazy"}, "bad-value"),
    ],
)
def test_an_invalid_registration_is_refused_and_the_connection_stays_open(
    instance: Instances, connect: Connect, fields: dict[str, Any], code: str
) -> None:
    consumer = connect(instance().start_elected())
    answer = consumer.register(**fields)
    assert isinstance(answer, RefusedRequest)
    assert answer.code == code, answer.message
    if code.startswith("bad-"):
        assert answer.frame["field"] in {*fields, "subscription"}
    assert isinstance(consumer.register(), AnsweredRequest)


def test_a_second_registration_ends_the_connection(instance: Instances, connect: Connect) -> None:
    consumer = connect(instance().start_elected())
    consumer.register()
    consumer.say("register", group="delays", subscription={"flights": 1}, session_timeout_ms=10_000)
    assert consumer.ends_with()[0] == "unexpected-message"


def test_more_unanswered_requests_than_allowed_end_the_connection(instance: Instances, connect: Connect) -> None:
    """None of the requests can be answered yet, because they wait for a coordinator other than the current one."""
    consumer = connect(instance().start_elected())
    for _ in range(MAX_UNANSWERED + 1):
        consumer.say("cluster-metadata", wait_ms=5_000, not_epoch=1)
    event = consumer.next()
    assert isinstance(event, RefusedRequest)
    assert (event.code, event.id) == ("too-many-requests", MAX_UNANSWERED + 1)
    assert consumer.ends_with() == ("", "")


def test_a_flood_of_registrations_is_slowed_down_and_does_not_affect_members(
    instance: Instances, connect: Connect
) -> None:
    coordinator = instance(1, GatewayOptions(registrations_per_s=1)).start_elected()
    good = connect(coordinator)
    assert isinstance(good.register("delays", "good"), AnsweredRequest)
    told: list[tuple[HandConsumer, int]] = []
    for number in range(20):
        consumer = connect(coordinator)
        answer = consumer.register("flood", f"f{number}")
        if isinstance(answer, RefusedRequest):
            assert answer.code == "slow-down"
            told.append((consumer, answer.frame["retry_ms"]))
    assert 0 < len(told) < 20
    good.next_ping()
    first, retry_ms = told[0]
    assert all(0 < ms <= 3_000 for _, ms in told), "a consumer must not have to wait for most of its session timeout"
    time.sleep(retry_ms / 1000)
    assert isinstance(first.register("flood", "first"), AnsweredRequest)


def test_a_connection_that_registers_again_too_early_is_not_read_until_its_place_comes(
    instance: Instances, connect: Connect
) -> None:
    coordinator = instance(1, GatewayOptions(registrations_per_s=1)).start_elected()
    for number in range(3):
        early = connect(coordinator)
        answer = early.register("delays", f"e{number}", session_timeout_ms=60_000)
        if isinstance(answer, RefusedRequest):
            break
    assert isinstance(answer, RefusedRequest)
    place = time.monotonic() + answer.frame["retry_ms"] / 1000
    assert early.register("delays", "again", session_timeout_ms=60_000).code == "slow-down"
    assert isinstance(early.register("delays", "patient", session_timeout_ms=60_000), AnsweredRequest), (
        "the third registration must be read when its place comes"
    )
    assert time.monotonic() > place - 0.1


def test_a_registration_beyond_the_limit_of_consumers_is_refused(instance: Instances, connect: Connect) -> None:
    coordinator = instance(1, GatewayOptions(most_consumers=2)).start_elected()
    answers = [connect(coordinator).register("delays", f"c{number}") for number in range(3)]
    assert [isinstance(answer, AnsweredRequest) for answer in answers] == [True, True, False]
    assert isinstance(answers[2], RefusedRequest)
    assert answers[2].code == "too-many-consumers"


def test_a_connection_that_never_registers_is_closed(instance: Instances, connect: Connect) -> None:
    coordinator = instance(1, GatewayOptions(unregistered_ms=2_000)).start_elected()
    silent, slow = connect(coordinator), connect(coordinator)
    slow.socket.sendall(b"\0\0")
    assert silent.ends_with()[0] == "not-registered"
    assert slow.ends_with()[0] == "not-registered"


def test_a_member_that_never_completes_a_frame_is_expired(instance: Instances, connect: Connect) -> None:
    consumer = connect(instance().start_elected())
    assert isinstance(consumer.register(session_timeout_ms=1_000), AnsweredRequest)
    consumer.socket.sendall(struct.pack("!I", 100) + b'{"v":1')
    assert consumer.ends_with(silent=True)[0] == "membership-lost"


def test_a_member_that_never_reads_is_expired_and_forgotten(instance: Instances, connect: Connect) -> None:
    coordinator = instance().start_elected()
    consumer = connect(coordinator)
    assert isinstance(consumer.register(session_timeout_ms=1_000), AnsweredRequest)
    term = coordinator.server.gateway.term
    assert term is not None
    eventually(lambda: term.machine.members == {})


def test_a_leave_with_an_invalid_value_of_for_good_is_refused(instance: Instances, connect: Connect) -> None:
    s1 = connect(instance().start_elected())
    s1.register()
    refused = s1.ask("leave", offsets={}, for_good="yes")
    assert isinstance(refused, RefusedRequest)
    assert refused.code == "bad-value"
