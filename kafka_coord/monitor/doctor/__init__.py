"""Finds what is wrong with an installation, and gives a remedy for each finding."""

from kafka_coord.monitor.doctor.examination import examine
from kafka_coord.monitor.doctor.findings import Finding, Severity

__all__ = ["Finding", "Severity", "examine"]
