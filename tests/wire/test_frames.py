"""How the kind of a client is found from the first request of its connection."""

from __future__ import annotations

import pytest

from kafka_coord.wire.frames import API_VERSIONS, RequestHeader, client_software, request_frame
from kafka_coord.wire.messages import message


@pytest.mark.parametrize(
    ("version", "client_id", "software"),
    [
        (3, "mine", "kafka-python 3.0.12"),
        (0, "aiokafka-0.14.0", "aiokafka 0.14.0"),
        (0, "mine", ""),
        (0, None, ""),
    ],
)
def test_a_client_is_known_by_its_software_name_or_as_aiokafka_by_its_default_client_id(
    version: int, client_id: str | None, software: str
) -> None:
    form = message("ApiVersionsRequest")
    told = form(client_software_name="kafka-python", client_software_version="3.0.12")
    frame = request_frame(RequestHeader(API_VERSIONS, version, 1, client_id, version >= 3), form, told)
    assert client_software(frame[4:]) == software
