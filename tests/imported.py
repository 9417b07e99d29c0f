"""What a module's source imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def imported(source: str, naming: str) -> Iterator[str]:
    """All imports of a module, at any depth, as dotted names; of ``from a import b`` both ``a`` and ``a.b``. Nothing if
    the pattern does not match the source, because parsing takes long."""
    if not re.search(naming, source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))
