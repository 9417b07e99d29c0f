"""Which code is changed, and which tests must notice: the fast ones that cover it, and simulated histories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Target:
    """Modules by their paths (a folder includes everything below it), and the tests to run against a change in one of
    them."""

    code: str
    tests: tuple[str, ...]
    histories: int
    """The number of simulated histories to run after the tests."""
    with_zookeeper: bool = False
    """Whether to run tests that start a ZooKeeper too."""

    def modules(self) -> list[Path]:
        at = ROOT / self.code
        return sorted(at.rglob("*.py")) if at.is_dir() else [at]


TARGETS = (
    Target("kafka_coord/coordinator/assignors", ("tests/coordinator/assignors",), 0),
    Target("kafka_coord/coordinator/plan", ("tests/coordinator/plan",), 30),
    Target("kafka_coord/coordinator", ("tests/coordinator", "tests/trouble/test_patterns.py"), 60),
    Target("kafka_coord/consumer", ("tests/consumer",), 60),
    Target("kafka_coord/channel", ("tests/channel",), 60),
    Target("kafka_coord/frontends/members", ("tests/frontends",), 60),
    Target("kafka_coord/frontends/socket", ("tests/frontends",), 60),
    Target("kafka_coord/classic_groups", ("tests/classic_groups",), 0),
    Target("kafka_coord/zk/root.py", ("tests/zk/test_root.py", "tests/coordinator/test_mirroring.py"), 30),
    Target("kafka_coord/zk/election.py", ("tests/zk/test_election.py",), 60, with_zookeeper=True),
)
"""A module is tried with the first target that it belongs to."""

_PRELOADED = "ignore::pytest.PytestAssertRewriteWarning"
_SERVERS = ("kafka", "spark", "containers")


def target_of(module: Path) -> Target:
    return next(target for target in TARGETS if module in target.modules())


def modules() -> list[Path]:
    """All modules that can be changed, each once."""
    return sorted({module for target in TARGETS for module in target.modules() if module.stat().st_size})


def pytest_arguments(target: Target) -> list[str]:
    marks = _SERVERS if target.with_zookeeper else (*_SERVERS, "zookeeper")
    without = " and ".join(f"not {mark}" for mark in marks)
    # a test may start a program, which would run unchanged code: that only costs time
    return ["-x", "-q", "-m", without, "-n", "0", "-p", "no:cacheprovider", "-W", _PRELOADED, *target.tests]
