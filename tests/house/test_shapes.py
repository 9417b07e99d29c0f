"""The shapes of JSON documents: what describes them is what their types say, and nobody wrote it by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from kafka_coord.groups.group import GroupDocument
from kafka_coord.model.codec import dec_hook, enc_hook
from kafka_coord.monitor.audit.report import AuditDocument, AuditFindingDocument
from kafka_coord.monitor.dashboard.documents import PartitionRow
from tests.house import shapes

STALE = "a document, route or action has changed; run scripts/shapes"


def test_the_description_of_the_api_is_that_of_the_types() -> None:
    assert shapes.OPENAPI.read_text() == shapes.openapi(), STALE


def test_the_shapes_in_the_documents_are_those_of_the_types() -> None:
    text = shapes.OPERATIONS.read_text()
    assert text == shapes.written(text), STALE
    assert all(f"<!-- shape: {name} -->" in text for name in shapes.EXAMPLES)


@pytest.mark.parametrize("name", shapes.EXAMPLES)
def test_an_example_is_a_valid_document(name: str) -> None:
    example, _ = shapes.EXAMPLES[name]
    shape = AuditDocument[AuditFindingDocument] if isinstance(example, AuditDocument) else type(example)
    assert msgspec.convert(msgspec.to_builtins(example, enc_hook=enc_hook), shape, dec_hook=dec_hook) == example


def test_the_description_of_the_api_has_a_meaning_for_every_operation_and_no_open_end() -> None:
    document = json.loads(shapes.openapi())
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert "Document" not in name
    for reference in references(document):
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_a_field_says_what_it_means_where_it_is_defined() -> None:
    found = shapes.meanings(PartitionRow)
    assert found["since"] == "Since when the verdict has been true"
    assert found["gone"] == "The unread records that were deleted", "it is inherited"
    assert shapes.meanings(GroupDocument)["lag"] == "The sum of the known lags", "the type says it"
    assert "topic" not in found


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["$ref"], *references(list(value.values()))] if "$ref" in value else references([*value.values()])
    return [found for one in value for found in references(one)] if isinstance(value, list) else []
