"""The table of docs/threat-model.md (who may do what), compared with the plan and with a real ZooKeeper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_coord.errors import MultiFailed, NoAuth, StoreError
from kafka_coord.zk import layout
from kafka_coord.zk.acl import ANYONE, RULES, AclPlan, Identity, Permission, digest_identity, rule_of
from kafka_coord.zk.acl_tree import AclChange
from kafka_coord.zk.session import KazooStore
from kafka_coord.zk.store import Check, Create, Delete, Op, SetData
from tests.security.conftest import PASSWORDS, OpenAs, credentials, identified, plan

pytestmark = pytest.mark.zookeeper

DOCUMENT = Path(__file__).parents[2] / "docs" / "threat-model.md"
NAMES = {
    "coordinator": "coordinator",
    "operator": "operator",
    "`delays`": "delays",
    "`sales`": "sales",
    "unnamed": "others",
    "stranger": "stranger",
}
"""Who the table names, as users of these tests: both named groups, the others, and a stranger."""
USERS = tuple(NAMES.values())

_ROW = re.compile(r"\| `(create|delete|set|get|list|check|acl) ([^` ]+)` \| ([^|]+) \| [^|]* \|")
_NEEDS = {"set": Permission.WRITE, "acl": Permission.ADMIN, "get": Permission.READ}
_NEEDS |= {"list": Permission.READ, "check": Permission.READ}
_NOWHERE = Check("/consumers/there-is-no-such-znode")


@dataclass(frozen=True)
class Row:
    operation: str
    path: str
    allowed: dict[str, bool]

    def __str__(self) -> str:
        return f"{self.operation} {self.path}"


def rows() -> Iterator[Row]:
    for operation, path, who in _ROW.findall(DOCUMENT.read_text()):
        told = set(USERS) if who == "everyone" else {NAMES[name] for name in who.split(", ")}
        yield Row(operation, f"/consumers/{path}", {user: user in told for user in USERS})


def test_the_document_has_a_row_for_writes_to_every_place_of_the_plan():
    written = {rule.place for row in rows() if row.operation == "set" and (rule := rule_of(row.path))}
    structure = {"/consumers", layout.COORDINATORS, layout.REQUESTS, layout.GROUPS, layout.COORDINATOR}
    parts = ("ids", "channel", "owners", "offsets", "unresolved", "details", "details/<topic>")
    structure |= {f"/consumers/groups/<group>/{part}" for part in parts}
    assert {rule.place for rule in RULES} - structure - {"/consumers/coordinators/<instance>"} == written - structure
    assert len(list(rows())) > 35


def test_the_table_is_what_the_plan_says():
    found = {str(row): {user: by_plan(plan(), identity_of(user), row) for user in USERS} for row in rows()}
    assert found == {str(row): row.allowed for row in rows()}


def test_a_real_zookeeper_allows_and_refuses_what_the_table_says(open_as: OpenAs):
    populate(open_as(identified("coordinator")))
    stores = {user: open_as(credentials(user)) for user in USERS}
    found = {str(row): {user: is_allowed(stores[user], row) for user in USERS} for row in rows()}
    assert found == {str(row): row.allowed for row in rows()}


def identity_of(user: str) -> Identity:
    return ANYONE if user == "stranger" else digest_identity(user, PASSWORDS[user])


def by_plan(acl_plan: AclPlan, identity: Identity, row: Row) -> bool:
    """The rights that follow from the plan by ZooKeeper's rules: create and delete are rights to the parent."""
    at = row.path
    needed = _NEEDS.get(row.operation)
    if needed is None:
        needed = Permission.CREATE if row.operation == "create" else Permission.DELETE
        at = row.path.rpartition("/")[0]
    acl = acl_plan.of(at)
    return any(one.identity in {identity, ANYONE} and needed & one.permissions for one in acl)


def is_allowed(store: KazooStore, row: Row) -> bool:
    """Asks the server and changes nothing, because the operation is part of a multi that always fails afterwards."""
    try:
        match row.operation:
            case "get":
                store.get(row.path)
            case "list":
                store.children(row.path)
            case "acl":
                (before,) = store.read_acls([row.path])
                (refusal,) = store.write_acls([AclChange(row.path, plan().of(row.path), -1)])
                assert before is not None
                return not isinstance(refusal, NoAuth)
            case _:
                store.multi([operation(row), _NOWHERE])
    except NoAuth:
        return False
    except MultiFailed as failure:
        # the server checks rights first: only those with the right learn that the znode already exists, for instance
        return not (failure.index == 0 and isinstance(failure.cause, NoAuth))
    except StoreError as failure:
        raise AssertionError(f"{row}: {failure}") from failure
    return True


def operation(row: Row) -> Op:
    match row.operation:
        case "create":
            return Create(row.path, sequence=row.path.endswith("-"))
        case "delete":
            return Delete(row.path)
        case "set":
            return SetData(row.path, b"x")
        case _:
            return Check(row.path)


def populate(store: KazooStore) -> None:
    """A tree that contains everything that the table names."""
    for path in layout.PERSISTENT_ROOTS:
        store.ensure_path(path)
    store.ensure_prepared()
    for path in (
        layout.COORDINATOR,
        layout.COORDINATOR_EPOCH,
        layout.instance(1),
        layout.PAUSED,
        layout.HISTORY,
        layout.SUCCESSOR,
        layout.RESTORED,
        layout.held("delays"),
        layout.RETENTION,
        layout.HEARD,
        layout.missing_right(1),
        layout.kinds_heard(1, 1),
        layout.MIRROR_TROUBLE,
        layout.CHANGED,
        f"{layout.MIRRORED_BROKERS}/1",
        f"{layout.MIRRORED_TOPICS}/flights/partitions/0/state",
        layout.request("request-0000000000"),
        *(
            path
            for group in ("delays", "unnamed")
            for path in (
                layout.paused(group),
                layout.assignment(group),
                layout.history(group),
                layout.settled(group),
                layout.ledger(group, "c1"),
                layout.registration(group, "c1"),
                layout.command(group, "c1", "stop-0000000000"),
                layout.offset(group, "flights", 0),
                layout.offset_details(group, "flights", 0),
                layout.refusals(group, "c1"),
            )
        ),
    ):
        store.ensure_path(path)
