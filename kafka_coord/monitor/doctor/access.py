"""Finds znodes that anyone may change, ACLs that differ from the plan, and passwords in clear text."""

from __future__ import annotations

from collections.abc import Iterator

from kafka_coord.errors import NoAuth
from kafka_coord.model.sequences import some
from kafka_coord.monitor.doctor.findings import Finding, info, ok, warning
from kafka_coord.zk import layout
from kafka_coord.zk.acl import AclPlan, open_to_change
from kafka_coord.zk.acl_tree import AclStore, TreeAcls, compare, read_tree_acls
from kafka_coord.zk.store import Store

MOST_OF_A_KIND = 500
"""The maximum number of znodes of each kind that the doctor checks. ``acl check`` has no limit."""

_CHECK = "acls"
_DOC = "docs/operations.md, Security"


def check_access(store: Store) -> Iterator[Finding]:
    """Checks whether anyone may change the coordination znodes, and whether the ACLs follow the plan."""
    if not isinstance(store, AclStore):
        return
    options = store.options
    if options.plan is not None:
        yield from _check_plan(store, options.plan)
    else:
        yield from _check_open(read_tree_acls(store, MOST_OF_A_KIND))
    yield from _check_kafka(store)
    if options.tls is None and options.digest is not None:
        what = "this client sends its ZooKeeper password in clear text, because it uses the digest scheme without TLS"
        yield warning(_CHECK, what, "set zookeeper.tls, or make sure that no one can eavesdrop on the network")


def _check_plan(store: AclStore, plan: AclPlan) -> Iterator[Finding]:
    found = compare(store, plan, MOST_OF_A_KIND)
    todo = "kafka-coord acl check lists all of them, and kafka-coord acl apply corrects them"
    wide = [one.path for one in found.deviations if one.open]
    other = [one.path for one in found.deviations if not one.open]
    if wide:
        yield warning(_CHECK, f"anyone who can reach ZooKeeper may change {some(wide, 3)}, contrary to the plan", todo)
    if other:
        yield warning(_CHECK, f"the ACL of {some(other, 3)} is not as planned", todo)
    if found.missing:
        yield warning(_CHECK, f"{some(found.missing, 3)} is missing, and consumers are not allowed to create it", todo)
    yield from _check_hidden(found.acls)
    if not (found.deviations or found.missing):
        yield ok(_CHECK, f"the ACLs of {found.acls.looked_at} znodes match the plan")


def _check_open(found: TreeAcls) -> Iterator[Finding]:
    wide = found.open
    if found.looked_at and len(wide) == found.looked_at:
        todo = f"this is fine on a trusted network; otherwise configure identities ({_DOC})"
        yield info(_CHECK, f"anyone who can reach ZooKeeper may change everything below {layout.CONSUMERS}", todo)
    elif wide:
        todo = f"give all instances and consumers the same settings; the other znodes are not open ({_DOC})"
        yield warning(_CHECK, f"anyone who can reach ZooKeeper may change {some(wide, 3)}", todo)
    elif found.looked_at:
        yield ok(_CHECK, f"the znodes below {layout.CONSUMERS} are closed to unauthorised clients")
    if found.unreadable:
        what = f"this client is not allowed to read the ACL of {some(found.unreadable, 3)}"
        yield warning(_CHECK, what, "check this client's credentials")
    yield from _check_hidden(found)


def _check_hidden(found: TreeAcls) -> Iterator[Finding]:
    if found.hidden:
        yield warning(
            _CHECK,
            f"this client is not allowed to list {some(found.hidden, 3)}",
            "check this client's credentials, and which identity created the znode",
        )


def _check_kafka(store: AclStore) -> Iterator[Finding]:
    """Checks the ACLs of Kafka's own znodes that the coordinator relies on."""
    paths = (layout.BROKER_IDS, layout.BROKER_TOPICS)
    wide = [
        path
        for path, one in zip(paths, store.read_acls(paths), strict=True)
        if one is not None and not isinstance(one, NoAuth) and open_to_change(one.acl)
    ]
    if wide:
        what = f"anyone who can reach ZooKeeper may change Kafka's own {' and '.join(wide)}"
        yield info(
            _CHECK, what, "to close them, set zookeeper.set.acl=true in Kafka and run zookeeper-security-migration.sh"
        )
