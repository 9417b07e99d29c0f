"""Man pages and completions have every command and option."""

from __future__ import annotations

from pathlib import Path

import click

from kafka_coord.cli.main import cli
from tests.packaging import manual


def test_each_command_has_a_page_with_all_its_options(tmp_path: Path) -> None:
    written = {file.relative_to(tmp_path).as_posix(): file.read_text() for file in manual.write(tmp_path, 0)}

    for context in manual.commands(cli.make_context("kafka-coord", [], resilient_parsing=True)):
        page = written[f"man/man1/{context.command_path.replace(' ', '-')}.1"]
        assert page.isascii()
        assert '" 1 "1970-01-01" "kafka_coord ' in page
        for option in context.command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert max(option.opts, key=len).replace("-", r"\-") in page
    assert {"man/man1/kafka-coord-groups-describe.1", "man/man1/kafka-coord-serve.1"} <= set(written)
    for script in ("bash/kafka-coord", "zsh/_kafka-coord", "fish/kafka-coord.fish"):
        assert "_KAFKA_COORD_COMPLETE" in written[f"completions/{script}"]
