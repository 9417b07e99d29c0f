"""Client-assigned groups: Kafka's classic group protocol as a pure state machine.

Nothing here does I/O or knows a clock: events and the time go in, instructions come out.
"""
