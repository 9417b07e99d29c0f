"""Measures how wide the code and the documents are. ``python -m tests.house.measures [CHECKOUT]`` prints each
measure."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path

from tests.house.rooms import ROOT

_SMALL = 60
_FIRST_READ = ("README.md", "docs/architecture.md", "docs/design.md", "docs/adr/0001-libraries.md")
_FORK = re.compile(
    r"(?:\bis|\bis not|==|!=|\bin) \(?\{?GroupKind\.|\b_?is_(?:managed|client_group)\(|\bkind_of\("
    r"|kinds\.managed\(|\b_?managed is (?:not )?None|\bin (?:self\._)?managed(?:\.groups)?\b"
    r"|\bkind is (?:not )?self\."
)
_KINDS = {"GroupKind", "COORDINATED", "ASKED"}
_SERVING = ("calls", "client_assigned", "group_kinds", "group_requests", "groups")
"""The modules of the listener that find groups and pass requests on to those that are client-assigned."""
_OF_A_PARTITION = ("owner", "holding", "committed_offset", "start_offset", "end_offset", "unresolved")
_PARTS_OF_A_GROUP = {"ids", "registration", "owners", "ledger", "channels", "channel", "command", "assignment"}
_WRITTEN = re.compile(r"<!-- shape: .*?<!--/shape-->", re.DOTALL)
_ITS_DEFINITION = re.compile(r"^\s*(?:from|import|def) ")


@cache
def modules(root: Path) -> dict[str, str]:
    """Returns the sources of all installed modules by their dotted names. A package's name is that of its folder."""
    found = {}
    for file in sorted((root / "kafka_coord").rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if parts[1] != "dev":
            found[".".join(parts).removesuffix(".__init__")] = file.read_text()
    return found


def forks(root: Path) -> Iterator[str]:
    """Yields the lines that ask which kind a group is of, as ``module:line``: by a comparison, a table or a lookup with
    :data:`_KINDS`, or by calling a function that answers whether a group is of a kind."""
    sources = modules(root)
    trees = {name: list(ast.walk(ast.parse(source))) for name, source in sources.items()}
    answering = {
        one.name
        for tree in trees.values()
        for one in tree
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(one.returns, ast.Name)
        and one.returns.id == "bool"
        and any(map(_asks_kind, ast.walk(one)))
    }
    for name, source in sources.items():
        lines = enumerate(source.splitlines(), 1)
        found = {number for number, line in lines if _FORK.search(line) and not _ITS_DEFINITION.match(line)}
        found |= {one.lineno for one in trees[name] if isinstance(one, ast.expr) and _asks_kind(one, answering)}
        yield from (f"{name}:{number}" for number in sorted(found))


def _asks_kind(node: ast.AST, answering: Collection[str] = ()) -> bool:
    match node:
        case ast.Compare():
            return any(map(_names_kind, (node.left, *node.comparators)))
        case ast.Dict():
            return sum(_names_kind(key) for key in node.keys if key is not None) > 1
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in answering or (name in {"are", "of"} and any(map(_names_kind, node.args)))
    return False


def _names_kind(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) and one.id in _KINDS for one in ast.walk(node))


def returns_of_a_join(root: Path) -> Iterator[str]:
    """Yields the functions that a JoinGroup runs through in :data:`_SERVING` if its group is client-assigned and stays
    so, once for each ``return`` in them. Follows each call by its name alone."""
    functions = defaultdict(list)
    for name, source in modules(root).items():
        if name.rpartition(".")[2] in _SERVING and name.startswith("kafka_coord.frontends.kafka."):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    functions[node.name].append(node)
    passed, ahead = {"take_over"}, ["handle_join_group"]
    while ahead:
        name = ahead.pop()
        passed.add(name)
        for node in (inner for function in functions[name] for inner in ast.walk(function)):
            if isinstance(node, ast.Return):
                yield name
            called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if called in functions.keys() - passed:
                passed.add(called)
                ahead.append(called)


