"""Checks ZooKeeper itself: versions, speed, limits, sessions and clocks, as its servers tell them in four-letter words,
and the access to its znodes: those that anyone may change, ACLs that differ from the plan, and passwords in clear
text."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kafka_coord.errors import NoAuth, NoNode
from kafka_coord.model.sequences import some
from kafka_coord.monitor.doctor.findings import Finding, error, info, ok, warning
from kafka_coord.zk import layout
from kafka_coord.zk.acl import AclPlan, open_to_change
from kafka_coord.zk.acl_tree import AclStore, TreeAcls, compare, read_tree_acls
from kafka_coord.zk.options import parse_connect_string
from kafka_coord.zk.store import Store

TIMEOUT_S = 2.0
_MAX_ANSWER = 1 << 20
_VERSION = re.compile(r"version:?\s+(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server's responses. ``problem`` says why it did not answer. ``metrics`` is empty if the server's whitelist
    allows only ``srvr``, which ZooKeeper always allows."""

    server: str
    version: tuple[int, int, int] | None = None
    mode: str = ""
    metrics: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    reached: bool = False


def ask_servers(servers: Iterable[str]) -> tuple[ServerFacts, ...]:
    """Queries all servers (``host:port``) at once and returns their responses. Waits at most a few seconds for each
    server."""
    wanted = tuple(servers)
    with ThreadPoolExecutor(max_workers=min(16, max(1, len(wanted))), thread_name_prefix="doctor") as pool:
        return tuple(pool.map(_ask, wanted))


def _ask(server: str) -> ServerFacts:
    try:
        response = _word(server, "srvr")
    except OSError as problem:
        return ServerFacts(server, problem=problem.strerror or str(problem) or type(problem).__name__)
    version = _VERSION.search(response)
    if version is None:
        return ServerFacts(server, problem="does not answer srvr", reached=True)
    mode = next((line.partition(":")[2].strip() for line in response.splitlines() if line.startswith("Mode:")), "")
    major, minor, patch = (int(part or 0) for part in version.groups())
    return ServerFacts(server, (major, minor, patch), mode, _metrics(server), reached=True)


def _metrics(server: str) -> dict[str, str]:
    """Returns the values from ``mntr`` and ``conf`` in one mapping, which is empty if the whitelist forbids both."""
    metrics: dict[str, str] = {}
    for word, separator in (("mntr", "\t"), ("conf", "=")):
        try:
            lines = _word(server, word).splitlines()
        except OSError:
            continue
        metrics |= {name: value.strip() for name, mark, value in (line.partition(separator) for line in lines) if mark}
    return metrics


def _word(server: str, word: str) -> str:
    host, _, port = server.rpartition(":")
    answer = bytearray()
    with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(word.encode())
        while len(answer) < _MAX_ANSWER and (part := connection.recv(65_536)):
            answer += part
    return answer.decode("utf-8", errors="replace")


MULTI_READ_SINCE = (3, 6, 0)
MAINTAINED_SINCE = (3, 8, 0)
CLOCK_WARNING_MS = 1_000
CLOCK_ERROR_MS = 60_000
_SCRATCH = "/doctor-"


SLOW_MS = 100
"""An average above this counts as slow, both for this client's reads and for the server's requests."""
_READS, _BETWEEN_S = 5, 0.1
"""How many reads to time, and the pause between them, in seconds. Reads spread over time reveal a server that answers
in bursts."""
_FEWEST_WRITES = 5


def check_speed(store: Store) -> Iterator[Finding]:
    """Times a few reads by this client."""
    took_ms = []
    for number in range(_READS):
        if number:
            time.sleep(_BETWEEN_S)
        began = store.clock.monotonic()
        store.exists(layout.CONSUMERS)
        took_ms.append(1000 * (store.clock.monotonic() - began))
    average = sum(took_ms) / len(took_ms)
    if average > SLOW_MS:
        what = f"ZooKeeper is slow: {_READS} reads took {average:.0f} ms each on average, {max(took_ms):.0f} ms at most"
        yield warning("zookeeper speed", what, _SLOW)


_SLOW = (
    "check the load, garbage collection and disks of the servers, and the network, because each decision and commit"
    " waits for ZooKeeper"
)


def check_servers(
    hosts: str, *, tls: bool, earlier: MutableMapping[str, ServerFacts] | None = None
) -> Iterator[Finding]:
    """Queries each server in the connect string and checks the responses. ``earlier`` holds the servers' responses from
    the previous check, and is updated. Latencies are averages since the previous check or, if there is none, since the
    server started."""
    check = "zookeeper servers"
    if tls:
        yield info(check, "servers do not answer four-letter words over TLS, so their versions are unknown")
        return
    found = ask_servers(parse_connect_string(hosts).servers)
    for server in found:
        yield from _check_server(server, (earlier or {}).get(server.server))
    if earlier is not None:
        earlier.update({server.server: server for server in found})
    leaders = [server.server for server in found if server.mode in {"leader", "standalone"}]
    reached = [server for server in found if server.mode]
    if len(found) == 1 and reached and reached[0].mode == "standalone":
        yield info(
            check,
            "there is only one server, so nothing is rebalanced while it is down",
            "run three or five in production",
        )
    elif reached and not leaders and len(reached) == len(found):
        yield warning(
            check, "none of the servers in --zookeeper is the leader", "list all servers of the ensemble there"
        )


