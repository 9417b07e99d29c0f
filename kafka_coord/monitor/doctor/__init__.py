"""Finds problems in an installation and gives a remedy for each."""

from kafka_coord.monitor.doctor.examination import LagSight, examine, examine_group
from kafka_coord.monitor.doctor.findings import Finding, Severity

__all__ = ["Finding", "LagSight", "Severity", "examine", "examine_group"]
