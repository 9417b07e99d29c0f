"""Prints every package and every module in one line, the first sentence of its docstring: ``scripts/rooms``."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def packages() -> list[Path]:
    """The folders that are packages, parents before their children."""
    return sorted(init.parent for init in (ROOT / "kafka_coord").rglob("__init__.py") if "build" not in init.parts)


def first_sentence(module: Path) -> str:
    """The first sentence of a module's docstring; "" if it has none."""
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence, end, _ = paragraph.partition(". ")
    sentence = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", sentence + end.strip())
    return sentence.replace("``", "`").replace("|", "\\|")


def rendered() -> str:
    lines: list[str] = []
    for package in packages():
        name = f"{package.relative_to(ROOT)}/"
        lines += [f"## {name}", first_sentence(package / "__init__.py"), ""]
        modules = sorted(module for module in package.glob("*.py") if module.name not in {"__init__.py", "setup.py"})
        if modules:
            lines += ["| module | |", "|---|---|"]
            lines += [f"| `{module.stem}` | {first_sentence(module)} |" for module in modules]
            lines.append("")
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(rendered())
