"""Writes the shapes of the JSON documents into ``openapi.json`` and docs/operations.md: ``scripts/shapes``.

The types say everything: the fields, and in their docstrings what they mean. The routes and the actions say the paths.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from kafka_coord.groups.group import Document, Partitions, Time
from kafka_coord.model.codec import enc_hook
from kafka_coord.monitor.dashboard.documents import (
    DoneDocument,
    ErrorDocument,
    NothingBody,
    SessionDocument,
    TokenBody,
)
from kafka_coord.monitor.dashboard.operating import ACTIONS, OF_MANY
from kafka_coord.monitor.dashboard.routes import ROUTES
from kafka_coord.monitor.dashboard.site import MAX_PATHS
from tests.house.examples import EXAMPLES
from tests.house.rooms import ROOT

OPENAPI = ROOT / "kafka_coord" / "monitor" / "dashboard" / "assets" / "openapi.json"
OPERATIONS = ROOT / "docs" / "operations.md"
_SHAPE = re.compile(r"(<!-- shape: (.+?) -->\n).*?(<!--/shape-->)", re.DOTALL)
Json = dict[str, Any]


def meanings(shape: type) -> dict[str, str]:
    """The meaning of each field that has one, by its name in JSON: its docstring, or the description of its type."""
    found = {}
    for cls in reversed(inspect.getmro(shape)):
        if cls.__module__.startswith("kafka_coord."):
            statements = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
            for field, after in pairwise([*statements, ast.Pass()]):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[field.target.id] = _docstring(after)
    hints = get_type_hints(shape, include_extras=True)
    encoded = {one.name: one.encode_name for one in msgspec.structs.fields(shape)}
    return {encoded[name]: text for name in encoded if (text := found[name] or _described(hints[name]))}


def _docstring(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(ast.Constant(str(text))):
            return " ".join(text.split()).removesuffix(".")
    return ""


def _described(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return next((one.description for one in hint.__metadata__ if one.description), "")
    return next(filter(None, map(_described, get_args(hint))), "")


# --- openapi.json ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the API. ``answer`` and ``body`` are types, or ``None``."""

    path: str
    method: str
    summary: str
    answer: Any
    body: Any = None
    description: str = ""
    query: tuple[str, ...] = ()
    for_operators: bool = False
    may_fail: bool = True


def operations() -> Iterator[Operation]:
    for route in ROUTES:
        answer = get_type_hints(route.read)["return"]
        yield Operation(route.path, "get", route.summary, answer, query=route.query)
    who = "Who is logged in, and whether this instance lets operators act"
    yield Operation("/session", "get", who, SessionDocument, may_fail=False)
    yield Operation(
        *("/login", "post", "Log in with a token or, without a token, with the client's certificate", SessionDocument),
        body=TokenBody,
        description="The response sets the session's cookie. Send its csrf as X-CSRF-Token with each action.",
    )
    yield Operation("/logout", "post", "End the session", SessionDocument, body=NothingBody)
    actions = [(f"/groups/{{group}}/{name}", one) for name, one in ACTIONS.items()]
    for path, one in [*actions, *((f"/actions/{name}", one) for name, one in OF_MANY.items())]:
        yield Operation(
            path, "post", one.summary, DoneDocument, body=one.body, description=one.description, for_operators=True
        )


EVENTS: Json = {
    "summary": "Documents as they change (server-sent events)",
    "description": "Each event carries two lines of data. The first is {path, status}. In a document event, the "
    "second line is the whole document. In a change event, it is a list of changes: [path, value] sets a value, [path] "
    "removes it, and [path, values, append] appends values, where a path is a list of keys and indexes. In a trouble "
    "event, it says why there is no document.",
    "parameters": [
        {
            "name": "path",
            "in": "query",
            "required": True,
            "description": f"A path of this API; may be repeated up to {MAX_PATHS} times",
            "schema": {"type": "string"},
        }
    ],
    "responses": {
        "200": {"description": "The stream", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    },
}


def of_our_type(wanted: type) -> Json:
    """The schema of a type of this project that msgspec does not know."""
    if wanted is Time:
        return {"type": "string", "format": "date-time"}
    return {"type": "object", "additionalProperties": {"type": "string"}}


PARTITIONS: Json = msgspec.json.schema(Partitions, schema_hook=of_our_type)
_PARTITIONS = {"$ref": "#/components/schemas/Partitions"}
INFO: Json = {
    "title": "kafka-coord",
    "version": "1",
    "description": "The dashboard's documents. The API is read-only, unless the instance has operators (serve "
    "--http-operators). Times are ISO 8601 in UTC unless a field ends in _ms.",
    "license": {"name": "Apache-2.0"},
}
SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "kafka-coord-PORT",
        "description": "Over TLS, the name is __Host-kafka-coord-PORT",
    },
    "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"},
}


def openapi() -> str:
    """The description of the JSON API."""
    all_operations = list(operations())
    types = {str(one): one for one in chain.from_iterable((one.answer, one.body) for one in all_operations) if one}
    types["error"] = ErrorDocument
    made, components = msgspec.json.schema_components(
        types.values(), ref_template="#/components/schemas/{name}", schema_hook=of_our_type
    )
    schemas = dict(zip(types, made, strict=True))
    paths: Json = {}
    for one in all_operations:
        paths.setdefault(one.path, {})[one.method] = _operation(one, schemas)
    paths["/events"] = {"get": EVENTS}
    document = {
        "openapi": "3.1.0",
        "info": INFO,
        "servers": [{"url": "/api/v1"}],
        "paths": paths,
        "components": {
            "securitySchemes": SECURITY,
            "responses": {"Error": _content("The reason why there is no document", schemas["error"])},
            "schemas": {
                **{_public(name): _component(name, schema) for name, schema in sorted(components.items())},
                "Partitions": PARTITIONS,
            },
        },
    }
    return re.sub(r"#/components/schemas/\w+", lambda found: _public(found[0]), _pretty(document)) + "\n"


