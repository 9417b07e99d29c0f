"""Options, arguments and questions that several commands share, and how they print the answers to requests. Completes
names in a shell: groups, members, topics, assignors, instances and requests."""

from __future__ import annotations

import getpass
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ZshComplete

from kafka_coord.cli.connection import connection_options, current_settings, open_store
from kafka_coord.cli.output import Format, Section, columns, note, show
from kafka_coord.errors import RequestRefused
from kafka_coord.groups.group import AnswerDocument
from kafka_coord.groups.requests import Acting
from kafka_coord.model import GroupKind
from kafka_coord.model.names import legal
from kafka_coord.zk import layout

if TYPE_CHECKING:
    from kafka_coord.groups.instances import AskedInstances


_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_PATIENCE_S = 1.0
"""How long, in seconds, completion waits for ZooKeeper or an instance after the user presses Tab."""
Names = Callable[["AskedInstances", click.Context], Iterable[str]]
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  kafka-coord completion bash > ~/.local/share/bash-completion/completions/kafka-coord
    zsh:   kafka-coord completion zsh > ~/.zfunc/_kafka-coord
    fish:  kafka-coord completion fish > ~/.config/fish/completions/kafka-coord.fish
    """
    root = click.get_current_context().find_root()
    click.echo(_SHELLS[shell](root.command, {}, "kafka-coord", "_KAFKA_COORD_COMPLETE").source())


def _below(path: str) -> Names:
    return lambda instances, _: instances.store.children(path)


managed_groups, topics = _below(layout.GROUPS), _below(layout.BROKER_TOPICS)
running_instances, known_requests = _below(layout.COORDINATORS), _below(layout.REQUESTS)


def all_groups(instances: AskedInstances, _: click.Context) -> Iterable[str]:
    from kafka_coord.groups.client_assigned import list_client_groups

    clients = list_client_groups(instances).groups
    return {*instances.store.children(layout.GROUPS), *(one.group for one in clients)}


def members(instances: AskedInstances, ctx: click.Context) -> Iterable[str]:
    """Returns the members of the group that the command line names."""
    from kafka_coord.groups.client_assigned import read_client_group

    group = ctx.params.get("group") or ""
    if instances.store.exists(layout.ids(group)) is not None:
        return instances.store.children(layout.ids(group))
    return [one.consumer for one in read_client_group(instances, group).members]


def assignors(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from kafka_coord.coordinator.assignors import load_assignors

    return sorted(name for name in (*load_assignors(), "default") if name.startswith(incomplete))


def offering(names: Names) -> Complete:
    """Returns a ``shell_complete`` function for a click parameter. It offers no names if ZooKeeper or the instances are
    slow or cannot be reached."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        logging.getLogger().addHandler(logging.NullHandler())
        try:
            with ctx.scope(cleanup=False):
                settings = current_settings()
            quick = replace(settings.zookeeper, connect_timeout_ms=round(_PATIENCE_S * 1000))
            with open_store(replace(settings, zookeeper=quick)) as store:
                from kafka_coord.groups.instances import AskedInstances

                instances = AskedInstances(store, settings.kafka.properties, _PATIENCE_S)
                return sorted(name for name in names(instances, ctx) if name.startswith(incomplete))
        except Exception:  # noqa: BLE001 - the shell would print any error into the line being typed
            return []

    return complete


F = TypeVar("F", bound=Callable[..., Any])


if TYPE_CHECKING:
    _NameType = click.ParamType[str]
else:
    _NameType = click.ParamType  # generic only in newer releases of click


class Name(_NameType):
    """A click parameter type for names, with shell completion. A name that Kafka does not allow is rejected, with the
    reason, before the command contacts a server, unless ``allows`` accepts it: Kafka itself restricts neither groups'
    names nor members' ids."""

    def __init__(self, kind: str, names: Names, *, allows: Callable[[str], bool] = lambda _name: False) -> None:
        self.name, self._names, self._allows = kind, names, allows

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        del param, ctx
        return str(value) if value and self._allows(str(value)) else legal(self.name, value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in offering(self._names)(ctx, param, incomplete)]


