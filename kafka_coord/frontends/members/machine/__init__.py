"""The member state machine, which turns stimuli into instructions for members without a ZooKeeper session.

It does no I/O, never blocks, and takes the current time as an argument. A front end passes in its clients' messages and
carries out the instructions for its clients. :mod:`kafka_coord.frontends.members.term` does the same for ZooKeeper.
"""

from kafka_coord.frontends.members.machine.machine import MembershipMachine
from kafka_coord.frontends.members.machine.state import MemberState

__all__ = ["MemberState", "MembershipMachine"]
