"""The files of a run's directory. The testbed and the processes write them, and the judge reads them.

::

    DIR/run.json                         Run: the setup, written at the start
    DIR/events.jsonl                     Event: all faults and all measurements
    DIR/produced.jsonl                   Produced: the records that brokers acknowledged
    DIR/consumers/<name>.<pid>.jsonl     ConsumerLine: one process, from ``opened`` to ``closed``
    DIR/offsets.jsonl                    OffsetsRead: offsets of stock clients' groups, read by an observer
    DIR/log.jsonl                        LogRead: the records of the groups log, read during the run
    DIR/world/consumers/<name>.<pid>.jsonl  ConsumerLine: one member in an event of the world
    DIR/group-log.json                   the output of ``kafka-coord audit --group-log`` at the end
    DIR/resources.jsonl                  Usage: memory, threads, descriptors per process; znodes of the ensemble

Processes append to every file except run.json, without a buffer and with one write for each line. So written lines
survive a ``kill -9``, and only the last line may be incomplete. Readers leave out an incomplete line. Each ``t`` is in
seconds of CLOCK_MONOTONIC (``time.monotonic()``), which all processes of the machine share. ``wall`` is in seconds
since 1970, for people and logs.
"""

from tests.chaos.journal.consumers import (
    Closed,
    Committed,
    Committing,
    ConsumerJournal,
    ConsumerLine,
    ConsumerWriter,
    Handed,
    Lost,
    Opened,
    Rejoined,
    Started,
    Stopped,
    read_consumer,
    read_consumers,
)
from tests.chaos.journal.events import Event, EventWriter, Kind, Phase, read_events
from tests.chaos.journal.log import Appended, LogPlace, LogRead, LogWriter, read_log
from tests.chaos.journal.observed import WORLD, Observed, Owed, Position, Waited
from tests.chaos.journal.offsets import OffsetsRead, OffsetsWriter, read_offsets
from tests.chaos.journal.records import Produced, ProducedWriter, Stretch, read_produced, stretches
from tests.chaos.journal.resources import ResourceWriter, Usage, read_resources
from tests.chaos.journal.run import Group, Participant, Run, Setup, read_run, write_run

GROUP_LOG = "group-log.json"

__all__ = [
    "GROUP_LOG",
    "WORLD",
    "Appended",
    "Closed",
    "Committed",
    "Committing",
    "ConsumerJournal",
    "ConsumerLine",
    "ConsumerWriter",
    "Event",
    "EventWriter",
    "Group",
    "Handed",
    "Kind",
    "LogPlace",
    "LogRead",
    "LogWriter",
    "Lost",
    "Observed",
    "OffsetsRead",
    "OffsetsWriter",
    "Opened",
    "Owed",
    "Participant",
    "Phase",
    "Position",
    "Produced",
    "ProducedWriter",
    "Rejoined",
    "ResourceWriter",
    "Run",
    "Setup",
    "Started",
    "Stopped",
    "Stretch",
    "Usage",
    "Waited",
    "read_consumer",
    "read_consumers",
    "read_events",
    "read_log",
    "read_offsets",
    "read_produced",
    "read_resources",
    "read_run",
    "stretches",
    "write_run",
]
