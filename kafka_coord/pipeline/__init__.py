"""The old name of :mod:`kafka_coord.spark`. If you import this package or one of its modules, you get the new module
and a deprecation warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from kafka_coord import spark
from kafka_coord.spark import register

__all__ = ["KafkaCoordSource", "register"]

_SPARK = "kafka_coord.spark"
_SAMPLES = {f"jobs.{name}": f"kafka_coord.dev.jobs.{name}" for name in ("delays", "flights", "streaming")}


class _Moved(MetaPathFinder, Loader):
    """Imports ``kafka_coord.pipeline.X`` as the same module object as ``kafka_coord.spark.X``, never as a copy."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        return spec_from_loader(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def exec_module(self, module: ModuleType) -> None:
        below = module.__name__.removeprefix(f"{__name__}.")
        sys.modules[module.__name__] = importlib.import_module(_SAMPLES.get(below, f"{_SPARK}.{below}"))


sys.meta_path.insert(0, _Moved())
warnings.warn(f"{__name__} is now {_SPARK}; import it from there", DeprecationWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    return getattr(spark, name)
