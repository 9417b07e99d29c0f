"""Checks every batch in the groups log against the rules for terms, groups and offsets."""

from kafka_coord.monitor.log_audit.findings import LogFinding, LogReport, LogRule
from kafka_coord.monitor.log_audit.judge import PartitionJudge
from kafka_coord.monitor.log_audit.reading import audit_groups_log

__all__ = ["LogFinding", "LogReport", "LogRule", "PartitionJudge", "audit_groups_log"]
