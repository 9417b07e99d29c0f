"""Members from outside as a pure machine: stimuli in, instructions out, time an argument.

Nothing here talks, waits or looks at a clock. A front end says what came from its clients and carries out what is to be
said to them; :mod:`kafka_coord.frontends.members.term` does the same for ZooKeeper.
"""

from kafka_coord.frontends.members.machine.machine import MembershipMachine
from kafka_coord.frontends.members.machine.state import MemberState

__all__ = ["MemberState", "MembershipMachine"]
