"""What librdkafka wants of a consumer that only assigns partitions to itself.

librdkafka requires a ``group.id`` even then, and looks up that group's coordinator (librdkafka issue 3261); no setting
prevents it. No one joins these groups or commits to them, so no one needs a right to them: whoever may not describe
the group reads all the same, and the error that librdkafka reports is ignored.
"""

from __future__ import annotations

from confluent_kafka import KafkaError

GROUP_PREFIX = "kafka-coord."
"""The prefix of these groups. It distinguishes them from Kafka groups of the same name."""


def is_about_no_group(error: KafkaError) -> bool:
    """Returns whether the error only says that the user has no right to such a group."""
    return bool(error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED)
