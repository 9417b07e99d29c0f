"""Kafka's messages: our decoder and kio's read our encoding. Bad bytes are refused, and have no other effect."""

from __future__ import annotations

import importlib
import importlib.resources
import io
import random
import re
from collections.abc import Iterator

import pytest

from kafka_coord.wire.messages import BadMessage, message, snake_case
from tests.wire.values import SmallNumbers, definitions, random_message

NAMES = definitions()
_KIO = importlib.resources.files("kio.schema")


def _kio_module(name: str, version: int) -> str:
    """The module below ``kio.schema`` that has this version, if any has."""
    kind = "request" if name.endswith("Request") else "response"
    message_name = snake_case(re.sub("(Request|Response)$", "", name))
    return f"{message_name}.v{version}.{kind}"


def _kio_versions(name: str) -> list[int]:
    """The versions that kio supports, without the oldest ones. Looks for files, because importing them takes long."""
    files = {version: _kio_module(name, version).replace(".", "/") + ".py" for version in message(name).versions}
    return [version for version, file in files.items() if _KIO.joinpath(file).is_file()]


KNOWN_TO_KIO = [name for name in NAMES if name.endswith(("Request", "Response")) and _kio_versions(name)]


@pytest.mark.parametrize("name", NAMES)
def test_an_encoded_message_decodes_to_an_equal_one(name: str) -> None:
    for version, chance in _repeated("back", name, 20):
        value = random_message(name, version, chance)
        data = bytes(message(name).encode(value, version))

        again, end = message(name).decode_at(b"before" + data + b"behind", version, 6)

        assert again == value
        assert end == 6 + len(data)


@pytest.mark.parametrize("name", KNOWN_TO_KIO)
def test_kio_reads_and_writes_the_same_bytes(name: str) -> None:
    for version in _kio_versions(name):
        read, write = _kio(name, version)
        chance = SmallNumbers(f"kio {name} {version}")
        for _ in range(5):
            data = bytes(message(name).encode(random_message(name, version, chance), version))

            assert write(read(data)) == data, version


@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_message_is_refused(name: str) -> None:
    for version, chance in _repeated("cut", name, 1):
        data = bytes(message(name).encode(random_message(name, version, chance), version))
        for length in sorted({chance.randrange(len(data)) for _ in range(30)} if data else set()):
            with pytest.raises(BadMessage):
                message(name).decode(data[:length], version)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_bytes_are_read_or_refused_with_the_documented_error(name: str) -> None:
    for version, chance in _repeated("spoilt", name, 50):
        data = bytearray(message(name).encode(random_message(name, version, chance), version))
        for _ in range(chance.choice((1, 2, 5))):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            message(name).decode(bytes(data), version)
        except BadMessage:
            continue


def test_an_array_of_more_elements_than_bytes_is_refused_before_anything_is_made() -> None:
    data = b"\0\1g" + b"\x7f\xff\xff\xff"  # DescribeGroups 0 begins with its array: 0x00016700 ... is its count
    with pytest.raises(BadMessage, match="claims more elements than there are bytes"):
        message("DescribeGroupsRequest").decode(b"\x7f\xff\xff\xff" + data, 0)


def test_a_value_that_a_version_would_lose_is_refused() -> None:
    lost = message("JoinGroupResponse")(skip_assignment=True)
    with pytest.raises(BadMessage, match="version 5 cannot carry skip_assignment"):
        message("JoinGroupResponse").encode(lost, 5)


def test_a_null_that_a_version_does_not_know_is_refused() -> None:
    with pytest.raises(BadMessage, match="protocol_name must not be null"):
        message("JoinGroupResponse").encode(message("JoinGroupResponse")(protocol_name=None), 6)


def test_text_that_is_not_utf_8_is_read_as_kafka_reads_it() -> None:
    request = message("FindCoordinatorRequest").decode(b"\0\3a\xffb", 0)
    assert request.key == "a\N{REPLACEMENT CHARACTER}b"


def _repeated(test: str, name: str, times: int) -> Iterator[tuple[int, random.Random]]:
    """Tests each version this many times, with its own seed, so that a failure can be repeated."""
    for version in message(name).versions:
        chance = random.Random(f"{test} {name} {version}")
        for _ in range(times):
            yield version, chance


def _kio(name: str, version: int):
    entity = getattr(importlib.import_module(f"kio.schema.{_kio_module(name, version)}"), name)
    serial = importlib.import_module("kio.serial")
    reader, writer = serial.entity_reader(entity), serial.entity_writer(entity)

    def write(value: object) -> bytes:
        buffer = io.BytesIO()
        writer(buffer, value)
        return buffer.getvalue()

    return (lambda data: reader(data, 0)[0]), write
