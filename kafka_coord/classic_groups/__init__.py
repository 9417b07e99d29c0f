"""Client-assigned groups: Kafka's classic group protocol as a pure state machine.

Does no I/O and does not read a clock: it takes events together with the current time and returns instructions.
"""