def shared_class_names(root: Path) -> Iterator[str]:
    """Yields the names of classes that are defined more than once."""
    classes = Counter(
        node.name
        for source in modules(root).values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    )
    return (name for name, count in sorted(classes.items()) if count > 1)


def importers(root: Path) -> dict[str, set[str]]:
    """Returns for each module the modules that import it. Who imports a module from a package does not count as an
    importer of the package."""
    found = modules(root)
    by: dict[str, set[str]] = defaultdict(set)
    for importer, source in found.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                within = [f"{node.module}.{one.name}" for one in node.names]
                names = [name if name in found else node.module for name in within]
            elif isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            else:
                continue
            for name in names:
                if name in found and name != importer:
                    by[name].add(importer)
    return by


def small_rooms(root: Path) -> Iterator[str]:
    """Yields the modules of fewer than 60 lines that only one module imports, which is in the same package."""
    by = importers(root)
    for name, source in modules(root).items():
        one = by[name]
        if len(source.splitlines()) < _SMALL and len(one) == 1:
            package = name.rpartition(".")[0]
            if next(iter(one)).startswith(package + ".") or package in one:
                yield name


def readers(root: Path) -> Iterator[str]:
    """Yields the modules that read what a managed group consists of: registrations, ledgers, channels and commands, and
    the target. Each has a function that names the path of one and makes a read of it, or asks as if it were a
    coordinator, with a memory of its own. Watches do not count, nor do the library for consumers and ``zk/``."""
    for name, source in modules(root).items():
        room = name.removeprefix("kafka_coord.").partition(".")[0]
        if room not in {"coordinator", "frontends", "groups", "monitor", "cli"}:
            continue
        functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        fakes = room != "coordinator" and re.search(r"\bGroupMemory\(", source) is not None
        if fakes or any(_reads_a_group(function) for function in functions):
            yield name


def _reads_a_group(function: ast.FunctionDef) -> bool:
    found = list(ast.walk(function))
    paths = {one.attr for one in found if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "layout"}
    return bool(paths & _PARTS_OF_A_GROUP) and any(
        isinstance(one, ast.Call) and ast.unparse(one.func) in {"GetData", "GetChildren"} for one in found
    )


def on_the_way(root: Path) -> set[str]:
    """Returns the modules on the way of one pass: those of ``coordinator/`` that the handler imports, directly or not,
    and that define a function. The planner and the assignors count as one each."""
    found, reached, by = modules(root), set[str](), importers(root)
    new = {"kafka_coord.coordinator.handler"}
    while new:
        reached |= new
        new = {name for name in found if name.startswith("kafka_coord.coordinator.") and by[name] & new} - reached
    rooms = ("kafka_coord.coordinator.plan", "kafka_coord.coordinator.assignors")
    named = {name: next((room for room in rooms if name.startswith(room)), name) for name in reached}
    return {room for name, room in named.items() if re.search(r"^ *def ", found[name], re.MULTILINE)}


def clients_of_kafka(root: Path) -> set[str]:
    """Returns the packages that open connections to brokers, with TLS and SASL of their own, or make a client of
    librdkafka that asks about topics and offsets. What reads and writes an application's records does not count, nor do
    the fixtures in ``testing``."""
    found = set()
    for name, source in modules(root).items():
        package = name.split(".")[1] if "." in name else ""
        if package == "testing" or not re.search(r"AdminClient|create_connection", source):
            continue  # parsing takes long
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                opens = called.endswith(".create_connection") and not called.startswith(("socket.", "super()"))
                if opens or called.rpartition(".")[2] == "AdminClient":
                    found.add(package)
    return found


