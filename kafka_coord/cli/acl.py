"""``kafka-coord acl``: plans, checks and applies ZooKeeper ACLs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.options import confirm, output_option
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.errors import SettingsError, StoreError, VerificationFailed

if TYPE_CHECKING:
    from kafka_coord.settings import Settings
    from kafka_coord.zk.acl import AclOf, AclPlan
    from kafka_coord.zk.acl_tree import Comparison

_RULES = columns("znode coordinators operators consumers readers why")
_ROLES = columns("role group identities")
_PATHS = columns("znode acl")
_DEVIATIONS = columns("znode what found wanted")
_SHOWN = 200


@click.group()
def acl() -> None:
    """Plan, check and set ZooKeeper ACLs, which control access to each znode.

    Coordinators, operators and the consumers of each group authenticate as different identities. The identities file
    (zookeeper.identities) says which identity has which role. See docs/operations.md, Security.

    \b
    kafka-coord acl plan
    kafka-coord acl check
    kafka-coord acl apply
    """


@acl.command("plan")
@click.argument("path", nargs=-1)
@output_option
@connection_options
def plan_command(path: tuple[str, ...], output: Format) -> None:
    """Print each role's permissions on each znode, and the identities of each role. With PATHs, print their ACLs.

    c: create children, d: delete children, r: read, w: write, a: change the ACL. The consumers column applies to the
    consumers of the znode's own group; permissions after a "+" are granted only to consumers of groups that the
    identities file does not name. The command does not contact a server.

    \b
    kafka-coord acl plan
    kafka-coord acl plan /consumers/groups/delays/ids
    """
    from kafka_coord.zk.acl import RULES, Permission

    settings = current_settings()
    if path:
        plan = _plan(settings)
        rows = [{"znode": one, "acl": _shown(plan.of(_checked(one)))} for one in path]
        show(output, rows, [Section("acls", _PATHS, rows)])
        return
    reading = Permission.READ.letters
    rows = [
        {
            "znode": rule.place,
            "coordinators": Permission.ALL.letters,
            "operators": Permission.of(rule.operators).letters,
            "consumers": Permission.of(rule.consumers).letters + (f"+{rule.any_group}" if rule.any_group else ""),
            "readers": reading,
            "why": rule.why,
        }
        for rule in RULES
    ]
    sections = [Section("rules", _RULES, rows)]
    document: dict[str, object] = {"rules": rows, "roles": None}
    if settings.zookeeper.identities is not None:
        roles = list(_roles(_plan(settings)))
        document["roles"] = roles
        sections.append(Section("roles", _ROLES, roles))
    show(output, document, sections)
    if settings.zookeeper.identities is None:
        note("zookeeper.identities is not set, so the roles have no identities yet")


@acl.command()
@output_option
@connection_options
def check(output: Format) -> None:
    """Compare every znode's ACL with the plan, and exit with code 10 if any ACL differs. Nothing is changed.

    \b
    kafka-coord acl check -o json
    """
    from kafka_coord.zk.acl_tree import compare

    settings = current_settings()
    plan = _plan(settings)
    with open_store(settings) as store:
        comparison = compare(store, plan)
    rows = _deviations(comparison)
    document = {"looked_at": comparison.acls.looked_at, "deviations": rows, "foreign": list(comparison.acls.foreign)}
    shown = rows if output is not Format.TABLE else rows[:_SHOWN]
    show(output, document, [Section("deviations", _DEVIATIONS, shown, empty="every ACL is as planned")])
    if len(shown) < len(rows):
        note(f"and {len(rows) - len(shown)} more; -o tsv shows all")
    if comparison.acls.foreign:
        note(f"skipped foreign znodes: {', '.join(comparison.acls.foreign[:10])} and everything below them")
    if rows:
        raise VerificationFailed(
            f"{len(rows)} deviations from the plan among {comparison.acls.looked_at} znodes, "
            f"{sum(row['what'] == 'open' for row in rows)} of them on znodes that anyone may change; "
            "to correct them: kafka-coord acl apply"
        )
    note(f"checked {comparison.acls.looked_at} znodes")


@acl.command("apply")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@connection_options
def apply_command(yes: bool) -> None:
    """Set every ACL that differs from the plan, and create the znodes that consumers need but cannot create.

    First give every instance and every consumer credentials, and list their identities in the identities file: any
    process without an identity is locked out. Sessions stay open while the command runs.

    You can run the command under any identity to protect znodes that are still open; after that, only a coordinator's
    identity can change their ACLs. It is safe to interrupt the command and run it again.

    \b
    kafka-coord acl apply --config /etc/kafka-coord.toml --yes
    """
    from kafka_coord.zk.acl_tree import apply, compare

    settings = current_settings()
    plan = _plan(settings)
    with open_store(settings) as store:
        comparison = compare(store, plan)
        todo = len(comparison.deviations) + len(comparison.missing)
        if not todo and not comparison.acls.hidden:
            click.echo(f"nothing to do: the ACLs of {comparison.acls.looked_at} znodes match the plan")
            return
        confirm(f"Change the ACL of {len(comparison.deviations)} znodes and create {len(comparison.missing)}?", yes=yes)
        done = apply(store, plan, lambda set_, of: note(f"{set_} of {of}"))
    click.echo(f"changed {done.changed}, created {done.made}, refused {len(done.refused)}")
    for path, why in done.refused[:20]:
        note(f"{path}: {why}")
    if done.refused:
        raise StoreError(
            f"{len(done.refused)} ACLs could not be changed; run the command with the credentials of a coordinator, "
            "or of the identity that created these znodes"
        )


@acl.command()
@click.argument("user", required=False)
@connection_options
def identity(user: str | None) -> None:
    """Print the digest identity of a user and password, for the identities file.

    Without USER, the command uses the user and password in zookeeper.digest (KAFKA_COORD_ZOOKEEPER_DIGEST or the
    settings file). With USER, it asks for the password or reads it from standard input. It never takes a password from
    the command line, where every user of the host could see it.

    \b
    kafka-coord acl identity
    kafka-coord acl identity delays
    """
    from kafka_coord.zk.acl import digest_identity

    if user is None:
        digest = current_settings().zookeeper.digest
        if digest is None:
            raise SettingsError("zookeeper.digest is not set; set it to user:password, or pass USER")
        user, _, password = digest.reveal().partition(":")
    else:
        if not user or ":" in user or not user.isprintable():
            raise SettingsError(
                f"{user[:60]!r} is not a digest user name: it must be printable and not empty, without a colon"
            )
        if sys.stdin.isatty():
            password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        else:
            password = sys.stdin.readline(10_000).rstrip("\r\n")
        if not password:
            raise SettingsError("the password is empty")
    click.echo(str(digest_identity(user, password)))


def _plan(settings: Settings) -> AclPlan:
    from kafka_coord.zk.acl import read_identities

    if settings.zookeeper.identities is None:
        raise SettingsError(
            "zookeeper.identities is not set; write a file that assigns identities to roles "
            "(docs/operations.md, Security), and set zookeeper.identities to its path"
        )
    return read_identities(settings.zookeeper.identities)


def _checked(path: str) -> str:
    if not path.startswith("/") or path.endswith("/"):
        raise SettingsError(f"{path[:60]!r} is not a znode path: it must begin with /, and must not end with /")
    return path


def _shown(acl_of: AclOf) -> str:
    return " ".join(map(str, acl_of))


def _roles(plan: AclPlan) -> Iterator[dict[str, str | None]]:
    for role, identities in (
        ("coordinators", plan.coordinators),
        ("operators", plan.operators),
        ("readers", plan.readers),
    ):
        yield {"role": role, "group": None, "identities": ", ".join(one.shown for one in identities) or None}
    for group, identities in plan.consumers.items():
        yield {"role": "consumers", "group": group, "identities": ", ".join(one.shown for one in identities) or None}


def _deviations(found: Comparison) -> list[dict[str, str | None]]:
    rows: list[dict[str, str | None]] = []
    for one in found.deviations:
        what = "open" if one.open else "unreadable" if one.found is None else "differs"
        wanted = _shown(one.wanted)
        rows.append({"znode": one.path, "what": what, "found": _shown(one.found or ()) or None, "wanted": wanted})
    rows += [{"znode": path, "what": "missing", "found": None, "wanted": None} for path in found.missing]
    rows += [{"znode": path, "what": "hidden", "found": None, "wanted": None} for path in found.acls.hidden]
    return rows
