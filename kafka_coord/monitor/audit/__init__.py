"""Checks every write in ZooKeeper's transaction log against the invariants of docs/design.md."""

from kafka_coord.monitor.audit.event_history import EventHistory, GroupEvent, Selection, parse_partition
from kafka_coord.monitor.audit.replay import audit
from kafka_coord.monitor.audit.report import AuditFinding, AuditRule, Report, clock_time

__all__ = [
    "AuditFinding",
    "AuditRule",
    "EventHistory",
    "GroupEvent",
    "Report",
    "Selection",
    "audit",
    "clock_time",
    "parse_partition",
]
