"""Bad input on a connection is answered, or ends the connection with a reason. The other connections do not notice."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from kafka_coord.channel.frames import MAX_FRAME_BYTES, encode
from kafka_coord.channel.rpc import MAX_UNANSWERED, Answered, Refused
from kafka_coord.frontends.socket import server
from kafka_coord.frontends.socket.options import GatewayOptions
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
def test_what_does_not_belong_ends_the_connection_with_a_reason(
    instance: Instances, connect: Connect, sent: bytes, code: str
) -> None:
    coordinator = instance().start_elected()
    good = connect(coordinator)
    assert isinstance(good.register("delays", "good"), Answered)
    bad = connect(coordinator)
    bad.socket.sendall(sent)
    found, message = bad.ends_with()
    assert found == code
    assert message
    assert isinstance(good.ask("commit", offsets={}), Answered)  # only a member may commit


def test_another_version_is_told_which_ones_there_are(instance: Instances, connect: Connect) -> None:
    bad = connect(instance().start_elected())
    bad.socket.sendall(raw({"v": 2, "id": 1, "type": "register"}))
    refused = bad.next()
    assert isinstance(refused, Refused)
    assert refused.frame["versions"] == [1]


def test_beyond_as_many_connections_as_there_may_be_one_is_told_so(
    instance: Instances, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SPARE_CONNECTIONS", 1)
    coordinator = instance(1, GatewayOptions(most_consumers=1)).start_elected()
    good, _ = connect(coordinator), connect(coordinator)
    assert isinstance(good.register("delays", "good"), Answered)
    late = connect(coordinator)
    late.socket.sendall(raw({"v": 1, "id": 1, "type": "cluster-metadata"}))
    assert late.ends_with()[0] == "too-many-connections"
    assert isinstance(good.ask("commit", offsets={}), Answered)  # only a member may commit


def test_unfinished_large_frames_have_so_much_room_in_all_and_small_ones_always_have_some(
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
    assert isinstance(small.register("delays", "small"), Answered)


def test_large_and_small_frames_of_one_connection_are_answered_in_their_order(
    instance: Instances, connect: Connect
) -> None:
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
def test_a_registration_that_cannot_be_is_refused_and_the_connection_stays(
    instance: Instances, connect: Connect, fields: dict[str, Any], code: str
) -> None:
    consumer = connect(instance().start_elected())
    answer = consumer.register(**fields)
    assert isinstance(answer, Refused)
    assert answer.code == code, answer.message
    if code.startswith("bad-"):
        assert answer.frame["field"] in {*fields, "subscription"}
    assert isinstance(consumer.register(), Answered)


def test_two_registrations_on_one_connection_end_it(instance: Instances, connect: Connect) -> None:
    consumer = connect(instance().start_elected())
    consumer.register()
    consumer.say("register", group="delays", subscription={"flights": 1}, session_timeout_ms=10_000)
    assert consumer.ends_with()[0] == "unexpected-message"


def test_more_questions_than_may_wait_end_the_connection(instance: Instances, connect: Connect) -> None:
    """None of them can be answered yet: they wait for a coordinator other than the present one."""
    consumer = connect(instance().start_elected())
    for _ in range(MAX_UNANSWERED + 1):
        consumer.say("cluster-metadata", wait_ms=5_000, not_epoch=1)
    event = consumer.next()
    assert isinstance(event, Refused)
    assert (event.code, event.id) == ("too-many-requests", MAX_UNANSWERED + 1)
    assert consumer.ends_with() == ("", "")


def test_a_register_flood_is_slowed_down_and_members_do_not_notice(instance: Instances, connect: Connect) -> None:
    coordinator = instance(1, GatewayOptions(registrations_per_s=1)).start_elected()
    good = connect(coordinator)
    assert isinstance(good.register("delays", "good"), Answered)
    told: list[tuple[HandConsumer, int]] = []
    for number in range(20):
        consumer = connect(coordinator)
        answer = consumer.register("flood", f"f{number}")
        if isinstance(answer, Refused):
            assert answer.code == "slow-down"
            told.append((consumer, answer.frame["retry_ms"]))
    assert 0 < len(told) < 20
    good.next_ping()
    first, retry_ms = told[0]
    assert all(0 < ms <= 3_000 for _, ms in told), "nobody is sent away for most of its session timeout"
    time.sleep(retry_ms / 1000)
    assert isinstance(first.register("flood", "first"), Answered)


def test_one_that_asks_again_too_early_is_not_read_until_its_place_comes(instance: Instances, connect: Connect) -> None:
    coordinator = instance(1, GatewayOptions(registrations_per_s=1)).start_elected()
    for number in range(3):
        early = connect(coordinator)
        answer = early.register("delays", f"e{number}", session_timeout_ms=60_000)
        if isinstance(answer, Refused):
            break
    assert isinstance(answer, Refused)
    place = time.monotonic() + answer.frame["retry_ms"] / 1000
    assert early.register("delays", "again", session_timeout_ms=60_000).code == "slow-down"
    assert isinstance(early.register("delays", "patient", session_timeout_ms=60_000), Answered), "it was read in time"
    assert time.monotonic() > place - 0.1


def test_there_is_room_for_so_many_and_no_more(instance: Instances, connect: Connect) -> None:
    coordinator = instance(1, GatewayOptions(most_consumers=2)).start_elected()
    answers = [connect(coordinator).register("delays", f"c{number}") for number in range(3)]
    assert [isinstance(answer, Answered) for answer in answers] == [True, True, False]
    assert isinstance(answers[2], Refused)
    assert answers[2].code == "too-many-consumers"


def test_one_that_never_registers_is_not_kept(instance: Instances, connect: Connect) -> None:
    coordinator = instance(1, GatewayOptions(unregistered_ms=2_000)).start_elected()
    silent, slow = connect(coordinator), connect(coordinator)
    slow.socket.sendall(b"\0\0")
    assert silent.ends_with()[0] == "not-registered"
    assert slow.ends_with()[0] == "not-registered"


def test_half_a_frame_and_then_nothing_is_silence(instance: Instances, connect: Connect) -> None:
    consumer = connect(instance().start_elected())
    assert isinstance(consumer.register(session_timeout_ms=1_000), Answered)
    consumer.socket.sendall(struct.pack("!I", 100) + b'{"v":1')
    assert consumer.ends_with(silent=True)[0] == "membership-lost"


def test_one_that_never_reads_is_expired_and_forgotten(instance: Instances, connect: Connect) -> None:
    coordinator = instance().start_elected()
    consumer = connect(coordinator)
    assert isinstance(consumer.register(session_timeout_ms=1_000), Answered)
    term = coordinator.server.gateway.term
    assert term is not None
    eventually(lambda: term.machine.members == {})


def test_what_leaves_for_good_has_to_say_so_in_the_right_words(instance: Instances, connect: Connect) -> None:
    s1 = connect(instance().start_elected())
    s1.register()
    refused = s1.ask("leave", offsets={}, for_good="yes")
    assert isinstance(refused, Refused)
    assert refused.code == "bad-value"
