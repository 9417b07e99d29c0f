"""The state machine for members without a ZooKeeper session, which turns stimuli into instructions.

The machine does no I/O, never blocks, and takes the current time as an argument. A front end passes in its clients'
messages and carries out the instructions for them. :mod:`kafka_coord.frontends.members.term` does the same for
ZooKeeper.
"""

from kafka_coord.frontends.members.machine.machine import MembershipMachine
from kafka_coord.frontends.members.machine.state import MemberState

__all__ = ["MemberState", "MembershipMachine"]
