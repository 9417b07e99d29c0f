"""The judge of a chaos run. It applies pure rules to the run's files.

In the order of reading: ``findings`` are the results of rules, ``faults`` has the faults as intervals, ``ownership``
has the owners of each partition over time, and ``evidence`` has all files of a run. The rules are in ``reading``,
``groups``, ``failovers``, ``commits`` and ``tables``. ``cost`` computes the cost of faults, ``judging`` applies all
rules, and ``report`` writes the page.
"""

from tests.chaos.judge.judging import Report, judge
from tests.chaos.judge.report import write_report

__all__ = ["Report", "judge", "write_report"]
