"""Finds the lines at WARNING and above in the logs of instances and members. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_PYTHON = re.compile(r"^[0-9-]{10} [0-9:,.]+Z? (?:WARNING|ERROR|CRITICAL) ")
_LIBRDKAFKA = re.compile(r"^%[0-4]\|")
"""librdkafka writes ``%LEVEL|TIME|…``, with the levels of syslog: 4 is a warning."""
_OF_THE_LIBRARY_ITSELF = "KIP-848 Consumer Group Protocol is in Early Access"
_OTHER = re.compile(r"^(?:Traceback |Exception |[\w./-]+:[0-9]+: \w*Warning: )")


def warnings_in(lines: Iterable[str]) -> Iterator[str]:
    """Yields the warnings and errors of this project, of librdkafka and of Python. Those of Spark's own Java code are
    not among them (Spark writes its time with slashes), nor is what librdkafka says about its own support for KIP-848.
    """
    for line in lines:
        if any(form.match(line) for form in (_PYTHON, _LIBRDKAFKA, _OTHER)) and _OF_THE_LIBRARY_ITSELF not in line:
            yield line
