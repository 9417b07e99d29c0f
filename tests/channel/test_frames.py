"""Tests that frames are decoded as they were encoded, however the bytes are divided, and that invalid bytes cause an
error that names the fault and are not kept."""

from __future__ import annotations

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_coord.channel.frames import MAX_FRAME_BYTES, BadFrame, Decoder, Fault, decode, encode
from kafka_coord.channel.link import ask_cluster_metadata

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
frames = st.builds(
    lambda number, kind, more: {**more, "v": 1, "id": number, "type": kind},
    st.integers(0, (1 << 53) - 1),
    st.text(max_size=12),
    st.dictionaries(st.text(max_size=5), values, max_size=3),
)


@given(st.lists(frames, max_size=4), st.data())
def test_frames_can_be_decoded_however_their_bytes_are_divided(sent: list[dict[str, Any]], data: st.DataObject) -> None:
    raw = b"".join(encode(frame) for frame in sent)
    decoder, found = Decoder(), []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        found += list(decoder.feed(raw[:size]))
        raw = raw[size:]
    assert found == sent
    assert decoder.pending == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_either_frames_or_a_named_fault(raw: bytes) -> None:
    decoder = Decoder()
    faults: list[BadFrame] = []
    try:
        found = list(decoder.feed(raw))
    except BadFrame as error:
        found, faults = [], [error]
    assert all(frame["v"] == 1 for frame in found)
    assert all(fault.fault in Fault and str(fault) for fault in faults)
    assert decoder.pending <= len(raw)


@pytest.mark.parametrize(
    ("body", "fault", "number"),
    [
        (b"", Fault.MALFORMED_FRAME, 0),
        (b"\xff\xfe", Fault.MALFORMED_FRAME, 0),
        (b"[1]", Fault.MALFORMED_FRAME, 0),
        (b"null", Fault.MALFORMED_FRAME, 0),
        (b'{"v":1,"id":3}', Fault.MALFORMED_FRAME, 3),
        (b'{"v":1,"id":3,"type":7}', Fault.MALFORMED_FRAME, 3),
        (b'{"v":1,"type":"ping"}', Fault.MALFORMED_FRAME, 0),
        (b'{"v":1,"id":-1,"type":"ping"}', Fault.MALFORMED_FRAME, 0),
        (b'{"v":1,"id":true,"type":"ping"}', Fault.MALFORMED_FRAME, 0),
        (b'{"v":1,"id":9007199254740992,"type":"ping"}', Fault.MALFORMED_FRAME, 0),
        (b'{"v":2,"id":4,"type":"ping"}', Fault.UNSUPPORTED_VERSION, 4),
        (b'{"v":true,"id":4,"type":"ping"}', Fault.UNSUPPORTED_VERSION, 4),
        (b'{"id":4,"type":"ping"}', Fault.UNSUPPORTED_VERSION, 4),
        (b'{"v":1,"id":4,"type":"\\ud800"}', Fault.MALFORMED_FRAME, 0),
        (b'{"v":1,"id":4,"a":' + b"[" * 100_000, Fault.MALFORMED_FRAME, 0),
    ],
)
def test_the_error_for_an_invalid_frame_names_the_fault(body: bytes, fault: Fault, number: int) -> None:
    with pytest.raises(BadFrame) as raised:
        decode(body)
    assert (raised.value.fault, raised.value.id) == (fault, number)


def test_a_length_that_is_too_large_is_refused_before_the_body_arrives() -> None:
    with pytest.raises(BadFrame) as raised:
        list(Decoder().feed(struct.pack("!I", MAX_FRAME_BYTES + 1)))
    assert raised.value.fault is Fault.FRAME_TOO_LARGE


def test_the_largest_frame_is_accepted_and_one_byte_more_is_refused() -> None:
    room = MAX_FRAME_BYTES - len(json.dumps({"v": 1, "id": 1, "type": "x", "a": ""}, separators=(",", ":")))
    (frame,) = Decoder().feed(encode({"id": 1, "type": "x", "a": "y" * room}))
    assert len(frame["a"]) == room
    with pytest.raises(BadFrame):
        encode({"id": 1, "type": "x", "a": "y" * (room + 1)})


def test_frames_before_an_invalid_one_are_returned() -> None:
    frames = Decoder().feed(encode({"id": 1, "type": "ping"}) + struct.pack("!I", 2) + b"{]")
    assert next(frames)["id"] == 1
    with pytest.raises(BadFrame):
        next(frames)


def test_an_instance_that_speaks_another_version_is_named() -> None:
    """As the instance does with such a consumer (tests/frontends/test_bad_peers.py)."""
    body = b'{"v":2,"id":1,"type":"answer"}'
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(len(body).to_bytes(4, "big") + body)

        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer)
            with pytest.raises(BadFrame, match="version 2 is not supported; use 1"):
                ask_cluster_metadata(f"127.0.0.1:{listening.getsockname()[1]}")
            answering.result()
