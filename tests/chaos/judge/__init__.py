"""The judge of a chaos run: pure rules over the run's files. It does not know the processes.

In the order of reading: ``findings`` (what a rule says), ``faults`` (what was done, as intervals), ``ownership`` (who
had which partition when), ``evidence`` (all of a run), the rules (``reading``, ``groups``, ``failovers``), ``cost``,
``judging`` (all of it) and ``report``.
"""

from tests.chaos.judge.judging import Report, judge
from tests.chaos.judge.report import write_report

__all__ = ["Report", "judge", "write_report"]