_MOST_BYTES = (1 << 15) - 1
"""The longest string in Kafka's protocol."""
GROUP = Name("group", managed_groups)
ANY_GROUP = Name("group", all_groups, allows=lambda name: len(name.encode("utf-8", "surrogatepass")) <= _MOST_BYTES)
CONSUMER = Name("consumer", members)
MEMBER = Name("consumer", members, allows=str.isprintable)
TOPIC = Name("topic", topics)

group_argument = click.argument("group", type=GROUP)
any_group_argument = click.argument("group", type=ANY_GROUP)
kind_option = click.option(
    "--kind",
    type=click.Choice([str(one) for one in GroupKind]),
    help="The kind of group, if two groups have the same name. [default: the managed one]",
)


def partitions_option(what: str) -> Callable[[F], F]:
    """Adds the repeatable option ``--topic TOPIC[:0,1-3]``, which :func:`kafka_coord.groups.offsets.parse_scope`
    parses."""
    complete = offering(topics)
    return click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1-3]", shell_complete=complete, help=what)


def result_format(*names: str, what: str, envvar: str | None = None) -> Callable[[F], F]:
    """Adds an option for the format of the result."""
    return click.option(
        *names,
        type=click.Choice([str(one) for one in Format]),
        callback=lambda _ctx, _parameter, value: Format(value),
        default="table",
        envvar=envvar,
        show_default=True,
        help=what,
    )


output_option = result_format(
    "--output", "-o", envvar="KAFKA_COORD_OUTPUT", what="How to print the result. [env var: KAFKA_COORD_OUTPUT]"
)


def timeout_option(default_s: float, what: str) -> Callable[[F], F]:
    """Adds ``--timeout`` in seconds."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, max=86_400),
        default=default_s,
        show_default=True,
        metavar="SECONDS",
        help=what,
    )


def last_option(what: str) -> Callable[[F], F]:
    """Limits a history to its last entries. ``what`` is the help."""
    return click.option("--last", type=click.IntRange(1), default=20, show_default=True, metavar="N", help=what)


def who() -> str:
    """Returns the operator's name, such as ``alice@host``, to record in requests and pauses."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers often run under a uid without a passwd entry
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


ANSWER_TIMEOUT_S = 30.0


def asking_options(command: F) -> F:
    """Adds ``--timeout``, ``--output`` and the connection options."""
    for option in (
        connection_options,
        output_option,
        timeout_option(ANSWER_TIMEOUT_S, "How long to wait for the response; after that, the request stays queued."),
    ):
        command = option(command)
    return command


reason_option = click.option(
    "--reason", default="", metavar="TEXT", help="The reason to record in the log and the group's history."
)


def acting(reason: str, timeout_s: float) -> Acting:
    """Returns who acts and why. Progress is printed on standard error."""
    return Acting(who(), reason, timeout_s, note)


def show_answers(output: Format, answers: Sequence[AnswerDocument]) -> None:
    """Prints the responses. A table shows one line per response; the other formats contain all fields."""
    if output is Format.TABLE:
        for answer in answers:
            click.echo(f"{answer.result}: {answer.message}" if answer.message else answer.result)
        return
    show(
        output,
        answers,
        [Section("answers", columns("request type group result message"), [one.row() for one in answers])],
    )


def confirm(question: str, groups: Sequence[str] = (), *, yes: bool, option: str = "--yes") -> None:
    """Asks for confirmation at a terminal, unless ``yes`` is set, by ``option``. If something that cannot be undone
    happens to ``groups``, the user must type the group's name, or how many groups there are. Raises
    :class:`RequestRefused` if the user declines or if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise RequestRefused(
            f"{question} Nothing was changed, because standard input is not a terminal. Add {option} to confirm."
        )
    if not groups:
        is_confirmed = click.confirm(question, err=True)
    else:
        wanted = groups[0] if len(groups) == 1 else f"{len(groups)} groups"
        is_confirmed = wanted == click.prompt(f"{question} This cannot be undone. Type {wanted} to confirm", err=True)
    if not is_confirmed:
        raise RequestRefused("nothing was changed")
