"""Client-assigned groups: Kafka's classic group protocol as a pure state machine.

It does no I/O and has no clock. It takes events and the time, and returns instructions.
"""
