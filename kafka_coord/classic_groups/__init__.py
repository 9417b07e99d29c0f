"""Client-assigned groups: Kafka's classic group protocol as a pure state machine.

It does no I/O and has no clock: events and the time go in, instructions come out.
"""
