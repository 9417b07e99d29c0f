"""The frozen values that all other packages use, each with its JSON form. No module here does I/O."""

from kafka_coord.model.broker import Broker, Listener
from kafka_coord.model.command import (
    NO_OFFSET,
    NODE_PREFIX,
    Command,
    CommandId,
    CommandType,
    StartFetcher,
    StartPoint,
    StopFetcher,
    command_from_json,
    parse_command_id,
)
from kafka_coord.model.ledger import Assignment, Ledger
from kafka_coord.model.member import Member, Mode, Subscription, SubscriptionKind
from kafka_coord.model.observation import Channel, Observation, TopicInfo, Unreadable, same_topic
from kafka_coord.model.operations import (
    Cause,
    CoordinatorInfo,
    Decision,
    GroupSettings,
    Pause,
    Request,
    RequestType,
    history_from_json,
    history_to_json,
)
from kafka_coord.model.partitions import NO_PARTITIONS, PartitionSet, TopicPartition
from kafka_coord.model.settled import Settled, Zxids
from kafka_coord.model.streams import Streams

__all__ = [
    "NODE_PREFIX",
    "NO_OFFSET",
    "NO_PARTITIONS",
    "Assignment",
    "Broker",
    "Cause",
    "Channel",
    "Command",
    "CommandId",
    "CommandType",
    "CoordinatorInfo",
    "Decision",
    "GroupSettings",
    "Ledger",
    "Listener",
    "Member",
    "Mode",
    "Observation",
    "PartitionSet",
    "Pause",
    "Request",
    "RequestType",
    "Settled",
    "StartFetcher",
    "StartPoint",
    "StopFetcher",
    "Streams",
    "Subscription",
    "SubscriptionKind",
    "TopicInfo",
    "TopicPartition",
    "Unreadable",
    "Zxids",
    "command_from_json",
    "history_from_json",
    "history_to_json",
    "parse_command_id",
    "same_topic",
]
