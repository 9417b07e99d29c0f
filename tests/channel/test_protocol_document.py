"""Tests that the code reads and writes every example in docs/protocol.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from kafka_coord.channel.operations import decode_command
from kafka_coord.model import Member, Request, parse_command_id
from kafka_coord.model import json_fields as fields

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
_BLOCK = re.compile(r"^ *```(\w+) (\w+) ?(\S*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(language: str, kind: str) -> list[tuple[str, bytes]]:
    """The (name, text) of each fenced block of this kind, such as ```json command stop-0000000004."""
    found = _BLOCK.findall(PROTOCOL.read_text("utf-8"))
    return [(name, text.encode()) for lang, what, name, text in found if (lang, what) == (language, kind)]


@pytest.mark.parametrize(("name", "text"), blocks("json", "command"))
def test_the_documents_commands_survive_a_round_trip(name: str, text: bytes) -> None:
    assert parse_command_id(name) is not None
    command = decode_command(text, f"/channel/c/{name}")
    written = fields.dump(command.to_json())
    assert decode_command(written, f"/channel/c/{name}") == command
    assert fields.load(written, name) == fields.load(text, name)


@pytest.mark.parametrize("text", [text for _, text in blocks("json", "registration")])
def test_the_documents_registrations_survive_a_round_trip(text: bytes) -> None:
    value = fields.load(text, "ids/c")
    member = Member.from_json(value, "ids/c", consumer="c", incarnation=1)
    assert member.to_json() == value


def test_the_documents_request_is_read_correctly() -> None:
    ((_, text),) = blocks("json", "request")
    request = Request.from_json(fields.load(text, "request"), "request")
    assert (request.type, request.group, request.consumer) == ("evict", "delays", "c1")


def test_all_kinds_of_examples_are_found() -> None:
    assert len(blocks("json", "command")) == 5
    assert len(blocks("json", "registration")) == 3
    assert PROTOCOL.read_text("utf-8").count("```json") == 9


@pytest.fixture
def zk(zk_hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(zk_hosts)
    client.start(timeout=15)
    yield client
    client.stop()
    client.close()


@pytest.mark.zookeeper
def test_the_documents_code_registers_a_consumer(zk: KazooClient) -> None:
    ((_, source),) = blocks("python", "register")
    shown: dict[str, Any] = {}
    exec(source, shown)  # noqa: S102 - our own document
    register: Callable[..., tuple[int, int]] = shown["register"]

    incarnation, token = register(zk, "g", "c", b"{}")

    assert zk.exists("/consumers/groups/g/ids/c").czxid == incarnation
    assert zk.exists("/consumers/groups/g/channel/c").version == token
    with pytest.raises(NodeExistsError):
        register(zk, "g", "c", b"{}")
    assert zk.exists("/consumers/groups/g/channel/c").version == token  # the failed multi has changed nothing
    zk.delete("/consumers/groups/g/ids/c")
    assert register(zk, "g", "c", b"{}")[1] > token
