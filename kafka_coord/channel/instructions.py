"""The instructions that a :class:`~kafka_coord.channel.membership.Membership` gives its caller."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_coord.channel.frames import Frame
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.zk.store import SessionState


@dataclass(frozen=True, slots=True)
class Send:
    """Send a frame. If this fails, call :meth:`~kafka_coord.channel.membership.Membership.send_failed`."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the connection."""


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """Notify the session's listeners."""

    state: SessionState


@dataclass(frozen=True, slots=True)
class ChannelChanged:
    """Notify the watchers of the registration and the commands."""


@dataclass(frozen=True, slots=True)
class WakeWaiters:
    """Wake the waiting threads."""


@dataclass(frozen=True, slots=True)
class MetadataReceived:
    """Pass on the cluster metadata that the coordinator has sent."""

    metadata: ClusterMetadata


Instruction = Send | HangUp | SessionChanged | ChannelChanged | WakeWaiters | MetadataReceived
