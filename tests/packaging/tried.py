"""``scripts/package``: builds everything that is shipped, twice, and tries each extra in an empty environment."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kafka_coord.dev.cluster.ports import free_port
from tests.packaging import manual, proofs
from tests.packaging.build import ROOT, Built, build, build_from_sdist, epoch
from tests.packaging.environments import Environment, empty, install


@dataclass(frozen=True, slots=True)
class Row:
    """What an extra brought: its distributions without pip, and their size."""

    extra: str
    distributions: int
    megabytes: float
    proof: str

    def __str__(self) -> str:
        return f"{self.extra:12} {self.distributions:3} distributions {self.megabytes:7.1f} MB   {self.proof}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def build_twice(out: Path, scratch: Path) -> Built:
    built = build(scratch / "first", out)
    again = build(scratch / "second", scratch / "dist")
    if again.bytes() != built.bytes():
        raise SystemExit("two builds of the same sources differ")
    if (
        build_from_sdist(built.sdist, scratch / "sdist", scratch / "from-sdist").read_bytes()
        != built.wheel.read_bytes()
    ):
        raise SystemExit("the wheel that is built from the sdist is another one")
    return built


def weigh(wheel: Path) -> str:
    """The lines and bytes of a wheel's modules, as installed."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [archive.read(name) for name in archive.namelist() if name.endswith(".py")]
    lines = sum(one.count(b"\n") for one in modules)
    return f"{len(modules)} modules, {lines:,} lines, {sum(map(len, modules)):,} bytes"


def try_all(built: Built, scratch: Path) -> list[Row]:
    """Installs each extra with pip, from the package indexes that pip is set to, and does its job there."""
    rows = []

    def tried(extra: str, proof: Callable[[Environment], str], *more: Path) -> None:
        say(f"installing {extra or 'no extra'} ...")
        environment = empty(scratch / f"environment-{extra or 'base'}")
        install(environment, extra, built.wheel, *more)
        rows.append(row(extra or "(none)", environment, proof(environment)))
        shutil.rmtree(environment.home)

    dev = empty(scratch / "environment-dev")
    say("installing dev ...")
    install(dev, "dev", built.wheel, built.dev_wheel)
    home = str(scratch / "cluster")
    up = dev.run(
        dev.program, "dev", "up", "--brokers", "1", "--channel-port", str(free_port()), "--dir", home, within_s=240
    )
    try:
        if up.returncode:
            raise SystemExit(f"dev up failed: {up.stderr}")
        found = json.loads(dev.run(dev.program, "dev", "status", "--dir", home, "-o", "json").stdout)
        servers = proofs.Servers(found["zookeeper"], "flights")
        records = scratch / "records.csv"
        records.write_text("n\n" + "".join(f"{number}\n" for number in range(proofs.RECORDS)))
        load = dev.run(dev.program, "load", str(records), "--topic", servers.topic, "-z", servers.zookeeper)
        if load.returncode:
            raise SystemExit(f"the records were not written: {load.stderr}")
        rows.append(row("dev", dev, "started ZooKeeper, a broker and an instance, and stopped them"))
        tried("", lambda environment: proofs.consumer(environment, servers))
        tried("cli", lambda environment: proofs.commands(environment, servers))
        tried("serve", lambda environment: proofs.daemon(environment, servers))
        tried("otel", lambda environment: proofs.daemon(environment, servers, "--trace-rebalances"))
        tried("sasl", proofs.sasl)
        tried("spark", lambda environment: proofs.query(environment, servers))
        tried("demo", proofs.demo, built.dev_wheel)
    finally:
        down = dev.run(dev.program, "dev", "down", "--dir", home)
    if down.returncode:
        raise SystemExit(f"dev down failed: {down.stderr}")
    return rows


def row(extra: str, environment: Environment, proof: str) -> Row:
    brought = list(environment.site.glob("*.dist-info"))
    size = sum(file.stat().st_size for file in environment.site.rglob("*") if file.is_file())
    return Row(extra, len(brought), size / 1e6, proof)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/package", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where to (default: dist)")
    parser.add_argument("--only-build", action="store_true", help="do not install and try the extras")
    arguments = parser.parse_args()
    started = time.monotonic()
    shutil.rmtree(arguments.out, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="kafka-coord-package-") as directory:
        scratch = Path(directory)
        built = build_twice(arguments.out, scratch)
        pages = manual.write(arguments.out, epoch())
        files = (built.wheel, built.sdist, built.dev_wheel)
        say(f"built twice, the same bytes: {', '.join(path.name for path in files)}")
        say(f"man pages and completions: {len(pages)} files")
        say(f"{built.wheel.name}: {weigh(built.wheel)}")
        if not arguments.only_build:
            say("\n".join(map(str, try_all(built, scratch))))
    say(f"done in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
