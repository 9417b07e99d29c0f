"""Tests that the schema and the test vectors of docs/socket-protocol.md agree with the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kafka_coord.channel import search
from kafka_coord.channel.frames import MAX_FRAME_BYTES, MAX_UNANSWERED, Asked, BadFrame, Decoder, Fault, Rpc
from kafka_coord.channel.membership import SAFETY
from kafka_coord.channel.messages import (
    WAIT_MS,
    ClusterMetadata,
    Code,
    Coordinator,
    MessageType,
    MetadataQuestion,
    Ping,
    Register,
    Registered,
    Resume,
    read_command,
    read_coordinator,
    read_offsets,
    read_outstanding,
    read_refused,
    read_unresolved,
)
from kafka_coord.errors import MalformedValue
from kafka_coord.model import Member, Mode, StartFetcher, StopFetcher, Subscription, TopicPartition

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "socket-protocol.md").read_text()
SCHEMA = json.loads((DOCS / "socket-protocol.schema.json").read_text())
VECTORS = json.loads((DOCS / "socket-protocol.vectors.json").read_text())

READ = {
    "cluster-metadata": MetadataQuestion.from_json,
    "answer to cluster-metadata": ClusterMetadata.from_json,
    "register": Register.from_json,
    "answer to register": Registered.from_json,
    "resume": Resume.from_json,
    "answer to resume": read_outstanding,
    "answer to commit": lambda frame: read_refused(frame, "commit"),
    "answer to leave": lambda frame: read_refused(frame, "leave"),
    "unresolved": read_unresolved,
    "answer to unresolved": lambda frame: read_offsets(frame, "unresolved"),
    "ping": Ping.from_json,
    "stop-fetcher": read_command,
    "start-fetcher": read_command,
    **{
        name: lambda frame, name=name: read_offsets(frame, name)
        for name in (
            *("answer to ping", "answer to stop-fetcher", "answer to start-fetcher"),
            *("commit", "committed", "leave"),
        )
    },
}


def schema_of(message: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{message}", "$defs": SCHEMA["$defs"]}


def check(message: str, frame: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema_of(message)).validate(frame)


def test_the_schema_is_valid_and_names_every_message_and_code() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    defined = set(SCHEMA["$defs"])
    assert defined >= {str(kind) for kind in MessageType} | {f"answer to {kind}" for kind in MessageType}
    codes = {str(code) for code in [*Code, *Fault]}
    assert set(SCHEMA["$defs"]["error"]["properties"]["code"]["examples"]) == codes
    assert codes <= {word for line in PAGE.splitlines() for word in line.split("`")[1::2]}
    assert {vector["message"] for vector in VECTORS["frames"]} >= {str(kind) for kind in MessageType}


def test_the_limits_on_the_page_equal_those_in_the_code() -> None:
    assert f"at most {MAX_FRAME_BYTES:,}." in " ".join(PAGE.split())
    assert f"A side with {MAX_UNANSWERED} unanswered requests must wait" in PAGE


@pytest.mark.parametrize(
    "line",
    [
        f"| for a connection to a host | {search.CONNECT_S:.0f} s |",
        f"| {search.CONNECT_S:.0f} s, plus `wait_ms` ({WAIT_MS:,}) if the request has it |",
        f"| {search.LONGEST_PAUSE_S:.0f} s, or a quarter of `session_timeout_ms` if that is shorter;"
        f" {search.HURRIED_PAUSE_S * 1000:.0f} ms while a lease remains |",
        f"pause for {search.FIRST_PAUSE_S * 1000:.0f} ms, then twice as long",
    ],
)
def test_the_waits_on_the_page_equal_those_in_the_code(line: str) -> None:
    assert line in PAGE.replace("\n   ", " ")
    assert (search.SILENCE, search.SHARE_OF_LEASE, SAFETY) == (1 / 2, 1 / 4, 1 / 10), "the page has these in words"


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda vector: vector["message"])
def test_each_frame_is_decoded_matches_its_schema_and_is_read(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["bytes"])
    decoder = Decoder()
    half = list(decoder.feed(raw[: len(raw) // 2]))
    assert [*half, *decoder.feed(raw[len(raw) // 2 :])] == [vector["frame"]]
    check(vector["message"], vector["frame"])
    check_frame = jsonschema.Draft202012Validator(SCHEMA)
    check_frame.validate(vector["frame"])
    if vector["message"] in READ:
        READ[vector["message"]](vector["frame"])


@pytest.mark.parametrize("vector", VECTORS["errors"], ids=lambda vector: vector["note"])
def test_each_invalid_frame_is_refused_with_its_code(vector: dict[str, Any]) -> None:
    with pytest.raises(BadFrame) as refused:
        list(Decoder().feed(bytes.fromhex(vector["bytes"])))
    assert (refused.value.fault, refused.value.id) == (vector["error"], vector["id"])
    assert refused.value.more.get("versions") == vector.get("versions")


READ_VECTORS = [vector for vector in VECTORS["frames"] if vector["message"] in READ]


@pytest.mark.parametrize("vector", READ_VECTORS, ids=lambda vector: vector["message"])
def test_the_code_requires_exactly_the_fields_that_the_schema_requires(
    vector: dict[str, Any],
) -> None:
    message, frame = vector["message"], vector["frame"]
    for name in frame.keys() - {"v", "id", "type"}:
        rest = {key: value for key, value in frame.items() if key != name}
        required = name in SCHEMA["$defs"][message]["required"]
        assert jsonschema.Draft202012Validator(schema_of(message)).is_valid(rest) is not required
        if required:
            with pytest.raises(MalformedValue):
                READ[message](rest)
        elif name != "pattern":  # without the pattern, the expression in this vector would be a topic
            READ[message](rest)


def test_the_table_of_errors_and_the_schema_agree_about_the_connection() -> None:
    table = PAGE.split("| the connection |\n")[1].split("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    fates = {
        code: {"stays open": "stays", "is closed": "closes"}[fate]
        for codes, _, _, fate in rows
        for code in codes.split("`")[1::2]
    }
    assert fates == SCHEMA["$defs"]["error"]["x-connection"]


def test_the_conversation_on_the_page_follows_the_rules() -> None:
    """Each frame must match its schema, and each end must accept the other's frames. When ids start from 1 again, a new
    connection begins."""
    block = PAGE.split("## An example")[1].split("```text\n")[1].split("```")[0]
    lines = [line for line in block.replace("\n   ", "").splitlines() if line[0] in "→←"]
    consumer, coordinator = Rpc(), Rpc()
    for line in lines:
        frame = json.loads(line[2:])
        mine, other = (consumer, coordinator) if line[0] == "→" else (coordinator, consumer)
        if frame["type"] == "register":
            consumer, coordinator = mine, other = Rpc(), Rpc()
        if frame["type"] == "answer":
            assert mine.answer(frame["id"]) == {"id": frame["id"], "type": "answer"}
        else:
            assert mine.ask(frame["type"])[0] == frame["id"], "each id must follow the previous one"
        event = other.take(frame)
        message = event.type if isinstance(event, Asked) else f"answer to {event.type}"
        check(message, frame)
    assert consumer.waiting == coordinator.waiting == 0
    assert len(lines) == 16


def test_a_coordinator_may_have_no_endpoint() -> None:
    frame = {"coordinator": {"instance": 1, "epoch": 7, "endpoint": None}}
    assert read_coordinator(frame, "") == Coordinator(1, 7, None)


def test_everything_that_the_code_writes_matches_the_schema() -> None:
    head = {"v": 1, "id": 1}
    member = Member("c1", 0, Subscription.to(["flights"]), session_timeout_ms=10_000, mode=Mode.EAGER, rack="r")
    check("register", head | {"type": "register"} | Register("delays", member, resume_key="k").to_json())
    check("resume", head | {"type": "resume"} | Resume("delays", "c1", 7, "k", "s").to_json())
    check("answer to register", head | {"type": "answer"} | Registered("c1", 7, 10_000, 3_333, 2).to_json())
    for question in (MetadataQuestion(), MetadataQuestion(WAIT_MS, 7)):
        check("cluster-metadata", head | {"type": "cluster-metadata"} | question.to_json())
    told = ClusterMetadata(1, {1: ("PLAINTEXT://b:9092",)}, ["b:7171"], None)
    check("answer to cluster-metadata", head | {"type": "answer"} | told.to_json())
    check("ping", head | {"type": "ping"} | Ping(1, 2).to_json())


def test_command_vectors_are_read_correctly() -> None:
    by_name = {vector["message"]: vector["frame"] for vector in VECTORS["frames"]}
    name, start = read_command(by_name["start-fetcher"])
    assert (name, type(start)) == ("start-0000000013", StartFetcher)
    assert isinstance(start, StartFetcher)
    assert {tp: point.offset for tp, point in start.starts.items()} == {
        TopicPartition("flights", 0): 120,
        TopicPartition("flights", 1): -1,
    }
    name, stop = read_command(by_name["stop-fetcher"])
    assert (name, type(stop)) == ("stop-0000000012", StopFetcher)
    assert set(stop.partitions) == {TopicPartition("flights", 1)}
