"""Audits a simulated history, as ``kafka-coord audit`` audits the log of a real server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kafka_coord.monitor.audit import AuditFinding, Report
from kafka_coord.monitor.audit.auditor import Auditor
from kafka_coord.monitor.audit.state import ROOTS
from kafka_coord.monitor.audit.tree import ZnodeTree
from kafka_coord.monitor.audit.txnlog import CHECK, CLOSE_SESSION, CREATE, DELETE, MULTI, SET_DATA, Txn, TxnOperation
from kafka_coord.zk.store import ANY_VERSION, Check, WatchType
from tests.simulation.server import Transaction

_KINDS = {WatchType.CREATED: CREATE, WatchType.DELETED: DELETE, WatchType.CHANGED: SET_DATA}


def audit_history(log: Iterable[Transaction], session_timeout_ms: int) -> Report:
    """Replays ``log`` from its beginning. All sessions have the same timeout."""
    report = Report()
    auditor, tree = Auditor(report), ZnodeTree("", ROOTS)
    for txn in as_logged(log):
        auditor.state.session_timeouts_ms[txn.session_id] = session_timeout_ms
        step = tree.apply(txn)
        if step is not None:
            auditor.take(step)
    return report


def violations(log: Iterable[Transaction], session_timeout_ms: int) -> list[AuditFinding]:
    """Returns the violations in the writes of the code under test. Session 0 belongs to the simulation itself."""
    log = tuple(log)
    by_hand = {transaction.zxid for transaction in log if transaction.session == 0}
    found = audit_history(log, session_timeout_ms).violations
    return [violation for violation in found if violation.zxid not in by_hand]


def as_logged(log: Iterable[Transaction]) -> Iterator[Txn]:
    """Yields the records that a server writes. They have the final sequential names and versions, and a check has the
    version that it found."""
    versions: dict[str, int] = {}
    for transaction in log:
        operations = tuple(_operations(transaction, versions))
        kind = MULTI if transaction.ops else CLOSE_SESSION
        yield Txn(transaction.zxid, transaction.time_ms, transaction.session, kind, operations)


def _operations(transaction: Transaction, versions: dict[str, int]) -> Iterator[TxnOperation]:
    changes = iter(transaction.changes)
    for op in transaction.ops or transaction.changes:
        if isinstance(op, Check):
            found = versions.get(op.path, 0) if op.version == ANY_VERSION else op.version
            yield TxnOperation(CHECK, op.path, b"", found)
            continue
        change = next(changes)
        version = versions[change.path] + 1 if change.kind is WatchType.CHANGED else 0
        versions[change.path] = version
        yield TxnOperation(_KINDS[change.kind], change.path, change.data, version, change.owner != 0)