def _operation(one: Operation, schemas: Mapping[str, Json]) -> Json:
    done = "The document" if one.method == "get" else "The action was executed"
    parameters = [
        {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
        for place, names in (("path", re.findall(r"\{(\w+)\}", one.path)), ("query", one.query))
        for name in names
    ]
    return {
        "summary": one.summary,
        **({"description": one.description} if one.description else {}),
        **({"security": [{"bearer": []}, {"session": [], "csrf": []}]} if one.for_operators else {}),
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"required": True, **_content("", schemas[str(one.body)])}} if one.body else {}),
        "responses": {
            "200": _content(done, schemas[str(one.answer)]),
            **({"default": {"$ref": "#/components/responses/Error"}} if one.may_fail else {}),
        },
    }


def _content(description: str, schema: Json) -> Json:
    content = {"content": {"application/json": {"schema": schema}}}
    return {"description": description, **content} if description else content


def _component(name: str, schema: Json) -> Json:
    schema = {key: value for key, value in _shortened(schema).items() if key != "title"}
    if "description" in schema:
        schema["description"] = _plain(schema["description"])
    if "enum" in schema:
        schema["type"] = "string"
    if "properties" not in schema:
        return schema
    shape = _structs(msgspec.Struct)[name]
    if issubclass(shape, Document):  # its default is for those who make it
        fields = msgspec.structs.fields(shape)
        schema["required"] = [one.encode_name for one in fields if one.default is not msgspec.UNSET]
        schema["properties"] = {field: _without_default(one) for field, one in schema["properties"].items()}
    texts = meanings(shape)
    for field, described in schema["properties"].items():
        if field in texts and described != _PARTITIONS:
            schema["properties"][field] = {**described, "description": _plain(texts[field])}
    return schema


def _without_default(schema: Json) -> Json:
    return {key: value for key, value in schema.items() if key != "default"}


def _shortened(schema: Any) -> Any:
    """Writes ``null`` as one of the types, and names :data:`PARTITIONS`."""
    if isinstance(schema, list):
        return [_shortened(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema == PARTITIONS:
        return _PARTITIONS
    schema = {key: _shortened(value) for key, value in schema.items()}
    match schema.get("anyOf"):
        case [{"type": str(other)} as described, {"type": "null"}]:
            return {**described, "type": [other, "null"], **{key: schema[key] for key in schema if key != "anyOf"}}
    return schema


def _pretty(value: Any, margin: str = "") -> str:
    """Formats JSON. What fits in a line stays in a line, except the outermost object."""
    line = json.dumps(value, ensure_ascii=False)
    if (margin and len(margin) + len(line) <= 110) or not isinstance(value, dict | list):
        return line
    inner = f"{margin}  "
    if isinstance(value, list):
        parts, ends = [_pretty(one, inner) for one in value], "[]"
    else:
        parts, ends = [f"{json.dumps(key)}: {_pretty(one, inner)}" for key, one in value.items()], "{}"
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(parts) + f"\n{margin}{ends[1]}"


def _public(name: str) -> str:
    return name.removesuffix("Document").removesuffix("Body")


def _structs(base: type) -> dict[str, type]:
    found: dict[str, type] = {}
    subclasses: list[type] = base.__subclasses__()
    for one in subclasses:
        found |= {one.__name__: one, **_structs(one)}
    return found


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "").split())


# --- docs/operations.md ----------------------------------------------------------------------------------------------


def written(document: str) -> str:
    """Returns the document with each shape written anew between its markers."""
    return _SHAPE.sub(lambda found: f"{found[1]}{shape(found[2])}{found[3]}", document)


def shape(name: str) -> str:
    """The example of a document, and a table of its fields with their meaning."""
    example, fields = EXAMPLES[name]
    lines = [
        "```json",
        _pretty(msgspec.to_builtins(fields, enc_hook=enc_hook)),
        "```",
        "",
        "| field | meaning |",
        "|---|---|",
    ]
    for meaning, rows in groupby(_rows(example, fields), lambda row: row[1]):
        lines.append(f"| {', '.join(f'`{field}`' for field, _ in rows)} | {_markdown(meaning)} |")
    return "\n".join([*lines, ""])


def _rows(example: Document, fields: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    texts = meanings(type(example))
    for name, value in fields.items():
        if name in texts:
            yield prefix + name, texts[name]
        if isinstance(value, list) and value and isinstance(value[0], Document):
            yield from _rows(value[0], value[0].row(), f"{prefix}{name}[].")


def _markdown(text: str) -> str:
    def linked(decision: re.Match[str]) -> str:
        (page,) = (ROOT / "docs" / "adr").glob(f"{int(decision[1]):04}-*.md")
        return f"[{decision[0]}](adr/{page.name})"

    return re.sub(r"ADR (\d+)", linked, text.replace("``", "`"))


if __name__ == "__main__":
    OPENAPI.write_text(openapi())
    OPERATIONS.write_text(written(OPERATIONS.read_text()))