def _check_server(server: ServerFacts, earlier: ServerFacts | None) -> Iterator[Finding]:
    check = "zookeeper servers"
    if not server.reached:
        todo = "start it, or remove it from --zookeeper"
        yield error(check, f"{server.server} cannot be reached: {server.problem}", todo)
        return
    if server.version is None:
        yield info(check, f"{server.server} {server.problem}", "check that this is ZooKeeper's plain client port")
        return
    shown = ".".join(map(str, server.version))
    if server.version < MULTI_READ_SINCE:
        what = f"{server.server} runs {shown} ({server.mode}), older than 3.6, so groups are read one znode at a time"
        yield warning(check, what, "upgrade ZooKeeper; reads are slow with many groups")
    elif server.version < MAINTAINED_SINCE:
        yield info(
            check, f"{server.server} runs {shown} ({server.mode}), which is no longer maintained", "upgrade ZooKeeper"
        )
    else:
        yield ok(check, f"{server.server} runs {shown} ({server.mode})")
    yield from _check_limits(server)
    yield from check_writes(server, earlier)


def check_writes(server: ServerFacts, earlier: ServerFacts | None) -> Iterator[Finding]:
    """Checks the write latency, which only ZooKeeper 3.6 and later report."""
    names = ("zk_cnt_updatelatency", "zk_sum_updatelatency")
    count, total_ms = (_number(server, name) for name in names)
    if count is None or total_ms is None:
        return
    before = [(_number(earlier, name) or 0) if earlier is not None else 0 for name in names]
    recently = earlier is not None and count >= before[0]
    if recently:
        count, total_ms = count - before[0], total_ms - before[1]
    if count >= _FEWEST_WRITES and total_ms / count > SLOW_MS:
        which = f"{'the last ' if recently else ''}{count:.0f} writes"
        what = f"{server.server} took {total_ms / count:.0f} ms for each of {which}"
        yield warning("zookeeper speed", what, _SLOW)


def _check_limits(server: ServerFacts) -> Iterator[Finding]:
    check = "zookeeper limits"
    if not server.metrics:
        todo = "allow that with 4lw.commands.whitelist=srvr,mntr,conf in zoo.cfg"
        yield info(check, f"{server.server} does not report its load and limits", todo)
        return
    outstanding, latency = _number(server, "zk_outstanding_requests"), _number(server, "zk_avg_latency")
    if outstanding is not None and outstanding > 100:
        yield warning(
            check,
            f"{server.server} has {outstanding:.0f} requests outstanding",
            "the server is overloaded; check its disk",
        )
    if latency is not None and latency > SLOW_MS:
        yield warning(
            check,
            f"{server.server} answers in {latency:.0f} ms on average",
            "put its transaction log on a disk of its own",
        )
    used, most = _number(server, "zk_open_file_descriptor_count"), _number(server, "zk_max_file_descriptor_count")
    if used and most and used > 0.8 * most:
        yield warning(check, f"{server.server} uses {used:.0f} of {most:.0f} file descriptors", "raise its ulimit -n")
    connections, alive = _number(server, "maxClientCnxns"), _number(server, "zk_num_alive_connections")
    if connections is not None and 0 < connections < 60:
        what = f"{server.server} allows {connections:.0f} connections from one host"
        yield warning(
            check,
            what,
            "set maxClientCnxns to 0, or above the number of consumers per host, because each needs a connection",
        )
    elif alive is not None:
        yield ok(check, f"{server.server} has {alive:.0f} connections")


def _number(server: ServerFacts, name: str) -> float | None:
    try:
        return float(server.metrics[name])
    except (KeyError, ValueError):
        return None


def check_session(store: Store, asked_ms: int) -> Iterator[Finding]:
    """Checks the granted session timeout, which determines how soon a failed consumer or coordinator is detected."""
    granted, check = store.session.timeout_ms, "zookeeper limits"
    if granted == asked_ms:
        yield ok(check, f"the session timeout is {granted} ms, as requested")
        return
    what = f"this client requested a session timeout of {asked_ms} ms, but ZooKeeper granted {granted} ms"
    if granted > asked_ms:
        todo = "lower minSessionTimeout in zoo.cfg (default: two ticks), or request a longer timeout"
    else:
        todo = "raise maxSessionTimeout in zoo.cfg (default: twenty ticks), or request a shorter timeout"
    yield warning(check, what, todo)


