"""Documents: every citation and link leads somewhere, and the list of modules is complete."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.house import rooms

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_CITED = re.compile(r"docs/[\w/-]+\.(?:md|json)\b(?:, sections? (\d+))?")
_ADR = re.compile(r"\bADR (\d+)\b")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)?(?:#([^)\s]+))?\)")


def sources() -> Iterator[tuple[str, str]]:
    for folder in ("kafka_coord", "tests", "scripts", ".ci"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.is_file() and file.suffix in {".py", ".sh", ""} and "__pycache__" not in file.parts:
                yield str(file.relative_to(ROOT)), file.read_text()


def headings(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_every_document_and_section_that_is_cited_is_there() -> None:
    missing = []
    for where, text in sources():
        for cited in _CITED.finditer(text):
            document = ROOT / cited[0].partition(",")[0]
            if not document.is_file():
                missing.append(f"{where}: {document.relative_to(ROOT)}")
            elif cited[1] and not re.search(rf"^## {cited[1]}\. ", document.read_text(), re.MULTILINE):
                missing.append(f"{where}: {cited[0]}")
    assert not missing


def test_every_decision_that_is_cited_is_there() -> None:
    written = {int(file.name[:4]) for file in ROOT.glob("docs/adr/*.md")}
    texts = [*sources(), *((str(file.relative_to(ROOT)), file.read_text()) for file in DOCUMENTS)]
    cited = [(where, int(number)) for where, text in texts for number in _ADR.findall(text)]
    assert not [f"{where}: ADR {number}" for where, number in cited if number not in written]


def test_each_decision_has_a_number_of_its_own_and_its_title_begins_with_it() -> None:
    decisions = sorted(ROOT.glob("docs/adr/*.md"))
    numbers = [int(file.name[:4]) for file in decisions]
    assert len(set(numbers)) == len(numbers), numbers
    titles = [file.read_text().partition("\n")[0] for file in decisions]
    wrong = [title for number, title in zip(numbers, titles, strict=True) if not title.startswith(f"# ADR {number}: ")]
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for path, anchor in _LINK.findall(document.read_text()):
        target = (document.parent / path) if path else document
        if not target.exists() or (anchor and anchor not in headings(target)):
            broken.append(f"{path}#{anchor}")
    assert not broken


def test_every_room_says_in_one_sentence_what_it_is_for() -> None:
    modules = [module for package in rooms.packages() for module in package.glob("*.py") if module.name != "setup.py"]
    assert len(modules) > 100
    assert not [str(module) for module in modules if not rooms.first_sentence(module)]


def contract(name: str, option: str) -> list[str]:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config[f"importlinter:contract:{name}"][option].strip().splitlines()


def layers() -> list[set[str]]:
    """The rows of the import contract, from the top."""
    return [{name.strip() for name in row.split("|")} for row in contract("layers", "layers")]


def test_the_table_of_rooms_is_that_of_the_import_contract() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)/?` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    described: dict[int, set[str]] = {}
    for layer, name in rows:
        described.setdefault(int(layer), set()).add(name)
    assert [described[layer] for layer in sorted(described)] == layers()


def test_the_pure_modules_are_those_of_the_import_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paragraph = text.partition("**Pure packages and modules**")[2].partition("\n\n")[0]
    named = [name.strip("/").replace("/", ".") for name in re.findall(r"`([^`]+)`", paragraph)]
    assert sorted(named) == sorted(one.removeprefix("kafka_coord.") for one in contract("pure", "source_modules"))


def test_the_tables_of_modules_name_what_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tables = re.findall(r"^Inside `(\w+)/`.*?\n\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert [package for package, _ in tables] == ["coordinator", "frontends"]
    for package, table in tables:
        folder = ROOT / "kafka_coord" / package
        modules = [file.relative_to(folder).with_suffix("") for file in folder.rglob("*.py")]
        packages = [module.parent for module in modules]
        functions = re.findall(r"def (\w+)", "\n".join(file.read_text() for file in folder.rglob("*.py")))
        there = {*functions, *(name for one in [*modules, *packages] for name in (str(one), one.name))}
        assert not {name.strip("/") for name in re.findall(r"`([\w/]+)`", table)} - there


def test_every_package_has_its_place_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    inner = {package.name for package in rooms.packages() if len(package.relative_to(ROOT).parts) <= 3}
    assert not [name for name in sorted(inner - {"kafka_coord"}) if f"{name}/`" not in text]


def test_what_happens_where_names_code_that_is_there() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("### Where it happens")[2].partition("\n## ")[0]
    for name in re.findall(r"`(\w+(?:\.\w+)+)`", section):
        pkgutil.resolve_name(f"kafka_coord.{name}")  # raises if it is not there


def test_every_folder_of_what_runs_beside_the_tests_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert not [path for path in re.findall(r"`(tests/[\w/]+/)`", text) if not (ROOT / path).is_dir()]
