"""The tests, and the laboratories beside them.

A process that they start may run in any directory: it finds this checkout by ``PYTHONPATH``.
"""

import os
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[1])
_BEFORE = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != _ROOT]
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *_BEFORE])