def statements(root: Path) -> Iterator[str]:
    """Yields the statements of the shape of one JSON object, that of a partition's offsets: each class with all of its
    own fields, and each other file in which each of them stands as a key, as an annotated name, or in a table. What
    ``scripts/shapes`` writes does not count."""
    is_written = (root / "scripts" / "shapes").exists()
    stating = [*(root / "kafka_coord").rglob("*.py"), *(root / "docs").rglob("*.md")]
    stating += [] if is_written else (root / "kafka_coord").rglob("openapi.json")
    for file in sorted(stating):
        text = _WRITTEN.sub("", file.read_text()) if is_written else file.read_text()
        if not all(re.search(rf'"{field}":|^ +{field}: |`{field}`', text, re.MULTILINE) for field in _OF_A_PARTITION):
            continue
        tree = ast.parse(text) if file.suffix == ".py" else ast.Module([], [])
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        stated = [one.name for one in classes if {*_OF_A_PARTITION} <= {*_annotated(one)}]
        for name in stated or ["the file"]:
            yield f"{file.relative_to(root)}: {name}"


def _annotated(node: ast.ClassDef) -> Iterator[str]:
    return (one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name))


def lag_engines(root: Path) -> Iterator[str]:
    """Yields the modules that compute a group's lag from committed offsets and logs. The lag after a consumer's own
    position (``consumer/``) is none of these."""
    for name, source in modules(root).items():
        if not name.startswith("kafka_coord.consumer") and re.search(r"(?<!def )\blag_of\(", source):
            yield name


def offset_readers(root: Path) -> Iterator[str]:
    """Yields the places, outside the coordinator and the listener, that read a group's committed offsets: that decode
    an offset's znode, or ask a coordinator for offsets."""
    for name, source in modules(root).items():
        if name.partition(".")[2].partition(".")[0] in {"cli", "groups", "kafka", "monitor", "spark"}:
            for number, line in enumerate(source.splitlines(), 1):
                if re.search(r'\bdecode_offset\(|message\("OffsetFetchRequest"\)', line):
                    yield f"{name}:{number}"


def words(*files: Path) -> int:
    """Counts the words of documents, as ``wc -w`` does."""
    return sum(len(file.read_text().split()) for file in files)


def documents(root: Path) -> list[Path]:
    """Returns all documents that people read: the README, the changelog, and the pages below docs/."""
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]


MEASURES: dict[str, tuple[Callable[[Path], int], int, int]] = {
    "places that fork on a group's kind": (lambda root: len(list(forks(root))), 25, 6),
    "returns in a JoinGroup's walk through a client-assigned group": (
        lambda root: len(list(returns_of_a_join(root))),
        4,
        4,
    ),
    "readers of a managed group's znodes": (lambda root: len(list(readers(root))), 1, 1),
    "modules on the way of one pass of the handler": (lambda root: len(on_the_way(root)), 18, 20),
    "engines that compute a group's lag": (lambda root: len(list(lag_engines(root))), 1, 1),
    "ways to read committed offsets, for operators": (lambda root: len(list(offset_readers(root))), 3, 3),
    "class names defined more than once": (lambda root: len(list(shared_class_names(root))), 2, 5),
    "installed modules": (lambda root: len(modules(root)), 260, 260),
    "modules under 60 lines with one importer, in the same package": (
        lambda root: len(list(small_rooms(root))),
        0,
        0,
    ),
    "clients of Kafka that we are": (lambda root: len(clients_of_kafka(root)), 1, 1),
    "statements of one JSON shape": (lambda root: len(list(statements(root))), 1, 1),
    "words of documents": (lambda root: words(*documents(root)), 60_000, 60_000),
    "words to read before a first change": (
        lambda root: words(*(root / name for name in _FIRST_READ)),
        6_000,
        6_000,
    ),
}
"""Each measure with what it may be today, and the goal. What it may be only ever decreases."""


if __name__ == "__main__":
    checkout = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    for title, (measured, most, goal) in MEASURES.items():
        sys.stdout.write(f"{measured(checkout):7,}  (at most {most:,}; goal {goal:,})  {title}\n")
