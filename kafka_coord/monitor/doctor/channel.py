"""Checks that consumers without ZooKeeper can find the coordinator, whichever instance is elected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from kafka_coord.channel.client import ask_cluster_metadata
from kafka_coord.channel.frames import BadFrame
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.errors import MalformedValue
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.state import GroupSnapshot
from kafka_coord.monitor.doctor.certificates import unverified
from kafka_coord.monitor.doctor.findings import Finding, error, info, ok, warning

TIMEOUT_S = 2.0
CHECK = "socket channel"


def check_channel(cluster: Cluster, snapshots: Mapping[str, GroupSnapshot]) -> Iterator[Finding]:
    """Checks the instances' socket listeners. Yields nothing if there are none and no consumer needs one."""
    members = sum(
        member.gateway is not None and member.protocol is None
        for one in snapshots.values()
        for member in one.observation.members.values()
    )
    listening = {
        number: instance.endpoints["channel"]
        for number, instance in sorted(cluster.instances.items())
        if "channel" in instance.endpoints
    }
    deaf = sorted(cluster.instances.keys() - listening.keys())
    if members and not listening:
        what = f"{members} consumers without ZooKeeper are registered, but no instance listens for them"
        yield error(
            CHECK, what, "restart the instances with --listen-channel; until then, those consumers stay disconnected"
        )
        return
    if not listening:
        return
    if deaf:
        named = ", ".join(map(str, deaf))
        what = (
            f"instance {named} does not listen for consumers,"
            " so electing it would disconnect consumers without ZooKeeper"
        )
        yield warning(CHECK, what, "give every instance --listen-channel")
    yield from _ask_all(cluster, listening, members)


def _ask_all(cluster: Cluster, listening: Mapping[int, str], members: int) -> Iterator[Finding]:
    with ThreadPoolExecutor(max_workers=min(16, len(listening)), thread_name_prefix="doctor") as pool:
        responses = dict(zip(listening, pool.map(_ask, listening.values()), strict=True))
    answered = 0
    for number, response in responses.items():
        address = listening[number]
        if isinstance(response, str):
            what = f"instance {number} does not answer consumers at {address}: {response}"
            todo = "check --advertise-channel, name resolution and firewalls between this host and the instance's"
            yield warning(CHECK, what, todo)
            continue
        answered += 1
        if response is None:  # only the consumers have the certificates
            continue
        elected = cluster.coordinator
        named = response.coordinator
        if elected is not None and (named is None or named.epoch < elected.epoch):
            what = f"instance {number} sends consumers to {_named(response)}, but broker {elected.broker_id} is elected"
            yield info(CHECK, what, "its response may be outdated; run the doctor again")
    if answered == len(responses):
        yield ok(CHECK, f"{answered} instances answer consumers; {members} socket consumers are registered")


def _ask(address: str) -> ClusterMetadata | str | None:
    """Returns the instance's answer, or why there is none. Returns ``None`` if it speaks TLS, but closes connections
    without a client's certificate."""
    problem = ""
    for tls in (None, unverified()):
        secured: list[object] = []
        try:
            return ask_cluster_metadata(address, tls=tls, timeout_s=TIMEOUT_S, opened=secured.append)
        except TimeoutError as failure:
            problem = problem or str(failure) or "no answer"
        except (OSError, ValueError, BadFrame, MalformedValue) as failure:
            if tls is not None and secured:
                return None
            problem = problem or str(failure) or type(failure).__name__
            if isinstance(failure, ConnectionRefusedError):
                break
    return problem


def _named(response: ClusterMetadata) -> str:
    named = response.coordinator
    return f"broker {named.instance}, epoch {named.epoch}" if named is not None else "no coordinator"
