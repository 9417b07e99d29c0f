"""Client-assigned groups: Kafka's classic group protocol as a pure state machine.

It does no I/O and reads no clock. It takes events together with the current time, and returns instructions.
"""
