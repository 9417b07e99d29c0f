"""Checks the instances: that consumers without ZooKeeper can find the coordinator, whichever instance is elected, and
what others renew for the instances (certificates, users, passwords), as the instances' metrics report it."""

from __future__ import annotations

import http.client
import math
import re
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kafka_coord.channel.frames import BadFrame
from kafka_coord.channel.link import ask_cluster_metadata
from kafka_coord.channel.messages import ClusterMetadata
from kafka_coord.coordinator.plan.reasons import counted
from kafka_coord.errors import MalformedValue
from kafka_coord.groups.cluster import Cluster
from kafka_coord.groups.group import duration
from kafka_coord.groups.instances import read_page
from kafka_coord.groups.state import GroupSnapshot
from kafka_coord.monitor.doctor.findings import Finding, error, info, ok, warning

_CERTIFICATES = "certificates"
SOON_MS = 14 * 24 * 3600 * 1000
"""A certificate that ends sooner is reported. Those that are renewed automatically are renewed earlier."""
_SAMPLE = re.compile(
    r'^kafka_coord_(certificate_ends_seconds|renewal_unusable)\{of="([^"]{1,100})"\} (\S{1,30})$', re.MULTILINE
)
_CLIENTS = {"brokers": "the brokers", "zookeeper": "ZooKeeper"}
_USERS = {"users": "users", "operators": "operators"}


@dataclass(frozen=True, slots=True)
class Reported:
    """What an instance reports about one of the things that others renew. ``ends_s`` is when its certificate ends, in
    seconds since 1970, or None if it has none."""

    of: str
    ends_s: float | None
    unusable: bool

    @property
    def certificate(self) -> str:
        if self.of in _CLIENTS:
            return f"its certificate for {_CLIENTS[self.of]}"
        return f"the certificate of its {self.of} listener"

    @property
    def name(self) -> str:
        if self.of in _CLIENTS:
            return f"its credentials for {_CLIENTS[self.of]}"
        return f"its {_USERS[self.of]} file" if self.of in _USERS else self.certificate


def check_certificates(cluster: Cluster, now_ms: int) -> Iterator[Finding]:
    """Yields a finding for each certificate that has ended or soon will, and for what was renewed with files that an
    instance cannot use. An instance without an HTTP server, or that does not answer, says nothing about them."""
    urls = {number: one.http_url for number, one in sorted(cluster.instances.items()) if one.http_url is not None}
    if not urls:
        return
    with ThreadPoolExecutor(max_workers=min(16, len(urls)), thread_name_prefix="doctor") as pool:
        pages = dict(zip(urls, pool.map(_metrics, urls.values()), strict=True))
    yield from certificate_findings({number: certificates_in(page) for number, page in pages.items()}, now_ms)


def certificate_findings(reported: Mapping[int, tuple[Reported, ...]], now_ms: int) -> Iterator[Finding]:
    good = 0
    for number, these in reported.items():
        for one in these:
            left_ms = math.inf if one.ends_s is None else one.ends_s * 1000 - now_ms
            whose = f"instance {number}: {one.certificate}"
            if left_ms <= 0:
                who = "it cannot connect again" if one.of in _CLIENTS else "clients refuse to connect"
                todo = f"renew it now: {who}. The instance reads renewed files by itself"
                yield error(_CERTIFICATES, f"{whose} ended {duration(round(-left_ms))} ago", todo)
            elif left_ms < SOON_MS:
                todo = "renew it; the instance reads renewed files by itself"
                yield warning(_CERTIFICATES, f"{whose} ends in {duration(round(left_ms))}", todo)
            if one.unusable:
                what = (
                    f"instance {number}: {one.name} has been renewed with files that cannot be used, so the earlier one"
                    " stays"
                )
                todo = "see renewal_unusable in the instance's log for the reason, and correct the files"
                yield warning(_CERTIFICATES, what, todo)
            good += left_ms >= SOON_MS and not one.unusable
    if good and good == sum(map(len, reported.values())):
        yield ok(
            _CERTIFICATES, f"{counted(good, 'renewable file')} in use; no certificate ends within {duration(SOON_MS)}"
        )


def certificates_in(page: str) -> tuple[Reported, ...]:
    """Reads what is renewed from a page of metrics. Leaves out what it cannot read."""
    found: dict[str, dict[str, float]] = {}
    for kind, of, written in _SAMPLE.findall(page):
        try:
            value = float(written)
        except ValueError:
            continue
        if abs(value) < 1e12:  # also leaves out NaN
            found.setdefault(of, {})[kind] = value
    return tuple(
        Reported(of, one.get("certificate_ends_seconds"), one.get("renewal_unusable", 0) > 0)
        for of, one in sorted(found.items())
    )


def unverified() -> ssl.SSLContext:
    """Returns a context that accepts any certificate, because its end is a finding of its own."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _metrics(url: str) -> str:
    """Returns the instance's page of metrics, or "" if it cannot be had."""
    try:
        return read_page(url, "/metrics", unverified()).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException, MalformedValue):
        return ""


TIMEOUT_S = 2.0
_CHANNEL = "socket channel"


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
            _CHANNEL, what, "restart the instances with --listen-channel; until then, those consumers stay disconnected"
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
        yield warning(_CHANNEL, what, "give every instance --listen-channel")
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
            yield warning(_CHANNEL, what, todo)
            continue
        answered += 1
        if response is None:  # only the consumers have the certificates
            continue
        elected = cluster.coordinator
        named = response.coordinator
        if elected is not None and (named is None or named.epoch < elected.epoch):
            what = f"instance {number} sends consumers to {_named(response)}, but broker {elected.broker_id} is elected"
            yield info(_CHANNEL, what, "its response may be outdated; run the doctor again")
    if answered == len(responses):
        yield ok(_CHANNEL, f"{answered} instances answer consumers; {members} socket consumers are registered")


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