def check_clock(store: Store) -> Iterator[Finding]:
    """Compares this host's clock with ZooKeeper's, using the creation time of an ephemeral znode."""
    check = "clocks"
    before_s = store.clock.time()
    try:
        path = store.create(layout.CONSUMERS + _SCRATCH, ephemeral=True, sequence=True)
    except NoNode:
        yield info(check, f"not compared, because {layout.CONSUMERS} does not exist yet")
        return
    except NoAuth:
        todo = "give this client the credentials of the instances (zookeeper.digest or zookeeper.sasl_*)"
        yield error("acls", f"this client is not allowed to create znodes below {layout.CONSUMERS}", todo)
        return
    after_s = store.clock.time()
    try:
        created_ms = store.get(path).stat.ctime_ms
    finally:
        store.delete(path)
    # The server created the znode between these two moments, so a smaller difference cannot be detected.
    early, late = created_ms - after_s * 1000, created_ms - before_s * 1000
    difference_ms = round(early if early > 0 else late if late < 0 else 0)
    whose = "ahead of" if difference_ms > 0 else "behind"
    what = f"ZooKeeper's clock is {abs(difference_ms)} ms {whose} this host's"
    todo = "synchronise the clocks (chrony, ntpd), because ages, histories and offset retention depend on them"
    if abs(difference_ms) >= CLOCK_ERROR_MS:
        yield error(check, what, todo)
    elif abs(difference_ms) >= CLOCK_WARNING_MS:
        yield warning(check, what, todo)
    else:
        yield ok(check, "this host's clock agrees with ZooKeeper's")


MOST_OF_A_KIND = 500
"""The maximum number of znodes of each kind that the doctor checks. ``acl check`` has no limit."""

_ACLS = "acls"
_DOC = "docs/operations.md, Security"


def check_access(store: Store) -> Iterator[Finding]:
    """Checks whether anyone may change the coordination znodes, and whether the ACLs follow the plan."""
    if not isinstance(store, AclStore):
        return
    options = store.options
    if options.plan is not None:
        yield from _check_plan(store, options.plan)
    else:
        yield from _check_open(read_tree_acls(store, MOST_OF_A_KIND))
    yield from _check_kafka(store)
    if options.tls is None and options.digest is not None:
        what = "this client sends its ZooKeeper password in clear text, because it uses the digest scheme without TLS"
        yield warning(_ACLS, what, "set zookeeper.tls, or make sure that no one can eavesdrop on the network")


def _check_plan(store: AclStore, plan: AclPlan) -> Iterator[Finding]:
    found = compare(store, plan, MOST_OF_A_KIND)
    todo = "kafka-coord acl check lists all of them, and kafka-coord acl apply corrects them"
    wide = [one.path for one in found.deviations if one.open]
    other = [one.path for one in found.deviations if not one.open]
    if wide:
        yield warning(_ACLS, f"anyone who can reach ZooKeeper may change {some(wide, 3)}, contrary to the plan", todo)
    if other:
        yield warning(_ACLS, f"the ACL of {some(other, 3)} is not as planned", todo)
    if found.missing:
        yield warning(_ACLS, f"{some(found.missing, 3)} is missing, and consumers are not allowed to create it", todo)
    yield from _check_hidden(found.acls)
    if not (found.deviations or found.missing):
        yield ok(_ACLS, f"the ACLs of {found.acls.looked_at} znodes match the plan")


def _check_open(found: TreeAcls) -> Iterator[Finding]:
    wide = found.open
    if found.looked_at and len(wide) == found.looked_at:
        todo = f"this is fine on a trusted network; otherwise configure identities ({_DOC})"
        yield info(_ACLS, f"anyone who can reach ZooKeeper may change everything below {layout.CONSUMERS}", todo)
    elif wide:
        todo = f"give all instances and consumers the same settings; the other znodes are not open ({_DOC})"
        yield warning(_ACLS, f"anyone who can reach ZooKeeper may change {some(wide, 3)}", todo)
    elif found.looked_at:
        yield ok(_ACLS, f"the znodes below {layout.CONSUMERS} are closed to unauthorised clients")
    if found.unreadable:
        what = f"this client is not allowed to read the ACL of {some(found.unreadable, 3)}"
        yield warning(_ACLS, what, "check this client's credentials")
    yield from _check_hidden(found)


def _check_hidden(found: TreeAcls) -> Iterator[Finding]:
    if found.hidden:
        yield warning(
            _ACLS,
            f"this client is not allowed to list {some(found.hidden, 3)}",
            "check this client's credentials, and which identity created the znode",
        )


def _check_kafka(store: AclStore) -> Iterator[Finding]:
    """Checks the ACLs of Kafka's own znodes that the coordinator relies on."""
    paths = (layout.BROKER_IDS, layout.BROKER_TOPICS)
    wide = [
        path
        for path, one in zip(paths, store.read_acls(paths), strict=True)
        if one is not None and not isinstance(one, NoAuth) and open_to_change(one.acl)
    ]
    if wide:
        what = f"anyone who can reach ZooKeeper may change Kafka's own {' and '.join(wide)}"
        yield info(
            _ACLS, what, "to close them, set zookeeper.set.acl=true in Kafka and run zookeeper-security-migration.sh"
        )
