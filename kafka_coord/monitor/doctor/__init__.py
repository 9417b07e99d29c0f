"""Looking for what is wrong with an installation, and saying what to do about it."""

from kafka_coord.monitor.doctor.examination import examine
from kafka_coord.monitor.doctor.findings import Finding, Severity

__all__ = ["Finding", "Severity", "examine"]
