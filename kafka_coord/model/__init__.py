"""The values that all other packages use, with their JSON forms. Nearly all of them are frozen. Nothing here does
I/O."""

from kafka_coord.model.action import Action
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
from kafka_coord.model.committed_offset import GONE_FOR_MS, CommittedOffset, OffsetDetails, is_gone_long_enough
from kafka_coord.model.coverage import Coverage, TopicOfOffsets
from kafka_coord.model.ledger import Assignment, Ledger
from kafka_coord.model.member import Departure, DepartureKind, Member, Mode, Subscription, SubscriptionKind
from kafka_coord.model.observation import (
    Channel,
    Observation,
    TopicInfo,
    Unreadable,
    is_identity,
    is_topic_id,
    same_topic,
)
from kafka_coord.model.operations import (
    Cause,
    CoordinatorInfo,
    Decision,
    GroupKind,
    GroupSettings,
    Pause,
    Process,
    Request,
    RequestType,
    history_to_json,
)
from kafka_coord.model.partitions import NO_PARTITIONS, PartitionSet, TopicPartition
from kafka_coord.model.settled import Settled, Zxids
from kafka_coord.model.streams import Streams

__all__ = [
    "GONE_FOR_MS",
    "NODE_PREFIX",
    "NO_OFFSET",
    "NO_PARTITIONS",
    "Action",
    "Assignment",
    "Broker",
    "Cause",
    "Channel",
    "Command",
    "CommandId",
    "CommandType",
    "CommittedOffset",
    "CoordinatorInfo",
    "Coverage",
    "Decision",
    "Departure",
    "DepartureKind",
    "GroupKind",
    "GroupSettings",
    "Ledger",
    "Listener",
    "Member",
    "Mode",
    "Observation",
    "OffsetDetails",
    "PartitionSet",
    "Pause",
    "Process",
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
    "TopicOfOffsets",
    "TopicPartition",
    "Unreadable",
    "Zxids",
    "command_from_json",
    "history_to_json",
    "is_gone_long_enough",
    "is_identity",
    "is_topic_id",
    "parse_command_id",
    "same_topic",
]
