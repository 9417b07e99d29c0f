"""The waits that scenes measure, with their bounds. Pure."""

OTHER_TOPIC = "the first record of a topic that can be read"
AFTER_QUIET = "a commit after a quiet time"
BESIDE = "the longest time without a commit beside a large one"
STOPPED = "the longest time without a commit at an instance's stop"
NAMED = "the last time that FindCoordinator named a killed instance"
RETURNED = "the first record under the new protocol"

BOUNDS_S = {
    OTHER_TOPIC: 10.0,
    AFTER_QUIET: 1.0,
    BESIDE: 1.0,
    STOPPED: 2.3,
    NAMED: 7.5,
    RETURNED: 10.0,
}
"""The longest allowed waits in seconds. A member joins and begins within a few seconds. Kafka answers a commit after a
quiet time within 0.15 s. Its clients pause for 1.8 s at a restart of its brokers, and 0.5 s more are allowed. An
instance's session of 6 s ends at ZooKeeper's next tick, and the others hear of it at once."""
